//! [`GroupCommit`]: many threads append, and one of them makes everything appended durable.
//!
//! ```text
//! append: number n ...  wait for n: | n is durable, or failed: return
//!                                   | another thread leads: wait for its end, look again
//!                                   | lead: compose a batch of 1..=m, write it, complete it
//! ```
//!
//! Laws:
//!
//! 1. Appending is one step: a batch has all of an entry or nothing. It has all entries with lower
//!    numbers, too.
//! 2. One thread leads at a time. A batch closes when its leader composes it, which is when the
//!    batch before it has ended. No timer is involved.
//! 3. A leader that ends in any way, also by an error or a panic, wakes all others: each looks
//!    again, and one of them may lead.
//! 4. After a failure nothing is appended or durable in the transaction. What was durable before
//!    stays durable.
//! 5. A batch that completes after its transaction has ended counts for nothing: the commit of the
//!    transaction makes its entries durable.
//!
//! Left to others: what is appended, and the writes.

use super::CommitReason;
use super::sync::{Condvar, Mutex, MutexGuard, rank};
use butternut_format::units::Generation;

/// The number of entries appended in a transaction.
pub(crate) type LogNumber = u64;

/// What threads append to, in one transaction after another.
#[derive(Debug)]
pub(crate) struct GroupCommit<T> {
    state: Mutex<State<T>, rank::LogEntries>,
    wake: Condvar,
}

#[derive(Debug)]
struct State<T> {
    generation: Generation,
    content: T,
    appended: LogNumber,
    synced: LogNumber,
    has_leader: bool,
    failure: Option<CommitReason>,
}

/// How a wait for an entry ended.
#[derive(Debug)]
pub(crate) enum Waited<'a, T> {
    Durable,
    /// The transaction of the entry has ended. Its commit makes the entry durable.
    Ended,
    /// Only a commit makes the entry durable.
    Failed(CommitReason),
    /// The calling thread leads. It waits again afterwards.
    Lead(Leader<'a, T>),
}

/// The thread that writes a batch (laws 2 and 3).
#[derive(Debug)]
pub(crate) struct Leader<'a, T> {
    group: &'a GroupCommit<T>,
}

/// A batch that was composed.
#[derive(Debug)]
pub(crate) struct Batch<B> {
    pub(crate) content: B,
    pub(crate) generation: Generation,
    /// Its entries are those after the first number, up to the last.
    first: LogNumber,
    last: LogNumber,
}

impl<B> Batch<B> {
    /// Returns the number of entries.
    pub(crate) fn entries(&self) -> u64 {
        self.last.saturating_sub(self.first)
    }
}

impl<T> State<T> {
    fn new(generation: Generation, content: T) -> Self {
        Self { generation, content, appended: 0, synced: 0, has_leader: false, failure: None }
    }
}

impl<T> GroupCommit<T> {
    pub(crate) fn new(generation: Generation, content: T) -> Self {
        Self { state: Mutex::new(State::new(generation, content)), wake: Condvar::default() }
    }

    fn state(&self) -> MutexGuard<'_, State<T>> {
        self.state.lock()
    }

    /// Returns how many entries were appended in the transaction.
    pub(crate) fn number(&self) -> LogNumber {
        self.state().appended
    }

    pub(crate) fn read<R>(&self, read: impl FnOnce(&T) -> R) -> R {
        read(&self.state().content)
    }

    /// Appends an entry (law 1). If `append` fails, it has changed nothing.
    pub(crate) fn append(
        &self,
        append: impl FnOnce(&mut T) -> Result<(), CommitReason>,
    ) -> Result<LogNumber, CommitReason> {
        let mut state = self.state();
        if let Some(reason) = state.failure {
            return Err(reason);
        }
        append(&mut state.content)?;
        state.appended = state.appended.saturating_add(1);
        Ok(state.appended)
    }

    /// Ends the transaction, which is frozen, and begins the next one. Returns the content.
    pub(crate) fn end_transaction(&self, next: Generation, content: T) -> T {
        let mut state = self.state();
        let has_leader = state.has_leader;
        let ended = std::mem::replace(&mut *state, State::new(next, content));
        state.has_leader = has_leader;
        drop(state);
        self.wake.notify_all();
        ended.content
    }

    /// Waits until an entry is durable, or there is something to do for it.
    pub(crate) fn wait(&self, generation: Generation, number: LogNumber) -> Waited<'_, T> {
        let mut state = self.state();
        loop {
            if state.generation != generation {
                return Waited::Ended;
            }
            if state.synced >= number {
                return Waited::Durable;
            }
            if let Some(reason) = state.failure {
                return Waited::Failed(reason);
            }
            if !state.has_leader {
                state.has_leader = true;
                return Waited::Lead(Leader { group: self });
            }
            state = self.wake.wait(state);
        }
    }
}

impl<T> Leader<'_, T> {
    /// Returns the generation of the transaction that is logged now.
    pub(crate) fn generation(&self) -> Generation {
        self.group.state().generation
    }

    /// Composes a batch of everything that was appended in a transaction. `None` if that fails (law
    /// 4), or if the transaction has ended.
    pub(crate) fn compose<B>(
        &self,
        generation: Generation,
        compose: impl FnOnce(&mut T) -> Result<B, CommitReason>,
    ) -> Option<Batch<B>> {
        let mut state = self.group.state();
        if state.generation != generation {
            return None;
        }
        match compose(&mut state.content) {
            Ok(content) => {
                let (first, last) = (state.synced, state.appended);
                Some(Batch { content, generation, first, last })
            }
            Err(reason) => {
                state.failure = Some(reason);
                None
            }
        }
    }

    /// Records that a batch is durable, unless its transaction has ended (law 5). Returns whether
    /// it does.
    pub(crate) fn complete<B>(&self, batch: &Batch<B>, record: impl FnOnce(&mut T, &B)) -> bool {
        let mut state = self.group.state();
        let is_current = state.generation == batch.generation;
        if is_current {
            debug_assert!(state.failure.is_none(), "only a leader records a failure (law 2)");
            state.synced = batch.last;
            record(&mut state.content, &batch.content);
        }
        is_current
    }

    /// Records that nothing more of a transaction can be logged (law 4).
    pub(crate) fn fail(&self, generation: Generation, reason: CommitReason) {
        let mut state = self.group.state();
        if state.generation == generation {
            state.failure = Some(reason);
        }
    }
}

impl<T> Drop for Leader<'_, T> {
    fn drop(&mut self) {
        self.group.state().has_leader = false;
        self.group.wake.notify_all();
    }
}
