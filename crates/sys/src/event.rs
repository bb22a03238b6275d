//! [`Event`]: an eventfd(2), which a poller waits for together with its other descriptors.

use crate::errno::Errno;
use rustix::event::EventfdFlags;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// A descriptor that is readable from a [`signal`](Event::signal) until it is cleared.
#[derive(Debug)]
pub struct Event(OwnedFd);

impl Event {
    /// Creates an event that is not signalled.
    ///
    /// # Errors
    /// The process or the system has too many descriptors open, or no memory.
    pub fn new() -> Result<Event, Errno> {
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        Ok(Event(rustix::event::eventfd(0, flags)?))
    }

    /// Makes the descriptor readable.
    pub fn signal(&self) {
        // Any number that is not zero. The only possible failure is a counter that is full: the
        // descriptor is readable then.
        rustix::io::write(&self.0, &1_u64.to_le_bytes()).ok();
    }

    /// Makes the descriptor unreadable until the next signal.
    pub fn clear(&self) {
        // The only possible failure is a counter of zero.
        rustix::io::read(&self.0, &mut [0_u8; 8]).ok();
    }
}

impl AsFd for Event {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::event::{PollFd, PollFlags, Timespec, poll};

    #[test]
    fn an_event_is_readable_between_signal_and_clear() {
        let event = Event::new().unwrap();
        let is_readable = || {
            let now = Timespec { tv_sec: 0, tv_nsec: 0 };
            poll(&mut [PollFd::new(&event, PollFlags::IN)], Some(&now)).unwrap() == 1
        };
        assert!(!is_readable());
        event.clear();
        event.signal();
        event.signal();
        assert!(is_readable());
        event.clear();
        assert!(!is_readable());
    }
}
