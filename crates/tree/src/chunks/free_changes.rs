//! The ranges that the running transaction allocates and frees, gathered in memory until a commit
//! writes them into the free space tree.
//!
//! Left to others: the items of the tree (`free_space`).

use std::collections::BTreeMap;
use std::ops::Range;

/// Ranges that were allocated or freed, and that are not in the tree yet.
#[derive(Debug, Default)]
pub(crate) struct FreeSpaceChanges {
    /// By start: the end, and whether the range became free.
    changes: BTreeMap<u64, (u64, bool)>,
}

impl FreeSpaceChanges {
    pub(crate) fn allocate(&mut self, range: Range<u64>) {
        self.add(range, false);
    }

    pub(crate) fn free(&mut self, range: Range<u64>) {
        self.add(range, true);
    }

    /// Adds a change. It cancels with an opposite change of the same range.
    fn add(&mut self, range: Range<u64>, is_free: bool) {
        match self.changes.get(&range.start) {
            Some((end, was_free)) if *end == range.end && *was_free != is_free => {
                self.changes.remove(&range.start);
            }
            _ => {
                self.changes.insert(range.start, (range.end, is_free));
            }
        }
    }

    /// Removes and returns all changes. Neighbours of one kind are joined, except across the border
    /// of two groups.
    pub(crate) fn drain(&mut self, is_border: impl Fn(u64) -> bool) -> Vec<(Range<u64>, bool)> {
        let mut joined: Vec<(Range<u64>, bool)> = Vec::new();
        for (start, (end, is_free)) in std::mem::take(&mut self.changes) {
            match joined.last_mut() {
                Some((last, kind))
                    if last.end == start && *kind == is_free && !is_border(start) =>
                {
                    last.end = end;
                }
                _ => joined.push((start..end, is_free)),
            }
        }
        joined
    }
}
