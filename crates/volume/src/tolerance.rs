//! What a volume can do without: writes, flushes and superblocks that one of several copies missed.
//!
//! ```text
//! write    a copy fails -> counted and reported; the others are enough, or the write fails
//! flush    a device fails -> every chunk must be whole without it, or the flush fails
//! super    a device fails -> it keeps its old superblock, and is stale when it is next opened
//! read     copies that may have missed a write are read last, those that have missed one never
//!          without a checksum
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
//!    item) may hold old bytes. Its copies are read after those of other devices, by [`Doubt`], and
//!    a copy that no checksum vouches for is read only if no copy of less doubt is on a device
//!    that is there. A range that this session knows a device to have missed is never read from
//!    it without a checksum.
//! 5. Every failure that was tolerated is counted on its device before the call returns, so the
//!    caller can write it down ([`Volume::unrecorded_stats`]) before it reports success.

use crate::members::{ErrorCounts, Member};
use crate::stripe::{Layout, Piece, Place};
use crate::volume::Volume;
use butternut_format::units::DevId;
use std::ops::Range;

/// What a write holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Content {
    Data,
    /// Blocks that carry their own checksum, address and generation.
    Blocks,
}

/// How likely a copy of a range is old, least first (law 4).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Doubt {
    /// The device has failed no write and no flush on record.
    Sound,
    /// The device has missed other ranges only, all of them in this session.
    OtherRanges,
    /// Which ranges the device has missed is not known.
    Possible,
    /// The superblock of the device is older than that of others.
    Stale,
    /// The device has missed a write of this range in this session.
    Missed,
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

    /// What is known of one copy of a piece (law 4).
    pub(crate) fn doubt(&self, piece: &Piece, place: &Place) -> Doubt {
        let member = place.slot.and_then(|slot| self.members.get(slot));
        let Some(member) = member.filter(|member| member.errors.has_missed_writes()) else {
            return if place.is_stale { Doubt::Stale } else { Doubt::Sound };
        };
        if member.missed.overlaps(&physical_range(piece, place)) {
            Doubt::Missed
        } else if place.is_stale {
            Doubt::Stale
        } else if member.errors.has_missed_unknown() || member.missed.is_incomplete() {
            Doubt::Possible
        } else {
            Doubt::OtherRanges
        }
    }

    /// Whether a copy of a piece must not be read without a checksum (law 4).
    pub(crate) fn needs_checksum(&self, layout: &Layout, piece: &Piece, copy: usize) -> bool {
        let copies = layout.copies(piece);
        let Some(place) = copies.get(copy) else { return false };
        match self.doubt(piece, place) {
            // What it has not missed it has acknowledged, as every other copy.
            Doubt::Sound | Doubt::OtherRanges => false,
            Doubt::Missed => true,
            own @ (Doubt::Possible | Doubt::Stale) => {
                copies.iter().any(|other| other.slot.is_some() && self.doubt(piece, other) < own)
            }
        }
    }

    /// Whether a copy of a piece, or of a part of it, is known to be old.
    pub(crate) fn has_missed_copy(&self, layout: &Layout, piece: &Piece) -> bool {
        layout.copies(piece).iter().any(|place| self.doubt(piece, place) == Doubt::Missed)
    }

    /// Remembers a copy of a write that failed while the others are enough.
    pub(crate) fn add_missed(&self, slot: usize, offset: u64, bytes: u64) {
        if let Some(member) = self.members.get(slot) {
            member.missed.add(offset..offset.saturating_add(bytes));
        }
    }

    /// A device has what was written to it: it misses no earlier write of that range any more.
    pub(crate) fn remove_missed(&self, slot: usize, offset: u64, bytes: u64) {
        if let Some(member) = self.members.get(slot) {
            member.missed.remove(&(offset..offset.saturating_add(bytes)));
        }
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

fn physical_range(piece: &Piece, place: &Place) -> Range<u64> {
    let start = piece.physical(place).0;
    start..start.saturating_add(piece.bytes)
}
