//! Maps the bytes of a chunk to its stripes. Address arithmetic only: no devices, no I/O.
//!
//! A chunk consists of full stripes, each of [`STRIPE_BYTES`] (64 KiB) for every element. With `d`
//! data elements, byte `o` of the chunk is in full stripe `o / (64K d)`, element `(o / 64K) % d`.
//! `n` is the number of stripes of the chunk, `p` the number of parities. `raid1*` is one of raid1,
//! raid1c3 and raid1c4.
//!
//! ```text
//! single, dup, raid1*     d = 1         every stripe holds every byte, at offset `o`
//! raid0                   d = n         element e is on stripe e
//! raid10                  d = n / 2     element e is on stripes 2e and 2e + 1
//! raid5, raid6            d = n - p     element e of full stripe r is on stripe (r + e) % n; P and
//!                                       Q follow the data elements, so parity rotates by one
//!                                       stripe with each full stripe
//! ```
//!
//! Laws:
//! 1. A segment is within one element of one full stripe. Without striping (`d = 1`, no parity) it
//!    is bounded by the chunk only, so a large read stays one request.
//! 2. Every byte of a chunk is in exactly one segment, and no two segments share a physical byte of
//!    a stripe.
//! 3. Arithmetic is checked. A layout that could overflow is refused when it is made.

use crate::profile::ProfileAttributes;
use butternut_format::chunk::{BlockGroupFlags, Profile, STRIPE_BYTES};
use butternut_format::refused::{Refused, require};
use butternut_format::units::{DevId, Logical, Physical};

/// One stripe of a chunk: a contiguous range on one device, as `btrfs_io_stripe` in the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IoStripe {
    pub devid: DevId,
    /// The uuid of the device, from the chunk item.
    pub uuid: [u8; 16],
    pub physical: Physical,
    /// The index of the device in the volume; `None` if the device is missing.
    pub slot: Option<usize>,
    /// The device missed the newest transactions, so its mirrors are read last.
    pub is_stale: bool,
}

/// The mapping of one chunk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Layout {
    logical: Logical,
    bytes: u64,
    flags: BlockGroupFlags,
    attributes: &'static ProfileAttributes,
    stripes: Box<[IoStripe]>,
    /// Data elements in a full stripe, at least one.
    data_elements: usize,
}

/// A range of a chunk that is contiguous on each of its mirrors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segment {
    pub logical: Logical,
    pub bytes: u64,
    /// Its mirrors are on `copies` stripes, beginning with this one.
    pub first_mirror: usize,
    pub copies: usize,
    /// Where the segment begins in each of its stripes, in bytes.
    pub stripe_offset: u64,
    /// The stripe of the first data element of its full stripe, and which element the segment is
    /// in. The rotation is 0 without parity.
    pub rotation: usize,
    pub element: usize,
}

impl Layout {
    /// Maps a chunk.
    ///
    /// # Errors
    ///
    /// If the number of stripes does not fit the profile, or an address could overflow.
    pub fn new(
        logical: Logical,
        bytes: u64,
        flags: BlockGroupFlags,
        stripes: Vec<IoStripe>,
    ) -> Result<Self, Refused> {
        let profile = flags
            .profile()
            .ok_or_else(|| Refused::new("type", format_args!("{:#x}", flags.0), "one profile"))?;
        let attributes = ProfileAttributes::of(profile);
        let count = stripes.len();
        let data_elements = data_elements(attributes, count)?;
        require(bytes > 0, "length", bytes, "above zero")?;
        require(
            logical.checked_add(bytes).is_some(),
            "length",
            bytes,
            format_args!("at most {} after logical {logical}", u64::MAX - logical.0),
        )?;
        let layout = Self {
            logical,
            bytes,
            flags,
            attributes,
            stripes: stripes.into_boxed_slice(),
            data_elements,
        };
        let stripe_bytes = layout.stripe_bytes();
        for stripe in &layout.stripes {
            require(
                stripe.physical.0.checked_add(stripe_bytes).is_some(),
                "stripe offset",
                stripe.physical,
                format_args!("{stripe_bytes} bytes below the end of the address space"),
            )?;
        }
        Ok(layout)
    }

    pub fn logical(&self) -> Logical {
        self.logical
    }

    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Returns the address after the chunk.
    pub fn end(&self) -> u64 {
        self.logical.0.saturating_add(self.bytes)
    }

    /// Returns the chunk's `type` field: kind and profile bits.
    pub fn flags(&self) -> BlockGroupFlags {
        self.flags
    }

    pub fn attributes(&self) -> &'static ProfileAttributes {
        self.attributes
    }

    pub fn stripes(&self) -> &[IoStripe] {
        &self.stripes
    }

    /// Returns the number of data elements in a full stripe.
    pub fn data_elements(&self) -> usize {
        self.data_elements
    }

    /// Returns the bytes that the chunk occupies on each of its stripes.
    pub fn stripe_bytes(&self) -> u64 {
        if self.data_elements == 1 && self.attributes.parities == 0 {
            return self.bytes;
        }
        let full_stripes = self.bytes.div_ceil(self.full_stripe_data_bytes());
        full_stripes.saturating_mul(STRIPE_BYTES)
    }

    /// Returns the segment that begins at `logical`, at most `bytes_max` long; `None` outside the
    /// chunk.
    pub fn segment(&self, logical: Logical, bytes_max: u64) -> Option<Segment> {
        let offset = logical.0.checked_sub(self.logical.0)?;
        let left = self.bytes.checked_sub(offset).filter(|&left| left > 0)?.min(bytes_max);
        if self.data_elements == 1 && self.attributes.parities == 0 {
            let copies = self.stripes.len();
            return Some(Segment {
                logical,
                bytes: left,
                first_mirror: 0,
                copies,
                stripe_offset: offset,
                rotation: 0,
                element: 0,
            });
        }
        let (number, in_full_stripe) = div_rem(offset, self.full_stripe_data_bytes())?;
        let (element, in_element) = div_rem(in_full_stripe, STRIPE_BYTES)?;
        let element = usize::try_from(element).ok()?;
        let stripe_offset = number.checked_mul(STRIPE_BYTES)?.checked_add(in_element)?;
        let bytes = left.min(STRIPE_BYTES.checked_sub(in_element)?);
        let count = self.stripes.len();
        let (first_mirror, rotation) = if self.attributes.parities == 0 {
            (element.checked_mul(self.attributes.sub_stripes)?, 0)
        } else {
            let rotation = usize::try_from(number.checked_rem(u64::try_from(count).ok()?)?).ok()?;
            (rotation.checked_add(element)?.checked_rem(count)?, rotation)
        };
        let copies = self.attributes.sub_stripes;
        Some(Segment { logical, bytes, first_mirror, copies, stripe_offset, rotation, element })
    }

    /// Returns the segments of a range, in order, up to the end of the chunk.
    pub fn segments(&self, logical: Logical, bytes: u64) -> impl Iterator<Item = Segment> + '_ {
        let mut next = Some(logical);
        let end = logical.0.saturating_add(bytes);
        std::iter::from_fn(move || {
            let at = next?;
            let left = end.checked_sub(at.0).filter(|&left| left > 0)?;
            let segment = self.segment(at, left)?;
            next = at.checked_add(segment.bytes);
            Some(segment)
        })
    }

    /// Returns the stripes that hold a mirror of a segment.
    pub fn mirrors(&self, segment: &Segment) -> &[IoStripe] {
        let end = segment.first_mirror.saturating_add(segment.copies);
        self.stripes.get(segment.first_mirror..end).unwrap_or_default()
    }

    /// Returns the stripes of a segment's full stripe in order: data elements, then P, then Q.
    /// Empty without parity.
    pub fn full_stripe(&self, segment: &Segment) -> impl Iterator<Item = &IoStripe> + '_ {
        let count = if self.attributes.parities == 0 { 0 } else { self.stripes.len() };
        self.stripes.iter().cycle().skip(segment.rotation).take(count)
    }

    /// Returns whether every byte of the chunk can be read from the devices that are present.
    pub fn is_readable(&self) -> bool {
        let missing =
            |stripes: &[IoStripe]| stripes.iter().filter(|stripe| stripe.slot.is_none()).count();
        if self.attributes.parities > 0 {
            return missing(&self.stripes) <= self.attributes.parities;
        }
        let copies = if self.attributes.is_striped {
            self.attributes.sub_stripes
        } else {
            self.stripes.len()
        };
        self.stripes.chunks(copies.max(1)).all(|copies| missing(copies) < copies.len())
    }

    /// Returns whether the kernel would allow writes to this chunk with the devices that are
    /// present.
    pub fn is_writable(&self) -> bool {
        let missing = self.stripes.iter().filter(|stripe| stripe.slot.is_none()).count();
        missing <= self.attributes.failures_tolerated
    }

    /// Returns the data bytes of a full stripe.
    fn full_stripe_data_bytes(&self) -> u64 {
        u64::try_from(self.data_elements).unwrap_or(u64::MAX).saturating_mul(STRIPE_BYTES)
    }
}

impl Segment {
    /// Returns the address on the device where the segment begins in one of its stripes.
    pub fn physical(&self, stripe: &IoStripe) -> Physical {
        Physical(stripe.physical.0.saturating_add(self.stripe_offset))
    }

    /// Returns the part of the segment that begins at `offset` and is at most `bytes` long.
    #[must_use]
    pub fn part(&self, offset: u64, bytes: u64) -> Self {
        Self {
            logical: Logical(self.logical.0.saturating_add(offset)),
            stripe_offset: self.stripe_offset.saturating_add(offset),
            bytes: bytes.min(self.bytes.saturating_sub(offset)),
            ..*self
        }
    }
}

/// Returns the data elements of a full stripe, if the profile allows that number of stripes.
fn data_elements(attributes: &ProfileAttributes, count: usize) -> Result<usize, Refused> {
    let fits = |holds, want: &str| {
        require(holds, "num_stripes", count, format_args!("{want} for {}", attributes.name))
    };
    match attributes.profile {
        Profile::Single | Profile::Dup | Profile::Raid1 | Profile::Raid1c3 | Profile::Raid1c4 => {
            fits(count == attributes.copies, &attributes.copies.to_string())?;
            Ok(1)
        }
        Profile::Raid0 => {
            fits(count >= 1, "1 or more")?;
            Ok(count)
        }
        Profile::Raid10 => {
            fits(count >= 2 && count.is_multiple_of(2), "an even number from 2")?;
            Ok(count.div_euclid(2))
        }
        Profile::Raid5 | Profile::Raid6 => {
            let widest = butternut_sys::parity::ELEMENTS_MAX;
            let want = format!("{} to {widest}", attributes.devices_min);
            fits((attributes.devices_min..=widest).contains(&count), &want)?;
            Ok(count.saturating_sub(attributes.parities))
        }
    }
}

fn div_rem(value: u64, by: u64) -> Option<(u64, u64)> {
    Some((value.checked_div(by)?, value.checked_rem(by)?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::{HashMap, HashSet};

    const START: u64 = 1 << 30;

    fn layout(profile: Profile, count: usize, bytes: u64) -> Layout {
        let stripes = (0..count)
            .map(|i| IoStripe {
                devid: DevId(i as u64 + 1),
                uuid: [i as u8; 16],
                physical: Physical((i as u64 + 1) << 40),
                slot: Some(i),
                is_stale: false,
            })
            .collect();
        Layout::new(
            Logical(START),
            bytes,
            BlockGroupFlags(ProfileAttributes::of(profile).flag.0 | 1),
            stripes,
        )
        .unwrap()
    }

    fn counts(profile: Profile) -> Vec<usize> {
        let attributes = ProfileAttributes::of(profile);
        match (attributes.is_striped, profile) {
            (false, _) => vec![attributes.copies],
            (true, Profile::Raid10) => vec![2, 4, 6, 10],
            (true, _) => (attributes.devices_min..attributes.devices_min + 6).collect(),
        }
    }

    /// Law 2, by brute force: each 4 KiB of the chunk uses its own bytes on each stripe, and a full
    /// stripe contains the segment's own stripe.
    #[test]
    fn every_sector_has_its_own_bytes_on_every_stripe() {
        for profile in ProfileAttributes::all().iter().map(|attributes| attributes.profile) {
            for count in counts(profile) {
                let rows = 7;
                let bytes = rows * STRIPE_BYTES * count as u64;
                let layout = layout(profile, count, bytes);
                let mut used = HashSet::new();
                let mut at = 0;
                while at < bytes {
                    let segment = layout.segment(Logical(START + at), 4096).unwrap();
                    assert_eq!(segment.bytes, 4096);
                    let copies = layout.mirrors(&segment);
                    assert_eq!(copies.len(), layout.attributes().copies, "{profile:?} {count}");
                    for stripe in copies {
                        assert!(used.insert(segment.physical(stripe)), "{profile:?} {count} {at}");
                        assert!(segment.stripe_offset + 4096 <= layout.stripe_bytes());
                    }
                    let row: Vec<_> = layout.full_stripe(&segment).collect();
                    if layout.attributes().parities > 0 {
                        assert_eq!(row.len(), count);
                        assert_eq!(row[segment.element], &copies[0]);
                    }
                    at += 4096;
                }
            }
        }
    }

    /// Parity rotates over all stripes, and is never on a stripe of its data.
    #[test]
    fn parity_rotates_and_is_never_on_a_stripe_of_its_data() {
        for (profile, count) in [(Profile::Raid5, 4), (Profile::Raid6, 5), (Profile::Raid6, 3)] {
            let layout = layout(profile, count, STRIPE_BYTES * 60);
            let mut parity_on: HashMap<u64, HashSet<DevId>> = HashMap::new();
            let mut data_on: HashMap<u64, HashSet<DevId>> = HashMap::new();
            for segment in layout.segments(Logical(START), STRIPE_BYTES * 60) {
                let row = segment.stripe_offset / STRIPE_BYTES;
                let stripes: Vec<_> = layout.full_stripe(&segment).collect();
                let parity = stripes[layout.data_elements()..].iter().map(|stripe| stripe.devid);
                parity_on.entry(row).or_default().extend(parity);
                data_on.entry(row).or_default().insert(layout.mirrors(&segment)[0].devid);
            }
            let mut all: HashSet<DevId> = HashSet::new();
            for (row, parity) in &parity_on {
                assert_eq!(parity.len(), layout.attributes().parities);
                assert!(parity.is_disjoint(&data_on[row]));
                all.extend(parity);
            }
            assert_eq!(all.len(), count);
        }
    }

    proptest! {
        #[test]
        fn segments_tile_a_range_and_agree_with_single_sectors(
            which in 0_usize..9,
            width in 0_usize..4,
            start in 0_u64..3000,
            sectors in 1_u64..200,
        ) {
            let profile = ProfileAttributes::all()[which].profile;
            let counts = counts(profile);
            let count = counts[width % counts.len()];
            let layout = layout(profile, count, 16 << 20);
            let from = START + start * 4096;
            let wanted = (sectors * 4096).min(layout.end() - from);
            let mut at = from;
            for segment in layout.segments(Logical(from), sectors * 4096) {
                prop_assert_eq!(segment.logical, Logical(at));
                for offset in (0..segment.bytes).step_by(4096) {
                    let sector = layout.segment(Logical(at + offset), 4096).unwrap();
                    prop_assert_eq!(segment.part(offset, 4096), sector);
                }
                at += segment.bytes;
            }
            prop_assert_eq!(at, from + wanted);
        }

        #[test]
        fn no_address_makes_the_arithmetic_panic(
            logical in any::<u64>(), bytes in any::<u64>(), flags in any::<u64>(),
            physical in any::<u64>(), count in 0_usize..9, at in any::<u64>(), len in any::<u64>(),
        ) {
            let stripe = IoStripe {
                devid: DevId(1), uuid: [0; 16], physical: Physical(physical),
                slot: None, is_stale: false,
            };
            let flags = BlockGroupFlags(flags & 0x7ff);
            if let Ok(layout) = Layout::new(Logical(logical), bytes, flags, vec![stripe; count]) {
                for logical in [at, logical, layout.end().wrapping_sub(1)] {
                    if let Some(segment) = layout.segment(Logical(logical), len) {
                        for stripe in layout.mirrors(&segment) {
                            let start = segment.physical(stripe).0;
                            prop_assert!(start.checked_add(segment.bytes).is_some());
                        }
                    }
                }
            }
        }
    }

    #[test]
    fn a_contiguous_megabyte_is_one_segment() {
        for (profile, count) in
            [(Profile::Single, 1), (Profile::Dup, 2), (Profile::Raid0, 1), (Profile::Raid10, 2)]
        {
            let layout = layout(profile, count, 1 << 30);
            let segments: Vec<_> = layout.segments(Logical(START + 4096), 1 << 20).collect();
            assert_eq!(segments.len(), 1, "{profile:?}");
        }
    }

    #[test]
    fn readability_is_decided_for_each_group_of_mirrors() {
        let without = |profile, count, missing: &[usize]| {
            let mut layout = layout(profile, count, 1 << 24);
            for &index in missing {
                layout.stripes[index].slot = None;
            }
            (layout.is_readable(), layout.is_writable())
        };
        assert_eq!(without(Profile::Single, 1, &[0]), (false, false));
        assert_eq!(without(Profile::Dup, 2, &[0, 1]), (false, false));
        assert_eq!(without(Profile::Raid0, 3, &[1]), (false, false));
        assert_eq!(without(Profile::Raid1, 2, &[1]), (true, true));
        assert_eq!(without(Profile::Raid1, 2, &[0, 1]), (false, false));
        assert_eq!(without(Profile::Raid1c3, 3, &[0, 2]), (true, true));
        // One of each pair: every byte can be read, though more devices are lost than are
        // tolerated.
        assert_eq!(without(Profile::Raid10, 4, &[0, 3]), (true, false));
        assert_eq!(without(Profile::Raid10, 4, &[2, 3]), (false, false));
        assert_eq!(without(Profile::Raid5, 3, &[1]), (true, true));
        assert_eq!(without(Profile::Raid5, 3, &[0, 1]), (false, false));
        assert_eq!(without(Profile::Raid6, 4, &[0, 3]), (true, true));
        assert_eq!(without(Profile::Raid6, 4, &[0, 1, 3]), (false, false));
    }

    #[test]
    fn invalid_stripe_counts_are_refused() {
        for (profile, count) in [
            (Profile::Single, 2),
            (Profile::Raid1, 1),
            (Profile::Raid10, 3),
            (Profile::Raid5, 1),
            (Profile::Raid6, 2),
            (Profile::Raid0, 0),
        ] {
            let stripe = IoStripe {
                devid: DevId(1),
                uuid: [0; 16],
                physical: Physical(0),
                slot: None,
                is_stale: false,
            };
            let flags = ProfileAttributes::of(profile).flag;
            let refused =
                Layout::new(Logical(0), 65536, flags, vec![stripe; count]).expect_err("refused");
            assert_eq!(refused.field(), "num_stripes");
        }
    }
}
