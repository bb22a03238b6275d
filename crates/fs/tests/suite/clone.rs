//! Clones: what a range that shares the extents of another reads, what later writes to either file
//! do, and which requests are refused. Each volume is checked with all its checksums.

use crate::volume::{TestVolume, make, new};
use butternut::queue::{IoFlags, QueueOptions};
use butternut::{
    Allocate, AttributeFlags, Compress, Dedupe, Error, ExtentKind, File, Filesystem, MountOptions,
    Privileges, SetAttributes, SnapshotAccess,
};
use butternut_mkfs::MkfsOptions;
use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

const BLOCK: u64 = 4096;
const NO_COW: u32 = 0x0080_0000;
const IMMUTABLE: u32 = 0x10;
const APPEND: u32 = 0x20;

fn volume() -> TestVolume {
    TestVolume::of(256 << 20, &MkfsOptions::default())
}

fn open(fs: &Filesystem, name: &str) -> File {
    fs.open_file(fs.lookup(fs.root(), name.as_bytes()).unwrap()).unwrap()
}

/// Bytes that differ from block to block, and do not compress to nothing.
fn bytes(seed: u64, len: u64) -> Vec<u8> {
    let byte = |at: u64| (at / BLOCK).wrapping_mul(31).wrapping_add(at % 251).wrapping_add(seed);
    (0..len).map(|at| byte(at).to_le_bytes()[0]).collect()
}

fn put(file: &File, at: u64, data: &[u8]) {
    assert_eq!(file.write_at(at, data).unwrap(), data.len());
}

fn read(file: &File) -> Vec<u8> {
    let mut all = vec![0xee; usize::try_from(file.len()).unwrap()];
    file.read_exact_at(0, &mut all).unwrap();
    all
}

#[track_caller]
fn assert_reads(file: &File, want: &[u8]) {
    let mut direct = vec![0xee; want.len()];
    assert_eq!(file.len(), u64::try_from(want.len()).unwrap());
    assert_eq!(file.read_direct(0, &mut direct).unwrap(), want.len());
    let wrong = |have: &[u8]| have.iter().zip(want).position(|(have, want)| have != want);
    assert_eq!(wrong(&read(file)), None, "cached: the first wrong byte");
    assert_eq!(wrong(&direct), None, "direct: the first wrong byte");
}

/// The addresses of the blocks of a range that are in data extents.
fn places(file: &File, range: Range<u64>) -> BTreeSet<u64> {
    let mut found = BTreeSet::new();
    for extent in file.extents(range.clone()) {
        let extent = extent.unwrap();
        let place = match extent.kind {
            ExtentKind::Regular { logical, extent_offset, .. } => logical + extent_offset,
            ExtentKind::Prealloc { logical } => logical,
            ExtentKind::Hole | ExtentKind::Inline { .. } | ExtentKind::Buffered => continue,
        };
        for at in (0..extent.bytes).step_by(4096) {
            if range.contains(&(extent.offset + at)) {
                found.insert(place + at);
            }
        }
    }
    found
}

#[track_caller]
fn assert_shares(one: &File, of_one: Range<u64>, other: &File, of_other: Range<u64>) {
    let (one, other) = (places(one, of_one), places(other, of_other));
    assert!(!one.is_empty());
    assert_eq!(one, other);
}

#[test]
fn a_clone_shares_what_is_dirty_and_reads_the_same_after_a_reopen() {
    let volume = volume();
    let fs = volume.open();
    let (source, target) = (make(&fs, "source", 0), make(&fs, "target", 0));
    let data = bytes(1, 100 * BLOCK + 77);
    put(&source, 0, &data);
    target.clone_range(0, &source, 0, 0).unwrap();
    assert_reads(&target, &data);
    let all = 0..101 * BLOCK;
    assert_shares(&source, all.clone(), &target, all.clone());
    // A write to either file leaves the other as it is.
    let (mut want_source, mut want_target) = (data.clone(), data);
    put(&source, 5 * BLOCK, &[1; 4096]);
    want_source[5 * 4096..6 * 4096].fill(1);
    put(&target, 7 * BLOCK + 5, &[2; 10]);
    want_target[7 * 4096 + 5..][..10].fill(2);
    assert_reads(&source, &want_source);
    assert_reads(&target, &want_target);
    fs.sync().unwrap();
    assert_reads(&source, &want_source);
    assert_reads(&target, &want_target);
    drop((source, target));
    let fs = volume.reopen(fs);
    assert_reads(&open(&fs, "source"), &want_source);
    assert_reads(&open(&fs, "target"), &want_target);
}

#[test]
fn ranges_of_extents_holes_and_preallocated_space_are_cloned() {
    let volume = volume();
    let fs = volume.open();
    let (source, target) = (make(&fs, "source", 0), make(&fs, "target", 0));
    put(&source, 0, &bytes(1, 10 * BLOCK));
    put(&source, 20 * BLOCK, &bytes(2, 10 * BLOCK));
    source.allocate(30 * BLOCK..40 * BLOCK, Allocate::Extend).unwrap();
    put(&source, 32 * BLOCK, &bytes(3, BLOCK));
    let old = bytes(9, 64 * BLOCK);
    put(&target, 0, &old);
    fs.sync().unwrap();
    let from = read(&source);
    // The middle of an extent, a hole, a whole extent and preallocated space.
    target.clone_range(8 * BLOCK, &source, 3 * BLOCK, 35 * BLOCK).unwrap();
    let mut want = old;
    want[8 * 4096..43 * 4096].copy_from_slice(&from[3 * 4096..38 * 4096]);
    assert_reads(&target, &want);
    assert_eq!(target.seek_hole(0).unwrap(), Some(15 * BLOCK));
    assert_shares(&source, 3 * BLOCK..38 * BLOCK, &target, 8 * BLOCK..43 * BLOCK);
    // Preallocated space that is shared is not written in place.
    let (mut want_source, mut want_target) = (from, want);
    put(&source, 34 * BLOCK, &[4; 4096]);
    want_source[34 * 4096..35 * 4096].fill(4);
    put(&target, 40 * BLOCK, &[5; 4096]);
    want_target[40 * 4096..41 * 4096].fill(5);
    fs.sync().unwrap();
    assert_reads(&source, &want_source);
    assert_reads(&target, &want_target);
    drop((source, target));
    let fs = volume.reopen(fs);
    assert_reads(&open(&fs, "source"), &want_source);
    assert_reads(&open(&fs, "target"), &want_target);
}

#[test]
fn a_file_is_cloned_to_another_place_of_itself() {
    let volume = volume();
    let fs = volume.open();
    let file = make(&fs, "file", 0);
    let mut want = bytes(1, 16 * BLOCK);
    put(&file, 0, &want);
    file.clone_range(20 * BLOCK, &file, 2 * BLOCK, 8 * BLOCK).unwrap();
    want.resize(20 * 4096, 0);
    want.extend_from_within(2 * 4096..10 * 4096);
    assert_reads(&file, &want);
    put(&file, 21 * BLOCK, &[3; 100]);
    want[21 * 4096..][..100].fill(3);
    fs.sync().unwrap();
    assert_reads(&file, &want);
    file.clone_range(0, &file, 20 * BLOCK, 8 * BLOCK).unwrap();
    want.copy_within(20 * 4096.., 0);
    assert_reads(&file, &want);
    drop(file);
    let fs = volume.reopen(fs);
    assert_reads(&open(&fs, "file"), &want);
}

#[test]
fn a_clone_of_more_extents_than_one_step_takes() {
    for options in [MkfsOptions::default(), without_no_holes()] {
        let volume = TestVolume::of(256 << 20, &options);
        let fs = volume.open();
        let (source, target) = (make(&fs, "source", 0), make(&fs, "target", 0));
        for at in 0..700 {
            put(&source, (2 * at + 1) * BLOCK, &bytes(at, BLOCK));
            put(&target, 2 * at * BLOCK, &bytes(at + 1, BLOCK));
        }
        let (want, old) = (read(&source), read(&target));
        target.clone_range(1500 * BLOCK, &source, 0, 0).unwrap();
        let mut both = old;
        both.resize(1500 * 4096, 0);
        both.extend_from_slice(&want);
        assert_reads(&target, &both);
        target.clone_range(0, &source, 0, 0).unwrap();
        both[..want.len()].copy_from_slice(&want);
        assert_reads(&target, &both);
        drop((source, target));
        let fs = volume.reopen(fs);
        assert_reads(&open(&fs, "target"), &both);
    }
}

fn without_no_holes() -> MkfsOptions {
    let mut options = MkfsOptions::default();
    for feature in ["^block-group-tree", "^no-holes"] {
        options.features.choose(feature).unwrap();
    }
    options
}

#[test]
fn inline_files_are_cloned_inline_or_written() {
    let volume = volume();
    let fs = volume.open();
    let small = make(&fs, "small", 0);
    let data = bytes(1, 1000);
    put(&small, 0, &data);
    let is_inline = |file: &File| {
        let first = file.extents(0..BLOCK).next().unwrap().unwrap();
        matches!(first.kind, ExtentKind::Inline { .. })
    };
    // Inline into an empty file, and over a shorter one.
    let empty = make(&fs, "empty", 0);
    empty.clone_range(0, &small, 0, 0).unwrap();
    let shorter = make(&fs, "shorter", 0);
    put(&shorter, 0, &[7; 10]);
    shorter.clone_range(0, &small, 0, 0).unwrap();
    assert!(is_inline(&empty) && is_inline(&shorter));
    // Behind the first block of an inline file, and over the start of a long one.
    let behind = make(&fs, "behind", 0);
    put(&behind, 0, &[8; 10]);
    behind.clone_range(2 * BLOCK, &small, 0, 1000).unwrap();
    let long = make(&fs, "long", 0);
    put(&long, 0, &bytes(5, 3 * BLOCK));
    assert!(matches!(long.clone_range(0, &small, 0, 1000), Err(Error::InvalidArgument { .. })));
    // The source is longer than its inline item.
    let grown = make(&fs, "grown", 0);
    grown.clone_range(0, &small, 0, 0).unwrap();
    grown.truncate(3 * BLOCK).unwrap();
    long.clone_range(0, &grown, 0, 2 * BLOCK).unwrap();
    let mut want_behind = vec![8; 10];
    want_behind.resize(2 * 4096, 0);
    want_behind.extend_from_slice(&data);
    let mut want_long = data.clone();
    want_long.resize(2 * 4096, 0);
    want_long.extend_from_slice(&bytes(5, 3 * BLOCK)[2 * 4096..]);
    let all =
        [("empty", data.clone()), ("shorter", data), ("behind", want_behind), ("long", want_long)];
    for (name, want) in &all {
        assert_reads(&open(&fs, name), want);
    }
    drop((small, empty, shorter, behind, long, grown));
    let fs = volume.reopen(fs);
    for (name, want) in &all {
        assert_reads(&open(&fs, name), want);
    }
}

#[test]
fn compressed_extents_are_shared_in_parts() {
    let volume = volume();
    let compress = Compress { compressor: "zstd:3".parse().unwrap(), is_forced: true };
    let options = MountOptions::default().read_only(false).compress(Some(compress));
    let fs = Filesystem::open_devices(volume.devices(), &options).unwrap();
    let (source, target) = (make(&fs, "source", 0), make(&fs, "target", 0));
    let data = bytes(1, 200 * BLOCK);
    put(&source, 0, &data);
    let small = make(&fs, "small", 0);
    put(&small, 0, &bytes(2, 4000));
    target.clone_range(0, &source, 5 * BLOCK, 100 * BLOCK).unwrap();
    let copy = make(&fs, "copy", 0);
    copy.clone_range(0, &small, 0, 0).unwrap();
    let mut want = data[5 * 4096..105 * 4096].to_vec();
    assert_reads(&target, &want);
    assert_reads(&copy, &bytes(2, 4000));
    put(&target, 20 * BLOCK, &[0; 100]);
    want[20 * 4096..][..100].fill(0);
    fs.sync().unwrap();
    source.truncate(0).unwrap();
    fs.sync().unwrap();
    assert_reads(&target, &want);
    drop((source, target, small, copy));
    let fs = volume.reopen(fs);
    assert_reads(&open(&fs, "target"), &want);
    assert_reads(&open(&fs, "copy"), &bytes(2, 4000));
}

#[test]
fn requests_that_the_kernel_refuses_are_refused() {
    let volume = volume();
    let fs = volume.open();
    let (source, target) = (make(&fs, "source", 0), make(&fs, "target", 0));
    put(&source, 0, &bytes(1, 8 * BLOCK + 100));
    let old = bytes(2, 4 * BLOCK + 10);
    put(&target, 0, &old);
    let refused = |to: u64, from: u64, bytes: u64| {
        target.clone_range(to, &source, from, bytes).map_err(|error| error.errno())
    };
    let invalid = Err(22);
    assert_eq!(refused(1, 0, BLOCK), invalid, "unaligned target");
    assert_eq!(refused(0, 1, BLOCK), invalid, "unaligned source");
    assert_eq!(refused(0, 0, BLOCK + 1), invalid, "unaligned length");
    assert_eq!(refused(0, 0, 9 * BLOCK), invalid, "past the end of the source");
    assert_eq!(refused(0, 9 * BLOCK, 0), invalid, "starts past the end");
    assert_eq!(refused(0, 8 * BLOCK, 100), invalid, "a tail inside the target");
    assert_eq!(refused(0, u64::MAX - 4095, BLOCK), invalid, "no end");
    assert_eq!(refused(u64::MAX - 4095, 0, BLOCK), invalid, "no end");
    assert_eq!(refused(1 << 63, 0, BLOCK), Err(27), "a file that is too large");
    let same =
        |to, from, bytes| source.clone_range(to, &source, from, bytes).map_err(|e| e.errno());
    assert_eq!(same(BLOCK, 0, 2 * BLOCK), invalid, "overlapping");
    assert_eq!(same(0, 0, 2 * BLOCK), invalid, "overlapping");
    assert_eq!(same(8 * BLOCK, 8 * BLOCK, 100), invalid, "overlapping in a block");
    let no_cow = make(&fs, "nocow", NO_COW);
    let to_no_cow = no_cow.clone_range(0, &source, 0, BLOCK);
    assert_eq!(to_no_cow.map_err(|error| error.errno()), invalid);
    for (flag, name) in [(IMMUTABLE, "immutable"), (APPEND, "append")] {
        let file = make(&fs, name, 0);
        fs.set_attribute_flags(file.id(), AttributeFlags(flag)).unwrap();
        let cloned = file.clone_range(0, &source, 0, BLOCK);
        assert_eq!(cloned.map_err(|error| error.errno()), Err(1), "{name}");
        let deduped = file.dedupe_range(0, &source, 0, BLOCK);
        assert_eq!(deduped.map_err(|error| error.errno()), Err(1), "{name}");
    }
    let elsewhere = self::volume();
    let other_fs = elsewhere.open();
    let other = make(&other_fs, "other", 0);
    assert_eq!(other.clone_range(0, &source, 0, BLOCK).unwrap_err().errno(), 18);
    assert_reads(&target, &old);
    assert_eq!(refused(4 * BLOCK, 8 * BLOCK, 100), Ok(()), "a tail past the end of the target");
    assert_eq!(refused(0, 8 * BLOCK + 100, 0), Ok(()), "nothing");
    drop((source, target, no_cow));
    volume.reopen(fs);
}

#[test]
fn a_clone_sets_times_and_strips_privileges() {
    let volume = volume();
    let fs = volume.open();
    let (source, target) = (make(&fs, "source", 0), make(&fs, "target", 0));
    put(&source, 0, &bytes(1, BLOCK));
    let mode = SetAttributes { mode: Some(0o6755), ..SetAttributes::default() };
    fs.set_attributes(target.id(), &mode).unwrap();
    let (before, of_source) = (target.metadata().unwrap(), source.metadata().unwrap());
    target.clone_range_as(0, &source, (0, BLOCK), Privileges::Strip).unwrap();
    let after = target.metadata().unwrap();
    assert_eq!((after.mode & 0o7777, after.size), (0o755, BLOCK));
    assert!(after.mtime > before.mtime && after.ctime > before.ctime);
    let unchanged = source.metadata().unwrap();
    assert_eq!((unchanged.mtime, unchanged.ctime), (of_source.mtime, of_source.ctime));
    drop((source, target));
    volume.reopen(fs);
}

#[test]
fn a_snapshot_is_cloned_into_its_source() {
    let volume = volume();
    let fs = volume.open();
    let file = make(&fs, "file", 0);
    let data = bytes(1, 20 * BLOCK);
    put(&file, 0, &data);
    let id = fs.snapshot(5, fs.root(), b"snap", SnapshotAccess::ReadOnly).unwrap();
    file.truncate(0).unwrap();
    fs.sync().unwrap();
    let snapshot = fs.with_subvolume(id);
    let old = open(&snapshot, "file");
    file.clone_range(0, &old, 0, 0).unwrap();
    assert_reads(&file, &data);
    assert_eq!(old.clone_range(0, &file, 0, BLOCK).unwrap_err().errno(), 30);
    put(&file, BLOCK, &[1; 4096]);
    let mut want = data.clone();
    want[4096..2 * 4096].fill(1);
    fs.sync().unwrap();
    assert_reads(&file, &want);
    assert_reads(&old, &data);
    drop((file, old, snapshot));
    fs.delete_subvolume(fs.root(), b"snap").unwrap();
    fs.clean_subvolumes().unwrap();
    let fs = volume.reopen(fs);
    assert_reads(&open(&fs, "file"), &want);
}

#[test]
fn a_file_without_copy_on_write_is_not_overwritten_while_it_is_shared() {
    let volume = volume();
    let fs = volume.open();
    let (source, target) = (make(&fs, "source", NO_COW), make(&fs, "target", NO_COW));
    let data = bytes(1, 64 * BLOCK);
    put(&source, 0, &data);
    fs.sync().unwrap();
    let mut queue = fs.queue(&QueueOptions::default()).unwrap();
    let mut write = |file: &File, at: u64, byte: u8| {
        let mut buffer = queue.buffer(4096).unwrap();
        buffer.fill(byte);
        queue.write(file, at, buffer, IoFlags::DIRECT, 1).unwrap();
        let mut done = Vec::new();
        queue.reap(1, None, &mut done);
        for done in done {
            assert_eq!(done.result.unwrap(), 4096);
        }
    };
    // The write target is cached, in place.
    let place = places(&source, 0..BLOCK);
    write(&source, 0, 1);
    assert_eq!(places(&source, 0..BLOCK), place, "written in place");
    target.clone_range(0, &source, 0, 0).unwrap();
    let mut want_target = data.clone();
    want_target[..4096].fill(1);
    let mut want_source = want_target.clone();
    let mut shared_writes = |when: &str| {
        for at in [0, 1, 2] {
            write(&source, at * BLOCK, 2);
        }
        put(&source, 10 * BLOCK, &[2; 4096]);
        write(&target, 20 * BLOCK, 3);
        want_source[..3 * 4096].fill(2);
        want_source[10 * 4096..11 * 4096].fill(2);
        want_target[20 * 4096..21 * 4096].fill(3);
        assert_reads(&source, &want_source);
        assert_reads(&target, &want_target);
        assert_ne!(places(&source, 0..BLOCK), place, "{when}");
    };
    shared_writes("in the transaction of the clone");
    fs.sync().unwrap();
    shared_writes("after a commit");
    fs.sync().unwrap();
    // What is not shared any more is written in place.
    let place = places(&source, 0..BLOCK);
    put(&source, 0, &[9; 4096]);
    want_source[..4096].fill(9);
    fs.sync().unwrap();
    assert_eq!(places(&source, 0..BLOCK), place);
    drop((source, target, queue));
    let fs = volume.reopen(fs);
    assert_reads(&open(&fs, "source"), &want_source);
    assert_reads(&open(&fs, "target"), &want_target);
}

#[test]
fn equal_ranges_are_deduplicated_and_others_reported() {
    let volume = volume();
    let fs = volume.open();
    let (one, other) = (make(&fs, "one", 0), make(&fs, "other", 0));
    let data = bytes(1, 20 * BLOCK + 500);
    put(&one, 0, &data);
    put(&other, 0, &data);
    put(&other, 10 * BLOCK + 9, &[0xff]);
    let before = other.metadata().unwrap();
    assert_eq!(other.dedupe_range(0, &one, 0, 8 * BLOCK + 7).unwrap(), Dedupe::Shared(8 * BLOCK));
    assert_eq!(other.dedupe_range(0, &one, 0, 12 * BLOCK).unwrap(), Dedupe::Differs);
    let tail = 11 * BLOCK..20 * BLOCK + 500;
    let bytes_of_tail = tail.end - tail.start;
    let shared = other.dedupe_range(tail.start, &one, tail.start, bytes_of_tail).unwrap();
    assert_eq!(shared, Dedupe::Shared(bytes_of_tail));
    assert_eq!(other.dedupe_range(0, &one, 0, 100).unwrap(), Dedupe::Shared(0));
    assert_eq!(other.dedupe_range(0, &one, 0, 0).unwrap(), Dedupe::Shared(0));
    let past_end = other.dedupe_range(BLOCK, &one, 0, 20 * BLOCK).unwrap_err();
    assert_eq!(past_end.errno(), 22);
    let after = other.metadata().unwrap();
    assert_eq!((after.mtime, after.ctime), (before.mtime, before.ctime));
    assert_shares(&one, 0..8 * BLOCK, &other, 0..8 * BLOCK);
    assert_shares(&one, tail.clone(), &other, tail);
    assert!(
        places(&one, 8 * BLOCK..11 * BLOCK).is_disjoint(&places(&other, 8 * BLOCK..11 * BLOCK))
    );
    let mut want = data.clone();
    want[10 * 4096 + 9] = 0xff;
    drop((one, other));
    let fs = volume.reopen(fs);
    assert_reads(&open(&fs, "one"), &data);
    assert_reads(&open(&fs, "other"), &want);
}

#[test]
fn a_copy_shares_whole_blocks() {
    let volume = volume();
    let fs = volume.open();
    let (source, target) = (make(&fs, "source", 0), make(&fs, "target", 0));
    let data = bytes(1, 20 * BLOCK + 500);
    put(&source, 0, &data);
    fs.sync().unwrap();
    assert_eq!(target.copy_range(BLOCK + 100, &source, 100, u64::MAX).unwrap(), 20 * BLOCK + 400);
    let mut want = vec![0; 4096 + 100];
    want.extend_from_slice(&data[100..]);
    assert_reads(&target, &want);
    assert_shares(&source, BLOCK..21 * BLOCK, &target, 2 * BLOCK..22 * BLOCK);
    let (no_cow, append) = (make(&fs, "nocow", NO_COW), make(&fs, "append", 0));
    fs.set_attribute_flags(append.id(), AttributeFlags(APPEND)).unwrap();
    for file in [&no_cow, &append] {
        assert_eq!(file.copy_range(0, &source, 0, u64::MAX).unwrap(), 20 * BLOCK + 500);
        assert_reads(file, &data);
        fs.sync().unwrap();
        let all = 0..21 * BLOCK;
        assert!(places(file, all.clone()).is_disjoint(&places(&source, all)));
    }
    drop((source, target, no_cow, append));
    let fs = volume.reopen(fs);
    assert_reads(&open(&fs, "target"), &want);
}

#[test]
fn a_sync_of_a_clone_writes_the_log() {
    let volume = volume();
    let fs = volume.open();
    let (source, target) = (make(&fs, "source", 0), make(&fs, "target", 0));
    let committed = bytes(1, 20 * BLOCK);
    put(&source, 0, &committed);
    fs.sync().unwrap();
    // Extents of an earlier transaction, and of the running one that no log has yet.
    let new = bytes(2, 10 * BLOCK);
    put(&source, 30 * BLOCK, &new);
    target.clone_range(0, &source, 5 * BLOCK, 35 * BLOCK).unwrap();
    let (commits, fast) = (fs.stats().commits, fs.sync_counts().fast);
    target.sync_all().unwrap();
    assert_eq!((fs.stats().commits, fs.sync_counts().fast), (commits, fast + 1));
    let mut want = committed[5 * 4096..].to_vec();
    want.resize(25 * 4096, 0);
    want.extend_from_slice(&new);
    // What the log refers to stays in place when nothing else does.
    source.truncate(0).unwrap();
    target.truncate(0).unwrap();
    put(&source, 0, &bytes(3, 60 * BLOCK));
    source.sync_all().unwrap();
    let cut = volume.copy();
    let crashed = cut.open();
    assert_reads(&open(&crashed, "target"), &want);
    assert_reads(&open(&crashed, "source"), &bytes(3, 60 * BLOCK));
    drop((source, target));
    fs.abandon();
    cut.reopen(crashed);
}

/// Files of two volumes may have the same id, and are two files all the same.
#[test]
fn a_copy_to_another_volume_does_not_overlap() {
    let (volume, other) = (volume(), volume());
    let (fs, other_fs) = (volume.open(), other.open());
    let (source, target) = (make(&fs, "source", 0), make(&other_fs, "target", 0));
    assert_eq!(source.id(), target.id());
    let data = bytes(1, 20 * BLOCK + 500);
    put(&source, 0, &data);
    assert_eq!(target.copy_range(0, &source, 0, u64::MAX).unwrap(), 20 * BLOCK + 500);
    assert_reads(&target, &data);
    drop((source, target));
    volume.reopen(fs);
    other.reopen(other_fs);
}

/// A file that gets extents after its first block is not inline any more, also where it is
/// compressed (law 1 of `write/inline.rs`).
#[test]
fn a_compressed_inline_file_is_not_inline_after_a_clone_behind_its_first_block() {
    for tail in [1000, 3000, 4096] {
        let volume = volume();
        let compressor: butternut::Compressor = "zstd".parse().unwrap();
        let compress = Some(Compress { compressor, is_forced: true });
        let options = MountOptions::default().read_only(false).compress(compress);
        let fs = Filesystem::open_devices(volume.devices(), &options).unwrap();
        let (source, target) = (make(&fs, "source", 0), make(&fs, "target", 0));
        let data = bytes(1, 4 * BLOCK);
        put(&source, 0, &data);
        put(&target, 0, &vec![b'x'; tail]);
        fs.sync().unwrap();
        let first = |file: &File| file.extents(0..BLOCK).next().unwrap().unwrap().kind;
        assert!(matches!(first(&target), ExtentKind::Inline { .. }));
        target.clone_range(BLOCK, &source, 0, 4 * BLOCK).unwrap();
        fs.sync().unwrap();
        assert!(matches!(first(&target), ExtentKind::Regular { .. }), "{:?}", first(&target));
        let mut want = vec![b'x'; tail];
        want.resize(4096, 0);
        want.extend_from_slice(&data);
        assert_reads(&target, &want);
        drop((source, target));
        volume.reopen(fs);
    }
}

/// A file without checksums cannot share with one that has them. Its holes are copied as holes.
#[test]
fn a_copy_of_a_sparse_file_that_cannot_be_shared_stays_sparse() {
    let volume = volume();
    let fs = volume.open();
    let (source, target) = (make(&fs, "source", NO_COW), make(&fs, "target", 0));
    put(&source, 1 << 20, &bytes(1, BLOCK));
    source.truncate(1 << 40).unwrap();
    let mut done = 0;
    while done < 1 << 40 {
        let copied = target.copy_range(done, &source, done, (1 << 40) - done).unwrap();
        assert!(copied > 0);
        done += copied;
    }
    assert_eq!(target.len(), 1 << 40);
    assert_eq!(target.seek_data(0).unwrap(), Some(1 << 20));
    assert_eq!(target.seek_data((1 << 20) + BLOCK).unwrap(), None);
    // Also over data that the target had.
    let over = make(&fs, "over", 0);
    put(&over, 0, &bytes(2, 4 * BLOCK));
    over.copy_range(0, &source, 0, 4 * BLOCK).unwrap();
    assert_reads(&over, &[0; 4 * 4096]);
}

/// Between the search for data and the search for the hole after it, the data may become a hole.
/// A copy of 0 bytes means that the source ends.
#[test]
fn a_copy_beside_a_thread_that_punches_holes_never_seems_to_reach_the_end() {
    let volume = volume();
    let fs = volume.open();
    let (source, target) = (make(&fs, "source", 0), make(&fs, "target", 0));
    source.truncate(4 * BLOCK).unwrap();
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            while !is_over.load(Ordering::Relaxed) {
                put(&source, 0, &[1; 4096]);
                source.allocate(0..BLOCK, Allocate::PunchHole).unwrap();
            }
        });
        // Other offsets in the blocks: it is read and written.
        let copies = (0..2000).map(|_| target.copy_range(1, &source, 0, BLOCK).unwrap());
        let least = copies.min();
        is_over.store(true, Ordering::Relaxed);
        assert_eq!(least, Some(BLOCK), "the source has 4 blocks");
    });
    drop((source, target));
    volume.reopen(fs);
}

#[test]
fn a_file_of_a_volume_that_is_open_for_reading_is_another_file_with_the_same_id() {
    let (from, to) = (volume(), volume());
    let fs = from.open();
    put(&make(&fs, "file", 0), 0, &[7; 5000]);
    let read_only = from.reopen(fs);
    let source = open(&read_only, "file");
    let fs = to.open();
    let target = make(&fs, "file", 0);
    assert_eq!(source.id(), target.id());
    assert_eq!(target.copy_range(0, &source, 0, u64::MAX).unwrap(), 5000);
    assert_reads(&target, &[7; 5000]);
    drop((source, target));
    to.reopen(fs);
}

#[test]
fn the_limit_of_references_of_one_extent_makes_no_abandoned_change_durable() {
    let volume = TestVolume::new();
    // As `Transaction::open_to_delete`.
    let options =
        MountOptions::default().read_only(false).commit_seconds(0).commits_for_space(true);
    let open = || Filesystem::open_devices(volume.devices(), &options).unwrap();
    let fs = open();
    let file = fs.create_path(b"shared", &new(0o644)).unwrap();
    file.write_at(0, &[7; 4096]).unwrap();
    for block in 1..6000 {
        file.clone_range(block * 4096, &file, 0, 4096).unwrap();
    }
    drop(file);
    fs.close().unwrap();

    let fs = open();
    fs.unlink(fs.root(), b"shared").unwrap();
    // As a command that fails at its next argument.
    fs.abandon();
    drop(fs);

    let fs = open();
    assert_eq!(fs.open_path(b"shared").unwrap().len(), 6000 * 4096);
    drop(volume.reopen(fs));
}
