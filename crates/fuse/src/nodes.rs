//! Node ids: the numbers by which the kernel names inodes in requests.
//!
//! ```text
//! FileId -- 64 bits suffice --> folded id               computed, not stored
//!        \- too large -------> assigned id, >= 2^63     stored while the lookup count is not 0
//! ```
//!
//! 1. The mapping is injective: two files that the kernel knows at the same time have two node ids,
//!    whatever ids their image holds. Otherwise the kernel would check the permissions of one file
//!    and read the other.
//! 2. The root has node id 1. Every other file has the id that [`FileId::folded`] returns, which
//!    never changes.
//! 3. A file id without a folded form, that of a placeholder, and one that folds to 1 get an
//!    assigned node id: a hash with a random key of the mount, from 2^63 on, or the next free id
//!    where that one is taken. It is stored until the kernel forgets the file.
//! 4. On a writable volume the table pins every directory that the kernel knows, because a removed
//!    directory may still be the working directory of a process. Handles pin files.

use butternut::server::FilesystemExt;
use butternut_sys::lock::{Mutex, MutexGuard, rank};
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicBool, Ordering};

use butternut::server::Pin;
use butternut::{FileId, FileKind, Filesystem, Stat};

/// The node id of the root in the FUSE protocol.
pub(crate) const ROOT: u64 = 1;

/// Set in every assigned node id, and in no folded one.
const ASSIGNED_BIT: u64 = 1 << 63;

/// The node ids of one mount.
pub(crate) struct Nodes {
    root: FileId,
    table: Mutex<Table, rank::Nodes>,
    has_entries: AtomicBool,
    /// The key of the hash (law 3).
    key: RandomState,
}

/// The nodes that must be stored: assigned ids, and pinned directories.
#[derive(Default)]
struct Table {
    by_node_id: HashMap<u64, Node>,
    /// The node ids of file ids that are too large to be folded.
    assigned: HashMap<FileId, u64>,
}

struct Node {
    id: FileId,
    /// Number of lookups in replies, less those that the kernel has forgotten.
    lookup_count: u64,
    /// Pins the directory until the kernel forgets it.
    pin: Option<Pin>,
}

impl Table {
    /// Returns the assigned node id of a file id, and assigns one where there is none (law 3).
    fn assign(&mut self, id: FileId, preferred: u64) -> u64 {
        if let Some(number) = self.assigned.get(&id) {
            return *number;
        }
        let mut number = preferred;
        while self.by_node_id.contains_key(&number) {
            number = number.wrapping_add(1) | ASSIGNED_BIT;
        }
        self.assigned.insert(id, number);
        number
    }
}

impl Nodes {
    pub(crate) fn new(root: FileId) -> Self {
        let (table, has_entries) = (Mutex::default(), AtomicBool::new(false));
        Self { root, table, has_entries, key: RandomState::new() }
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        self.table.lock()
    }

    /// Returns the node id that is computed from the file id (law 2).
    fn folded_id(&self, id: FileId) -> Option<u64> {
        if id == self.root { Some(ROOT) } else { id.folded().filter(|number| *number != ROOT) }
    }

    /// Returns the node id that is assigned unless it is taken (law 3).
    fn hashed_id(&self, id: FileId) -> u64 {
        self.key.hash_one(id) | ASSIGNED_BIT
    }

    /// Returns the node id of a file to show it, without counting a lookup.
    pub(crate) fn node_id(&self, id: FileId) -> u64 {
        self.folded_id(id).unwrap_or_else(|| {
            let assigned = self.table().assigned.get(&id).copied();
            assigned.unwrap_or_else(|| self.hashed_id(id))
        })
    }

    /// Counts one lookup of a file in a reply, and returns its node id.
    pub(crate) fn count_lookup(&self, filesystem: &Filesystem, stat: &Stat) -> u64 {
        let is_pinned = stat.kind == FileKind::Directory && filesystem.is_writable();
        // The pin fails where the directory was just removed; then no process has it as its working
        // directory.
        self.count_lookup_of(stat.id, is_pinned, || filesystem.pin(stat.id).ok().flatten())
    }

    fn count_lookup_of(
        &self,
        id: FileId,
        is_pinned: bool,
        make_pin: impl FnOnce() -> Option<Pin>,
    ) -> u64 {
        let folded = self.folded_id(id);
        if let Some(number) = folded
            && (number == ROOT || !is_pinned)
        {
            return number;
        }
        let preferred = self.hashed_id(id);
        {
            let mut table = self.table();
            let number = folded.or_else(|| table.assigned.get(&id).copied());
            if let Some(number) = number
                && let Some(node) = table.by_node_id.get_mut(&number)
            {
                node.lookup_count += 1;
                return number;
            }
        }
        let pin = if is_pinned { make_pin() } else { None };
        let mut table = self.table();
        let number = folded.unwrap_or_else(|| table.assign(id, preferred));
        let surplus = match table.by_node_id.entry(number) {
            Entry::Occupied(mut node) => {
                node.get_mut().lookup_count += 1;
                pin
            }
            Entry::Vacant(vacant) => {
                vacant.insert(Node { id, lookup_count: 1, pin });
                None
            }
        };
        self.has_entries.store(true, Ordering::Release);
        drop(table);
        // Not under the lock: dropping the last pin of a removed directory deletes it.
        drop(surplus);
        number
    }

    /// Returns the file of a node id.
    pub(crate) fn file_id(&self, number: u64) -> Option<FileId> {
        if number == ROOT {
            return Some(self.root);
        }
        if number & ASSIGNED_BIT == 0 {
            return FileId::from_u64(number);
        }
        if !self.has_entries.load(Ordering::Acquire) {
            return None;
        }
        self.table().by_node_id.get(&number).map(|node| node.id)
    }

    /// Returns directories of a subvolume that the kernel knows, at most `limit`.
    pub(crate) fn directories_in(&self, subvolume: u64, limit: usize) -> Vec<FileId> {
        let table = self.table();
        let pinned = table.by_node_id.values().filter(|node| node.pin.is_some());
        let ids = pinned.map(|node| node.id).filter(|id| id.subvolume == subvolume);
        ids.take(limit).collect()
    }

    /// Subtracts `count` from the lookup count of a node, and drops the node at 0.
    pub(crate) fn forget(&self, number: u64, count: u64) {
        if !self.has_entries.load(Ordering::Acquire) {
            return;
        }
        let removed = {
            let mut table = self.table();
            let Some(node) = table.by_node_id.get_mut(&number) else { return };
            node.lookup_count = node.lookup_count.saturating_sub(count);
            if node.lookup_count > 0 {
                return;
            }
            let removed = table.by_node_id.remove(&number);
            if let Some(removed) = &removed
                && number & ASSIGNED_BIT != 0
            {
                table.assigned.remove(&removed.id);
            }
            removed
        };
        // Not under the lock, and without a wait for devices: the kernel sends any number of FORGET
        // requests, and the last pin deletes the directory.
        removed.and_then(|node| node.pin).map(Pin::unpin_in_background).unwrap_or_default();
    }

    /// Drops all nodes. The kernel sends no further request about them.
    pub(crate) fn clear(&self) {
        let table = std::mem::take(&mut *self.table());
        // Not under the lock: dropping a pin may delete the directory.
        drop(table);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TOP: FileId = FileId::root_of(5);

    fn lookup(nodes: &Nodes, id: FileId) -> u64 {
        nodes.count_lookup_of(id, false, || None)
    }

    /// Ids as a hostile image may hold them. Without the key, pairs of them would have one node id.
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
    fn every_file_id_has_its_own_node_id_that_leads_back_to_it() {
        let nodes = Nodes::new(TOP);
        let numbers: Vec<_> = hostile().iter().map(|id| lookup(&nodes, *id)).collect();
        let distinct: std::collections::HashSet<_> = numbers.iter().collect();
        assert_eq!(distinct.len(), numbers.len());
        for (id, number) in hostile().into_iter().zip(numbers) {
            assert!(number != 0 && number != ROOT, "{id:?}");
            assert_eq!(nodes.file_id(number), Some(id));
            assert_eq!(nodes.node_id(id), number);
            assert_eq!(lookup(&nodes, id), number);
        }
        assert_eq!((lookup(&nodes, TOP), nodes.file_id(ROOT)), (ROOT, Some(TOP)));
    }

    #[test]
    fn file_ids_with_the_same_hash_get_two_node_ids() {
        let nodes = Nodes::new(TOP);
        let [first, second] = [FileId::new(5, 1 << 40), FileId::new(1 << 23, 256)];
        let taken = nodes.hashed_id(second);
        // As if the hash of the first id were that of the second.
        let mut table = nodes.table();
        assert_eq!(table.assign(first, taken), taken);
        table.by_node_id.insert(taken, Node { id: first, lookup_count: 1, pin: None });
        drop(table);
        nodes.has_entries.store(true, Ordering::Release);
        let other = lookup(&nodes, second);
        assert_ne!(other, taken);
        assert_eq!((nodes.file_id(taken), nodes.file_id(other)), (Some(first), Some(second)));
        nodes.forget(taken, 1);
        assert_eq!((nodes.file_id(taken), nodes.file_id(other)), (None, Some(second)));
    }

    #[test]
    fn a_node_with_a_lookup_count_of_zero_is_dropped() {
        let nodes = Nodes::new(TOP);
        let id = FileId::new(1 << 30, 1 << 50);
        let number = lookup(&nodes, id);
        assert_eq!(lookup(&nodes, id), number);
        nodes.forget(number, 1);
        assert_eq!(nodes.file_id(number), Some(id));
        nodes.forget(number, 1);
        assert_eq!(nodes.file_id(number), None);
        let table = nodes.table();
        assert!(table.by_node_id.is_empty() && table.assigned.is_empty());
    }
}
