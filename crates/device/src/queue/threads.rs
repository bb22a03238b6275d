//! The lane without a ring: the devices' blocking calls, on the threads of one pool that all queue
//! pairs of the process share.
//!
//! A job holds its request until it has run, and then puts the completion into the queue pair's
//! mailbox. A device that panics completes its request with an error.

use super::{Errno, execute, failure};
use crate::device::Device;
use crate::request::{Completion, Request};
use butternut_sys::buffers::Load;
use butternut_sys::workers::Workers;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, OnceLock, PoisonError};
use std::time::Instant;

/// As many blocking calls as the process has in flight at most.
const THREADS_MAX: usize = 16;

#[derive(Debug, Default)]
pub(super) struct Threads {
    mailbox: Arc<Mailbox>,
    /// Requests whose completion was not taken from the mailbox.
    outstanding: usize,
}

#[derive(Debug, Default)]
struct Mailbox {
    completions: Mutex<Vec<Completion>>,
    arrived: Condvar,
}

impl Threads {
    pub(super) fn outstanding(&self) -> usize {
        self.outstanding
    }

    pub(super) fn submit(&mut self, device: Arc<dyn Device>, request: Request) {
        self.outstanding += 1;
        let mailbox = Arc::clone(&self.mailbox);
        workers().spawn(move || {
            let completion = execute_safely(&*device, request);
            // Before the delivery: who has all completions may expect the device to be free.
            drop(device);
            mailbox.deliver(completion);
        });
    }

    /// Waits for `min` completions, or all, or the deadline; takes all that are there.
    pub(super) fn wait(
        &mut self,
        min: usize,
        deadline: Option<Instant>,
        out: &mut Vec<Completion>,
    ) {
        let min = min.min(self.outstanding);
        let mailbox = &self.mailbox;
        let mut there = mailbox.completions.lock().unwrap_or_else(PoisonError::into_inner);
        while there.len() < min {
            let left = deadline.map(|at| at.saturating_duration_since(Instant::now()));
            there = match left {
                None => mailbox.arrived.wait(there).unwrap_or_else(PoisonError::into_inner),
                Some(left) if left.is_zero() => break,
                Some(left) => {
                    let waited = mailbox.arrived.wait_timeout(there, left);
                    waited.unwrap_or_else(PoisonError::into_inner).0
                }
            };
        }
        self.outstanding -= there.len();
        out.append(&mut there);
    }

    /// Calls `each` for every item of a batch, and waits for all.
    #[expect(clippy::unused_self, reason = "the pool belongs to this lane")]
    pub(super) fn run<T: Send>(&self, batch: &mut [T], each: impl Fn(&mut T) + Sync) {
        workers().for_each(batch, each);
    }
}

impl Mailbox {
    fn deliver(&self, completion: Completion) {
        self.completions.lock().unwrap_or_else(PoisonError::into_inner).push(completion);
        self.arrived.notify_one();
    }
}

fn workers() -> &'static Workers {
    static WORKERS: OnceLock<Workers> = OnceLock::new();
    WORKERS.get_or_init(|| Workers::new("butternut-io", THREADS_MAX))
}

/// A request that is lost to a panic would be waited for in vain.
fn execute_safely(device: &dyn Device, request: Request) -> Completion {
    let outline = request.outline;
    catch_unwind(AssertUnwindSafe(|| execute(device, request))).unwrap_or_else(|_| {
        outline.complete(Load::default(), Err(failure(device, &outline, Errno::IO)))
    })
}
