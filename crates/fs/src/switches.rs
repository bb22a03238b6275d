//! Switches: each turns one mechanism of the I/O path back to what it replaced, so that its worth
//! can be measured. They may change while the filesystem is in use.

use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};

/// What keeps the bytes of a direct write from changing between checksum and device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u8)]
pub enum DirectStability {
    /// Borrowed memory is copied once, and summed in the same pass; owned memory is stable.
    #[default]
    Bounce,
    /// Borrowed memory is believed to be stable. For measurements: it may give bad checksums.
    Trust,
    /// Borrowed memory goes through the page cache.
    Buffered,
}

/// The switches of a filesystem, as they are now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Switches {
    /// A direct write inside a file shares the file, once it is known that there are no privileges
    /// to strip; off: it has the file alone.
    pub nosec: bool,
    /// A direct read of one block whose place and checksum are in memory takes the short way.
    pub simple_read: bool,
    pub direct_stability: DirectStability,
}

impl Default for Switches {
    fn default() -> Self {
        Self { nosec: true, simple_read: true, direct_stability: DirectStability::default() }
    }
}

/// The same, shared.
#[derive(Debug)]
pub(crate) struct SwitchBoard {
    nosec: AtomicBool,
    simple_read: AtomicBool,
    direct_stability: AtomicU8,
}

impl SwitchBoard {
    pub(crate) fn new(switches: Switches) -> Self {
        let Switches { nosec, simple_read, direct_stability } = switches;
        Self {
            nosec: AtomicBool::new(nosec),
            simple_read: AtomicBool::new(simple_read),
            direct_stability: AtomicU8::new(direct_stability as u8),
        }
    }

    pub(crate) fn now(&self) -> Switches {
        let direct_stability = match self.direct_stability.load(Ordering::Relaxed) {
            1 => DirectStability::Trust,
            2 => DirectStability::Buffered,
            _ => DirectStability::Bounce,
        };
        Switches {
            nosec: self.nosec.load(Ordering::Relaxed),
            simple_read: self.simple_read.load(Ordering::Relaxed),
            direct_stability,
        }
    }

    pub(crate) fn set(&self, switches: Switches) {
        let Switches { nosec, simple_read, direct_stability } = switches;
        self.nosec.store(nosec, Ordering::Relaxed);
        self.simple_read.store(simple_read, Ordering::Relaxed);
        self.direct_stability.store(direct_stability as u8, Ordering::Relaxed);
    }
}

impl crate::Filesystem {
    pub fn switches(&self) -> Switches {
        self.shared.switches.now()
    }

    /// Sets all switches, from the next request on.
    pub fn set_switches(&self, switches: Switches) {
        self.shared.switches.set(switches);
    }
}
