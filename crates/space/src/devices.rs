//! The device extents of chunks, and the holes between them, on each device.
//!
//! Laws:
//! 1. Device extents do not overlap, and end inside the device.
//! 2. No chunk is placed below [`RESERVED_BYTES`] or over a superblock copy.
//! 3. The extents of a removed chunk stay allocated until the commit that removed it is complete.
//! 4. A seed device is never written to: no chunk is placed on it, none of it is discarded, and its
//!    size does not count when the size of a new chunk is computed.
//! 5. While a device is being resized ([`crate::NextEnd`]), no chunk is placed behind the end that
//!    it will have, and its size counts as that where it is smaller; except for a chunk that a
//!    commit needs, and that finds no space before that end.

use crate::error::SpaceError;
use crate::state::Space;
use butternut_format::chunk::STRIPE_BYTES;
use butternut_format::super_block::COPY_OFFSETS;
use butternut_format::units::{DevId, Logical};
use std::collections::BTreeMap;
use std::ops::Range;

/// The bytes at the front of each device that no chunk uses.
pub(crate) const RESERVED_BYTES: u64 = 1 << 20;

/// A range of a device that belongs to a chunk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceExtent {
    /// Physical bytes.
    pub range: Range<u64>,
    /// The logical address of the chunk.
    pub chunk: Logical,
}

/// How much of a device chunks use, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceUsage {
    pub devid: DevId,
    pub bytes: u64,
    /// `bytes_used` of its device item.
    pub bytes_used: u64,
}

#[derive(Debug, Default)]
pub(crate) struct Devices {
    pub(crate) by_devid: BTreeMap<DevId, DeviceMap>,
}

#[derive(Debug)]
pub(crate) struct DeviceMap {
    pub(crate) uuid: [u8; 16],
    pub(crate) bytes: u64,
    /// The ends that resizes in progress will give the device, in bytes (law 5).
    pub(crate) next_ends: Vec<u64>,
    /// Whether the device is a seed (law 4).
    pub(crate) is_seed: bool,
    /// By first byte: the end, and the chunk; `None` for a hole that is being discarded.
    extents: BTreeMap<u64, (u64, Option<Logical>)>,
}

impl Space {
    /// Adds a device with its device extents.
    ///
    /// # Errors
    /// Extents overlap, or one ends behind the device.
    pub fn add_device(
        &self,
        devid: DevId,
        uuid: [u8; 16],
        bytes: u64,
        extents: Vec<DeviceExtent>,
    ) -> Result<(), SpaceError> {
        let mut map = DeviceMap {
            uuid,
            bytes,
            next_ends: Vec::new(),
            is_seed: false,
            extents: BTreeMap::new(),
        };
        for extent in extents {
            let good = extent.range.end <= bytes && map.insert(&extent.range, Some(extent.chunk));
            if !good {
                return Err(SpaceError::DeviceExtent {
                    devid: devid.0,
                    start: extent.range.start,
                    bytes: extent.range.end.saturating_sub(extent.range.start),
                });
            }
        }
        self.lock().devices.by_devid.insert(devid, map);
        Ok(())
    }

    /// Marks a device as a seed (law 4).
    pub fn set_seed(&self, devid: DevId) {
        if let Some(map) = self.lock().devices.by_devid.get_mut(&devid) {
            map.is_seed = true;
        }
    }

    /// Returns the usage of every device.
    pub fn devices(&self) -> Vec<DeviceUsage> {
        let state = self.lock();
        let usage = |(devid, map): (&DevId, &DeviceMap)| DeviceUsage {
            devid: *devid,
            bytes: map.bytes,
            bytes_used: map.bytes_used(),
        };
        state.devices.by_devid.iter().map(usage).collect()
    }

    /// Returns the bytes that no chunk uses, on all devices but seeds.
    pub fn unallocated_bytes(&self) -> u64 {
        let state = self.lock();
        let own = state.devices.by_devid.values().filter(|map| !map.is_seed);
        let left = own.map(|map| map.bytes.saturating_sub(map.bytes_used()));
        left.fold(0, u64::saturating_add)
    }
}

impl DeviceMap {
    pub(crate) fn bytes_used(&self) -> u64 {
        let of_chunks = self.extents.iter().filter(|(_, (_, chunk))| chunk.is_some());
        of_chunks.map(|(start, (end, _))| end.saturating_sub(*start)).sum()
    }

    /// Returns the end of the device for new chunks, in bytes (law 5).
    pub(crate) fn end(&self) -> u64 {
        self.next_ends.iter().copied().fold(self.bytes, u64::min)
    }

    /// Whether chunks may use a range (laws 2, 4 and 5), which ends inside the device (law 1).
    pub(crate) fn may_have(&self, range: &Range<u64>) -> bool {
        let is_on_copy = COPY_OFFSETS
            .iter()
            .any(|&at| at < range.end && at.saturating_add(STRIPE_BYTES) > range.start);
        !self.is_seed && range.start >= RESERVED_BYTES && range.end <= self.end() && !is_on_copy
    }

    /// Adds an extent. Returns `false` and changes nothing if it would break law 1.
    #[must_use]
    pub(crate) fn insert(&mut self, range: &Range<u64>, chunk: Option<Logical>) -> bool {
        let before = self.extents.range(..range.end).next_back();
        let overlaps = before.is_some_and(|(_, (end, _))| *end > range.start);
        if overlaps || range.start >= range.end {
            return false;
        }
        self.extents.insert(range.start, (range.end, chunk));
        true
    }

    pub(crate) fn remove(&mut self, range: &Range<u64>) -> bool {
        let is_known = self.extents.get(&range.start).is_some_and(|(end, _)| *end == range.end);
        is_known && self.extents.remove(&range.start).is_some()
    }

    /// Returns the chunks with an extent that ends behind `bytes`.
    pub(crate) fn chunks_beyond(&self, bytes: u64) -> impl Iterator<Item = Logical> + '_ {
        self.extents.values().filter(move |(end, _)| *end > bytes).filter_map(|(_, chunk)| *chunk)
    }

    /// Whether a hole that ends behind `bytes` is reserved to be discarded.
    pub(crate) fn is_discarding_beyond(&self, bytes: u64) -> bool {
        self.extents.values().any(|(end, chunk)| *end > bytes && chunk.is_none())
    }

    /// Returns the holes in ascending order, in whole stripe units (laws 2 and 5); none on a seed
    /// (law 4).
    pub(crate) fn holes(&self) -> Vec<Range<u64>> {
        if self.is_seed {
            return Vec::new();
        }
        let copies = COPY_OFFSETS.iter().map(|at| (*at, at.saturating_add(STRIPE_BYTES)));
        let extents = self.extents.iter().map(|(start, (end, _))| (*start, *end));
        let mut busy: Vec<(u64, u64)> = extents.chain(copies).collect();
        busy.push((0, RESERVED_BYTES));
        let device_end = self.end();
        busy.push((device_end, u64::MAX));
        busy.sort_unstable();
        let mut holes = Vec::new();
        let mut at = 0;
        for (start, end) in busy {
            let from = u64::checked_next_multiple_of(at, STRIPE_BYTES);
            let to = start.min(device_end);
            let to = to.saturating_sub(to.checked_rem(STRIPE_BYTES).unwrap_or(0));
            if let Some(from) = from.filter(|&from| from < to) {
                holes.push(from..to);
            }
            at = at.max(end);
        }
        holes
    }
}
