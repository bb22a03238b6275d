//! Synced files after a crash that follows changes of names.

use crate::{
    Allocate, ExtentKind, FileId, Filesystem, MountOptions, NewInode, RenameFlags, Tunables,
};
use butternut_device::{Device, MemoryDevice};
use butternut_mkfs::MkfsOptions;
use std::sync::Arc;

fn fresh() -> Arc<dyn Device> {
    let device = MemoryDevice::new("memory", 256 << 20);
    butternut_mkfs::make(&device, &MkfsOptions::default()).expect("a fresh volume");
    Arc::new(device)
}

/// Opens a volume that commits only in syncs, and replays its log.
fn open(device: &Arc<dyn Device>) -> Filesystem {
    let tunables = Tunables::default().log_tree(true);
    let options = MountOptions::default().read_only(false).commit_seconds(0).tunables(tunables);
    Filesystem::open_devices(vec![Arc::clone(device)], &options).expect("a writable volume")
}

/// Opens the volume as a crash leaves it.
fn crashed(fs: Filesystem, device: &Arc<dyn Device>) -> Filesystem {
    fs.abandon();
    drop(fs);
    open(device)
}

fn content(fs: &Filesystem, dir: FileId, name: &[u8]) -> Option<Vec<u8>> {
    let file = fs.open_file(fs.lookup(dir, name).ok()?).expect("a file");
    let mut bytes = vec![0; 100];
    let count = file.read_at(0, &mut bytes).expect("readable data");
    bytes.truncate(count);
    Some(bytes)
}

fn put(fs: &Filesystem, dir: FileId, name: &[u8], bytes: &[u8]) {
    let id = fs.create(dir, name, &NewInode::new(0o644)).expect("space");
    let file = fs.open_file(id).expect("a file");
    file.write_at(0, bytes).expect("space");
    file.sync_all().expect("a sync");
}

#[test]
fn a_synced_file_survives_another_one_that_gets_its_old_index() {
    let device = fresh();
    let fs = open(&device);
    let from = fs.mkdir(fs.root(), b"from", &NewInode::new(0o755)).expect("space");
    let to = fs.mkdir(fs.root(), b"to", &NewInode::new(0o755)).expect("space");
    fs.sync().expect("a commit");
    put(&fs, from, b"first", b"one");
    assert_eq!(fs.stats().syncs.fast, 1);
    fs.rename((from, b"first"), (to, b"moved"), RenameFlags::default()).expect("a rename");
    // As after the eviction of the directory's entry: the index of the old name is used again.
    fs.write_state().expect("writable").table.entry(from).lock().next_index = None;
    put(&fs, from, b"second", b"two");
    let fs = crashed(fs, &device);
    let found = [content(&fs, from, b"first"), content(&fs, to, b"moved")];
    assert!(found.contains(&Some(b"one".to_vec())), "{found:?}");
    assert_eq!(content(&fs, from, b"second"), Some(b"two".to_vec()));
}

#[test]
fn no_sync_of_a_removed_file_leaves_an_older_state_under_its_name() {
    for is_committed in [true, false] {
        let device = fresh();
        let fs = open(&device);
        put(&fs, fs.root(), b"file", b"old");
        assert_eq!(fs.stats().syncs.fast, 1);
        if is_committed {
            fs.sync().expect("a commit");
        }
        let file = fs.open_file(fs.lookup(fs.root(), b"file").expect("the file")).expect("a file");
        fs.unlink(fs.root(), b"file").expect("a removal");
        file.write_at(0, b"new").expect("space");
        file.sync_all().expect("a sync");
        let commits = fs.stats().commits;
        file.sync_all().expect("a sync");
        assert_eq!(fs.stats().commits, commits, "a crash deletes the file already");
        drop(file);
        let fs = crashed(fs, &device);
        let found = content(&fs, fs.root(), b"file");
        assert_ne!(found, Some(b"old".to_vec()), "{is_committed}");
    }
}

/// Returns how many bytes of a file are preallocated.
fn preallocated(fs: &Filesystem, dir: FileId, name: &[u8]) -> u64 {
    let file = fs.open_file(fs.lookup(dir, name).expect("the name")).expect("a file");
    let extents = file.extents(0..1 << 30).map(|extent| extent.expect("an extent"));
    extents
        .filter(|extent| matches!(extent.kind, ExtentKind::Prealloc { .. }))
        .map(|extent| extent.bytes)
        .sum()
}

/// A replay cuts off what a logged file has past its end.
#[test]
fn space_that_is_preallocated_past_the_end_survives_a_sync_and_a_crash() {
    const SPACE: u64 = 1 << 20;
    for (is_written, is_moved) in [(true, false), (false, true), (true, true)] {
        let device = fresh();
        let fs = open(&device);
        let root = fs.root();
        put(&fs, root, b"file", &[1; 6000]);
        let file = fs.open_file(fs.lookup(root, b"file").expect("the file")).expect("a file");
        file.allocate(0..SPACE, Allocate::KeepSize).expect("space");
        fs.sync().expect("a commit");
        assert_eq!(preallocated(&fs, root, b"file"), SPACE - 8192);
        let (commits, mut name) = (fs.stats().commits, &b"file"[..]);
        if is_written {
            file.write_at(0, b"new").expect("space");
            file.sync_all().expect("a sync");
        }
        if is_moved {
            name = b"moved";
            fs.rename((root, b"file"), (root, name), RenameFlags::default()).expect("a rename");
            fs.sync_directory(root).expect("a sync");
        }
        assert_eq!(fs.stats().commits, commits, "the syncs write the log");
        drop(file);
        let fs = crashed(fs, &device);
        let found = preallocated(&fs, root, name);
        assert_eq!(found, SPACE - 8192, "is written: {is_written}, is moved: {is_moved}");
        let content = content(&fs, root, name).expect("the file");
        assert_eq!(content.starts_with(b"new"), is_written);
        fs.close().expect("a sound volume");
    }
}
