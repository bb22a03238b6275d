//! [`Workers`]: a bounded pool of threads for blocking calls, used where there is no ring.
//!
//! 1. The pool starts its threads when the first work arrives, at most `threads_max` of them, and
//!    keeps them. If the system refuses to start a thread, the pool works with fewer, down to none.
//! 2. [`Workers::for_each`] processes borrowed items and returns when all are done. The calling
//!    thread processes items too, so the call finishes even if every worker is busy: it can neither
//!    deadlock nor starve.
//! 3. [`Workers::spawn`] queues an owned job. If the pool has no thread, the job runs on the
//!    calling thread. The pool does not bound the number of queued jobs; the caller must.
//! 4. A panic in a job of `for_each` reaches the caller after all items are done. A panic in a
//!    spawned job ends that job, not the worker thread.
//!
//! Threads do not survive a fork: a process that turns into a daemon must create its pools
//! afterwards.

use crate::lock::{Condvar, Mutex, MutexGuard, rank};
use std::any::Any;
use std::collections::VecDeque;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::affinity;

type Panic = Box<dyn Any + Send>;

/// A shared handle to a pool of threads. The threads end when the last handle is dropped.
#[derive(Clone)]
pub struct Workers {
    pool: Arc<Pool>,
}

struct Pool {
    shared: Arc<Shared>,
}

struct Shared {
    name: &'static str,
    threads_max: usize,
    state: Mutex<State, rank::WorkerQueue>,
    work: Condvar,
}

#[derive(Default)]
struct State {
    jobs: VecDeque<Job>,
    threads: usize,
    idle: usize,
    closed: bool,
}

enum Job {
    Owned(Box<dyn FnOnce() + Send>),
    Batch(Arc<Batch>),
}

/// A batch of borrowed items, as the workers see it.
struct Batch {
    /// The caller's closure. It is called only for an index below `count`, and `for_each` does not
    /// return before all of these calls have returned.
    closure: *const (),
    /// Calls `closure` for one index.
    call: unsafe fn(*const (), usize),
    count: usize,
    next: AtomicUsize,
    remaining: Mutex<Remaining, rank::WorkerBatch>,
    all_done: Condvar,
}

struct Remaining {
    items: usize,
    panic: Option<Panic>,
}

// SAFETY: `closure` points to a `Sync` closure, used only while the caller of `for_each` waits.
unsafe impl Send for Batch {}
// SAFETY: as above; all else is atomics and locks.
unsafe impl Sync for Batch {}

/// A pointer to the first of the items, for threads that each take different ones.
struct Items<T>(*mut T);

// SAFETY: the pointer is only used to reach distinct items, which are `Send`.
unsafe impl<T: Send> Sync for Items<T> {}

impl<T> Items<T> {
    fn at(&self, index: usize) -> *mut T {
        self.0.wrapping_add(index)
    }
}

impl Workers {
    /// Creates a pool of at most `threads_max` threads named `name`. No thread is started yet.
    pub fn new(name: &'static str, threads_max: usize) -> Workers {
        let state = Mutex::new(State::default());
        let shared = Arc::new(Shared { name, threads_max, state, work: Condvar::new() });
        Workers { pool: Arc::new(Pool { shared }) }
    }

    /// Calls `each` once for every item, on the idle workers and the calling thread, and waits for
    /// all calls.
    pub fn for_each<T: Send>(&self, items: &mut [T], each: impl Fn(&mut T) + Sync) {
        let count = items.len();
        if count <= 1 {
            items.iter_mut().for_each(each);
            return;
        }
        let items = Items(items.as_mut_ptr());
        let call = |index: usize| {
            // SAFETY: every index below `count` is handed out once, so this is the only reference
            // to the item. The items are borrowed until `for_each` returns.
            let item = unsafe { &mut *items.at(index) };
            each(item);
        };
        let batch = Arc::new(Batch::new(&call, count));
        self.pool.shared.offer(&batch);
        batch.work();
        if let Some(panic) = batch.finish() {
            resume_unwind(panic);
        }
    }

    /// Queues a job for any worker thread (law 3).
    pub fn spawn(&self, job: impl FnOnce() + Send + 'static) {
        let shared = &self.pool.shared;
        let mut state = shared.state();
        shared.grow(&mut state, 1);
        if state.threads == 0 {
            drop(state);
            job();
            return;
        }
        state.jobs.push_back(Job::Owned(Box::new(job)));
        drop(state);
        shared.work.notify_one();
    }

    /// Returns the number of threads that were started.
    pub fn threads(&self) -> usize {
        self.pool.shared.state().threads
    }
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        // No job runs under this lock.
        self.state.lock()
    }

    /// Queues a batch for idle workers, as many times as it has items besides the first one of the
    /// caller. Busy workers are not counted, so a finished batch leaves no stale jobs in the queue.
    fn offer(self: &Arc<Self>, batch: &Arc<Batch>) {
        let wanted = (batch.count - 1).min(self.threads_max);
        let mut state = self.state();
        self.grow(&mut state, wanted);
        for _ in 0..wanted.min(state.idle.saturating_sub(state.jobs.len())) {
            state.jobs.push_back(Job::Batch(Arc::clone(batch)));
        }
        drop(state);
        self.work.notify_all();
    }

    /// Starts threads until `wanted` are idle, up to `threads_max`.
    fn grow(self: &Arc<Self>, state: &mut State, wanted: usize) {
        while state.idle < wanted + state.jobs.len() && state.threads < self.threads_max {
            let shared = Arc::clone(self);
            let builder = std::thread::Builder::new().name(self.name.to_owned());
            if builder.spawn(move || shared.serve()).is_err() {
                return;
            }
            state.threads += 1;
            state.idle += 1;
        }
    }

    /// The main function of a worker thread. `grow` has counted the thread as idle.
    fn serve(&self) {
        affinity::reset_affinity();
        let mut state = self.state();
        loop {
            if let Some(job) = state.jobs.pop_front() {
                state.idle -= 1;
                drop(state);
                match job {
                    Job::Batch(batch) => batch.work(),
                    // The panic hook has already reported a panic (law 4).
                    Job::Owned(job) => drop(catch_unwind(AssertUnwindSafe(job))),
                }
                state = self.state();
                state.idle += 1;
            } else if state.closed {
                return;
            } else {
                state = self.work.wait(state);
            }
        }
    }
}

impl Batch {
    fn new<F: Fn(usize) + Sync>(closure: &F, count: usize) -> Batch {
        /// Calls a closure of type `F`.
        ///
        /// # Safety
        ///
        /// `closure` points to an `F` that lives until the call returns.
        unsafe fn call<F: Fn(usize) + Sync>(closure: *const (), index: usize) {
            // SAFETY: guaranteed by the caller of `call`.
            let closure = unsafe { &*closure.cast::<F>() };
            closure(index);
        }
        Batch {
            closure: std::ptr::from_ref(closure).cast(),
            call: call::<F>,
            count,
            next: AtomicUsize::new(0),
            remaining: Mutex::new(Remaining { items: count, panic: None }),
            all_done: Condvar::new(),
        }
    }

    /// Processes items until every index has been handed out.
    fn work(&self) {
        loop {
            let index = self.next.fetch_add(1, Ordering::Relaxed);
            if index >= self.count {
                return;
            }
            let outcome = catch_unwind(AssertUnwindSafe(|| {
                // SAFETY: `call` and `closure` were created together. While this item is not done,
                // the caller is still in `for_each`, where the closure lives.
                unsafe { (self.call)(self.closure, index) }
            }));
            let mut remaining = self.remaining.lock();
            remaining.items -= 1;
            if let Err(panic) = outcome {
                remaining.panic = Some(panic);
            }
            if remaining.items == 0 {
                self.all_done.notify_all();
            }
        }
    }

    /// Waits until every item is done, and returns the panic of one of them, if any.
    fn finish(&self) -> Option<Panic> {
        let mut remaining = self.remaining.lock();
        while remaining.items > 0 {
            remaining = self.all_done.wait(remaining);
        }
        remaining.panic.take()
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.shared.state().closed = true;
        self.shared.work.notify_all();
    }
}

impl fmt::Debug for Workers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let shared = &self.pool.shared;
        write!(f, "Workers({}, {} of {})", shared.name, self.threads(), shared.threads_max)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;

    #[test]
    fn every_item_is_visited_once() {
        let workers = Workers::new("test", 4);
        for count in [0, 1, 2, 3, 100, 5000] {
            let mut items = vec![0u32; count];
            workers.for_each(&mut items, |item| *item += 1);
            assert!(items.iter().all(|item| *item == 1));
        }
        assert!(workers.threads() <= 4);
    }

    #[test]
    fn a_batch_finishes_while_every_worker_is_busy() {
        let workers = Workers::new("test", 2);
        let (release, stuck) = mpsc::channel::<()>();
        let stuck: Arc<Mutex<_, rank::WorkerBatch>> = Arc::new(Mutex::new(stuck));
        for _ in 0..2 {
            let stuck = Arc::clone(&stuck);
            workers.spawn(move || assert!(stuck.lock().recv().is_err()));
        }
        let mut items = [0; 10];
        workers.for_each(&mut items, |item| *item = 1);
        assert_eq!(items, [1; 10]);
        drop(release);
    }

    #[test]
    fn a_panic_reaches_the_caller_after_all_items_and_the_pool_stays_usable() {
        let workers = Workers::new("test", 3);
        let mut items: Vec<u32> = (0..50).collect();
        let outcome = catch_unwind(AssertUnwindSafe(|| {
            workers.for_each(&mut items, |item| {
                assert_ne!(*item, 17, "on purpose");
                *item = 1000;
            });
        }));
        assert!(outcome.is_err());
        assert_eq!(items.iter().filter(|item| **item == 1000).count(), 49);
        workers.spawn(|| panic!("on purpose"));
        let (sender, receiver) = mpsc::channel();
        workers.spawn(move || sender.send(5).unwrap());
        assert_eq!(receiver.recv(), Ok(5));
    }

    #[test]
    fn a_pool_without_threads_runs_jobs_on_the_caller() {
        let workers = Workers::new("test", 0);
        let (sender, receiver) = mpsc::channel();
        workers.spawn(move || sender.send(5).unwrap());
        assert_eq!(receiver.try_recv(), Ok(5));
        let mut items = [0; 10];
        workers.for_each(&mut items, |item| *item = 1);
        assert_eq!(items, [1; 10]);
    }
}
