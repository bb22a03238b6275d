//! What an fsync has returned for is there after a crash: also on a volume that is short of space,
//! and also if the file had no name yet.

use crate::volume::{TestVolume, new};
use butternut::{Allocate, FileId, Filesystem, MountOptions, NewInode};
use butternut_mkfs::MkfsOptions;

const BLOCK: u64 = 4096;
/// Each makes a hole and an extent, and the log has an item for both.
const HOLES: u64 = 6000;

fn options() -> MountOptions {
    MountOptions::default().read_only(false).commit_seconds(0)
}

fn fresh() -> (TestVolume, Filesystem) {
    let volume = TestVolume::of(128 << 20, &MkfsOptions::default());
    let fs = Filesystem::open_devices(volume.devices(), &options()).unwrap();
    (volume, fs)
}

/// Returns the volume as a crash leaves it.
fn crash(volume: &TestVolume, fs: Filesystem) -> TestVolume {
    let crashed = volume.copy();
    fs.abandon();
    drop(fs);
    crashed
}

fn content(fs: &Filesystem, dir: FileId, name: &[u8]) -> Vec<u8> {
    let file = fs.open_file(fs.lookup(dir, name).unwrap()).unwrap();
    let mut bytes = vec![0; usize::try_from(file.len()).unwrap()];
    file.read_exact_at(0, &mut bytes).unwrap();
    bytes
}

/// No other thread takes the space of a replay, so it needs none in advance.
#[test]
fn a_long_log_is_replayed_on_a_volume_without_space() {
    let (volume, fs) = fresh();
    let id = fs.create(fs.root(), b"file", &NewInode::new(0o644)).unwrap();
    let file = fs.open_file(id).unwrap();
    let bytes = vec![7; 1 << 20];
    let mut size = 0;
    while let Ok(written) = file.write_at(size, &bytes) {
        size += u64::try_from(written).unwrap();
        if written < bytes.len() {
            break;
        }
    }
    fs.sync().unwrap();
    assert!(size > 2 * HOLES * BLOCK, "{size} bytes fill the volume");
    let commits = fs.stats().commits;
    for hole in 0..HOLES {
        let at = 2 * hole * BLOCK;
        file.allocate(at..at + BLOCK, Allocate::PunchHole).unwrap();
    }
    file.sync_all().unwrap();
    assert_eq!(fs.stats().commits, commits, "{:?}", fs.sync_counts());
    drop(file);
    let crashed = crash(&volume, fs);
    for read_only in [true, false] {
        let options = options().read_only(read_only);
        let fs = Filesystem::open_devices(crashed.devices(), &options).unwrap();
        assert!(fs.notices().is_empty(), "{:?}", fs.notices());
        let file = fs.open_file(fs.lookup(fs.root(), b"file").unwrap()).unwrap();
        let mut block = [1; 4096];
        for number in 0..2 * HOLES {
            file.read_exact_at(number * BLOCK, &mut block).unwrap();
            let want = if number % 2 == 0 { 0 } else { 7 };
            assert!(block.iter().all(|byte| *byte == want), "block {number}");
        }
        drop(file);
        fs.close().unwrap();
    }
    crashed.check();
}

/// The fsync of a file without a name has nothing to log. The log of its first name must not bring
/// an empty file.
#[test]
fn a_file_that_was_synced_before_its_first_name_keeps_its_content() {
    for (bytes, is_committed) in [(100, false), (100, true), (20_000, false), (20_000, true)] {
        let (volume, fs) = fresh();
        let dir = fs.mkdir(fs.root(), b"dir", &NewInode::new(0o755)).unwrap();
        fs.sync().unwrap();
        let want = vec![5; bytes];
        let file = fs.open_unnamed(dir, &NewInode::new(0o644)).unwrap();
        file.write_all_at(0, &want).unwrap();
        file.sync_all().unwrap();
        if is_committed {
            fs.sync().unwrap();
        }
        fs.link(file.id(), dir, b"file").unwrap();
        drop(file);
        fs.sync_directory(dir).unwrap();
        let crashed = crash(&volume, fs);
        let fs = Filesystem::open_devices(crashed.devices(), &options()).unwrap();
        let dir = fs.lookup(fs.root(), b"dir").unwrap();
        let found = content(&fs, dir, b"file");
        assert_eq!(found.len(), bytes, "is committed: {is_committed}");
        assert!(found == want);
        fs.close().unwrap();
        crashed.check();
    }
}

/// The log of a file that became shorter and then longer has the hole in between, also where no
/// item of the tree changed when the file became longer.
#[test]
fn a_file_that_was_cut_and_grows_again_has_no_old_data_after_a_crash() {
    let volume = TestVolume::of(128 << 20, &MkfsOptions::default());
    let fs = volume.open();
    let id = fs.create(fs.root(), b"file", &new(0o644)).unwrap();
    let file = fs.open_file(id).unwrap();
    file.write_at(0, &vec![1; 64 << 10]).unwrap();
    fs.sync().unwrap();
    file.truncate(5000).unwrap();
    file.sync_all().unwrap();
    file.truncate(64 << 10).unwrap();
    file.sync_all().unwrap();
    assert_eq!(fs.sync_counts().fast, 2);
    let mut want = vec![1; 5000];
    want.resize(64 << 10, 0);
    let crashed = volume.copy();
    drop(file);
    fs.abandon();
    let fs = crashed.open();
    let mut have = vec![9; 64 << 10];
    let file = fs.open_file(fs.lookup(fs.root(), b"file").unwrap()).unwrap();
    file.read_exact_at(0, &mut have).unwrap();
    assert_eq!(have.iter().zip(&want).position(|(have, want)| have != want), None);
    drop(file);
    crashed.reopen(fs);
}
