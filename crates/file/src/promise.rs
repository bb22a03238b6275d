//! Promises: space of the trees, held for what is not merged into them yet.
//!
//! Laws:
//!
//! 1. Nothing is accepted that the trees might not be able to name: what a file has above them is
//!    covered by a ticket, item by item.
//! 2. What is merged gives its part of the ticket back once it is in the trees: nobody else gets
//!    it in between.
//!
//! The estimate is for items packed as loosely as leaves ever are, on the files' side and on the
//! extents'. It is no bound for a single item: the reserve of the volume is.

use crate::direct::Patience;
use crate::error::FileError;
use crate::small::INLINE_BYTES_MAX;
use crate::state::FileState;
use butternut_format::units::{SECTOR_BYTES, length};
use butternut_space::Ticket;
use std::sync::{MutexGuard, PoisonError};

/// An inode item, and half a leaf's share of slack.
const FILE_BYTES: u64 = 1024;
/// An extent item in a file's tree, and one in the extent tree.
const EXTENT_BYTES: u64 = 512;
/// A ticket grows at least this much at once, where it has grown as much already.
const STEP_BYTES_MAX: u64 = 64 << 10;

impl FileState {
    /// Covers what the file has above the trees, and `extents` and `blocks` more, which it will
    /// have with `size` bytes. May merge the file: so this comes before anything else is found out
    /// about where it is to be written.
    pub(crate) fn promise(
        &mut self,
        extents: u64,
        blocks: u64,
        size: u64,
    ) -> Result<(), FileError> {
        let (blocks_coming, extents_coming) = self.live.traffic().coming();
        let (blocks, extents) = (blocks + blocks_coming, extents + extents_coming);
        let wanted = self.bytes_to_promise(extents, blocks, size);
        let Some(step) = self.step_to(wanted) else { return Ok(()) };
        let forest = self.source.forest().clone();
        let more = match forest.promise_metadata(step) {
            Err(_) if !self.is_clean() => {
                // What is merged needs no promise any more.
                self.quiet();
                self.merge(&mut |_| {})?;
                forest.promise_metadata(self.bytes_to_promise(extents, blocks, size))?
            }
            decided => decided?,
        };
        self.add_ticket(more);
        Ok(())
    }

    /// Covers what is in flight, inside the file. The caller shares the file. Says whether there
    /// is space for that; who has the file alone can do more.
    pub(crate) fn promise_shared(&self, patience: Patience) -> bool {
        let (blocks, extents) = self.live.traffic().coming();
        let wanted = self.bytes_to_promise(extents, blocks, u64::MAX);
        let Some(step) = self.step_to(wanted) else { return true };
        let forest = self.source.forest();
        let more = match patience {
            Patience::Any => forest.promise_metadata(step).ok(),
            Patience::None => forest.promise_metadata_at_once(step),
        };
        let Some(more) = more else { return false };
        self.add_ticket(more);
        true
    }

    /// The same, by who has the file alone and does not wait, for what he is about to write.
    pub(crate) fn promise_at_once(&self, blocks: u64, size: u64) -> bool {
        let (blocks_coming, extents_coming) = self.live.traffic().coming();
        let (blocks, extents) = (blocks + blocks_coming, blocks + extents_coming);
        let wanted = self.bytes_to_promise(extents, blocks, size);
        let Some(step) = self.step_to(wanted) else { return true };
        let Some(more) = self.source.forest().promise_metadata_at_once(step) else { return false };
        self.add_ticket(more);
        true
    }

    /// How much more the ticket is to grow for that, if it is not enough.
    fn step_to(&self, wanted: u64) -> Option<u64> {
        let has = self.ticket().as_ref().map_or(0, Ticket::bytes);
        (has < wanted).then(|| (wanted - has).max(has.min(STEP_BYTES_MAX)))
    }

    fn add_ticket(&self, more: Ticket) {
        match &mut *self.ticket() {
            Some(ticket) => ticket.join(more),
            none => *none = Some(more),
        }
    }

    /// Gives back what covers nothing above the trees any more. Others may begin direct writes
    /// meanwhile.
    pub(crate) fn trim_ticket(&self) {
        let mut ticket = self.ticket();
        let (blocks, extents) = self.live.traffic().coming();
        if extents == 0 && self.live.overlay().is_empty() {
            *ticket = None;
        } else if let Some(ticket) = &mut *ticket {
            let wanted = self.bytes_to_promise(extents, blocks, self.size());
            ticket.spend(ticket.bytes().saturating_sub(wanted));
        }
    }

    /// What is above the trees is not covered any more.
    pub(crate) fn drop_ticket(&self) {
        *self.ticket() = None;
    }

    /// After a panic: one call of the ticket changes it, and a panic in that leaves a lock of
    /// `space` poisoned, for which the commit fails.
    fn ticket(&self) -> MutexGuard<'_, Option<Ticket>> {
        self.ticket.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn bytes_to_promise(&self, extents: u64, blocks: u64, size: u64) -> u64 {
        let overlay = self.live.overlay();
        let newer = length(self.live.pages().newer_pages());
        let extents = extents + length(overlay.patch_count()) + newer;
        let blocks = blocks + overlay.bytes() / SECTOR_BYTES;
        // Packed, a file that is longer may go inline as well.
        let may_be_inline =
            size <= INLINE_BYTES_MAX || size <= SECTOR_BYTES && self.packing().is_some();
        let inline = if may_be_inline { 2 * size.min(INLINE_BYTES_MAX) } else { 0 };
        let digests = 2 * blocks * length(self.source.sums().digest_bytes());
        FILE_BYTES + inline + extents * EXTENT_BYTES + digests
    }
}
