//! Which failures a volume tolerates: writes, flushes and superblocks that one of several mirrors
//! missed.
//!
//! ```text
//! write    a mirror fails -> counted and reported; succeeds while the profile tolerates it
//! flush    a device fails -> succeeds if every chunk is complete without that device
//! super    a device fails -> it keeps its old superblock, and is stale when it is next opened
//! read     mirrors that may be stale are read last; mirrors that are known to be stale are
//!          read only with a checksum
//! ```
//!
//! Laws:
//! 1. A write may fail on as many mirrors as the profile tolerates failed devices. The two mirrors
//!    of DUP are on one device: a tree block may miss one of them, because a reader can tell which
//!    one is current; data may not.
//! 2. A device that is stale, or has failed a write or a flush since the volume was opened, does
//!    not count as a mirror when another device fails a flush or a superblock: the bytes that it
//!    missed may then be on no device.
//! 3. A chunk that tolerates no failed device must not have a stripe on a device that fails a flush
//!    or a superblock.
//! 4. A device with failed writes or flushes on record (of this session, or in its `DEV_STATS`
//!    item) may hold old bytes. Its mirrors are read after those of other devices, in the order of
//!    [`Staleness`]. A mirror that may be stale is read without a checksum only if no mirror of
//!    less staleness is on a present device. A range whose write failed on a device in this session
//!    is never read from it without a checksum.
//! 5. Every tolerated failure is counted on its device before the call returns, so the caller can
//!    record it ([`Volume::unrecorded_stats`]) before it reports success.

use crate::device_events::{DeviceEvent, DeviceEventKind};
use crate::members::{ErrorCounts, Member};
use crate::stripe::{IoStripe, Layout, Segment};
use crate::volume::Volume;
use butternut_format::units::{DevId, Logical};
use std::ops::Range;
use std::time::Instant;

/// The contents of a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Content {
    Data,
    /// Tree blocks, which contain their own checksum, address and generation.
    Blocks,
}

/// How likely a mirror of a range is stale, in rising order (law 4).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Staleness {
    /// The device has failed no write and no flush on record.
    Current,
    /// Only writes of other ranges have failed on the device, all of them in this session.
    OtherRanges,
    /// Writes or flushes have failed on the device, of unknown ranges.
    Possible,
    /// The superblock of the device is older than that of others.
    OldDevice,
    /// A write of this range has failed on the device in this session.
    Known,
}

/// Returns how many mirrors of a write may fail (law 1).
pub(crate) fn failures_allowed(layout: &Layout, content: Content) -> usize {
    let attributes = layout.attributes();
    match content {
        Content::Data => attributes.failures_tolerated.min(attributes.copies.saturating_sub(1)),
        Content::Blocks => attributes.copies.saturating_sub(1),
    }
}

impl Volume {
    /// Takes the tolerated failures that are due for a report at `now`.
    pub fn take_device_events(&self, now: Instant) -> Vec<DeviceEvent> {
        let members = self.members.iter();
        members
            .flat_map(|member| member.events.take(member.item().devid, member.device.name(), now))
            .collect()
    }

    /// Records a tolerated failure of the device in `slot`.
    pub(crate) fn record_event(
        &self,
        slot: Option<usize>,
        kind: DeviceEventKind,
        logical: Option<Logical>,
        error: impl FnOnce() -> String,
    ) {
        if let Some(member) = slot.and_then(|slot| self.members.get(slot)) {
            member.events.note(kind, logical, error);
        }
    }

    /// Returns whether the volume is complete without the devices of these slots (laws 2 and 3).
    pub(crate) fn tolerates(&self, lost: &[usize]) -> bool {
        let is_lost = |stripe: &&IoStripe| stripe.slot.is_none_or(|slot| lost.contains(&slot));
        let is_failed = |stripe: &&IoStripe| {
            let member = stripe.slot.and_then(|slot| self.members.get(slot));
            is_lost(stripe) || member.is_none_or(Member::has_failed)
        };
        let mut own = self.members.iter().enumerate().filter(|(_, member)| !member.is_seed);
        let is_one_left = own.any(|(slot, _)| !lost.contains(&slot));
        is_one_left
            && self.chunks.load().iter().all(|chunk| {
                let (stripes, tolerated) = (chunk.stripes(), chunk.attributes().failures_tolerated);
                if !stripes.iter().any(|stripe| is_lost(&stripe)) {
                    return true;
                }
                tolerated > 0 && stripes.iter().filter(is_failed).count() <= tolerated
            })
    }

    /// Returns how likely one mirror of a segment is stale (law 4).
    pub(crate) fn staleness(&self, segment: &Segment, stripe: &IoStripe) -> Staleness {
        let member = stripe.slot.and_then(|slot| self.members.get(slot));
        let Some(member) = member.filter(|member| member.errors.has_failed_writes()) else {
            return if stripe.is_stale { Staleness::OldDevice } else { Staleness::Current };
        };
        if member.stale_ranges.overlaps(&physical_range(segment, stripe)) {
            Staleness::Known
        } else if stripe.is_stale {
            Staleness::OldDevice
        } else if member.errors.has_unknown_stale_ranges() || member.stale_ranges.is_incomplete() {
            Staleness::Possible
        } else {
            Staleness::OtherRanges
        }
    }

    /// Returns whether a mirror of a segment must not be read without a checksum (law 4).
    pub(crate) fn needs_checksum(&self, layout: &Layout, segment: &Segment, copy: usize) -> bool {
        let mirrors = layout.mirrors(segment);
        let Some(stripe) = mirrors.get(copy) else { return false };
        match self.staleness(segment, stripe) {
            // The device has acknowledged every write of this range, like the other mirrors.
            Staleness::Current | Staleness::OtherRanges => false,
            Staleness::Known => true,
            own @ (Staleness::Possible | Staleness::OldDevice) => mirrors
                .iter()
                .any(|other| other.slot.is_some() && self.staleness(segment, other) < own),
        }
    }

    /// Returns whether a mirror of a segment, or of a part of it, is known to be stale.
    pub(crate) fn has_stale_mirror(&self, layout: &Layout, segment: &Segment) -> bool {
        layout
            .mirrors(segment)
            .iter()
            .any(|stripe| self.staleness(segment, stripe) == Staleness::Known)
    }

    /// Records a range whose write failed on one device and was tolerated.
    pub(crate) fn add_stale_range(&self, slot: usize, offset: u64, bytes: u64) {
        if let Some(member) = self.members.get(slot) {
            member.stale_ranges.add(offset..offset.saturating_add(bytes));
        }
    }

    /// Records a range whose write succeeded, so that the device is current there.
    pub(crate) fn remove_stale_range(&self, slot: usize, offset: u64, bytes: u64) {
        if let Some(member) = self.members.get(slot) {
            member.stale_ranges.remove(&(offset..offset.saturating_add(bytes)));
        }
    }

    /// Adds the counts that the volume has on record for a device. Called once for each device,
    /// when the volume is opened.
    pub fn add_recorded_stats(&self, devid: DevId, counts: &ErrorCounts) {
        if let Some(member) = self.own_member(devid) {
            member.errors.add_recorded(counts);
        }
    }

    /// Returns the devices whose counts differ from those on record, with the current counts.
    pub fn unrecorded_stats(&self) -> Vec<(DevId, ErrorCounts)> {
        let own = self.members.iter().filter(|member| !member.is_seed);
        let differing = own.filter(|member| member.errors.now() != member.errors.recorded());
        differing.map(|member| (member.item().devid, member.errors.now())).collect()
    }

    /// Returns the counts of [`Volume::unrecorded_stats`] for a commit, which puts them on record
    /// before it writes its superblock (law 6 of [`crate::barrier`]).
    pub fn stats_for_commit(&self) -> Vec<(DevId, ErrorCounts)> {
        let own = self.members.iter().filter(|member| !member.is_seed);
        let differing = own.filter_map(|member| {
            let counts = member.errors.for_commit();
            (counts != member.errors.recorded()).then(|| (member.item().devid, counts))
        });
        differing.collect()
    }

    /// Returns whether a device has failed a write or a flush since its counts were recorded.
    pub fn has_unrecorded_write_errors(&self) -> bool {
        self.members.iter().filter(|member| !member.is_seed).any(|member| {
            let (now, recorded) = (member.errors.now(), member.errors.recorded());
            (now.write_errors, now.flush_errors) != (recorded.write_errors, recorded.flush_errors)
        })
    }

    /// Returns whether a device without failures on record has failed a write or a flush.
    pub fn has_newly_failed_device(&self) -> bool {
        let own = self.members.iter().filter(|member| !member.is_seed);
        own.filter(|member| !member.errors.recorded().has_failed_writes())
            .any(|member| member.errors.has_failed_writes())
    }

    /// Notes that these counts are on record now.
    pub fn set_recorded_stats(&self, devid: DevId, counts: &ErrorCounts) {
        if let Some(member) = self.own_member(devid) {
            member.errors.set_recorded(counts);
        }
    }

    fn own_member(&self, devid: DevId) -> Option<&Member> {
        self.members.iter().find(|member| !member.is_seed && member.item().devid == devid)
    }
}

fn physical_range(segment: &Segment, stripe: &IoStripe) -> Range<u64> {
    let start = segment.physical(stripe).0;
    start..start.saturating_add(segment.bytes)
}
