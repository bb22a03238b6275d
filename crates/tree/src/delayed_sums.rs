//! Delayed checksums: digests of the data that the running transaction brought, gathered until its
//! commit puts them into the checksum tree in one sorted pass.
//!
//! ```text
//! put --> region (1 MiB of logical space): a bit and a digest for each sector --> the tree
//!           |
//! remove ---+  what comes and goes in one transaction never reaches the tree
//! ```
//!
//! Laws:
//!
//! 1. What is here is newer than what the tree has for the same sector.
//! 2. What is on its way into the tree stays here until it is there. So who looks here first, and
//!    into the tree behind that, misses nothing.
//! 3. The digests are a leaf of the lock order: nothing is locked, read or allocated under them.
//!
//! Left to others: the items of the tree (`sums`).

use butternut_format::units::{Logical, SECTOR_BYTES, length};
use std::collections::BTreeMap;
use std::ops::Range;

const REGION_SECTORS: usize = 256;
const WORD_BITS: usize = 64;

/// Digests of neighbours, packed one after another.
pub(crate) type Run = (Logical, Vec<u8>);

#[derive(Debug)]
struct Region {
    present: [u64; REGION_SECTORS / WORD_BITS],
    digests: Box<[u8]>,
}

/// The digests, by sector.
#[derive(Debug)]
pub(crate) struct DelayedSums {
    digest_bytes: usize,
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

    /// The next sectors that are present, side by side.
    fn next_run(&self, sectors: &Range<usize>) -> Option<Range<usize>> {
        let start = sectors.clone().find(|sector| self.has(*sector))?;
        let end = (start..sectors.end).find(|sector| !self.has(*sector));
        Some(start..end.unwrap_or(sectors.end))
    }
}

impl DelayedSums {
    pub(crate) fn new(digest_bytes: usize) -> Self {
        Self { digest_bytes, regions: BTreeMap::new() }
    }

    /// The sectors from `start` on have these digests, packed one after another.
    pub(crate) fn put(&mut self, start: Logical, digests: &[u8]) {
        let digest = self.digest_bytes;
        let first = start.0 / SECTOR_BYTES;
        let count = length(digests.len().checked_div(digest).unwrap_or(0));
        let mut rest = digests;
        for (number, sectors) in parts(first..first.saturating_add(count)) {
            let region = self.regions.entry(number).or_insert_with(|| Region {
                present: [0; REGION_SECTORS / WORD_BITS],
                digests: vec![0; REGION_SECTORS.saturating_mul(digest)].into_boxed_slice(),
            });
            let (now, later) = rest.split_at(rest.len().min(sectors.len().saturating_mul(digest)));
            if let Some(place) = region.digests.get_mut(bytes(&sectors, digest)) {
                place.copy_from_slice(now);
            }
            region.set(sectors, true);
            rest = later;
        }
    }

    /// Nobody will ask for the digests of these bytes of logical space again.
    pub(crate) fn remove(&mut self, range: &Range<u64>) {
        for (number, sectors) in parts(sectors_of(range)) {
            let Some(region) = self.regions.get_mut(&number) else { continue };
            region.set(sectors, false);
            if region.present == [0; REGION_SECTORS / WORD_BITS] {
                self.regions.remove(&number);
            }
        }
    }

    /// Shows what there is of the bytes of `range` to `see`, in order.
    pub(crate) fn find(&self, range: &Range<u64>, see: &mut dyn FnMut(Logical, &[u8])) {
        for (number, mut sectors) in parts(sectors_of(range)) {
            let Some(region) = self.regions.get(&number) else { continue };
            while let Some(run) = region.next_run(&sectors) {
                let at = number.saturating_mul(length(REGION_SECTORS)) + length(run.start);
                let digests = region.digests.get(bytes(&run, self.digest_bytes));
                see(Logical(at.saturating_mul(SECTOR_BYTES)), digests.unwrap_or_default());
                sectors.start = run.end;
            }
        }
    }

    /// The first runs from `from` on, neighbours in one; at least so many bytes of digests, or all.
    pub(crate) fn runs(&self, from: Logical, bytes_min: usize) -> Vec<Run> {
        let mut runs: Vec<Run> = Vec::new();
        let mut total = 0;
        let region_bytes = length(REGION_SECTORS).saturating_mul(SECTOR_BYTES);
        for number in self.regions.range(from.0 / region_bytes..).map(|(number, _)| *number) {
            let start = number.saturating_mul(region_bytes);
            let range = start.max(from.0)..start.saturating_add(region_bytes);
            self.find(&range, &mut |at, digests| {
                total += digests.len();
                match runs.last_mut() {
                    Some((first, known)) if self.end(*first, known) == at => {
                        known.extend_from_slice(digests);
                    }
                    _ => runs.push((at, digests.to_vec())),
                }
            });
            if total >= bytes_min {
                break;
            }
        }
        runs
    }

    /// Where the sectors of a run end.
    pub(crate) fn end(&self, start: Logical, digests: &[u8]) -> Logical {
        let sectors = digests.len().checked_div(self.digest_bytes).unwrap_or(0);
        Logical(start.0.saturating_add(length(sectors).saturating_mul(SECTOR_BYTES)))
    }

    pub(crate) fn clear(&mut self) {
        self.regions.clear();
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.regions.is_empty()
    }

    /// Memory that they take.
    pub(crate) fn bytes(&self) -> u64 {
        let region = size_of::<Region>() + REGION_SECTORS.saturating_mul(self.digest_bytes);
        length(self.regions.len()).saturating_mul(length(region))
    }
}

fn sectors_of(range: &Range<u64>) -> Range<u64> {
    range.start / SECTOR_BYTES..range.end.div_ceil(SECTOR_BYTES)
}

fn bytes(sectors: &Range<usize>, digest: usize) -> Range<usize> {
    sectors.start.saturating_mul(digest)..sectors.end.saturating_mul(digest)
}

/// Sectors by region: its number, and which of its sectors.
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

    fn all(sums: &DelayedSums) -> Vec<(u64, Vec<u8>)> {
        sums.runs(Logical(0), usize::MAX).into_iter().map(|(at, run)| (at.0 / 4096, run)).collect()
    }

    #[test]
    fn neighbours_are_one_run_across_regions_and_what_is_removed_is_not_seen() {
        let mut sums = DelayedSums::new(2);
        sums.put(at(250), &(0..24).collect::<Vec<u8>>());
        sums.put(at(1000), &[7, 7]);
        assert_eq!(all(&sums), [(250, (0..24).collect()), (1000, vec![7, 7])]);
        sums.remove(&sectors(252..257));
        sums.remove(&sectors(0..250));
        sums.remove(&sectors(1000..5000));
        assert_eq!(all(&sums), [(250, vec![0, 1, 2, 3]), (257, (14..24).collect())]);
        sums.put(at(251), &[9, 9, 8, 8]);
        assert_eq!(all(&sums)[0], (250, vec![0, 1, 9, 9, 8, 8]));
        let mut seen = Vec::new();
        sums.find(&sectors(251..258), &mut |at, run| seen.push((at.0 / 4096, run.to_vec())));
        assert_eq!(seen, [(251, vec![9, 9, 8, 8]), (257, vec![14, 15])]);
        sums.remove(&sectors(0..1 << 20));
        assert!(sums.is_empty());
        assert_eq!(sums.bytes(), 0);
    }

    #[test]
    fn runs_come_in_batches() {
        let mut sums = DelayedSums::new(4);
        for sector in (0..4096).step_by(2) {
            sums.put(at(sector), &[1; 4]);
        }
        let mut from = Logical(0);
        let mut count = 0;
        loop {
            let runs = sums.runs(from, 1024);
            let Some((last, digests)) = runs.last() else { break };
            assert!(runs.len() <= 256);
            count += runs.len();
            from = sums.end(*last, digests);
        }
        assert_eq!(count, 2048);
    }
}
