//! [`Interrupt`]: a hang-up, an interrupt or SIGTERM ends the input of a receive as an error does,
//! so that the incomplete subvolume is deleted, or kept as `--resume` keeps it.
//!
//! 1. A read of the input also waits for a signal: a pipe may stay silent. A command of the stream
//!    that takes long ends after its next step.
//! 2. A second signal ends the process at once, while the incomplete subvolume is being deleted or
//!    a device does not respond.
//! 3. In the end the process dies of the signal, so that a shell ends its script.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicI32, Ordering};

use butternut_sys::signal::EndSignals;
use rustix::event::{PollFd, PollFlags, poll};

use crate::commands::signal_thread;
use crate::control::receive::INTERRUPTED;
use crate::failure::Failure;

/// What the thread that waits for signals and the reader of the input share.
struct Shared {
    signals: EndSignals,
    /// The first signal that was received; 0 before.
    first: AtomicI32,
    /// Is readable after the first signal.
    received: UnixStream,
}

/// The signals that end a receive.
#[derive(Clone)]
pub(super) struct Interrupt(Arc<Shared>);

impl Interrupt {
    /// Receives the signals from now on. The process has no other thread yet.
    ///
    /// # Errors
    /// The signals cannot be blocked, or there is no thread for them.
    pub(super) fn start() -> Result<Self, Failure> {
        let pair = UnixStream::pair();
        let (received, mut sender) = pair.map_err(|error| Failure::io("a socket", &error))?;
        let make = |signals| Shared { signals, first: AtomicI32::new(0), received };
        signal_thread::start(make, move |shared| shared.wait(&mut sender)).map(Self)
    }

    /// Returns the signal that was received, if there was one.
    pub(super) fn signal(&self) -> Option<i32> {
        Some(self.0.first.load(Ordering::Acquire)).filter(|signal| *signal != 0)
    }

    /// Returns a descriptor that can be read after the first signal.
    pub(super) fn received(&self) -> BorrowedFd<'_> {
        self.0.received.as_fd()
    }

    /// Ends the process by the signal that was received (law 3). Returns if there was none.
    pub(super) fn end_process(&self) {
        if let Some(signal) = self.signal() {
            self.0.signals.end_process(signal);
        }
    }
}

impl Shared {
    fn wait(&self, sender: &mut UnixStream) {
        let Ok(signal) = self.signals.wait() else { return };
        self.first.store(signal, Ordering::Release);
        // The empty socket has room for a byte.
        sender.write_all(&[0]).unwrap_or_default();
        // Law 2.
        while let Ok(second) = self.signals.wait() {
            self.signals.end_process(second);
        }
    }
}

/// The input of a receive.
pub(super) struct InterruptibleFile {
    pub(super) file: File,
    /// `None`: signals end the process.
    pub(super) interrupt: Option<Interrupt>,
}

impl Read for InterruptibleFile {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if let Some(Interrupt(shared)) = &self.interrupt {
            let wanted = PollFlags::IN;
            let mut files =
                [PollFd::new(&self.file, wanted), PollFd::new(&shared.received, wanted)];
            poll(&mut files, None)?;
            if !files[1].revents().is_empty() {
                return Err(io::Error::other(INTERRUPTED));
            }
        }
        self.file.read(buffer)
    }
}
