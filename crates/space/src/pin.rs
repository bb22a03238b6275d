//! Pinning the ranges that a transaction freed, and unpinning them after its commit. The pinned
//! runs of a group are in [`crate::pinned`].

use crate::class::Class;
use crate::error::SpaceError;
use crate::group::bytes_of;
use crate::state::{Space, State};
use butternut_format::units::Generation;
use std::ops::Range;

impl Space {
    /// Pins an allocated range that transaction `generation` freed. It becomes free when that
    /// generation is unpinned, after its commit.
    ///
    /// # Errors
    /// A part of the range is not allocated.
    pub fn pin(&self, range: Range<u64>, generation: Generation) -> Result<(), SpaceError> {
        let mut state = self.lock();
        let (index, run) = state.allocated_run(&range)?;
        let Some(group) = state.groups.get_mut(index) else { return Ok(()) };
        group.pinned.insert(run, generation);
        let (class, start) = (group.class, group.start);
        let bytes = range.end.saturating_sub(range.start);
        state.pinned_groups.insert(start);
        let pool = state.pool_mut(class);
        pool.pinned = pool.pinned.saturating_add(bytes);
        Ok(())
    }

    /// Frees everything that was pinned up to `generation`. Returns the ranges, which may be
    /// allocated again when this returns.
    pub fn unpin(&self, generation: Generation) -> Vec<Range<u64>> {
        self.unpin_batch(generation, true)
    }

    /// Unpins like [`Space::unpin`], but the ranges stay allocated: the caller discards and then
    /// releases them.
    pub fn unpin_to_caller(&self, generation: Generation) -> Vec<Range<u64>> {
        self.unpin_batch(generation, false)
    }

    /// Returns the pinned bytes of all classes.
    pub fn pinned_bytes(&self) -> u64 {
        self.lock().pinned_bytes()
    }

    /// Unpins in batches and drops the lock between two of them.
    fn unpin_batch(&self, generation: Generation, is_freed: bool) -> Vec<Range<u64>> {
        let groups: Vec<u64> = self.lock().pinned_groups.iter().copied().collect();
        let mut all = Vec::new();
        for start in groups {
            let mut next = Some(0);
            while let Some(from) = next {
                let ranges;
                (ranges, next) = self.lock().unpin_batch(start, (generation, from, is_freed));
                all.extend(ranges);
            }
        }
        all
    }
}

impl State {
    /// Returns the pinned bytes of all classes.
    pub(crate) fn pinned_bytes(&self) -> u64 {
        let classes = Class::ALL.iter().filter(|class| self.pool_class(**class) == **class);
        classes.map(|class| self.pool_ref(*class).pinned).sum()
    }

    /// Unpins one batch of a group. Returns its ranges, and the sector to continue at.
    fn unpin_batch(
        &mut self,
        start: u64,
        (generation, from, is_freed): (Generation, u32, bool),
    ) -> (Vec<Range<u64>>, Option<u32>) {
        let nothing = (Vec::new(), None);
        let Some(index) = self.index_at(start) else { return nothing };
        let Some(group) = self.groups.get_mut(index) else { return nothing };
        let (runs, next) = group.pinned.unpin_batch(generation, from);
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
                self.free_allocated(index, run);
            }
        }
        (ranges, next)
    }
}
