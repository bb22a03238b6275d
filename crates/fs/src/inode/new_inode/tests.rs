//! A new inode has its entry in the table, locked, before the change that creates it begins.

use super::NewInode;
use crate::inode::table::InodeEntry;
use crate::{Clock, Error, FileId, FileKind, Filesystem, MountOptions, RenameFlags, Result};
use butternut_device::{Device, MemoryDevice};
use butternut_format::inode::Time;
use butternut_mkfs::MkfsOptions;
use butternut_names::NamesError;
use std::sync::{Arc, Mutex, PoisonError};

/// The volume, and the id of the next inode, whose entry is looked up.
static WATCHED: Mutex<Option<(Filesystem, FileId)>> = Mutex::new(None);
/// What each change that read the clock found.
static SEEN: Mutex<Vec<Seen>> = Mutex::new(Vec::new());

#[derive(Debug)]
enum Seen {
    NoEntry,
    Entry { entry: Arc<InodeEntry>, is_locked: bool },
}

/// The clock, which every change reads when it begins.
fn watching() -> Time {
    let watched = WATCHED.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some((fs, id)) = &*watched {
        let table = &fs.write_state().expect("a writable volume").table;
        let seen = if table.has(*id) {
            let entry = table.entry(*id);
            let is_locked = entry.try_lock_shared().is_none();
            Seen::Entry { entry, is_locked }
        } else {
            Seen::NoEntry
        };
        SEEN.lock().unwrap_or_else(PoisonError::into_inner).push(seen);
    }
    Time::default()
}

fn watch(watched: Option<(Filesystem, FileId)>) {
    *WATCHED.lock().unwrap_or_else(PoisonError::into_inner) = watched;
}

#[test]
fn an_inode_has_its_entry_locked_before_any_change_makes_it() {
    type Make = fn(&Filesystem) -> Result<FileId>;
    let makes: [(&str, Make); 6] = [
        ("create", |fs| fs.create(fs.root(), b"file", &NewInode::new(0o644))),
        ("mkdir", |fs| fs.mkdir(fs.root(), b"dir", &NewInode::new(0o755))),
        ("symlink", |fs| fs.symlink(fs.root(), b"link", b"text", &NewInode::new(0o777))),
        ("mknod", |fs| fs.mknod(fs.root(), b"fifo", &NewInode::new(0o644), FileKind::Fifo, (0, 0))),
        ("open_unnamed", |fs| {
            let file = fs.open_unnamed(fs.root(), &NewInode::new(0o600))?;
            let id = file.id();
            // With a name, it is not deleted with its handle.
            fs.link(id, fs.root(), b"unnamed").map(|()| id)
        }),
        ("rename", |fs| {
            let whiteout = RenameFlags { whiteout: Some((0, 0)), ..RenameFlags::default() };
            fs.rename((fs.root(), b"first"), (fs.root(), b"moved"), whiteout)?;
            fs.lookup(fs.root(), b"first")
        }),
    ];
    let device = MemoryDevice::new("memory", 256 << 20);
    butternut_mkfs::make(&device, &MkfsOptions::default()).expect("a fresh volume");
    let device: Arc<dyn Device> = Arc::new(device);
    let options =
        MountOptions::default().read_only(false).commit_seconds(0).clock(Clock::new(watching));
    let fs = Filesystem::open_devices(vec![device], &options).expect("a writable volume");
    let first = fs.create(fs.root(), b"first", &NewInode::new(0o644)).expect("space");
    for (number, (name, make)) in (1..).zip(makes) {
        let next = FileId::new(first.subvolume, first.ino + number);
        watch(Some((fs.clone(), next)));
        let made = make(&fs);
        watch(None);
        assert_eq!(made.expect(name), next, "{name}: inode numbers are consecutive");
        let seen = std::mem::take(&mut *SEEN.lock().unwrap_or_else(PoisonError::into_inner));
        let after = fs.write_state().expect("a writable volume").table.entry(next);
        let Some(Seen::Entry { entry, is_locked }) = seen.first() else {
            panic!("{name}: {seen:?} when the change began");
        };
        assert!(*is_locked, "{name}: another thread can take the inode before it is made");
        assert!(Arc::ptr_eq(entry, &after), "{name}: the inode got another entry");
    }
    fs.close().expect("a sound volume");
}

#[test]
fn a_directory_whose_indexes_are_used_up_gets_no_entry() {
    let device = Arc::new(MemoryDevice::new("memory", 256 << 20));
    butternut_mkfs::make(&*device, &MkfsOptions::default()).expect("a fresh volume");
    let options = MountOptions::default().read_only(false);
    let fs = Filesystem::open_devices(vec![Arc::clone(&device) as Arc<dyn Device>], &options)
        .expect("a writable volume");
    let (root, new) = (fs.root(), NewInode::new(0o644));
    for name in [&b"one"[..], b"two"] {
        fs.create(root, name, &new).expect("a new file");
    }
    // The last index that a listing can return, as after an entry of a prepared image.
    let last = i64::MAX.unsigned_abs() - 1;
    let entry = fs.write_state().expect("a writable volume").table.entry(root);
    entry.lock().next_index = Some(last);
    fs.create(root, b"last", &new).expect("the last index");
    let is_used_up = |result: Result<()>| {
        let error = result.expect_err("no index is left");
        assert!(matches!(error, Error::Names(NamesError::NumbersUsedUp { .. })), "{error}");
    };
    let exchange = RenameFlags { exchange: true, ..RenameFlags::default() };
    is_used_up(fs.create(root, b"more", &new).map(drop));
    is_used_up(fs.rename((root, b"one"), (root, b"more"), RenameFlags::default()));
    is_used_up(fs.rename((root, b"one"), (root, b"two"), exchange));
    fs.unlink(root, b"one").expect("a name can be removed");
    let listed = fs.read_dir(root, crate::FIRST_ENTRY).expect("a directory");
    let listed: Vec<_> = listed.map(|entry| entry.expect("a valid entry").name).collect();
    assert_eq!(listed, [&b"two"[..], b"last"]);
    fs.close().expect("a sound volume");
}
