//! Rescues data sectors from other mirrors or from parity.

use super::full_stripe::{FullStripe, Reconstruction};
use super::{MirrorBytes, mirror_source, mirrors_in_order};
use crate::device_events::DeviceEventKind;
use crate::error::{BadRange, ReadSource, SourceFault, SourceVerdict, chain};
use crate::sectors::{Checksums, SECTOR};
use crate::stripe::{Layout, Segment};
use crate::volume::Volume;
use butternut_device::DeviceError;
use butternut_format::checksum::ChecksumKind;
use butternut_format::refused::Refused;
use butternut_format::units::{Logical, length};
use std::fmt;
use std::sync::atomic::Ordering;

/// Sectors that are rescued at a time. Bounds the memory for a long read from a failing device.
const SECTORS_MAX: usize = 256;

/// The fault of a run of sectors before the rescue.
#[derive(Clone, Debug)]
pub(crate) enum Fault {
    /// No mirror was read.
    NotRead,
    /// This mirror was read, and no sector of the run matches its checksum.
    Corrupt { mirror: usize },
    /// The read of this mirror failed as a whole; single sectors may be readable.
    Failed { mirror: usize, error: DeviceError },
}

/// A run of sectors that is being rescued.
struct SectorRun<'r> {
    volume: &'r Volume,
    layout: &'r Layout,
    segment: Segment,
    checksums: Checksums<'r>,
    csum: ChecksumKind,
    /// For each sector, the faults of the sources so far; `None` once the sector is good.
    pending: Vec<Option<Vec<SourceVerdict>>>,
}

impl Volume {
    /// Replaces a run of bad sectors in `memory`. Returns the ranges that could not be replaced;
    /// they are zeroed.
    pub(crate) fn rescue_data(
        &self,
        layout: &Layout,
        segment: &Segment,
        fault: &Fault,
        memory: &mut [u8],
        checksums: Checksums<'_>,
    ) -> Vec<BadRange> {
        let csum = self.super_block().csum();
        let mut bad = Vec::new();
        // Each mirror may be stale in other sectors, and there is no checksum to tell.
        let is_each_alone = checksums == Checksums::None && self.has_stale_mirror(layout, segment);
        let sectors_max = if is_each_alone { 1 } else { SECTORS_MAX };
        let step = sectors_max.saturating_mul(SECTOR);
        let fault = match fault {
            // The read failed as a whole, so it is not known which sector failed.
            Fault::Failed { .. } if is_each_alone && memory.len() > SECTOR => &Fault::NotRead,
            Fault::NotRead | Fault::Corrupt { .. } | Fault::Failed { .. } => fault,
        };
        for (nth, part) in memory.chunks_mut(step).enumerate() {
            let first = nth.saturating_mul(sectors_max);
            let sectors = part.len().div_euclid(SECTOR);
            let offset = length(first.saturating_mul(SECTOR));
            let mut run = SectorRun {
                volume: self,
                layout,
                segment: segment.part(offset, length(part.len())),
                checksums: checksums.part(csum, first, sectors),
                csum,
                pending: (0..sectors).map(|_| Some(Vec::new())).collect(),
            };
            run.record_first_read(fault, part);
            run.try_mirrors(fault, part);
            run.try_parity(part);
            run.record_event(fault);
            bad.extend(run.finish(part));
        }
        bad
    }
}

impl SectorRun<'_> {
    fn is_done(&self) -> bool {
        self.pending.iter().all(Option::is_none)
    }

    /// Records and counts the fault of the first mirror.
    fn record_first_read(&mut self, fault: &Fault, memory: &[u8]) {
        let missing = self.layout.mirrors(&self.segment).iter().enumerate();
        let missing: Vec<usize> =
            missing.filter(|(_, stripe)| stripe.slot.is_none()).map(|(mirror, _)| mirror).collect();
        for sector in 0..self.pending.len() {
            for &mirror in &missing {
                self.record_mirror(sector, mirror, SourceFault::Missing);
            }
            match fault {
                Fault::Corrupt { mirror } => {
                    let start = sector.saturating_mul(SECTOR);
                    let bytes = memory.get(start..start.saturating_add(SECTOR));
                    let refused = self.refused(sector, bytes.unwrap_or_default());
                    self.count(*mirror, &refused);
                    self.record_mirror(sector, *mirror, SourceFault::Refused(refused));
                }
                Fault::Failed { mirror, error } if self.pending.len() == 1 => {
                    self.record_mirror(sector, *mirror, SourceFault::Device(error.clone()));
                }
                // A read that failed as a whole is repeated sector by sector, which finds the bad
                // ones.
                Fault::NotRead | Fault::Failed { .. } => {}
            }
        }
    }

    fn try_mirrors(&mut self, fault: &Fault, memory: &mut [u8]) {
        let sectors = self.pending.len();
        for mirror in mirrors_in_order(self.volume, self.layout, &self.segment) {
            if self.is_done() {
                return;
            }
            let may_be_stale = self.checksums == Checksums::None
                && self.volume.needs_checksum(self.layout, &self.segment, mirror);
            if may_be_stale {
                (0..sectors).for_each(|at| self.record_mirror(at, mirror, SourceFault::MaybeStale));
                continue;
            }
            let stripe = self.layout.mirrors(&self.segment).get(mirror);
            let Some(slot) = stripe.and_then(|stripe| stripe.slot) else { continue };
            let Some(physical) = stripe.map(|stripe| self.segment.physical(stripe).0) else {
                continue;
            };
            let read = match fault {
                Fault::Corrupt { mirror: known } if *known == mirror => continue,
                Fault::Failed { mirror: known, .. } if *known == mirror && sectors == 1 => continue,
                Fault::Failed { mirror: known, .. } if *known == mirror => {
                    Some(self.volume.read_by_sectors(slot, physical, memory.len()))
                }
                Fault::NotRead | Fault::Corrupt { .. } | Fault::Failed { .. } => {
                    self.volume.read_ranges(&[(slot, physical)], memory.len()).pop()
                }
            };
            if let Some(read) = read {
                self.use_mirror(mirror, &read, memory);
            }
        }
    }

    fn use_mirror(&mut self, mirror: usize, read: &MirrorBytes, memory: &mut [u8]) {
        for (sector, out) in memory.chunks_exact_mut(SECTOR).enumerate() {
            if self.pending.get(sector).is_none_or(Option::is_none) {
                continue;
            }
            if let Some(error) = read.error(sector) {
                self.record_mirror(sector, mirror, SourceFault::Device(error.clone()));
                continue;
            }
            let bytes = read.sector(sector).unwrap_or_default();
            if self.checksums.matches(self.csum, sector, bytes) {
                self.set_good(sector, bytes, out);
            } else {
                let refused = self.refused(sector, bytes);
                self.count(mirror, &refused);
                self.record_mirror(sector, mirror, SourceFault::Refused(refused));
            }
        }
    }

    fn try_parity(&mut self, memory: &mut [u8]) {
        if self.is_done() {
            return;
        }
        let Some(full_stripe) = FullStripe::read(self.volume, self.layout, &self.segment) else {
            return;
        };
        for (sector, out) in memory.chunks_exact_mut(SECTOR).enumerate() {
            if self.pending.get(sector).is_some_and(Option::is_some) {
                self.reconstruct(&full_stripe, sector, out);
            }
        }
    }

    fn reconstruct(&mut self, full_stripe: &FullStripe<'_>, sector: usize, out: &mut [u8]) {
        let mut reconstructions = full_stripe.reconstructions(sector);
        if self.checksums == Checksums::None {
            // Without checksums one reconstruction cannot be told from another.
            reconstructions.truncate(1);
        }
        if reconstructions.is_empty() {
            let error = full_stripe.any_error(sector).cloned();
            let fault = error.map_or(SourceFault::TooManyLost, SourceFault::Device);
            self.record(sector, full_stripe.lost_kind(sector), fault);
        }
        let mut computed = [0; SECTOR];
        for reconstruction in reconstructions {
            if self.try_reconstruction(full_stripe, reconstruction, sector, &mut computed) {
                self.set_good(sector, &computed, out);
                return;
            }
        }
    }

    fn try_reconstruction(
        &mut self,
        full_stripe: &FullStripe<'_>,
        reconstruction: Reconstruction,
        sector: usize,
        computed: &mut [u8],
    ) -> bool {
        if full_stripe.sector(reconstruction, sector, computed).is_none() {
            self.record(sector, full_stripe.kind(reconstruction), SourceFault::TooManyLost);
            return false;
        }
        if self.checksums.matches(self.csum, sector, computed) {
            return true;
        }
        let refused = self.refused(sector, computed);
        self.record(sector, full_stripe.kind(reconstruction), SourceFault::Refused(refused));
        false
    }

    fn set_good(&mut self, sector: usize, bytes: &[u8], out: &mut [u8]) {
        if let Some(pending) = self.pending.get_mut(sector)
            && bytes.len() == out.len()
        {
            out.copy_from_slice(bytes);
            *pending = None;
            self.volume.rescues.sectors.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Records an event for sectors that were bad on the device read first, and were rescued.
    fn record_event(&self, fault: &Fault) {
        let good = self.pending.iter().position(Option::is_none);
        let (mirror, error) = match fault {
            Fault::NotRead => return,
            Fault::Corrupt { mirror } => (*mirror, None),
            Fault::Failed { mirror, error } => (*mirror, Some(error)),
        };
        let Some(sector) = good else { return };
        let slot = self.layout.mirrors(&self.segment).get(mirror).and_then(|stripe| stripe.slot);
        let offset = length(sector.saturating_mul(SECTOR));
        let at = Logical(self.segment.logical.0.saturating_add(offset));
        self.volume.record_event(slot, DeviceEventKind::Data, Some(at), || {
            error.map_or_else(|| "wrong checksum".to_owned(), |error| chain(error))
        });
    }

    /// Zeroes the sectors that are still bad, and returns their ranges.
    fn finish(self, memory: &mut [u8]) -> Vec<BadRange> {
        let mut bad: Vec<BadRange> = Vec::new();
        for ((sector, pending), out) in
            self.pending.into_iter().enumerate().zip(memory.chunks_exact_mut(SECTOR))
        {
            let Some(sources) = pending else { continue };
            out.fill(0);
            self.volume.rescues.sectors_lost.fetch_add(1, Ordering::Relaxed);
            let offset = length(sector.saturating_mul(SECTOR));
            let logical = Logical(self.segment.logical.0.saturating_add(offset));
            match bad.last_mut() {
                Some(last) if last.logical.0.saturating_add(last.bytes) == logical.0 => {
                    last.bytes = last.bytes.saturating_add(length(SECTOR));
                }
                Some(_) | None => {
                    bad.push(BadRange { logical, bytes: length(SECTOR), sources });
                }
            }
        }
        bad
    }

    fn refused(&self, sector: usize, bytes: &[u8]) -> Refused {
        let have = self.csum.compute(bytes);
        let have = have.get(..self.csum.bytes()).unwrap_or_default();
        let want = self.checksums.of_sector(self.csum, sector).unwrap_or_default();
        Refused::new("csum", Hex(have), Hex(want))
    }

    fn count(&self, mirror: usize, refused: &Refused) {
        let stripe = self.layout.mirrors(&self.segment).get(mirror);
        self.volume.count_refused(stripe.and_then(|stripe| stripe.slot), refused);
    }

    fn record_mirror(&mut self, sector: usize, mirror: usize, fault: SourceFault) {
        if let Some(kind) = mirror_source(self.layout, &self.segment, mirror) {
            self.record(sector, kind, fault);
        }
    }

    fn record(&mut self, sector: usize, source: ReadSource, fault: SourceFault) {
        if let Some(Some(verdicts)) = self.pending.get_mut(sector) {
            verdicts.push(SourceVerdict { source, fault });
        }
    }
}

/// A checksum in hexadecimal.
struct Hex<'a>(&'a [u8]);

impl fmt::Display for Hex<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("0x")?;
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}
