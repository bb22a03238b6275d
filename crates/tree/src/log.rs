//! The log: what fsyncs write between two commits, so that they need not commit.
//!
//! ```text
//! begin_log --> InodeLog --append--> log trees in memory --sync_log--> batch: blocks, flush,
//!    |             |                                                   superblock, flush
//!    +-------------+--> CommitReason: the caller commits instead
//! ```
//!
//! A log has the kernel's format. The log root tree has a root item for each subvolume with a log.
//! The log of a subvolume holds copies of items of its tree. After a crash they are replayed over
//! the last commit. The superblock names the log root tree; each commit writes one without it.
//!
//! Laws:
//!
//! 1. The log of a transaction is replayed over the commit before it. So its superblock is the one
//!    of that commit with the address of the log, and is written only when that commit is durable
//!    and the next one has not begun to write.
//! 2. Log blocks are in no extent tree. Their space stays allocated or pinned until the commit of
//!    their transaction is durable. A block that no superblock on disk names any more is reused
//!    for the log of the same transaction.
//! 3. Data that a log refers to is not overwritten before the commit: an extent that was added to a
//!    tree is pinned when it loses its last reference (law 2 of `data`).
//! 4. A log refers to no chunk that its own transaction added, and needs no feature bit that the
//!    last commit lacks. Both need a commit.
//! 5. The log of an inode is appended as one step: a batch contains all or nothing of it.
//! 6. When blocks of a batch cannot be allocated or written, nothing more is logged in the
//!    transaction, and its fsyncs commit. A failed flush or superblock makes the volume read-only,
//!    as in a commit. So does a failed write of blocks that was to flush the device as well: it is
//!    not known which of the two failed.
//! 7. A failure of one device that the profile tolerates is recorded by a commit before anything
//!    counts as durable: the superblock of a log has the generation of the commit before, so a
//!    device that missed it would look current.
//! 8. Data that was overwritten in place is flushed, also where nothing is logged.
//!
//! Left to others: what an fsync logs, and the replay (`fs`).

mod batch;
pub(crate) mod changes;
mod checksums;
mod group_commit;
mod leaves;
mod names;
mod read;
mod reason;
mod sync;

pub use batch::LogCounters;
pub use changes::InodeChanges;
pub use names::LoggedName;
pub use read::{LogClaim, SubvolumeLog};
pub use reason::CommitReason;

use crate::error::TreeError;
use crate::forest::Forest;
use crate::transaction::gate::PanicState;
use crate::transaction::running::Running;
use crate::tree::Tree;
pub(crate) use batch::Log;
use butternut_format::key::Key;
use butternut_format::units::{Generation, SECTOR_BYTES, TreeId, length};
use butternut_sys::lock::{Mark, rank};
use group_commit::LogNumber;
use std::ops::{Range, RangeInclusive};
use std::sync::Arc;

/// Items with their keys.
type Items = Vec<(Key, Vec<u8>)>;

/// The most items of one append.
const ITEMS_MAX: usize = 1 << 14;

/// The most bytes of checksums that one append reads from the checksum tree. With more, a commit is
/// cheaper.
const COMMITTED_CHECKSUM_BYTES_MAX: u64 = 4 << 20;

/// A place in the log of a transaction: what was appended before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogTicket {
    generation: Generation,
    number: LogNumber,
}

/// The items that an fsync of one inode logs: those of this inode, and of others whose names depend
/// on its names.
#[derive(Debug, Default)]
pub struct LogEntry {
    /// Ranges of keys that earlier entries may have logged, and that are out of date.
    pub stale: Vec<RangeInclusive<Key>>,
    /// Items as they are in the tree of the subvolume.
    pub items: Items,
    /// Logical ranges of data with checksums that extents of the running transaction refer to: the
    /// checksums are logged, too.
    pub data: Vec<Range<u64>>,
    /// All names of the inodes whose names are logged. An inode without names is deleted.
    pub names: Vec<(u64, Vec<LoggedName>)>,
}

/// The right to append to the log of the running transaction, which cannot be frozen meanwhile. The
/// holder has locked the inode that it logs.
#[derive(Debug)]
pub struct InodeLog {
    forest: Arc<Forest>,
    generation: Generation,
    watch: PanicState,
    _mark: Mark<rank::Handle>,
}

impl Forest {
    /// Begins to log an inode. Waits until the commit before the running transaction is durable.
    /// The calling thread must hold no handle.
    ///
    /// # Errors
    /// The volume is read-only. A [`CommitReason`] if the transaction cannot be logged.
    pub fn begin_log(self: &Arc<Self>) -> Result<Result<InodeLog, CommitReason>, TreeError> {
        let running = self.running()?;
        loop {
            running.gate.wait_for_commit()?;
            let mark = Mark::new();
            let generation = running.gate.join()?;
            let watch = PanicState::now();
            let log = InodeLog { forest: Arc::clone(self), generation, watch, _mark: mark };
            if running.gate.committed().0.saturating_add(1) != generation.0 {
                continue;
            }
            if running.has_new_chunk(generation) {
                return Ok(Err(CommitReason::NewChunk));
            }
            return Ok(Ok(log));
        }
    }

    /// Makes everything durable that was appended to the log before the ticket was returned. The
    /// calling thread must hold no handle.
    ///
    /// # Errors
    /// The volume is read-only. A [`CommitReason`] if the log cannot be written: nothing is durable
    /// before a commit.
    pub fn sync_log(
        self: &Arc<Self>,
        ticket: LogTicket,
    ) -> Result<Result<(), CommitReason>, TreeError> {
        debug_assert!(!Mark::<rank::Handle>::is_held(), "a batch may wait for a commit");
        let running = self.running()?;
        let synced = batch::sync(self, running, ticket)?;
        if synced.is_err() {
            return Ok(synced);
        }
        self.flush_in_place(running, ticket.generation)?;
        // Also of writes in place that nothing was logged for (law 7).
        let has_failed = self.volume().has_unrecorded_write_errors();
        Ok(if has_failed { Err(CommitReason::DeviceFailed) } else { Ok(()) })
    }

    /// Returns the counters of the log.
    pub fn log_counters(&self) -> LogCounters {
        self.log().map_or_else(|_| LogCounters::default(), Log::counters)
    }
}

impl Drop for InodeLog {
    fn drop(&mut self) {
        if let Ok(running) = self.forest.running() {
            self.watch.check(&running.gate);
            running.gate.end();
        }
    }
}

impl InodeLog {
    /// Returns the generation of the running transaction.
    pub fn generation(&self) -> Generation {
        self.generation
    }

    fn running(&self) -> &Running {
        self.forest.running().expect("only a writable forest has logs")
    }

    fn log(&self) -> &Log {
        self.forest.log().expect("only a writable forest has logs")
    }

    /// Returns what changed of an inode since its last log; `None` if nothing did.
    ///
    /// # Errors
    /// There is no such tree, or it cannot be read. A [`CommitReason`] if the changes are not
    /// known.
    pub fn changes(
        &self,
        tree: TreeId,
        ino: u64,
    ) -> Result<Result<Option<InodeChanges>, CommitReason>, TreeError> {
        let found = self.running().tree(tree)?;
        let found = found.ok_or(TreeError::NoTree { tree })?;
        let state = found.state();
        Ok(state.changes.find(ino).map(Option::<&InodeChanges>::cloned))
    }

    /// Records that a sync of an inode without a name returns, and logs nothing of it.
    ///
    /// # Errors
    /// There is no such tree, or it cannot be read.
    pub fn note_unlogged_sync(&self, tree: TreeId, ino: u64) -> Result<(), TreeError> {
        let found = self.running().tree(tree)?.ok_or(TreeError::NoTree { tree })?;
        found.state_mut().changes.note_unlogged_sync(ino);
        Ok(())
    }

    /// Returns a tree as the last commit has it.
    ///
    /// # Errors
    /// There is no such tree, or it cannot be read.
    pub fn committed_tree(&self, tree: TreeId) -> Result<Tree, TreeError> {
        let found = self.running().tree(tree)?;
        let found = found.ok_or(TreeError::NoTree { tree })?;
        let root = found.state().committed_root;
        Ok(self.forest.tree_at(root))
    }

    /// Returns the names that the log gives to an inode.
    pub fn logged_names(&self, tree: TreeId, ino: u64) -> Vec<LoggedName> {
        self.log().names_of(tree, ino)
    }

    /// Returns the inodes to which the log gives a name and its index in the directory.
    pub fn logged_at(&self, tree: TreeId, name: &LoggedName) -> [Option<u64>; 2] {
        self.log().inodes_at(tree, name)
    }

    /// Returns the inode to which the log gives an index of a directory.
    pub fn logged_index(&self, tree: TreeId, dir: u64, index: u64) -> Option<u64> {
        self.log().inode_indexed(tree, dir, index)
    }

    /// Returns the inodes to which the log gives a name in a directory.
    pub fn logged_in(&self, tree: TreeId, dir: u64) -> Vec<u64> {
        self.log().inodes_in(tree, dir)
    }

    /// Returns whether the log of a subvolume has an item.
    pub fn has_logged(&self, tree: TreeId, key: &Key) -> bool {
        self.log().has_item(tree, key)
    }

    /// Returns a ticket for everything that was appended so far.
    pub fn ticket(&self) -> LogTicket {
        LogTicket { generation: self.generation, number: self.log().number() }
    }

    /// Appends the log of an inode, and forgets its changes. Of other inodes in the entry, it
    /// forgets that their names changed.
    ///
    /// # Errors
    /// There is no such tree, or it cannot be read. A [`CommitReason`] if the entry cannot be
    /// logged; then nothing has changed.
    pub fn append(
        &self,
        tree: TreeId,
        ino: u64,
        entry: LogEntry,
    ) -> Result<Result<LogTicket, CommitReason>, TreeError> {
        let running = self.running();
        if entry.items.len() > ITEMS_MAX {
            return Ok(Err(CommitReason::TooMuch));
        }
        let found = running.tree(tree)?.ok_or(TreeError::NoTree { tree })?;
        let mut entry = entry;
        match self.committed_checksums(tree, &entry.data)? {
            Ok(mut checksums) => entry.items.append(&mut checksums),
            Err(reason) => return Ok(Err(reason)),
        }
        let named: Vec<u64> = entry.names.iter().map(|(named, _)| *named).collect();
        let appended = self.log().append(running, tree, entry);
        Ok(appended.map(|number| {
            let mut state = found.state_mut();
            for named in named {
                state.changes.forget_names(named);
            }
            state.changes.forget(ino);
            LogTicket { generation: self.generation, number }
        }))
    }

    /// Returns the checksums of data that are neither pending nor logged yet; a [`CommitReason`] if
    /// there are too many.
    fn committed_checksums(
        &self,
        tree: TreeId,
        data: &[Range<u64>],
    ) -> Result<Result<Items, CommitReason>, TreeError> {
        let running = self.running();
        let checksum_bytes = running.params.csum.bytes().max(1);
        let new = data.iter().flat_map(|range| self.log().unlogged(tree, range));
        let gaps: Vec<Range<u64>> = new
            .flat_map(|part| checksums::gaps(&running.pending_checksums(), &part, checksum_bytes))
            .collect();
        let mut items = Vec::new();
        if gaps.is_empty() {
            return Ok(Ok(items));
        }
        let sectors = gaps.iter().fold(0, |sum: u64, gap| {
            sum.saturating_add(gap.end.saturating_sub(gap.start) / SECTOR_BYTES)
        });
        if sectors.saturating_mul(length(checksum_bytes)) > COMMITTED_CHECKSUM_BYTES_MAX {
            return Ok(Err(CommitReason::TooMuch));
        }
        let Some(checksum_tree) = self.forest.tree(TreeId::CHECKSUM)? else { return Ok(Ok(items)) };
        for gap in gaps {
            items.append(&mut checksums::committed_items(&checksum_tree, &gap, checksum_bytes)?);
        }
        Ok(Ok(items))
    }
}
