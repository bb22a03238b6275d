//! Metadata reservations: space of the trees, reserved for what is not merged into them yet.
//!
//! Laws:
//!
//! 1. No write to new space is accepted that the trees might not have space to reference: its items
//!    have a metadata reservation. The exception is the zeroed edge of a truncation, which must
//!    succeed on a full volume.
//! 2. A merge returns its part of the reservation after its changes are in the trees, so no other
//!    operation can take that space in between. The part of prepared edges, which become dirty
//!    after the edit of the trees, stays reserved.
//! 3. An operation leaves no reservation with a file that is clean. Only a direct write that a
//!    device has failed does, because it ends without the inode lock: the next merge of the file
//!    returns it, also if there is nothing else to merge.
//! 4. The bytes of a reservation are charged to the quota of the subvolume, so that what merges add
//!    to its tree, the data of inline files too, was below its limits when it was accepted. Files
//!    with nodatacow are the exception: a write in place is accepted at a limit.
//!
//! The estimate assumes minimally filled leaves, in the file's tree and in the extent tree. It is
//! not a bound for every single item; the global reserve covers the difference.

use crate::error::FileError;
use crate::state::FileState;
use crate::state::inline::INLINE_BYTES_MAX;
use butternut_format::inode::InodeFlags;
use butternut_format::units::{SECTOR_BYTES, length};
use butternut_space::Reservation;
use butternut_sys::lock::MutexGuard;
use butternut_sys::wait::Wait;
use butternut_tree::TreeError;

/// Bytes for the inode item, and for the slack of leaves.
const FILE_BYTES: u64 = 1024;
/// Bytes for an extent item in the file's tree and one in the extent tree.
const EXTENT_BYTES: u64 = 512;
/// A reservation at least doubles when it grows, up to this many bytes at a time.
const STEP_BYTES_MAX: u64 = 64 << 10;

impl FileState {
    /// Reserves metadata for everything that is newer than the trees, and for `extents` and
    /// `blocks` more, which the file of then `size` bytes will have. May merge the file, so it
    /// precedes every lookup of write targets.
    pub(crate) fn reserve_metadata(
        &mut self,
        extents: u64,
        blocks: u64,
        size: u64,
        wait: Wait,
    ) -> Result<(), FileError> {
        let (blocks_in_flight, extents_in_flight) = self.shared.in_flight().writes_in_flight();
        let (blocks, extents) = (blocks + blocks_in_flight, extents + extents_in_flight);
        let wanted = self.metadata_bytes(extents, blocks, size);
        let Some(step) = self.metadata_shortfall(wanted) else { return Ok(()) };
        let more = match self.reserve_charged(step, wait) {
            Err(_) if wait == Wait::Block && !self.is_clean() => {
                // Merged extents need no reservation any more.
                self.drain();
                self.merge(&mut |_| {})?;
                self.reserve_charged(self.metadata_bytes(extents, blocks, size), wait)?
            }
            decided => decided?,
        };
        self.add_metadata(more);
        Ok(())
    }

    /// Reserves metadata for the direct writes in flight. Returns whether there was space. The
    /// caller holds the inode lock shared; with the lock held exclusively,
    /// [`Self::reserve_metadata`] can reclaim some.
    pub(crate) fn reserve_metadata_shared(&self, wait: Wait) -> Result<bool, FileError> {
        let (blocks, extents) = self.shared.in_flight().writes_in_flight();
        let wanted = self.metadata_bytes(extents, blocks, u64::MAX);
        let Some(step) = self.metadata_shortfall(wanted) else { return Ok(true) };
        let more = match self.reserve_charged(step, wait) {
            Ok(more) => more,
            Err(TreeError::WouldBlock) => return Err(FileError::WouldBlock),
            Err(_) => return Ok(false),
        };
        self.add_metadata(more);
        Ok(true)
    }

    /// Reserves metadata for `extents` extents of `blocks` blocks that are about to be written.
    /// Merges nothing, since their write targets have been looked up. Returns whether there was
    /// space. The caller holds the inode lock exclusively.
    pub(crate) fn reserve_metadata_for_runs(&self, extents: u64, blocks: u64, size: u64) -> bool {
        let wanted = self.metadata_bytes(extents, blocks, size);
        let Some(step) = self.metadata_shortfall(wanted) else { return true };
        let more = self.reserve_charged(step, Wait::Block);
        let Ok(more) = more else { return false };
        self.add_metadata(more);
        true
    }

    /// Returns the bytes of the reservation.
    pub(crate) fn metadata_bytes_reserved(&self) -> u64 {
        self.metadata_reservation().as_ref().map_or(0, Reservation::bytes)
    }

    /// Returns what the reservation has grown by since it had `bytes` bytes. The caller holds the
    /// inode lock exclusively, so no direct write has begun meanwhile.
    pub(crate) fn shrink_metadata(&self, bytes: u64) {
        self.keep_metadata(self.metadata_reservation(), bytes);
    }

    /// Returns what the reservation has beyond `bytes` bytes, and ends its charge.
    fn keep_metadata(&self, mut held: MutexGuard<'_, Option<Reservation>>, bytes: u64) {
        let Some(reservation) = &mut *held else { return };
        let unused = reservation.bytes().saturating_sub(bytes);
        reservation.spend(unused);
        let ended = held.take_if(|reservation| reservation.bytes() == 0);
        drop(held);
        drop(ended);
        self.release_charge(unused);
    }

    /// Reserves `bytes` bytes, and charges them (law 4).
    fn reserve_charged(&self, bytes: u64, wait: Wait) -> Result<Reservation, TreeError> {
        let forest = self.source.forest();
        if self.is_metadata_charged() {
            forest.charge_metadata(self.tree_id(), bytes)?;
        }
        let reserved = forest.reserve_metadata(bytes, wait);
        if reserved.is_err() {
            self.release_charge(bytes);
        }
        reserved
    }

    /// Whether the reservation is charged (law 4).
    pub(crate) fn is_metadata_charged(&self) -> bool {
        !self.flags.contains(InodeFlags::NODATACOW)
    }

    /// Charges the reservation, or ends its charge, after the flags have changed.
    pub(crate) fn move_charge(&mut self, was_charged: bool) {
        let (forest, tree, bytes) =
            (self.source.forest(), self.tree_id(), self.metadata_bytes_reserved());
        if was_charged && !self.is_metadata_charged() {
            forest.release_quota_charge(tree, bytes);
        } else if !was_charged
            && self.is_metadata_charged()
            && forest.charge_metadata(tree, bytes).is_err()
        {
            // The flag changes while the file is empty, so the next write reserves again.
            let uncharged = self.metadata_reservation().take();
            drop(uncharged);
        }
    }

    fn release_charge(&self, bytes: u64) {
        if !self.is_metadata_charged() {
            return;
        }
        self.source.forest().release_quota_charge(self.tree_id(), bytes);
    }

    /// How many bytes the reservation is to grow by, if it is less than `wanted`.
    fn metadata_shortfall(&self, wanted: u64) -> Option<u64> {
        let has = self.metadata_bytes_reserved();
        (has < wanted).then(|| (wanted - has).max(has.min(STEP_BYTES_MAX)))
    }

    fn add_metadata(&self, more: Reservation) {
        match &mut *self.metadata_reservation() {
            Some(metadata_reservation) => metadata_reservation.join(more),
            none => *none = Some(more),
        }
    }

    /// Returns the part of the reservation that is not needed any more. Direct writes may begin
    /// meanwhile.
    pub(crate) fn trim_metadata(&self) {
        // Under one lock: a direct write that begins now reserves for itself.
        let held = self.metadata_reservation();
        let (blocks, extents) = self.shared.in_flight().writes_in_flight();
        let is_unneeded =
            extents == 0 && self.prepared_edges == 0 && self.shared.overlay().is_empty();
        let size = self.size();
        let wanted = if is_unneeded { 0 } else { self.metadata_bytes(extents, blocks, size) };
        self.keep_metadata(held, wanted);
    }

    /// Ends an operation on the file (law 3).
    pub(crate) fn end_operation<R>(
        &mut self,
        result: Result<R, FileError>,
    ) -> Result<R, FileError> {
        if self.is_clean() {
            self.release_unused_data();
            self.trim_metadata();
        }
        result
    }

    /// Returns the whole reservation.
    pub(crate) fn drop_metadata(&self) {
        self.keep_metadata(self.metadata_reservation(), 0);
    }

    /// After a panic: the reservation changes in a single call, and a panic in that call leaves a
    /// lock of `space` poisoned, which makes the commit fail.
    fn metadata_reservation(&self) -> MutexGuard<'_, Option<Reservation>> {
        self.metadata_reservation.lock()
    }

    fn metadata_bytes(&self, extents: u64, blocks: u64, size: u64) -> u64 {
        let overlay = self.shared.overlay();
        let newer = length(self.shared.pages().newer_pages());
        let extents = extents + length(overlay.pending_count()) + newer + self.prepared_edges;
        let blocks = blocks + overlay.bytes() / SECTOR_BYTES + self.prepared_edges;
        // A compressed file may become inline with a larger size.
        let may_be_inline =
            size <= INLINE_BYTES_MAX || size <= SECTOR_BYTES && self.compression_policy().is_some();
        let inline = if may_be_inline { 2 * size.min(INLINE_BYTES_MAX) } else { 0 };
        let checksums = 2 * blocks * length(self.source.checksums().checksum_bytes());
        FILE_BYTES + inline + extents * EXTENT_BYTES + checksums
    }
}

#[cfg(test)]
mod tests;
