//! [`NameInvalidations`]: waits until the kernel has forgotten a name, or the mount has ended.
//!
//! ```text
//! deferred thread -- forget_name() --> waits -------------------------> sends its reply
//!                         \\-> thread: FUSE_NOTIFY_INVAL_ENTRY --/ or end() --/
//! ```
//!
//! 1. The kernel takes the lock of the directory, which a program can hold for any time, also after
//!    the connection has ended. A thread that waits for the lock cannot be killed. So each
//!    notification has a thread, whose descriptor table has only the connection
//!    ([`private_fd_table`]): the end of the mount does not wait for it, the filesystem is closed
//!    meanwhile, and a process that ends without that releases the volume.
//! 2. Until the mount ends, the caller waits for that thread, so there are at most as many of them
//!    as deferred calls.

use std::collections::HashSet;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use butternut_sys::lock::{Condvar, Mutex, rank};
use butternut_sys::private_fd_table;

use crate::connection;

#[derive(Clone, Default)]
pub(crate) struct NameInvalidations(Arc<Shared>);

#[derive(Default)]
struct Shared {
    state: Mutex<State, rank::NameInvalidations>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    is_ended: bool,
    last: u64,
    /// The numbers of the threads that have not ended.
    running: HashSet<u64>,
}

impl NameInvalidations {
    /// Makes the kernel look a name up again ([`connection::invalidate_entry`]), and waits for that
    /// until the mount ends.
    pub(super) fn forget_name(&self, device: &OwnedFd, parent: u64, name: &[u8]) {
        let of_thread = name.to_vec();
        let is_begun = self.wait_for(device.as_fd(), move |device| {
            connection::invalidate_entry(device, parent, &of_thread);
        });
        if !is_begun {
            connection::invalidate_entry(device, parent, name);
        }
    }

    /// Runs `work` in a thread that has only the descriptor `device`, and waits for it until the
    /// mount ends. Returns `false` if there is no such thread.
    fn wait_for(
        &self,
        device: BorrowedFd<'_>,
        work: impl FnOnce(BorrowedFd<'_>) + Send + 'static,
    ) -> bool {
        let mut state = self.0.state.lock();
        state.last += 1;
        let number = state.last;
        state.running.insert(number);
        drop(state);
        let ended = Ended(self.clone(), number);
        let run = move |device: BorrowedFd<'_>| {
            let _ended = ended;
            work(device);
        };
        if private_fd_table::spawn("butternut-names", device, run).is_err() {
            return false;
        }
        let mut state = self.0.state.lock();
        while !state.is_ended && state.running.contains(&number) {
            state = self.0.changed.wait(state);
        }
        true
    }

    /// Ends all waits, also those that begin later.
    pub(crate) fn end(&self) {
        self.0.state.lock().is_ended = true;
        self.0.changed.notify_all();
    }
}

/// Records the end of a thread when it is dropped.
struct Ended(NameInvalidations, u64);

impl Drop for Ended {
    fn drop(&mut self) {
        self.0.0.state.lock().running.remove(&self.1);
        self.0.0.changed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::channel;
    use std::thread;

    #[test]
    fn a_wait_ends_with_its_thread_or_with_the_mount() {
        let invalidations = NameInvalidations::default();
        let device = std::fs::File::open("/dev/null").unwrap();
        assert!(invalidations.wait_for(device.as_fd(), |_| ()));
        assert!(invalidations.0.state.lock().running.is_empty());
        let (stop, stopped) = channel::<()>();
        let (started, has_started) = channel();
        let waiting = {
            let invalidations = invalidations.clone();
            thread::spawn(move || {
                invalidations.wait_for(device.as_fd(), move |_| {
                    started.send(()).unwrap();
                    stopped.recv().unwrap_or_default();
                })
            })
        };
        has_started.recv().unwrap();
        assert!(!waiting.is_finished());
        invalidations.end();
        assert!(waiting.join().unwrap());
        drop(stop);
    }
}
