//! The full stripe of a segment in a chunk with parity, and the reconstructions of one of its
//! elements.

use super::MirrorBytes;
use crate::error::ReadSource;
use crate::stripe::{IoStripe, Layout, Segment};
use crate::volume::Volume;
use butternut_device::DeviceError;
use butternut_sys::parity::{Parities, combine, recipe};

/// The part of a full stripe that a segment covers.
#[derive(Debug)]
pub(super) struct FullStripe<'c> {
    stripes: Vec<&'c IoStripe>,
    /// The bytes of each element; `None` for a missing device, and for the element of the segment
    /// itself, which is to be computed.
    copies: Vec<Option<MirrorBytes>>,
    parities: Parities,
    target: usize,
}

/// One way to compute the target element: without reading it, and without reading `other`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Reconstruction {
    other: Option<usize>,
}

impl<'c> FullStripe<'c> {
    /// Reads the full stripe of a segment, except the segment itself. Returns `None` if the profile
    /// has no parity.
    pub(super) fn read(volume: &Volume, layout: &'c Layout, segment: &Segment) -> Option<Self> {
        let parities = match layout.attributes().parities {
            1 => Parities::One,
            2 => Parities::Two,
            _ => return None,
        };
        let stripes: Vec<&IoStripe> = layout.full_stripe(segment).collect();
        let bytes = usize::try_from(segment.bytes).ok()?;
        let wanted: Vec<Option<(usize, u64)>> = stripes
            .iter()
            .enumerate()
            .map(|(element, stripe)| {
                let slot = stripe.slot.filter(|_| element != segment.element)?;
                Some((slot, segment.physical(stripe).0))
            })
            .collect();
        let present: Vec<(usize, u64)> = wanted.iter().flatten().copied().collect();
        let mut read = volume.read_ranges(&present, bytes).into_iter();
        let copies = wanted.iter().map(|wanted| wanted.and_then(|_| read.next())).collect();
        Some(Self { stripes, copies, parities, target: segment.element })
    }

    /// Returns the reconstructions of sector `sector` of the target, the likeliest first.
    pub(super) fn reconstructions(&self, sector: usize) -> Vec<Reconstruction> {
        self.reconstructions_without(|copy| copy.error(sector).is_some())
    }

    /// Returns the reconstructions of the whole target.
    pub(super) fn reconstructions_of_all(&self) -> Vec<Reconstruction> {
        self.reconstructions_without(|copy| copy.first_error().is_some())
    }

    /// Computes sector `sector` of the target.
    pub(super) fn sector(
        &self,
        reconstruction: Reconstruction,
        sector: usize,
        out: &mut [u8],
    ) -> Option<()> {
        self.compute(reconstruction, out, |copy| copy.sector(sector))
    }

    /// Computes the whole target.
    pub(super) fn whole(&self, reconstruction: Reconstruction, bytes: usize) -> Option<Vec<u8>> {
        let mut out = vec![0; bytes];
        self.compute(reconstruction, &mut out, |copy| Some(&copy.bytes))?;
        Some(out)
    }

    /// Returns how errors name a reconstruction.
    pub(super) fn kind(&self, reconstruction: Reconstruction) -> ReadSource {
        let left_out = [Some(self.target), reconstruction.other].into_iter().flatten();
        let without = left_out.filter_map(|element| self.stripes.get(element));
        ReadSource::Reconstructed { without: without.map(|stripe| stripe.devid).collect() }
    }

    /// Returns how errors name a failed reconstruction: without the lost elements of a sector.
    pub(super) fn lost_kind(&self, sector: usize) -> ReadSource {
        let lost = self
            .stripes
            .iter()
            .zip(&self.copies)
            .filter(|(_, copy)| copy.as_ref().is_none_or(|copy| copy.error(sector).is_some()));
        ReadSource::Reconstructed { without: lost.map(|(stripe, _)| stripe.devid).collect() }
    }

    /// Returns the first error of any element in a sector.
    pub(super) fn any_error(&self, sector: usize) -> Option<&DeviceError> {
        self.copies.iter().flatten().find_map(|copy| copy.error(sector))
    }

    fn reconstructions_without(
        &self,
        is_lost: impl Fn(&MirrorBytes) -> bool,
    ) -> Vec<Reconstruction> {
        let lost: Vec<usize> = self
            .copies
            .iter()
            .enumerate()
            .filter(|(element, copy)| *element != self.target && copy.as_ref().is_none_or(&is_lost))
            .map(|(element, _)| element)
            .collect();
        match (self.parities, lost.as_slice()) {
            (Parities::One, []) => vec![Reconstruction { other: None }],
            (Parities::Two, [other]) => vec![Reconstruction { other: Some(*other) }],
            (Parities::Two, []) => {
                // Leaving out Q gives the same as the first reconstruction, by P alone.
                let q = self.copies.len().saturating_sub(1);
                let others = (0..q).rev().filter(|&other| other != self.target);
                let others = others.map(|other| Reconstruction { other: Some(other) });
                std::iter::once(Reconstruction { other: None }).chain(others).collect()
            }
            (Parities::One | Parities::Two, _) => Vec::new(),
        }
    }

    fn compute<'s>(
        &'s self,
        reconstruction: Reconstruction,
        out: &mut [u8],
        bytes_of: impl Fn(&'s MirrorBytes) -> Option<&'s [u8]>,
    ) -> Option<()> {
        let recipe = recipe(self.copies.len(), self.parities, self.target, reconstruction.other)?;
        let mut elements: Vec<&[u8]> = Vec::with_capacity(self.copies.len());
        for (copy, &factor) in self.copies.iter().zip(recipe.coefficients()) {
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
