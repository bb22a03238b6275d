//! [`DirtyBudget`]: how much data of all files of a volume may be in memory only.
//!
//! Nobody waits for it. A writer who finds it exceeded brings his own file's data down; whoever
//! has the whole table of inodes can bring down others' (`Source::is_over_dirty_limit`).

use std::sync::atomic::{AtomicU64, Ordering};

/// Bytes that all files together may hold dirty.
const DIRTY_BYTES_MAX: u64 = 64 << 20;
/// Bytes that one file may hold dirty.
pub(crate) const FILE_DIRTY_BYTES_MAX: u64 = 16 << 20;
/// What a file writes together at least, to be worth it while others hold most of the budget.
const FILE_DIRTY_BYTES_MIN: u64 = 1 << 20;
/// Extents of one file that are on disk and in no tree.
pub(crate) const FILE_PATCHES_MAX: usize = 1 << 16;

#[derive(Debug, Default)]
pub(crate) struct DirtyBudget {
    bytes_used: AtomicU64,
}

impl DirtyBudget {
    pub(crate) fn charge(&self, bytes: u64) {
        self.bytes_used.fetch_add(bytes, Ordering::Relaxed);
    }

    pub(crate) fn refund(&self, bytes: u64) {
        self.bytes_used.fetch_sub(bytes, Ordering::Relaxed);
    }

    pub(crate) fn bytes_used(&self) -> u64 {
        self.bytes_used.load(Ordering::Relaxed)
    }

    pub(crate) fn is_exceeded(&self) -> bool {
        self.bytes_used() > DIRTY_BYTES_MAX
    }

    /// Whether a file with `bytes` dirty is to bring them down now. Far beyond the limit every
    /// writer does, however little he has.
    pub(crate) fn wants_flush(&self, bytes: u64) -> bool {
        let used = self.bytes_used();
        bytes >= FILE_DIRTY_BYTES_MAX
            || (used > DIRTY_BYTES_MAX && bytes >= FILE_DIRTY_BYTES_MIN)
            || (used > 2 * DIRTY_BYTES_MAX && bytes > 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_writer_flushes_at_his_own_limit_or_at_everybodys() {
        let budget = DirtyBudget::default();
        assert!(!budget.wants_flush(FILE_DIRTY_BYTES_MAX - 1));
        assert!(budget.wants_flush(FILE_DIRTY_BYTES_MAX));
        budget.charge(DIRTY_BYTES_MAX + 1);
        assert!(budget.is_exceeded());
        assert!(budget.wants_flush(FILE_DIRTY_BYTES_MIN) && !budget.wants_flush(4096));
        budget.charge(DIRTY_BYTES_MAX);
        assert!(budget.wants_flush(4096) && !budget.wants_flush(0));
        budget.refund(2 * DIRTY_BYTES_MAX + 1);
        assert_eq!(budget.bytes_used(), 0);
    }
}
