//! [`WriteState`]: the part of a mounted filesystem that exists only when it is open for writing.
//!
//! Lock order, each lock before the ones below it:
//!
//! ```text
//! renames             directories move one at a time
//! inode locks         ascending by id
//! a transaction       joined; no inode lock is waited for, no data is read or written
//! trees               one edit at a time
//! attributes, dirty   short, with nothing below them
//! ```

use crate::background::committer::Signal;
use crate::inode::dirty::DirtyInodes;
use crate::inode::idle::IdleFiles;
use crate::inode::pin::LeftOrphans;
use crate::inode::table::{InodeEntry, InodeTable};
use crate::{Clock, Error, FileId, Filesystem, Result};
use butternut_format::inode::Inode;
use butternut_format::root::RootFlags;
use butternut_format::units::{Ino, TreeId};
use butternut_names as names;
use butternut_sys::lock::{Mutex, MutexGuard, rank};
use butternut_tree::Tree;
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Why a placeholder cannot be changed.
const NOT_HERE: &str = "a subvolume that is not here";

#[derive(Debug)]
pub(crate) struct WriteState {
    pub(crate) table: InodeTable,
    pub(crate) idle: IdleFiles,
    pub(crate) signal: Arc<Signal>,
    pub(crate) clock: Clock,
    /// A committer runs. Without one, commits happen when a caller syncs, and when the limits on
    /// dirty memory are exceeded.
    pub(crate) has_committer: bool,
    is_abandoned: AtomicBool,
    subvolumes: Mutex<HashMap<u64, Arc<WritableSubvolume>>, rank::Subvolumes>,
    /// Inodes with data or attributes that no tree has yet.
    dirty: DirtyInodes,
    renames: Mutex<(), rank::Renames>,
    /// Locked while a subvolume is written to for the first time.
    opening: Mutex<(), rank::SubvolumeOpening>,
    /// Orphans that were not deleted, not reported yet: at most one record for each subvolume.
    left_orphans: Mutex<Vec<LeftOrphans>, rank::LeftOrphans>,
}

/// A subvolume that was written to, or is about to be.
#[derive(Debug)]
pub(crate) struct WritableSubvolume {
    pub(crate) id: TreeId,
    pub(crate) tree: Tree,
    next_ino: Mutex<Ino, rank::NextIno>,
}

impl WriteState {
    pub(crate) fn new(inodes: usize, clock: Clock, has_committer: bool) -> Self {
        Self {
            table: InodeTable::new(inodes),
            idle: IdleFiles::default(),
            signal: Arc::default(),
            clock,
            has_committer,
            is_abandoned: AtomicBool::new(false),
            subvolumes: Mutex::default(),
            dirty: DirtyInodes::default(),
            renames: Mutex::default(),
            opening: Mutex::default(),
            left_orphans: Mutex::default(),
        }
    }

    /// Recovers from poisoning: the list is consistent after a panic, and is only reported.
    pub(crate) fn left_orphans(&self) -> MutexGuard<'_, Vec<LeftOrphans>> {
        self.left_orphans.lock()
    }

    pub(crate) fn is_abandoned(&self) -> bool {
        self.is_abandoned.load(Ordering::Acquire)
    }

    pub(crate) fn lock_renames(&self) -> MutexGuard<'_, ()> {
        self.renames.lock()
    }

    fn subvolumes(&self) -> MutexGuard<'_, HashMap<u64, Arc<WritableSubvolume>>> {
        self.subvolumes.lock()
    }

    /// Returns the subvolume of an inode, if it was written to before.
    pub(crate) fn cached_subvolume(&self, id: FileId) -> Option<Arc<WritableSubvolume>> {
        self.subvolumes().get(&id.subvolume).map(Arc::clone)
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
}

impl WritableSubvolume {
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

impl Filesystem {
    /// Discards everything that is not committed yet: when the last handle is dropped, nothing more
    /// is written. If there is no committer ([`MountOptions::commit_seconds`] is 0), that is
    /// everything since the last [`Filesystem::sync`].
    ///
    /// [`MountOptions::commit_seconds`]: crate::MountOptions::commit_seconds
    pub fn abandon(&self) {
        if let Some(write_state) = &self.shared.write_state {
            write_state.is_abandoned.store(true, Ordering::Release);
        }
    }

    /// Returns whether the volume is open for writing and has not become read-only.
    pub fn is_writable(&self) -> bool {
        self.shared.write_state.is_some() && self.write_error().is_none()
    }

    /// Returns why the volume has become read-only, if it has: a commit failed, or a change stopped
    /// half-way. Reads continue.
    pub fn write_error(&self) -> Option<Error> {
        self.forest().write_error().map(Error::Tree)
    }

    /// As [`FilesystemExt::fail_after_panic`](crate::server::FilesystemExt::fail_after_panic).
    pub(crate) fn fail_after_panic(&self) {
        self.shared.fail_after_panic();
    }

    pub(crate) fn write_state(&self) -> Result<&Arc<WriteState>> {
        self.shared.write_state.as_ref().ok_or(Error::ReadOnly { what: "the filesystem" })
    }

    /// Begins an operation that writes: checks that the filesystem is writable, and brings its
    /// dirty memory below the limits. The caller has nothing locked.
    pub(crate) fn begin(&self) -> Result<&Arc<WriteState>> {
        let write_state = self.may_begin()?;
        self.throttle(write_state)?;
        Ok(write_state)
    }

    /// As [`Self::begin`], whatever the dirty memory.
    pub(crate) fn may_begin(&self) -> Result<&Arc<WriteState>> {
        let write_state = self.write_state()?;
        if let Some(error) = self.write_error() {
            return Err(error);
        }
        if write_state.is_abandoned() {
            return Err(Error::ReadOnly { what: "an abandoned filesystem" });
        }
        Ok(write_state)
    }

    /// Returns the entry of an inode that is to be changed.
    pub(crate) fn entry_of(&self, write_state: &WriteState, id: FileId) -> Result<Arc<InodeEntry>> {
        if id.is_placeholder() {
            return Err(Error::NotPermitted { what: NOT_HERE });
        }
        let entry = write_state.table.entry(id);
        self.attributes(&entry)?;
        Ok(entry)
    }

    /// Returns the attributes of an inode, which may be newer than its tree.
    pub(crate) fn attributes(&self, entry: &InodeEntry) -> Result<Inode> {
        entry.inode(|| self.read_inode(entry.id))
    }

    /// Returns the subvolume of an inode that is to be changed. The caller has no inode locked,
    /// except in a subvolume that was written to before.
    pub(crate) fn writable_subvolume(
        &self,
        write_state: &WriteState,
        id: FileId,
    ) -> Result<Arc<WritableSubvolume>> {
        if let Some(dir) = id.placeholder_dir() {
            self.writable_subvolume(write_state, dir)?;
            return Err(Error::NotPermitted { what: NOT_HERE });
        }
        if let Some(found) = write_state.subvolumes().get(&id.subvolume) {
            return Ok(Arc::clone(found));
        }
        let _alone = write_state.opening.lock();
        if let Some(found) = write_state.subvolumes().get(&id.subvolume) {
            return Ok(Arc::clone(found));
        }
        let tree = self.tree_of(id)?;
        let tree_id = TreeId(id.subvolume);
        let root = self.forest().root_item(tree_id)?.ok_or(Error::Stale { id })?.1;
        if root.flags().contains(RootFlags::READ_ONLY) {
            return Err(Error::ReadOnly { what: "the subvolume" });
        }
        let next_ino = Mutex::new(names::next_ino(&tree)?);
        let subvolume = Arc::new(WritableSubvolume { id: tree_id, tree, next_ino });
        // An orphan that is open by its id is deleted with its last pin.
        if let Some(left) = self.delete_orphans(write_state, &subvolume) {
            write_state.left_orphans().push(left);
        }
        write_state.subvolumes().insert(id.subvolume, Arc::clone(&subvolume));
        Ok(subvolume)
    }
}
