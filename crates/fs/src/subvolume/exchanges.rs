//! [`Exchanges`]: lets readers notice that subvolumes are exchanged or moved while they look a name
//! up.
//!
//! An exchange replaces two entries and the references of two subvolumes in the root tree, one
//! after another, in a commit that readers do not wait for. A reader that finds a new entry before
//! the reference to it would take the entry for that of a placeholder. So would one that reads the
//! reference of a subvolume that was moved away, and then its entry after it was moved back.
//!
//! Law: the count is odd while entries and references may disagree. A reader that saw the same even
//! count before and after it has read both has read them from before or after every exchange and
//! every move.

use std::sync::atomic::{AtomicU64, Ordering, fence};

#[derive(Debug, Default)]
pub(crate) struct Exchanges(AtomicU64);

/// An exchange that has begun. It ends when this is dropped, also by a panic: readers go on then.
#[derive(Debug)]
pub(crate) struct Exchanging<'a>(&'a AtomicU64);

/// The count that a reader saw before it read.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Seen(u64);

impl Exchanges {
    /// Begins an exchange. The caller excludes others.
    pub(crate) fn begin(&self) -> Exchanging<'_> {
        self.0.fetch_add(1, Ordering::AcqRel);
        Exchanging(&self.0)
    }

    pub(crate) fn see(&self) -> Seen {
        Seen(self.0.load(Ordering::Acquire))
    }

    /// Returns whether no exchange has overlapped what was read since `seen`.
    pub(crate) fn is_unchanged(&self, seen: Seen) -> bool {
        fence(Ordering::Acquire);
        seen.0.is_multiple_of(2) && self.0.load(Ordering::Relaxed) == seen.0
    }
}

impl Drop for Exchanging<'_> {
    fn drop(&mut self) {
        self.0.fetch_add(1, Ordering::AcqRel);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_exchange_is_noticed_during_and_after_it() {
        let exchanges = Exchanges::default();
        let before = exchanges.see();
        assert!(exchanges.is_unchanged(before));
        let exchanging = exchanges.begin();
        let during = exchanges.see();
        assert!(!exchanges.is_unchanged(before) && !exchanges.is_unchanged(during));
        drop(exchanging);
        assert!(!exchanges.is_unchanged(before) && !exchanges.is_unchanged(during));
        assert!(exchanges.is_unchanged(exchanges.see()));
    }
}
