//! Data sectors from other copies.

use super::row::{Row, Way};
use super::{CopyBytes, in_order, mirror};
use crate::error::chain;
use crate::error::{BadRange, CopyFault, CopyKind, CopyVerdict};
use crate::read_data::{SECTOR, Sums};
use crate::stripe::{Layout, Piece};
use crate::troubles::TroubleKind;
use crate::volume::Volume;
use butternut_device::DeviceError;
use butternut_format::checksum::ChecksumKind;
use butternut_format::refused::Refused;
use butternut_format::units::{Logical, length};
use std::fmt;
use std::sync::atomic::Ordering;

/// Sectors rescued at once: bounds what a long read over a broken device holds in memory.
const SECTORS_MAX: usize = 256;

/// What is known of a run of sectors before anything else is tried.
#[derive(Clone, Debug)]
pub(crate) enum Fault {
    /// No copy's device is there.
    NotRead,
    /// Copy `copy` was read, and none of the sectors is as its checksum says.
    Corrupt { copy: usize },
    /// Copy `copy` could not be read, at least not in one go.
    Failed { copy: usize, error: DeviceError },
}

/// A run of sectors that are to be found.
struct Run<'r> {
    volume: &'r Volume,
    layout: &'r Layout,
    piece: Piece,
    sums: Sums<'r>,
    csum: ChecksumKind,
    /// Per sector: what the copies said so far; `None` once it is good.
    open: Vec<Option<Vec<CopyVerdict>>>,
}

impl Volume {
    /// Replaces a run of bad sectors, in place. Returns what could not be replaced; that is zero
    /// now.
    pub(crate) fn rescue_data(
        &self,
        layout: &Layout,
        piece: &Piece,
        fault: &Fault,
        memory: &mut [u8],
        sums: Sums<'_>,
    ) -> Vec<BadRange> {
        let csum = self.super_block().csum();
        let mut bad = Vec::new();
        // Each copy may have missed other sectors, and no checksum would tell which.
        let is_apart = sums == Sums::None && self.has_missed_copy(layout, piece);
        let sectors_max = if is_apart { 1 } else { SECTORS_MAX };
        let step = sectors_max.saturating_mul(SECTOR);
        let fault = match fault {
            // It failed as a whole: which sector it was is not known.
            Fault::Failed { .. } if is_apart && memory.len() > SECTOR => &Fault::NotRead,
            Fault::NotRead | Fault::Corrupt { .. } | Fault::Failed { .. } => fault,
        };
        for (nth, part) in memory.chunks_mut(step).enumerate() {
            let first = nth.saturating_mul(sectors_max);
            let sectors = part.len().div_euclid(SECTOR);
            let offset = length(first.saturating_mul(SECTOR));
            let mut run = Run {
                volume: self,
                layout,
                piece: piece.part(offset, length(part.len())),
                sums: sums.part(csum, first, sectors),
                csum,
                open: (0..sectors).map(|_| Some(Vec::new())).collect(),
            };
            run.note_first(fault, part);
            run.try_mirrors(fault, part);
            run.try_parity(part);
            run.report(fault);
            bad.extend(run.finish(part));
        }
        bad
    }
}

impl Run<'_> {
    fn is_done(&self) -> bool {
        self.open.iter().all(Option::is_none)
    }

    /// Writes down, and counts, what the first copy did.
    fn note_first(&mut self, fault: &Fault, memory: &[u8]) {
        let missing = self.layout.copies(&self.piece).iter().enumerate();
        let missing: Vec<usize> =
            missing.filter(|(_, place)| place.slot.is_none()).map(|(copy, _)| copy).collect();
        for sector in 0..self.open.len() {
            for &copy in &missing {
                self.say_of_mirror(sector, copy, CopyFault::Missing);
            }
            match fault {
                Fault::Corrupt { copy } => {
                    let start = sector.saturating_mul(SECTOR);
                    let bytes = memory.get(start..start.saturating_add(SECTOR));
                    let refused = self.refused(sector, bytes.unwrap_or_default());
                    self.count(*copy, &refused);
                    self.say_of_mirror(sector, *copy, CopyFault::Refused(refused));
                }
                Fault::Failed { copy, error } if self.open.len() == 1 => {
                    self.say_of_mirror(sector, *copy, CopyFault::Device(error.clone()));
                }
                // What failed in one go is read again by sectors, which will tell.
                Fault::NotRead | Fault::Failed { .. } => {}
            }
        }
    }

    fn try_mirrors(&mut self, fault: &Fault, memory: &mut [u8]) {
        let sectors = self.open.len();
        for copy in in_order(self.volume, self.layout, &self.piece) {
            if self.is_done() {
                return;
            }
            let is_unproven = self.sums == Sums::None
                && self.volume.needs_checksum(self.layout, &self.piece, copy);
            if is_unproven {
                (0..sectors).for_each(|at| self.say_of_mirror(at, copy, CopyFault::Doubtful));
                continue;
            }
            let place = self.layout.copies(&self.piece).get(copy);
            let Some(slot) = place.and_then(|place| place.slot) else { continue };
            let Some(physical) = place.map(|place| self.piece.physical(place).0) else { continue };
            let read = match fault {
                Fault::Corrupt { copy: known } if *known == copy => continue,
                Fault::Failed { copy: known, .. } if *known == copy && sectors == 1 => continue,
                Fault::Failed { copy: known, .. } if *known == copy => {
                    Some(self.volume.read_by_sectors(slot, physical, memory.len()))
                }
                Fault::NotRead | Fault::Corrupt { .. } | Fault::Failed { .. } => {
                    self.volume.read_places(&[(slot, physical)], memory.len()).pop()
                }
            };
            if let Some(read) = read {
                self.take_mirror(copy, &read, memory);
            }
        }
    }

    fn take_mirror(&mut self, copy: usize, read: &CopyBytes, memory: &mut [u8]) {
        for (sector, out) in memory.chunks_exact_mut(SECTOR).enumerate() {
            if self.open.get(sector).is_none_or(Option::is_none) {
                continue;
            }
            if let Some(error) = read.error(sector) {
                self.say_of_mirror(sector, copy, CopyFault::Device(error.clone()));
                continue;
            }
            let bytes = read.sector(sector).unwrap_or_default();
            if self.sums.holds(self.csum, sector, bytes) {
                self.close(sector, bytes, out);
            } else {
                let refused = self.refused(sector, bytes);
                self.count(copy, &refused);
                self.say_of_mirror(sector, copy, CopyFault::Refused(refused));
            }
        }
    }

    fn try_parity(&mut self, memory: &mut [u8]) {
        if self.is_done() {
            return;
        }
        let Some(row) = Row::read(self.volume, self.layout, &self.piece) else { return };
        for (sector, out) in memory.chunks_exact_mut(SECTOR).enumerate() {
            if self.open.get(sector).is_some_and(Option::is_some) {
                self.try_ways(&row, sector, out);
            }
        }
    }

    fn try_ways(&mut self, row: &Row<'_>, sector: usize, out: &mut [u8]) {
        let mut ways = row.ways(sector);
        if self.sums == Sums::None {
            // Nothing could tell one way from another.
            ways.truncate(1);
        }
        if ways.is_empty() {
            let error = row.any_error(sector).cloned();
            let fault = error.map_or(CopyFault::TooManyLost, CopyFault::Device);
            self.say(sector, row.lost_kind(sector), fault);
        }
        let mut computed = [0; SECTOR];
        for way in ways {
            if self.try_way(row, way, sector, &mut computed) {
                self.close(sector, &computed, out);
                return;
            }
        }
    }

    fn try_way(&mut self, row: &Row<'_>, way: Way, sector: usize, computed: &mut [u8]) -> bool {
        if row.sector(way, sector, computed).is_none() {
            self.say(sector, row.kind(way), CopyFault::TooManyLost);
            return false;
        }
        if self.sums.holds(self.csum, sector, computed) {
            return true;
        }
        let refused = self.refused(sector, computed);
        self.say(sector, row.kind(way), CopyFault::Refused(refused));
        false
    }

    fn close(&mut self, sector: usize, bytes: &[u8], out: &mut [u8]) {
        if let Some(open) = self.open.get_mut(sector)
            && bytes.len() == out.len()
        {
            out.copy_from_slice(bytes);
            *open = None;
            self.volume.rescues.sectors.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Reports sectors that were bad on the device that was read first, and are good now.
    fn report(&self, fault: &Fault) {
        let good = self.open.iter().position(Option::is_none);
        let (copy, error) = match fault {
            Fault::NotRead => return,
            Fault::Corrupt { copy } => (*copy, None),
            Fault::Failed { copy, error } => (*copy, Some(error)),
        };
        let Some(sector) = good else { return };
        let slot = self.layout.copies(&self.piece).get(copy).and_then(|place| place.slot);
        let offset = length(sector.saturating_mul(SECTOR));
        let at = Logical(self.piece.logical.0.saturating_add(offset));
        self.volume.note_trouble(slot, TroubleKind::Data, Some(at), || {
            error.map_or_else(|| "wrong checksum".to_owned(), |error| chain(error))
        });
    }

    /// Zeroes what is still bad, and says where that is.
    fn finish(self, memory: &mut [u8]) -> Vec<BadRange> {
        let mut bad: Vec<BadRange> = Vec::new();
        for ((sector, open), out) in
            self.open.into_iter().enumerate().zip(memory.chunks_exact_mut(SECTOR))
        {
            let Some(copies) = open else { continue };
            out.fill(0);
            self.volume.rescues.sectors_lost.fetch_add(1, Ordering::Relaxed);
            let offset = length(sector.saturating_mul(SECTOR));
            let logical = Logical(self.piece.logical.0.saturating_add(offset));
            match bad.last_mut() {
                Some(last) if last.logical.0.saturating_add(last.bytes) == logical.0 => {
                    last.bytes = last.bytes.saturating_add(length(SECTOR));
                }
                Some(_) | None => {
                    bad.push(BadRange { logical, bytes: length(SECTOR), copies });
                }
            }
        }
        bad
    }

    fn refused(&self, sector: usize, bytes: &[u8]) -> Refused {
        let have = self.csum.digest(bytes);
        let have = have.get(..self.csum.bytes()).unwrap_or_default();
        let want = self.sums.of_sector(self.csum, sector).unwrap_or_default();
        Refused::new("csum", Hex(have), Hex(want))
    }

    fn count(&self, copy: usize, refused: &Refused) {
        let place = self.layout.copies(&self.piece).get(copy);
        self.volume.count_refused(place.and_then(|place| place.slot), refused);
    }

    fn say_of_mirror(&mut self, sector: usize, copy: usize, fault: CopyFault) {
        if let Some(kind) = mirror(self.layout, &self.piece, copy) {
            self.say(sector, kind, fault);
        }
    }

    fn say(&mut self, sector: usize, copy: CopyKind, fault: CopyFault) {
        if let Some(Some(verdicts)) = self.open.get_mut(sector) {
            verdicts.push(CopyVerdict { copy, fault });
        }
    }
}

/// A digest as people read it.
struct Hex<'a>(&'a [u8]);

impl fmt::Display for Hex<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("0x")?;
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}
