//! [`PendingTotal`]: how many bytes of pending extents all files have, against a bound.
//!
//! A block that is overwritten while it is pending replaces the pending extent, and neither ever
//! reaches the trees. So the more may be pending, the more overwrites cost nothing there. What is
//! pending takes memory (about 180 bytes for an extent, which is as short as one block), it keeps
//! the space of what it replaces in use until it is merged, and it is what a commit merges.
//!
//! Law: the total is the sum of [`PendingBytes`] of all overlays, which add and subtract what they
//! hold, and subtract the rest when they are dropped.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Bytes that one file may have pending in any case. As many files as are written may each have
/// them, so they are few.
pub(crate) const FILE_PENDING_BYTES: u64 = 8 << 20;

/// The pending bytes of all files. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub(crate) struct PendingTotal {
    bytes: Arc<AtomicU64>,
    bytes_max: u64,
}

/// The pending bytes of one file, which are part of the total.
#[derive(Debug)]
pub(crate) struct PendingBytes {
    own: u64,
    total: PendingTotal,
}

impl PendingTotal {
    pub(crate) fn new(bytes_max: u64) -> Self {
        Self { bytes: Arc::default(), bytes_max }
    }

    /// Begins to count the pending bytes of a file.
    pub(crate) fn file(&self) -> PendingBytes {
        PendingBytes { own: 0, total: self.clone() }
    }
}

impl PendingBytes {
    /// Returns the pending bytes of the file.
    pub(crate) fn get(&self) -> u64 {
        self.own
    }

    /// Returns how many the file may have: what the others leave of the bound, and
    /// [`FILE_PENDING_BYTES`] at least.
    pub(crate) fn limit(&self) -> u64 {
        let all = self.total.bytes.load(Ordering::Relaxed);
        let others = all.saturating_sub(self.own);
        self.total.bytes_max.saturating_sub(others).max(FILE_PENDING_BYTES)
    }

    pub(crate) fn add(&mut self, bytes: u64) {
        self.own = self.own.saturating_add(bytes);
        self.total.bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    pub(crate) fn subtract(&mut self, bytes: u64) {
        debug_assert!(bytes <= self.own, "the law of this module");
        let bytes = bytes.min(self.own);
        self.own -= bytes;
        self.total.bytes.fetch_sub(bytes, Ordering::Relaxed);
    }
}

impl Drop for PendingBytes {
    fn drop(&mut self) {
        self.subtract(self.own);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_may_have_what_the_others_leave() {
        let total = PendingTotal::new(3 * FILE_PENDING_BYTES);
        let (mut one, mut two) = (total.file(), total.file());
        assert_eq!(one.limit(), 3 * FILE_PENDING_BYTES);
        two.add(FILE_PENDING_BYTES);
        one.add(10);
        assert_eq!((one.limit(), one.get()), (2 * FILE_PENDING_BYTES, 10));
        two.add(5 * FILE_PENDING_BYTES);
        assert_eq!(one.limit(), FILE_PENDING_BYTES, "in any case");
        two.subtract(5 * FILE_PENDING_BYTES);
        drop(two);
        assert_eq!(one.limit(), 3 * FILE_PENDING_BYTES);
    }
}
