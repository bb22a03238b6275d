//! The gate of the running transaction: counts the open handles, and closes for a commit.
//!
//! The states and the laws are those of [`transaction`](super).

use crate::error::TreeError;
use butternut_format::units::Generation;
use butternut_space::SpaceError;
use butternut_sys::lock::{Condvar, Mutex, MutexGuard, rank};
use std::sync::Arc;

/// Counts the members of the running transaction, and keeps the state of the volume.
#[derive(Debug)]
pub(crate) struct Gate {
    state: Mutex<GateState, rank::Gate>,
    changed: Condvar,
}

#[derive(Debug)]
struct GateState {
    generation: Generation,
    members: usize,
    is_freezing: bool,
    /// Threads that wait for the gate to open, and those of them that the next freeze lets pass.
    waiting: usize,
    passing: usize,
    /// Whether the running transaction has changes.
    is_changed: bool,
    /// The newest transaction whose commit is complete.
    committed: Generation,
    /// The first error that made the volume read-only.
    cause: Option<Arc<TreeError>>,
}

impl Gate {
    pub(crate) fn new(committed: Generation) -> Self {
        let generation = Generation(committed.0.saturating_add(1));
        let state = GateState {
            generation,
            members: 0,
            is_freezing: false,
            waiting: 0,
            passing: 0,
            is_changed: false,
            committed,
            cause: None,
        };
        Self { state: Mutex::new(state), changed: Condvar::new() }
    }

    fn state(&self) -> MutexGuard<'_, GateState> {
        self.state.lock()
    }

    pub(crate) fn generation(&self) -> Generation {
        self.state().generation
    }

    pub(crate) fn committed(&self) -> Generation {
        self.state().committed
    }

    pub(crate) fn cause(&self) -> Option<TreeError> {
        self.state().cause.as_ref().map(read_only)
    }

    /// Fails if an error has made the volume read-only.
    pub(crate) fn check(&self) -> Result<(), TreeError> {
        self.cause().map_or(Ok(()), Err)
    }

    /// Adds a member. Waits while the transaction is being frozen.
    pub(crate) fn join(&self) -> Result<Generation, TreeError> {
        let mut state = self.state();
        if state.is_freezing {
            state.waiting = state.waiting.saturating_add(1);
            while state.is_freezing {
                state = self.changed.wait(state);
            }
            state.waiting = state.waiting.saturating_sub(1);
            state.passing = state.passing.saturating_sub(1);
            if state.passing == 0 {
                self.changed.notify_all();
            }
        }
        if let Some(cause) = &state.cause {
            return Err(read_only(cause));
        }
        state.members = state.members.saturating_add(1);
        Ok(state.generation)
    }

    /// Removes a member.
    pub(crate) fn end(&self) {
        let mut state = self.state();
        state.members = state.members.saturating_sub(1);
        if state.members == 0 {
            self.changed.notify_all();
        }
    }

    /// Whether the transaction has members or is being frozen: members return reservations when
    /// they end.
    pub(crate) fn is_in_use(&self) -> bool {
        let state = self.state();
        state.members > 0 || state.is_freezing
    }

    /// Joins briefly, without a reservation.
    pub(crate) fn join_unreserved(&self) -> Result<Membership<'_>, TreeError> {
        self.join().map(|_| Membership { gate: self, watch: PanicState::now() })
    }

    /// Whether the running transaction has changes.
    pub(crate) fn is_changed(&self) -> bool {
        self.state().is_changed
    }

    pub(crate) fn mark_changed(&self) {
        self.state().is_changed = true;
    }

    /// Closes the gate and waits until the last member ends. Returns the generation to commit, or
    /// `None`, with the gate open again, if the transaction has no changes. Threads that have
    /// waited for the gate when it was last opened for the same transaction join before it closes.
    pub(crate) fn freeze(&self) -> Result<Option<Generation>, TreeError> {
        let mut state = self.state();
        while state.passing > 0 && state.cause.is_none() {
            state = self.changed.wait(state);
        }
        state.is_freezing = true;
        while state.members > 0 && state.cause.is_none() {
            state = self.changed.wait(state);
        }
        let frozen = match &state.cause {
            Some(cause) => Err(read_only(cause)),
            None => Ok(state.is_changed.then_some(state.generation)),
        };
        state.is_freezing = matches!(frozen, Ok(Some(_)));
        if !state.is_freezing {
            self.changed.notify_all();
        }
        frozen
    }

    /// Opens the gate for the same generation, in the middle of the early steps of its commit.
    pub(crate) fn reopen(&self) {
        let mut state = self.state();
        state.passing = state.waiting;
        state.is_freezing = false;
        self.changed.notify_all();
    }

    /// Opens the gate for the next generation.
    pub(crate) fn thaw(&self) {
        let mut state = self.state();
        state.generation = Generation(state.generation.0.saturating_add(1));
        state.is_changed = false;
        state.is_freezing = false;
        self.changed.notify_all();
    }

    pub(crate) fn set_committed(&self, generation: Generation) {
        self.state().committed = generation;
        self.changed.notify_all();
    }

    /// Waits while the transaction before the running one is being committed.
    ///
    /// # Errors
    /// The volume is read-only.
    pub(crate) fn wait_for_commit(&self) -> Result<(), TreeError> {
        let mut state = self.state();
        while state.committed.0.saturating_add(1) < state.generation.0 && state.cause.is_none() {
            state = self.changed.wait(state);
        }
        state.cause.as_ref().map_or(Ok(()), |cause| Err(read_only(cause)))
    }

    /// Waits until the transaction of a generation is committed.
    ///
    /// # Errors
    /// The volume is read-only.
    pub(crate) fn wait_for_commit_of(&self, generation: Generation) -> Result<(), TreeError> {
        let mut state = self.state();
        while state.committed < generation && state.cause.is_none() {
            state = self.changed.wait(state);
        }
        if state.committed >= generation {
            return Ok(());
        }
        state.cause.as_ref().map_or(Ok(()), |cause| Err(read_only(cause)))
    }

    /// Makes the volume read-only after an error of `space`, which means that the trees contradict
    /// each other.
    pub(crate) fn check_space<T>(&self, result: Result<T, SpaceError>) {
        if let Err(error) = result {
            self.poison(TreeError::Space(Box::new(error)));
        }
    }

    /// Makes the volume read-only. The first cause is kept and returned.
    pub(crate) fn poison(&self, cause: TreeError) -> TreeError {
        let mut state = self.state();
        state.is_freezing = false;
        let cause = Arc::clone(state.cause.get_or_insert_with(|| Arc::new(cause)));
        self.changed.notify_all();
        read_only(&cause)
    }
}

/// Membership in the running transaction without a handle, for code that changes no tree.
pub(crate) struct Membership<'a> {
    gate: &'a Gate,
    watch: PanicState,
}

impl Drop for Membership<'_> {
    fn drop(&mut self) {
        self.watch.check(self.gate);
        self.gate.end();
    }
}

/// Detects a panic of the thread that happened after this value was created.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PanicState {
    was_panicking: bool,
}

impl PanicState {
    pub(crate) fn now() -> Self {
        Self { was_panicking: std::thread::panicking() }
    }

    /// Poisons the gate after a panic (law 2). Called when the value goes out of scope.
    pub(crate) fn check(self, gate: &Gate) {
        if std::thread::panicking() && !self.was_panicking {
            gate.poison(TreeError::Panicked);
        }
    }
}

fn read_only(cause: &Arc<TreeError>) -> TreeError {
    TreeError::ReadOnly { cause: Arc::clone(cause) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicBool, Ordering};

    #[test]
    fn a_thread_that_waits_joins_before_the_gate_closes_again() {
        let gate = Gate::new(Generation(7));
        gate.mark_changed();
        let has_joined = AtomicBool::new(false);
        for _ in 0..100 {
            has_joined.store(false, Ordering::SeqCst);
            assert_eq!(gate.freeze().unwrap(), Some(Generation(8)));
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    assert_eq!(gate.join().unwrap(), Generation(8), "the same transaction");
                    has_joined.store(true, Ordering::SeqCst);
                    gate.end();
                });
                while gate.state().waiting == 0 {
                    std::thread::yield_now();
                }
                gate.reopen();
                assert_eq!(gate.freeze().unwrap(), Some(Generation(8)));
                assert!(has_joined.load(Ordering::SeqCst));
                gate.reopen();
            });
        }
    }

    #[test]
    fn a_thread_that_waits_does_not_hold_up_a_gate_that_has_failed() {
        let gate = Gate::new(Generation(7));
        gate.mark_changed();
        assert!(gate.freeze().unwrap().is_some());
        std::thread::scope(|scope| {
            let waits = scope.spawn(|| gate.join().unwrap_err());
            while gate.state().waiting == 0 {
                std::thread::yield_now();
            }
            gate.poison(TreeError::Panicked);
            assert!(matches!(waits.join().unwrap(), TreeError::ReadOnly { .. }));
        });
        assert!(gate.freeze().is_err());
    }
}
