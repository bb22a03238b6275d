//! [`Log`]: the log of the running transaction, written in batches.
//!
//! ```text
//! append ...  leader (group_commit): compose what was appended until now; write; flush;
//!             superblock; flush; the next batch has everything appended meanwhile
//! ```
//!
//! Laws:
//!
//! 1. The leader holds [`Log::io`] from before it composes a batch until the batch is durable. A
//!    commit holds it while it writes. So the superblocks of logs and commits are written in the
//!    order of their generations.
//! 2. The lock of the entries is not held while a device is written.

use super::checksums::pending_items;
use super::group_commit::{Batch, GroupCommit, Leader, LogNumber, Waited};
use super::leaves::{LogItem, LogRoot, LogTree};
use super::names::{LoggedName, LoggedNames, NameTaken};
use super::{CommitReason, LogEntry, LogTicket};
use crate::Block;
use crate::error::TreeError;
use crate::forest::Forest;
use crate::transaction::running::Running;
use butternut_format::check;
use butternut_format::key::{ItemType, Key};
use butternut_format::node::{Expected, NewBlock};
use butternut_format::root::RawRootItem;
use butternut_format::super_block::RawSuperBlock;
use butternut_format::units::{Generation, Logical, TreeId, index, length};
use butternut_space::{AllocationRequest, Class, Cluster};
use butternut_sys::lock::{Mutex, rank};
use butternut_volume::{NotDurable, VolumeError};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;
use zerocopy::{FromZeros, IntoBytes};

/// The most blocks of the logs of one transaction: 32 MiB of nodes of 16 KiB.
const BLOCKS_MAX: usize = 2048;

/// Blocks that are allocated together, so that a batch is one device write.
const RUN_BLOCKS: u64 = 32;

/// Log blocks are allocated from runs of their own.
const CLUSTER: Cluster = Cluster(3);

const DIRECTORY_MODE: u32 = 0o40755;

/// Counters of the log since the volume was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct LogCounters {
    /// Batches that were written.
    pub batches: u64,
    /// Entries in those batches.
    pub entries: u64,
    /// Log blocks that were written.
    pub blocks: u64,
    /// Time that batches waited until their blocks and superblocks were durable, in nanoseconds.
    pub flush_nanos: u64,
    /// Batches by their number of entries, in the order of [`LogCounters::BATCH_SIZES`].
    pub batch_sizes: [u64; LogCounters::BATCH_SIZES.len()],
}

impl LogCounters {
    /// The numbers of entries that [`LogCounters::batch_sizes`] tells apart.
    pub const BATCH_SIZES: [&'static str; 7] = ["1", "2-3", "4-7", "8-15", "16-31", "32-63", "64-"];

    /// Returns where batches of a number of entries are counted.
    fn size_class(entries: u64) -> usize {
        index(entries.max(1).ilog2()).min(Self::BATCH_SIZES.len() - 1)
    }
}

/// The log of the running transaction.
pub(crate) struct Log {
    /// The superblock of the last durable commit, with the log that the one on disk names (law 1).
    pub(crate) io: Mutex<RawSuperBlock, rank::LogWrite>,
    group: GroupCommit<LogEntries>,
    batches: AtomicU64,
    entries: AtomicU64,
    blocks: AtomicU64,
    flush_nanos: AtomicU64,
    batch_sizes: [AtomicU64; LogCounters::BATCH_SIZES.len()],
}

#[derive(Debug)]
struct LogEntries {
    /// The logs of subvolumes.
    trees: BTreeMap<TreeId, LogTree>,
    /// The log root tree.
    roots: LogTree,
    /// Data sectors whose checksums each log has: start and end of disjoint ranges.
    logged_data: BTreeMap<TreeId, BTreeMap<u64, u64>>,
    names: LoggedNames,
    space: LogSpace,
}

/// The space of log blocks.
#[derive(Debug, Default)]
struct LogSpace {
    /// Everything that was allocated in the transaction.
    all: Vec<Range<u64>>,
    /// Addresses of blocks in it that are not in use.
    free: BTreeSet<u64>,
    /// Free blocks that the batch takes first: they are contiguous, so that it is one device write.
    next: Range<u64>,
}

/// The blocks of a batch.
struct BatchBlocks {
    root: LogRoot,
    blocks: Vec<Arc<Block>>,
    /// Blocks that no superblock names once the batch is durable.
    dropped: Vec<Logical>,
}

impl LogEntries {
    fn new(node_bytes: u32) -> Self {
        Self {
            trees: BTreeMap::new(),
            roots: LogTree::new(node_bytes),
            logged_data: BTreeMap::new(),
            names: LoggedNames::default(),
            space: LogSpace::default(),
        }
    }

    /// Returns the pending checksums of the parts of a range that are not logged yet.
    fn new_checksums(
        &mut self,
        running: &Running,
        tree: TreeId,
        range: &Range<u64>,
    ) -> Vec<LogItem> {
        let known = self.logged_data.entry(tree).or_default();
        let checksum_bytes = running.params.csum.bytes().max(1);
        let pending = running.pending_checksums();
        let new = add_range(known, range);
        new.iter().flat_map(|part| pending_items(&pending, part, checksum_bytes)).collect()
    }

    /// Appends an entry. If it fails, nothing has changed.
    fn append(
        &mut self,
        running: &Running,
        tree: TreeId,
        entry: LogEntry,
    ) -> Result<(), CommitReason> {
        let LogEntry { stale, items, data, names } = entry;
        let node_bytes = running.params.node_bytes;
        let empty = LogTree::new(node_bytes);
        if items.iter().any(|(_, data)| !empty.can_hold(data)) || self.blocks_max() > BLOCKS_MAX {
            return Err(CommitReason::TooMuch);
        }
        self.names.replace(tree, names).map_err(|NameTaken| CommitReason::Names)?;
        let checksums: Vec<LogItem> =
            data.iter().flat_map(|range| self.new_checksums(running, tree, range)).collect();
        let log = self.trees.entry(tree).or_insert_with(|| LogTree::new(node_bytes));
        for keys in &stale {
            log.remove(keys);
        }
        for (key, data) in items.into_iter().chain(checksums) {
            log.put(key, data);
        }
        Ok(())
    }

    fn blocks_max(&self) -> usize {
        self.trees.values().map(LogTree::blocks_max).sum()
    }

    /// Composes the blocks that changed since the last batch.
    fn compose(
        &mut self,
        running: &Running,
        generation: Generation,
    ) -> Result<BatchBlocks, CommitReason> {
        let params = &running.params;
        let new = NewBlock {
            logical: Logical(0),
            generation,
            owner: TreeId::TREE_LOG,
            level: 0,
            fsid: params.fsid,
            chunk_tree_uuid: params.chunk_tree_uuid,
        };
        let changed = self.trees.values().map(LogTree::blocks_changed).sum::<usize>();
        let space = &mut self.space;
        if changed > 0 {
            // The log root tree changes, too. It has one leaf for about 35 subvolumes.
            space.choose_run(changed.saturating_add(1), running, generation)?;
        }
        let mut allocate = || space.allocate(running, generation);
        let (mut blocks, mut dropped) = (Vec::new(), Vec::new());
        for (id, tree) in &mut self.trees {
            let root = tree.compose(&new, &mut allocate, &mut blocks)?;
            let key = Key::new(TreeId::TREE_LOG.0, ItemType::ROOT_ITEM, id.0);
            let item = root_item(root, generation, params.node_bytes);
            self.roots.put(key, item.as_bytes().to_vec());
            dropped.append(&mut tree.take_dropped());
        }
        let root = self.roots.compose(&new, &mut allocate, &mut blocks)?;
        dropped.append(&mut self.roots.take_dropped());
        for block in &mut blocks {
            Arc::make_mut(block).seal(params.csum);
        }
        blocks.sort_by_key(|block| block.logical());
        Ok(BatchBlocks { root, blocks, dropped })
    }
}

impl LogSpace {
    /// Chooses contiguous blocks for the next batch, if there are any.
    fn choose_run(
        &mut self,
        blocks: usize,
        running: &Running,
        generation: Generation,
    ) -> Result<(), CommitReason> {
        let node = u64::from(running.params.node_bytes);
        let found = contiguous(&self.free, blocks, node);
        if found.is_none() {
            match self.grow(blocks, running, generation) {
                // Blocks that are apart are enough.
                Err(CommitReason::NoSpace) if self.free.len() >= blocks => {}
                grown => grown?,
            }
        }
        self.next = found.or_else(|| contiguous(&self.free, blocks, node)).unwrap_or(0..0);
        Ok(())
    }

    /// Allocates blocks that are contiguous, as many as wanted if possible.
    fn grow(
        &mut self,
        blocks: usize,
        running: &Running,
        generation: Generation,
    ) -> Result<(), CommitReason> {
        let node = u64::from(running.params.node_bytes);
        let request = AllocationRequest {
            bytes_max: node.saturating_mul(length(blocks).max(RUN_BLOCKS)),
            ..AllocationRequest::node(running.params.node_bytes, CLUSTER)
        };
        // A replay changes the trees as the commit would, so it needs the same space: the log takes
        // none of it.
        running.update_global_reserve();
        let found = running.space.try_allocate_unreserved(Class::Metadata, request);
        let range = found.ok_or(CommitReason::NoSpace)?;
        self.free.extend((range.start..range.end).step_by(running.params.node_len()));
        self.all.push(range);
        // The range may be in the new chunk, which the last commit does not know (law 4).
        if running.has_new_chunk(generation) { Err(CommitReason::NewChunk) } else { Ok(()) }
    }

    fn allocate(
        &mut self,
        running: &Running,
        generation: Generation,
    ) -> Result<Logical, CommitReason> {
        let node = u64::from(running.params.node_bytes);
        if !self.next.is_empty() {
            let at = self.next.start;
            self.next.start = at.saturating_add(node);
            assert!(self.free.remove(&at), "a chosen block is free");
            return Ok(Logical(at));
        }
        if self.free.is_empty() {
            self.grow(1, running, generation)?;
        }
        self.free.pop_first().map(Logical).ok_or(CommitReason::NoSpace)
    }
}

/// Returns the first blocks of a set that are contiguous and as many as wanted.
fn contiguous(free: &BTreeSet<u64>, blocks: usize, node_bytes: u64) -> Option<Range<u64>> {
    let wanted = node_bytes.saturating_mul(length(blocks));
    let mut run = 0..0;
    free.iter().find_map(|&at| {
        if at != run.end {
            run.start = at;
        }
        run.end = at.saturating_add(node_bytes);
        (run.end - run.start >= wanted).then(|| run.clone())
    })
}

impl Log {
    pub(crate) fn new(super_block: &RawSuperBlock, running: Generation, node_bytes: u32) -> Self {
        Self {
            io: Mutex::new(*super_block),
            group: GroupCommit::new(running, LogEntries::new(node_bytes)),
            batches: AtomicU64::new(0),
            entries: AtomicU64::new(0),
            blocks: AtomicU64::new(0),
            flush_nanos: AtomicU64::new(0),
            batch_sizes: Default::default(),
        }
    }

    pub(super) fn number(&self) -> LogNumber {
        self.group.number()
    }

    pub(super) fn counters(&self) -> LogCounters {
        LogCounters {
            batches: self.batches.load(Ordering::Relaxed),
            entries: self.entries.load(Ordering::Relaxed),
            blocks: self.blocks.load(Ordering::Relaxed),
            flush_nanos: self.flush_nanos.load(Ordering::Relaxed),
            batch_sizes: self.batch_sizes.each_ref().map(|count| count.load(Ordering::Relaxed)),
        }
    }

    /// Counts the time of a write that is durable when it returns.
    fn timed<R>(&self, write: impl FnOnce() -> R) -> R {
        let start = Instant::now();
        let written = write();
        let nanos = u64::try_from(start.elapsed().as_nanos()).unwrap_or(u64::MAX);
        self.flush_nanos.fetch_add(nanos, Ordering::Relaxed);
        written
    }

    /// Counts a batch that is durable.
    fn count(&self, batch: &Batch<BatchBlocks>) {
        let entries = batch.entries();
        self.batches.fetch_add(1, Ordering::Relaxed);
        self.entries.fetch_add(entries, Ordering::Relaxed);
        self.blocks.fetch_add(length(batch.content.blocks.len()), Ordering::Relaxed);
        if let Some(count) = self.batch_sizes.get(LogCounters::size_class(entries)) {
            count.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Ends the log of a transaction, which is frozen. Returns its space, which stays in use until
    /// the commit is durable.
    pub(crate) fn end_transaction(&self, next: Generation, node_bytes: u32) -> Vec<Range<u64>> {
        self.group.end_transaction(next, LogEntries::new(node_bytes)).space.all
    }

    /// Returns the logged names of an inode.
    pub(super) fn names_of(&self, tree: TreeId, ino: u64) -> Vec<LoggedName> {
        self.group.read(|log| log.names.of(tree, ino).to_vec())
    }

    /// Returns the inodes that the log has under a name and under its index.
    pub(super) fn inodes_at(&self, tree: TreeId, name: &LoggedName) -> [Option<u64>; 2] {
        self.group.read(|log| log.names.at(tree, name))
    }

    /// Returns the inode that the log has under an index of a directory.
    pub(super) fn inode_indexed(&self, tree: TreeId, dir: u64, index: u64) -> Option<u64> {
        self.group.read(|log| log.names.indexed(tree, dir, index))
    }

    /// Returns the inodes that the log has in a directory.
    pub(super) fn inodes_in(&self, tree: TreeId, dir: u64) -> Vec<u64> {
        self.group.read(|log| log.names.in_dir(tree, dir))
    }

    /// Returns the parts of a range whose checksums the log of a tree lacks.
    pub(super) fn unlogged(&self, tree: TreeId, range: &Range<u64>) -> Vec<Range<u64>> {
        let mut known = self.group.read(|log| {
            let Some(logged) = log.logged_data.get(&tree) else { return BTreeMap::new() };
            let last = logged.range(..=range.start).next_back();
            let from = last.map_or(range.start, |(start, _)| *start);
            logged.range(from..range.end).map(|(start, end)| (*start, *end)).collect()
        });
        add_range(&mut known, range)
    }

    /// Whether the log of a tree has an item.
    pub(super) fn has_item(&self, tree: TreeId, key: &Key) -> bool {
        self.group.read(|log| log.trees.get(&tree).is_some_and(|log| log.has(key)))
    }

    /// Appends an entry, as one step.
    pub(super) fn append(
        &self,
        running: &Running,
        tree: TreeId,
        entry: LogEntry,
    ) -> Result<LogNumber, CommitReason> {
        self.group.append(|log| log.append(running, tree, entry))
    }
}

/// Waits until a ticket is durable, and writes batches until it is.
pub(super) fn sync(
    forest: &Arc<Forest>,
    running: &Running,
    ticket: LogTicket,
) -> Result<Result<(), CommitReason>, TreeError> {
    let log = forest.log()?;
    loop {
        if let Some(cause) = running.gate.cause() {
            return Err(cause);
        }
        match log.group.wait(ticket.generation, ticket.number) {
            Waited::Durable => return Ok(Ok(())),
            Waited::Ended => return running.gate.wait_for_commit_of(ticket.generation).map(Ok),
            Waited::Failed(reason) => return Ok(Err(reason)),
            Waited::Lead(leader) => {
                // The leader before this one may have made the volume read-only.
                if let Some(cause) = running.gate.cause() {
                    return Err(cause);
                }
                let _watch = forest.watch_panics();
                lead(forest, running, &leader)?;
            }
        }
    }
}

/// Writes one batch (laws 1 and 2).
fn lead(
    forest: &Forest,
    running: &Running,
    leader: &Leader<'_, LogEntries>,
) -> Result<(), TreeError> {
    let log = forest.log()?;
    let mut durable = log.io.lock();
    let generation = leader.generation();
    if running.gate.committed().0.saturating_add(1) != generation.0 {
        return Ok(());
    }
    if forest.volume().has_unrecorded_write_errors() {
        leader.fail(generation, CommitReason::DeviceFailed);
        return Ok(());
    }
    let known_features = durable.incompat_flags.get();
    // The transaction may have ended since, and its commit waits for the lock.
    let composed = leader.compose(generation, |entries| {
        // A feature is set before an entry that needs it is appended, and none is appended now.
        if running.super_block().incompat_flags.get() != known_features {
            return Err(CommitReason::NewFeature);
        }
        entries.compose(running, generation)
    });
    let Some(batch) = composed else { return Ok(()) };
    if let Err(reason) = write(forest, running, &mut durable, &batch)? {
        leader.fail(batch.generation, reason);
        return Ok(());
    }
    let is_current = leader.complete(&batch, |entries, blocks| {
        entries.space.free.extend(blocks.dropped.iter().map(|at| at.0));
    });
    if is_current {
        log.count(&batch);
    }
    Ok(())
}

/// Writes the blocks of a batch and the superblock that names it. A [`CommitReason`] if the blocks
/// could not be written, or not to all devices (laws 6 and 7 of `log`).
fn write(
    forest: &Forest,
    running: &Running,
    durable: &mut RawSuperBlock,
    batch: &Batch<BatchBlocks>,
) -> Result<Result<(), CommitReason>, TreeError> {
    let (generation, batch) = (batch.generation, &batch.content);
    let volume = forest.volume();
    let rules = volume.block_rules();
    for block in &batch.blocks {
        let expected = Expected {
            logical: block.logical(),
            generation,
            level: block.level(),
            tree: TreeId::TREE_LOG,
            first_key: None,
            end_key: None,
        };
        check::block(block.bytes(), &expected, &rules).map_err(|source| {
            running.gate.poison(TreeError::Corrupt { tree: TreeId::TREE_LOG, source })
        })?;
    }
    let blocks: Vec<(Logical, &[u8])> =
        batch.blocks.iter().map(|block| (block.logical(), block.bytes())).collect();
    let failed = |source: Box<VolumeError>| {
        running.gate.poison(TreeError::Log { generation: generation.0, source })
    };
    let log = forest.log()?;
    let written = log.timed(|| volume.write_blocks_durably(&blocks));
    match written {
        Ok(()) => {}
        Err(NotDurable::Write(_)) => return Ok(Err(CommitReason::WriteFailed)),
        Err(NotDurable::Flush(source)) => return Err(failed(source)),
    }
    if volume.has_unrecorded_write_errors() {
        return Ok(Err(CommitReason::DeviceFailed));
    }
    durable.log_root.set(batch.root.at.0);
    durable.log_root_level = batch.root.level;
    let written = log.timed(|| volume.write_first_supers_durably(durable));
    written.map_err(|source| failed(Box::new(source)))?;
    let has_failed = volume.has_unrecorded_write_errors();
    Ok(if has_failed { Err(CommitReason::DeviceFailed) } else { Ok(()) })
}

/// Returns the root item of a subvolume's log, as the kernel writes it.
fn root_item(root: LogRoot, generation: Generation, node_bytes: u32) -> RawRootItem {
    let mut item = RawRootItem::new_zeroed();
    item.inode.generation.set(1);
    item.inode.size.set(3);
    item.inode.nlink.set(1);
    item.inode.nbytes.set(node_bytes.into());
    item.inode.mode.set(DIRECTORY_MODE);
    item.bytenr.set(root.at.0);
    item.level = root.level;
    item.generation.set(generation.0);
    item.generation_v2.set(generation.0);
    item
}

/// Adds a range to disjoint ranges. Returns the parts that were not in them.
fn add_range(known: &mut BTreeMap<u64, u64>, range: &Range<u64>) -> Vec<Range<u64>> {
    let (mut start, mut end) = (range.start, range.end);
    let mut new = Vec::new();
    let mut from = range.start;
    let overlapping: Vec<(u64, u64)> = known
        .range(..=range.end)
        .rev()
        .take_while(|(_, known_end)| **known_end >= range.start)
        .map(|(start, end)| (*start, *end))
        .collect();
    for (known_start, known_end) in overlapping.into_iter().rev() {
        if from < known_start {
            new.push(from..known_start);
        }
        from = from.max(known_end);
        known.remove(&known_start);
        start = start.min(known_start);
        end = end.max(known_end);
    }
    if from < range.end {
        new.push(from..range.end);
    }
    if start < end {
        known.insert(start, end);
    }
    new
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ForestOptions;
    use butternut_device::MemoryDevice;
    use butternut_mkfs::MkfsOptions;
    use butternut_volume::{OpenOptions, Volume};

    #[test]
    fn the_first_contiguous_blocks_are_chosen() {
        let free = BTreeSet::from([0, 16, 48, 64, 80, 112]);
        assert_eq!(contiguous(&free, 1, 16), Some(0..16));
        assert_eq!(contiguous(&free, 2, 16), Some(0..32));
        assert_eq!(contiguous(&free, 3, 16), Some(48..96));
        assert_eq!(contiguous(&free, 4, 16), None);
    }

    #[test]
    fn a_range_is_added_once() {
        let mut known = BTreeMap::new();
        let mut add = |range: Range<u64>| {
            let new = add_range(&mut known, &range);
            new.into_iter().map(|range| (range.start, range.end)).collect::<Vec<_>>()
        };
        assert_eq!(add(10..20), [(10, 20)]);
        assert_eq!(add(30..40), [(30, 40)]);
        assert_eq!(add(12..18), []);
        assert_eq!(add(5..35), [(5, 10), (20, 30)]);
        assert_eq!(add(40..45), [(40, 45)]);
        assert_eq!(add(0..5), [(0, 5)]);
        assert_eq!(add(3..3), []);
        assert_eq!(known, BTreeMap::from([(0, 45)]));
    }

    /// The later the error comes, the likelier the thread waits: the test holds in any order.
    #[test]
    fn an_error_in_a_commit_ends_the_wait_for_it() {
        let device = MemoryDevice::new("memory", 256 << 20);
        butternut_mkfs::make(&device, &MkfsOptions::default()).expect("a fresh volume");
        let volume = Volume::open(vec![Arc::new(device)], OpenOptions::default());
        let volume = Arc::new(volume.expect("a volume"));
        let forest = Forest::open_writable(volume, ForestOptions::default()).expect("writable");
        let log = forest.begin_log().expect("writable").expect("a log");
        let ticket = log.append(TreeId::FS, 300, LogEntry::default());
        let ticket = ticket.expect("the tree").expect("an entry");
        drop(log);
        let running = forest.running().expect("writable");
        let ending = forest.log().expect("writable");
        // As a commit that fails after it has ended the log.
        let next = Generation(ticket.generation.0 + 1);
        assert_eq!(ending.end_transaction(next, running.params.node_bytes), []);
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| forest.sync_log(ticket));
            std::thread::sleep(std::time::Duration::from_millis(20));
            forest.fail_after_panic();
            let synced = waiting.join().expect("no panic");
            assert!(matches!(synced, Err(TreeError::ReadOnly { .. })), "{synced:?}");
        });
    }
}
