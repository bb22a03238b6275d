//! Reports failures that the volume survived, on stderr and in the system's log, while it is
//! mounted.
//!
//! 1. What is due is reported within [`EVERY`], and once more when the mount ends.
//! 2. The thread ends when its [`Reporter`] is dropped, which waits for it.

use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use butternut::{Filesystem, TroubleWatch};

use super::log::{WARNING, tell};

/// How long a failure may wait for its report.
const EVERY: Duration = Duration::from_secs(2);

/// The thread that reports.
pub(super) struct Reporter {
    end: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Reporter {
    pub(super) fn start(filesystem: &Filesystem, volume: String) -> Self {
        let watch = filesystem.watch_troubles();
        let (end, ended) = mpsc::channel();
        let thread = thread::spawn(move || {
            while ended.recv_timeout(EVERY) == Err(RecvTimeoutError::Timeout) {
                report(&watch, &volume);
            }
            report(&watch, &volume);
        });
        Self { end: Some(end), thread: Some(thread) }
    }
}

impl Drop for Reporter {
    fn drop(&mut self) {
        self.end = None;
        if let Some(thread) = self.thread.take() {
            thread.join().unwrap_or_default();
        }
    }
}

fn report(watch: &TroubleWatch, volume: &str) {
    for notice in watch.take().unwrap_or_default() {
        tell(WARNING, &format!("{volume}: warning: {notice}"));
    }
}
