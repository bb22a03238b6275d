//! [`LostWrites`]: the number of failed writes from the kernel's page cache. The kernel does not
//! repeat them.
//!
//! A command that makes the kernel send its data compares the number before and after. One that
//! needs the files of one subvolume, as a snapshot does, is not failed by those of others.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};

use butternut_sys::lock::{Mutex, rank};

#[derive(Default)]
pub(super) struct LostWrites {
    all: AtomicU64,
    /// Of each subvolume with a lost write.
    by_subvolume: Mutex<BTreeMap<u64, u64>, rank::LostWrites>,
}

impl LostWrites {
    /// Counts one in a file of a subvolume.
    pub(super) fn count(&self, subvolume: u64) {
        *self.by_subvolume.lock().entry(subvolume).or_default() += 1;
        self.all.fetch_add(1, Ordering::Release);
    }

    pub(super) fn all(&self) -> u64 {
        self.all.load(Ordering::Acquire)
    }

    /// Returns the number of those in the files of a subvolume.
    pub(super) fn of_subvolume(&self, subvolume: u64) -> u64 {
        self.by_subvolume.lock().get(&subvolume).copied().unwrap_or_default()
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
}
