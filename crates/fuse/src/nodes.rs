//! Node ids: the numbers that the kernel knows files by.
//!
//! 1. The mapping is injective: two files that the kernel knows at the same time have two numbers,
//!    whatever ids their image holds. The kernel takes files of one number for one file, and then
//!    checks the permissions of the one before it reads the other.
//! 2. The root is 1; every other file has the number that [`FileId::folded`] makes of its id, which
//!    does not change.
//! 3. An id that is too large for that (and that of a placeholder, and one that folds to 1) gets a
//!    number from 2^63 on by a hash, whose key is drawn for each mount, and the next free one where
//!    that number is taken. Such numbers are remembered with their ids for as long as the kernel
//!    knows the file.
//! 4. A directory that the kernel knows is held while the volume is open for writing: it may be the
//!    working directory of a process after it was removed. Files are held by their handles.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use butternut::{FileId, FileKind, Filesystem, Held, Stat};

/// The number of the root in every FUSE filesystem.
const ROOT: u64 = 1;

/// Set in every number that is no folded id.
const ASSIGNED: u64 = 1 << 63;

/// The numbers of one mount.
pub(crate) struct Nodes {
    root: FileId,
    known: Mutex<Table>,
    any_known: AtomicBool,
    /// Law 3.
    key: RandomState,
}

/// What the kernel knows, of files that need to be remembered.
#[derive(Default)]
struct Table {
    by_number: HashMap<u64, Known>,
    /// The numbers of ids that are too large to be folded.
    assigned: HashMap<FileId, u64>,
}

struct Known {
    id: FileId,
    /// How often the kernel was told of it, less what it has forgotten.
    told: u64,
    /// Never asked, only kept.
    _held: Option<Held>,
}

impl Table {
    /// The number of an id, given to it now if it has none (law 3).
    fn assign(&mut self, id: FileId, wanted: u64) -> u64 {
        if let Some(number) = self.assigned.get(&id) {
            return *number;
        }
        let mut number = wanted;
        while self.by_number.contains_key(&number) {
            number = number.wrapping_add(1) | ASSIGNED;
        }
        self.assigned.insert(id, number);
        number
    }
}

impl Nodes {
    pub(crate) fn new(root: FileId) -> Self {
        let (known, any_known) = (Mutex::default(), AtomicBool::new(false));
        Self { root, known, any_known, key: RandomState::new() }
    }

    fn known(&self) -> MutexGuard<'_, Table> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The number of an id that needs not be remembered (law 2).
    fn fixed(&self, id: FileId) -> Option<u64> {
        if id == self.root { Some(ROOT) } else { id.folded().filter(|number| *number != ROOT) }
    }

    /// The number that an id gets unless another id has it (law 3).
    fn wanted(&self, id: FileId) -> u64 {
        self.key.hash_one(id) | ASSIGNED
    }

    /// The number of a file, for showing it.
    pub(crate) fn number(&self, id: FileId) -> u64 {
        self.fixed(id).unwrap_or_else(|| {
            let assigned = self.known().assigned.get(&id).copied();
            assigned.unwrap_or_else(|| self.wanted(id))
        })
    }

    /// The number to tell the kernel, which will know the file by it from now on.
    pub(crate) fn tell(&self, filesystem: &Filesystem, stat: &Stat) -> u64 {
        let is_kept = stat.kind == FileKind::Directory && filesystem.is_writable();
        // A directory that has just gone is the working directory of no process.
        self.tell_id(stat.id, is_kept, || filesystem.hold(stat.id).ok().flatten())
    }

    fn tell_id(&self, id: FileId, is_kept: bool, keep: impl FnOnce() -> Option<Held>) -> u64 {
        let fixed = self.fixed(id);
        if let Some(number) = fixed
            && (number == ROOT || !is_kept)
        {
            return number;
        }
        let wanted = self.wanted(id);
        {
            let mut known = self.known();
            let number = fixed.or_else(|| known.assigned.get(&id).copied());
            if let Some(number) = number
                && let Some(one) = known.by_number.get_mut(&number)
            {
                one.told += 1;
                return number;
            }
        }
        let held = if is_kept { keep() } else { None };
        let mut known = self.known();
        let number = fixed.unwrap_or_else(|| known.assign(id, wanted));
        let surplus = match known.by_number.entry(number) {
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
        if number & ASSIGNED == 0 {
            return FileId::from_u64(number);
        }
        if !self.any_known.load(Ordering::Acquire) {
            return None;
        }
        self.known().by_number.get(&number).map(|known| known.id)
    }

    /// The kernel has forgotten `count` of the times that it was told.
    pub(crate) fn forget(&self, number: u64, count: u64) {
        if !self.any_known.load(Ordering::Acquire) {
            return;
        }
        let gone = {
            let mut known = self.known();
            let Some(one) = known.by_number.get_mut(&number) else { return };
            one.told = one.told.saturating_sub(count);
            if one.told > 0 {
                return;
            }
            let gone = known.by_number.remove(&number);
            if let Some(gone) = &gone
                && number & ASSIGNED != 0
            {
                known.assigned.remove(&gone.id);
            }
            gone
        };
        // Letting go may delete the directory: not under the lock.
        drop(gone);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TOP: FileId = FileId::new(5, 256);

    fn tell(nodes: &Nodes, id: FileId) -> u64 {
        nodes.tell_id(id, false, || None)
    }

    /// Ids as a hostile image may hold them, in pairs that one unkeyed number stood for.
    fn hostile() -> Vec<FileId> {
        let mut ids = vec![
            FileId::new(256, 257),
            FileId::new(5, (256 << 40) + 257),
            FileId::new(5, 1),
            FileId::new(5, 0),
            FileId::new(0, 257),
            FileId::new(0, 0),
            FileId::new(u64::MAX, u64::MAX),
        ];
        for subvolume in [5, 6, 256, 1 << 23, 1 << 24, 1 << 40, 1 << 62] {
            for ino in [1, 256, 257, 1 << 40, (1 << 41) + 257, (1 << 63) + 256, u64::MAX - 256] {
                ids.push(FileId::new(subvolume, ino));
            }
        }
        ids.retain(|id| *id != TOP);
        ids.sort_unstable();
        ids.dedup();
        ids
    }

    #[test]
    fn every_id_has_a_number_of_its_own_that_leads_back_to_it() {
        let nodes = Nodes::new(TOP);
        let numbers: Vec<_> = hostile().iter().map(|id| tell(&nodes, *id)).collect();
        let distinct: std::collections::HashSet<_> = numbers.iter().collect();
        assert_eq!(distinct.len(), numbers.len());
        for (id, number) in hostile().into_iter().zip(numbers) {
            assert!(number != 0 && number != ROOT, "{id:?}");
            assert_eq!(nodes.id(number), Some(id));
            assert_eq!(nodes.number(id), number);
            assert_eq!(tell(&nodes, id), number);
        }
        assert_eq!((tell(&nodes, TOP), nodes.id(ROOT)), (ROOT, Some(TOP)));
    }

    #[test]
    fn ids_that_want_the_same_number_get_two() {
        let nodes = Nodes::new(TOP);
        let [first, second] = [FileId::new(5, 1 << 40), FileId::new(1 << 23, 256)];
        let taken = nodes.wanted(second);
        // As if the hash of the first were that of the second.
        let mut known = nodes.known();
        assert_eq!(known.assign(first, taken), taken);
        known.by_number.insert(taken, Known { id: first, told: 1, _held: None });
        drop(known);
        nodes.any_known.store(true, Ordering::Release);
        let other = tell(&nodes, second);
        assert_ne!(other, taken);
        assert_eq!((nodes.id(taken), nodes.id(other)), (Some(first), Some(second)));
        nodes.forget(taken, 1);
        assert_eq!((nodes.id(taken), nodes.id(other)), (None, Some(second)));
    }

    #[test]
    fn what_the_kernel_forgot_as_often_as_it_was_told_is_not_remembered() {
        let nodes = Nodes::new(TOP);
        let id = FileId::new(1 << 30, 1 << 50);
        let number = tell(&nodes, id);
        assert_eq!(tell(&nodes, id), number);
        nodes.forget(number, 1);
        assert_eq!(nodes.id(number), Some(id));
        nodes.forget(number, 1);
        assert_eq!(nodes.id(number), None);
        let known = nodes.known();
        assert!(known.by_number.is_empty() && known.assigned.is_empty());
    }
}
