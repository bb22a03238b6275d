//! [`LastSuper`]: what this process knows about the first superblock on a device.
//!
//! ```text
//! opened --begin--> in flight --written--> written
//!                       |
//!                       +------failed----> opened or written before, and one was tried
//! ```
//!
//! Laws:
//! 1. The first superblock is the one that was opened, until this process has written one.
//! 2. While a write of it is in flight, a reader may find the old one, the new one, or parts of
//!    both. A write that failed may have left any of these, too.

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
        (known.written, known.tried) = (Some(written), None);
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

impl SuperId {
    pub(crate) fn of(raw: &RawSuperBlock) -> Self {
        Self { generation: raw.generation.get(), csum: raw.csum }
    }

    pub(crate) fn is(&self, other: &Self) -> bool {
        self.csum == other.csum
    }
}
