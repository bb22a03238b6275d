//! Tests of calls that fail, and of what other threads do just before a call ends.

use super::VerityOptions;
use crate::{EnospcInjector, File, FileId, Filesystem, MountOptions, NewInode};
use butternut_device::{Device, MemoryDevice};
use butternut_file::verity_keys;
use butternut_format::units::Ino;
use butternut_mkfs::MkfsOptions;
use butternut_names as names;
use std::cell::Cell;
use std::sync::Arc;

struct Volume {
    device: Arc<dyn Device>,
    injector: EnospcInjector,
}

impl Volume {
    fn new() -> Self {
        let device = MemoryDevice::new("memory", 256 << 20);
        butternut_mkfs::make(&device, &MkfsOptions::default()).unwrap();
        Self { device: Arc::new(device), injector: EnospcInjector::default() }
    }

    fn open(&self) -> Filesystem {
        let options = MountOptions::default()
            .read_only(false)
            .commit_seconds(0)
            .enospc_injector(Some(self.injector.clone()));
        Filesystem::open_devices(vec![Arc::clone(&self.device)], &options).unwrap()
    }

    /// Enables fs-verity on a file. The call ends in its midst and finds no space for its removals.
    fn fail(&self, file: &File) {
        let parts = Cell::new(0);
        let goes_on = || {
            parts.set(parts.get() + 1);
            if parts.get() == 12 {
                self.injector.fail_from(1);
            }
            parts.get() < 12
        };
        let options = VerityOptions::default().block_bytes(1024);
        file.enable_verity_while(&options, &goes_on).unwrap_err();
        self.injector.fail_none();
    }
}

fn new() -> NewInode {
    NewInode::new(0o644)
}

fn orphans(fs: &Filesystem) -> Vec<Ino> {
    names::orphans(&fs.subvolume_tree(fs.root().subvolume).unwrap(), Ino(0), 9).unwrap()
}

/// Returns how many items of fs-verity a file has.
fn items(fs: &Filesystem, id: FileId) -> usize {
    let tree = fs.subvolume_tree(id.subvolume).unwrap();
    verity_keys(&tree, Ino(id.ino), usize::MAX).unwrap().len()
}

/// A file gets its first name after its call has done everything, and before that is recorded in
/// memory.
#[test]
fn a_link_just_before_a_call_ends_leaves_no_orphan_item() {
    for is_sealed in [true, false] {
        let volume = Volume::new();
        let fs = volume.open();
        let file = fs.open_unnamed(fs.root(), &new()).unwrap();
        file.write_at(0, &[7; 9000]).unwrap();
        let pin = file.pin().unwrap();
        let sealing = fs.begin_seal(pin.entry()).unwrap();
        let parameters = VerityOptions::default().parameters().unwrap();
        let built = file.build_seal(parameters, &[], (&|| is_sealed, &|part| Some(part.hash())));
        assert_eq!(built.is_ok(), is_sealed);
        if !is_sealed {
            fs.roll_back_seal(pin.entry()).unwrap();
        }
        assert_eq!(orphans(&fs), [Ino(file.id().ino)]);
        fs.link(file.id(), fs.root(), b"named").unwrap();
        drop(sealing);
        assert_eq!(orphans(&fs), [], "{is_sealed}");
        assert_eq!(file.measure_verity().is_ok(), is_sealed);
        assert_eq!(items(&fs, file.id()) > 0, is_sealed);
        drop(file);
        fs.close().unwrap();
    }
}

/// Without its orphan item, the items that a call has left would stay for ever.
#[test]
fn a_link_keeps_the_guard_of_items_that_a_call_has_left() {
    let volume = Volume::new();
    let fs = volume.open();
    let file = fs.open_unnamed(fs.root(), &new()).unwrap();
    let id = file.id();
    file.write_at(0, &vec![7; 20 << 20]).unwrap();
    volume.fail(&file);
    assert!(items(&fs, id) > 64);
    fs.link(id, fs.root(), b"named").unwrap();
    assert_eq!(orphans(&fs), [Ino(id.ino)]);
    drop(file);
    fs.close().unwrap();
    let fs = volume.open();
    fs.open_file(id).unwrap().write_at(0, &[8; 10]).unwrap();
    assert_eq!((orphans(&fs), items(&fs, id)), (vec![], 0));
    assert_eq!(fs.stat(id).unwrap().nlink, 1);
    fs.close().unwrap();
}

/// A small file is deleted in the transaction that removes its name. The items that a call has left
/// may be many more than that transaction has reserved space for.
#[test]
fn a_small_file_with_items_that_a_call_has_left_is_deleted_in_steps() {
    for is_rename in [false, true] {
        let volume = Volume::new();
        let fs = volume.open();
        let root = fs.root();
        let id = fs.create(root, b"file", &new()).unwrap();
        let file = fs.open_file(id).unwrap();
        file.write_at(0, &vec![7; 20 << 20]).unwrap();
        volume.fail(&file);
        file.truncate(10).unwrap();
        drop(file);
        let left = items(&fs, id);
        assert!(left > 64 && orphans(&fs) == [Ino(id.ino)], "{left}");
        if is_rename {
            fs.create(root, b"other", &new()).unwrap();
            fs.rename((root, b"other"), (root, b"file"), crate::RenameFlags::default()).unwrap();
        } else {
            fs.unlink(root, b"file").unwrap();
        }
        assert_eq!((orphans(&fs), items(&fs, id)), (vec![], 0));
        fs.close().unwrap();
    }
}
