//! Syncs of the volume that must first make the kernel send what it has cached (`unsent`): SYNCFS,
//! and reads of the sync attribute.
//!
//! Laws:
//!
//! 1. Any user may ask for a sync, from any number of processes, and each one walks through all
//!    files that are open for writing. So one thread serves all of them: those that come during a
//!    walk wait for the next one, which they share.
//! 2. During syncfs(2) and sync(2) the kernel holds the lock of its superblock, which a remount
//!    waits for. A sync waits for at most one walk that began before it, whatever other calls are
//!    queued.
//! 3. Without a thread, a sync commits what this process has, and fails (`send_unsent`).

use std::mem;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use butternut_sys::lock::{Mutex, rank};

use crate::door::unsent::UnsentData;
use crate::errno::ErrnoResult;

/// Commits, and sends the reply. The argument is the result of the walk.
pub(super) type Sync = Box<dyn FnOnce(ErrnoResult<()>) + Send>;

#[derive(Clone, Default)]
pub(super) struct VolumeSyncs(Arc<Mutex<State, rank::UserCalls>>);

#[derive(Default)]
struct State {
    /// Whether a thread takes what waits.
    is_running: bool,
    waiting: Vec<Sync>,
    /// The files that they need.
    unsent: UnsentData,
}

impl VolumeSyncs {
    /// Adds a sync. Returns whether the caller must start the thread.
    pub(super) fn add(&self, unsent: UnsentData, sync: Sync) -> bool {
        let mut state = self.0.lock();
        state.waiting.push(sync);
        let joined = mem::take(&mut state.unsent).join(unsent);
        state.unsent = joined;
        !mem::replace(&mut state.is_running, true)
    }

    /// Takes all that waits; `None` ends the thread.
    pub(super) fn next(&self) -> Option<(UnsentData, Vec<Sync>)> {
        let mut state = self.0.lock();
        if state.waiting.is_empty() {
            state.is_running = false;
            return None;
        }
        Some((mem::take(&mut state.unsent), mem::take(&mut state.waiting)))
    }

    /// Returns what waits at the end of the mount, when no caller is left.
    pub(super) fn end(&self) -> Vec<Sync> {
        mem::take(&mut self.0.lock().waiting)
    }

    pub(super) fn run(&self, device: &OwnedFd) {
        while let Some((unsent, syncs)) = self.next() {
            let sent = unsent.write_back(device);
            for sync in syncs {
                sync(sent);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Sync, VolumeSyncs};
    use crate::door::unsent::UnsentData;
    use crate::errno::Errno;
    use std::sync::mpsc;

    #[test]
    fn syncs_that_come_during_a_walk_share_the_next() {
        let (sender, receiver) = mpsc::channel();
        let sync = |number: u32| -> Sync {
            let sender = sender.clone();
            Box::new(move |sent| sender.send((number, sent)).unwrap())
        };
        let syncs = VolumeSyncs::default();
        assert!(syncs.add(UnsentData::default(), sync(1)), "the first starts the thread");
        let first = syncs.next().unwrap().1;
        assert!(!syncs.add(UnsentData::default(), sync(2)));
        assert!(!syncs.add(UnsentData::default(), sync(3)));
        assert_eq!(first.len(), 1);
        let second = syncs.next().unwrap().1;
        assert_eq!(second.len(), 2);
        first.into_iter().chain(second).for_each(|sync| sync(Err(Errno::EIO)));
        assert_eq!(receiver.try_iter().count(), 3);
        assert!(syncs.next().is_none());
        assert!(syncs.add(UnsentData::default(), sync(4)), "the thread has ended");
    }
}
