//! What was freed in a transaction, and stays as it is until the commit of that transaction is
//! down: until then the volume on disk still points at it.
//!
//! Laws:
//! 1. Pinned runs do not overlap each other or anything free.
//! 2. A run comes out once: when its generation, or a later one, is let go.

use crate::class::Class;
use crate::error::SpaceError;
use crate::free::Run;
use crate::state::{Space, State};
use butternut_format::units::Generation;
use std::collections::BTreeMap;
use std::ops::Range;

/// Ranges set free at once: others get the lock in between.
const BATCH_RANGES: usize = 256;

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

    /// Takes out all runs up to a generation, in order.
    fn let_go(&mut self, generation: Generation) -> Vec<Run> {
        let mut out = Vec::new();
        self.runs.retain(|&start, &mut (sectors, of)| {
            let stays = of > generation;
            if !stays {
                out.push(Run { start, sectors });
            }
            stays
        });
        let gone: u64 = out.iter().map(|run| u64::from(run.sectors)).sum();
        self.sectors = self.sectors.saturating_sub(gone);
        out
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
        let ranges = self.lock().let_go(generation);
        for batch in ranges.chunks(BATCH_RANGES) {
            let mut state = self.lock();
            for range in batch {
                // Law 1: it was in use until now. A group with something in use is not removed.
                if let Ok((index, run)) = state.run_of(range) {
                    state.free_taken(index, run);
                }
            }
        }
        ranges
    }

    /// As [`Space::unpin`], but what comes out is the caller's, who discards it and releases it.
    pub fn take_pinned(&self, generation: Generation) -> Vec<Range<u64>> {
        self.lock().let_go(generation)
    }

    /// Bytes of all classes that wait for a commit.
    pub fn pinned_bytes(&self) -> u64 {
        let state = self.lock();
        let classes = Class::ALL.iter().filter(|class| state.pool_class(**class) == **class);
        classes.map(|class| state.pool_ref(*class).pinned).sum()
    }
}

impl State {
    fn let_go(&mut self, generation: Generation) -> Vec<Range<u64>> {
        let mut ranges = Vec::new();
        for start in std::mem::take(&mut self.pinned_groups) {
            let Some(index) = self.index_at(start) else { continue };
            let Some(group) = self.groups.get_mut(index) else { continue };
            let runs = group.pinned.let_go(generation);
            let sectors: u64 = runs.iter().map(|run| u64::from(run.sectors)).sum();
            ranges.extend(runs.into_iter().map(|run| group.range(run)));
            let (class, rest) = (group.class, group.pinned.sectors());
            let pool = self.pool_mut(class);
            pool.pinned = pool.pinned.saturating_sub(crate::group::bytes_of(sectors));
            if rest > 0 {
                self.pinned_groups.insert(start);
            }
        }
        ranges
    }
}
