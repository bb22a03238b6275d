//! Direct writes: what they reserve, where they go, and how the file shows them when they complete.
//! Direct reads are looked up by [`crate::extent_map::direct`].
//!
//! ```text
//! read     look up the place           -> the device -> verified by the thread that reaps it
//! write    begin (space, metadata)     -> the device -> complete (a pending extent), or fail
//! ```
//!
//! Reads and writes begin while the caller holds the inode lock shared, and are in flight without
//! it ([`crate::in_flight`]).
//!
//! Laws:
//!
//! 1. A direct read covers whole, uncompressed sectors that are contiguous on disk.
//!    [`Source::read_at`] reads everything else that a file can consist of.
//! 2. A direct write replaces whole blocks inside the file. None of them is dirty in memory, and
//!    none becomes dirty before the write has completed (law 4 of [`crate::in_flight`]). It changes
//!    neither the file's size nor its dirty blocks.
//! 3. While a write is in flight the range reads as before; once it has completed, the range reads
//!    as it was written. Two writes in flight on the same blocks complete in some order, and each
//!    block holds the data of one of them.
//! 4. Data with checksums is never written to space that may be read or written at the same time: a
//!    reader, or the checksums of a second write, could meet half of it.
//! 5. A write begins only when everything that its completion needs is reserved: space on disk for
//!    a write to new space, and metadata for every write that becomes a pending extent, also into
//!    preallocated space. The free of the space that it replaces is deferred. An overwrite in place
//!    changes no item and reserves nothing.

use crate::error::FileError;
use crate::in_flight::WriteSlot;
use crate::overlay::{EXTENT_BYTES_MAX, PendingExtent, Place};
use crate::shared_file::{SharedFile, TargetsVersion};
use crate::source::Source;
use crate::state::FileState;
use crate::target::Target;
use crate::units::REGION_BYTES;
use crate::units::pages_of;
use butternut_format::units::{DiskRange, Logical, SECTOR_BYTES, TreeId, length};
use butternut_space::Cluster;
use butternut_sys::wait::Wait;
use butternut_tree::TreeError;
use std::ops::Range;
use std::sync::Arc;

/// Bytes that an allocation run allocates at a time, so that successive writes are contiguous.
const RUN_BYTES: u64 = 1 << 20;
/// Number of the first cluster that queues use. Those below it are for writeback
/// ([`FileState::cluster`]).
const FIRST_QUEUE_CLUSTER: u64 = 1 << 16;

/// A direct write that has begun. It ends when this is dropped.
#[derive(Debug)]
pub struct DirectWrite {
    shared: Arc<SharedFile>,
    /// The subvolume that new space is charged to.
    tree: TreeId,
    slot: WriteSlot,
    start: u64,
    bytes: u64,
    target: Target,
    logical: Logical,
    /// Start of the block group that the new space lies in.
    group: Logical,
}

/// Contiguous space that one queue allocates its direct writes from.
#[derive(Debug)]
pub struct AllocationRun {
    source: Source,
    cluster: Cluster,
    run: DiskRange,
    group: Logical,
}

/// Space that a file shows to no reader any more, and that nothing has referenced.
#[derive(Debug)]
#[must_use]
pub struct ReplacedSpace {
    source: Source,
    tree: TreeId,
    ranges: Vec<DiskRange>,
}

impl ReplacedSpace {
    /// Frees it.
    pub fn release(self) {
        self.source.release(self.tree, self.ranges);
    }
}

impl FileState {
    /// Completes every request in flight on the file, then frees the space whose free was deferred.
    /// The caller holds the inode lock exclusively and no transaction handle.
    pub fn drain(&self) {
        self.drain_to_free().release();
    }

    /// As [`Self::drain`], for a caller that soon gives the exclusive lock up, and frees the space
    /// then: that may take milliseconds.
    pub fn drain_to_free(&self) -> ReplacedSpace {
        let in_flight = self.shared.in_flight();
        in_flight.drain(self.source.request_owners());
        let mut ranges = Vec::new();
        if in_flight.has_deferred_frees() {
            self.shared.wait_for_readahead();
            ranges = in_flight.take_deferred_frees();
        }
        ReplacedSpace { source: self.source.clone(), tree: self.tree_id(), ranges }
    }

    /// Waits until no direct write is in flight on `blocks`, which are about to become dirty (law 4
    /// of [`crate::in_flight`]). Reads of these blocks are valid only after this call.
    pub(crate) fn wait_for_direct_writes(
        &self,
        blocks: &Range<u64>,
        wait: Wait,
    ) -> Result<(), FileError> {
        if wait == Wait::NoWait && self.shared.in_flight().has_writes(blocks) {
            return Err(FileError::WouldBlock);
        }
        self.shared.in_flight().wait_for_writes(self.source.request_owners(), blocks);
        Ok(())
    }

    /// Begins a direct write of the blocks of `range`. Returns `None` where the write needs the
    /// inode lock exclusively. The caller holds the inode lock shared and no transaction handle.
    ///
    /// # Errors
    /// The trees cannot be read; [`FileError::WouldBlock`]. Lack of space is not an error here: the
    /// caller retries with the inode locked exclusively, where space can be reclaimed.
    pub fn begin_direct_write(
        &self,
        range: &Range<u64>,
        allocation: &mut AllocationRun,
        wait: Wait,
    ) -> Result<Option<DirectWrite>, FileError> {
        let begun = self.begin_direct_write_as(range, allocation, wait);
        if begun.is_err() {
            self.end_refused_direct_write();
        }
        begun
    }

    /// Ends a direct write that has begun, and that the caller does not submit. The caller holds
    /// the inode lock shared.
    pub fn refuse_direct_write(&self, write: DirectWrite) {
        write.fail(&self.source);
        drop(write);
        self.end_refused_direct_write();
    }

    /// Leaves no metadata reservation with a file that is clean (law 3 of
    /// [`crate::state::metadata_reservation`]): a refused write is not retried here.
    fn end_refused_direct_write(&self) {
        if self.is_clean() {
            self.trim_metadata();
        }
    }

    fn begin_direct_write_as(
        &self,
        range: &Range<u64>,
        allocation: &mut AllocationRun,
        wait: Wait,
    ) -> Result<Option<DirectWrite>, FileError> {
        let is_plain = range.start.is_multiple_of(SECTOR_BYTES)
            && range.end.is_multiple_of(SECTOR_BYTES)
            && !range.is_empty()
            && range.end - range.start <= EXTENT_BYTES_MAX
            && range.end <= self.size();
        let is_newer = self.shared.pages().next_newer(&pages_of(range)).is_some();
        if !is_plain || is_newer {
            return Ok(None);
        }
        let Some(target) = self.single_target(range, wait)? else { return Ok(None) };
        let Some(target) = self.stable_target(target) else { return Ok(None) };
        let slot = self.begin_in_flight(range, target, wait)?;
        let (bytes, shared) = (range.end - range.start, Arc::clone(&self.shared));
        let (logical, group) = (target.logical().unwrap_or_default(), Logical::default());
        let (tree, start) = (self.tree_id(), range.start);
        let mut write = DirectWrite { shared, tree, slot, start, bytes, target, logical, group };
        // The table counts this write already, so of two writes that begin at the same time each
        // reserves for both.
        let has_metadata = match target {
            Target::New | Target::Preallocated { .. } => self.reserve_metadata_shared(wait)?,
            Target::Overwrite(_) => true,
        };
        if !has_metadata {
            return Ok(None);
        }
        if target == Target::New {
            let forest = self.source.forest();
            // The run of the queue is charged to no file; what a write takes of it is.
            match forest.charge_data(self.tree_id(), bytes, bytes) {
                // The caller, with the file to itself, first frees what is charged for nothing.
                Err(TreeError::QuotaExceeded { .. }) => return Ok(None),
                charged => charged?,
            };
            let taken = allocation.take(bytes, wait);
            let Ok(Some(space)) = taken else {
                forest.release_quota_charge(self.tree_id(), bytes);
                return taken.map(|_| None);
            };
            (write.logical, write.group) = (space.start(), allocation.group);
        }
        Ok(Some(write))
    }

    /// Records that a direct write is in flight, under law 5 of [`crate::in_flight`].
    fn begin_in_flight(
        &self,
        range: &Range<u64>,
        target: Target,
        wait: Wait,
    ) -> Result<WriteSlot, FileError> {
        let in_flight = self.shared.in_flight();
        let has_copies = |logical| {
            let chunks = self.source.forest().volume().chunks();
            chunks.find(logical).is_none_or(|layout| layout.attributes().copies > 1)
        };
        if !target.logical().is_some_and(has_copies) {
            return Ok(in_flight.begin_write(range.clone()));
        }
        loop {
            if let Some(slot) = in_flight.begin_exclusive_write(range.clone()) {
                return Ok(slot);
            }
            self.wait_for_direct_writes(range, wait)?;
        }
    }

    /// The target, if data may be written there while other threads read it or write it too. The
    /// first write with checksums into preallocated space needs the inode lock exclusively.
    fn stable_target(&self, target: Target) -> Option<Target> {
        match target {
            Target::Preallocated { .. } if self.shared.has_checksums() => None,
            Target::Preallocated { .. } | Target::New | Target::Overwrite(_) => Some(target),
        }
    }

    fn has_pending(&self, range: &Range<u64>) -> bool {
        self.shared.overlay().find_pending(range.start, range.end) != Err(range.end)
    }

    /// Returns how many writes are in flight or completed and not in the trees yet. An extent
    /// counts once for each of its blocks: the space of what it replaces is not free before the
    /// merge.
    pub fn pending_writes(&self) -> u64 {
        let completed = self.shared.overlay().pending_bytes() / SECTOR_BYTES;
        self.shared.in_flight().writes_in_flight().1 + completed
    }

    /// Returns how many bytes of replaced space are free when a thread next holds the inode lock
    /// exclusively ([`Self::drain`]).
    pub fn deferred_bytes(&self) -> u64 {
        self.shared.in_flight().deferred_bytes()
    }

    /// Whether so many extents are pending that a writer merges them, with whatever is dirty.
    pub(crate) fn has_many_extents(&self) -> bool {
        let overlay = self.shared.overlay();
        length(overlay.pending_count()) >= overlay.pending_bytes_max() / SECTOR_BYTES
    }

    /// Returns how many pending writes the file may have before some are merged.
    pub fn pending_writes_max(&self) -> u64 {
        self.shared.overlay().pending_bytes_max() / SECTOR_BYTES
    }

    /// The write target of a range, if all of it has the same.
    fn single_target(&self, range: &Range<u64>, wait: Wait) -> Result<Option<Target>, FileError> {
        if !self.may_write_in_place() {
            return Ok(Some(Target::New));
        }
        // The cached targets do not know pending extents, which lie in new or in preallocated
        // space.
        let has_pending = self.has_pending(range);
        let version = TargetsVersion {
            items: self.shared.items_version(),
            snapshots: self.source.snapshot_epoch(),
        };
        let cached = self.shared.cached_target(version, range);
        if let Some(target) = cached.filter(|_| !has_pending) {
            return Ok(Some(target));
        }
        if has_pending {
            let [(_, target)] = self.write_targets(range, wait)?[..] else { return Ok(None) };
            return Ok(Some(target));
        }
        // The whole region is looked up: writes nearby are likely to follow.
        let start = range.start - range.start % REGION_BYTES;
        let end = range.end.next_multiple_of(REGION_BYTES).min(self.size());
        let end = end - end % SECTOR_BYTES;
        let targets = self.write_targets(&(start..end.max(range.end)), wait)?;
        self.shared.cache_targets(version, &targets);
        let whole = |part: &Range<u64>| part.start <= range.start && range.end <= part.end;
        let found = targets.iter().find(|(part, _)| whole(part));
        Ok(found.map(|(part, target)| target.advanced(range.start - part.start)))
    }
}

impl AllocationRun {
    /// Returns a run without space. Queues that write at the same time have different numbers.
    pub fn new(source: &Source, writer: u64) -> Self {
        let cluster = Cluster(FIRST_QUEUE_CLUSTER.saturating_add(writer));
        Self {
            source: source.clone(),
            cluster,
            run: DiskRange::default(),
            group: Logical::default(),
        }
    }

    /// Takes `bytes` contiguous bytes of one block group, following the previous ones where
    /// possible. Returns `None` if there is no space.
    fn take(&mut self, bytes: u64, wait: Wait) -> Result<Option<DiskRange>, FileError> {
        if self.run.bytes() < bytes {
            self.release();
            let forest = self.source.forest();
            let (least, most) = (SECTOR_BYTES, bytes.max(RUN_BYTES));
            self.run = match forest.allocate_data(least, most, self.cluster, wait) {
                Ok(run) => run,
                Err(TreeError::WouldBlock) => return Err(FileError::WouldBlock),
                Err(_) => return Ok(None),
            };
            let chunks = forest.volume().chunks();
            let Some(chunk) = chunks.find(self.run.start()) else { return Ok(None) };
            self.group = chunk.logical();
        }
        if self.run.bytes() < bytes {
            self.release();
            return match wait {
                Wait::Block => Ok(None),
                // A longer run may be free after a commit.
                Wait::NoWait => Err(FileError::WouldBlock),
            };
        }
        Ok(Some(self.run.take_front(bytes)))
    }

    /// Frees the space that has not been used.
    pub fn release(&mut self) {
        let run = std::mem::take(&mut self.run);
        if !run.is_empty() {
            // It fails only on a volume that is open read-only.
            self.source.forest().release_data(run).ok();
        }
    }
}

impl Drop for AllocationRun {
    fn drop(&mut self) {
        self.release();
    }
}

impl DirectWrite {
    /// Returns the logical address that the data goes to.
    pub fn logical(&self) -> Logical {
        self.logical
    }

    /// Returns whether the write goes to new space, where successive writes are contiguous.
    pub fn is_new(&self) -> bool {
        self.target == Target::New
    }

    /// Returns whether [`Self::complete`] needs checksums of the data.
    pub fn wants_checksums(&self) -> bool {
        self.shared.has_checksums()
    }

    /// Shows the written data: all copies of it are on disk. `checksums` are those of its sectors,
    /// if [`Self::wants_checksums`].
    pub fn complete(&self, source: &Source, checksums: &[u8]) {
        let place = match self.target {
            Target::New => Place::New { logical: self.logical, group: self.group },
            Target::Preallocated { extent, skip } => Place::Preallocated { extent, skip },
            Target::Overwrite(_) => {
                source.forest().volume().note_in_place();
                self.invalidate_clean();
                return;
            }
        };
        let pending = PendingExtent::new(self.bytes, place, checksums.to_vec());
        let freed = self.shared.overlay_mut().insert(self.start, pending);
        self.shared.in_flight().defer_free(freed);
        self.invalidate_clean();
    }

    /// Drops the clean pages of the range, which are older than the disk.
    fn invalidate_clean(&self) {
        self.shared.bump_data_version();
        let pages = pages_of(&self.range());
        self.shared.pages().change().remove_clean(&pages);
        debug_assert_eq!(self.shared.pages().next_newer(&pages), None, "law 4 of `in_flight`");
    }

    fn range(&self) -> Range<u64> {
        self.start..self.start + self.bytes
    }

    /// Ends a write that failed. The range reads as before; where the data was to be written in
    /// place, it reads as the disk has it. The next merge of the file returns its metadata
    /// reservation.
    pub fn fail(&self, source: &Source) {
        self.invalidate_clean();
        if self.target == Target::New {
            let space = DiskRange::new(self.logical, self.bytes).expect("it was allocated");
            source.forest().release_data(space).ok();
            source.forest().release_quota_charge(self.tree, self.bytes);
        }
    }
}

impl Drop for DirectWrite {
    fn drop(&mut self) {
        self.shared.in_flight().end_write(&self.slot, &self.range());
    }
}
