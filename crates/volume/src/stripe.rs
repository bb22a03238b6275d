//! Where a chunk's bytes lie on its devices: address arithmetic only, no devices, no I/O.
//!
//! A chunk is cut into rows of [`STRIPE_BYTES`] per element. With `d` data elements in a row, byte
//! `o` of the chunk is in row `o / (64K d)`, element `(o / 64K) % d`.
//!
//! ```text
//! single, dup, raid1..4   d = 1         every place holds every byte, `o` bytes in
//! raid0                   d = n         element e is place e
//! raid10                  d = n / 2     element e is places 2e and 2e + 1
//! raid5, raid6            d = n - p     element e of row r is place (r + e) % n; after the data
//!                                       elements come P and Q, so parity moves one place per row
//! ```
//!
//! Laws:
//! 1. A piece lies within one element of one row, unless the rows of its places are contiguous
//!    (`d = 1`, no parity): then it is bounded by the chunk alone, so that a large read stays one.
//! 2. Every byte of a chunk has exactly one piece, and no two share a physical byte of a place.
//! 3. Arithmetic is checked; a layout that could overflow is refused when it is made.

use crate::profile::Facts;
use butternut_format::chunk::{BlockGroupFlags, Profile, STRIPE_BYTES};
use butternut_format::refused::{Refused, require};
use butternut_format::units::{DevId, Logical, Physical};

/// One stripe of a chunk: a run of bytes on one device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    pub devid: DevId,
    /// The uuid of the device, as the chunk item names it.
    pub uuid: [u8; 16],
    pub physical: Physical,
    /// The device's index in the volume, unless it is missing.
    pub slot: Option<usize>,
    /// The device missed the newest transactions: its copies are asked last.
    pub is_stale: bool,
}

/// A chunk, laid out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Layout {
    logical: Logical,
    bytes: u64,
    flags: BlockGroupFlags,
    facts: &'static Facts,
    places: Box<[Place]>,
    /// Data elements in a row: at least one.
    data_elements: usize,
}

/// A run of a chunk's bytes that lies together on each of its places.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    pub logical: Logical,
    pub bytes: u64,
    /// The copies are `copies` places from this one on.
    pub first: usize,
    pub copies: usize,
    /// How far into each of its places the piece begins.
    pub within: u64,
    /// The place of the row's first data element, and which element this piece is of. Only rows
    /// with parity are turned.
    pub turn: usize,
    pub element: usize,
}

impl Layout {
    /// Lays a chunk out; refuses what the arithmetic below could not hold.
    pub fn new(
        logical: Logical,
        bytes: u64,
        flags: BlockGroupFlags,
        places: Vec<Place>,
    ) -> Result<Self, Refused> {
        let profile = flags
            .profile()
            .ok_or_else(|| Refused::new("type", format_args!("{:#x}", flags.0), "one profile"))?;
        let facts = Facts::of(profile);
        let count = places.len();
        let data_elements = data_elements(facts, count)?;
        require(bytes > 0, "length", bytes, "above zero")?;
        require(
            logical.checked_add(bytes).is_some(),
            "length",
            bytes,
            format_args!("at most {} behind logical {logical}", u64::MAX - logical.0),
        )?;
        let layout =
            Self { logical, bytes, flags, facts, places: places.into_boxed_slice(), data_elements };
        let place_bytes = layout.place_bytes();
        for place in &layout.places {
            require(
                place.physical.0.checked_add(place_bytes).is_some(),
                "stripe offset",
                place.physical,
                format_args!("{place_bytes} bytes below the end of the address space"),
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

    /// The address behind the chunk.
    pub fn end(&self) -> u64 {
        self.logical.0.saturating_add(self.bytes)
    }

    /// The chunk's `type` field: kind and profile bits.
    pub fn flags(&self) -> BlockGroupFlags {
        self.flags
    }

    pub fn facts(&self) -> &'static Facts {
        self.facts
    }

    pub fn places(&self) -> &[Place] {
        &self.places
    }

    /// Elements of a row that hold data.
    pub fn data_elements(&self) -> usize {
        self.data_elements
    }

    /// Bytes that the chunk takes of each of its devices.
    pub fn place_bytes(&self) -> u64 {
        if self.data_elements == 1 && self.facts.parities == 0 {
            return self.bytes;
        }
        let rows = self.bytes.div_ceil(self.row_bytes());
        rows.saturating_mul(STRIPE_BYTES)
    }

    /// The piece that begins at `logical`, at most `bytes_max` long. `None` outside the chunk.
    pub fn piece(&self, logical: Logical, bytes_max: u64) -> Option<Piece> {
        let offset = logical.0.checked_sub(self.logical.0)?;
        let left = self.bytes.checked_sub(offset).filter(|&left| left > 0)?.min(bytes_max);
        if self.data_elements == 1 && self.facts.parities == 0 {
            let copies = self.places.len();
            return Some(Piece {
                logical,
                bytes: left,
                first: 0,
                copies,
                within: offset,
                turn: 0,
                element: 0,
            });
        }
        let (row, in_row) = div_rem(offset, self.row_bytes())?;
        let (element, in_element) = div_rem(in_row, STRIPE_BYTES)?;
        let element = usize::try_from(element).ok()?;
        let within = row.checked_mul(STRIPE_BYTES)?.checked_add(in_element)?;
        let bytes = left.min(STRIPE_BYTES.checked_sub(in_element)?);
        let count = self.places.len();
        let (first, turn) = if self.facts.parities == 0 {
            (element.checked_mul(self.facts.sub_stripes)?, 0)
        } else {
            let turn = usize::try_from(row.checked_rem(u64::try_from(count).ok()?)?).ok()?;
            (turn.checked_add(element)?.checked_rem(count)?, turn)
        };
        let copies = self.facts.sub_stripes;
        Some(Piece { logical, bytes, first, copies, within, turn, element })
    }

    /// The pieces of a range, in order; it ends early where the chunk does.
    pub fn pieces(&self, logical: Logical, bytes: u64) -> impl Iterator<Item = Piece> + '_ {
        let mut next = Some(logical);
        let end = logical.0.saturating_add(bytes);
        std::iter::from_fn(move || {
            let at = next?;
            let left = end.checked_sub(at.0).filter(|&left| left > 0)?;
            let piece = self.piece(at, left)?;
            next = at.checked_add(piece.bytes);
            Some(piece)
        })
    }

    /// The places that hold copies of a piece.
    pub fn copies(&self, piece: &Piece) -> &[Place] {
        let end = piece.first.saturating_add(piece.copies);
        self.places.get(piece.first..end).unwrap_or_default()
    }

    /// The places of a piece's row in order: data elements, then P, then Q. Empty without parity.
    pub fn row(&self, piece: &Piece) -> impl Iterator<Item = &Place> + '_ {
        let turned = if self.facts.parities == 0 { 0 } else { self.places.len() };
        self.places.iter().cycle().skip(piece.turn).take(turned)
    }

    /// Whether every byte of the chunk can be read from the places whose device is there.
    pub fn is_readable(&self) -> bool {
        let missing = |places: &[Place]| places.iter().filter(|place| place.slot.is_none()).count();
        if self.facts.parities > 0 {
            return missing(&self.places) <= self.facts.parities;
        }
        let copies = if self.facts.is_striped { self.facts.sub_stripes } else { self.places.len() };
        self.places.chunks(copies.max(1)).all(|copies| missing(copies) < copies.len())
    }

    /// Whether the kernel would let this chunk be written with the devices that are there.
    pub fn is_writable(&self) -> bool {
        let missing = self.places.iter().filter(|place| place.slot.is_none()).count();
        missing <= self.facts.failures_tolerated
    }

    /// Bytes of data in a row, over all its elements.
    fn row_bytes(&self) -> u64 {
        u64::try_from(self.data_elements).unwrap_or(u64::MAX).saturating_mul(STRIPE_BYTES)
    }
}

impl Piece {
    /// Where the piece begins on one of its places.
    pub fn physical(&self, place: &Place) -> Physical {
        Physical(place.physical.0.saturating_add(self.within))
    }

    /// The part of this piece that begins `offset` bytes in and is `bytes` long.
    #[must_use]
    pub fn part(&self, offset: u64, bytes: u64) -> Self {
        Self {
            logical: Logical(self.logical.0.saturating_add(offset)),
            within: self.within.saturating_add(offset),
            bytes: bytes.min(self.bytes.saturating_sub(offset)),
            ..*self
        }
    }
}

/// Data elements of a row, where the profile may have that many stripes.
fn data_elements(facts: &Facts, count: usize) -> Result<usize, Refused> {
    let fits = |holds, want: &str| {
        require(holds, "num_stripes", count, format_args!("{want} for {}", facts.name))
    };
    match facts.profile {
        Profile::Single | Profile::Dup | Profile::Raid1 | Profile::Raid1c3 | Profile::Raid1c4 => {
            fits(count == facts.copies, &facts.copies.to_string())?;
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
            let want = format!("{} to {widest}", facts.devices_min);
            fits((facts.devices_min..=widest).contains(&count), &want)?;
            Ok(count.saturating_sub(facts.parities))
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
        let places = (0..count)
            .map(|i| Place {
                devid: DevId(i as u64 + 1),
                uuid: [i as u8; 16],
                physical: Physical((i as u64 + 1) << 40),
                slot: Some(i),
                is_stale: false,
            })
            .collect();
        Layout::new(Logical(START), bytes, BlockGroupFlags(Facts::of(profile).flag.0 | 1), places)
            .unwrap()
    }

    fn counts(profile: Profile) -> Vec<usize> {
        let facts = Facts::of(profile);
        match (facts.is_striped, profile) {
            (false, _) => vec![facts.copies],
            (true, Profile::Raid10) => vec![2, 4, 6, 10],
            (true, _) => (facts.devices_min..facts.devices_min + 6).collect(),
        }
    }

    /// Law 2, by brute force: each 4K of the chunk, on each place, is used once; and the row's
    /// places are distinct and hold the piece's own.
    #[test]
    fn every_sector_has_its_own_bytes_on_every_place() {
        for profile in Facts::all().iter().map(|facts| facts.profile) {
            for count in counts(profile) {
                let rows = 7;
                let bytes = rows * STRIPE_BYTES * count as u64;
                let layout = layout(profile, count, bytes);
                let mut used = HashSet::new();
                let mut at = 0;
                while at < bytes {
                    let piece = layout.piece(Logical(START + at), 4096).unwrap();
                    assert_eq!(piece.bytes, 4096);
                    let copies = layout.copies(&piece);
                    assert_eq!(copies.len(), layout.facts().copies, "{profile:?} {count}");
                    for place in copies {
                        assert!(used.insert(piece.physical(place)), "{profile:?} {count} {at}");
                        assert!(piece.within + 4096 <= layout.place_bytes());
                    }
                    let row: Vec<_> = layout.row(&piece).collect();
                    if layout.facts().parities > 0 {
                        assert_eq!(row.len(), count);
                        assert_eq!(row[piece.element], &copies[0]);
                    }
                    at += 4096;
                }
            }
        }
    }

    /// Parity takes each place in turn, and never one that the row's data is on.
    #[test]
    fn parity_goes_round_and_never_meets_its_data() {
        for (profile, count) in [(Profile::Raid5, 4), (Profile::Raid6, 5), (Profile::Raid6, 3)] {
            let layout = layout(profile, count, STRIPE_BYTES * 60);
            let mut parity_on: HashMap<u64, HashSet<DevId>> = HashMap::new();
            let mut data_on: HashMap<u64, HashSet<DevId>> = HashMap::new();
            for piece in layout.pieces(Logical(START), STRIPE_BYTES * 60) {
                let row = piece.within / STRIPE_BYTES;
                let places: Vec<_> = layout.row(&piece).collect();
                let parity = places[layout.data_elements()..].iter().map(|place| place.devid);
                parity_on.entry(row).or_default().extend(parity);
                data_on.entry(row).or_default().insert(layout.copies(&piece)[0].devid);
            }
            let mut all: HashSet<DevId> = HashSet::new();
            for (row, parity) in &parity_on {
                assert_eq!(parity.len(), layout.facts().parities);
                assert!(parity.is_disjoint(&data_on[row]));
                all.extend(parity);
            }
            assert_eq!(all.len(), count);
        }
    }

    proptest! {
        #[test]
        fn pieces_tile_a_range_and_agree_with_single_sectors(
            which in 0_usize..9,
            width in 0_usize..4,
            start in 0_u64..3000,
            sectors in 1_u64..200,
        ) {
            let profile = Facts::all().iter().map(|facts| facts.profile).nth(which).unwrap();
            let counts = counts(profile);
            let count = counts[width % counts.len()];
            let layout = layout(profile, count, 16 << 20);
            let from = START + start * 4096;
            let wanted = (sectors * 4096).min(layout.end() - from);
            let mut at = from;
            for piece in layout.pieces(Logical(from), sectors * 4096) {
                prop_assert_eq!(piece.logical, Logical(at));
                for offset in (0..piece.bytes).step_by(4096) {
                    let sector = layout.piece(Logical(at + offset), 4096).unwrap();
                    prop_assert_eq!(piece.part(offset, 4096), sector);
                }
                at += piece.bytes;
            }
            prop_assert_eq!(at, from + wanted);
        }

        #[test]
        fn no_address_makes_the_arithmetic_panic(
            logical in any::<u64>(), bytes in any::<u64>(), flags in any::<u64>(),
            physical in any::<u64>(), count in 0_usize..9, at in any::<u64>(), len in any::<u64>(),
        ) {
            let place = Place {
                devid: DevId(1), uuid: [0; 16], physical: Physical(physical),
                slot: None, is_stale: false,
            };
            let flags = BlockGroupFlags(flags & 0x7ff);
            if let Ok(layout) = Layout::new(Logical(logical), bytes, flags, vec![place; count]) {
                for logical in [at, logical, layout.end().wrapping_sub(1)] {
                    if let Some(piece) = layout.piece(Logical(logical), len) {
                        for place in layout.copies(&piece) {
                            let start = piece.physical(place).0;
                            prop_assert!(start.checked_add(piece.bytes).is_some());
                        }
                    }
                }
            }
        }
    }

    #[test]
    fn a_megabyte_on_one_contiguous_device_is_one_piece() {
        for (profile, count) in
            [(Profile::Single, 1), (Profile::Dup, 2), (Profile::Raid0, 1), (Profile::Raid10, 2)]
        {
            let layout = layout(profile, count, 1 << 30);
            let pieces: Vec<_> = layout.pieces(Logical(START + 4096), 1 << 20).collect();
            assert_eq!(pieces.len(), 1, "{profile:?}");
        }
    }

    #[test]
    fn readable_is_asked_per_group_of_copies() {
        let without = |profile, count, missing: &[usize]| {
            let mut layout = layout(profile, count, 1 << 24);
            for &index in missing {
                layout.places[index].slot = None;
            }
            (layout.is_readable(), layout.is_writable())
        };
        assert_eq!(without(Profile::Single, 1, &[0]), (false, false));
        assert_eq!(without(Profile::Dup, 2, &[0, 1]), (false, false));
        assert_eq!(without(Profile::Raid0, 3, &[1]), (false, false));
        assert_eq!(without(Profile::Raid1, 2, &[1]), (true, true));
        assert_eq!(without(Profile::Raid1, 2, &[0, 1]), (false, false));
        assert_eq!(without(Profile::Raid1c3, 3, &[0, 2]), (true, true));
        // One of each pair: every byte is there, though more are lost than the profile promises.
        assert_eq!(without(Profile::Raid10, 4, &[0, 3]), (true, false));
        assert_eq!(without(Profile::Raid10, 4, &[2, 3]), (false, false));
        assert_eq!(without(Profile::Raid5, 3, &[1]), (true, true));
        assert_eq!(without(Profile::Raid5, 3, &[0, 1]), (false, false));
        assert_eq!(without(Profile::Raid6, 4, &[0, 3]), (true, true));
        assert_eq!(without(Profile::Raid6, 4, &[0, 1, 3]), (false, false));
    }

    #[test]
    fn stripe_counts_that_a_profile_cannot_have_are_refused() {
        for (profile, count) in [
            (Profile::Single, 2),
            (Profile::Raid1, 1),
            (Profile::Raid10, 3),
            (Profile::Raid5, 1),
            (Profile::Raid6, 2),
            (Profile::Raid0, 0),
        ] {
            let place = Place {
                devid: DevId(1),
                uuid: [0; 16],
                physical: Physical(0),
                slot: None,
                is_stale: false,
            };
            let flags = Facts::of(profile).flag;
            let refused =
                Layout::new(Logical(0), 65536, flags, vec![place; count]).expect_err("refused");
            assert_eq!(refused.field(), "num_stripes");
        }
    }
}
