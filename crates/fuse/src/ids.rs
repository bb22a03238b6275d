//! Node ids: the numbers that the kernel knows files by.
//!
//! 1. The root is 1; every other file has the number of its [`FileId`], which does not change.
//! 2. Numbers that do not give their id back (those of very large ids, and of placeholders) are
//!    remembered for as long as the kernel knows the file, and only those.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use butternut::FileId;

/// The number of the root in every FUSE filesystem.
const ROOT: u64 = 1;

/// The numbers of one mount.
pub(crate) struct Ids {
    root: FileId,
    hashed: Mutex<HashMap<u64, Hashed>>,
    any_hashed: AtomicBool,
}

struct Hashed {
    id: FileId,
    /// How often the kernel was told of it, less what it has forgotten.
    known: u64,
}

impl Ids {
    pub(crate) fn new(root: FileId) -> Self {
        Self { root, hashed: Mutex::default(), any_hashed: AtomicBool::new(false) }
    }

    fn hashed(&self) -> MutexGuard<'_, HashMap<u64, Hashed>> {
        self.hashed.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The number to tell the kernel, which will know the file by it from now on.
    pub(crate) fn tell(&self, id: FileId) -> u64 {
        if id == self.root {
            return ROOT;
        }
        let number = id.as_u64();
        if FileId::from_u64(number) != Some(id) {
            self.hashed().entry(number).or_insert(Hashed { id, known: 0 }).known += 1;
            self.any_hashed.store(true, Ordering::Release);
        }
        number
    }

    /// The file of a number that the kernel was told.
    pub(crate) fn id(&self, number: u64) -> Option<FileId> {
        if number == ROOT {
            return Some(self.root);
        }
        if self.any_hashed.load(Ordering::Acquire)
            && let Some(hashed) = self.hashed().get(&number)
        {
            return Some(hashed.id);
        }
        FileId::from_u64(number)
    }

    /// The kernel has forgotten `count` of the times that it was told.
    pub(crate) fn forget(&self, number: u64, count: u64) {
        if !self.any_hashed.load(Ordering::Acquire) {
            return;
        }
        let mut hashed = self.hashed();
        if let Some(one) = hashed.get_mut(&number) {
            one.known = one.known.saturating_sub(count);
            if one.known == 0 {
                hashed.remove(&number);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_root_is_1_and_others_keep_their_number() {
        let ids = Ids::new(FileId::new(257, 256));
        assert_eq!(ids.tell(FileId::new(257, 256)), 1);
        assert_eq!(ids.id(1), Some(FileId::new(257, 256)));
        let file = FileId::new(257, 300);
        assert_eq!(ids.tell(file), file.as_u64());
        assert_eq!(ids.id(file.as_u64()), Some(file));
        assert!(ids.hashed().is_empty());
    }

    #[test]
    fn hashed_numbers_are_known_until_the_kernel_forgets_them() {
        let ids = Ids::new(FileId::new(5, 256));
        let strange = FileId::new(1 << 40, 256);
        let number = ids.tell(strange);
        assert_eq!(ids.tell(strange), number);
        ids.forget(number, 1);
        assert_eq!(ids.id(number), Some(strange));
        ids.forget(number, 1);
        assert_ne!(ids.id(number), Some(strange));
    }
}
