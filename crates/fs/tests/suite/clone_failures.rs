//! Clones that fail midway, and crashes around references that clones added: what is reported, and
//! what every file reads.

use crate::volume::{TestVolume, make, place};
use butternut::{EnospcInjector, File, Filesystem, MountOptions, Privileges, SnapshotAccess};
use butternut_mkfs::MkfsOptions;

const BLOCK: u64 = 4096;
const NO_COW: u32 = 0x0080_0000;
const NO_SPACE: i32 = 28;
const STALE: i32 = 116;

/// Extents of a source that is cloned in several steps.
const EXTENTS: u64 = 700;

fn volume() -> TestVolume {
    TestVolume::of(256 << 20, &MkfsOptions::default())
}

fn open(fs: &Filesystem, name: &str) -> File {
    fs.open_file(fs.lookup(fs.root(), name.as_bytes()).unwrap()).unwrap()
}

fn put(file: &File, at: u64, data: &[u8]) {
    assert_eq!(file.write_at(at, data).unwrap(), data.len());
}

fn read(file: &File) -> Vec<u8> {
    let mut all = vec![0xee; usize::try_from(file.len()).unwrap()];
    file.read_exact_at(0, &mut all).unwrap();
    all
}

/// Writes a file of [`EXTENTS`] extents with holes between them, which ends inside a block.
fn put_extents(file: &File) -> Vec<u8> {
    for at in 0..EXTENTS {
        let byte = u8::try_from(at % 251).unwrap();
        put(file, 2 * at * BLOCK, &[byte; 4096]);
    }
    put(file, 2 * EXTENTS * BLOCK, &[7; 100]);
    read(file)
}

fn options(injector: &EnospcInjector) -> MountOptions {
    let options = MountOptions::default().read_only(false).commit_seconds(0);
    options.enospc_injector(Some(injector.clone()))
}

/// The reference of the clone is in the log only. It is dropped again before a commit, so the two
/// cancel out, and the drop is not durable when the power fails.
#[test]
fn a_logged_clone_that_is_dropped_again_keeps_its_bytes_in_a_crash() {
    for drop_by_unlink in [false, true] {
        let volume = volume();
        let fs = volume.open();
        let (source, target) = (make(&fs, "source", NO_COW), make(&fs, "target", NO_COW));
        let old = vec![1; 16 * 4096];
        put(&source, 0, &old);
        fs.sync().unwrap();
        target.clone_range(0, &source, 0, 0).unwrap();
        fs.sync_directory(fs.root()).unwrap();
        target.sync_all().unwrap();
        if drop_by_unlink {
            drop(target);
            fs.unlink(fs.root(), b"target").unwrap();
        } else {
            target.truncate(0).unwrap();
        }
        assert_eq!(source.write_direct(0, &[2; 4096], Privileges::Keep).unwrap(), 4096);
        let cut = volume.copy();
        let crashed = cut.open();
        assert!(read(&open(&crashed, "target")) == old, "by unlink: {drop_by_unlink}");
        cut.reopen(crashed);
        drop(source);
        volume.reopen(fs);
    }
}

/// A file has an extent twice, and drops it at one of the offsets.
#[test]
fn a_second_reference_of_the_same_file_keeps_its_bytes_in_a_crash() {
    let volume = volume();
    let fs = volume.open();
    let file = make(&fs, "file", NO_COW);
    let old = vec![1; 16 * 4096];
    put(&file, 0, &old);
    fs.sync().unwrap();
    let first = place(&file, 0);
    file.clone_range(16 * BLOCK, &file, 0, 0).unwrap();
    file.sync_all().unwrap();
    file.truncate(16 * BLOCK).unwrap();
    assert_eq!(file.write_direct(0, &[2; 4096], Privileges::Keep).unwrap(), 4096);
    let cut = volume.copy();
    let crashed = cut.open();
    let found = read(&open(&crashed, "file"));
    assert!(found[..16 * 4096] == old && found[16 * 4096..] == old);
    cut.reopen(crashed);
    // When the drop is durable, the file writes in place again.
    fs.sync().unwrap();
    put(&file, BLOCK, &[3; 4096]);
    fs.sync().unwrap();
    assert_eq!(place(&file, BLOCK), first + BLOCK);
    drop(file);
    volume.reopen(fs);
}

/// The checksums of extents that the last commit has are in its checksum tree, so the log of a
/// clone does not have them. With them it would have 64 KiB more.
#[test]
fn the_log_of_a_clone_has_no_checksums_that_are_committed() {
    let volume = volume();
    let fs = volume.open();
    let (source, target) = (make(&fs, "source", 0), make(&fs, "target", 0));
    let part = vec![1; 1 << 20];
    for at in 0..64 {
        put(&source, at << 20, &part);
    }
    fs.sync().unwrap();
    target.clone_range(0, &source, 0, 0).unwrap();
    let before = fs.sync_counts();
    target.sync_all().unwrap();
    let after = fs.sync_counts();
    assert_eq!(after.fast, before.fast + 1);
    let blocks = after.log.blocks - before.log.blocks;
    assert!(blocks <= 3, "{blocks} blocks");
    let cut = volume.copy();
    let crashed = cut.open();
    assert!(read(&open(&crashed, "target")).iter().all(|byte| *byte == 1));
    cut.reopen(crashed);
    drop((source, target));
    volume.reopen(fs);
}

/// Fails the reservations of a copy from one on, which is a later one in each run: a smaller step
/// finds no space, either. Returns how many copies were cut short.
fn copies_cut_short(volume: &TestVolume) -> usize {
    let injector = EnospcInjector::default();
    let fs = Filesystem::open_devices(volume.devices(), &options(&injector)).unwrap();
    let source = make(&fs, "source", 0);
    let want = put_extents(&source);
    fs.sync().unwrap();
    let mut short = 0;
    for nth in 1..24 {
        let target = make(&fs, &format!("target{nth}"), 0);
        let before = target.metadata().unwrap();
        injector.fail_from(nth);
        let copied = target.copy_range(0, &source, 0, u64::MAX);
        injector.fail_none();
        let after = target.metadata().unwrap();
        let done = copied.as_ref().map_or(0, |done| usize::try_from(*done).unwrap());
        if let Err(error) = copied {
            assert_eq!(error.errno(), NO_SPACE, "reservation {nth}");
            let message = "a copy without a result has changed nothing";
            assert_eq!((after.size, after.mtime), (before.size, before.mtime), "{message}");
        } else {
            short += usize::from(done < want.len());
            assert!(done > 0 && after.mtime > before.mtime, "reservation {nth}");
        }
        assert!(read(&target) == want[..done], "reservation {nth}, {done} bytes");
        let rest = target.copy_range(after.size, &source, after.size, u64::MAX).unwrap();
        assert_eq!(done + usize::try_from(rest).unwrap(), want.len());
        assert!(read(&target) == want, "reservation {nth}");
        fs.sync().unwrap();
    }
    drop(source);
    volume.reopen(fs);
    short
}

#[test]
fn a_copy_that_finds_no_space_midway_returns_what_it_has_copied() {
    assert!(copies_cut_short(&volume()) > 0, "no copy was cut short");
}

/// "Up to the end of the file" stays what it was when the request began, although the file has
/// grown in an attempt that found no space.
#[test]
fn a_clone_to_the_own_end_that_finds_no_space_is_not_extended() {
    let volume = volume();
    let injector = EnospcInjector::default();
    let fs = Filesystem::open_devices(volume.devices(), &options(&injector)).unwrap();
    let mut failed = 0;
    for nth in 1..24 {
        for tail in [0, 100] {
            let name = format!("file{nth}-{tail}");
            let file = make(&fs, &name, 0);
            let mut want = put_extents(&file);
            let blocks = 2 * EXTENTS + 1;
            let size = (blocks - 1) * BLOCK + tail;
            file.truncate(size).unwrap();
            want.truncate(usize::try_from(size).unwrap());
            fs.sync().unwrap();
            injector.fail_every(nth);
            let cloned = file.clone_range(blocks * BLOCK, &file, 0, 0);
            injector.fail_none();
            let old = want.clone();
            want.resize(usize::try_from(blocks * BLOCK).unwrap(), 0);
            want.extend_from_slice(&old);
            let found = read(&file);
            match cloned {
                Ok(()) => assert!(found == want, "reservation {nth}, tail {tail}"),
                Err(error) => {
                    failed += 1;
                    assert_eq!(error.errno(), NO_SPACE, "reservation {nth}, tail {tail}");
                    assert!(want.starts_with(&found), "reservation {nth}, tail {tail}");
                }
            }
            drop(file);
            fs.unlink(fs.root(), name.as_bytes()).unwrap();
        }
    }
    assert!(failed > 0, "no clone failed");
    volume.reopen(fs);
}

#[test]
fn a_source_in_a_deleted_subvolume_is_stale() {
    let volume = volume();
    let fs = volume.open();
    let file = make(&fs, "file", 0);
    put(&file, 0, &[1; 8192]);
    let id = fs.snapshot(5, fs.root(), b"snap", SnapshotAccess::ReadWrite).unwrap();
    let snapshot = fs.with_subvolume(id);
    let source = open(&snapshot, "file");
    fs.delete_subvolume(fs.root(), b"snap").unwrap();
    let errno = |result: butternut::Result<()>| result.map_err(|error| error.errno());
    assert_eq!(errno(file.clone_range(0, &source, 0, 0)), Err(STALE));
    assert_eq!(errno(file.dedupe_range(0, &source, 0, BLOCK).map(drop)), Err(STALE));
    assert_eq!(errno(source.clone_range(0, &file, 0, 0)), Err(STALE));
    assert_eq!(read(&file), [1; 8192]);
    drop((file, source, snapshot));
    volume.reopen(fs);
}

/// Threads clone and rename in all directions: the inode locks are taken in one order.
#[test]
fn clones_in_opposite_directions_do_not_deadlock() {
    let volume = volume();
    let fs = volume.open();
    let files = [make(&fs, "a", 0), make(&fs, "b", 0), make(&fs, "c", 0)];
    for (file, byte) in files.iter().zip(1..) {
        put(file, 0, &vec![byte; 8 * 4096]);
    }
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let (files, fs) = (&files, &fs);
            scope.spawn(move || {
                for round in 0..60 {
                    let (target, source) = (&files[(thread + round) % 3], &files[(thread + 1) % 3]);
                    if target.id() != source.id() {
                        target.clone_range(0, source, 0, 8 * BLOCK).unwrap();
                    }
                    put(target, 4096 * u64::try_from(round % 8).unwrap(), &[9; 100]);
                    let (from, to) = if round % 2 == 0 { ("c", "d") } else { ("d", "c") };
                    // Another thread may have renamed it before.
                    drop(fs.rename(
                        (fs.root(), from.as_bytes()),
                        (fs.root(), to.as_bytes()),
                        butternut::RenameFlags::default(),
                    ));
                    if round % 16 == 0 {
                        fs.sync().unwrap();
                    }
                }
            });
        }
    });
    drop(files);
    volume.reopen(fs);
}

/// Such a file cannot be cloned, but it can be read, so it can be copied.
#[test]
fn a_file_of_a_deleted_subvolume_is_copied_while_it_is_open() {
    let volume = volume();
    let fs = volume.open();
    let file = make(&fs, "file", 0);
    put(&file, 0, &[1; 8192]);
    let id = fs.snapshot(5, fs.root(), b"snap", SnapshotAccess::ReadWrite).unwrap();
    let snapshot = fs.with_subvolume(id);
    let source = open(&snapshot, "file");
    fs.delete_subvolume(fs.root(), b"snap").unwrap();
    let target = make(&fs, "target", 0);
    assert_eq!(target.copy_range(0, &source, 0, u64::MAX).unwrap(), 8192);
    assert_eq!(read(&target), [1; 8192]);
    drop((file, source, target, snapshot));
    volume.reopen(fs);
}

/// A copied hole drops bytes of the target only where the copy says that it has copied.
#[test]
fn a_hole_that_finds_no_space_past_the_end_drops_no_more_than_the_copy_reports() {
    let volume = volume();
    let fs = volume.open();
    // Only one of the files has checksums, so nothing is shared.
    let (source, target) = (make(&fs, "source", NO_COW), make(&fs, "target", 0));
    source.truncate(8 * BLOCK).unwrap();
    let old = vec![1; 4 * 4096];
    put(&target, 0, &old);
    drop((source, target));
    fs.close().unwrap();
    let injector = EnospcInjector::default();
    let fs = Filesystem::open_devices(volume.devices(), &options(&injector)).unwrap();
    drop(make(&fs, "first", 0)); // The subvolume is open for writing.
    let (source, target) = (open(&fs, "source"), open(&fs, "target"));
    // Growth finds no space; a hole may be punched.
    injector.fail_growth();
    let copied = target.copy_range(0, &source, 0, u64::MAX);
    injector.fail_none();
    let done = copied.as_ref().map_or(0, |done| usize::try_from(*done).unwrap());
    let found = read(&target);
    let kept = done.min(old.len());
    assert!(found[kept..] == old[kept..], "{copied:?}: bytes are gone that were not copied");
    drop((source, target));
    volume.reopen(fs);
}

/// A step that found no space is not attempted in its usual size again for each few extents: each
/// attempt commits, while both inodes are locked and snapshots wait.
#[test]
fn a_clone_on_a_full_volume_does_not_commit_for_every_few_extents() {
    let volume = volume();
    let injector = EnospcInjector::default();
    let fs = Filesystem::open_devices(volume.devices(), &options(&injector)).unwrap();
    let source = make(&fs, "source", 0);
    let want = put_extents(&source);
    fs.sync().unwrap();
    // From here on no chunk can be added. A step of 256 extents reserves 25 MiB, one of 8 less
    // than 1 MiB.
    let filler = make(&fs, "filler", 0);
    let (mut at, part) = (0, vec![9; 1 << 20]);
    while let Ok(written) = filler.write_at(at, &part) {
        at += u64::try_from(written).unwrap();
    }
    drop(fs.sync());
    let target = make(&fs, "target", 0);
    let before = fs.stats().commits;
    target.clone_range(0, &source, 0, 0).unwrap();
    let commits = fs.stats().commits - before;
    assert!(commits <= 8, "{commits} commits for {EXTENTS} extents");
    assert!(read(&target) == want);
    drop((source, target, filler));
    volume.reopen(fs);
}
