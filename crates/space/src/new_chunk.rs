//! Planning a chunk: its size, its devices, its device extents and its logical address.
//!
//! The sizes are those of the kernel: a stripe has at most 1 GiB, a data chunk at most 10 GiB, a
//! metadata chunk 256 MiB (1 GiB on volumes above 50 GiB), a system chunk 32 MiB. A chunk has at
//! most a tenth of the bytes of all devices. Where the limit of the chunk shortens its stripes,
//! they are rounded up to 16 MiB. A chunk is smaller where no hole is that long.
//!
//! Laws:
//! 1. A plan reserves its device extents and its address until it is cancelled or its chunk is
//!    removed: no two plans overlap.
//! 2. A logical address is not used again while the volume is open.

use crate::class::Class;
use crate::devices::{DeviceMap, Devices};
use crate::state::{Space, State};
use butternut_format::chunk::{BlockGroupFlags, Chunk, STRIPE_BYTES, Stripe};
use butternut_format::units::{DevId, Logical, Physical, length};
use butternut_volume::ProfileAttributes;
use std::ops::Range;

/// The longest stripe; also the longest metadata chunk of a large volume.
const STRIPE_BYTES_MAX: u64 = 1 << 30;
const DATA_BYTES_MAX: u64 = 10 << 30;
const METADATA_BYTES_MAX: u64 = 256 << 20;
const SYSTEM_BYTES_MAX: u64 = 32 << 20;

/// Volumes above this size are large.
const LARGE_BYTES: u64 = 50 << 30;

/// Stripes that are shorter than their holes are multiples of this length.
const STRIPE_GRANULE: u64 = 16 << 20;

/// No chunk is made of shorter stripes.
const STRIPE_BYTES_MIN: u64 = 1 << 20;

/// The most devices of a striped chunk: its item must fit into a leaf of 4 KiB.
const DEVICES_MAX: usize = 32;

/// A planned chunk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChunkPlan {
    /// The contents of the chunk item.
    pub chunk: Chunk,
    /// The length of each of its device extents, in bytes.
    pub stripe_bytes: u64,
}

/// The hole of a device that a stripe may use.
struct Hole {
    devid: DevId,
    uuid: [u8; 16],
    range: Range<u64>,
}

impl Space {
    /// Plans a chunk of at least `bytes_min` bytes, and reserves its device extents; `None` if the
    /// devices lack the space. `flags` names the profile. The plan gets the flag of the class, or
    /// on a mixed volume those of data and metadata.
    pub fn plan_chunk(
        &self,
        class: Class,
        flags: BlockGroupFlags,
        bytes_min: u64,
    ) -> Option<ChunkPlan> {
        self.lock().reserve_plan(class, flags, bytes_min)
    }

    /// Plans a chunk like [`Space::plan_chunk`], also behind the ends that resizes in progress will
    /// give devices. Such a resize fails then ([`Space::resize_device`]).
    pub fn plan_chunk_beyond_next_ends(
        &self,
        class: Class,
        flags: BlockGroupFlags,
    ) -> Option<ChunkPlan> {
        let mut state = self.lock();
        let maps = state.devices.by_devid.values_mut();
        let next_ends: Vec<_> = maps.map(|map| std::mem::take(&mut map.next_ends)).collect();
        let plan = state.reserve_plan(class, flags, 0);
        for (map, next_ends) in state.devices.by_devid.values_mut().zip(next_ends) {
            map.next_ends = next_ends;
        }
        plan
    }

    /// Frees the device extents of a chunk: of a plan that was cancelled, or of a chunk that a
    /// committed transaction removed.
    pub fn release_chunk(&self, chunk: &Chunk, stripe_bytes: u64) {
        self.release_stripes(&chunk.stripes, stripe_bytes);
    }

    /// Frees the device extents like [`Space::release_chunk`], given only the stripes of the chunk.
    pub fn release_stripes(&self, stripes: &[Stripe], stripe_bytes: u64) {
        let mut state = self.lock();
        for stripe in stripes {
            state.devices.release(stripe, stripe_bytes);
        }
    }
}

impl Devices {
    /// Reserves the device extent of a stripe. Returns `false` if it overlaps another (law 1).
    ///
    /// # Panics
    /// The stripe breaks law 2 or 4 of [`crate::devices`]: it would be written over a superblock,
    /// past the device, or on a seed.
    fn reserve(&mut self, stripe: &Stripe, plan: &ChunkPlan) -> bool {
        let end = stripe.offset.0.checked_add(plan.stripe_bytes);
        let Some((map, end)) = self.by_devid.get_mut(&stripe.devid).zip(end) else { return false };
        let range = stripe.offset.0..end;
        assert!(
            map.may_have(&range),
            "a chunk is placed at {range:?} of device {:?}",
            stripe.devid
        );
        map.insert(&range, Some(plan.chunk.logical))
    }

    fn release(&mut self, stripe: &Stripe, stripe_bytes: u64) {
        let range = stripe.offset.0..stripe.offset.0.saturating_add(stripe_bytes);
        if let Some(map) = self.by_devid.get_mut(&stripe.devid) {
            map.remove(&range);
        }
    }
}

impl State {
    /// Whether the devices have space for another chunk of a class, with the profile of the next
    /// one.
    pub(crate) fn can_add_chunk(&self, class: Class) -> bool {
        self.plan(class, self.next_chunk_flags(class), 0).is_some()
    }

    /// Plans a chunk, and reserves its device extents.
    fn reserve_plan(
        &mut self,
        class: Class,
        flags: BlockGroupFlags,
        bytes_min: u64,
    ) -> Option<ChunkPlan> {
        let plan = self.plan(class, flags, bytes_min)?;
        for (index, stripe) in plan.chunk.stripes.iter().enumerate() {
            if !self.devices.reserve(stripe, &plan) {
                debug_assert!(false, "law 1");
                for placed in plan.chunk.stripes.iter().take(index) {
                    self.devices.release(placed, plan.stripe_bytes);
                }
                return None;
            }
        }
        self.logical_end = plan.chunk.end().0;
        Some(plan)
    }

    fn plan(&self, class: Class, flags: BlockGroupFlags, bytes_min: u64) -> Option<ChunkPlan> {
        let class = self.pool_class(class);
        let profile = flags.profile()?;
        let attributes = ProfileAttributes::of(profile);
        let own = self.devices.by_devid.values().filter(|map| !map.is_seed);
        let total: u64 = own.map(DeviceMap::end).sum();
        let (chunk_max, stripe_max) = limits(class, total);
        let per_device = length(attributes.stripes_per_device);
        let mut holes = holes(&self.devices, stripe_max.checked_mul(per_device)?);
        holes.retain(|hole| length_of(&hole.range) >= STRIPE_BYTES_MIN.saturating_mul(per_device));
        let used = devices_used(attributes, holes.len())?;
        holes.truncate(used);
        let shortest = holes.iter().map(|hole| length_of(&hole.range)).min()?;
        let stripes = used.checked_mul(attributes.stripes_per_device)?;
        let data =
            length(stripes.checked_sub(attributes.parities)?.checked_div(attributes.copies)?);
        let stripe = stripe_bytes(shortest.checked_div(per_device)?, chunk_max, data)?;
        let bytes = stripe.checked_mul(data).filter(|&bytes| bytes > 0 && bytes >= bytes_min)?;
        let kinds = if self.options.is_mixed && class != Class::System {
            BlockGroupFlags::DATA.0 | BlockGroupFlags::METADATA.0
        } else {
            class.flag().0
        };
        let place = |hole: &Hole, nth: u64| Stripe {
            devid: hole.devid,
            offset: Physical(hole.range.start.saturating_add(nth.saturating_mul(stripe))),
            dev_uuid: hole.uuid,
        };
        let places = |hole| (0..per_device).map(move |nth| place(hole, nth));
        let chunk = Chunk {
            logical: Logical(self.logical_end.checked_next_multiple_of(STRIPE_BYTES)?),
            bytes,
            flags: BlockGroupFlags(attributes.flag.0 | kinds),
            profile,
            sub_stripes: u16::try_from(attributes.sub_stripes).ok()?,
            stripes: holes.iter().flat_map(places).collect(),
        };
        chunk.logical.checked_add(bytes)?;
        Some(ChunkPlan { chunk, stripe_bytes: stripe })
    }
}

/// Returns the longest chunk and the longest stripe of a class, in bytes.
fn limits(class: Class, total: u64) -> (u64, u64) {
    let most = match class {
        Class::Data => DATA_BYTES_MAX,
        Class::Metadata if total > LARGE_BYTES => STRIPE_BYTES_MAX,
        Class::Metadata => METADATA_BYTES_MAX,
        Class::System => SYSTEM_BYTES_MAX,
    };
    let tenth = total.div_euclid(10);
    (most.min(tenth).max(STRIPE_BYTES_MIN), most.min(STRIPE_BYTES_MAX))
}

/// Returns the length of each stripe: what the shortest hole allows, or less if the chunk would
/// exceed its limit.
fn stripe_bytes(hole: u64, chunk_max: u64, data: u64) -> Option<u64> {
    let mut stripe = hole;
    if stripe.checked_mul(data)? > chunk_max {
        let share = chunk_max.div_ceil(data.max(1));
        stripe = share.checked_next_multiple_of(STRIPE_GRANULE)?.min(stripe);
    }
    Some(stripe.saturating_sub(stripe.checked_rem(STRIPE_BYTES)?))
}

/// Returns how many of `available` devices a profile uses; `None` if they are too few.
fn devices_used(attributes: &ProfileAttributes, available: usize) -> Option<usize> {
    let most = if attributes.is_striped {
        available.min(DEVICES_MAX)
    } else {
        attributes.copies.checked_div(attributes.stripes_per_device)?
    };
    let used = most.checked_div(attributes.sub_stripes)?.checked_mul(attributes.sub_stripes)?;
    (used >= attributes.devices_min.max(1) && used <= available).then_some(used)
}

/// Returns for each device the first hole of at least `useful` bytes, or else its longest one,
/// sorted by falling length.
fn holes(devices: &Devices, useful: u64) -> Vec<Hole> {
    let best = |map: &DeviceMap| {
        let mut best: Option<Range<u64>> = None;
        for hole in map.holes() {
            if best.as_ref().is_none_or(|best| length_of(best) < length_of(&hole)) {
                best = Some(hole);
            }
            if best.as_ref().is_some_and(|best| length_of(best) >= useful) {
                break;
            }
        }
        let best = best?;
        Some(best.start..best.end.min(best.start.saturating_add(useful)))
    };
    let hole = |(devid, map): (&DevId, &DeviceMap)| {
        Some(Hole { devid: *devid, uuid: map.uuid, range: best(map)? })
    };
    let mut holes: Vec<Hole> = devices.by_devid.iter().filter_map(hole).collect();
    holes.sort_by_key(|hole| std::cmp::Reverse(length_of(&hole.range)));
    holes
}

fn length_of(range: &Range<u64>) -> u64 {
    range.end.saturating_sub(range.start)
}
