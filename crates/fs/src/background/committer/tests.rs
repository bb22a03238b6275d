//! Panics under the locks of file data in memory: the next commit fails, and reads continue. The
//! order of the committer's work.

use super::{Signal, Work};
use crate::{Error, FileId, Filesystem, MountOptions, NewInode};
use butternut_device::{Device, Fault, FaultyDevice, MemoryDevice, Rule};
use butternut_mkfs::MkfsOptions;
use butternut_pages::FileKey;
use butternut_tree::TreeError;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

/// Opens a volume on which only the caller commits.
pub(crate) fn open(device: &Arc<dyn Device>) -> Filesystem {
    let options = MountOptions::default().read_only(false).commit_seconds(0);
    Filesystem::open_devices(vec![Arc::clone(device)], &options).expect("a writable volume")
}

pub(crate) fn fresh() -> Arc<dyn Device> {
    let device = MemoryDevice::new("memory", 256 << 20);
    butternut_mkfs::make(&device, &MkfsOptions::default()).expect("a fresh volume");
    Arc::new(device)
}

/// Returns whether a panic has made the volume read-only.
pub(crate) fn is_forced_read_only(fs: &Filesystem) -> bool {
    let Some(crate::Error::Tree(TreeError::ReadOnly { cause })) = fs.write_error() else {
        return false;
    };
    matches!(*cause, TreeError::Panicked)
}

fn made(fs: &Filesystem, name: &[u8], byte: u8) -> FileId {
    let id = fs.create(fs.root(), name, &NewInode::new(0o644)).expect("a new file");
    let file = fs.open_file(id).expect("a file");
    assert_eq!(file.write_at(0, &[byte; 8192]).expect("space"), 8192);
    id
}

fn panic_in_a_change_of_pages(fs: &Filesystem, id: FileId) {
    let key = FileKey { tree: id.subvolume, ino: id.ino };
    let pages = fs.shared.source.pages().file(key);
    let panicked = catch_unwind(AssertUnwindSafe(|| {
        let _change = pages.change();
        panic!("between two pages of a write");
    }));
    assert!(panicked.is_err());
}

#[test]
fn a_panic_in_a_change_of_pages_ends_writing() {
    type Sync = fn(&Filesystem, FileId) -> crate::Result<()>;
    let syncs: [Sync; 2] =
        [|fs, _| fs.sync(), |fs, id| fs.open_file(id).expect("a file").sync_all()];
    for sync in syncs {
        let device = fresh();
        let fs = open(&device);
        let id = made(&fs, b"file", 1);
        fs.sync().expect("a sound volume");
        let file = fs.open_file(id).expect("a file");
        file.write_at(0, &[2; 8192]).expect("space");
        panic_in_a_change_of_pages(&fs, id);
        assert!(sync(&fs, id).is_err(), "half a change would be on the volume");
        assert!(is_forced_read_only(&fs));
        let mut bytes = [0; 8192];
        assert_eq!(file.read_at(0, &mut bytes).expect("reads continue"), 8192);
        drop((file, fs));
        let fs = open(&device);
        let read = fs.open_file(id).expect("a file").read_at(0, &mut bytes);
        assert_eq!(read.expect("a sound volume"), 8192);
        assert_eq!(bytes, [1; 8192]);
    }
}

#[test]
fn a_panic_in_a_change_of_pages_that_are_clean_ends_writing_when_they_are_used() {
    let device = fresh();
    let fs = open(&device);
    let id = made(&fs, b"file", 1);
    let other = made(&fs, b"other", 1);
    fs.sync().expect("a sound volume");
    panic_in_a_change_of_pages(&fs, id);
    let mut bytes = [0; 8192];
    fs.open_file(id).expect("a file").read_at(0, &mut bytes).expect("reads continue");
    // From then on, no change of any file is reported durable.
    let file = fs.open_file(other).expect("a file");
    if file.write_at(0, &[2; 8192]).is_ok() {
        assert!(file.sync_all().is_err());
    }
    assert!(is_forced_read_only(&fs));
}

#[test]
fn nothing_is_logged_after_a_panic_in_a_change_of_pages() {
    let device = fresh();
    let fs = open(&device);
    let id = made(&fs, b"file", 1);
    fs.sync().expect("a sound volume");
    panic_in_a_change_of_pages(&fs, id);
    let mut bytes = [0; 8192];
    fs.open_file(id).expect("a file").read_at(0, &mut bytes).expect("reads continue");
    fs.mkdir(fs.root(), b"dir", &NewInode::new(0o755)).expect("no data is changed");
    assert!(fs.sync_directory(fs.root()).is_err());
    assert!(is_forced_read_only(&fs));
}

#[test]
fn a_panic_with_an_inode_locked_ends_writing_when_it_is_locked_again() {
    let device = fresh();
    let fs = open(&device);
    let id = made(&fs, b"file", 1);
    fs.sync().expect("a sound volume");
    let entry = fs.write_state().expect("a writable volume").table.entry(id);
    let panicked = catch_unwind(AssertUnwindSafe(|| {
        let _state = entry.lock();
        panic!("between two steps of a write");
    }));
    assert!(panicked.is_err());
    let file = fs.open_file(id).expect("reads continue");
    if file.write_at(0, &[2; 8192]).is_ok() {
        assert!(file.sync_all().is_err(), "half a change would be on the volume");
    }
    assert!(is_forced_read_only(&fs));
}

#[test]
fn the_committer_of_an_abandoned_filesystem_has_nothing_to_do() {
    let device = fresh();
    let fs = open(&device);
    made(&fs, b"file", 1);
    fs.abandon();
    let signal = &fs.write_state().expect("a writable volume").signal;
    signal.kick();
    fs.write_back_and_commit().expect("nothing is written");
    assert!(signal.is_idle(), "a thread would spin");
}

#[test]
fn a_commit_that_is_due_comes_before_files_to_merge() {
    let device = fresh();
    let fs = open(&device);
    let id = made(&fs, b"file", 1);
    let entry = fs.write_state().expect("a writable volume").table.entry(id);
    let signal = Signal::default();
    signal.changed();
    // A writer queues its file again and again, as fast as the committer merges it.
    signal.queue_merge(&entry);
    assert!(matches!(signal.next_work(Duration::ZERO), Work::Commit));
    signal.begin();
    assert!(matches!(signal.next_work(Duration::ZERO), Work::Merge(_)));
}

/// A caller that passes over losses of file data learns of a commit that failed.
#[test]
fn lost_data_hides_no_failed_commit() {
    let device = Arc::new(FaultyDevice::new(fresh(), 1));
    let fs = open(&(Arc::clone(&device) as Arc<dyn Device>));
    made(&fs, b"one", 1);
    fs.sync().expect("a sound volume");
    // Dirty data, and changed trees.
    made(&fs, b"two", 2);
    device.add(Rule::everywhere(Fault::WriteError));
    let synced = fs.sync_and_keep_errors();
    assert!(fs.write_error().is_some(), "the commit has failed");
    assert!(!matches!(synced, Ok(()) | Err(Error::File(_))), "{synced:?}");
}
