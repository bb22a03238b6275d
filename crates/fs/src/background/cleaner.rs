//! The cleaner: the thread that frees deleted subvolumes, the orphans of read-only ones, and large
//! orphans that the threads which have removed their last names leave to it.
//!
//! Laws:
//!
//! 1. The thread does not keep the filesystem open. Closing the filesystem stops it after its
//!    current step; the next open for writing goes on.
//! 2. Subvolumes whose files are open are looked at again every few seconds, until they are free.
//! 3. Nothing waits for the thread, except a write to a full volume and an operation at the limit
//!    of a quota, which wait for orphans that are queued. What it cannot free is looked at
//!    again, as in law 2; an orphan, at the next open.
//! 4. Queued orphans go before subvolumes, also between two steps of freeing one.

use crate::background::cleaner_signal::{CleanerSignal, Look};
use crate::filesystem::Shared;
use crate::{Error, Filesystem, Result};
use std::sync::Arc;
use std::thread::{Builder, JoinHandle};
use std::time::{Duration, Instant};

/// Pause before a subvolume with open files is looked at again.
const RETRY: Duration = Duration::from_secs(5);

/// The thread, which ends when this is dropped.
#[derive(Debug)]
pub(crate) struct Cleaner {
    signal: Arc<CleanerSignal>,
    thread: Option<JoinHandle<()>>,
}

impl Cleaner {
    /// Starts the thread. It begins with what the last use of the volume left.
    pub(crate) fn start(shared: &Arc<Shared>, signal: Arc<CleanerSignal>) -> Result<Self> {
        let (signal_of_thread, shared) = (Arc::clone(&signal), Arc::clone(shared));
        signal.start();
        signal.request();
        let run = move || {
            let _running = signal_of_thread.stop_at_end();
            let filesystem = Filesystem::for_thread(shared);
            let _watch = filesystem.forest().watch_panics();
            let mut retry = None;
            while let Some(look) = signal_of_thread.wait(retry) {
                filesystem.evict_in_background(&signal_of_thread);
                if look == Look::All {
                    let has_left = filesystem.clean_in_background(&signal_of_thread);
                    retry = has_left.then(|| Instant::now() + RETRY);
                }
            }
        };
        let thread = Builder::new().name("butternut-clean".into()).spawn(run);
        if thread.is_err() {
            signal.stop();
        }
        Ok(Self { signal, thread: Some(thread.map_err(Error::Committer)?) })
    }
}

impl Drop for Cleaner {
    fn drop(&mut self) {
        self.signal.stop();
        if let Some(thread) = self.thread.take() {
            drop(thread.join());
        }
    }
}

impl Filesystem {
    /// Frees deleted subvolumes. Returns whether some are left that may become free later.
    fn clean_in_background(&self, signal: &CleanerSignal) -> bool {
        let goes_on = || {
            self.evict_in_background(signal);
            !signal.is_stopped() && self.may_begin().is_ok()
        };
        let left = self.clean_subvolumes_while(&goes_on);
        // What cannot be read now may be readable later.
        left.map_or_else(|_| self.may_begin().is_ok(), |left| !left.is_empty())
    }

    /// Deletes the orphans that are queued.
    fn evict_in_background(&self, signal: &CleanerSignal) {
        let goes_on = || !signal.is_stopped();
        while let Some((entry, evicting)) = signal.next_eviction() {
            // If deleting fails, the next open for writing finds the orphan item.
            drop(self.evict_orphan_while(&entry, &goes_on));
            drop(evicting);
        }
    }
}
