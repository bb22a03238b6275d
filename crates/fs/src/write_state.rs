//! [`WriteState`]: the part of a mounted filesystem that exists only when it is open for writing.
//!
//! Lock order, each lock before the ones below it:
//!
//! ```text
//! snapshots           operations share it, a snapshot excludes them
//! renames             directories move one at a time
//! merges              merges share it, a subvolume that is deleted or closed excludes them
//!                     (`subvolume::merges`)
//! inode locks         ascending by id
//! a transaction       joined; no inode lock is waited for, no data is read or written
//! attributes          of one inode; the trees are read under it if they are not in memory
//! dirty inodes        short, with nothing below it
//! trees               one edit at a time
//! ```
//!
//! All ranks are in `sys::lock::rank`.
//!
//! Laws:
//!
//! 1. A subvolume that has become read-only, or is deleted, is *closed*: no operation that writes
//!    finds it. It is closed while operations that write and merges are excluded, so no thread that
//!    found it writable before opens it again afterwards.
//! 2. No inode number of a subvolume is returned twice while the volume is open, and no subvolume
//!    id. A subvolume that is closed keeps its next inode number: when it is opened again, its tree
//!    may not have the highest number any more, while caches still do.
//! 3. Memory forgets the inodes of a deleted subvolume that are not pinned when it is deleted; the
//!    others, before its blocks are freed. From then on its tree cannot be found either
//!    (`subvolume::roots`), so no inode of it can be used.

use crate::background::cleaner_signal::CleanerSignal;
use crate::background::signal::Signal;
use crate::inode::dirty::DirtyInodes;
use crate::inode::idle::IdleFiles;
use crate::inode::table::{InodeEntry, InodeState, InodeTable};
use crate::receive::in_progress::ReceivesInProgress;
use crate::subvolume::barrier::SnapshotBarrier;
use crate::subvolume::listings::ListedSubvolumes;
use crate::subvolume::merges::Merges;
use crate::subvolume::sent::SubvolumesSent;
use crate::{Clock, Error, FileId, Result};
use butternut_format::units::{Ino, TreeId};
use butternut_names as names;
use butternut_sys::lock::{Mutex, MutexGuard, rank};
use butternut_tree::{Forest, Tree};
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

#[derive(Debug)]
pub(crate) struct WriteState {
    pub(crate) table: InodeTable,
    pub(crate) idle: IdleFiles,
    pub(crate) signal: Arc<Signal>,
    pub(crate) cleaner: Arc<CleanerSignal>,
    pub(crate) clock: Clock,
    /// A committer runs. Without one, commits happen when a caller syncs, and when the limits on
    /// dirty memory are exceeded.
    pub(crate) has_committer: bool,
    is_abandoned: AtomicBool,
    subvolumes: Mutex<HashMap<u64, Arc<WritableSubvolume>>, rank::Subvolumes>,
    pub(crate) listings: ListedSubvolumes,
    /// Inodes with data or attributes that no tree has yet.
    dirty: DirtyInodes,
    pub(crate) snapshots: SnapshotBarrier,
    pub(crate) merges: Merges,
    /// What streams are made of.
    pub(crate) sent: SubvolumesSent,
    pub(crate) receives: ReceivesInProgress,
    renames: Mutex<(), rank::Renames>,
    /// Locked while deleted subvolumes are freed.
    pub(crate) cleaning: Mutex<(), rank::Cleaning>,
    /// The id for the next subvolume; 0 before the first one.
    next_subvolume: Mutex<u64, rank::NextSubvolume>,
    /// Locked while a subvolume is written to for the first time.
    opening: Mutex<(), rank::SubvolumeOpening>,
    /// Orphans that were not deleted, not reported yet: at most one record for each subvolume.
    left_orphans: Mutex<Vec<LeftOrphans>, rank::LeftOrphans>,
    /// Items of fs-verity may be left of files that are not sealed: they could not be removed.
    has_left_seals: AtomicBool,
    /// Why the end of writing failed, until a sync that takes it has returned it.
    end_error: Mutex<Option<Error>, rank::EndError>,
}

/// A subvolume that was written to, or is about to be.
#[derive(Debug)]
pub(crate) struct WritableSubvolume {
    pub(crate) id: TreeId,
    pub(crate) tree: Tree,
    next_ino: Mutex<Ino, rank::NextIno>,
    /// It is read-only (law 1).
    is_closed: AtomicBool,
}

/// Orphans that could not be deleted when their subvolume was opened for writing.
#[derive(Debug)]
pub(crate) struct LeftOrphans {
    pub(crate) subvolume: TreeId,
    pub(crate) count: u64,
    /// The first of them; `None` if the list of orphans could not be read to its end.
    pub(crate) first: Option<Ino>,
    /// Why the first one was not deleted.
    pub(crate) error: Error,
}

impl LeftOrphans {
    pub(crate) fn add(left: &mut Option<Self>, subvolume: TreeId, ino: Option<Ino>, error: Error) {
        let count = u64::from(ino.is_some());
        match left {
            Some(left) => left.count += count,
            None => *left = Some(Self { subvolume, count, first: ino, error }),
        }
    }
}

impl WriteState {
    pub(crate) fn new(inodes: usize, clock: Clock, has_committer: bool) -> Self {
        Self {
            table: InodeTable::new(inodes),
            idle: IdleFiles::default(),
            signal: Arc::default(),
            cleaner: Arc::default(),
            clock,
            has_committer,
            is_abandoned: AtomicBool::new(false),
            subvolumes: Mutex::default(),
            listings: ListedSubvolumes::default(),
            dirty: DirtyInodes::default(),
            snapshots: SnapshotBarrier::default(),
            merges: Merges::default(),
            sent: SubvolumesSent::default(),
            receives: ReceivesInProgress::default(),
            renames: Mutex::default(),
            cleaning: Mutex::default(),
            next_subvolume: Mutex::default(),
            opening: Mutex::default(),
            left_orphans: Mutex::default(),
            has_left_seals: AtomicBool::new(false),
            end_error: Mutex::default(),
        }
    }

    /// Queues a file for the committer to merge, if there is one.
    pub(crate) fn queue_merge(&self, entry: &Arc<InodeEntry>) {
        if self.has_committer {
            self.signal.queue_merge(entry);
        }
    }

    /// Keeps why the end of writing failed. The first error has the cause, if there are two.
    pub(crate) fn set_end_error(&self, error: Error) {
        // One that is not kept is dropped without the lock.
        let mut error = Some(error);
        let mut kept = self.end_error.lock();
        if kept.is_none() {
            *kept = error.take();
        }
        drop(kept);
    }

    /// Returns why the end of writing failed, once.
    pub(crate) fn take_end_error(&self) -> Option<Error> {
        self.end_error.lock().take()
    }

    pub(crate) fn has_end_error(&self) -> bool {
        self.end_error.lock().is_some()
    }

    /// Returns the records of orphans that are left, at most one for each subvolume. Recovers from
    /// poisoning: the list is consistent after a panic, and is only reported.
    pub(crate) fn left_orphans(&self) -> MutexGuard<'_, Vec<LeftOrphans>> {
        self.left_orphans.lock()
    }

    /// Records the orphans that are left in a subvolume, in the place of an earlier record of it:
    /// each search for them finds all of them.
    pub(crate) fn record_left_orphans(&self, left: LeftOrphans) {
        self.set_left_seals();
        let mut all = self.left_orphans();
        let known = all.iter_mut().find(|known| known.subvolume == left.subvolume);
        let replaced = if let Some(known) = known {
            Some(std::mem::replace(known, left))
        } else {
            all.push(left);
            None
        };
        drop(all);
        drop(replaced);
    }

    /// Returns whether files that are not sealed may have items of fs-verity.
    pub(crate) fn has_left_seals(&self) -> bool {
        self.has_left_seals.load(Ordering::Acquire)
    }

    /// Makes [`Self::has_left_seals`] true.
    pub(crate) fn set_left_seals(&self) {
        self.has_left_seals.store(true, Ordering::Release);
    }

    /// Makes [`Self::is_abandoned`] true.
    pub(crate) fn abandon(&self) {
        self.is_abandoned.store(true, Ordering::Release);
    }

    pub(crate) fn is_abandoned(&self) -> bool {
        self.is_abandoned.load(Ordering::Acquire)
    }

    pub(crate) fn lock_renames(&self) -> MutexGuard<'_, ()> {
        self.renames.lock()
    }

    /// Ends writing to a subvolume that has become read-only. The caller excludes operations that
    /// write and merges (law 1).
    pub(crate) fn close_subvolume(&self, id: u64) {
        let known = self.subvolumes().get(&id).map(Arc::clone);
        if let Some(subvolume) = known {
            subvolume.is_closed.store(true, Ordering::Release);
        }
        for entry in self.table.entries_in(id) {
            entry.set_subvolume_writable(false);
        }
    }

    /// Ends writing to a deleted subvolume, drops its changes that are in memory only, and forgets
    /// its inodes that are not pinned (law 3). The caller excludes operations that write and
    /// merges, and no tree of the subvolume can be found any more.
    pub(crate) fn discard_subvolume(&self, id: u64) {
        let closed = self.subvolumes().remove(&id);
        drop(closed);
        for entry in self.table.entries_in(id) {
            entry.set_subvolume_writable(false);
            let mut state = entry.lock();
            if !entry.is_pinned() {
                self.forget_inode(&entry, &mut state);
            } else if self.is_dirty(entry.id) {
                if let Some(file) = state.file.as_mut() {
                    file.discard();
                }
                *state.is_item_stale.get_mut() = false;
                self.mark_clean(&entry);
            }
        }
        let mut next = self.next_subvolume.lock();
        *next = id.saturating_add(1).max(*next);
    }

    /// Forgets all inodes of a deleted subvolume, whose tree cannot be found any more (law 3).
    /// Returns `false` if one is pinned or listed: its tree is still in use.
    pub(crate) fn forget_subvolume(&self, id: u64) -> bool {
        !self.listings.contains(id)
            && self.table.entries_in(id).iter().all(|entry| {
                let mut state = entry.lock();
                let is_unused = !entry.is_pinned();
                if is_unused {
                    self.forget_inode(entry, &mut state);
                }
                is_unused
            })
    }

    /// Returns an id for a new subvolume. No id is returned twice while the volume is open, also if
    /// the subvolume has been deleted: caches and node numbers go by it. Nor is one that has a
    /// quota group.
    ///
    /// # Errors
    /// `NumbersUsedUp`, also where the root tree has higher ids left: those that were returned
    /// before are not in it yet.
    pub(crate) fn allocate_subvolume(&self, forest: &Arc<Forest>) -> Result<TreeId> {
        let free = names::next_subvolume(&forest.root_tree())?;
        let mut next = self.next_subvolume.lock();
        let id = forest.first_without_qgroup(TreeId(free.0.max(*next)));
        if id.0 >= names::SUBVOLUME_LAST {
            let (tree, what) = (TreeId::ROOT, "subvolume ids");
            return Err(names::NamesError::NumbersUsedUp { tree, what }.into());
        }
        *next = id.0.saturating_add(1);
        Ok(id)
    }

    fn subvolumes(&self) -> MutexGuard<'_, HashMap<u64, Arc<WritableSubvolume>>> {
        self.subvolumes.lock()
    }

    /// Returns the subvolume of an inode. If it was not written to before, `open` opens it for
    /// writing, and returns the orphans that it could not delete: one thread at a time.
    pub(crate) fn subvolume(
        &self,
        id: FileId,
        open: impl FnOnce() -> Result<(WritableSubvolume, Option<LeftOrphans>)>,
    ) -> Result<Arc<WritableSubvolume>> {
        if let Some(found) = self.cached_subvolume(id) {
            return Ok(found);
        }
        let _alone = self.opening.lock();
        if let Some(found) = self.cached_subvolume(id) {
            return Ok(found);
        }
        let (subvolume, left) = open()?;
        if let Some(left) = left {
            self.record_left_orphans(left);
        }
        Ok(self.add_subvolume(subvolume))
    }

    /// Returns the subvolume of an inode, which is read-only. Only orphans may be deleted in it.
    /// `open` reads it if it was not used before.
    pub(crate) fn closed_subvolume(
        &self,
        id: FileId,
        open: impl FnOnce() -> Result<WritableSubvolume>,
    ) -> Result<Arc<WritableSubvolume>> {
        let _alone = self.opening.lock();
        let known = self.subvolumes().get(&id.subvolume).map(Arc::clone);
        if let Some(known) = known {
            return Ok(known);
        }
        let subvolume = open()?;
        subvolume.is_closed.store(true, Ordering::Release);
        Ok(self.add_subvolume(subvolume))
    }

    /// Adds a subvolume, whose inode numbers begin no lower than those of the one that it replaces
    /// (law 2). The caller has `opening` locked.
    fn add_subvolume(&self, subvolume: WritableSubvolume) -> Arc<WritableSubvolume> {
        let known = self.subvolumes().get(&subvolume.id.0).map(Arc::clone);
        if let Some(closed) = known {
            let floor = *closed.next_ino.lock();
            let mut next = subvolume.next_ino.lock();
            *next = floor.max(*next);
        }
        let subvolume = Arc::new(subvolume);
        let replaced = self.subvolumes().insert(subvolume.id.0, Arc::clone(&subvolume));
        drop(replaced);
        subvolume
    }

    /// Returns the subvolume of an inode, if it was written to before and is not closed.
    pub(crate) fn cached_subvolume(&self, id: FileId) -> Option<Arc<WritableSubvolume>> {
        let is_open = |known: &&Arc<WritableSubvolume>| !known.is_closed.load(Ordering::Acquire);
        self.subvolumes().get(&id.subvolume).filter(is_open).map(Arc::clone)
    }

    /// Records that the inode has something that no tree has yet. The caller holds its inode lock.
    pub(crate) fn mark_dirty(&self, entry: &Arc<InodeEntry>) {
        self.dirty.add(entry);
    }

    pub(crate) fn is_dirty(&self, id: FileId) -> bool {
        self.dirty.get(id).is_some()
    }

    pub(crate) fn dirty_entry(&self, id: FileId) -> Option<Arc<InodeEntry>> {
        self.dirty.get(id)
    }

    pub(crate) fn dirty_count(&self) -> usize {
        self.dirty.len()
    }

    /// Records that the trees have everything of the inode. The caller holds its inode lock
    /// exclusively.
    pub(crate) fn mark_clean(&self, entry: &InodeEntry) {
        self.dirty.remove(entry);
    }

    /// Returns at most `limit` dirty inodes with ids of at least `from`, in order.
    pub(crate) fn dirty_from(&self, from: FileId, limit: usize) -> Vec<Arc<InodeEntry>> {
        self.dirty.range_from(from, limit)
    }

    /// Drops what memory has of a deleted inode. The caller holds its inode lock exclusively.
    pub(crate) fn forget(&self, entry: &InodeEntry, state: &mut InodeState) {
        self.signal.freed(entry.cached().map_or(0, |inode| inode.bytes_used));
        self.forget_inode(entry, state);
    }

    fn forget_inode(&self, entry: &InodeEntry, state: &mut InodeState) {
        entry.clear_view();
        if let Some(mut file) = state.file.take() {
            file.discard();
        }
        *state = InodeState::default();
        entry.set_deleted();
        self.mark_clean(entry);
        self.table.remove(entry);
    }
}

impl WritableSubvolume {
    pub(crate) fn new(id: TreeId, tree: Tree) -> Result<Self> {
        let next_ino = Mutex::new(names::next_ino(&tree)?);
        Ok(Self { id, tree, next_ino, is_closed: AtomicBool::new(false) })
    }

    /// Returns a number for a new inode. No number is returned twice, whether it was used or not.
    pub(crate) fn allocate_ino(&self) -> Result<Ino> {
        let mut next = self.next_ino.lock();
        let ino = *next;
        if ino.0 >= names::INO_LAST {
            let (tree, what) = (self.id, "inode numbers");
            return Err(names::NamesError::NumbersUsedUp { tree, what }.into());
        }
        *next = Ino(ino.0 + 1);
        Ok(ino)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Filesystem, MountOptions, NewInode, RecursiveSnapshot, SnapshotAccess};
    use butternut_device::{Device, MemoryDevice};
    use butternut_mkfs::MkfsOptions;

    /// Returns a volume whose next subvolume gets an id.
    fn volume_before(id: u64) -> Filesystem {
        let device = MemoryDevice::new("memory", 256 << 20);
        butternut_mkfs::make(&device, &MkfsOptions::default()).expect("a fresh volume");
        let device: Arc<dyn Device> = Arc::new(device);
        let options = MountOptions::default().read_only(false);
        let fs = Filesystem::open_devices(vec![device], &options).expect("a writable volume");
        for name in [&b"source"[..], b"inside"] {
            let dir =
                if name == b"inside" { fs.lookup(fs.root(), b"source") } else { Ok(fs.root()) };
            let new = NewInode::new(0o755);
            fs.create_subvolume(dir.expect("a directory"), name, &new).expect("a subvolume");
        }
        *fs.write_state().expect("a writable volume").next_subvolume.lock() = id;
        fs
    }

    fn is_used_up<T: std::fmt::Debug>(result: Result<T>) {
        let error = result.expect_err("no id is left");
        let is_used_up = matches!(error, Error::Names(names::NamesError::NumbersUsedUp { .. }));
        assert!(is_used_up, "{error}");
    }

    #[test]
    fn ids_of_subvolumes_are_used_up_before_those_of_quota_groups() {
        let fs = volume_before(names::SUBVOLUME_LAST - 1);
        let (root, new) = (fs.root(), NewInode::new(0o755));
        let source = fs.lookup(root, b"source").expect("a subvolume").subvolume;
        let options = RecursiveSnapshot::new(SnapshotAccess::ReadWrite);
        // It needs two.
        is_used_up(fs.snapshot_recursive(source, root, b"copy", options));
        is_used_up(fs.create_subvolume(root, b"more", &new));
        fs.sync().expect("a volume that is still writable");
        fs.create(root, b"file", &new).expect("a volume that is still writable");
        fs.close().expect("a sound volume");

        let fs = volume_before(names::SUBVOLUME_LAST - 1);
        let (root, last) = (fs.root(), names::SUBVOLUME_LAST - 1);
        assert_eq!(fs.create_subvolume(root, b"last", &new).expect("the last id"), last);
        is_used_up(fs.create_subvolume(root, b"more", &new));
        fs.close().expect("a sound volume");
    }
}
