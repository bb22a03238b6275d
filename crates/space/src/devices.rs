//! What of each device chunks lie on: the device extents, and the holes between them.
//!
//! Laws:
//! 1. Device extents do not overlap, and end inside the device.
//! 2. Nothing is placed below [`RESERVED_BYTES`], or on a superblock copy.
//! 3. The extents of a removed chunk are given back only when the commit that removed it is down.
//! 4. A seed is never written to: no chunk is placed on it, none of it is discarded, and its size
//!    does not count where the size of a chunk is decided.

use crate::error::SpaceError;
use crate::state::Space;
use butternut_format::chunk::STRIPE_BYTES;
use butternut_format::super_block::COPY_OFFSETS;
use butternut_format::units::{DevId, Logical};
use std::collections::BTreeMap;
use std::ops::Range;

/// The front of each device that chunks leave alone, in bytes.
pub(crate) const RESERVED_BYTES: u64 = 1 << 20;

/// A run of a device that a chunk lies on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceExtent {
    /// Physical bytes.
    pub range: Range<u64>,
    /// Where the chunk begins.
    pub chunk: Logical,
}

/// How full a device is with chunks.
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
    /// It is of a seed: nothing is placed there, and nothing discarded (law 4).
    pub(crate) is_seed: bool,
    /// By first byte: the byte behind, and the chunk, or none while the hole is being discarded.
    extents: BTreeMap<u64, (u64, Option<Logical>)>,
}

impl Space {
    /// Adds a device that chunks may be placed on, with what is on it.
    pub fn add_device(
        &self,
        devid: DevId,
        uuid: [u8; 16],
        bytes: u64,
        extents: Vec<DeviceExtent>,
    ) -> Result<(), SpaceError> {
        let mut map = DeviceMap { uuid, bytes, is_seed: false, extents: BTreeMap::new() };
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

    /// A device is of a seed: it stays as it is (law 4).
    pub fn set_seed(&self, devid: DevId) {
        if let Some(map) = self.lock().devices.by_devid.get_mut(&devid) {
            map.is_seed = true;
        }
    }

    /// Every device, with how much of it chunks take.
    pub fn devices(&self) -> Vec<DeviceUsage> {
        let state = self.lock();
        let usage = |(devid, map): (&DevId, &DeviceMap)| DeviceUsage {
            devid: *devid,
            bytes: map.bytes,
            bytes_used: map.bytes_used(),
        };
        state.devices.by_devid.iter().map(usage).collect()
    }

    /// Bytes that no chunk takes, of all devices but seeds.
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

    /// Law 1; `false` changes nothing.
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
        let is_it = self.extents.get(&range.start).is_some_and(|(end, _)| *end == range.end);
        is_it && self.extents.remove(&range.start).is_some()
    }

    /// Chunks with an extent that ends behind `bytes`.
    pub(crate) fn chunks_beyond(&self, bytes: u64) -> impl Iterator<Item = Logical> + '_ {
        self.extents.values().filter(move |(end, _)| *end > bytes).filter_map(|(_, chunk)| *chunk)
    }

    /// What is free, in order (law 2), in whole stripe units; nothing on a seed (law 4).
    pub(crate) fn holes(&self) -> Vec<Range<u64>> {
        if self.is_seed {
            return Vec::new();
        }
        let copies = COPY_OFFSETS.iter().map(|at| (*at, at.saturating_add(STRIPE_BYTES)));
        let extents = self.extents.iter().map(|(start, (end, _))| (*start, *end));
        let mut busy: Vec<(u64, u64)> = extents.chain(copies).collect();
        busy.push((0, RESERVED_BYTES));
        busy.push((self.bytes, u64::MAX));
        busy.sort_unstable();
        let mut holes = Vec::new();
        let mut at = 0;
        for (start, end) in busy {
            let from = u64::checked_next_multiple_of(at, STRIPE_BYTES);
            let to = start.min(self.bytes);
            let to = to.saturating_sub(to.checked_rem(STRIPE_BYTES).unwrap_or(0));
            if let Some(from) = from.filter(|&from| from < to) {
                holes.push(from..to);
            }
            at = at.max(end);
        }
        holes
    }
}
