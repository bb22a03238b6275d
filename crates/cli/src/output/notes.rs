//! Notes about waiting: a command that waits for a device reports that, because the device may not
//! respond at all.

use std::sync::mpsc::{RecvTimeoutError, channel};
use std::thread;
use std::time::Duration;

use super::stderr_line;
use crate::args::GlobalArgs;

/// The time after which the note is printed.
const SLOW_DEVICE_TIMEOUT: Duration = Duration::from_secs(10);

/// Whether notes are printed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Notes {
    Print,
    Omit,
}

impl Notes {
    pub(crate) fn of(global: &GlobalArgs) -> Self {
        if global.quiet { Self::Omit } else { Self::Print }
    }

    /// Runs a closure that waits for a device, and prints a note about `what` if that takes long.
    pub(crate) fn if_slow<T>(self, what: &str, wait: impl FnOnce() -> T) -> T {
        let (waiting, has_ended) = channel::<()>();
        let text = format!("{what}: note: still waits for a device");
        let report = move || {
            if has_ended.recv_timeout(SLOW_DEVICE_TIMEOUT) == Err(RecvTimeoutError::Timeout) {
                stderr_line(&text);
            }
        };
        if self == Self::Print {
            // Without a thread there is no note.
            thread::Builder::new().spawn(report).map(drop).unwrap_or_default();
        }
        let result = wait();
        drop(waiting);
        result
    }
}
