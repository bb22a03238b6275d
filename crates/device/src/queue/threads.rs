//! Runs requests without a ring: by the devices' blocking calls, on one pool of threads that all
//! queue pairs of the process share.
//!
//! A job owns its request until it has run, and then puts the completion into the mailbox of the
//! queue pair. If a device panics, its request completes with an error.

use super::{Errno, execute, failure};
use crate::device::Device;
use crate::request::{Completion, Request};
use butternut_sys::buffers::Load;
use butternut_sys::event::Event;
use butternut_sys::lock::{Condvar, Mutex, rank};
use butternut_sys::workers::Workers;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, OnceLock};
use std::time::Instant;

/// Maximum number of blocking calls that the process has in flight.
const THREADS_MAX: usize = 16;

#[derive(Debug, Default)]
pub(super) struct Threads {
    mailbox: Arc<Mailbox>,
    /// Requests whose completion has not been taken from the mailbox.
    outstanding: usize,
}

#[derive(Debug, Default)]
struct Mailbox {
    completions: Mutex<Vec<Completion>, rank::DeviceCompletions>,
    arrived: Condvar,
    event: Option<Arc<Event>>,
}

impl Threads {
    /// Returns an engine that signals an event at each completion.
    pub(super) fn new(event: Option<Arc<Event>>) -> Threads {
        let mailbox = Mailbox { event, ..Mailbox::default() };
        Threads { mailbox: Arc::new(mailbox), outstanding: 0 }
    }

    pub(super) fn outstanding(&self) -> usize {
        self.outstanding
    }

    pub(super) fn submit(&mut self, device: Arc<dyn Device>, request: Request) {
        self.outstanding += 1;
        let mailbox = Arc::clone(&self.mailbox);
        workers().spawn(move || {
            let completion = execute_safely(&*device, request);
            // Before the delivery: a caller that has all completions may expect the device to be
            // closed.
            drop(device);
            mailbox.deliver(completion);
        });
    }

    /// Waits for `min` completions, or for all, or until the deadline, and takes all that are
    /// available.
    pub(super) fn wait(
        &mut self,
        min: usize,
        deadline: Option<Instant>,
        out: &mut Vec<Completion>,
    ) {
        let min = min.min(self.outstanding);
        let mailbox = &self.mailbox;
        let mut ready = mailbox.completions.lock();
        while ready.len() < min {
            let left = deadline.map(|at| at.saturating_duration_since(Instant::now()));
            ready = match left {
                None => mailbox.arrived.wait(ready),
                Some(left) if left.is_zero() => break,
                Some(left) => {
                    let waited = mailbox.arrived.wait_timeout(ready, left);
                    waited.0
                }
            };
        }
        self.outstanding -= ready.len();
        out.append(&mut ready);
    }

    /// Calls `each` for every item of a batch on the pool, and waits for all calls.
    #[expect(clippy::unused_self, reason = "the pool belongs to this engine")]
    pub(super) fn run<T: Send>(&self, batch: &mut [T], each: impl Fn(&mut T) + Sync) {
        workers().for_each(batch, each);
    }
}

impl Mailbox {
    fn deliver(&self, completion: Completion) {
        self.completions.lock().push(completion);
        self.arrived.notify_one();
        if let Some(event) = &self.event {
            event.signal();
        }
    }
}

fn workers() -> &'static Workers {
    static WORKERS: OnceLock<Workers> = OnceLock::new();
    WORKERS.get_or_init(|| Workers::new("butternut-io", THREADS_MAX))
}

/// Completes the request even if the device panics; otherwise the queue pair would wait forever.
fn execute_safely(device: &dyn Device, request: Request) -> Completion {
    let header = request.header;
    catch_unwind(AssertUnwindSafe(|| execute(device, request))).unwrap_or_else(|_| {
        header.complete(Load::default(), Err(failure(device, &header, Errno::IO)))
    })
}
