//! Readers of running trees that read a device: what a commit frees stays unused while one of them
//! may still come to it.
//!
//! ```text
//! reader   descends, misses a block ---> registers, descends anew, reads the block ---> leaves
//! commit   frees the block, is written; another one would use the place again:
//!          it stays pinned until the reader has left
//! ```
//!
//! Laws:
//!
//! 1. A registered reader reads no block whose place was used again since it registered: the block
//!    it finds is the one that its tree named, and a mismatch is damage, to be counted and told.
//! 2. A reader that finds all its blocks in memory registers nowhere.
//! 3. What stayed pinned for a reader is free when the last such reader leaves, or with the next
//!    commit.

use crate::forest::Forest;
use crate::running::Running;
use butternut_format::units::{Generation, Logical};
use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The registered readers of a forest.
#[derive(Debug, Default)]
pub(crate) struct Readers(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    /// How many registered while this transaction ran.
    count: BTreeMap<Generation, usize>,
    /// The newest transaction that is down and whose pinned space waits for readers.
    waiting: Option<Generation>,
}

/// A registered reader. It leaves when this is dropped.
#[derive(Debug)]
pub struct Reading<'a> {
    forest: &'a Forest,
    since: Option<Generation>,
}

impl Readers {
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// Up to which transaction the pinned space can be used again, of those up to `committed`.
    fn unpinnable(&mut self, committed: Generation) -> Option<Generation> {
        let oldest = self.count.keys().next().copied();
        let up_to = match oldest {
            Some(oldest) if oldest <= committed => oldest.0.checked_sub(1).map(Generation),
            Some(_) | None => Some(committed),
        };
        self.waiting = (up_to != Some(committed)).then_some(committed);
        up_to
    }
}

impl Forest {
    /// Registers a reader of running trees (law 1), for as long as the answer lives. On a forest
    /// that is not open for writing nothing is ever freed.
    pub fn reading(&self) -> Reading<'_> {
        let since = self.running().ok().map(|running| {
            let mut state = running.readers.state();
            // Under the lock: no commit of this transaction has decided what it unpins.
            let since = running.gate.generation();
            let count = state.count.entry(since).or_default();
            *count = count.saturating_add(1);
            since
        });
        Reading { forest: self, since }
    }

    /// The commit of a transaction is down: what it freed can be used again, but for what readers
    /// may still come to. It is told to the devices first if that is wanted; a device that refuses
    /// loses nothing by it.
    pub(crate) fn unpin(&self, running: &Running, committed: Generation) {
        let up_to = running.readers.state().unpinnable(committed);
        if let Some(up_to) = up_to {
            self.unpin_up_to(running, up_to);
        }
    }

    fn unpin_up_to(&self, running: &Running, generation: Generation) {
        if !self.discards() {
            running.space.unpin(generation);
            return;
        }
        for range in running.space.take_pinned(generation) {
            let bytes = range.end.saturating_sub(range.start);
            self.volume().discard(Logical(range.start), bytes).ok();
            running.check(running.space.release(range));
        }
    }
}

impl Drop for Reading<'_> {
    fn drop(&mut self) {
        let Some((since, running)) = self.since.zip(self.forest.running().ok()) else { return };
        let up_to = {
            let mut state = running.readers.state();
            if let Some(count) = state.count.get_mut(&since) {
                *count = count.saturating_sub(1);
                if *count == 0 {
                    state.count.remove(&since);
                }
            }
            state.waiting.and_then(|waiting| state.unpinnable(waiting))
        };
        if let Some(up_to) = up_to {
            self.forest.unpin_up_to(running, up_to);
        }
    }
}
