//! What was freed in a transaction, and stays as it is until the commit of that transaction is
//! down: until then the volume on disk still points at it.
//!
//! Laws:
//! 1. Pinned runs do not overlap each other or anything free.
//! 2. A run comes out once: when its generation, or a later one, is let go.

use crate::class::Class;
use crate::error::SpaceError;
use crate::free::Run;
use crate::group::bytes_of;
use crate::state::{Space, State};
use butternut_format::units::Generation;
use std::collections::BTreeMap;
use std::ops::Range;

/// Runs looked at in one go.
const BATCH_RUNS: usize = 256;

/// The pinned runs of one group, by their first sector.
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

    /// Adds a run that overlaps none, joined to the one before and the one behind it.
    fn insert(&mut self, run: Run, generation: Generation) {
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

    /// Takes out the first runs up to a generation, from sector `from` on. With the sector to go
    /// on from, unless these were the last.
    fn let_go(&mut self, generation: Generation, from: u32) -> (Vec<Run>, Option<u32>) {
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

impl Space {
    /// A range in use was freed in transaction `generation`: it may be used again when that is
    /// down, and not before.
    pub fn pin(&self, range: Range<u64>, generation: Generation) -> Result<(), SpaceError> {
        let mut state = self.lock();
        let (index, run) = state.taken_run(&range)?;
        let Some(group) = state.groups.get_mut(index) else { return Ok(()) };
        group.pinned.insert(run, generation);
        let (class, start) = (group.class, group.start);
        let bytes = range.end.saturating_sub(range.start);
        state.pinned_groups.insert(start);
        let pool = state.pool_mut(class);
        pool.pinned = pool.pinned.saturating_add(bytes);
        Ok(())
    }

    /// All that was pinned up to `generation` is free. Returns the ranges, which may be in use
    /// again by now.
    pub fn unpin(&self, generation: Generation) -> Vec<Range<u64>> {
        self.let_go(generation, true)
    }

    /// As [`Space::unpin`], but what comes out is the caller's, who discards it and releases it.
    pub fn take_pinned(&self, generation: Generation) -> Vec<Range<u64>> {
        self.let_go(generation, false)
    }

    /// Bytes of all classes that wait for a commit.
    pub fn pinned_bytes(&self) -> u64 {
        let state = self.lock();
        let classes = Class::ALL.iter().filter(|class| state.pool_class(**class) == **class);
        classes.map(|class| state.pool_ref(*class).pinned).sum()
    }

    /// In batches: others get the lock in between.
    fn let_go(&self, generation: Generation, is_freed: bool) -> Vec<Range<u64>> {
        let groups: Vec<u64> = self.lock().pinned_groups.iter().copied().collect();
        let mut all = Vec::new();
        for start in groups {
            let mut next = Some(0);
            while let Some(from) = next {
                let ranges;
                (ranges, next) = self.lock().let_go(start, (generation, from, is_freed));
                all.extend(ranges);
            }
        }
        all
    }
}

impl State {
    /// Lets go of one batch of a group. With the ranges, and where to go on.
    fn let_go(
        &mut self,
        start: u64,
        (generation, from, is_freed): (Generation, u32, bool),
    ) -> (Vec<Range<u64>>, Option<u32>) {
        let nothing = (Vec::new(), None);
        let Some(index) = self.index_at(start) else { return nothing };
        let Some(group) = self.groups.get_mut(index) else { return nothing };
        let (runs, next) = group.pinned.let_go(generation, from);
        let ranges = runs.iter().map(|run| group.range(*run)).collect();
        let (class, rest) = (group.class, group.pinned.sectors());
        let sectors: u64 = runs.iter().map(|run| u64::from(run.sectors)).sum();
        let pool = self.pool_mut(class);
        pool.pinned = pool.pinned.saturating_sub(bytes_of(sectors));
        if rest == 0 {
            self.pinned_groups.remove(&start);
        }
        if is_freed {
            for run in runs {
                self.free_taken(index, run);
            }
        }
        (ranges, next)
    }
}
