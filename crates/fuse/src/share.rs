//! [`Shares`]: how many of the threads that serve a mount may wait for devices at the same time.
//!
//! A request may wait long: for a device, for a commit, or because its writer is throttled. If all
//! threads waited so, one program that writes to a slow device would stop every other program, also
//! one that only wants attributes that are in memory.
//!
//! ```text
//! threads   |---- threads ----|--- 2 ---|--- 2 ---|
//! writes may take  <----->
//! I/O may take     <--------------------->
//! looks may take   <------------------------------->
//! ```
//!
//! 1. Of `threads + 4` threads, writes of file data take at most `threads`; with every other
//!    request that waits for devices or for a commit, at most `threads + 2`. So a look waits for
//!    other looks only, and a read or a small change does not wait for writers that are throttled.
//! 2. A request that finds its share taken is kept, in the order of arrival, and the thread that
//!    read it goes on. A thread that finishes a request serves one that is kept, if its share
//!    allows it.
//! 3. At most [`KEPT_BYTES_MAX`] bytes of requests are kept. Past that, the thread that read a
//!    request serves it, whatever the shares are: memory is bounded, and law 1 is not kept. The
//!    kernel's own cache alone does not reach that limit
//!    ([`BACKGROUND_MAX`](crate::door::negotiation::BACKGROUND_MAX)).

use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use butternut_sys::buffer::Buffer;

use crate::request::Class;

/// Threads beyond those for writes: so many for other I/O, and as many for looks.
const THREADS_PER_CLASS: usize = 2;

/// Bytes of requests that wait for their share, at most.
pub(crate) const KEPT_BYTES_MAX: usize = 64 << 20;

/// The shares of one mount.
#[derive(Debug)]
pub(crate) struct Shares {
    writes_max: usize,
    io_max: usize,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    writes: usize,
    io: usize,
    kept_writes: VecDeque<Kept>,
    kept_io: VecDeque<Kept>,
    kept_bytes: usize,
}

/// A request that waits for its share, as it was read.
#[derive(Debug)]
pub(crate) struct Kept {
    pub(crate) memory: Buffer,
    /// Of the request itself, behind its place in the memory.
    pub(crate) bytes: usize,
    /// Where its answer goes.
    pub(crate) device: Arc<OwnedFd>,
}

impl Shares {
    /// Shares of a mount of which `threads` threads may serve writes.
    pub(crate) fn new(threads: usize) -> Self {
        let threads = threads.max(1);
        Self { writes_max: threads, io_max: threads + THREADS_PER_CLASS, state: Mutex::default() }
    }

    /// Returns how many threads serve such a mount.
    pub(crate) fn threads(&self) -> usize {
        self.io_max + THREADS_PER_CLASS
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes a share for a request of a class. Without one, keeps what `keep` makes of it, and
    /// returns `false`; past the bound of law 3 takes one in any case.
    pub(crate) fn enter(&self, class: Class, bytes: usize, keep: impl FnOnce() -> Kept) -> bool {
        if class == Class::Look {
            return true;
        }
        let mut state = self.state();
        if self.has_share(&state, class) || state.kept_bytes + bytes > KEPT_BYTES_MAX {
            *state.count(class) += 1;
            return true;
        }
        let kept = keep();
        state.kept_bytes += kept.memory.len();
        match class {
            Class::Write => state.kept_writes.push_back(kept),
            Class::Io | Class::Look => state.kept_io.push_back(kept),
        }
        false
    }

    /// Gives a share back; the request that may be served with it, and its class, whose share is
    /// taken already.
    pub(crate) fn leave(&self, class: Class) -> Option<(Class, Kept)> {
        if class == Class::Look {
            return None;
        }
        let mut state = self.state();
        let count = state.count(class);
        *count = count.saturating_sub(1);
        let next = [Class::Io, Class::Write].into_iter().find_map(|class| {
            if !self.has_share(&state, class) {
                return None;
            }
            let kept = match class {
                Class::Write => state.kept_writes.pop_front(),
                Class::Io | Class::Look => state.kept_io.pop_front(),
            };
            kept.map(|kept| (class, kept))
        });
        if let Some((class, kept)) = &next {
            state.kept_bytes = state.kept_bytes.saturating_sub(kept.memory.len());
            *state.count(*class) += 1;
        }
        next
    }

    fn has_share(&self, state: &State, class: Class) -> bool {
        let both = state.writes + state.io;
        match class {
            Class::Write => state.writes < self.writes_max && both < self.io_max,
            Class::Io => both < self.io_max,
            Class::Look => true,
        }
    }
}

impl State {
    fn count(&mut self, class: Class) -> &mut usize {
        match class {
            Class::Write => &mut self.writes,
            Class::Io | Class::Look => &mut self.io,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kept() -> Kept {
        let device = std::fs::File::open("/dev/null").unwrap();
        Kept { memory: Buffer::zeroed(4096), bytes: 40, device: Arc::new(device.into()) }
    }

    #[test]
    fn each_class_takes_no_more_than_its_share_and_what_is_kept_is_served_in_order() {
        let shares = Shares::new(3);
        assert_eq!(shares.threads(), 7);
        for _ in 0..3 {
            assert!(shares.enter(Class::Write, 4096, kept));
        }
        assert!(!shares.enter(Class::Write, 4096, || Kept { bytes: 41, ..kept() }));
        assert!(!shares.enter(Class::Write, 4096, || Kept { bytes: 42, ..kept() }));
        for _ in 0..2 {
            assert!(shares.enter(Class::Io, 4096, kept));
        }
        assert!(!shares.enter(Class::Io, 4096, || Kept { bytes: 43, ..kept() }));
        let next = |class| shares.leave(class).map(|(class, kept)| (class, kept.bytes));
        assert_eq!(next(Class::Write), Some((Class::Io, 43)), "what is no write comes first");
        assert_eq!(next(Class::Io), Some((Class::Write, 41)));
        assert_eq!(next(Class::Write), Some((Class::Write, 42)));
        assert_eq!(next(Class::Io), None);
        let taken = || {
            let state = shares.state();
            (state.writes, state.io)
        };
        let mut served = 0;
        while taken() != (0, 0) {
            let class = if taken().0 > 0 { Class::Write } else { Class::Io };
            assert!(shares.leave(class).is_none());
            served += 1;
        }
        assert_eq!((served, shares.state().kept_bytes), (4, 0));
    }

    #[test]
    fn memory_for_requests_that_wait_is_bounded() {
        let shares = Shares::new(1);
        assert!(shares.enter(Class::Write, 4096, kept));
        let many = KEPT_BYTES_MAX / 4096;
        for _ in 0..many {
            assert!(!shares.enter(Class::Write, 4096, kept));
        }
        assert!(shares.enter(Class::Write, 4096, kept), "there is no memory to keep it");
        assert!(shares.leave(Class::Write).is_none(), "two were served, and one may be");
        assert!(shares.leave(Class::Write).is_some());
    }
}
