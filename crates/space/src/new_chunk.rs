//! Placing a chunk: how large, on which devices, where on them, and at which address.
//!
//! Sizes follow the kernel's: a stripe is at most a gibibyte, a data chunk at most ten, a metadata
//! chunk 256 MiB (1 GiB on volumes above 50 GiB), a system chunk 32 MiB, and none more than a tenth
//! of the devices; less where no hole is so large.
//!
//! Laws:
//! 1. A plan holds its place on the devices and its address until it is cancelled, or its chunk
//!    removed: no two plans overlap.
//! 2. Addresses are not used again while the volume is open.

use crate::class::Class;
use crate::devices::{DeviceMap, Devices};
use crate::state::{Space, State};
use butternut_format::chunk::{BlockGroupFlags, Chunk, STRIPE_BYTES, Stripe};
use butternut_format::units::{DevId, Logical, Physical, length};
use butternut_volume::Facts;
use std::ops::Range;

/// The longest stripe: also the longest metadata chunk of a large volume.
const STRIPE_BYTES_MAX: u64 = 1 << 30;
const DATA_BYTES_MAX: u64 = 10 << 30;
const METADATA_BYTES_MAX: u64 = 256 << 20;
const SYSTEM_BYTES_MAX: u64 = 32 << 20;

/// From so much on a volume is large.
const LARGE_BYTES: u64 = 50 << 30;

/// The granule of a chunk that is shorter than its stripes could be.
const STRIPE_GRANULE: u64 = 16 << 20;

/// Shorter stripes are not worth a chunk.
const STRIPE_BYTES_MIN: u64 = 1 << 20;

/// Devices that a striped chunk spreads over at most: an item must fit into a node of 4 KiB.
const DEVICES_MAX: usize = 32;

/// Where a chunk will be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChunkPlan {
    /// The chunk as its item says it.
    pub chunk: Chunk,
    /// The length of each of its device extents.
    pub stripe_bytes: u64,
}

/// The longest hole of a device, as far as it is useful.
struct Hole {
    devid: DevId,
    uuid: [u8; 16],
    range: Range<u64>,
}

impl Space {
    /// Places a chunk of at least `bytes_min`. `flags` names the profile; the class's own flag is
    /// added, on a mixed volume data and metadata both.
    pub fn plan_chunk(
        &self,
        class: Class,
        flags: BlockGroupFlags,
        bytes_min: u64,
    ) -> Option<ChunkPlan> {
        let mut state = self.lock();
        let plan = state.plan(class, flags, bytes_min)?;
        for stripe in &plan.chunk.stripes {
            let range = stripe.offset.0..stripe.offset.0.checked_add(plan.stripe_bytes)?;
            let map = state.devices.by_devid.get_mut(&stripe.devid)?;
            let is_placed = map.insert(&range, Some(plan.chunk.logical));
            debug_assert!(is_placed, "law 1");
        }
        state.logical_end = plan.chunk.end().0;
        Some(plan)
    }

    /// Gives back the place of a chunk on the devices: a plan that came to nothing, or a chunk that
    /// was removed by a transaction that is down.
    pub fn release_chunk(&self, chunk: &Chunk, stripe_bytes: u64) {
        self.release_places(&chunk.stripes, stripe_bytes);
    }

    /// As [`Space::release_chunk`], given only where the chunk lay.
    pub fn release_places(&self, stripes: &[Stripe], stripe_bytes: u64) {
        let mut state = self.lock();
        for stripe in stripes {
            let range = stripe.offset.0..stripe.offset.0.saturating_add(stripe_bytes);
            if let Some(map) = state.devices.by_devid.get_mut(&stripe.devid) {
                map.remove(&range);
            }
        }
    }
}

impl State {
    /// Whether another chunk of a class could be placed, of the profile of its last.
    pub(crate) fn could_grow(&self, class: Class) -> bool {
        let flags = self.pool_ref(class).flags.unwrap_or_default();
        self.plan(class, flags, 0).is_some()
    }

    fn plan(&self, class: Class, flags: BlockGroupFlags, bytes_min: u64) -> Option<ChunkPlan> {
        let class = self.pool_class(class);
        let profile = flags.profile()?;
        let facts = Facts::of(profile);
        let own = self.devices.by_devid.values().filter(|map| !map.is_seed);
        let total: u64 = own.map(|map| map.bytes).sum();
        let (chunk_max, stripe_max) = limits(class, total);
        let per_device = length(facts.stripes_per_device);
        let mut holes = holes(&self.devices, stripe_max.checked_mul(per_device)?);
        holes.retain(|hole| length_of(&hole.range) >= STRIPE_BYTES_MIN.saturating_mul(per_device));
        let used = devices_used(facts, holes.len())?;
        holes.truncate(used);
        let shortest = holes.iter().map(|hole| length_of(&hole.range)).min()?;
        let stripes = used.checked_mul(facts.stripes_per_device)?;
        let data = length(stripes.checked_sub(facts.parities)?.checked_div(facts.copies)?);
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
            flags: BlockGroupFlags(facts.flag.0 | kinds),
            profile,
            sub_stripes: u16::try_from(facts.sub_stripes).ok()?,
            stripes: holes.iter().flat_map(places).collect(),
        };
        chunk.logical.checked_add(bytes)?;
        Some(ChunkPlan { chunk, stripe_bytes: stripe })
    }
}

/// The longest chunk, and the longest stripe, of a class.
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

/// How long each stripe is: as the shortest hole allows, or as the chunk needs.
fn stripe_bytes(hole: u64, chunk_max: u64, data: u64) -> Option<u64> {
    let mut stripe = hole;
    if stripe.checked_mul(data)? > chunk_max {
        let share = chunk_max.div_ceil(data.max(1));
        stripe = share.checked_next_multiple_of(STRIPE_GRANULE)?.min(stripe);
    }
    Some(stripe.saturating_sub(stripe.checked_rem(STRIPE_BYTES)?))
}

/// How many of the devices with room a profile uses; `None` if they are too few.
fn devices_used(facts: &Facts, there: usize) -> Option<usize> {
    let most = if facts.is_striped {
        there.min(DEVICES_MAX)
    } else {
        facts.copies.checked_div(facts.stripes_per_device)?
    };
    let used = most.checked_div(facts.sub_stripes)?.checked_mul(facts.sub_stripes)?;
    (used >= facts.devices_min.max(1) && used <= there).then_some(used)
}

/// On each device the first hole of the length that is useful, or its longest; those with most
/// room first.
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
