//! Budgets of a commit: flushes, superblocks and device writes, for each kind of change.

use crate::volume::{TestVolume, new};
use butternut::device::{Device, Record, RecordingDevice};
use butternut::queue::{IoFlags, QueueOptions};
use butternut::server::FileExt;
use butternut::{
    Allocate, AttributeFlags, File, FileId, Filesystem, MountOptions, Privileges, RenameFlags,
    SetAttributes, SetXattr, Tunables,
};
use butternut_check::CheckOptions;
use butternut_mkfs::{MkfsOptions, Profile};
use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::Arc;

const VOLUME_BYTES: u64 = 2 << 30;
const NODE_BYTES: usize = 16 << 10;

/// The offsets of the superblocks of a volume of this length.
const SUPER_OFFSETS: [u64; 2] = [64 << 10, 64 << 20];
const SUPER_BYTES: usize = 4096;

/// Items of a new inode: the inode item, its name, and two entries of its directory.
const ITEMS_OF_A_FILE: u32 = 4;

/// The device operations of a commit.
#[derive(Debug, Default, PartialEq, Eq)]
struct Cost {
    flushes: u32,
    supers: [u32; SUPER_OFFSETS.len()],
    /// Writes of tree blocks, including every copy.
    writes: u64,
    bytes: u64,
    /// Owners of the written blocks.
    trees: BTreeSet<u64>,
}

struct Bench {
    device: Arc<RecordingDevice>,
    fs: Filesystem,
    /// Of a tree block.
    copies: u64,
}

impl Cost {
    fn of(records: &[Record]) -> Self {
        let mut cost = Self::default();
        for record in records {
            let (offset, bytes) = match record {
                Record::Flush => {
                    cost.flushes += 1;
                    continue;
                }
                Record::Discard { .. } => panic!("no discard was requested"),
                Record::Write { offset, bytes } => (offset, bytes),
            };
            if let Some(copy) = SUPER_OFFSETS.iter().position(|at| at == offset) {
                assert_eq!(bytes.len(), SUPER_BYTES);
                cost.supers[copy] += 1;
                continue;
            }
            cost.writes += 1;
            cost.bytes += bytes.len() as u64;
            cost.trees.extend(bytes.chunks(NODE_BYTES).map(owner));
        }
        cost
    }
}

/// Returns the tree in the owner field of a block.
fn owner(block: &[u8]) -> u64 {
    u64::from_le_bytes(block[88..96].try_into().unwrap())
}

impl Bench {
    fn new(metadata: Profile) -> Self {
        Self::with(metadata, Tunables::default())
    }

    fn with(metadata: Profile, tunables: Tunables) -> Self {
        let options = MkfsOptions { metadata: Some(metadata), ..MkfsOptions::default() };
        let volume = TestVolume::of(VOLUME_BYTES, &options);
        let device = Arc::new(RecordingDevice::new(volume.devices().remove(0)));
        let devices = vec![Arc::clone(&device) as Arc<dyn Device>];
        let options = MountOptions::default().read_only(false).commit_seconds(0);
        let fs = Filesystem::open_devices(devices, &options.tunables(tunables)).unwrap();
        let copies = if metadata == Profile::Dup { 2 } else { 1 };
        Self { device, fs, copies }
    }

    /// Syncs and returns the cost of the commit, after checking its bounds.
    ///
    /// The blocks of a commit are contiguous in runs of free space. A run is at least 256 KiB long
    /// while such runs exist, except for the first and the last of a cluster of trees, and no tree
    /// is split over two. Items that are added and removed within the transaction in key order
    /// leave no holes.
    fn commit(&self, what: &str) -> Cost {
        let before = self.device.position();
        self.fs.sync().unwrap();
        let cost = Cost::of(&self.device.recording().log()[before..]);
        assert_eq!((cost.flushes, cost.supers), (2, [1; SUPER_OFFSETS.len()]), "{what}: {cost:?}");
        let of_a_copy = cost.bytes.div_ceil(self.copies * (256 << 10)) + cost.trees.len() as u64;
        assert!(cost.writes <= of_a_copy * self.copies, "{what}: {cost:?}");
        cost
    }

    fn files(&self, dir: FileId, numbers: Range<u32>) -> Vec<FileId> {
        let create =
            |number| self.fs.create(dir, format!("file-{number}").as_bytes(), &new(0o644)).unwrap();
        numbers.map(create).collect()
    }

    fn chmod(&self, id: FileId, mode: u32) {
        let set = SetAttributes { mode: Some(mode), ..SetAttributes::default() };
        self.fs.set_attributes(id, &set).unwrap();
    }

    fn close(self) {
        self.fs.close().unwrap();
        let options = CheckOptions::default();
        let report = butternut_check::check(vec![self.device], &options).unwrap();
        assert!(report.findings.is_empty(), "{:?}", report.findings);
    }
}

fn is_long() -> bool {
    std::env::var_os("BUTTERNUT_LONG").is_some_and(|value| !value.is_empty())
}

#[test]
fn a_small_commit_takes_two_flushes_and_at_most_two_writes_per_copy() {
    for metadata in [Profile::Dup, Profile::Single] {
        let bench = Bench::new(metadata);
        let root = bench.fs.root();
        let commit = |what| {
            let cost = bench.commit(what);
            assert!(cost.writes <= 2 * bench.copies, "{what}: {cost:?}");
        };
        for number in 0..5 {
            bench.files(root, number..number + 1);
            commit("create");
        }
        let id = bench.files(root, 5..6)[0];
        bench.fs.set_xattr(id, b"user.a", b"b", SetXattr::Either).unwrap();
        commit("attribute");
        bench.fs.rename((root, b"file-0"), (root, b"x"), RenameFlags::default()).unwrap();
        commit("rename");
        bench.chmod(id, 0o600);
        commit("mode");
        bench.fs.unlink(root, b"x").unwrap();
        commit("unlink");
        bench.close();
    }
}

#[test]
fn an_fsync_that_commits_takes_two_flushes() {
    let bench = Bench::with(Profile::Dup, Tunables::default().log_tree(false));
    let id = bench.files(bench.fs.root(), 0..1)[0];
    let file = bench.fs.open_file(id).unwrap();
    for number in 0..5 {
        file.write_at(number << 20, &vec![7; 100_000]).unwrap();
        let before = bench.device.position();
        file.sync_all().unwrap();
        let log = bench.device.recording();
        let log = &log.log()[before..];
        let cost = Cost::of(log);
        assert_eq!((cost.flushes, cost.supers), (2, [1; SUPER_OFFSETS.len()]), "{cost:?}");
        // One write of the data, and the tree blocks as above.
        assert!(cost.writes <= 1 + 2 * bench.copies, "{cost:?}");
    }
    drop(file);
    bench.close();
}

/// How bytes are written to a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Cached,
    Uncached,
    Direct,
    /// From a cache in front of the library: a long range.
    FromCache,
    Queued,
    QueuedDurable,
}

impl Kind {
    const ALL: [Self; 6] = [
        Self::Cached,
        Self::Uncached,
        Self::Direct,
        Self::FromCache,
        Self::Queued,
        Self::QueuedDurable,
    ];

    fn write(self, fs: &Filesystem, file: &File, at: u64) {
        let bytes = vec![7; 512 << 10];
        let written = match self {
            Self::Cached => file.write_at(at, &bytes),
            Self::Uncached => file.write_uncached(at, &bytes, Privileges::Keep),
            Self::Direct => file.write_direct(at, &bytes, Privileges::Keep),
            Self::FromCache => file.write_from_cache(at, &bytes),
            Self::Queued | Self::QueuedDurable => {
                let durable = IoFlags::DIRECT.with(IoFlags::DSYNC);
                let flags = if self == Self::Queued { IoFlags::DIRECT } else { durable };
                let mut queue = fs.queue(&QueueOptions::default()).unwrap();
                let mut buffer = queue.buffer(bytes.len()).unwrap();
                buffer.copy_from_slice(&bytes);
                queue.write(file, at, buffer, flags, 0).map_err(|refused| refused.error).unwrap();
                let mut done = Vec::new();
                assert_eq!(queue.reap(1, None, &mut done), 1);
                done.remove(0).result
            }
        };
        assert_eq!(written.unwrap(), bytes.len(), "{self:?}");
    }
}

/// A sync flushes as a commit does. It flushes once where only data in place was written, and not
/// at all where everything is durable already.
fn flush_each_kind_of_write(log_tree: bool) {
    const NO_COW: u32 = 0x0080_0000;
    let bench = Bench::with(Profile::Single, Tunables::default().log_tree(log_tree));
    let files = bench.files(bench.fs.root(), 0..3);
    for id in &files[..2] {
        bench.fs.set_attribute_flags(*id, AttributeFlags(NO_COW)).unwrap();
    }
    let [in_place, preallocated, checksummed] = [0, 1, 2].map(|at| {
        let file: File = bench.fs.open_file(files[at]).unwrap();
        file.allocate(0..8 << 20, Allocate::Extend).unwrap();
        if at != 1 {
            file.write_at(0, &vec![1; 8 << 20]).unwrap();
        }
        file.without_time_updates()
    });
    bench.fs.sync().unwrap();
    for (number, kind) in (0..).zip(Kind::ALL) {
        let at = number << 20;
        // A cached write increments the sequence number of the inode.
        let stamps = matches!(kind, Kind::Cached | Kind::Uncached | Kind::FromCache);
        for (which, file) in [&in_place, &preallocated, &checksummed].into_iter().enumerate() {
            for round in 0..2 {
                // Preallocated blocks are written in place from the second write on.
                let is_in_place = which == 0 || (which == 1 && round == 1);
                let flushes = if is_in_place && !stamps { 1 } else { 2 };
                let what = format!("{kind:?} of file {which}, round {round}");
                let before = bench.device.position();
                kind.write(&bench.fs, file, at);
                file.sync_all().unwrap();
                let log = bench.device.recording();
                let cost = Cost::of(&log.log()[before..]);
                assert_eq!(cost.flushes, flushes, "{what}: {cost:?}");
                assert!(matches!(log.log().last(), Some(Record::Flush)), "{what}");
                let before = bench.device.position();
                file.sync_all().unwrap();
                if !log_tree {
                    bench.fs.sync().unwrap();
                }
                assert_eq!(bench.device.position(), before, "{what}: everything is durable");
            }
        }
    }
    assert_eq!(bench.fs.stats().syncs.fast > 0, log_tree);
    drop((in_place, preallocated, checksummed));
    bench.close();
}

#[test]
fn each_kind_of_write_is_flushed_once_by_the_next_sync() {
    flush_each_kind_of_write(false);
}

#[test]
fn each_kind_of_write_is_flushed_once_by_the_next_log() {
    flush_each_kind_of_write(true);
}

/// The cost of an fsync through the log: one write of the data, one of the log blocks, the first
/// superblock copy, and two flushes.
#[test]
fn a_log_takes_one_write_of_data_and_one_of_blocks() {
    const BLOCK: u64 = 4096;
    let bench = Bench::new(Profile::Single);
    let root = bench.fs.root();
    let id = bench.files(root, 0..1)[0];
    let file = bench.fs.open_file(id).unwrap();
    file.write_at(0, &vec![1; 1 << 20]).unwrap();
    bench.fs.sync().unwrap();
    let cost_of = |what: &str, change: &dyn Fn(), blocks: u64| {
        let before = bench.device.position();
        change();
        let cost = Cost::of(&bench.device.recording().log()[before..]);
        assert_eq!((cost.flushes, cost.supers), (2, [1, 0]), "{what}: {cost:?}");
        let data = cost.bytes % NODE_BYTES as u64;
        assert!(data == 0 || data == BLOCK, "{what}: {cost:?}");
        assert_eq!(cost.writes, 1 + data / BLOCK, "{what}: {cost:?}");
        assert!((cost.bytes - data) / NODE_BYTES as u64 <= blocks, "{what}: {cost:?}");
        data
    };
    // A leaf of the log and one of the log root tree. Later the leaves with the inode, the extents
    // and the checksums, one more for each that was split, and the node above them.
    for number in 0..200 {
        let blocks = if number < 10 { 2 } else { 7 };
        let overwrite = || {
            file.write_at(number * 7919 % 256 * BLOCK, &[2; 4096]).unwrap();
            file.sync_all().unwrap();
        };
        assert_eq!(cost_of("overwrite", &overwrite, blocks), BLOCK);
        let append = || {
            file.append(&[3; 4096], Privileges::Keep).unwrap();
            file.sync_data().unwrap();
        };
        assert_eq!(cost_of("append", &append, blocks), BLOCK);
    }
    for number in 0..50 {
        let create = || {
            let name = format!("new-{number}");
            let id = bench.fs.create(root, name.as_bytes(), &new(0o644)).unwrap();
            bench.fs.open_file(id).unwrap().sync_all().unwrap();
        };
        assert_eq!(cost_of("create", &create, 5), 0);
    }
    let syncs = bench.fs.stats().syncs;
    assert_eq!((syncs.fast, syncs.log.batches), (450, 450));
    assert!(syncs.log.blocks < 450 * 4, "{syncs:?}");
    assert_eq!(syncs.log.batch_sizes, [450, 0, 0, 0, 0, 0, 0]);
    drop(file);
    bench.close();
}

/// What was evicted from the page cache is not logged again, unless the tunable for measurements
/// says so.
#[test]
fn evictions_make_no_fsync_log_more() {
    const BLOCK: u64 = 4096;
    const PAGES_MAX: u64 = 1 << 20;
    for is_full in [false, true] {
        let volume = TestVolume::of(VOLUME_BYTES, &MkfsOptions::default());
        let tunables = Tunables::default().full_fsync_on_release(is_full);
        let options = MountOptions::default().read_only(false).commit_seconds(0);
        let options = options.tunables(tunables).page_cache_bytes(PAGES_MAX);
        let fs = Filesystem::open_devices(volume.devices(), &options).unwrap();
        let create =
            |name: &[u8]| fs.open_file(fs.create(fs.root(), name, &new(0o644)).unwrap()).unwrap();
        let (file, other) = (create(b"file"), create(b"other"));
        other.write_at(0, &vec![1; 8 << 20]).unwrap();
        // Extents that are apart: several leaves of items.
        for number in 0..600 {
            file.write_at(2 * number * BLOCK, &[1; 4096]).unwrap();
        }
        fs.sync().unwrap();
        let log_blocks = |at: u64| {
            let before = fs.stats().syncs.log.blocks;
            file.write_at(at, &[2; 4096]).unwrap();
            file.sync_all().unwrap();
            fs.stats().syncs.log.blocks - before
        };
        // The first pages of the file are evicted since it was opened.
        log_blocks(0);
        assert!(log_blocks(2 * BLOCK) <= 5, "nothing was evicted");
        for page in 0..2 * PAGES_MAX / BLOCK {
            other.read_at(page * BLOCK, &mut [0; 4096]).unwrap();
        }
        let full = fs.stats().syncs.full_on_release;
        let blocks = log_blocks(4 * BLOCK);
        assert_eq!(blocks > 5, is_full, "{blocks} blocks");
        assert_eq!(fs.stats().syncs.full_on_release, full + u64::from(is_full));
        drop((file, other));
        fs.close().unwrap();
    }
}

#[test]
fn a_sync_without_changes_writes_nothing() {
    let bench = Bench::new(Profile::Dup);
    bench.files(bench.fs.root(), 0..1);
    bench.commit("create");
    let before = bench.device.position();
    bench.fs.sync().unwrap();
    assert_eq!(bench.device.position(), before);
    bench.close();
}

#[test]
fn a_commit_of_many_items_takes_few_writes() {
    let items = if is_long() { 100_000 } else { 20_000 };
    for metadata in [Profile::Dup, Profile::Single] {
        let bench = Bench::new(metadata);
        let dir = bench.fs.mkdir(bench.fs.root(), b"dir", &new(0o755)).unwrap();
        let files = bench.files(dir, 0..items / ITEMS_OF_A_FILE);
        let cost = bench.commit("files");
        assert!(cost.bytes > u64::from(items) * 50 * bench.copies, "{cost:?}");
        // So that each further item is separate.
        let files = [files, bench.files(dir, items / ITEMS_OF_A_FILE..items)].concat();
        bench.commit("more files");
        for round in 0..3 {
            for id in &files {
                bench.chmod(*id, 0o600 + round);
            }
            bench.commit("every inode");
            // In another order, and with holes.
            let some = (0..files.len()).map(|step| step * 7919 % files.len()).step_by(3);
            for at in some {
                bench.chmod(files[at], 0o700 + round);
            }
            bench.commit("some inodes");
        }
        for number in (0..items).filter(|number| number % 3 > 0) {
            bench.fs.unlink(dir, format!("file-{number}").as_bytes()).unwrap();
        }
        bench.commit("unlink");
        // Freed space is scattered; later changes find longer runs.
        for round in 0..3 {
            bench.files(dir, items * (round + 2)..items * (round + 2) + items / 7);
            bench.commit("files again");
            for id in files.iter().step_by(3) {
                bench.chmod(*id, 0o640 + round);
            }
            bench.commit("remaining changes");
        }
        bench.close();
    }
}
