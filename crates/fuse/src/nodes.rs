//! Node ids: the numbers that the kernel knows files by.
//!
//! 1. The root is 1; every other file has the number of its [`FileId`], which does not change.
//! 2. Numbers that do not give their id back (those of very large ids, and of placeholders) are
//!    remembered for as long as the kernel knows the file, and only those.
//! 3. A directory that the kernel knows is held while the volume is open for writing: it may be
//!    somebody's working directory after it was removed. Files are held by those who have them
//!    open (`handles`).

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use butternut::{FileId, FileKind, Filesystem, Held, Stat};

/// The number of the root in every FUSE filesystem.
const ROOT: u64 = 1;

/// The numbers of one mount.
pub(crate) struct Nodes {
    root: FileId,
    known: Mutex<HashMap<u64, Known>>,
    any_known: AtomicBool,
}

struct Known {
    id: FileId,
    /// How often the kernel was told of it, less what it has forgotten.
    told: u64,
    /// Never asked, only kept.
    _held: Option<Held>,
}

impl Nodes {
    pub(crate) fn new(root: FileId) -> Self {
        Self { root, known: Mutex::default(), any_known: AtomicBool::new(false) }
    }

    fn known(&self) -> MutexGuard<'_, HashMap<u64, Known>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The number of a file, for showing it.
    pub(crate) fn number(&self, id: FileId) -> u64 {
        if id == self.root { ROOT } else { id.as_u64() }
    }

    /// The number to tell the kernel, which will know the file by it from now on.
    pub(crate) fn tell(&self, filesystem: &Filesystem, stat: &Stat) -> u64 {
        let id = stat.id;
        let number = self.number(id);
        if number == ROOT {
            return ROOT;
        }
        let is_kept = stat.kind == FileKind::Directory && filesystem.is_writable();
        if FileId::from_u64(number) == Some(id) && !is_kept {
            return number;
        }
        if let Some(one) = self.known().get_mut(&number) {
            one.told += 1;
            return number;
        }
        // A directory that has just gone is nobody's working directory.
        let held = if is_kept { filesystem.hold(id).ok().flatten() } else { None };
        let mut known = self.known();
        let surplus = match known.entry(number) {
            Entry::Occupied(mut one) => {
                one.get_mut().told += 1;
                held
            }
            Entry::Vacant(place) => {
                place.insert(Known { id, told: 1, _held: held });
                None
            }
        };
        self.any_known.store(true, Ordering::Release);
        drop(known);
        // The last hold of a removed directory deletes it: not under the lock.
        drop(surplus);
        number
    }

    /// The file of a number that the kernel was told.
    pub(crate) fn id(&self, number: u64) -> Option<FileId> {
        if number == ROOT {
            return Some(self.root);
        }
        let id = FileId::from_u64(number);
        if id.is_none() && self.any_known.load(Ordering::Acquire) {
            return self.known().get(&number).map(|known| known.id);
        }
        id
    }

    /// The kernel has forgotten `count` of the times that it was told.
    pub(crate) fn forget(&self, number: u64, count: u64) {
        if !self.any_known.load(Ordering::Acquire) {
            return;
        }
        let gone = {
            let mut known = self.known();
            let Some(one) = known.get_mut(&number) else { return };
            one.told = one.told.saturating_sub(count);
            if one.told == 0 { known.remove(&number) } else { None }
        };
        // Letting go may delete the directory: not under the lock.
        drop(gone);
    }
}
