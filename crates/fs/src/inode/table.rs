//! [`InodeTable`]: one entry, with its lock, for each inode of a volume that is open for writing.
//!
//! ```text
//! FileId -> entry   attributes   the inode item: size, mode, times ... (a short mutex)
//!                   state        the inode lock, and what it guards: file data, the next index
//!                   view         of the file's state, for handles (a short mutex)
//!                   pins         open handles: while there is one, the inode is not deleted
//! ```
//!
//! Laws:
//!
//! 1. There is one entry for an inode at a time, and so one state of its data. Only
//!    [`InodeTable::entry`] adds an entry, and it never replaces one. An operation that creates an
//!    inode has its entry, with the attributes set and the state locked, before any name leads to
//!    it. So a thread that finds the name meanwhile finds the same entry, and waits for the inode
//!    lock. An entry that nothing else refers to may leave the table if its inode exists; it is
//!    clean then, and no error of writeback in it is left to report (an idle file loses its state,
//!    and such an error, when too many others have one). Only the list of idle files
//!    has weak references, and may refer to an entry from then on: it takes nothing from the entry
//!    but the state of the data, which has ended and whose drop leaves the inode's pages alone.
//! 2. A thread that changes an inode holds its inode lock exclusively, and has read its attributes
//!    before it changes a tree. (A thread that shares the lock changes only times, flags and the
//!    byte count, with [`InodeEntry::update`].) So attributes that are read from a tree never
//!    replace newer ones, and no thread waits for a device while another holds the attributes
//!    locked in a transaction.
//! 3. Inode locks are taken in ascending order of the ids ([`LockedInodes`]), before a transaction
//!    is joined, never inside one.
//! 4. The table keeps at most as many entries as its limit, and those in use besides.
//! 5. A request in flight shares the inode lock when it begins, and does not keep it. A thread that
//!    takes the lock exclusively drains the file, so it does not do that inside a transaction.
//! 6. In a full table, an inode that is only looked up gets an entry the second time. So a walk
//!    over many inodes evicts no entries.
//! 7. A new entry does not say that its subvolume is writable. An operation that writes sets that
//!    when it has found the subvolume writable. It is cleared when the subvolume becomes read-only
//!    or is deleted, while operations that write are excluded. So a thread that shares the inode
//!    lock to write needs no lock of the subvolumes, and no entry permits more than its subvolume.
//! 8. The view is that of the state in [`InodeState::file`], or there is none. A thread that has
//!    pinned a pinned inode takes neither the inode lock nor waits for a device to open the file:
//!    while it is pinned, the state stays.

use super::idle::IsIdle;
use super::inheritance::Inheritance;
use super::no_unpin::NoUnpin;
use crate::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use crate::sync::{Mutex, MutexGuard, RwLock, RwLockReadGuard, RwLockWriteGuard, rank};
use crate::{Error, FileId, Result};
use butternut_file::{FileState, FileView, ReplacedSpace};
use butternut_format::inode::Inode;
use butternut_sys::wait::Wait;
use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::Arc;

const SHARDS: usize = 64;

/// Slots that one insertion examines for an entry to evict.
const STEPS_MAX: usize = 8;

/// The inode item as memory has it.
#[derive(Clone, Copy, Debug)]
enum CachedInode {
    Unread,
    Valid(Inode),
    /// Deleted. The id is not used again while the volume is open.
    Deleted,
}

/// One inode.
#[derive(Debug)]
pub(crate) struct InodeEntry {
    pub(crate) id: FileId,
    attributes: Mutex<CachedInode, rank::Attributes>,
    state: RwLock<InodeState, rank::Inode>,
    view: Mutex<Option<Box<FileView>>, rank::FileView>,
    pins: AtomicU64,
    /// It was looked up since the clock hand last passed.
    used: AtomicBool,
    /// It is in [`DirtyInodes`](super::dirty::DirtyInodes).
    is_listed: AtomicBool,
    /// The inode is known to have no privileges that a write has to strip (`S_NOSEC`).
    has_no_privileges: AtomicBool,
    /// Its subvolume is known to be writable (law 7).
    is_subvolume_writable: AtomicBool,
    /// A thread enables fs-verity on the file: its bytes do not change (`file/verity.rs`).
    is_being_sealed: AtomicBool,
    pub(crate) is_idle: IsIdle,
}

/// The state of an inode that its lock guards.
#[derive(Debug, Default)]
pub(crate) struct InodeState {
    /// Of a regular file that is open, or was written or closed recently ([`super::idle`]).
    pub(crate) file: Option<Box<FileState>>,
    /// Of a directory: the index of its next entry, once it was looked up.
    pub(crate) next_index: Option<u64>,
    /// Of a directory: what new inodes inherit, once it was looked up.
    pub(crate) inheritance: Option<Inheritance>,
    /// An inode without a name that may be given one (`O_TMPFILE`).
    pub(crate) is_linkable: bool,
    /// The attributes are newer than the inode's item.
    pub(crate) is_item_stale: AtomicBool,
}

impl InodeEntry {
    pub(crate) fn new(id: FileId, inode: Option<Inode>, state: InodeState) -> Arc<Self> {
        let attributes = inode.map_or(CachedInode::Unread, CachedInode::Valid);
        let (attributes, state) = (Mutex::new(attributes), RwLock::new(state));
        Arc::new(Self {
            id,
            attributes,
            state,
            view: Mutex::default(),
            pins: AtomicU64::new(0),
            used: AtomicBool::new(false),
            is_listed: AtomicBool::new(false),
            has_no_privileges: AtomicBool::new(false),
            is_subvolume_writable: AtomicBool::new(false),
            is_being_sealed: AtomicBool::new(false),
            is_idle: IsIdle::default(),
        })
    }

    fn attributes(&self) -> MutexGuard<'_, CachedInode> {
        self.attributes.lock()
    }

    /// Returns the inode item; `read` looks it up if it is not in memory.
    pub(crate) fn inode(&self, read: impl FnOnce() -> Result<Inode>) -> Result<Inode> {
        let mut attributes = self.attributes();
        match *attributes {
            CachedInode::Valid(inode) => Ok(inode),
            CachedInode::Deleted => Err(Error::Stale { id: self.id }),
            CachedInode::Unread => {
                let inode = read()?;
                *attributes = CachedInode::Valid(inode);
                Ok(inode)
            }
        }
    }

    /// Returns the inode item if it is in memory and the inode exists.
    pub(crate) fn cached(&self) -> Option<Inode> {
        match *self.attributes() {
            CachedInode::Valid(inode) => Some(inode),
            CachedInode::Unread | CachedInode::Deleted => None,
        }
    }

    /// As [`Self::cached`], or `None` while another thread reads or sets the attributes.
    pub(crate) fn try_cached(&self) -> Option<Inode> {
        match self.attributes.try_lock().as_deref() {
            Some(CachedInode::Valid(inode)) => Some(*inode),
            Some(CachedInode::Unread | CachedInode::Deleted) | None => None,
        }
    }

    pub(crate) fn set(&self, inode: Inode) {
        *self.attributes() = CachedInode::Valid(inode);
    }

    /// Changes the attributes, under the shared inode lock.
    pub(crate) fn update(&self, change: impl FnOnce(&mut Inode)) {
        if let CachedInode::Valid(inode) = &mut *self.attributes() {
            change(inode);
        }
    }

    pub(crate) fn set_deleted(&self) {
        *self.attributes() = CachedInode::Deleted;
    }

    /// Makes the next use read the attributes again, if the deletion of the inode has begun.
    pub(crate) fn set_unread_if_deleted(&self) {
        let mut attributes = self.attributes();
        if matches!(*attributes, CachedInode::Deleted) {
            *attributes = CachedInode::Unread;
        }
    }

    pub(crate) fn lock_shared(&self) -> RwLockReadGuard<'_, InodeState> {
        self.state.read_or_else(fail_after_panic)
    }

    /// Takes the inode lock shared, unless a thread holds it exclusively or waits to.
    pub(crate) fn try_lock_shared(&self) -> Option<RwLockReadGuard<'_, InodeState>> {
        self.state.try_read_or_else(fail_after_panic)
    }

    /// Takes the inode lock shared. Fails as [`Self::try_lock_shared`] does, if it must not wait.
    pub(crate) fn lock_shared_as(&self, wait: Wait) -> Result<RwLockReadGuard<'_, InodeState>> {
        match wait {
            Wait::Block => Ok(self.lock_shared()),
            Wait::NoWait => self.try_lock_shared().ok_or(Error::WouldBlock),
        }
    }

    /// Takes the inode lock exclusively and drains the file (law 5).
    pub(crate) fn lock(&self) -> RwLockWriteGuard<'_, InodeState> {
        Self::drained(self.lock_without_drain())
    }

    /// As [`Self::lock`], for a caller that frees replaced space once it has given the exclusive
    /// lock up.
    pub(crate) fn lock_to_free(&self) -> (RwLockWriteGuard<'_, InodeState>, Option<ReplacedSpace>) {
        let state = self.lock_without_drain();
        let _no_unpin = NoUnpin::begin();
        let replaced = state.file.as_deref().map(FileState::drain_to_free);
        (state, replaced)
    }

    /// As [`Self::lock`], by a thread that holds the inode lock of smaller ids (law 3), or that of
    /// the directory in which it makes this inode.
    pub(crate) fn lock_nested(&self) -> RwLockWriteGuard<'_, InodeState> {
        Self::drained(self.lock_nested_without_drain())
    }

    fn lock_nested_without_drain(&self) -> RwLockWriteGuard<'_, InodeState> {
        self.state.write_nested_or_else(|state| fail_after_panic(state))
    }

    fn drained(state: RwLockWriteGuard<'_, InodeState>) -> RwLockWriteGuard<'_, InodeState> {
        if let Some(file) = &state.file {
            let _no_unpin = NoUnpin::begin();
            file.drain();
        }
        state
    }

    /// Takes the inode lock exclusively, with requests in flight on the file.
    pub(crate) fn lock_without_drain(&self) -> RwLockWriteGuard<'_, InodeState> {
        self.state.write_or_else(|state| fail_after_panic(state))
    }

    /// As [`Self::lock_without_drain`], unless another thread holds the lock.
    pub(crate) fn try_lock_without_drain(&self) -> Option<RwLockWriteGuard<'_, InodeState>> {
        self.state.try_write_or_else(|state| fail_after_panic(state))
    }

    /// As [`Self::lock_without_drain`]. Fails as [`Self::try_lock_without_drain`] does, if it must
    /// not wait.
    pub(crate) fn lock_without_drain_as(
        &self,
        wait: Wait,
    ) -> Result<RwLockWriteGuard<'_, InodeState>> {
        match wait {
            Wait::Block => Ok(self.lock_without_drain()),
            Wait::NoWait => self.try_lock_without_drain().ok_or(Error::WouldBlock),
        }
    }

    pub(crate) fn is_listed(&self) -> bool {
        self.is_listed.load(Ordering::Acquire)
    }

    pub(crate) fn set_listed(&self, is_listed: bool) {
        self.is_listed.store(is_listed, Ordering::Release);
    }

    /// Returns whether a write is known to have nothing to strip.
    pub(crate) fn has_no_privileges(&self) -> bool {
        self.has_no_privileges.load(Ordering::Acquire)
    }

    /// Records whether a write has nothing to strip. The caller has looked, and holds the inode
    /// lock exclusively; or it has just added a privilege.
    pub(crate) fn set_no_privileges(&self, has_none: bool) {
        self.has_no_privileges.store(has_none, Ordering::Release);
    }

    /// Returns whether the inode's subvolume is known to be writable (law 7). The caller is an
    /// operation that writes.
    pub(crate) fn is_subvolume_writable(&self) -> bool {
        self.is_subvolume_writable.load(Ordering::Acquire)
    }

    /// Records whether the subvolume is known to be writable. The caller is an operation that
    /// writes, or excludes those.
    pub(crate) fn set_subvolume_writable(&self, is_writable: bool) {
        self.is_subvolume_writable.store(is_writable, Ordering::Release);
    }

    /// Returns whether a thread enables fs-verity on the file. The caller holds the inode lock.
    pub(crate) fn is_being_sealed(&self) -> bool {
        self.is_being_sealed.load(Ordering::Acquire)
    }

    /// Records whether a thread enables fs-verity on the file, and returns the value before. The
    /// caller that begins holds the inode lock exclusively.
    pub(crate) fn set_being_sealed(&self, is_being_sealed: bool) -> bool {
        self.is_being_sealed.swap(is_being_sealed, Ordering::AcqRel)
    }

    /// Adds a pin. The caller holds the inode lock, or no other thread has the entry.
    pub(crate) fn pin(&self) {
        self.pins.fetch_add(1, Ordering::AcqRel);
    }

    /// Adds a pin if there is one already, so without the inode lock. Returns whether it did.
    pub(crate) fn pin_again(&self) -> bool {
        let one_more = |pins: u64| (pins > 0).then_some(pins.saturating_add(1));
        self.pins.fetch_update(Ordering::AcqRel, Ordering::Acquire, one_more).is_ok()
    }

    /// Returns the view of the file's state (law 8). The caller has pinned the inode.
    pub(crate) fn view(&self) -> Option<FileView> {
        self.view.lock().as_deref().cloned()
    }

    /// Sets the view (law 8). The caller holds the inode lock exclusively.
    pub(crate) fn set_view(&self, file: &FileState) {
        let view = Some(Box::new(file.view().clone()));
        let before = std::mem::replace(&mut *self.view.lock(), view);
        drop(before);
    }

    /// Removes the view of a state that ends. The caller holds the inode lock exclusively, and
    /// still has the state, so this drops nothing but references.
    pub(crate) fn clear_view(&self) {
        let before = self.view.lock().take();
        drop(before);
    }

    /// Removes a pin, and returns whether it was the last.
    pub(crate) fn unpin(&self) -> bool {
        self.pins.fetch_sub(1, Ordering::AcqRel) == 1
    }

    pub(crate) fn is_pinned(&self) -> bool {
        self.pins.load(Ordering::Acquire) > 0
    }

    /// Ends the state of the file's data, and returns whether the entry may leave the table: not if
    /// its data is newer than the trees, or in use, or lost without a report. The entry is then
    /// dropped without a lock, when the inode may already have its next entry and state (law 1).
    fn end_file_state(&self) -> bool {
        self.try_lock_without_drain().is_some_and(|mut state| {
            let file = state.file.as_mut();
            file.is_none_or(|file| !file.has_unreported_error() && file.end_if_clean())
        })
    }
}

/// A state whose lock was poisoned by a panic may hold half a change of the file. Reads continue
/// with it, and nothing is written any more.
fn fail_after_panic(state: &InodeState) {
    if let Some(file) = &state.file {
        file.fail_after_panic();
    }
}

/// The inode locks of several inodes, held exclusively.
#[derive(Debug)]
pub(crate) struct LockedInodes<'a> {
    locked: Vec<(FileId, RwLockWriteGuard<'a, InodeState>)>,
}

impl<'a> LockedInodes<'a> {
    /// Locks the inodes in order (law 3), and drains their files. An inode may occur twice in
    /// `entries`.
    pub(crate) fn lock(entries: &[&'a InodeEntry]) -> Self {
        Self::lock_each(entries, InodeEntry::lock, InodeEntry::lock_nested)
    }

    /// As [`Self::lock`], with requests in flight on the files.
    pub(crate) fn lock_without_drain(entries: &[&'a InodeEntry]) -> Self {
        let nested = InodeEntry::lock_nested_without_drain;
        Self::lock_each(entries, InodeEntry::lock_without_drain, nested)
    }

    fn lock_each(
        entries: &[&'a InodeEntry],
        first: fn(&'a InodeEntry) -> RwLockWriteGuard<'a, InodeState>,
        nested: fn(&'a InodeEntry) -> RwLockWriteGuard<'a, InodeState>,
    ) -> Self {
        let mut sorted: Vec<&'a InodeEntry> = entries.to_vec();
        sorted.sort_unstable_by_key(|entry| entry.id);
        sorted.dedup_by_key(|entry| entry.id);
        let lock = |(at, entry): (usize, &'a InodeEntry)| {
            (entry.id, if at == 0 { first(entry) } else { nested(entry) })
        };
        Self { locked: sorted.into_iter().enumerate().map(lock).collect() }
    }

    /// Returns the states in order of their ids.
    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = &mut InodeState> {
        self.locked.iter_mut().map(|(_, state)| &mut **state)
    }

    pub(crate) fn of(&mut self, entry: &InodeEntry) -> &mut InodeState {
        let found = self.locked.iter_mut().find(|(id, _)| *id == entry.id);
        found.map(|(_, state)| &mut **state).expect("the inode is among those that were locked")
    }
}

/// Inodes whose numbers differ in these low bits only share a shard and lie in neighbouring
/// buckets: they are often used one after another, so their entries share cache lines.
const NEIGHBOUR_BITS: u32 = 5;

/// Spreads groups of neighbouring inodes over the map and keeps each group together. The low bits
/// of the hash select the bucket; the high bits distinguish entries of one group.
#[derive(Default)]
struct IdHasher(u64);

impl Hasher for IdHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.write_u64((*byte).into());
        }
    }

    fn write_u64(&mut self, value: u64) {
        let near = value & ((1 << NEIGHBOUR_BITS) - 1);
        let far = self.0.rotate_left(32) ^ (value >> NEIGHBOUR_BITS);
        let mixed = far.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let spread = (mixed ^ (mixed >> 29)) << NEIGHBOUR_BITS;
        self.0 = (spread | near) ^ (near << (u64::BITS - NEIGHBOUR_BITS));
    }
}

#[derive(Debug, Default)]
struct Shard {
    entries: HashMap<FileId, Placed, BuildHasherDefault<IdHasher>>,
    /// The ids in the order in which the clock hand examines them.
    slots: Vec<FileId>,
    hand: usize,
}

#[derive(Debug)]
struct Placed {
    entry: Arc<InodeEntry>,
    slot: usize,
}

/// The entries by id, in shards.
#[derive(Debug)]
pub(crate) struct InodeTable {
    shards: Box<[RwLock<Shard, rank::InodeTable>]>,
    shard_limit: usize,
    /// Hashes of the ids that were looked up recently without getting an entry (law 6).
    recent_misses: Box<[AtomicU64]>,
}

/// The result of [`InodeTable::lookup`].
#[derive(Clone, Copy, Debug)]
pub(crate) enum Lookup {
    Cached(Inode),
    /// The caller takes the inode's entry, which may be a new one.
    UseEntry,
    /// The inode has no entry and gets none now (law 6): the caller reads the inode's tree.
    ReadTree,
}

impl InodeTable {
    pub(crate) fn new(limit: usize) -> Self {
        Self {
            shards: (0..SHARDS).map(|_| RwLock::default()).collect(),
            shard_limit: (limit / SHARDS).max(1),
            recent_misses: (0..limit.max(1)).map(|_| AtomicU64::new(0)).collect(),
        }
    }

    /// Returns the number of entries.
    pub(crate) fn len(&self) -> usize {
        let of = |shard: &RwLock<Shard, rank::InodeTable>| shard.read().entries.len();
        self.shards.iter().map(of).sum()
    }

    /// Looks an inode up without waiting for another thread.
    pub(crate) fn lookup(&self, id: FileId) -> Lookup {
        let shard = self.shard(id).read();
        let Some(entry) = shard.find(id) else {
            let is_full = shard.slots.len() >= self.shard_limit;
            return if is_full && self.is_first_miss(id) {
                Lookup::ReadTree
            } else {
                Lookup::UseEntry
            };
        };
        entry.try_cached().map_or(Lookup::UseEntry, Lookup::Cached)
    }

    /// Returns whether an inode has an entry.
    pub(crate) fn has(&self, id: FileId) -> bool {
        let shard = self.shard(id).read();
        shard.entries.contains_key(&id)
    }

    /// Records that an inode was looked up, and returns whether it was not recorded before.
    fn is_first_miss(&self, id: FileId) -> bool {
        let mixed = mix(id);
        let place = usize::try_from(mixed >> 16).unwrap_or(0) % self.recent_misses.len();
        self.recent_misses[place].swap(mixed, Ordering::Relaxed) != mixed
    }

    /// Returns the entry of an inode, which may not exist, and adds it if there is none.
    pub(crate) fn entry(&self, id: FileId) -> Arc<InodeEntry> {
        let shard = self.shard(id);
        if let Some(entry) = shard.read().find(id) {
            return Arc::clone(entry);
        }
        let mut shard = shard.write();
        if let Some(entry) = shard.find(id) {
            return Arc::clone(entry);
        }
        let entry = InodeEntry::new(id, None, InodeState::default());
        let evicted = shard.insert(Arc::clone(&entry), self.shard_limit);
        drop(shard);
        // An entry owns reserved space and pages: its destructor takes other locks.
        drop(evicted);
        entry
    }

    /// Returns the entries of the inodes of a subvolume.
    pub(crate) fn entries_in(&self, subvolume: u64) -> Vec<Arc<InodeEntry>> {
        let mut found = Vec::new();
        for shard in &self.shards {
            let shard = shard.read();
            let entries = shard.entries.values().map(|placed| &placed.entry);
            found.extend(entries.filter(|entry| entry.id.subvolume == subvolume).cloned());
        }
        found
    }

    /// Removes the entry of a deleted inode, if the table still has this one.
    pub(crate) fn remove(&self, entry: &InodeEntry) {
        let mut shard = self.shard(entry.id).write();
        let is_here = |known: &Arc<InodeEntry>| std::ptr::eq(Arc::as_ptr(known), entry);
        let removed = shard.find(entry.id).is_some_and(is_here).then(|| shard.remove(entry.id));
        drop(shard);
        drop(removed);
    }

    fn shard(&self, id: FileId) -> &RwLock<Shard, rank::InodeTable> {
        let neighbours = FileId::new(id.subvolume, id.ino >> NEIGHBOUR_BITS);
        &self.shards[usize::from(mix(neighbours).to_le_bytes()[7]) % SHARDS]
    }
}

fn mix(id: FileId) -> u64 {
    (id.ino ^ id.subvolume.rotate_left(32)).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

impl Shard {
    fn find(&self, id: FileId) -> Option<&Arc<InodeEntry>> {
        let entry = &self.entries.get(&id)?.entry;
        if !entry.used.load(Ordering::Relaxed) {
            entry.used.store(true, Ordering::Relaxed);
        }
        Some(entry)
    }

    /// Adds an entry and returns those that were evicted, for the caller to drop without the
    /// shard's lock.
    #[must_use]
    fn insert(&mut self, entry: Arc<InodeEntry>, limit: usize) -> Vec<Arc<InodeEntry>> {
        let mut evicted = Vec::new();
        for _ in 0..STEPS_MAX {
            if self.slots.len() < limit {
                break;
            }
            evicted.extend(self.advance_hand());
        }
        let id = entry.id;
        let replaced = self.entries.insert(id, Placed { entry, slot: self.slots.len() });
        debug_assert!(replaced.is_none(), "two entries for {id:?}");
        self.slots.push(id);
        evicted
    }

    /// Examines the next slot, and evicts its entry if it was not used since the last pass and
    /// nothing else refers to it (law 1).
    fn advance_hand(&mut self) -> Option<Arc<InodeEntry>> {
        self.hand = if self.hand < self.slots.len() { self.hand } else { 0 };
        let id = *self.slots.get(self.hand)?;
        let entry = &self.entries.get(&id)?.entry;
        let was_used = entry.used.swap(false, Ordering::Relaxed);
        if was_used || Arc::strong_count(entry) > 1 || !entry.end_file_state() {
            self.hand += 1;
            return None;
        }
        self.remove(id)
    }

    #[must_use]
    fn remove(&mut self, id: FileId) -> Option<Arc<InodeEntry>> {
        let Placed { entry, slot } = self.entries.remove(&id)?;
        self.slots.swap_remove(slot);
        if let Some(moved) = self.slots.get(slot).and_then(|moved| self.entries.get_mut(moved)) {
            moved.slot = slot;
        }
        Some(entry)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sync::run;

    #[test]
    fn an_entry_in_use_is_not_evicted() {
        run(|| {
            let table = InodeTable::new(SHARDS * 2);
            let kept = table.entry(FileId::new(5, 257));
            for ino in 258..10_000 {
                table.entry(FileId::new(5, ino));
            }
            assert!(Arc::ptr_eq(&kept, &table.entry(kept.id)));
            let held: usize = table.shards.iter().map(|shard| shard.read().slots.len()).sum();
            assert!(held <= SHARDS * 2 + 1, "{held} entries");
        });
    }

    #[test]
    fn a_walk_over_many_inodes_evicts_no_entries() {
        run(|| {
            let table = InodeTable::new(SHARDS);
            for ino in 257..10_000 {
                table.entry(FileId::new(5, ino));
            }
            let held: Vec<u64> =
                (257..10_000).filter(|ino| table.has(FileId::new(5, *ino))).collect();
            for ino in 10_000..20_000 {
                assert!(matches!(table.lookup(FileId::new(5, ino)), Lookup::ReadTree));
            }
            assert!(held.iter().all(|ino| table.has(FileId::new(5, *ino))));
            assert!(
                matches!(table.lookup(FileId::new(5, 19_999)), Lookup::UseEntry),
                "the second lookup"
            );
        });
    }

    #[test]
    fn an_inode_that_occurs_twice_is_locked_once() {
        run(|| {
            let table = InodeTable::new(64);
            let (one, other) = (table.entry(FileId::new(5, 300)), table.entry(FileId::new(5, 299)));
            let mut locked = LockedInodes::lock(&[&one, &other, &one]);
            locked.of(&one).next_index = Some(7);
            assert_eq!(locked.of(&one).next_index, Some(7));
            assert_eq!(locked.of(&other).next_index, None);
        });
    }

    #[test]
    fn a_deleted_inode_is_stale() {
        run(|| {
            let entry = InodeEntry::new(FileId::new(5, 257), None, InodeState::default());
            entry.set_deleted();
            let error = entry.inode(|| panic!("nothing is read")).unwrap_err();
            assert!(matches!(error, Error::Stale { .. }));
        });
    }
}
