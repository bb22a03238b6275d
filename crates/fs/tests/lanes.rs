//! Every lane against a direct write in flight on the same blocks: the table in `butternut_file`'s
//! `in_flight`, row by row. A queue keeps the direct write in flight until it is reaped, so each
//! conflict is deterministic.

#![allow(clippy::unwrap_used, reason = "tests panic on failure")]
#![allow(dead_code, reason = "not every test uses all of the shared modules")]

mod volume;

use butternut::queue::{IoFlags, Queue, QueueOptions, SyncKind};
use butternut::server::FileExt;
use butternut::{Allocate, AttributeFlags, Dedupe, File, Filesystem, Privileges};
use butternut_mkfs::{MkfsOptions, Profile};
use std::ops::Range;
use volume::{TestVolume, new};

const BLOCK: usize = 4096;
const FILE_BYTES: usize = 800 << 10;
const NO_COW: u32 = 0x0080_0000;
const COMPRESS: u32 = 0x4;
/// Blocks that the direct write in flight changes.
const DIRECT: Range<usize> = 2 * BLOCK..4 * BLOCK;
const PART: Range<usize> = 2 * BLOCK + 10..2 * BLOCK + 20;
/// The last byte of one block, and the first of the next.
const EDGE: Range<usize> = 3 * BLOCK - 1..3 * BLOCK + 1;

/// One row of the table.
struct Row {
    name: &'static str,
    run: fn(&Filesystem, &File),
    /// The expected contents afterwards, if the direct write came first.
    want: fn(&mut Vec<u8>),
}

fn at(offset: usize) -> u64 {
    offset.try_into().unwrap()
}

fn write(file: &File, range: Range<usize>) {
    assert_eq!(file.write_at(at(range.start), &vec![3; range.len()]).unwrap(), range.len());
}

fn allocate(file: &File, range: Range<usize>, how: Allocate) {
    file.allocate(at(range.start)..at(range.end), how).unwrap();
}

/// Opens a second file, whose bytes are copied over the direct write.
fn other(fs: &Filesystem) -> File {
    let id = fs.lookup(fs.root(), b"other").unwrap();
    fs.open_file(id).unwrap()
}

/// Opens a third file, of whole blocks, with the flags of the first.
fn blocks(fs: &Filesystem) -> File {
    fs.open_file(fs.lookup(fs.root(), b"blocks").unwrap()).unwrap()
}

/// Checks that a clone has the bytes of the direct write that was in flight when it was made.
fn assert_shows_direct(clone: &File) {
    let mut want = vec![1; FILE_BYTES];
    want[DIRECT].fill(2);
    assert_reads(clone, &want, "the clone");
}

const ROWS: &[Row] = &[
    Row {
        name: "cached, part of a block",
        run: |_, file| write(file, PART),
        want: |bytes| bytes[PART].fill(3),
    },
    Row {
        name: "cached, parts of two blocks",
        run: |_, file| write(file, EDGE),
        want: |bytes| bytes[EDGE].fill(3),
    },
    Row {
        name: "cached, a whole block",
        run: |_, file| write(file, 2 * BLOCK..3 * BLOCK),
        want: |bytes| bytes[2 * BLOCK..3 * BLOCK].fill(3),
    },
    Row {
        name: "cached, more than one part",
        run: |_, file| write(file, PART.start..PART.start + (600 << 10)),
        want: |bytes| bytes[PART.start..PART.start + (600 << 10)].fill(3),
    },
    Row {
        name: "uncached, part of a block",
        run: |_, file| {
            let written = file.write_uncached(at(PART.start), &[3; 10], Privileges::Keep);
            assert_eq!(written.unwrap(), 10);
        },
        want: |bytes| bytes[PART].fill(3),
    },
    Row {
        name: "from the kernel's cache, short",
        run: |_, file| assert_eq!(file.write_from_cache(at(PART.start), &[3; 10]).unwrap(), 10),
        want: |bytes| bytes[PART].fill(3),
    },
    Row {
        name: "from the kernel's cache, long",
        run: |_, file| {
            let written = file.write_from_cache(0, &vec![3; 600 << 10]).unwrap();
            assert_eq!(written, 600 << 10);
        },
        want: |bytes| bytes[..600 << 10].fill(3),
    },
    Row {
        name: "direct, part of a block",
        run: |_, file| {
            let written = file.write_direct(at(PART.start), &[3; 10], Privileges::Keep);
            assert_eq!(written.unwrap(), 10);
        },
        want: |bytes| bytes[PART].fill(3),
    },
    Row {
        name: "append",
        run: |_, file| {
            let (offset, written) = file.append(&[3; 10], Privileges::Keep).unwrap();
            assert_eq!((offset, written), (at(FILE_BYTES), 10));
        },
        want: |bytes| bytes.extend([3; 10]),
    },
    Row {
        name: "punch, part of a block",
        run: |_, file| allocate(file, PART, Allocate::PunchHole),
        want: |bytes| bytes[PART].fill(0),
    },
    Row {
        name: "punch, a whole block",
        run: |_, file| allocate(file, 2 * BLOCK..3 * BLOCK, Allocate::PunchHole),
        want: |bytes| bytes[2 * BLOCK..3 * BLOCK].fill(0),
    },
    Row {
        name: "zero",
        run: |_, file| allocate(file, PART.start..3 * BLOCK + 5, Allocate::Zero),
        want: |bytes| bytes[PART.start..3 * BLOCK + 5].fill(0),
    },
    Row {
        name: "fallocate",
        run: |_, file| allocate(file, 0..FILE_BYTES, Allocate::KeepSize),
        want: |_| {},
    },
    Row {
        name: "truncate inside the block",
        run: |_, file| file.truncate(at(PART.start)).unwrap(),
        want: |bytes| bytes.truncate(PART.start),
    },
    Row {
        name: "truncate inside the block, and back",
        run: |_, file| {
            file.truncate(at(PART.start)).unwrap();
            file.truncate(at(3 * BLOCK)).unwrap();
        },
        want: |bytes| {
            bytes.truncate(PART.start);
            bytes.resize(3 * BLOCK, 0);
        },
    },
    Row {
        name: "copy to it",
        run: |fs, file| {
            let copied = file.copy_range(at(PART.start), &other(fs), 0, 10).unwrap();
            assert_eq!(copied, 10);
        },
        want: |bytes| bytes[PART].fill(9),
    },
    Row {
        name: "copy from it",
        run: |fs, file| {
            let copied = other(fs).copy_range(5, file, 0, at(FILE_BYTES)).unwrap();
            assert_eq!(copied, at(FILE_BYTES));
        },
        want: |_| {},
    },
    Row {
        name: "clone to it",
        run: |fs, file| file.clone_range(at(2 * BLOCK), &blocks(fs), 0, at(BLOCK)).unwrap(),
        want: |bytes| bytes[2 * BLOCK..3 * BLOCK].fill(8),
    },
    Row {
        name: "clone from it",
        run: |fs, file| {
            let blocks = blocks(fs);
            blocks.clone_range(0, file, 0, 0).unwrap();
            assert_shows_direct(&blocks);
        },
        want: |_| {},
    },
    Row {
        name: "clone inside it",
        run: |_, file| file.clone_range(at(10 * BLOCK), file, at(DIRECT.start), at(BLOCK)).unwrap(),
        want: |bytes| bytes[10 * BLOCK..11 * BLOCK].fill(2),
    },
    Row {
        name: "copy of whole blocks from it",
        run: |fs, file| {
            let blocks = blocks(fs);
            assert_eq!(blocks.copy_range(0, file, 0, u64::MAX).unwrap(), at(FILE_BYTES));
            assert_shows_direct(&blocks);
        },
        want: |_| {},
    },
    Row {
        name: "dedupe with it",
        run: |fs, file| {
            let blocks = blocks(fs);
            write(&blocks, 0..4 * BLOCK);
            blocks.write_at(at(DIRECT.start), &[2; 2 * BLOCK]).unwrap();
            let same = file.dedupe_range(at(2 * BLOCK), &blocks, at(2 * BLOCK), at(2 * BLOCK));
            assert_eq!(same.unwrap(), Dedupe::Shared(at(2 * BLOCK)));
        },
        want: |_| {},
    },
    Row { name: "fsync", run: |_, file| file.sync_all().unwrap(), want: |_| {} },
    Row { name: "sync", run: |fs, _| fs.sync().unwrap(), want: |_| {} },
];

fn make(fs: &Filesystem, name: &[u8], flags: u32, bytes: &[u8]) -> File {
    let id = fs.create(fs.root(), name, &new(0o644)).unwrap();
    fs.set_attribute_flags(id, AttributeFlags(flags)).unwrap();
    let file = fs.open_file(id).unwrap();
    assert_eq!(file.write_at(0, bytes).unwrap(), bytes.len());
    fs.sync().unwrap();
    file
}

/// Queues a direct write, which stays in flight until something completes it.
fn begin(queue: &mut Queue, file: &File, range: Range<usize>, byte: u8) {
    let mut buffer = queue.buffer(range.len()).unwrap();
    buffer.fill(byte);
    queue.write(file, at(range.start), buffer, IoFlags::DIRECT, 1).unwrap();
}

/// Reaps all requests of the queue.
fn reap(queue: &mut Queue) {
    let mut done = Vec::new();
    queue.reap(queue.outstanding(), None, &mut done);
    for done in done {
        assert_eq!(done.result.unwrap(), done.buffer.len());
    }
}

type Read = fn(&File, &mut [u8]) -> butternut::Result<usize>;

fn have(file: &File, read: Read) -> Vec<u8> {
    let mut bytes = vec![0xee; usize::try_from(file.len()).unwrap()];
    assert_eq!(read(file, &mut bytes).unwrap(), bytes.len());
    bytes
}

fn assert_reads(file: &File, want: &[u8], when: &str) {
    assert_eq!(file.len(), at(want.len()), "{when}");
    let lanes: [(&str, Read); 3] = [
        ("cached", |file, bytes| file.read_at(0, bytes)),
        ("direct", |file, bytes| file.read_direct(0, bytes)),
        ("uncached", |file, bytes| file.read_uncached(0, bytes)),
    ];
    for (lane, read) in lanes {
        let have = have(file, read);
        let wrong = have.iter().zip(want).position(|(have, want)| have != want);
        let byte = wrong.map(|byte| (byte, have[byte], want[byte]));
        assert_eq!(byte, None, "{when}, read {lane}: (byte, have, want)");
    }
}

fn meet(row: &Row, flags: u32, is_in_memory: bool) {
    let volume = TestVolume::of(256 << 20, &MkfsOptions::default());
    let fs = volume.open();
    let mut want = vec![1; FILE_BYTES];
    let file = make(&fs, b"file", flags, &want);
    make(&fs, b"other", 0, &[9; 100]);
    make(&fs, b"blocks", flags, &[8; 4 * BLOCK]);
    drop(file);
    fs.close().unwrap();
    let fs = volume.open();
    let file = fs.open_file(fs.lookup(fs.root(), b"file").unwrap()).unwrap();
    if is_in_memory {
        have(&file, |file, bytes| file.read_at(0, bytes));
    }
    let mut queue = fs.queue(&QueueOptions::default()).unwrap();
    begin(&mut queue, &file, DIRECT, 2);
    (row.run)(&fs, &file);
    reap(&mut queue);
    want[DIRECT].fill(2);
    (row.want)(&mut want);
    let when = format!("{}, flags {flags:x}, in memory: {is_in_memory}", row.name);
    assert_reads(&file, &want, &when);
    fs.sync().unwrap();
    assert_reads(&file, &want, &format!("{when}, synced"));
    drop((file, queue));
    let fs = volume.reopen(fs);
    let file = fs.open_file(fs.lookup(fs.root(), b"file").unwrap()).unwrap();
    assert_reads(&file, &want, &format!("{when}, opened again"));
}

#[test]
fn no_lane_loses_a_direct_write_in_flight() {
    for row in ROWS {
        for (flags, is_in_memory) in [(0, true), (0, false), (NO_COW, true), (NO_COW, false)] {
            meet(row, flags, is_in_memory);
        }
    }
}

#[test]
fn an_inline_file_that_grows_keeps_a_direct_write_in_flight() {
    let volume = TestVolume::of(256 << 20, &MkfsOptions::default());
    let fs = volume.open();
    let file = make(&fs, b"file", COMPRESS, &[7; BLOCK]);
    let mut queue = fs.queue(&QueueOptions::default()).unwrap();
    begin(&mut queue, &file, 0..BLOCK, 2);
    write(&file, BLOCK + 10..BLOCK + 20);
    reap(&mut queue);
    let mut want = vec![2; BLOCK];
    want.resize(BLOCK + 10, 0);
    want.resize(BLOCK + 20, 3);
    assert_reads(&file, &want, "grown");
    fs.sync().unwrap();
    assert_reads(&file, &want, "synced");
    drop((file, queue));
    volume.reopen(fs);
}

#[test]
fn a_nowait_write_is_refused_while_a_direct_write_of_its_block_is_in_flight() {
    let volume = TestVolume::of(256 << 20, &MkfsOptions::default());
    let fs = volume.open();
    let mut want = vec![1; FILE_BYTES];
    let file = make(&fs, b"file", 0, &want);
    // A write loads the state of the file: without it, any NOWAIT write would be refused.
    write(&file, 100 * BLOCK..101 * BLOCK);
    want[100 * BLOCK..101 * BLOCK].fill(3);
    assert_reads(&file, &want, "in memory");
    let mut queue = fs.queue(&QueueOptions::default()).unwrap();
    let mut other = fs.queue(&QueueOptions::default()).unwrap();
    begin(&mut queue, &file, DIRECT, 2);
    let try_write = |queue: &mut Queue, offset: usize| {
        let mut buffer = queue.buffer(10).unwrap();
        buffer.fill(3);
        let submitted = queue.write(&file, at(offset), buffer, IoFlags::NOWAIT, 2);
        submitted.map_err(|refused| refused.error.errno())
    };
    let beside = try_write(&mut other, 50 * BLOCK);
    assert_eq!((beside, try_write(&mut other, PART.start)), (Ok(()), Err(11)));
    reap(&mut other);
    reap(&mut queue);
    want[50 * BLOCK..50 * BLOCK + 10].fill(3);
    want[DIRECT].fill(2);
    assert_reads(&file, &want, "completed");
    try_write(&mut other, PART.start).unwrap();
    reap(&mut other);
    want[PART].fill(3);
    assert_reads(&file, &want, "written with NOWAIT");
    other.sync(&file, SyncKind::All, 3).unwrap();
    reap(&mut other);
    assert_reads(&file, &want, "synced");
    drop((file, queue, other));
    volume.reopen(fs);
}

#[test]
fn overlapping_direct_writes_in_place_are_serialized_on_a_dup_volume() {
    let options = MkfsOptions { data: Some(Profile::Dup), ..MkfsOptions::default() };
    let volume = TestVolume::of(256 << 20, &options);
    let fs = volume.open();
    let mut want = vec![1; FILE_BYTES];
    let file = make(&fs, b"file", NO_COW, &want);
    let mut queue = fs.queue(&QueueOptions::default()).unwrap();
    let mut other = fs.queue(&QueueOptions::default()).unwrap();
    begin(&mut queue, &file, DIRECT, 2);
    let mut buffer = other.buffer(BLOCK).unwrap();
    buffer.fill(3);
    let flags = IoFlags::DIRECT.with(IoFlags::NOWAIT);
    let refused = other.write(&file, at(3 * BLOCK), buffer, flags, 2).unwrap_err();
    assert_eq!(refused.error.errno(), 11);
    begin(&mut other, &file, 3 * BLOCK..5 * BLOCK, 3);
    reap(&mut other);
    reap(&mut queue);
    want[DIRECT].fill(2);
    want[3 * BLOCK..5 * BLOCK].fill(3);
    assert_reads(&file, &want, "both");
    drop((file, queue, other));
    volume.reopen(fs);
}
