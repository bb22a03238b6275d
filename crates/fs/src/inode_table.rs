//! The inodes of a volume that is open for writing: one entry each, with its lock.
//!
//! ```text
//! FileId -> entry   facts   what the inode is: size, mode, times ... (a short lock)
//!                   body    the inode lock; what writers keep: file data, the next index
//!                   held    open handles: while there are any, the inode lives without a name
//! ```
//!
//! Laws:
//!
//! 1. There is one entry for an inode at a time, and so one state of its data. Only
//!    [`InodeTable::entry`] adds an entry, and it never replaces one. Whatever makes an inode has
//!    its entry, with its facts and its body locked, before any name leads to it: so a thread that
//!    finds the name meanwhile finds the same entry, and waits for the body. An entry that nothing
//!    else refers to may leave the table, if its inode exists; it is clean then.
//! 2. Who changes an inode has its body alone, and has read its facts before he changes a tree. So
//!    facts that are read from a tree never replace newer ones, and nobody waits for a device while
//!    another has the facts locked in a transaction.
//! 3. Bodies are locked in ascending order of their ids ([`Bodies`]), before a transaction is
//!    joined, never in one.
//! 4. The table keeps as many entries as it was told to, and those in hand besides.
//! 5. Requests in flight share the body without keeping it locked. Who takes it alone completes
//!    them first; so nobody takes it with a transaction joined.
//! 6. In a full table nobody loses his place to an inode that is only looked at, unless that is for
//!    the second time: a walk over many inodes costs no entries.

use crate::held::NoRelease;
use crate::idle::IsIdle;
use crate::new_inode::HandedDown;
use crate::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use crate::sync::{Mutex, MutexGuard, RwLock, RwLockReadGuard, RwLockWriteGuard};
use crate::{Error, FileId, Result};
use butternut_file::FileState;
use butternut_format::inode::Inode;
use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};
use std::ops::Deref;
use std::sync::{Arc, PoisonError, TryLockError};

const SHARDS: usize = 64;

/// Slots that one insertion looks at to find one that may go.
const STEPS_MAX: usize = 8;

/// What an inode is, as far as it is known.
#[derive(Clone, Copy, Debug)]
enum Facts {
    Unread,
    Known(Inode),
    /// Deleted: no inode will ever have this id again while the volume is open.
    Gone,
}

/// One inode.
#[derive(Debug)]
pub(crate) struct InodeEntry {
    pub(crate) id: FileId,
    facts: Mutex<Facts>,
    body: RwLock<Body>,
    held: AtomicU64,
    /// Somebody looked for it since the table's hand came by.
    used: AtomicBool,
    /// It is in the writer's list of those that no tree has as they are.
    is_listed: AtomicBool,
    /// It is known to carry nothing that a write would have to strip.
    has_no_privileges: AtomicBool,
    pub(crate) is_idle: IsIdle,
}

/// What writers of an inode keep, under its lock.
#[derive(Debug, Default)]
pub(crate) struct Body {
    /// Of a regular file that is open, or was written or closed not long ago ([`crate::idle`]).
    pub(crate) file: Option<Box<FileState>>,
    /// Of a directory: the index of its next entry, once known.
    pub(crate) next_index: Option<u64>,
    /// Of a directory: what new inodes inherit, once known.
    pub(crate) handed_down: Option<HandedDown>,
    /// Of an inode without a name: it may be given one.
    pub(crate) is_linkable: bool,
    /// The facts are newer than the inode's item.
    pub(crate) is_stamp_due: AtomicBool,
}

impl InodeEntry {
    pub(crate) fn new(id: FileId, inode: Option<Inode>, body: Body) -> Arc<Self> {
        let facts = inode.map_or(Facts::Unread, Facts::Known);
        let (facts, body) = (Mutex::new(facts), RwLock::new(body));
        Arc::new(Self {
            id,
            facts,
            body,
            held: AtomicU64::new(0),
            used: AtomicBool::new(false),
            is_listed: AtomicBool::new(false),
            has_no_privileges: AtomicBool::new(false),
            is_idle: IsIdle::default(),
        })
    }

    fn facts(&self) -> MutexGuard<'_, Facts> {
        self.facts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What the inode is; `read` looks it up where that is not known.
    pub(crate) fn inode(&self, read: impl FnOnce() -> Result<Inode>) -> Result<Inode> {
        let mut facts = self.facts();
        match *facts {
            Facts::Known(inode) => Ok(inode),
            Facts::Gone => Err(Error::Stale { id: self.id }),
            Facts::Unread => {
                let inode = read()?;
                *facts = Facts::Known(inode);
                Ok(inode)
            }
        }
    }

    /// What the inode is, if that is known and it exists.
    pub(crate) fn known(&self) -> Option<Inode> {
        match *self.facts() {
            Facts::Known(inode) => Some(inode),
            Facts::Unread | Facts::Gone => None,
        }
    }

    /// The same, unless somebody is about to find out.
    pub(crate) fn known_at_once(&self) -> Option<Inode> {
        match self.facts.try_lock().as_deref() {
            Ok(Facts::Known(inode)) => Some(*inode),
            Ok(Facts::Unread | Facts::Gone) | Err(_) => None,
        }
    }

    pub(crate) fn set(&self, inode: Inode) {
        *self.facts() = Facts::Known(inode);
    }

    /// Changes the facts, by one of several who share the inode.
    pub(crate) fn update(&self, change: impl FnOnce(&mut Inode)) {
        if let Facts::Known(inode) = &mut *self.facts() {
            change(inode);
        }
    }

    pub(crate) fn set_gone(&self) {
        *self.facts() = Facts::Gone;
    }

    pub(crate) fn body(&self) -> RwLockReadGuard<'_, Body> {
        recover(self.body.read())
    }

    /// The body shared, unless somebody has it alone or waits for that.
    pub(crate) fn try_body(&self) -> Option<RwLockReadGuard<'_, Body>> {
        match self.body.try_read() {
            Ok(body) => Some(body),
            Err(TryLockError::Poisoned(body)) => Some(recover(Err(body))),
            Err(TryLockError::WouldBlock) => None,
        }
    }

    /// The body alone, with nothing in flight on the inode's data (law 5).
    pub(crate) fn body_mut(&self) -> RwLockWriteGuard<'_, Body> {
        let body = self.body_in_traffic();
        if let Some(file) = &body.file {
            let _no_release = NoRelease::begin();
            file.quiet();
        }
        body
    }

    /// The body alone, whatever is in flight on the inode's data.
    pub(crate) fn body_in_traffic(&self) -> RwLockWriteGuard<'_, Body> {
        recover(self.body.write())
    }

    /// The same, unless somebody has it.
    pub(crate) fn try_body_in_traffic(&self) -> Option<RwLockWriteGuard<'_, Body>> {
        match self.body.try_write() {
            Ok(body) => Some(body),
            Err(TryLockError::Poisoned(body)) => Some(recover(Err(body))),
            Err(TryLockError::WouldBlock) => None,
        }
    }

    pub(crate) fn is_listed(&self) -> bool {
        self.is_listed.load(Ordering::Acquire)
    }

    pub(crate) fn set_listed(&self, is_listed: bool) {
        self.is_listed.store(is_listed, Ordering::Release);
    }

    /// Whether it is known that a write has nothing to strip.
    pub(crate) fn has_no_privileges(&self) -> bool {
        self.has_no_privileges.load(Ordering::Acquire)
    }

    /// Somebody looked, and has the body alone; or gave it some.
    pub(crate) fn set_no_privileges(&self, has_none: bool) {
        self.has_no_privileges.store(has_none, Ordering::Release);
    }

    /// One more handle. The caller has the body locked, or the entry to himself.
    pub(crate) fn hold(&self) {
        self.held.fetch_add(1, Ordering::AcqRel);
    }

    /// One handle less; whether it was the last.
    pub(crate) fn let_go(&self) -> bool {
        self.held.fetch_sub(1, Ordering::AcqRel) == 1
    }

    pub(crate) fn is_held(&self) -> bool {
        self.held.load(Ordering::Acquire) > 0
    }

    /// Ends the state of its data, and returns whether the entry may leave: not if that is newer
    /// than the trees, or in use. The entry is dropped without a lock, when the inode may have its
    /// next entry and state (law 1).
    fn end_data(&self) -> bool {
        self.try_body_in_traffic()
            .is_some_and(|mut body| body.file.as_mut().is_none_or(|file| file.end_if_clean()))
    }
}

/// A body that a panic has poisoned may hold half a change of the file: readers go on with it, and
/// nothing is written any more.
fn recover<G: Deref<Target = Body>>(locked: std::result::Result<G, PoisonError<G>>) -> G {
    locked.unwrap_or_else(|poisoned| {
        let body = poisoned.into_inner();
        if let Some(file) = &body.file {
            file.fail_after_panic();
        }
        body
    })
}

/// The bodies of several inodes, locked.
#[derive(Debug)]
pub(crate) struct Bodies<'a> {
    locked: Vec<(FileId, RwLockWriteGuard<'a, Body>)>,
}

impl<'a> Bodies<'a> {
    /// Locks them in order (law 3). An inode may be named twice.
    pub(crate) fn lock(entries: &[&'a InodeEntry]) -> Self {
        let mut sorted: Vec<&'a InodeEntry> = entries.to_vec();
        sorted.sort_unstable_by_key(|entry| entry.id);
        sorted.dedup_by_key(|entry| entry.id);
        Self { locked: sorted.into_iter().map(|entry| (entry.id, entry.body_mut())).collect() }
    }

    /// In order of their ids.
    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = &mut Body> {
        self.locked.iter_mut().map(|(_, body)| &mut **body)
    }

    pub(crate) fn of(&mut self, entry: &InodeEntry) -> &mut Body {
        let found = self.locked.iter_mut().find(|(id, _)| *id == entry.id);
        found.map(|(_, body)| &mut **body).expect("only what was locked is asked for")
    }
}

/// Inodes with neighbouring numbers have one shard and neighbouring places: they are looked at one
/// after the other more often than not, and memory that is near is fast.
const NEIGHBOUR_BITS: u32 = 5;

/// Neighbourhoods are spread, and neighbours lie side by side: the low bits of a hash say where,
/// the high ones tell those apart who are near.
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
    entries: HashMap<FileId, Place, BuildHasherDefault<IdHasher>>,
    /// In the order in which the hand looks at them.
    slots: Vec<FileId>,
    hand: usize,
}

#[derive(Debug)]
struct Place {
    entry: Arc<InodeEntry>,
    slot: usize,
}

/// The entries, by id.
#[derive(Debug)]
pub(crate) struct InodeTable {
    shards: Box<[RwLock<Shard>]>,
    shard_limit: usize,
    /// Who was looked at lately without an entry (law 6): ids, mixed, each in its one place.
    passers: Box<[AtomicU64]>,
}

/// What the table says of an inode that somebody looks at.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Seen {
    Known(Inode),
    /// Its entry is to be asked, be it a new one.
    Ask,
    /// It has no entry, and gets none now (law 6): its tree has what there is to know.
    Passing,
}

impl InodeTable {
    pub(crate) fn new(limit: usize) -> Self {
        Self {
            shards: (0..SHARDS).map(|_| RwLock::default()).collect(),
            shard_limit: (limit / SHARDS).max(1),
            passers: (0..limit.max(1)).map(|_| AtomicU64::new(0)).collect(),
        }
    }

    /// How many entries there are.
    pub(crate) fn len(&self) -> usize {
        let of = |shard: &RwLock<Shard>| {
            shard.read().unwrap_or_else(PoisonError::into_inner).entries.len()
        };
        self.shards.iter().map(of).sum()
    }

    /// What an inode is, if that is known and nobody is about to find out.
    pub(crate) fn look(&self, id: FileId) -> Seen {
        let shard = self.shard(id).read().unwrap_or_else(PoisonError::into_inner);
        let Some(entry) = shard.find(id) else {
            let is_full = shard.slots.len() >= self.shard_limit;
            return if is_full && self.passes(id) { Seen::Passing } else { Seen::Ask };
        };
        entry.known_at_once().map_or(Seen::Ask, Seen::Known)
    }

    /// Whether an inode has an entry.
    pub(crate) fn has(&self, id: FileId) -> bool {
        let shard = self.shard(id).read().unwrap_or_else(PoisonError::into_inner);
        shard.entries.contains_key(&id)
    }

    /// Notes that an inode was looked at; whether it was not lately.
    fn passes(&self, id: FileId) -> bool {
        let mixed = mix(id);
        let place = usize::try_from(mixed >> 16).unwrap_or(0) % self.passers.len();
        self.passers[place].swap(mixed, Ordering::Relaxed) != mixed
    }

    /// The entry of an inode, which may not exist.
    pub(crate) fn entry(&self, id: FileId) -> Arc<InodeEntry> {
        let shard = self.shard(id);
        if let Some(entry) = shard.read().unwrap_or_else(PoisonError::into_inner).find(id) {
            return Arc::clone(entry);
        }
        let mut shard = shard.write().unwrap_or_else(PoisonError::into_inner);
        if let Some(entry) = shard.find(id) {
            return Arc::clone(entry);
        }
        let entry = InodeEntry::new(id, None, Body::default());
        let evicted = shard.insert(Arc::clone(&entry), self.shard_limit);
        drop(shard);
        // An entry holds space and pages: its destructor takes other locks.
        drop(evicted);
        entry
    }

    /// Removes the entry of an inode that is gone, if the table still has this one.
    pub(crate) fn remove(&self, entry: &InodeEntry) {
        let mut shard = self.shard(entry.id).write().unwrap_or_else(PoisonError::into_inner);
        let is_here = |known: &Arc<InodeEntry>| std::ptr::eq(Arc::as_ptr(known), entry);
        let removed = shard.find(entry.id).is_some_and(is_here).then(|| shard.remove(entry.id));
        drop(shard);
        drop(removed);
    }

    fn shard(&self, id: FileId) -> &RwLock<Shard> {
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

    /// Adds an entry; returns those that left, for the caller to drop without the shard's lock.
    #[must_use]
    fn insert(&mut self, entry: Arc<InodeEntry>, limit: usize) -> Vec<Arc<InodeEntry>> {
        let mut evicted = Vec::new();
        for _ in 0..STEPS_MAX {
            if self.slots.len() < limit {
                break;
            }
            evicted.extend(self.turn());
        }
        let id = entry.id;
        let replaced = self.entries.insert(id, Place { entry, slot: self.slots.len() });
        debug_assert!(replaced.is_none(), "two entries for {id:?}");
        self.slots.push(id);
        evicted
    }

    /// Looks at the next slot: the entry leaves if it was not used lately and nothing else refers
    /// to it (law 1).
    fn turn(&mut self) -> Option<Arc<InodeEntry>> {
        self.hand = if self.hand < self.slots.len() { self.hand } else { 0 };
        let id = *self.slots.get(self.hand)?;
        let entry = &self.entries.get(&id)?.entry;
        let was_used = entry.used.swap(false, Ordering::Relaxed);
        if was_used || Arc::strong_count(entry) > 1 || !entry.end_data() {
            self.hand += 1;
            return None;
        }
        self.remove(id)
    }

    #[must_use]
    fn remove(&mut self, id: FileId) -> Option<Arc<InodeEntry>> {
        let Place { entry, slot } = self.entries.remove(&id)?;
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
    fn an_entry_in_hand_stays_and_others_make_room() {
        run(|| {
            let table = InodeTable::new(SHARDS * 2);
            let kept = table.entry(FileId::new(5, 257));
            for ino in 258..10_000 {
                table.entry(FileId::new(5, ino));
            }
            assert!(Arc::ptr_eq(&kept, &table.entry(kept.id)));
            let held: usize =
                table.shards.iter().map(|shard| shard.read().unwrap().slots.len()).sum();
            assert!(held <= SHARDS * 2 + 1, "{held} entries");
        });
    }

    #[test]
    fn a_walk_over_many_inodes_leaves_the_entries_of_others() {
        run(|| {
            let table = InodeTable::new(SHARDS);
            for ino in 257..10_000 {
                table.entry(FileId::new(5, ino));
            }
            let held: Vec<u64> =
                (257..10_000).filter(|ino| table.has(FileId::new(5, *ino))).collect();
            for ino in 10_000..20_000 {
                assert!(matches!(table.look(FileId::new(5, ino)), Seen::Passing));
            }
            assert!(held.iter().all(|ino| table.has(FileId::new(5, *ino))));
            assert!(matches!(table.look(FileId::new(5, 19_999)), Seen::Ask), "the second look");
        });
    }

    #[test]
    fn an_inode_named_twice_is_locked_once() {
        run(|| {
            let table = InodeTable::new(64);
            let (one, other) = (table.entry(FileId::new(5, 300)), table.entry(FileId::new(5, 299)));
            let mut bodies = Bodies::lock(&[&one, &other, &one]);
            bodies.of(&one).next_index = Some(7);
            assert_eq!(bodies.of(&one).next_index, Some(7));
            assert_eq!(bodies.of(&other).next_index, None);
        });
    }

    #[test]
    fn what_is_gone_stays_gone() {
        run(|| {
            let entry = InodeEntry::new(FileId::new(5, 257), None, Body::default());
            entry.set_gone();
            let error = entry.inode(|| panic!("nothing is read")).unwrap_err();
            assert!(matches!(error, Error::Stale { .. }));
        });
    }
}
