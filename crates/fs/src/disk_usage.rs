//! How much of a file's space is its own: `du` that knows shared extents.

use crate::{FileId, Filesystem, Result};

/// Space of one or more files. Inline data and holes do not count.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DiskUsage {
    /// Bytes of extents that the files refer to.
    pub total_bytes: u64,
    /// Of these, bytes in extents that nothing else refers to.
    pub exclusive_bytes: u64,
    /// Logical ranges of the shared ones: start, end.
    shared: Vec<(u64, u64)>,
}

impl DiskUsage {
    /// Adds another file's.
    pub fn add(&mut self, other: &Self) {
        self.total_bytes = self.total_bytes.saturating_add(other.total_bytes);
        self.exclusive_bytes = self.exclusive_bytes.saturating_add(other.exclusive_bytes);
        self.shared.extend_from_slice(&other.shared);
    }

    /// Bytes of the shared extents, each byte of disk counted once ("Set shared").
    pub fn set_shared_bytes(&self) -> u64 {
        let mut ranges = self.shared.clone();
        ranges.sort_unstable();
        let (mut total, mut reached) = (0_u64, 0_u64);
        for (start, end) in ranges {
            let start = start.max(reached);
            total = total.saturating_add(end.saturating_sub(start));
            reached = reached.max(end);
        }
        total
    }
}

impl Filesystem {
    /// The space of one inode, not of what is below it.
    pub fn disk_usage(&self, id: FileId) -> Result<DiskUsage> {
        self.not_yet(id)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn overlapping_shared_ranges_count_once() {
        let mut usage = DiskUsage { shared: vec![(4096, 8192), (0, 4096)], ..DiskUsage::default() };
        usage.add(&DiskUsage { shared: vec![(2048, 6144), (10000, 10001)], ..usage.clone() });
        assert_eq!(usage.set_shared_bytes(), 8193);
    }
}
