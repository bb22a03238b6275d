//! Pinned runs: bytes that were freed in a transaction whose commit is not complete. The last
//! commit on disk still refers to them, so they must not be overwritten.
//!
//! Laws:
//! 1. Pinned runs overlap neither each other nor free runs.
//! 2. A run is unpinned once: when its generation, or a later one, is unpinned.

use crate::free::Run;
use butternut_format::units::Generation;
use std::collections::BTreeMap;

/// Runs that are unpinned while the lock is held once.
const BATCH_RUNS: usize = 256;

/// The pinned runs of one group, by first sector.
#[derive(Debug, Default)]
pub(crate) struct Pinned {
    runs: BTreeMap<u32, (u32, Generation)>,
    sectors: u64,
}

impl Pinned {
    pub(crate) fn sectors(&self) -> u64 {
        self.sectors
    }

    pub(crate) fn overlaps(&self, run: Run) -> bool {
        let before = self.runs.range(..run.end()).next_back();
        before.is_some_and(|(&start, &(sectors, _))| Run { start, sectors }.end() > run.start)
    }

    /// Adds a run that overlaps no other, and joins it to neighbours of the same generation.
    pub(crate) fn insert(&mut self, run: Run, generation: Generation) {
        debug_assert!(!self.overlaps(run), "law 1");
        let mut whole = run;
        let before = self.runs.range(..run.start).next_back();
        let before = before.map(|(&start, &(sectors, of))| (Run { start, sectors }, of));
        if let Some((before, of)) = before
            && before.end() == run.start
            && of == generation
        {
            self.runs.remove(&before.start);
            whole.start = before.start;
            whole.sectors = whole.sectors.saturating_add(before.sectors);
        }
        if let Some(&(sectors, of)) = self.runs.get(&run.end())
            && of == generation
        {
            self.runs.remove(&run.end());
            whole.sectors = whole.sectors.saturating_add(sectors);
        }
        self.runs.insert(whole.start, (whole.sectors, generation));
        self.sectors = self.sectors.saturating_add(u64::from(run.sectors));
    }

    /// Removes the first runs of generations up to `generation`, from sector `from` on. Returns
    /// them, and the sector to continue at, if there may be more.
    pub(crate) fn unpin_batch(
        &mut self,
        generation: Generation,
        from: u32,
    ) -> (Vec<Run>, Option<u32>) {
        let mut out = Vec::new();
        let mut next = None;
        for (nth, (&start, &(sectors, of))) in self.runs.range(from..).enumerate() {
            if nth >= BATCH_RUNS {
                next = Some(start);
                break;
            }
            if of <= generation {
                out.push(Run { start, sectors });
            }
        }
        for run in &out {
            self.runs.remove(&run.start);
            self.sectors = self.sectors.saturating_sub(u64::from(run.sectors));
        }
        (out, next)
    }
}
