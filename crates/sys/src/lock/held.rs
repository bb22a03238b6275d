//! [`Held`]: a rank in the list of those that this thread holds. Debug builds only; in release
//! builds the types are empty and nothing is listed.

use super::rank::Rank;

/// An entry of the list. Dropping it removes the entry.
pub(super) struct Held {
    #[cfg(debug_assertions)]
    rank: Rank,
}

#[cfg(not(debug_assertions))]
impl Held {
    #[inline]
    pub(super) fn take(_: Rank) -> Self {
        Self {}
    }

    #[inline]
    pub(super) fn take_nested(_: Rank) -> Self {
        Self {}
    }

    #[inline]
    pub(super) fn taken(_: Rank) -> Self {
        Self {}
    }

    #[inline]
    pub(super) fn is_listed(_: Rank) -> bool {
        false
    }
}

#[cfg(debug_assertions)]
mod checked {
    use super::{Held, Rank};
    use std::cell::RefCell;
    use std::panic::Location;
    use std::thread;

    #[derive(Clone, Copy)]
    struct Entry {
        rank: Rank,
        at: &'static Location<'static>,
    }

    thread_local! {
        static LIST: RefCell<Vec<Entry>> = const { RefCell::new(Vec::new()) };
    }

    impl Held {
        /// Lists the lock, before the thread waits for it. Panics if the thread holds a lock of the
        /// same or a later rank.
        #[track_caller]
        pub(in super::super) fn take(rank: Rank) -> Self {
            refuse(rank, |held| held >= rank);
            Self::taken(rank)
        }

        /// As [`Held::take`], but allows locks of the same rank.
        #[track_caller]
        pub(in super::super) fn take_nested(rank: Rank) -> Self {
            refuse(rank, |held| held > rank);
            Self::taken(rank)
        }

        /// Lists the lock, in any order.
        #[track_caller]
        pub(in super::super) fn taken(rank: Rank) -> Self {
            let entry = Entry { rank, at: Location::caller() };
            // At the end of a thread the list may be gone.
            LIST.try_with(|list| list.borrow_mut().push(entry)).unwrap_or_default();
            Self { rank }
        }

        /// Returns whether this thread has an entry of a rank.
        pub(in super::super) fn is_listed(rank: Rank) -> bool {
            let is_in =
                |list: &RefCell<Vec<Entry>>| list.borrow().iter().any(|entry| entry.rank == rank);
            LIST.try_with(is_in).unwrap_or(false)
        }
    }

    #[track_caller]
    fn refuse(rank: Rank, is_refused: impl Fn(Rank) -> bool) {
        let find = |list: &RefCell<Vec<Entry>>| {
            list.borrow().iter().find(|entry| is_refused(entry.rank)).copied()
        };
        // A second panic would end the process and hide the first one.
        if let Some(held) = LIST.try_with(find).ok().flatten()
            && !thread::panicking()
        {
            panic!("lock {rank} taken while lock {}, taken at {}, is held", held.rank, held.at);
        }
    }

    impl Drop for Held {
        fn drop(&mut self) {
            let remove = |list: &RefCell<Vec<Entry>>| {
                let mut list = list.borrow_mut();
                if let Some(at) = list.iter().rposition(|entry| entry.rank == self.rank) {
                    list.remove(at);
                }
            };
            LIST.try_with(remove).unwrap_or_default();
        }
    }
}
