//! [`Discards`]: counts the threads that discard freed space.
//!
//! ```text
//! pinned --unpin_to_caller--> allocated, being discarded --release--> free
//! free --allocate_for_trim--/
//! hole of a device --reserve_hole--> being discarded --release_hole--> hole
//! ```
//!
//! Space that is being discarded is neither free nor pinned, and no chunk can be placed in a hole
//! that is. So a reservation that finds no space does not see that some is about to be free.
//!
//! Laws:
//!
//! 1. A thread is counted before it takes the space, and until all of it is free, also if it
//!    panics.
//! 2. A counted thread waits for devices only, and for no lock that a thread may hold while it
//!    reserves space. So a wait for counted threads ends.
//! 3. A thread that has waited comes before the next batch of a trim ([`Waited`]). So a trim, whose
//!    batches follow each other, starves no reservation.

use butternut_sys::lock::{Condvar, Mutex, MutexGuard, rank};

/// The threads of a forest that discard freed space.
#[derive(Debug, Default)]
pub(crate) struct Discards {
    state: Mutex<State, rank::Discards>,
    /// Signalled when a thread has ended its discard, or its wait.
    ended: Condvar,
}

#[derive(Debug, Default)]
struct State {
    running: usize,
    /// How many have ended.
    ended: u64,
    /// Threads that wait, or have waited and not used the space yet.
    waiting: usize,
}

/// A thread that is counted, until this is dropped.
#[derive(Debug)]
pub(crate) struct Discarding<'a>(&'a Discards);

/// A thread that has waited for a discard. Until this is dropped, it comes before the next batch of
/// a trim (law 3).
#[derive(Debug)]
pub(crate) struct Waited<'a>(&'a Discards);

impl Discards {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    /// Counts the calling thread until the result is dropped (law 1).
    pub(crate) fn begin(&self) -> Discarding<'_> {
        let mut state = self.state();
        state.running = state.running.saturating_add(1);
        Discarding(self)
    }

    /// Counts the calling thread like [`Self::begin`], for the next batch of a trim. Waits first
    /// while threads that have waited come before it (law 3).
    pub(crate) fn begin_batch(&self) -> Discarding<'_> {
        let mut state = self.state();
        while state.waiting > 0 {
            state = self.ended.wait(state);
        }
        state.running = state.running.saturating_add(1);
        Discarding(self)
    }

    /// Waits until one of the threads that discard has ended. Returns `None` if there is none.
    pub(crate) fn wait_for_one(&self) -> Option<Waited<'_>> {
        let mut state = self.state();
        if state.running == 0 {
            return None;
        }
        let ended = state.ended;
        state.waiting = state.waiting.saturating_add(1);
        while state.running > 0 && state.ended == ended {
            state = self.ended.wait(state);
        }
        Some(Waited(self))
    }
}

impl Drop for Waited<'_> {
    fn drop(&mut self) {
        let mut state = self.0.state();
        state.waiting = state.waiting.saturating_sub(1);
        drop(state);
        self.0.ended.notify_all();
    }
}

impl Drop for Discarding<'_> {
    fn drop(&mut self) {
        let mut state = self.0.state();
        state.running = state.running.saturating_sub(1);
        state.ended = state.ended.wrapping_add(1);
        drop(state);
        self.0.ended.notify_all();
    }
}

#[cfg(test)]
mod tests;
