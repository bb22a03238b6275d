//! The beginning of an operation that writes: whether the filesystem takes it, and the inodes and
//! the subvolume that it changes.

use crate::inode::table::InodeEntry;
use crate::write_state::{WritableSubvolume, WriteState};
use crate::{Error, FileId, Filesystem, Result};
use butternut_format::inode::Inode;
use butternut_format::root::RootFlags;
use butternut_format::units::TreeId;
use butternut_sys::lock::RwLockReadGuard;
use butternut_sys::wait::Wait;
use std::ops::Deref;
use std::sync::Arc;

/// Why a placeholder cannot be changed.
const NOT_HERE: &str = "a subvolume that is not here";

/// An operation that writes, until this is dropped (`subvolume::barrier`).
#[derive(Debug)]
pub(crate) struct Writing<'a> {
    write_state: &'a Arc<WriteState>,
    _no_snapshot: RwLockReadGuard<'a, ()>,
}

impl<'a> Writing<'a> {
    /// Begins an operation. Waits for a snapshot that is being made, unless `wait` forbids it.
    pub(crate) fn begin(write_state: &'a Arc<WriteState>, wait: Wait) -> Option<Self> {
        let no_snapshot = write_state.snapshots.share(wait)?;
        Some(Self { write_state, _no_snapshot: no_snapshot })
    }
}

impl Deref for Writing<'_> {
    type Target = Arc<WriteState>;

    fn deref(&self) -> &Self::Target {
        self.write_state
    }
}

impl Filesystem {
    /// Begins an operation that writes, whatever the dirty memory: checks that the filesystem is
    /// writable.
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

    /// Begins a sync of a file: checks that its changes may still be written.
    pub(crate) fn may_sync(&self) -> Result<&Arc<WriteState>> {
        let write_state = self.write_state()?;
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
        self.attributes_as(entry, Wait::Block)
    }

    /// As [`Self::attributes`]; whether it may read them from the tree, or wait for another thread
    /// that does, is the caller's choice.
    pub(crate) fn attributes_as(&self, entry: &InodeEntry, wait: Wait) -> Result<Inode> {
        match wait {
            Wait::Block => entry.inode(|| self.read_inode(entry.id)),
            Wait::NoWait => entry.try_cached().ok_or(Error::WouldBlock),
        }
    }

    /// Returns the subvolume of an inode that is to be changed. The caller has no inode locked,
    /// except in a subvolume that was written to before.
    pub(crate) fn writable_subvolume(
        &self,
        write_state: &WriteState,
        id: FileId,
    ) -> Result<Arc<WritableSubvolume>> {
        self.writable_subvolume_as(write_state, id, Wait::Block)
    }

    /// Opens the subvolume of a directory for writing, for a caller that will change the directory
    /// while it excludes operations that write. So the orphans of the subvolume, which may be
    /// large, are deleted before all writes have to wait.
    pub(crate) fn open_before_exclusion(
        &self,
        write_state: &Arc<WriteState>,
        dir: FileId,
    ) -> Result<()> {
        let writing = Writing::begin(write_state, Wait::Block).ok_or(Error::WouldBlock)?;
        self.writable_subvolume(&writing, dir)?;
        drop(writing);
        Ok(())
    }

    /// As [`Self::writable_subvolume`]; whether it may read the trees is the caller's choice.
    pub(crate) fn writable_subvolume_as(
        &self,
        write_state: &WriteState,
        id: FileId,
        wait: Wait,
    ) -> Result<Arc<WritableSubvolume>> {
        if let Some(dir) = id.placeholder_dir() {
            self.writable_subvolume_as(write_state, dir, wait)?;
            return Err(Error::NotPermitted { what: NOT_HERE });
        }
        if wait == Wait::NoWait {
            return write_state.cached_subvolume(id).ok_or(Error::WouldBlock);
        }
        write_state.subvolume(id, || {
            let tree = self.tree_of(id)?;
            let tree_id = TreeId(id.subvolume);
            let root = self.forest().root_item(tree_id)?.ok_or(Error::Stale { id })?.1;
            if root.flags().contains(RootFlags::READ_ONLY) {
                return Err(Error::ReadOnly { what: "the subvolume" });
            }
            let subvolume = WritableSubvolume::new(tree_id, tree)?;
            // An orphan that is open by its id is deleted with its last pin.
            let left = self.delete_orphans_at_open(write_state, &subvolume);
            Ok((subvolume, left))
        })
    }
}
