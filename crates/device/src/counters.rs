//! [`Counters`]: counts the requests to one device. Tests use them to bound the I/O of an
//! operation.
//!
//! Each request of a caller counts once, with the caller's bytes, also if it fails, is bounced or
//! is resubmitted.

use std::ops::Sub;
use std::sync::atomic::{AtomicU64, Ordering};

/// Counts the requests to one device.
#[derive(Debug, Default)]
pub struct Counters {
    reads: AtomicU64,
    read_bytes: AtomicU64,
    writes: AtomicU64,
    write_bytes: AtomicU64,
    flushes: AtomicU64,
    discards: AtomicU64,
}

/// A snapshot of the counters. Subtract an earlier one to get the counts between the two.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    pub reads: u64,
    pub read_bytes: u64,
    pub writes: u64,
    pub write_bytes: u64,
    pub flushes: u64,
    pub discards: u64,
}

impl Counters {
    /// Returns a snapshot of the counters.
    pub fn now(&self) -> Counts {
        Counts {
            reads: self.reads.load(Ordering::Relaxed),
            read_bytes: self.read_bytes.load(Ordering::Relaxed),
            writes: self.writes.load(Ordering::Relaxed),
            write_bytes: self.write_bytes.load(Ordering::Relaxed),
            flushes: self.flushes.load(Ordering::Relaxed),
            discards: self.discards.load(Ordering::Relaxed),
        }
    }

    pub fn count_read(&self, bytes: usize) {
        self.reads.fetch_add(1, Ordering::Relaxed);
        self.read_bytes.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    pub fn count_write(&self, bytes: usize) {
        self.writes.fetch_add(1, Ordering::Relaxed);
        self.write_bytes.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    pub fn count_flush(&self) {
        self.flushes.fetch_add(1, Ordering::Relaxed);
    }

    pub fn count_discard(&self) {
        self.discards.fetch_add(1, Ordering::Relaxed);
    }
}

impl Sub for Counts {
    type Output = Counts;

    fn sub(self, earlier: Counts) -> Counts {
        Counts {
            reads: self.reads.wrapping_sub(earlier.reads),
            read_bytes: self.read_bytes.wrapping_sub(earlier.read_bytes),
            writes: self.writes.wrapping_sub(earlier.writes),
            write_bytes: self.write_bytes.wrapping_sub(earlier.write_bytes),
            flushes: self.flushes.wrapping_sub(earlier.flushes),
            discards: self.discards.wrapping_sub(earlier.discards),
        }
    }
}
