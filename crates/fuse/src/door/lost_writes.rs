//! [`LostWrites`]: the number of failed writes from the kernel's page cache. The kernel does not
//! repeat them.
//!
//! 1. A command that makes the kernel send its data compares the number before and after. One that
//!    needs the files of one subvolume, as a snapshot does, is not failed by those of others.
//! 2. A call of the door notices the losses from its begin on, also while it waits for another one
//!    ([`LossWatch`]). It keeps one number for that, however many files it needs: each loss has a
//!    number, and each subvolume the number of its last one.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use butternut_sys::lock::{Mutex, rank};

use crate::errno::{Errno, ErrnoResult};

#[derive(Clone, Default)]
pub(super) struct LostWrites(Arc<Counts>);

#[derive(Default)]
struct Counts {
    all: AtomicU64,
    /// Of each subvolume with a lost write.
    by_subvolume: Mutex<BTreeMap<u64, OfSubvolume>, rank::LostWrites>,
}

#[derive(Clone, Copy, Default)]
struct OfSubvolume {
    count: u64,
    /// The number of the last one among all, from 1 on.
    last: u64,
}

/// Notices the writes that the kernel loses after a call began.
pub(super) struct LossWatch {
    lost: LostWrites,
    /// The number of all when the call began.
    before: u64,
}

impl LostWrites {
    /// Counts one in a file of a subvolume.
    pub(super) fn count(&self, subvolume: u64) {
        let mut by_subvolume = self.0.by_subvolume.lock();
        let number = self.all() + 1;
        let of_subvolume = by_subvolume.entry(subvolume).or_default();
        of_subvolume.count += 1;
        of_subvolume.last = number;
        // Under the lock, so that numbers ascend. A call that begins before this line notices it.
        self.0.all.store(number, Ordering::Release);
    }

    pub(super) fn all(&self) -> u64 {
        self.0.all.load(Ordering::Acquire)
    }

    /// Returns the number of those in the files of a subvolume.
    pub(super) fn of_subvolume(&self, subvolume: u64) -> u64 {
        self.0.by_subvolume.lock().get(&subvolume).map_or(0, |lost| lost.count)
    }

    /// Begins to notice losses.
    pub(super) fn watch(&self) -> LossWatch {
        LossWatch { lost: self.clone(), before: self.all() }
    }
}

impl LossWatch {
    /// Fails if the kernel has lost writes since the call began.
    ///
    /// # Errors
    /// `EIO`.
    pub(super) fn check(&self) -> ErrnoResult<()> {
        if self.lost.all() == self.before { Ok(()) } else { Err(Errno::EIO) }
    }

    /// As [`Self::check`], for the files of some subvolumes.
    ///
    /// # Errors
    /// `EIO`.
    pub(super) fn check_subvolumes(&self, subvolumes: &HashSet<u64>) -> ErrnoResult<()> {
        let by_subvolume = self.lost.0.by_subvolume.lock();
        let mut lost = subvolumes.iter().filter_map(|id| by_subvolume.get(id));
        if lost.any(|lost| lost.last > self.before) { Err(Errno::EIO) } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lost_writes_are_counted_by_subvolume() {
        let lost = LostWrites::default();
        lost.count(5);
        lost.count(5);
        lost.count(256);
        assert_eq!(lost.all(), 3);
        assert_eq!([5, 256, 257].map(|id| lost.of_subvolume(id)), [2, 1, 0]);
    }

    /// As where one caller waits for the walk of another one.
    #[test]
    fn a_call_notices_the_losses_after_it_began_in_the_subvolumes_that_it_needs() {
        let lost = LostWrites::default();
        let of = |watch: &LossWatch, id: u64| watch.check_subvolumes(&[id].into());
        lost.count(257);
        let earlier = lost.watch();
        lost.count(5);
        let later = lost.watch();
        assert_eq!((earlier.check(), later.check()), (Err(Errno::EIO), Ok(())));
        assert_eq!([5, 256, 257].map(|id| of(&earlier, id)), [Err(Errno::EIO), Ok(()), Ok(())]);
        assert_eq!(of(&later, 5), Ok(()), "it was lost before the call");
        lost.count(256);
        assert_eq!(later.check(), Err(Errno::EIO));
        assert_eq!([5, 256].map(|id| of(&later, id)), [Ok(()), Err(Errno::EIO)]);
        // However many files are open: any user may have any number of calls that wait.
        assert!(size_of::<LossWatch>() <= 16);
    }
}
