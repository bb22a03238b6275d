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
//! 3. A leader that ends in any way, also by an error or a panic, wakes all threads that wait for
//!    its batch, and one thread that waits for the next batch: it leads next. The others of the
//!    next batch sleep on. A failure and the end of a transaction wake all threads.
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
    /// For the threads that wait for a batch with an even and with an odd number.
    ended: [Condvar; 2],
}

#[derive(Debug)]
struct State<T> {
    generation: Generation,
    content: T,
    appended: LogNumber,
    synced: LogNumber,
    has_leader: bool,
    /// The number of the batch that has a leader, or gets one next.
    batch: usize,
    /// The last entry of that batch, once it is composed.
    closed_at: Option<LogNumber>,
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
        Self {
            generation,
            content,
            appended: 0,
            synced: 0,
            has_leader: false,
            batch: 0,
            closed_at: None,
            failure: None,
        }
    }
}

impl<T> GroupCommit<T> {
    pub(crate) fn new(generation: Generation, content: T) -> Self {
        let ended = [Condvar::default(), Condvar::default()];
        Self { state: Mutex::new(State::new(generation, content)), ended }
    }

    /// Returns what the threads wait on that wait for a batch.
    fn ended(&self, batch: usize) -> &Condvar {
        let [even, odd] = &self.ended;
        if batch.is_multiple_of(2) { even } else { odd }
    }

    fn wake_all(&self) {
        for ended in &self.ended {
            ended.notify_all();
        }
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
        let (has_leader, batch) = (state.has_leader, state.batch);
        let ended = std::mem::replace(&mut *state, State::new(next, content));
        (state.has_leader, state.batch) = (has_leader, batch);
        drop(state);
        self.wake_all();
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
            let is_closed = state.closed_at.is_some_and(|last| last < number);
            let batch = state.batch.wrapping_add(usize::from(is_closed));
            state = self.ended(batch).wait(state);
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
                state.closed_at = Some(last);
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
        let mut state = self.group.state();
        state.has_leader = false;
        state.closed_at = None;
        let (batch, has_failed) = (state.batch, state.failure.is_some());
        state.batch = batch.wrapping_add(1);
        drop(state);
        if has_failed {
            self.group.wake_all();
        } else {
            self.group.ended(batch).notify_all();
            self.group.ended(batch.wrapping_add(1)).notify_one();
        }
    }
}
