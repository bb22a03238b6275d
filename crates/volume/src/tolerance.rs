//! What a volume can do without: writes, flushes and superblocks that one of several copies missed.
//!
//! ```text
//! write    a copy fails -> counted and reported; the others are enough, or the write fails
//! flush    a device fails -> every chunk must be whole without it, or the flush fails
//! super    a device fails -> it keeps its old superblock, and is stale when it is next opened
//! read     copies on a device that has failed writes or flushes on record are read last
//! ```
//!
//! Laws:
//! 1. A write may miss as many copies as its profile tolerates failed devices. The two copies of
//!    DUP lie on one device: a tree block may miss one of them, because a reader can tell which one
//!    is current; data may not.
//! 2. A device that has missed a write or a flush since the volume was opened is not counted as a
//!    copy when another device fails a flush: what it missed is then on no device for certain.
//! 3. A chunk that tolerates no failed device must not lie on a device that fails a flush or a
//!    superblock.
//! 4. A device with failed writes or flushes on record (of this session, or in its `DEV_STATS`
//!    item) is doubtful: it may hold old bytes. Its copies are read last, and where no checksum
//!    vouches for them only when no other copy is on a device that is there.
//! 5. Every failure that was tolerated is counted on its device before the call returns, so the
//!    caller can write it down ([`Volume::unrecorded_stats`]) before it reports success.

use crate::members::{ErrorCounts, Member};
use crate::stripe::{Layout, Piece, Place};
use crate::volume::Volume;
use butternut_format::units::DevId;

/// What a write holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Content {
    Data,
    /// Blocks that carry their own checksum, address and generation.
    Blocks,
}

/// Copies of a write that may fail (law 1).
pub(crate) fn spare_copies(layout: &Layout, content: Content) -> usize {
    let facts = layout.facts();
    match content {
        Content::Data => facts.failures_tolerated.min(facts.copies.saturating_sub(1)),
        Content::Blocks => facts.copies.saturating_sub(1),
    }
}

impl Volume {
    /// Whether the volume is whole without the devices of these slots (laws 2 and 3).
    pub(crate) fn tolerates(&self, lost: &[usize]) -> bool {
        let is_lost = |place: &&Place| place.slot.is_none_or(|slot| lost.contains(&slot));
        let is_failed = |place: &&Place| {
            let member = place.slot.and_then(|slot| self.members.get(slot));
            is_lost(place) || member.is_none_or(Member::has_failed)
        };
        let mut own = self.members.iter().enumerate().filter(|(_, member)| !member.is_seed);
        let is_one_left = own.any(|(slot, _)| !lost.contains(&slot));
        is_one_left
            && self.chunks.load().iter().all(|chunk| {
                let (places, spare) = (chunk.places(), chunk.facts().failures_tolerated);
                if !places.iter().any(|place| is_lost(&place)) {
                    return true;
                }
                spare > 0 && places.iter().filter(is_failed).count() <= spare
            })
    }

    /// Law 4.
    pub(crate) fn is_doubtful(&self, place: &Place) -> bool {
        let member = place.slot.and_then(|slot| self.members.get(slot));
        place.is_stale || member.is_some_and(|member| member.errors.has_missed_writes())
    }

    /// Whether a copy must not be read without a checksum: it is doubtful, and another is not.
    pub(crate) fn needs_checksum(&self, layout: &Layout, piece: &Piece, copy: usize) -> bool {
        let copies = layout.copies(piece);
        let is_sound = |place: &Place| place.slot.is_some() && !self.is_doubtful(place);
        copies.get(copy).is_some_and(|place| self.is_doubtful(place)) && copies.iter().any(is_sound)
    }

    /// Adds what the volume has on record of a device; once for each device, when it is opened.
    pub fn add_recorded_stats(&self, devid: DevId, counts: &ErrorCounts) {
        if let Some(member) = self.own_member(devid) {
            member.errors.add_recorded(counts);
        }
    }

    /// Devices whose counts differ from those on record, with the counts as they are now.
    pub fn unrecorded_stats(&self) -> Vec<(DevId, ErrorCounts)> {
        let own = self.members.iter().filter(|member| !member.is_seed);
        let differing = own.filter(|member| member.errors.now() != member.errors.recorded());
        differing.map(|member| (member.item().devid, member.errors.now())).collect()
    }

    /// Whether a device has missed a write or a flush since its counts were recorded.
    pub fn has_unrecorded_misses(&self) -> bool {
        self.members.iter().filter(|member| !member.is_seed).any(|member| {
            let (now, recorded) = (member.errors.now(), member.errors.recorded());
            (now.write_errors, now.flush_errors) != (recorded.write_errors, recorded.flush_errors)
        })
    }

    /// Whether a device that was sound on record has missed a write or a flush.
    pub fn has_unrecorded_doubt(&self) -> bool {
        let own = self.members.iter().filter(|member| !member.is_seed);
        own.filter(|member| !member.errors.recorded().has_missed_writes())
            .any(|member| member.errors.has_missed_writes())
    }

    /// The counts are on record now.
    pub fn set_recorded_stats(&self, devid: DevId, counts: &ErrorCounts) {
        if let Some(member) = self.own_member(devid) {
            member.errors.set_recorded(counts);
        }
    }

    fn own_member(&self, devid: DevId) -> Option<&Member> {
        self.members.iter().find(|member| !member.is_seed && member.item().devid == devid)
    }
}
