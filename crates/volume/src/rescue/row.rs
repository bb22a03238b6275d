//! A row of a chunk with parity, read as a whole, and the ways to compute one element of it.

use super::CopyBytes;
use crate::error::CopyKind;
use crate::stripe::{Layout, Piece, Place};
use crate::volume::Volume;
use butternut_device::DeviceError;
use butternut_sys::parity::{Parities, combine, recipe};

/// The part of a row that a piece of it covers.
#[derive(Debug)]
pub(super) struct Row<'c> {
    places: Vec<&'c Place>,
    /// What each element holds there; `None` for a missing device, and for the piece's own element,
    /// which is the one to compute.
    copies: Vec<Option<CopyBytes>>,
    parities: Parities,
    target: usize,
}

/// One way to compute the target: without looking at it, nor at `other`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Way {
    other: Option<usize>,
}

impl<'c> Row<'c> {
    /// Reads the row of a piece, all but the piece itself. `None` where the profile has no parity.
    pub(super) fn read(volume: &Volume, layout: &'c Layout, piece: &Piece) -> Option<Self> {
        let parities = match layout.facts().parities {
            1 => Parities::One,
            2 => Parities::Two,
            _ => return None,
        };
        let places: Vec<&Place> = layout.row(piece).collect();
        let bytes = usize::try_from(piece.bytes).ok()?;
        let wanted: Vec<Option<(usize, u64)>> = places
            .iter()
            .enumerate()
            .map(|(element, place)| {
                let slot = place.slot.filter(|_| element != piece.element)?;
                Some((slot, piece.physical(place).0))
            })
            .collect();
        let there: Vec<(usize, u64)> = wanted.iter().flatten().copied().collect();
        let mut read = volume.read_places(&there, bytes).into_iter();
        let copies = wanted.iter().map(|wanted| wanted.and_then(|_| read.next())).collect();
        Some(Self { places, copies, parities, target: piece.element })
    }

    /// The ways to compute sector `sector` of the target, the likeliest first.
    pub(super) fn ways(&self, sector: usize) -> Vec<Way> {
        self.ways_without(|copy| copy.error(sector).is_some())
    }

    /// The ways to compute all of the target at once.
    pub(super) fn ways_whole(&self) -> Vec<Way> {
        self.ways_without(|copy| copy.first_error().is_some())
    }

    /// Computes sector `sector` of the target.
    pub(super) fn sector(&self, way: Way, sector: usize, out: &mut [u8]) -> Option<()> {
        self.compute(way, out, |copy| copy.sector(sector))
    }

    /// Computes all of the target.
    pub(super) fn whole(&self, way: Way, bytes: usize) -> Option<Vec<u8>> {
        let mut out = vec![0; bytes];
        self.compute(way, &mut out, |copy| Some(&copy.bytes))?;
        Some(out)
    }

    /// How a way is told in an error.
    pub(super) fn kind(&self, way: Way) -> CopyKind {
        let left_out = [Some(self.target), way.other].into_iter().flatten();
        let without = left_out.filter_map(|element| self.places.get(element));
        CopyKind::Rebuilt { without: without.map(|place| place.devid).collect() }
    }

    /// The lost elements of a sector, where there is no way: told in an error too.
    pub(super) fn lost_kind(&self, sector: usize) -> CopyKind {
        let lost = self
            .places
            .iter()
            .zip(&self.copies)
            .filter(|(_, copy)| copy.as_ref().is_none_or(|copy| copy.error(sector).is_some()));
        CopyKind::Rebuilt { without: lost.map(|(place, _)| place.devid).collect() }
    }

    /// Why an element could not be read, where one could not.
    pub(super) fn any_error(&self, sector: usize) -> Option<&DeviceError> {
        self.copies.iter().flatten().find_map(|copy| copy.error(sector))
    }

    fn ways_without(&self, is_lost: impl Fn(&CopyBytes) -> bool) -> Vec<Way> {
        let lost: Vec<usize> = self
            .copies
            .iter()
            .enumerate()
            .filter(|(element, copy)| *element != self.target && copy.as_ref().is_none_or(&is_lost))
            .map(|(element, _)| element)
            .collect();
        match (self.parities, lost.as_slice()) {
            (Parities::One, []) => vec![Way { other: None }],
            (Parities::Two, [other]) => vec![Way { other: Some(*other) }],
            (Parities::Two, []) => {
                // Without looking at Q is the same as by P alone, the first way.
                let q = self.copies.len().saturating_sub(1);
                let others = (0..q).rev().filter(|&other| other != self.target);
                let others = others.map(|other| Way { other: Some(other) });
                std::iter::once(Way { other: None }).chain(others).collect()
            }
            (Parities::One | Parities::Two, _) => Vec::new(),
        }
    }

    fn compute<'s>(
        &'s self,
        way: Way,
        out: &mut [u8],
        bytes_of: impl Fn(&'s CopyBytes) -> Option<&'s [u8]>,
    ) -> Option<()> {
        let recipe = recipe(self.copies.len(), self.parities, self.target, way.other)?;
        let mut elements: Vec<&[u8]> = Vec::with_capacity(self.copies.len());
        for (copy, &factor) in self.copies.iter().zip(recipe.factors()) {
            let bytes = copy.as_ref().and_then(&bytes_of).unwrap_or_default();
            if factor != 0 && bytes.len() != out.len() {
                return None;
            }
            elements.push(bytes);
        }
        combine(&recipe, &elements, out);
        Some(())
    }
}
