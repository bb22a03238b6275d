//! The free runs of one group, in sectors from the start of the group.
//!
//! Two indexes hold the same runs: one by address, to free a run and join it to its neighbours, and
//! one by length, to choose a run. A group of one gibibyte has at most 131,072 runs, which take a
//! few mebibytes.
//!
//! Laws:
//! 1. Runs do not overlap, do not touch, and are not empty.
//! 2. Both indexes hold the same runs.

use std::collections::{BTreeMap, BTreeSet};

/// How many runs that may fit, depending on alignment, are tried before a longer run that surely
/// fits.
const TRIES: usize = 16;

/// Consecutive sectors.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Run {
    pub(crate) start: u32,
    pub(crate) sectors: u32,
}

/// An alignment in sectors: `(origin + start) % unit == 0`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Alignment {
    /// The first sector of the group, modulo the unit.
    pub(crate) origin: u32,
    /// A power of two.
    pub(crate) unit: u32,
}

#[derive(Debug, Default)]
pub(crate) struct FreeExtents {
    by_start: BTreeMap<u32, u32>,
    /// (length, start).
    by_length: BTreeSet<(u32, u32)>,
    sectors: u64,
}

impl Run {
    pub(crate) fn end(self) -> u32 {
        self.start.saturating_add(self.sectors)
    }
}

impl Alignment {
    /// Returns the aligned part of a run, in whole units; `None` if it holds no whole unit.
    pub(crate) fn inside(self, run: Run) -> Option<Run> {
        if self.unit <= 1 {
            return Some(run);
        }
        let mask = self.unit.checked_sub(1)?;
        let first = self.origin.checked_add(run.start)?;
        let start = first.checked_add(mask)? & !mask;
        let end = self.origin.checked_add(run.end())? & !mask;
        let sectors = end.checked_sub(start).filter(|&sectors| sectors > 0)?;
        Some(Run { start: start.checked_sub(self.origin)?, sectors })
    }
}

impl FreeExtents {
    /// Creates the index of sorted runs that keep law 1.
    pub(crate) fn of_sorted(runs: Vec<Run>) -> Self {
        let sectors = runs.iter().map(|run| u64::from(run.sectors)).sum();
        let by_length = runs.iter().map(|run| (run.sectors, run.start)).collect();
        let by_start = runs.into_iter().map(|run| (run.start, run.sectors)).collect();
        Self { by_start, by_length, sectors }
    }

    pub(crate) fn sectors(&self) -> u64 {
        self.sectors
    }

    pub(crate) fn len(&self) -> usize {
        self.by_start.len()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = Run> + '_ {
        self.by_start.iter().map(|(&start, &sectors)| Run { start, sectors })
    }

    /// Returns the runs that end behind `start`. The first of them may begin before it.
    pub(crate) fn from(&self, start: u32) -> impl Iterator<Item = Run> + '_ {
        let before = self.by_start.range(..start).next_back();
        let after = self.by_start.range(start..);
        let runs = before.into_iter().chain(after);
        let runs = runs.map(|(&start, &sectors)| Run { start, sectors });
        runs.filter(move |run| run.end() > start)
    }

    /// Returns the run that begins exactly at `start`.
    pub(crate) fn at(&self, start: u32) -> Option<Run> {
        self.by_start.get(&start).map(|&sectors| Run { start, sectors })
    }

    pub(crate) fn longest(&self) -> u32 {
        self.by_length.last().map_or(0, |&(sectors, _)| sectors)
    }

    /// Whether any of these sectors is free.
    pub(crate) fn overlaps(&self, run: Run) -> bool {
        let before = self.by_start.range(..run.end()).next_back();
        before.is_some_and(|(&start, &sectors)| Run { start, sectors }.end() > run.start)
    }

    /// Adds a run and joins it to its neighbours. Returns `false` and changes nothing if a part of
    /// it is free already.
    #[must_use]
    pub(crate) fn insert(&mut self, run: Run) -> bool {
        if run.sectors == 0 {
            return true;
        }
        let before = self.by_start.range(..run.end()).next_back();
        let before = before.map(|(&start, &sectors)| Run { start, sectors });
        if before.is_some_and(|before| before.end() > run.start) {
            return false;
        }
        let mut whole = run;
        if let Some(before) = before.filter(|before| before.end() == run.start) {
            self.delete(before);
            whole.start = before.start;
            whole.sectors = whole.sectors.saturating_add(before.sectors);
        }
        if let Some(after) = self.at(run.end()) {
            self.delete(after);
            whole.sectors = whole.sectors.saturating_add(after.sectors);
        }
        self.add(whole);
        true
    }

    /// Removes `part` from the run that holds it. Returns `false` if no run holds all of it.
    #[must_use]
    pub(crate) fn take(&mut self, part: Run) -> bool {
        let Some((&start, &sectors)) = self.by_start.range(..=part.start).next_back() else {
            return false;
        };
        let run = Run { start, sectors };
        if part.end() > run.end() || part.sectors == 0 {
            return false;
        }
        self.delete(run);
        let head = part.start.saturating_sub(run.start);
        let tail = run.end().saturating_sub(part.end());
        self.add(Run { start: run.start, sectors: head });
        self.add(Run { start: part.end(), sectors: tail });
        true
    }

    /// Returns the aligned part of the shortest run whose aligned part has at least `sectors`.
    pub(crate) fn best_fit(&self, sectors: u32, alignment: Alignment) -> Option<Run> {
        // A run of this length fits wherever it begins.
        let sure = sectors.saturating_add(alignment.unit.saturating_sub(1));
        let fits = |&(sectors_of, start): &(u32, u32)| {
            alignment
                .inside(Run { start, sectors: sectors_of })
                .filter(|part| part.sectors >= sectors)
        };
        let uncertain = || self.by_length.range((sectors, 0)..(sure, 0));
        let found = uncertain().take(TRIES).find_map(fits);
        found
            .or_else(|| self.by_length.range((sure, 0)..).find_map(fits))
            .or_else(|| uncertain().skip(TRIES).find_map(fits))
    }

    /// Returns the longest aligned part of any run.
    pub(crate) fn longest_part(&self, alignment: Alignment) -> Option<Run> {
        let mut best: Option<Run> = None;
        for &(sectors, start) in self.by_length.iter().rev() {
            if best.is_some_and(|best| best.sectors >= sectors) {
                break;
            }
            let part = alignment.inside(Run { start, sectors });
            let longer = part.filter(|part| best.is_none_or(|best| part.sectors > best.sectors));
            best = longer.or(best);
        }
        best
    }

    fn add(&mut self, run: Run) {
        if run.sectors > 0 {
            self.by_start.insert(run.start, run.sectors);
            self.by_length.insert((run.sectors, run.start));
            self.sectors = self.sectors.saturating_add(u64::from(run.sectors));
        }
    }

    fn delete(&mut self, run: Run) {
        let sectors = self.by_start.remove(&run.start);
        let is_in_both = self.by_length.remove(&(run.sectors, run.start));
        debug_assert!(sectors == Some(run.sectors) && is_in_both, "law 2");
        self.sectors = self.sectors.saturating_sub(u64::from(run.sectors));
    }
}
