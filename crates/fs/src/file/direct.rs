//! Direct writes that share the inode lock: which do, how they begin, and those that the caller
//! waits for.
//!
//! Laws:
//!
//! 1. A write of whole blocks inside the file shares the inode lock if the file is known to have no
//!    privileges to strip, is neither append-only nor synchronous (`chattr +S`), and has no dirty
//!    page in the range, and if one run of space on disk takes the whole write.
//! 2. A write that finds too many pending extents merges some before it begins, with nothing
//!    locked.
//! 3. No lock is held while such a write is in flight. A thread that waits for the file waits for
//!    [`OutstandingIo`](crate::background::outstanding::OutstandingIo), or completes the write
//!    itself.
//! 4. A write shares the inode lock only if the subvolume is known to be writable
//!    ([`Filesystem::lock_shared_to_write`]). All other writes hold the lock exclusively, and look
//!    the subvolume up first (`Filesystem::writable_subvolume`).

use crate::file::alter::Times;
use crate::inode::table::{InodeEntry, InodeState};
use crate::write_state::WriteState;
use crate::{Error, File, Filesystem, Privileges, Result};
use butternut_file::{AllocationRun, DirectWrite, FileState};
use butternut_format::inode::InodeFlags;
use butternut_format::units::length;
use butternut_sys::lock::RwLockReadGuard;
use butternut_sys::wait::Wait;
use butternut_volume::DataWrite;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

const SECTOR: usize = 4096;

/// What a writer merges itself when too many writes are pending, or a quarter of the bound.
const PENDING_STEP: u64 = 2 << 10;
/// Parts of a merge that a writer makes itself before it goes on: others may write as fast as it
/// merges, and the bound of the file may have become much smaller.
const OWN_PARTS_MAX: u64 = 8;
/// Parts of a merge that the committer makes for the writers of a file before it looks for other
/// work. They write on, and ask again.
const QUEUED_PARTS_MAX: u64 = 1 << 6;
/// Delay of a queue's write when as many writes are pending as may be. With fewer, the delay is
/// this times the square of the fraction of the way from [`kick`]. So queues slow down to the rate
/// of merging without stopping.
const PAUSE_MAX: Duration = Duration::from_micros(40);
/// Bytes of a file's replaced space at which the committer is woken to free them, and the multiple
/// at which a writer does. Overwrites of pending blocks add no pending writes, so nothing else
/// would. Few with assertions, so that tests have some.
const DEFERRED_BYTES_KICK: u64 = if cfg!(debug_assertions) { 1 << 20 } else { 64 << 20 };
const DEFERRED_KICKS_MAX: u64 = 4;

/// How many writes of a file are pending.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Pending {
    Few,
    /// The committer merges them. A queue sleeps for `pause` before a later write; a blocking
    /// writer does not.
    Many {
        count: u64,
        pause: Duration,
    },
    /// A writer merges some before it goes on.
    TooMany,
}

/// Returns whether a request consists of whole blocks.
pub(crate) fn is_block_aligned(offset: u64, bytes: usize) -> bool {
    bytes > 0 && bytes.is_multiple_of(SECTOR) && offset.is_multiple_of(length(SECTOR))
}

impl Pending {
    pub(crate) fn of(state: &InodeState) -> Self {
        let Some(file) = state.file.as_deref() else { return Self::Few };
        let (count, max) = (file.pending_writes(), file.pending_writes_max());
        let deferred = file.deferred_bytes();
        if count >= max || has_too_much_replaced(file) {
            Self::TooMany
        } else if count >= kick(max) || deferred >= DEFERRED_BYTES_KICK {
            let replaced = deferred / length(SECTOR);
            Self::Many { count: count.saturating_add(replaced), pause: pause(count, max) }
        } else {
            Self::Few
        }
    }
}

/// Returns the number of pending writes at which the committer is woken to merge some, of at most
/// `max`.
fn kick(max: u64) -> u64 {
    max / 4 * 3
}

/// Returns the number of pending writes that a background merge leaves for the next merge, of at
/// most `max`. By then, extents between them are pending too, and all are merged together.
fn left(max: u64) -> u64 {
    max / 2
}

/// Whether a writer of a file frees the space that overwrites have replaced.
pub(super) fn has_too_much_replaced(file: &FileState) -> bool {
    file.deferred_bytes() >= DEFERRED_KICKS_MAX * DEFERRED_BYTES_KICK
}

fn has_many_pending(entry: &InodeEntry) -> bool {
    let state = entry.lock_shared();
    let file = state.file.as_deref();
    file.is_some_and(|file| file.pending_writes() >= kick(file.pending_writes_max()))
}

/// Frees the space that overwrites of a file have replaced, if it is much.
fn free_replaced(entry: &InodeEntry) {
    let deferred = entry.lock_shared().file.as_deref().map_or(0, FileState::deferred_bytes);
    if deferred >= DEFERRED_BYTES_KICK {
        let (state, replaced) = entry.lock_to_free();
        drop(state);
        if let Some(replaced) = replaced {
            replaced.release();
        }
    }
}

/// Returns the delay of a queue's write with `pending` pending writes, of at most `max`.
fn pause(pending: u64, max: u64) -> Duration {
    let part = |most: u64| most * pending.saturating_sub(kick(max)) / (max - kick(max)).max(1);
    let nanos = u64::try_from(PAUSE_MAX.as_nanos()).unwrap_or(u64::MAX);
    Duration::from_nanos((part(nanos) * part(1 << 10)) >> 10)
}

impl Filesystem {
    /// Frees replaced space, and merges pending extents, until there is room for more. The file
    /// keeps an error of it for the next sync.
    pub(crate) fn merge_excess(&self, write_state: &WriteState, entry: &Arc<InodeEntry>) {
        free_replaced(entry);
        let left = |max: u64| max - PENDING_STEP.min(max / 4);
        drop(self.merge_down_to(write_state, entry, left, OWN_PARTS_MAX));
    }

    /// Frees replaced space, and merges pending extents, of a file for its writers. The file keeps
    /// an error of it for its next sync.
    pub(crate) fn merge_queued(&self, write_state: &WriteState, entry: &Arc<InodeEntry>) {
        free_replaced(entry);
        if has_many_pending(entry) {
            drop(self.merge_down_to(write_state, entry, left, QUEUED_PARTS_MAX));
        }
    }

    /// Takes the inode lock shared for a direct write, if the inode's subvolume is writable (law
    /// 4). The caller is an operation that writes, and has no inode locked.
    pub(crate) fn lock_shared_to_write<'a>(
        &self,
        write_state: &WriteState,
        entry: &'a InodeEntry,
        wait: Wait,
    ) -> Result<RwLockReadGuard<'a, InodeState>> {
        if !entry.is_subvolume_writable() {
            self.writable_subvolume_as(write_state, entry.id, wait)?;
            entry.set_subvolume_writable(true);
        }
        entry.lock_shared_as(wait)
    }
}

impl File {
    /// Begins a direct write of whole blocks, under the shared inode lock. Returns `None` if it
    /// needs the lock exclusively (law 1).
    pub(crate) fn begin_shared_write(
        &self,
        state: &InodeState,
        range: &Range<u64>,
        privileges: Privileges,
        (allocation, wait): (&mut AllocationRun, Wait),
    ) -> Result<Option<DirectWrite>> {
        let pin = self.pin()?;
        let (filesystem, entry) = (pin.filesystem(), pin.entry());
        let inode = filesystem.attributes_as(entry, wait)?;
        self.may_write(&inode)?;
        let is_plain = ![InodeFlags::APPEND, InodeFlags::SYNC]
            .into_iter()
            .any(|flag| inode.flags.contains(flag));
        let keeps_privileges = privileges == Privileges::Keep || entry.has_no_privileges();
        let may_share = is_plain && keeps_privileges && filesystem.tunables().nosec;
        let may_share = may_share && entry.is_subvolume_writable();
        let Some(data) = state.file.as_ref().filter(|_| may_share) else { return Ok(None) };
        Ok(data.begin_direct_write(range, allocation, wait)?)
    }

    /// Updates the times of the file for a shared write that begins.
    pub(crate) fn note_shared_write(
        &self,
        write_state: &WriteState,
        entry: &Arc<InodeEntry>,
        state: &InodeState,
    ) {
        if self.times == Times::Now {
            let now = write_state.clock.now();
            entry.update(|inode| {
                (inode.mtime, inode.ctime) = (now, now);
                inode.sequence = inode.sequence.wrapping_add(1);
            });
            state.is_item_stale.store(true, Ordering::Release);
        }
        if !entry.is_listed() {
            write_state.mark_dirty(entry);
            write_state.signal.changed();
        }
    }

    /// Writes whole blocks under the shared inode lock, and waits until they are written. Returns
    /// `None` if the write needs the lock exclusively.
    pub(crate) fn write_shared(
        &self,
        offset: u64,
        bytes: &[u8],
        privileges: Privileges,
    ) -> Result<Option<usize>> {
        if !is_block_aligned(offset, bytes.len()) {
            return Ok(None);
        }
        let pin = self.pin()?;
        let (filesystem, entry) = (pin.filesystem(), pin.entry());
        let shared = &filesystem.shared;
        let writing = filesystem.begin()?;
        let write_state = &*writing;
        let mut state = filesystem.lock_shared_to_write(write_state, entry, Wait::Block)?;
        match Pending::of(&state) {
            Pending::Few => {}
            Pending::Many { .. } => write_state.queue_merge(entry),
            Pending::TooMany => {
                drop(state);
                filesystem.merge_excess(write_state, entry);
                state = entry.lock_shared();
            }
        }
        let range = offset..offset.saturating_add(length(bytes.len()));
        let begun = shared.allocation_runs.with(&shared.source, |allocation| {
            self.begin_shared_write(&state, &range, privileges, (allocation, Wait::Block))
        })?;
        let Some(write) = begun else { return Ok(None) };
        let outstanding = shared.outstanding_io.begin();
        self.note_shared_write(write_state, entry, &state);
        drop(state);
        let mut checksums = Vec::new();
        if write.wants_checksums() {
            shared.volume().checksum(bytes, &mut checksums);
        }
        let mut rows = [DataWrite::new(write.logical(), bytes)];
        shared.volume().write_data(&mut rows);
        let [DataWrite { result, .. }] = rows;
        match &result {
            Ok(()) => write.complete(&shared.source, &checksums),
            Err(_) => write.fail(&shared.source),
        }
        drop(write);
        drop(outstanding);
        result.map_err(Error::Volume)?;
        let counters = self.lane_counters();
        counters.dio_write_shared.add();
        counters.dio_write_zero_copy.add();
        Ok(Some(bytes.len()))
    }
}
