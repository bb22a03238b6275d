//! Defragmentation: which extents are written again, and that no byte changes, whatever else uses
//! the file. Each volume is checked with all its checksums.

use crate::volume::{TestVolume, failing_data, make, new};
use butternut::device::{Fault, Rule};
use butternut::format::chunk::BlockGroupFlags;
use butternut::format::quota::QgroupId;
use butternut::queue::{IoFlags, QueueOptions};
use butternut::{
    Allocate, AttributeFlags, Compression, Compressor, DefragmentOptions, Defragmented,
    EnospcInjector, Error, ExtentKind, File, Filesystem, MountOptions, Privileges, QgroupLimits,
    SharedExtents, SnapshotAccess,
};
use butternut_mkfs::MkfsOptions;
use std::cell::Cell;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

const BLOCK: u64 = 4096;
const NO_COW: u32 = 0x0080_0000;
const IMMUTABLE: u32 = 0x10;

fn volume() -> TestVolume {
    TestVolume::of(256 << 20, &MkfsOptions::default())
}

/// The bytes of a block, which compress well.
fn block(seed: u64, number: u64) -> Vec<u8> {
    let word = number.wrapping_mul(0x9e37_79b9).wrapping_add(seed);
    word.to_le_bytes().into_iter().cycle().take(4096).collect()
}

/// Returns a function that returns bytes which do not compress.
fn noise() -> impl FnMut(usize) -> u8 {
    let mut state = 1_u64;
    move |_| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (state >> 56) as u8
    }
}

/// Writes blocks of a file in an order in which no two that follow each other are neighbours on
/// disk. Returns the contents.
fn fragment(file: &File, blocks: u64, seed: u64) -> Vec<u8> {
    let step = (blocks / 3).max(2) | 1;
    let mut at = 0;
    let mut written = vec![false; blocks as usize];
    for _ in 0..blocks {
        while written[at as usize] {
            at = (at + 1) % blocks;
        }
        written[at as usize] = true;
        file.write_direct(at * BLOCK, &block(seed, at), Privileges::Keep).unwrap();
        at = (at + step) % blocks;
    }
    file.sync_all().unwrap();
    (0..blocks).flat_map(|number| block(seed, number)).collect()
}

#[track_caller]
fn assert_reads(file: &File, want: &[u8]) {
    assert_eq!(file.len(), u64::try_from(want.len()).unwrap());
    let (mut cached, mut direct) = (vec![0xee; want.len()], vec![0xee; want.len()]);
    file.read_exact_at(0, &mut cached).unwrap();
    assert_eq!(file.read_direct(0, &mut direct).unwrap(), want.len());
    let wrong = |have: &[u8]| have.iter().zip(want).position(|(have, want)| have != want);
    assert_eq!(wrong(&cached), None, "cached: the first wrong byte");
    assert_eq!(wrong(&direct), None, "direct: the first wrong byte");
}

/// The number of data extents of a file that are not contiguous on disk.
fn extents(file: &File) -> u64 {
    let (mut count, mut reached) = (0, None);
    for extent in file.extents(0..u64::MAX) {
        let extent = extent.unwrap();
        let ExtentKind::Regular { logical, extent_offset, compression, .. } = extent.kind else {
            reached = None;
            continue;
        };
        let at = logical + extent_offset;
        count += u64::from(reached != Some(at) || compression != Compression::None);
        reached = Some(at + extent.bytes);
    }
    count
}

fn default() -> DefragmentOptions {
    DefragmentOptions::default()
}

fn breaking() -> DefragmentOptions {
    default().shared(SharedExtents::Break)
}

fn reopened(volume: &TestVolume, fs: Filesystem, name: &str, want: &[u8]) {
    let fs = volume.reopen(fs);
    let file = fs.open_file(fs.lookup(fs.root(), name.as_bytes()).unwrap()).unwrap();
    assert_reads(&file, want);
}

#[test]
fn a_fragmented_file_becomes_one_extent_and_stays_it() {
    let volume = volume();
    let fs = volume.open();
    let file = make(&fs, "file", 0);
    let want = fragment(&file, 700, 1);
    let before = (extents(&file), file.metadata().unwrap());
    assert!(before.0 > 200, "{} extents", before.0);
    let done = file.defragment(&default()).unwrap();
    assert_eq!(done.rewritten_bytes, 700 * BLOCK);
    assert_eq!((done.extents_before, done.extents_after), (before.0, 1));
    assert_eq!((done.shared_bytes_left, done.unshared_bytes), (0, 0));
    assert_eq!(extents(&file), 1);
    assert_reads(&file, &want);
    // A defragmentation is no change of the file.
    let after = file.metadata().unwrap();
    assert_eq!(
        (after.mtime, after.ctime, after.size),
        (before.1.mtime, before.1.ctime, 700 * BLOCK)
    );
    fs.sync().unwrap();
    let again = file.defragment(&default()).unwrap();
    assert_eq!((again.rewritten_bytes, again.extents_before, again.extents_after), (0, 1, 1));
    drop(file);
    reopened(&volume, fs, "file", &want);
}

#[test]
fn a_file_of_many_parts_becomes_contiguous() {
    let volume = TestVolume::new();
    let fs = volume.open();
    let file = make(&fs, "file", 0);
    let want = fragment(&file, 9001, 2);
    let done = file.defragment(&default().threshold(32 << 20)).unwrap();
    assert_eq!(done.rewritten_bytes, 9001 * BLOCK);
    assert!(done.extents_after <= 3, "{done:?}");
    assert_reads(&file, &want);
    // Each further call makes fewer extents, or writes nothing.
    let mut extents = done.extents_after;
    loop {
        fs.sync().unwrap();
        let again = file.defragment(&default().threshold(32 << 20)).unwrap();
        if again.rewritten_bytes == 0 {
            break;
        }
        assert!(again.extents_after < extents, "{again:?}");
        extents = again.extents_after;
    }
    drop(file);
    reopened(&volume, fs, "file", &want);
}

#[test]
fn holes_preallocated_space_and_long_extents_are_left() {
    let volume = volume();
    let fs = volume.open();
    let file = make(&fs, "file", 0);
    // Two short extents, a hole, a lone one, preallocated space, a long one, and a short one.
    for at in [1, 0, 4, 200] {
        file.write_direct(at * BLOCK, &block(3, at), Privileges::Keep).unwrap();
    }
    file.allocate(8 * BLOCK..16 * BLOCK, Allocate::Extend).unwrap();
    file.write_direct(64 * BLOCK, &vec![5; 128 * 4096], Privileges::Keep).unwrap();
    file.write_at(192 * BLOCK, b"the end").unwrap();
    file.sync_all().unwrap();
    let mut want = vec![0; file.len() as usize];
    file.read_exact_at(0, &mut want).unwrap();
    let kinds = || -> Vec<(u64, u64)> {
        let data = file.extents(0..u64::MAX).map(|extent| extent.unwrap());
        data.map(|extent| (extent.offset / BLOCK, extent.bytes / BLOCK)).collect()
    };
    let done = file.defragment(&default()).unwrap();
    assert_eq!(done.rewritten_bytes, 2 * BLOCK, "{:?}", kinds());
    assert_eq!(done.extents_before - done.extents_after, 1);
    let is_prealloc = |at: u64| {
        let extent = file.extents(at * BLOCK..(at + 1) * BLOCK).next().unwrap().unwrap();
        matches!(extent.kind, ExtentKind::Prealloc { .. })
    };
    assert!(is_prealloc(8) && is_prealloc(15));
    assert_reads(&file, &want);
    // A file in the tree stays there.
    let inline = make(&fs, "inline", 0);
    inline.write_at(0, b"few bytes").unwrap();
    inline.sync_all().unwrap();
    let done = inline.defragment(&default()).unwrap();
    assert_eq!((done.rewritten_bytes, done.extents_before), (0, 1));
    let done = make(&fs, "empty", 0).defragment(&default()).unwrap();
    assert_eq!(done, Defragmented::default());
    drop((file, inline));
    reopened(&volume, fs, "file", &want);
}

#[test]
fn only_the_range_is_written_again() {
    let volume = volume();
    let fs = volume.open();
    let file = make(&fs, "file", 0);
    let want = fragment(&file, 64, 4);
    let range = 10 * BLOCK + 1..20 * BLOCK - 1;
    let done = file.defragment(&default().range(range)).unwrap();
    assert_eq!((done.rewritten_bytes, done.extents_after), (10 * BLOCK, 1));
    assert!(done.extents_before > 1);
    assert!(extents(&file) > 30);
    let past = default().range(100 * BLOCK..u64::MAX);
    assert_eq!(file.defragment(&past).unwrap(), Defragmented::default());
    drop(file);
    reopened(&volume, fs, "file", &want);
}

#[test]
fn dirty_data_gets_its_extents_first_and_the_end_of_a_file_keeps_its_size() {
    let volume = volume();
    let fs = volume.open();
    let file = make(&fs, "file", 0);
    let mut want = fragment(&file, 50, 5);
    file.write_at(50 * BLOCK, &[7; 100]).unwrap();
    want.extend([7; 100]);
    file.write_at(10 * BLOCK + 5, &[8; 9000]).unwrap();
    want[10 * 4096 + 5..][..9000].fill(8);
    let done = file.defragment(&default()).unwrap();
    assert_eq!((done.rewritten_bytes, done.extents_after), (51 * BLOCK, 1));
    assert_reads(&file, &want);
    // What was past the end reads as zeros when the file grows.
    file.truncate(51 * BLOCK).unwrap();
    want.resize(51 * 4096, 0);
    drop(file);
    reopened(&volume, fs, "file", &want);
}

#[test]
fn extents_that_a_snapshot_shares_are_left_or_written_again() {
    let volume = volume();
    let fs = volume.open();
    let file = make(&fs, "file", 0);
    let mut want = fragment(&file, 100, 6);
    let old = want.clone();
    fs.snapshot(fs.root().subvolume, fs.root(), b"snapshot", SnapshotAccess::ReadOnly).unwrap();
    // Some blocks are the file's own again.
    for at in 40..60 {
        file.write_direct(at * BLOCK, &block(66, at), Privileges::Keep).unwrap();
        want[at as usize * 4096..][..4096].copy_from_slice(&block(66, at));
        file.write_direct((99 - at) * BLOCK, &block(66, 99 - at), Privileges::Keep).unwrap();
        want[(99 - at) as usize * 4096..][..4096].copy_from_slice(&block(66, 99 - at));
    }
    file.sync_all().unwrap();
    let left = file.defragment(&default()).unwrap();
    assert_eq!(left.shared_bytes_left, 80 * BLOCK, "{left:?}");
    assert_eq!((left.rewritten_bytes, left.unshared_bytes), (20 * BLOCK, 0));
    assert_reads(&file, &want);
    let usage = fs.disk_usage(file.id()).unwrap();
    assert_eq!(usage.total_bytes - usage.exclusive_bytes, 80 * BLOCK);
    let broken = file.defragment(&breaking()).unwrap();
    assert_eq!((broken.shared_bytes_left, broken.unshared_bytes), (0, 80 * BLOCK));
    assert_eq!(broken.extents_after, 1);
    assert_reads(&file, &want);
    fs.sync().unwrap();
    let usage = fs.disk_usage(file.id()).unwrap();
    assert_eq!(usage.exclusive_bytes, 100 * BLOCK);
    let snapshot = fs.open_path(b"snapshot/file").unwrap();
    assert_reads(&snapshot, &old);
    // A read-only subvolume is refused.
    let refused = snapshot.defragment(&breaking());
    assert!(matches!(refused, Err(Error::ReadOnly { .. })), "{refused:?}");
    drop((file, snapshot));
    reopened(&volume, fs, "file", &want);
}

#[test]
fn a_clone_shares_before_it_is_committed_and_places_of_one_file_do_not() {
    let volume = volume();
    let fs = volume.open();
    let (file, other) = (make(&fs, "file", 0), make(&fs, "other", 0));
    let want = fragment(&file, 40, 7);
    other.clone_range(0, &file, 0, 20 * BLOCK).unwrap();
    let done = file.defragment(&default()).unwrap();
    assert_eq!((done.shared_bytes_left, done.rewritten_bytes), (20 * BLOCK, 20 * BLOCK));
    assert_reads(&file, &want);
    fs.unlink(fs.root(), b"other").unwrap();
    drop(other);
    // One extent, the middle of which is written again: two items of one inode refer to it.
    let cut = make(&fs, "cut", 0);
    cut.write_direct(0, &vec![1; 16 * 4096], Privileges::Keep).unwrap();
    cut.sync_all().unwrap();
    cut.write_direct(8 * BLOCK, &[2; 4096], Privileges::Keep).unwrap();
    cut.sync_all().unwrap();
    let done = cut.defragment(&default()).unwrap();
    assert_eq!((done.shared_bytes_left, done.rewritten_bytes), (0, 16 * BLOCK));
    assert_eq!(extents(&cut), 1);
    let done = file.defragment(&default()).unwrap();
    assert_eq!((done.shared_bytes_left, done.extents_after), (0, 1));
    drop((file, cut));
    reopened(&volume, fs, "file", &want);
}

#[test]
fn data_is_compressed_as_requested_and_decompressed() {
    let volume = volume();
    let fs = volume.open();
    for compression in [Compression::Zlib, Compression::Lzo, Compression::Zstd] {
        let file = make(&fs, &format!("{compression:?}"), 0);
        let want = fragment(&file, 100, 8);
        let with = default().compressor(Compressor::new(compression));
        let done = file.defragment(&with).unwrap();
        assert_eq!((done.rewritten_bytes, done.extents_after), (100 * BLOCK, 4));
        fs.sync().unwrap();
        let mut on_disk = 0;
        for extent in file.extents(0..u64::MAX) {
            let kind = extent.unwrap().kind;
            let ExtentKind::Regular { compression: found, disk_bytes, .. } = kind else {
                panic!("{kind:?}");
            };
            assert_eq!(found, compression);
            on_disk += disk_bytes;
        }
        assert!(on_disk < 20 * BLOCK, "{on_disk} bytes");
        assert_reads(&file, &want);
        // The last extent is not full, and has no neighbour to be joined with.
        assert_eq!(file.defragment(&default()).unwrap().rewritten_bytes, 0);
        file.sync_all().unwrap();
        for at in 0..10 {
            file.write_direct(at * 2 * BLOCK, &block(8, at * 2), Privileges::Keep).unwrap();
        }
        let done = file.defragment(&default()).unwrap();
        assert!(done.rewritten_bytes > 0 && done.extents_after < done.extents_before, "{done:?}");
        assert_reads(&file, &want);
    }
    drop(volume.reopen(fs));
}

#[test]
fn data_that_does_not_compress_is_joined_and_then_left() {
    let volume = volume();
    let fs = volume.open();
    let file = make(&fs, "file", 0);
    let want: Vec<u8> = (0..64 * 4096).map(noise()).collect();
    for at in (0..64).rev() {
        file.write_direct(at * BLOCK, &want[at as usize * 4096..][..4096], Privileges::Keep)
            .unwrap();
    }
    let with = default().compressor(Compressor::new(Compression::Zstd));
    let done = file.defragment(&with).unwrap();
    assert_eq!((done.rewritten_bytes, done.extents_after), (64 * BLOCK, 1));
    assert_eq!(file.defragment(&with).unwrap().rewritten_bytes, 0);
    drop(file);
    reopened(&volume, fs, "file", &want);
}

#[test]
fn a_file_without_copy_on_write_is_joined_and_then_written_in_place() {
    let volume = volume();
    let fs = volume.open();
    let file = make(&fs, "file", NO_COW);
    let mut want = fragment(&file, 64, 9);
    // The write targets of these blocks are known.
    let mut queue = fs.queue(&QueueOptions::default()).unwrap();
    let with = default().compressor(Compressor::new(Compression::Zstd));
    let done = file.defragment(&with).unwrap();
    assert_eq!((done.rewritten_bytes, done.extents_after), (64 * BLOCK, 1), "{done:?}");
    assert_reads(&file, &want);
    fs.sync().unwrap();
    // What was the file's space before is another file's now.
    let other = make(&fs, "other", 0);
    let kept = fragment(&other, 200, 10);
    let mut done = Vec::new();
    for at in 0..64 {
        let bytes = block(99, at);
        let mut buffer = queue.buffer(4096).unwrap();
        buffer.copy_from_slice(&bytes);
        queue.write(&file, at * BLOCK, buffer, IoFlags::DIRECT, at).unwrap();
        want[at as usize * 4096..][..4096].copy_from_slice(&bytes);
        queue.reap(1, None, &mut done);
    }
    assert!(done.iter().all(|done| matches!(done.result, Ok(4096))), "{done:?}");
    drop(done);
    assert_eq!(extents(&file), 1);
    assert_reads(&file, &want);
    assert_reads(&other, &kept);
    drop((queue, other, file));
    reopened(&volume, fs, "file", &want);
}

#[test]
fn an_immutable_file_may_be_defragmented() {
    let volume = volume();
    let fs = volume.open();
    let file = make(&fs, "file", 0);
    let want = fragment(&file, 8, 11);
    fs.set_attribute_flags(file.id(), AttributeFlags(IMMUTABLE)).unwrap();
    assert_eq!(file.defragment(&default()).unwrap().extents_after, 1);
    drop(file);
    reopened(&volume, fs, "file", &want);
}

#[test]
fn a_full_volume_and_a_limit_lose_nothing() {
    let volume = TestVolume::of(160 << 20, &MkfsOptions::default());
    let fs = volume.open();
    let file = make(&fs, "file", 0);
    let want = fragment(&file, 2000, 12);
    fs.sync().unwrap();
    let filler = make(&fs, "filler", NO_COW);
    let mut at = 0;
    while filler.allocate(at..at + (64 << 10), Allocate::Extend).is_ok() {
        at += 64 << 10;
    }
    let before = extents(&file);
    match file.defragment(&default()) {
        Ok(done) => assert!(done.extents_after <= done.extents_before, "{done:?}"),
        Err(error) => assert_eq!(error.errno(), 28, "{error:?}"),
    }
    assert!(extents(&file) <= before);
    assert_reads(&file, &want);
    fs.unlink(fs.root(), b"filler").unwrap();
    drop(filler);
    fs.sync().unwrap();
    // A limit of the subvolume that the file uses up.
    assert!(fs.enable_quotas().unwrap());
    let limits = QgroupLimits { referenced: Some(9 << 20), ..QgroupLimits::default() };
    fs.limit_qgroup(QgroupId(5), limits).unwrap();
    match file.defragment(&default()) {
        Ok(_) => {}
        Err(error) => assert_eq!(error.errno(), 122, "{error:?}"),
    }
    assert_reads(&file, &want);
    drop(file);
    reopened(&volume, fs, "file", &want);
}

#[test]
fn a_failed_write_leaves_the_old_extents_and_is_no_loss() {
    let volume = volume();
    let want = {
        let fs = volume.open();
        let file = make(&fs, "file", 0);
        let want = fragment(&file, 100, 13);
        drop(file);
        fs.close().unwrap();
        want
    };
    let (device, fs) = volume.open_faulty(&MountOptions::default().commit_seconds(0));
    let file = fs.open_file(fs.lookup(fs.root(), b"file").unwrap()).unwrap();
    device.add(failing_data(&fs));
    assert_eq!(file.defragment(&default()).unwrap_err().errno(), 5);
    device.clear();
    assert_reads(&file, &want);
    file.sync_all().unwrap();
    fs.sync().unwrap();
    assert_eq!(file.defragment(&default()).unwrap().extents_after, 1);
    drop(file);
    reopened(&volume, fs, "file", &want);
}

/// Each writer owns the blocks whose number has its remainder, and knows what they hold.
#[test]
fn writers_readers_snapshots_and_clones_go_on_beside_it() {
    const WRITERS: u64 = 3;
    const BLOCKS: u64 = 96;
    for flags in [0, NO_COW] {
        let volume = TestVolume::new();
        let fs = volume.open();
        let file = make(&fs, "file", flags);
        let start = fragment(&file, BLOCKS, 14);
        let ended = AtomicBool::new(false);
        let mut want = start.clone();
        thread::scope(|scope| {
            let (fs, file, ended) = (&fs, &file, &ended);
            let writers: Vec<_> = (0..WRITERS)
                .map(|writer| scope.spawn(move || write_own((fs, file), writer, WRITERS, BLOCKS)))
                .collect();
            scope.spawn(move || {
                let mut buf = vec![0; 4096 * 8];
                while !ended.load(Ordering::Acquire) {
                    for at in (0..BLOCKS).step_by(8) {
                        assert_eq!(file.read_direct(at * BLOCK, &mut buf).unwrap(), buf.len());
                        // No block is torn.
                        for block in buf.chunks(4096) {
                            assert!(block.chunks(8).all(|word| word == &block[..8]));
                        }
                    }
                }
            });
            let defragmenter = scope.spawn(move || {
                let mut rounds = 0_u64;
                while !ended.load(Ordering::Acquire) {
                    let options = if rounds.is_multiple_of(2) { default() } else { breaking() };
                    let zstd = Compressor::new(Compression::Zstd);
                    let options = options.compressor(zstd.filter(|_| rounds % 5 == 4));
                    file.defragment(&options).unwrap();
                    rounds += 1;
                }
                rounds
            });
            for number in 0..6 {
                let name = format!("snapshot{number}");
                fs.snapshot(
                    fs.root().subvolume,
                    fs.root(),
                    name.as_bytes(),
                    SnapshotAccess::ReadOnly,
                )
                .unwrap();
            }
            for writer in writers {
                for (at, bytes) in writer.join().unwrap() {
                    want[at as usize * 4096..][..4096].copy_from_slice(&bytes);
                }
            }
            ended.store(true, Ordering::Release);
            assert!(defragmenter.join().unwrap() > 0);
        });
        assert_reads(&file, &want);
        file.sync_all().unwrap();
        drop(file);
        reopened(&volume, fs, "file", &want);
    }
}

/// Writes the blocks of a writer by all lanes. Returns what they hold at the end. Requests of a
/// queue stay in flight until the end of a round.
fn write_own(
    (fs, file): (&Filesystem, &File),
    writer: u64,
    writers: u64,
    blocks: u64,
) -> Vec<(u64, Vec<u8>)> {
    let mut queue = fs.queue(&QueueOptions::default()).unwrap();
    let mut last = Vec::new();
    for round in 0..12 {
        last.clear();
        for at in (writer..blocks).step_by(writers as usize) {
            let bytes = block(round * 1000 + writer + 20, at);
            match (round + at / writers) % 4 {
                0 => file.write_at(at * BLOCK, &bytes).map(drop).unwrap(),
                1 => file.write_direct(at * BLOCK, &bytes, Privileges::Keep).map(drop).unwrap(),
                2 => file.write_uncached(at * BLOCK, &bytes, Privileges::Keep).map(drop).unwrap(),
                _ => {
                    let mut buffer = queue.buffer(4096).unwrap();
                    buffer.copy_from_slice(&bytes);
                    queue.write(file, at * BLOCK, buffer, IoFlags::DIRECT, at).unwrap();
                    queue.submit();
                }
            }
            last.push((at, bytes));
        }
        let mut done = Vec::new();
        while queue.outstanding() > 0 {
            queue.reap(1, None, &mut done);
        }
        assert!(done.iter().all(|done| matches!(done.result, Ok(4096))), "{done:?}");
        if round % 4 == 3 {
            file.sync_all().unwrap();
        }
    }
    last
}

/// Each call fails at another reservation, or none of them does.
#[test]
fn a_lack_of_space_at_any_reservation_changes_no_byte() {
    let volume = volume();
    let injector = EnospcInjector::default();
    let options = MountOptions::default().read_only(false).commit_seconds(0);
    let options = options.enospc_injector(Some(injector.clone()));
    let fs = Filesystem::open_devices(volume.devices(), &options).unwrap();
    let mut failed = 0;
    let mut files = Vec::new();
    for nth in 1..24 {
        let name = format!("{nth}");
        let file = make(&fs, &name, if nth % 4 == 0 { NO_COW } else { 0 });
        let want = fragment(&file, 40, nth);
        let zstd = Compressor::new(Compression::Zstd).filter(|_| nth % 3 == 0);
        injector.fail_every(nth);
        let done = file.defragment(&default().compressor(zstd));
        injector.fail_none();
        if let Err(error) = &done {
            assert_eq!(error.errno(), 28, "{error:?}");
            failed += 1;
        }
        assert_reads(&file, &want);
        file.sync_all().unwrap();
        drop(file);
        files.push((name, want));
    }
    assert!(failed > 0 && failed < 23, "{failed} calls have failed");
    let fs = volume.reopen(fs);
    for (name, want) in files {
        let file = fs.open_file(fs.lookup(fs.root(), name.as_bytes()).unwrap()).unwrap();
        assert_reads(&file, &want);
    }
}

#[test]
fn data_that_cannot_be_read_stays_where_it_is() {
    let volume = volume();
    let fs = volume.open();
    let file = make(&fs, "file", 0);
    let want = fragment(&file, 40, 15);
    drop(file);
    fs.close().unwrap();
    let (device, fs) = volume.open_faulty(&MountOptions::default().commit_seconds(0));
    let file = fs.open_file(fs.lookup(fs.root(), b"file").unwrap()).unwrap();
    let before = extents(&file);
    let chunks = fs.inspect().chunks();
    let is_data = |flags: BlockGroupFlags| flags.contains(BlockGroupFlags::DATA);
    let data = chunks.iter().find(|chunk| is_data(chunk.flags)).unwrap();
    let at = data.stripes[0].1..data.stripes[0].1 + data.bytes;
    device.add(Rule::at(at, Fault::ReadError));
    assert_eq!(file.defragment(&default()).unwrap_err().errno(), 5);
    device.clear();
    assert_eq!(extents(&file), before);
    assert_reads(&file, &want);
    drop(file);
    reopened(&volume, fs, "file", &want);
}

/// Law 3: preallocated space has references before a write into it is merged.
#[test]
fn a_part_with_a_pending_write_into_preallocated_space_is_written_again() {
    let volume = volume();
    let options = MountOptions::default().read_only(false).commit_seconds(0);
    let fs = Filesystem::open_devices(volume.devices(), &options).unwrap();
    let file = fs.create_path(b"file", &new(0o644)).unwrap();
    // Eight fragments, and behind them preallocated space, of which the first block is written.
    fragment(&file, 8, 1);
    file.allocate(8 * BLOCK..16 * BLOCK, Allocate::Extend).unwrap();
    file.write_direct(8 * BLOCK, &block(1, 8), Privileges::Keep).unwrap();
    // Merged: the extent has two items, so two references.
    fs.sync().unwrap();
    let calls = Cell::new(0);
    let goes_on = || {
        calls.set(calls.get() + 1);
        if calls.get() == 1 {
            // Before the examination: pending, in the same extent.
            file.write_direct(9 * BLOCK, &block(1, 9), Privileges::Keep).unwrap();
        }
        true
    };
    let done = file.defragment_while(&DefragmentOptions::default(), &goes_on).unwrap();
    assert!(done.rewritten_bytes >= 8 * BLOCK, "{done:?}, asked {} times", calls.get());
}

/// Parts that are not written again hold nothing of a limit, also after their files were closed.
#[test]
fn what_is_left_as_it_is_takes_nothing_of_a_limit() {
    const CLONES: u64 = 16;
    /// Each part allocates 4 MiB, and its merge reserves about 25 KiB.
    const ROOM: u64 = 6 << 20;
    const WRITTEN: usize = (6 << 20) - (192 << 10);
    let volume = volume();
    let fs = volume.open();
    let bytes: Vec<u8> = (0..4 << 20).map(noise()).collect();
    let first = make(&fs, "first", 0);
    first.write_direct(0, &bytes, Privileges::Keep).unwrap();
    for number in 0..CLONES {
        make(&fs, &number.to_string(), 0).clone_range(0, &first, 0, 0).unwrap();
    }
    assert!(fs.enable_quotas().unwrap());
    fs.sync().unwrap();
    let quotas = fs.quotas().unwrap().unwrap();
    let group = quotas.groups.iter().find(|group| group.id.0 == 5).unwrap();
    let limits = QgroupLimits { referenced: Some(group.usage.referenced + ROOM), exclusive: None };
    fs.limit_qgroup(QgroupId(5), limits).unwrap();
    let with = breaking().compressor(Compressor::new(Compression::Zstd));
    for number in 0..CLONES {
        let file = fs.open_path(number.to_string().as_bytes()).unwrap();
        assert_eq!(file.defragment(&with).unwrap().rewritten_bytes, 0);
    }
    let other = make(&fs, "other", 0);
    let more: Vec<u8> = bytes.iter().copied().cycle().take(WRITTEN).collect();
    assert_eq!(other.write_direct(0, &more, Privileges::Keep).unwrap(), more.len());
    drop((first, other));
    drop(volume.reopen(fs));
}

/// Defragments new files, which `prepare` fills, and clones each of them at another call of the
/// function that says whether to go on. Calls `begin` at the first call. Returns the number of
/// calls. Both files are locked for a clone, so it is made before a part is written or behind that:
/// in the end the clone shares every extent (law 3).
fn clone_at_each_call(prepare: impl Fn(&Filesystem, &File), begin: impl Fn(&File)) -> u64 {
    let volume = volume();
    let options = MountOptions::default().read_only(false).commit_seconds(0);
    let fs = Filesystem::open_devices(volume.devices(), &options).unwrap();
    let mut rewritten = 0;
    for at in 1.. {
        let names = [format!("file{at}"), format!("other{at}")];
        let [file, other] = names.map(|name| fs.create_path(name.as_bytes(), &new(0o644)).unwrap());
        prepare(&fs, &file);
        let calls = Cell::new(0);
        let goes_on = || {
            calls.set(calls.get() + 1);
            if calls.get() == 1 {
                begin(&file);
            }
            if calls.get() == at {
                other.clone_range(0, &file, 0, 0).unwrap();
                fs.sync().unwrap();
            }
            true
        };
        let done = file.defragment_while(&DefragmentOptions::default(), &goes_on).unwrap();
        if calls.get() < at {
            assert!(rewritten > 0, "a clone of what has been written again");
            drop((file, other));
            drop(volume.reopen(fs));
            return calls.get();
        }
        rewritten += done.rewritten_bytes;
        fs.sync().unwrap();
        let usage = fs.disk_usage(file.id()).unwrap();
        assert_eq!(usage.exclusive_bytes, 0, "a clone at call {at}: {usage:?}, {done:?}");
    }
    unreachable!("a call ends");
}

#[test]
fn a_clone_stays_shared_that_is_made_while_extents_are_examined() {
    const EXTENTS: u64 = 8;
    let fill = |fs: &Filesystem, file: &File| {
        for number in (0..EXTENTS).rev() {
            file.write_direct(number * BLOCK, &block(1, number), Privileges::Keep).unwrap();
        }
        // The extents are older than the last snapshot: a search tells whether they are shared.
        let (source, access) = (file.id().subvolume, SnapshotAccess::ReadOnly);
        fs.snapshot(source, fs.root(), b"snapshot", access).unwrap();
        fs.delete_subvolume(fs.root(), b"snapshot").unwrap();
        fs.clean_subvolumes().unwrap();
        fs.sync().unwrap();
    };
    let calls = clone_at_each_call(fill, |_| ());
    assert!(calls > EXTENTS + 2, "one call for each extent, and others: {calls}");
}

#[test]
fn a_clone_of_pending_extents_stays_shared_that_is_made_after_they_were_examined() {
    let fill = |fs: &Filesystem, file: &File| {
        file.write_at(0, &[1; 8192]).unwrap();
        fs.sync().unwrap();
    };
    // Before the examination: two pending extents that are not contiguous on disk.
    let write = |file: &File| {
        file.write_direct(4096, &[2; 4096], Privileges::Keep).unwrap();
        file.write_direct(0, &[3; 4096], Privileges::Keep).unwrap();
    };
    clone_at_each_call(fill, write);
}
