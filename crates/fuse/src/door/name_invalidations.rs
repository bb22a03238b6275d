//! [`NameInvalidations`]: waits until the kernel has forgotten a name, or the mount has ended.
//!
//! ```text
//! deferred thread -- forget_name() --> waits -------------------------> sends its reply
//!                         \\-> thread: FUSE_NOTIFY_INVAL_ENTRY --/ or end() --/
//! ```
//!
//! 1. The kernel takes the lock of the directory, which a program can hold for any time, also after
//!    the connection has ended. A thread that waits for the lock cannot be killed. So each
//!    notification has a thread, which has only a descriptor of the connection: the end of the
//!    mount does not wait for it, and the filesystem is closed meanwhile.
//! 2. Until the mount ends, the caller waits for that thread, so there are at most as many of them
//!    as deferred calls.

use std::collections::HashSet;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::thread;

use butternut_sys::lock::{Condvar, Mutex, rank};

use crate::connection;

#[derive(Clone, Default)]
pub(super) struct NameInvalidations(Arc<Shared>);

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
    pub(super) fn forget_name(&self, device: &Arc<OwnedFd>, parent: u64, name: &[u8]) {
        let (thread_device, thread_name) = (Arc::clone(device), name.to_vec());
        let is_begun = self.wait_for(move || {
            connection::invalidate_entry(&thread_device, parent, &thread_name);
        });
        if !is_begun {
            connection::invalidate_entry(device, parent, name);
        }
    }

    /// Runs `work` in a thread, and waits for it until the mount ends. Returns `false` if there is
    /// no thread.
    fn wait_for(&self, work: impl FnOnce() + Send + 'static) -> bool {
        let mut state = self.0.state.lock();
        state.last += 1;
        let number = state.last;
        state.running.insert(number);
        drop(state);
        let ended = Ended(self.clone(), number);
        let run = move || {
            let _ended = ended;
            work();
        };
        if thread::Builder::new().name("butternut-names".into()).spawn(run).is_err() {
            return false;
        }
        let mut state = self.0.state.lock();
        while !state.is_ended && state.running.contains(&number) {
            state = self.0.changed.wait(state);
        }
        true
    }

    /// Ends all waits, also those that begin later.
    pub(super) fn end(&self) {
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

    #[test]
    fn a_wait_ends_with_its_thread_or_with_the_mount() {
        let invalidations = NameInvalidations::default();
        assert!(invalidations.wait_for(|| ()));
        assert!(invalidations.0.state.lock().running.is_empty());
        let (stop, stopped) = channel::<()>();
        let (started, has_started) = channel();
        let waiting = {
            let invalidations = invalidations.clone();
            thread::spawn(move || {
                invalidations.wait_for(move || {
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
