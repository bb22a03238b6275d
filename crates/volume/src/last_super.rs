//! [`LastSuper`]: what this process knows about the first superblock on a device.
//!
//! ```text
//! opened --begin--> in flight --written--> written --flushed--> durable
//!                       |                     |
//!                       |                     +--flush failed--> lost: written, durable, or one
//!                       |                                        between them
//!                       +------failed----> opened or written before, and one was tried
//! ```
//!
//! Laws:
//! 1. The first superblock is the one that was opened, until this process has written one.
//! 2. While a write of it is in flight, a reader may find the old one, the new one, or parts of
//!    both. A write that failed may have left any of these, too.
//! 3. A device may lose from its cache what was written since the last flush that succeeded. Then
//!    that flush's superblock, or one between that and the last, is back from the moment when the
//!    flush fails, before its result is known. A device reports the loss to one flush only: later
//!    flushes do not make the lost superblock durable.

use butternut_format::super_block::RawSuperBlock;
use butternut_sys::lock::{Condvar, Mutex, rank};

/// What this process knows about the first superblock on a device.
#[derive(Debug, Default)]
pub(crate) struct LastSuper {
    known: Mutex<Known, rank::LastSuper>,
    /// Notified when a write ends.
    ended: Condvar,
}

/// The knowledge at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Known {
    /// The last one that was written; `None` if it is still the one that was opened (law 1).
    pub(crate) written: Option<SuperId>,
    /// The last one whose write has begun and has not succeeded.
    pub(crate) tried: Option<SuperId>,
    /// The last one that a flush has made durable; `None` if that is the one that was opened.
    durable: Option<SuperId>,
    /// What the flush that runs makes durable.
    flushed: Option<SuperId>,
    is_flushing: bool,
    /// Whether a flush has failed since `written` was written (law 3).
    is_lost: bool,
    is_in_flight: bool,
    /// Number of writes that have begun.
    writes: u64,
}

/// What tells superblocks of one device apart (law 3 of [`crate::own_supers`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SuperId {
    pub(crate) generation: u64,
    csum: [u8; 32],
}

impl LastSuper {
    /// Records that the write of a superblock begins.
    pub(crate) fn begin(&self, tried: Option<SuperId>) {
        let mut known = self.known.lock();
        (known.tried, known.is_in_flight) = (tried, true);
        known.writes = known.writes.saturating_add(1);
    }

    /// Records that the write of a superblock has succeeded.
    pub(crate) fn set_written(&self, written: SuperId) {
        let mut known = self.known.lock();
        (known.written, known.tried, known.is_lost) = (Some(written), None, false);
    }

    /// Records that a flush begins. One runs at a time.
    pub(crate) fn begin_flush(&self) {
        let mut known = self.known.lock();
        known.is_flushing = true;
        known.flushed = if known.is_lost { known.durable } else { known.written };
    }

    /// Records that the flush has ended, and whether it succeeded (law 3).
    pub(crate) fn end_flush(&self, is_done: bool) {
        let mut known = self.known.lock();
        known.is_flushing = false;
        if is_done {
            known.durable = known.flushed;
        } else {
            known.is_lost = known.written != known.durable;
        }
    }

    /// Records that the write has ended.
    pub(crate) fn end(&self) {
        self.known.lock().is_in_flight = false;
        self.ended.notify_all();
    }

    pub(crate) fn now(&self) -> Known {
        *self.known.lock()
    }

    /// Waits until no write is in flight.
    pub(crate) fn settled(&self) -> Known {
        let mut known = self.known.lock();
        while known.is_in_flight {
            known = self.ended.wait(known);
        }
        *known
    }
}

impl Known {
    /// Returns whether this process has begun to write a superblock.
    pub(crate) fn has_begun(&self) -> bool {
        self.writes > 0
    }

    /// Returns the oldest one that may be on the device; `None` if it is the one that was opened.
    pub(crate) fn oldest(&self) -> Option<SuperId> {
        if self.may_be_lost() { self.durable } else { self.written }
    }

    /// Returns the newest one that may be on the device, if it may be an older one as well.
    pub(crate) fn uncertain(&self) -> Option<SuperId> {
        let is_written_lost = self.may_be_lost() && self.written != self.durable;
        self.tried.or(self.written.filter(|_| is_written_lost))
    }

    fn may_be_lost(&self) -> bool {
        self.is_flushing || self.is_lost
    }
}

impl SuperId {
    pub(crate) fn of(raw: &RawSuperBlock) -> Self {
        Self { generation: raw.generation.get(), csum: raw.csum }
    }

    pub(crate) fn is(&self, other: &Self) -> bool {
        self.csum == other.csum
    }
}

#[cfg(test)]
mod tests {
    use super::{LastSuper, SuperId};

    #[test]
    fn a_superblock_may_be_lost_from_the_flush_that_fails_to_the_next_write() {
        let [durable, lost, next] = [1, 2, 3].map(|n| SuperId { generation: n, csum: [7; 32] });
        let known = LastSuper::default();
        let write = |id| {
            known.begin(Some(id));
            known.set_written(id);
            known.end();
        };
        let flush = |is_done| {
            known.begin_flush();
            known.end_flush(is_done);
        };
        let may_be = || (known.now().oldest(), known.now().uncertain());
        flush(false);
        assert_eq!(may_be(), (None, None), "nothing was written");
        write(durable);
        flush(true);
        write(lost);
        assert_eq!(may_be(), (Some(lost), None));
        let either = (Some(durable), Some(lost));
        known.begin_flush();
        assert_eq!(may_be(), either, "the device has lost it, and the flush has not returned");
        known.end_flush(false);
        assert_eq!(may_be(), either);
        flush(true);
        assert_eq!(may_be(), either, "only one flush reports the loss");
        write(next);
        assert_eq!(may_be(), (Some(next), None));
        flush(false);
        assert_eq!(may_be(), (Some(durable), Some(next)));
        write(next);
        flush(true);
        flush(false);
        assert_eq!(may_be().0, Some(next));
    }
}
