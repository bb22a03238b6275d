//! Syncs of the volume that must first make the kernel send what it has cached (`unsent`): SYNCFS,
//! and reads of the sync attribute.
//!
//! Laws:
//!
//! 1. Any user may ask for a sync, from any number of processes, and each one walks through all
//!    files that are open for writing. So one thread serves all of them: those that come during a
//!    walk wait for the next one, which they share, and so they share the commit after it. Each of
//!    them reads its own report of losses, and notices what the kernel loses from its own begin on.
//!    The thread lists the files; a sync that waits keeps no list.
//! 2. During syncfs(2) and sync(2) the kernel holds the lock of its superblock, which a remount
//!    waits for. A sync waits for at most one walk and one commit that began before it, whatever
//!    other calls are queued.
//! 3. Without a thread, a sync commits what this process has, and fails (`send_unsent`).
//! 4. A panic in a walk or in a commit fails the syncs that share it with `EIO`: no caller waits
//!    for ever.

use std::mem;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use butternut_sys::lock::{Mutex, rank};

use crate::errno::{Errno, ErrnoResult};

/// The results that the syncs of one walk share.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Shared {
    /// Whether the kernel was made to send its data.
    pub(super) sent: ErrnoResult<()>,
    pub(super) committed: ErrnoResult<()>,
}

/// Sends the reply after the commit.
pub(super) type Sync = Box<dyn FnOnce(Shared) + Send>;

#[derive(Clone, Default)]
pub(super) struct VolumeSyncs(Arc<Mutex<State, rank::UserCalls>>);

#[derive(Default)]
struct State {
    /// Whether a thread takes what waits.
    is_running: bool,
    waiting: Vec<Sync>,
}

impl VolumeSyncs {
    /// Adds a sync. Returns whether the caller must start the thread.
    pub(super) fn add(&self, sync: Sync) -> bool {
        let mut state = self.0.lock();
        state.waiting.push(sync);
        !mem::replace(&mut state.is_running, true)
    }

    /// Takes all that waits; `None` ends the thread.
    pub(super) fn next(&self) -> Option<Vec<Sync>> {
        let mut state = self.0.lock();
        if state.waiting.is_empty() {
            state.is_running = false;
            return None;
        }
        Some(mem::take(&mut state.waiting))
    }

    /// Returns what waits at the end of the mount, when no caller is left.
    pub(super) fn end(&self) -> Vec<Sync> {
        mem::take(&mut self.0.lock().waiting)
    }

    /// Serves what waits. `commit` makes the kernel send its data of all files, and commits.
    pub(super) fn run(&self, commit: impl Fn() -> Shared) {
        while let Some(syncs) = self.next() {
            let done = catch_unwind(AssertUnwindSafe(&commit));
            // Law 4.
            let panicked = Shared { sent: Err(Errno::EIO), committed: Err(Errno::EIO) };
            let shared = done.unwrap_or(panicked);
            for sync in syncs {
                sync(shared);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Shared, Sync, VolumeSyncs};
    use crate::errno::Errno;
    use std::cell::Cell;
    use std::sync::mpsc;

    const DONE: Shared = Shared { sent: Ok(()), committed: Ok(()) };

    #[test]
    fn syncs_that_come_during_a_walk_share_the_next() {
        let (sender, receiver) = mpsc::channel();
        let sync = |number: u32| -> Sync {
            let sender = sender.clone();
            Box::new(move |_| sender.send(number).unwrap())
        };
        let syncs = VolumeSyncs::default();
        assert!(syncs.add(sync(1)), "the first starts the thread");
        let first = syncs.next().unwrap();
        assert!(!syncs.add(sync(2)));
        assert!(!syncs.add(sync(3)));
        assert_eq!(first.len(), 1);
        let second = syncs.next().unwrap();
        assert_eq!(second.len(), 2);
        first.into_iter().chain(second).for_each(|sync| sync(DONE));
        assert_eq!(receiver.try_iter().count(), 3);
        assert!(syncs.next().is_none());
        assert!(syncs.add(sync(4)), "the thread has ended");
    }

    #[test]
    fn syncs_share_a_commit() {
        let (sender, receiver) = mpsc::channel();
        let sync = || -> Sync {
            let sender = sender.clone();
            Box::new(move |shared| sender.send(shared).unwrap())
        };
        let (syncs, commits) = (VolumeSyncs::default(), Cell::new(0));
        syncs.add(sync());
        syncs.run(|| {
            commits.set(commits.get() + 1);
            if commits.get() == 1 {
                for _ in 0..20 {
                    syncs.add(sync());
                }
            }
            DONE
        });
        assert_eq!(commits.get(), 2);
        assert_eq!(receiver.try_iter().filter(|shared| *shared == DONE).count(), 21);
    }

    #[test]
    fn a_panic_fails_the_syncs_that_share_it() {
        let (sender, receiver) = mpsc::channel();
        let syncs = VolumeSyncs::default();
        for _ in 0..2 {
            let sender = sender.clone();
            syncs.add(Box::new(move |shared| sender.send(shared).unwrap()));
        }
        syncs.run(|| panic!("intended"));
        let failed = Shared { sent: Err(Errno::EIO), committed: Err(Errno::EIO) };
        assert_eq!(receiver.try_iter().collect::<Vec<_>>(), [failed; 2]);
        assert!(syncs.add(Box::new(|_| ())), "the thread has ended");
    }
}
