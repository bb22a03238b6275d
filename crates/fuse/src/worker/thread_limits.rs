//! [`ThreadLimits`]: how many worker threads of a mount may wait for devices at the same time.
//!
//! A request may wait for a device, for a commit, or because its writer is throttled. If all
//! threads waited so, one program that writes to a slow device would stop every other program, also
//! one that only reads attributes that are in memory.
//!
//! ```text
//! threads                     |---- threads ----|--- 2 ---|--- 2 ---|
//! writes may use              <----------------->
//! writes and I/O may use      <--------------------------->
//! metadata reads may use      <------------------------------------->
//! ```
//!
//! 1. Of `threads + 4` threads, at most `threads` serve writes of file data. At most `threads + 2`
//!    serve those and all other requests that wait for devices or for a commit. So a metadata read
//!    waits only for other metadata reads, and a file read or a small change does not wait for
//!    throttled writers.
//! 2. A request above the limit of its class is queued in order of arrival, and the thread that
//!    read it goes on to the next request. A thread that finishes a request serves a queued one if
//!    the limit of its class allows that.
//! 3. At most [`QUEUED_BYTES_MAX`] bytes of requests are queued. Beyond that, the thread that read
//!    a request serves it whatever the limits are, which breaks law 1 and bounds the memory. The
//!    kernel's background requests alone do not reach that bound
//!    ([`BACKGROUND_MAX`](crate::door::negotiation::BACKGROUND_MAX)).

use butternut_sys::lock::{Mutex, MutexGuard, rank};
use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use butternut_sys::buffer::Buffer;

use crate::connection::request::Class;

/// Threads reserved for I/O beside the writes, and as many for metadata reads.
const THREADS_PER_CLASS: usize = 2;

/// Maximum number of bytes of queued requests.
pub(crate) const QUEUED_BYTES_MAX: usize = 64 << 20;

/// The limits of one mount, and how many requests of each class are being served.
#[derive(Debug)]
pub(crate) struct ThreadLimits {
    writes_max: usize,
    io_max: usize,
    state: Mutex<State, rank::ThreadLimits>,
}

#[derive(Debug, Default)]
struct State {
    writes: usize,
    io: usize,
    queued_writes: VecDeque<QueuedRequest>,
    queued_io: VecDeque<QueuedRequest>,
    queued_bytes: usize,
}

/// A request that waits until the limit of its class allows it to be served.
#[derive(Debug)]
pub(crate) struct QueuedRequest {
    pub(crate) memory: Buffer,
    /// Bytes of the request, which begins at `REQUEST_AT` in the memory.
    pub(crate) bytes: usize,
    /// The descriptor for its reply.
    pub(crate) device: Arc<OwnedFd>,
}

impl ThreadLimits {
    /// Returns the limits of a mount on which at most `threads` threads serve writes.
    pub(crate) fn new(threads: usize) -> Self {
        let threads = threads.max(1);
        Self { writes_max: threads, io_max: threads + THREADS_PER_CLASS, state: Mutex::default() }
    }

    /// Returns the number of worker threads.
    pub(crate) fn threads(&self) -> usize {
        self.io_max + THREADS_PER_CLASS
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    /// Counts a request in its class and returns `true`. Above the limit of the class, queues what
    /// `request` returns, and returns `false`; with a full queue it admits the request (law 3).
    pub(crate) fn admit(
        &self,
        class: Class,
        bytes: usize,
        request: impl FnOnce() -> QueuedRequest,
    ) -> bool {
        if class == Class::MetadataRead {
            return true;
        }
        let mut state = self.state();
        if self.is_below_limit(&state, class) || state.queued_bytes + bytes > QUEUED_BYTES_MAX {
            *state.count(class) += 1;
            return true;
        }
        let queued = request();
        state.queued_bytes += queued.memory.len();
        match class {
            Class::Write => state.queued_writes.push_back(queued),
            Class::Io | Class::MetadataRead => state.queued_io.push_back(queued),
        }
        false
    }

    /// Ends a request of a class. Returns the queued request that the calling thread must serve
    /// next, already counted in its class.
    pub(crate) fn finish(&self, class: Class) -> Option<(Class, QueuedRequest)> {
        if class == Class::MetadataRead {
            return None;
        }
        let mut state = self.state();
        let count = state.count(class);
        *count = count.saturating_sub(1);
        let next = [Class::Io, Class::Write].into_iter().find_map(|class| {
            if !self.is_below_limit(&state, class) {
                return None;
            }
            let queued = match class {
                Class::Write => state.queued_writes.pop_front(),
                Class::Io | Class::MetadataRead => state.queued_io.pop_front(),
            };
            queued.map(|queued| (class, queued))
        });
        if let Some((class, queued)) = &next {
            state.queued_bytes = state.queued_bytes.saturating_sub(queued.memory.len());
            *state.count(*class) += 1;
        }
        next
    }

    fn is_below_limit(&self, state: &State, class: Class) -> bool {
        let both = state.writes + state.io;
        match class {
            Class::Write => state.writes < self.writes_max && both < self.io_max,
            Class::Io => both < self.io_max,
            Class::MetadataRead => true,
        }
    }
}

impl State {
    fn count(&mut self, class: Class) -> &mut usize {
        match class {
            Class::Write => &mut self.writes,
            Class::Io | Class::MetadataRead => &mut self.io,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn queued() -> QueuedRequest {
        let device = std::fs::File::open("/dev/null").unwrap();
        QueuedRequest { memory: Buffer::zeroed(4096), bytes: 40, device: Arc::new(device.into()) }
    }

    #[test]
    fn each_class_keeps_to_its_limit_and_queued_requests_are_served_in_order() {
        let limits = ThreadLimits::new(3);
        assert_eq!(limits.threads(), 7);
        for _ in 0..3 {
            assert!(limits.admit(Class::Write, 4096, queued));
        }
        assert!(!limits.admit(Class::Write, 4096, || QueuedRequest { bytes: 41, ..queued() }));
        assert!(!limits.admit(Class::Write, 4096, || QueuedRequest { bytes: 42, ..queued() }));
        for _ in 0..2 {
            assert!(limits.admit(Class::Io, 4096, queued));
        }
        assert!(!limits.admit(Class::Io, 4096, || QueuedRequest { bytes: 43, ..queued() }));
        let next = |class| limits.finish(class).map(|(class, queued)| (class, queued.bytes));
        assert_eq!(next(Class::Write), Some((Class::Io, 43)), "I/O goes before writes");
        assert_eq!(next(Class::Io), Some((Class::Write, 41)));
        assert_eq!(next(Class::Write), Some((Class::Write, 42)));
        assert_eq!(next(Class::Io), None);
        let taken = || {
            let state = limits.state();
            (state.writes, state.io)
        };
        let mut served = 0;
        while taken() != (0, 0) {
            let class = if taken().0 > 0 { Class::Write } else { Class::Io };
            assert!(limits.finish(class).is_none());
            served += 1;
        }
        assert_eq!((served, limits.state().queued_bytes), (4, 0));
    }

    #[test]
    fn the_memory_of_queued_requests_is_bounded() {
        let limits = ThreadLimits::new(1);
        assert!(limits.admit(Class::Write, 4096, queued));
        let many = QUEUED_BYTES_MAX / 4096;
        for _ in 0..many {
            assert!(!limits.admit(Class::Write, 4096, queued));
        }
        assert!(limits.admit(Class::Write, 4096, queued), "the queue is full");
        assert!(limits.finish(Class::Write).is_none(), "two were served, above the limit of one");
        assert!(limits.finish(Class::Write).is_some());
    }
}
