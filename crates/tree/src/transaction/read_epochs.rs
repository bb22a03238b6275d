//! Read epochs: space that a commit frees is not used again while a reader of an older transaction
//! may still read it from a device.
//!
//! ```text
//! reader   misses a block --> enters an epoch, descends again, reads the block --> leaves
//!          enters an epoch --> looks extents up, reads their data --> leaves
//! commit   frees the block and becomes durable; the block's space stays pinned until the reader
//!          has left its epoch
//! ```
//!
//! Laws:
//!
//! 1. While a reader is in an epoch, no committed block that was reachable when it entered is
//!    overwritten, and no data extent that a tree showed then or has shown since. The reader finds
//!    what its tree names, and a mismatch is damage, which is counted and reported. Data that was
//!    never in a tree is no part of this: its space is freed at once
//!    ([`Forest::release_data`](crate::Forest::release_data)).
//! 2. A descent that finds all its blocks in memory enters no epoch.
//! 3. Space that stayed pinned for a reader becomes free when the last such reader leaves, or with
//!    the next commit. A reservation that finds no space waits for such readers before it fails,
//!    at most [`READERS_WAIT_MAX`] long: its caller may hold a lock that a reader waits for.
//! 4. A reader never discards: its caller may hold locks, and a discard takes long. With the option
//!    `discard`, what the last reader leaves stays pinned until the next commit, with or without
//!    changes, or until a reservation finds no space ([`ReadEpochs::unpin_left`]).

use crate::transaction::discards::Discards;
use crate::transaction::gate::Gate;
use butternut_format::units::{Generation, Logical};
use butternut_space::Space;
use butternut_sys::lock::{Condvar, Mutex, MutexGuard, rank};
use butternut_volume::Volume;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

/// The longest time for which a reservation waits for readers (law 3).
pub(crate) const READERS_WAIT_MAX: Duration = Duration::from_secs(2);

/// The readers of a forest that are in an epoch, and the way that pinned space becomes free.
#[derive(Debug)]
pub(crate) struct ReadEpochs {
    volume: Arc<Volume>,
    space: Arc<Space>,
    gate: Arc<Gate>,
    discards: Arc<Discards>,
    /// Whether space is discarded before it becomes free (law 4).
    discards_freed: bool,
    state: Mutex<State, rank::ReadEpochs>,
    /// Signalled when a reader has left its epoch and has unpinned what waited for it.
    left: Condvar,
}

#[derive(Debug, Default)]
struct State {
    /// The number of readers that entered while a transaction ran, by its generation.
    count: BTreeMap<Generation, usize>,
    /// The newest committed transaction whose pinned space waits for readers.
    waiting: Option<Generation>,
    /// The number of readers that have left and unpin space.
    unpinning: usize,
}

/// A reader in an epoch. Dropping it leaves the epoch.
#[derive(Debug)]
pub struct ReadEpoch<'a> {
    /// With the transaction that ran when it was entered; `None` on a forest that is not open for
    /// writing, where no space is ever freed.
    entered: Option<(&'a ReadEpochs, Generation)>,
}

impl ReadEpochs {
    pub(crate) fn new(
        volume: Arc<Volume>,
        space: Arc<Space>,
        gate: Arc<Gate>,
        discards: Arc<Discards>,
        discards_freed: bool,
    ) -> Self {
        let (state, left) = (Mutex::default(), Condvar::new());
        Self { volume, space, gate, discards, discards_freed, state, left }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    /// Waits until the space that was pinned for readers is free (law 3). The space that later
    /// commits pin is not waited for. Waits at most `time`.
    pub(crate) fn wait_for_readers(&self, time: Duration) {
        let state = self.state();
        let waiting = state.waiting;
        let is_pinned = |state: &mut State| {
            let oldest = state.count.keys().next().copied();
            let may_read = waiting.zip(oldest).is_some_and(|(waiting, oldest)| oldest <= waiting);
            may_read || state.unpinning > 0
        };
        drop(self.left.wait_timeout_while(state, time, is_pinned));
    }

    /// Enters the epoch of the running transaction, and leaves it when the result is dropped (law
    /// 1).
    pub(crate) fn enter(&self) -> ReadEpoch<'_> {
        let mut state = self.state();
        // Read under the lock: no commit of this generation has computed yet what it unpins.
        let since = self.gate.generation();
        let count = state.count.entry(since).or_default();
        *count = count.saturating_add(1);
        ReadEpoch { entered: Some((self, since)) }
    }

    /// Unpins the space that the commit of `committed` freed, except what a reader may still read.
    /// Discards it first, if the forest was opened with `discard`; errors of the discard are
    /// ignored, since the space is free in any case.
    pub(crate) fn unpin(&self, committed: Generation) {
        let up_to = self.state().unpinnable(committed);
        if let Some(up_to) = up_to {
            self.unpin_up_to(up_to);
        }
    }

    /// Unpins the space that the last readers have left without a discard (law 4).
    pub(crate) fn unpin_left(&self) {
        if !self.discards_freed {
            return;
        }
        let up_to = self.state().unpinnable_now();
        if let Some(up_to) = up_to {
            self.unpin_up_to(up_to);
        }
    }

    fn unpin_up_to(&self, generation: Generation) {
        // After an error it is not certain what the devices hold: another writer may use the space.
        if !self.discards_freed || self.gate.cause().is_some() {
            self.space.unpin(generation);
            return;
        }
        let _discarding = self.discards.begin();
        for range in self.space.unpin_to_caller(generation) {
            let bytes = range.end.saturating_sub(range.start);
            self.volume.discard(Logical(range.start), bytes).ok();
            self.gate.check_space(self.space.release(range));
        }
    }
}

impl ReadEpoch<'_> {
    /// Enters no epoch.
    pub(crate) fn none() -> Self {
        Self { entered: None }
    }
}

impl State {
    /// Returns the newest transaction, up to `committed`, whose pinned space no reader may read any
    /// more.
    fn unpinnable(&mut self, committed: Generation) -> Option<Generation> {
        let oldest = self.count.keys().next().copied();
        let up_to = match oldest {
            Some(oldest) if oldest <= committed => oldest.0.checked_sub(1).map(Generation),
            Some(_) | None => Some(committed),
        };
        self.waiting = (up_to != Some(committed)).then_some(committed);
        up_to
    }

    /// Returns the same for the commits whose pinned space waits for readers.
    fn unpinnable_now(&mut self) -> Option<Generation> {
        self.waiting.and_then(|waiting| self.unpinnable(waiting))
    }
}

impl Drop for ReadEpoch<'_> {
    fn drop(&mut self) {
        let Some((epochs, since)) = self.entered else { return };
        let mut state = epochs.state();
        if let Some(count) = state.count.get_mut(&since) {
            *count = count.saturating_sub(1);
            if *count == 0 {
                state.count.remove(&since);
            }
        }
        if state.waiting.is_none() {
            return;
        }
        if !epochs.discards_freed
            && let Some(up_to) = state.unpinnable_now()
        {
            state.unpinning = state.unpinning.saturating_add(1);
            drop(state);
            epochs.space.unpin(up_to);
            state = epochs.state();
            state.unpinning = state.unpinning.saturating_sub(1);
        }
        drop(state);
        epochs.left.notify_all();
    }
}
