//! Reports errors from which the volume recovered, on stderr and in syslog, while it is mounted.
//!
//! 1. An error is reported within [`INTERVAL`], and the last ones when the mount ends.
//! 2. Dropping the [`WarningReporter`] ends its thread. The drop waits for the last message for at
//!    most [`FLUSH_TIMEOUT`]: the volume may not answer.

use std::io;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::thread;
use std::time::Duration;

use butternut::{FailureWatch, Filesystem};

use super::syslog::{WARNING, log};
use crate::output::reporter::FLUSH_TIMEOUT;

/// Interval between reports.
const INTERVAL: Duration = Duration::from_secs(2);

/// The thread that reports errors.
pub(super) struct WarningReporter {
    end: Option<Sender<()>>,
    /// Carries no values. It closes when the thread has ended.
    ended: Receiver<()>,
}

impl WarningReporter {
    /// Starts the thread.
    ///
    /// # Errors
    /// Fails if the thread cannot be started.
    pub(super) fn start(filesystem: &Filesystem, volume: String) -> io::Result<Self> {
        let watch = filesystem.watch_failures();
        Self::call_at_interval(move || report(&watch, &volume))
    }

    fn call_at_interval(mut report: impl FnMut() + Send + 'static) -> io::Result<Self> {
        let (end, requested) = mpsc::channel();
        let (running, ended) = mpsc::channel();
        let run = move || {
            let _running: Sender<()> = running;
            while requested.recv_timeout(INTERVAL) == Err(RecvTimeoutError::Timeout) {
                report();
            }
            report();
        };
        thread::Builder::new().name("butternut-warn".into()).spawn(run)?;
        Ok(Self { end: Some(end), ended })
    }
}

impl Drop for WarningReporter {
    fn drop(&mut self) {
        self.end = None;
        // The error is that of the closed channel, or a timeout.
        self.ended.recv_timeout(FLUSH_TIMEOUT).unwrap_or_default();
    }
}

fn report(watch: &FailureWatch, volume: &str) {
    for notice in watch.take().unwrap_or_default() {
        log(WARNING, &format!("{volume}: warning: {notice}"));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_drop_waits_for_the_last_message() {
        let (logged, messages) = mpsc::channel();
        drop(WarningReporter::call_at_interval(move || logged.send("last").unwrap()).unwrap());
        assert_eq!(messages.recv(), Ok("last"));
    }

    #[test]
    fn the_drop_does_not_wait_for_a_report_that_blocks() {
        let (answer, blocked) = mpsc::channel::<()>();
        let (dropped, is_dropped) = mpsc::channel();
        thread::spawn(move || {
            let report = move || blocked.recv().unwrap_or_default();
            drop(WarningReporter::call_at_interval(report).unwrap());
            dropped.send(()).unwrap();
        });
        assert_eq!(is_dropped.recv_timeout(Duration::from_secs(30)), Ok(()));
        drop(answer);
    }
}
