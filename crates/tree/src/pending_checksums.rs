//! Pending checksums: checksums of the data that the running transaction added, gathered in memory
//! until the commit writes them into the checksum tree in one sorted pass.
//!
//! ```text
//! put --> region (1 MiB of logical space): a bit and a checksum for each sector --> checksum tree
//!           |
//! remove ---+  data that is added and dropped in one transaction never reaches the tree
//! ```
//!
//! Laws:
//!
//! 1. A pending checksum is newer than the one in the tree for the same sector.
//! 2. Checksums stay here until the commit has written them into the tree. So a reader that looks
//!    here first, and in the tree after that, misses none.
//! 3. Their lock is a leaf of the lock order: a thread that holds it takes no other lock, reads no
//!    block and allocates no space.
//!
//! Left to others: the items of the tree (`checksum_tree`).

use butternut_format::units::{Logical, SECTOR_BYTES, length};
use std::collections::BTreeMap;
use std::ops::Range;

const REGION_SECTORS: usize = 256;
const WORD_BITS: usize = 64;

/// The address of the first of consecutive sectors, and their checksums, one after another.
pub(crate) type Run = (Logical, Vec<u8>);

#[derive(Debug)]
struct Region {
    present: [u64; REGION_SECTORS / WORD_BITS],
    checksums: Box<[u8]>,
}

/// Checksums by sector.
#[derive(Debug)]
pub(crate) struct PendingChecksums {
    checksum_bytes: usize,
    regions: BTreeMap<u64, Region>,
}

impl Region {
    fn has(&self, sector: usize) -> bool {
        self.present
            .get(sector / WORD_BITS)
            .is_some_and(|word| word >> (sector % WORD_BITS) & 1 == 1)
    }

    fn set(&mut self, sectors: Range<usize>, is_present: bool) {
        for sector in sectors {
            if let Some(word) = self.present.get_mut(sector / WORD_BITS) {
                let bit = 1 << (sector % WORD_BITS);
                *word = if is_present { *word | bit } else { *word & !bit };
            }
        }
    }

    /// Returns the first consecutive sectors in `sectors` that have checksums.
    fn next_run(&self, sectors: &Range<usize>) -> Option<Range<usize>> {
        let start = sectors.clone().find(|sector| self.has(*sector))?;
        let end = (start..sectors.end).find(|sector| !self.has(*sector));
        Some(start..end.unwrap_or(sectors.end))
    }
}

impl PendingChecksums {
    pub(crate) fn new(checksum_bytes: usize) -> Self {
        Self { checksum_bytes, regions: BTreeMap::new() }
    }

    /// Adds the checksums of the sectors from `start` on, stored one after another.
    pub(crate) fn put(&mut self, start: Logical, checksums: &[u8]) {
        let checksum_bytes = self.checksum_bytes;
        let first = start.0 / SECTOR_BYTES;
        let count = length(checksums.len().checked_div(checksum_bytes).unwrap_or(0));
        let mut rest = checksums;
        for (number, sectors) in parts(first..first.saturating_add(count)) {
            let region = self.regions.entry(number).or_insert_with(|| Region {
                present: [0; REGION_SECTORS / WORD_BITS],
                checksums: vec![0; REGION_SECTORS.saturating_mul(checksum_bytes)]
                    .into_boxed_slice(),
            });
            let (now, later) =
                rest.split_at(rest.len().min(sectors.len().saturating_mul(checksum_bytes)));
            if let Some(place) = region.checksums.get_mut(bytes(&sectors, checksum_bytes)) {
                place.copy_from_slice(now);
            }
            region.set(sectors, true);
            rest = later;
        }
    }

    /// Removes the checksums of a logical range.
    pub(crate) fn remove(&mut self, range: &Range<u64>) {
        for (number, sectors) in parts(sectors_of(range)) {
            let Some(region) = self.regions.get_mut(&number) else { continue };
            region.set(sectors, false);
            if region.present == [0; REGION_SECTORS / WORD_BITS] {
                self.regions.remove(&number);
            }
        }
    }

    /// Passes the checksums of a logical range to `visit`, in order.
    pub(crate) fn find(&self, range: &Range<u64>, visit: &mut dyn FnMut(Logical, &[u8])) {
        for (number, mut sectors) in parts(sectors_of(range)) {
            let Some(region) = self.regions.get(&number) else { continue };
            while let Some(run) = region.next_run(&sectors) {
                let at = number.saturating_mul(length(REGION_SECTORS)) + length(run.start);
                let checksums = region.checksums.get(bytes(&run, self.checksum_bytes));
                visit(Logical(at.saturating_mul(SECTOR_BYTES)), checksums.unwrap_or_default());
                sectors.start = run.end;
            }
        }
    }

    /// Returns the first runs of a logical range, joined where they are consecutive: at least
    /// `bytes_min` bytes of checksums, or all.
    pub(crate) fn runs(&self, within: &Range<Logical>, bytes_min: usize) -> Vec<Run> {
        let mut runs: Vec<Run> = Vec::new();
        let mut total = 0;
        let region_bytes = length(REGION_SECTORS).saturating_mul(SECTOR_BYTES);
        let (first, last) = (within.start.0 / region_bytes, within.end.0.div_ceil(region_bytes));
        if first >= last {
            return runs;
        }
        for number in self.regions.range(first..last).map(|(number, _)| *number) {
            let start = number.saturating_mul(region_bytes);
            let end = start.saturating_add(region_bytes).min(within.end.0);
            let range = start.max(within.start.0)..end;
            self.find(&range, &mut |at, checksums| {
                total += checksums.len();
                match runs.last_mut() {
                    Some((first, known)) if self.end(*first, known) == at => {
                        known.extend_from_slice(checksums);
                    }
                    _ => runs.push((at, checksums.to_vec())),
                }
            });
            if total >= bytes_min {
                break;
            }
        }
        runs
    }

    /// Returns the end of the sectors of a run.
    pub(crate) fn end(&self, start: Logical, checksums: &[u8]) -> Logical {
        let sectors = checksums.len().checked_div(self.checksum_bytes).unwrap_or(0);
        Logical(start.0.saturating_add(length(sectors).saturating_mul(SECTOR_BYTES)))
    }

    /// Removes the checksums of a range that may be very long.
    pub(crate) fn clear(&mut self, range: &Range<Logical>) {
        let region_bytes = length(REGION_SECTORS).saturating_mul(SECTOR_BYTES);
        let numbers = range.start.0 / region_bytes..range.end.0.div_ceil(region_bytes);
        if numbers.is_empty() {
            return;
        }
        let known: Vec<u64> = self.regions.range(numbers).map(|(number, _)| *number).collect();
        for number in known {
            let start = number.saturating_mul(region_bytes);
            let end = start.saturating_add(region_bytes);
            self.remove(&(start.max(range.start.0)..end.min(range.end.0)));
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.regions.is_empty()
    }

    /// Returns the memory that the checksums take, in bytes.
    pub(crate) fn bytes(&self) -> u64 {
        let region = size_of::<Region>() + REGION_SECTORS.saturating_mul(self.checksum_bytes);
        length(self.regions.len()).saturating_mul(length(region))
    }
}

fn sectors_of(range: &Range<u64>) -> Range<u64> {
    range.start / SECTOR_BYTES..range.end.div_ceil(SECTOR_BYTES)
}

fn bytes(sectors: &Range<usize>, checksum_bytes: usize) -> Range<usize> {
    sectors.start.saturating_mul(checksum_bytes)..sectors.end.saturating_mul(checksum_bytes)
}

/// Splits a range of sectors by region: the number of the region, and the sectors in it.
fn parts(sectors: Range<u64>) -> impl Iterator<Item = (u64, Range<usize>)> {
    let each = length(REGION_SECTORS);
    let numbers = sectors.start / each..sectors.end.div_ceil(each);
    numbers.map(move |number| {
        let start = number * each;
        let inside = |at: u64| usize::try_from(at - start).unwrap_or(REGION_SECTORS);
        (number, inside(sectors.start.max(start))..inside(sectors.end.min(start + each)))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(sector: u64) -> Logical {
        Logical(sector * SECTOR_BYTES)
    }

    fn sectors(range: Range<u64>) -> Range<u64> {
        at(range.start).0..at(range.end).0
    }

    fn all(pending: &PendingChecksums) -> Vec<(u64, Vec<u8>)> {
        pending
            .runs(&(Logical(0)..Logical(u64::MAX)), usize::MAX)
            .into_iter()
            .map(|(at, run)| (at.0 / 4096, run))
            .collect()
    }

    #[test]
    fn consecutive_sectors_are_one_run_across_regions() {
        let mut pending = PendingChecksums::new(2);
        pending.put(at(250), &(0..24).collect::<Vec<u8>>());
        pending.put(at(1000), &[7, 7]);
        assert_eq!(all(&pending), [(250, (0..24).collect()), (1000, vec![7, 7])]);
        pending.remove(&sectors(252..257));
        pending.remove(&sectors(0..250));
        pending.remove(&sectors(1000..5000));
        assert_eq!(all(&pending), [(250, vec![0, 1, 2, 3]), (257, (14..24).collect())]);
        pending.put(at(251), &[9, 9, 8, 8]);
        assert_eq!(all(&pending)[0], (250, vec![0, 1, 9, 9, 8, 8]));
        let mut seen = Vec::new();
        pending.find(&sectors(251..258), &mut |at, run| seen.push((at.0 / 4096, run.to_vec())));
        assert_eq!(seen, [(251, vec![9, 9, 8, 8]), (257, vec![14, 15])]);
        pending.remove(&sectors(0..1 << 20));
        assert!(pending.is_empty());
        assert_eq!(pending.bytes(), 0);
    }

    #[test]
    fn runs_are_returned_in_batches() {
        let mut pending = PendingChecksums::new(4);
        for sector in (0..4096).step_by(2) {
            pending.put(at(sector), &[1; 4]);
        }
        let mut rest = Logical(0)..Logical(u64::MAX);
        let mut count = 0;
        loop {
            let runs = pending.runs(&rest, 1024);
            let Some((last, checksums)) = runs.last() else { break };
            assert!(runs.len() <= 256);
            count += runs.len();
            rest.start = pending.end(*last, checksums);
        }
        assert_eq!(count, 2048);
    }

    #[test]
    fn a_range_is_taken_and_the_rest_stays() {
        let mut pending = PendingChecksums::new(1);
        pending.put(at(250), &(0..20).collect::<Vec<u8>>());
        pending.put(at(1 << 40), &[9]);
        let range = at(252)..at(260);
        assert_eq!(pending.runs(&range, usize::MAX), [(at(252), (2..10).collect())]);
        assert!(pending.runs(&(at(300)..at(300)), usize::MAX).is_empty());
        pending.clear(&range);
        let rest = [(250, vec![0, 1]), (260, (10..20).collect()), (1 << 40, vec![9])];
        assert_eq!(all(&pending), rest);
        pending.clear(&(Logical(0)..Logical(u64::MAX)));
        assert!(pending.is_empty());
    }
}
