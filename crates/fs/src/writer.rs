//! What a filesystem has besides where it is open for writing.
//!
//! Locks, each before the ones below it:
//!
//! ```text
//! renames          directories move one at a time
//! inode locks      ascending by id
//! a transaction    joined; no inode lock is waited for, no data read or written
//! trees            one edit at a time
//! facts, dirty     short, with nothing below them
//! ```

use crate::committer::Signal;
use crate::dirty_inodes::DirtyInodes;
use crate::held::LeftOrphans;
use crate::idle::IdleFiles;
use crate::inode_table::{InodeEntry, InodeTable};
use crate::{Clock, Error, FileId, Filesystem, Result};
use butternut_format::inode::Inode;
use butternut_format::root::RootFlags;
use butternut_format::units::{Ino, TreeId};
use butternut_names as names;
use butternut_tree::Tree;
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Why nothing is changed in a placeholder.
const NOT_HERE: &str = "a subvolume that is not here";

#[derive(Debug)]
pub(crate) struct Writer {
    pub(crate) table: InodeTable,
    pub(crate) idle: IdleFiles,
    pub(crate) signal: Arc<Signal>,
    pub(crate) clock: Clock,
    /// A thread commits now and then. Without one, only who asks for it, and who changes more than
    /// memory is to hold.
    pub(crate) has_committer: bool,
    is_abandoned: AtomicBool,
    subvolumes: Mutex<HashMap<u64, Arc<WritableSubvolume>>>,
    /// Inodes with data or times that no tree has yet.
    dirty: DirtyInodes,
    renames: Mutex<()>,
    /// Held while a subvolume is looked at for the first time.
    opening: Mutex<()>,
    /// Not reported yet: at most one for each subvolume.
    left_orphans: Mutex<Vec<LeftOrphans>>,
}

/// A subvolume that something was written to, or is about to be.
#[derive(Debug)]
pub(crate) struct WritableSubvolume {
    pub(crate) id: TreeId,
    pub(crate) tree: Tree,
    next_ino: Mutex<Ino>,
}

impl Writer {
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

    /// After a panic: what is in the list is whole, and is only reported.
    pub(crate) fn left_orphans(&self) -> MutexGuard<'_, Vec<LeftOrphans>> {
        self.left_orphans.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn is_abandoned(&self) -> bool {
        self.is_abandoned.load(Ordering::Acquire)
    }

    pub(crate) fn lock_renames(&self) -> MutexGuard<'_, ()> {
        self.renames.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn subvolumes(&self) -> MutexGuard<'_, HashMap<u64, Arc<WritableSubvolume>>> {
        self.subvolumes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The subvolume of an inode, if something was written to it before.
    pub(crate) fn known_subvolume(&self, id: FileId) -> Option<Arc<WritableSubvolume>> {
        self.subvolumes().get(&id.subvolume).map(Arc::clone)
    }

    /// The inode has something that no tree has yet. The caller has its body.
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

    /// All is in the trees. The caller has the inode's body alone.
    pub(crate) fn mark_clean(&self, entry: &InodeEntry) {
        self.dirty.remove(entry);
    }

    /// Dirty inodes from one id on, in order.
    pub(crate) fn dirty_from(&self, from: FileId, limit: usize) -> Vec<Arc<InodeEntry>> {
        self.dirty.range_from(from, limit)
    }
}

impl WritableSubvolume {
    /// A number for a new inode. Numbers are not given twice, used or not.
    pub(crate) fn take_ino(&self) -> Result<Ino> {
        let mut next = self.next_ino.lock().unwrap_or_else(PoisonError::into_inner);
        let taken = *next;
        if taken.0 >= names::INO_LAST {
            let (tree, what) = (self.id, "inode numbers");
            return Err(names::NamesError::NumbersUsedUp { tree, what }.into());
        }
        *next = Ino(taken.0 + 1);
        Ok(taken)
    }
}

impl Filesystem {
    /// Leaves everything undone that is not committed yet: when the last handle goes, nothing is
    /// written any more. Where nobody commits unasked ([`MountOptions::commit_seconds`] is 0), that
    /// is everything since the last [`Filesystem::sync`].
    ///
    /// [`MountOptions::commit_seconds`]: crate::MountOptions::commit_seconds
    pub fn abandon(&self) {
        if let Some(writer) = &self.shared.writer {
            writer.is_abandoned.store(true, Ordering::Release);
        }
    }

    /// Whether the volume is open for writing, and nothing has gone wrong with that.
    pub fn is_writable(&self) -> bool {
        self.shared.writer.is_some() && self.write_error().is_none()
    }

    /// Why nothing is written any more, if that is so: a commit failed, or a change stopped
    /// half-way. Reads go on.
    pub fn write_error(&self) -> Option<Error> {
        self.forest().write_error().map(Error::Tree)
    }

    /// Ends all writing: a thread panicked in a call, which may have left half a change. Reads go
    /// on; [`Filesystem::write_error`] tells the cause. For callers that catch panics; what a call
    /// leaves locked, or in a transaction, ends writing on its own.
    pub fn fail_after_panic(&self) {
        self.shared.fail_after_panic();
    }

    pub(crate) fn writer(&self) -> Result<&Arc<Writer>> {
        self.shared.writer.as_ref().ok_or(Error::ReadOnly { what: "the filesystem" })
    }

    /// The beginning of every operation that writes: may it, and is there room for its changes?
    /// The caller has nothing locked.
    pub(crate) fn begin(&self) -> Result<&Arc<Writer>> {
        let writer = self.may_begin()?;
        self.throttle(writer)?;
        Ok(writer)
    }

    /// The same, whatever room there is.
    pub(crate) fn may_begin(&self) -> Result<&Arc<Writer>> {
        let writer = self.writer()?;
        if let Some(error) = self.write_error() {
            return Err(error);
        }
        if writer.is_abandoned() {
            return Err(Error::ReadOnly { what: "what was abandoned" });
        }
        Ok(writer)
    }

    /// The entry of an inode that is to be changed.
    pub(crate) fn entry_of(&self, writer: &Writer, id: FileId) -> Result<Arc<InodeEntry>> {
        if id.is_placeholder() {
            return Err(Error::NotPermitted { what: NOT_HERE });
        }
        let entry = writer.table.entry(id);
        self.facts(&entry)?;
        Ok(entry)
    }

    /// What an inode is, be it that its tree does not have it so yet.
    pub(crate) fn facts(&self, entry: &InodeEntry) -> Result<Inode> {
        entry.inode(|| self.read_inode(entry.id))
    }

    /// The subvolume of an inode that is to be changed. The caller has no inode locked, unless it
    /// is one of a subvolume that was changed before.
    pub(crate) fn writable_subvolume(
        &self,
        writer: &Writer,
        id: FileId,
    ) -> Result<Arc<WritableSubvolume>> {
        if let Some(dir) = id.placeholder_dir() {
            self.writable_subvolume(writer, dir)?;
            return Err(Error::NotPermitted { what: NOT_HERE });
        }
        if let Some(found) = writer.subvolumes().get(&id.subvolume) {
            return Ok(Arc::clone(found));
        }
        let _alone = writer.opening.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(found) = writer.subvolumes().get(&id.subvolume) {
            return Ok(Arc::clone(found));
        }
        let tree = self.tree_of(id)?;
        let tree_id = TreeId(id.subvolume);
        let root = self.forest().root_item(tree_id)?.ok_or(Error::Stale { id })?.1;
        if root.flags().contains(RootFlags::READ_ONLY) {
            return Err(Error::ReadOnly { what: "the subvolume" });
        }
        let next_ino = Mutex::new(names::next_ino(&tree)?);
        let made = Arc::new(WritableSubvolume { id: tree_id, tree, next_ino });
        // An orphan with an open handle, opened by its id, is left to the last handle.
        if let Some(left) = self.delete_orphans(writer, &made) {
            writer.left_orphans().push(left);
        }
        writer.subvolumes().insert(id.subvolume, Arc::clone(&made));
        Ok(made)
    }
}
