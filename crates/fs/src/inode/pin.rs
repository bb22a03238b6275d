//! [`Pin`]: keeps an inode in use after its last name is removed. The last pin of an inode without
//! a name deletes it.
//!
//! Laws:
//!
//! 1. An inode without a name that is pinned, or whose deletion may take more than one transaction,
//!    has an orphan item. If it is not deleted before the volume is closed, the next open for
//!    writing deletes it.
//! 2. The last pin of an inode without a name takes the inode lock and deletes the inode. So no pin
//!    is dropped by a thread that holds a lock which another thread may wait for under an inode
//!    lock, nor by one that completes requests in flight for an inode that it has locked
//!    ([`NoUnpin`]).
//! 3. Deleting an inode takes several transactions, each of which leaves the volume consistent: the
//!    data first; the inode and its orphan item together last. Inodes that are not orphans are
//!    deleted with their last name (`names/unlink.rs`).

use crate::inode::id::ROOT_DIRECTORY;
use crate::inode::no_unpin::NoUnpin;
use crate::inode::table::{InodeEntry, InodeState};
use crate::names::unlink::require_no_entries;
use crate::write_state::{LeftOrphans, WritableSubvolume, WriteState};
use crate::{Error, FileId, FileKind, Filesystem, Result};
use butternut_file::FileState;
use butternut_format::inode::Inode;
use butternut_format::units::Ino;
use butternut_names as names;
use butternut_tree::Need;
use std::fmt;
use std::sync::Arc;

/// Items that deleting an inode without data may change, for a usual number of extended attributes.
/// With more, blocks are freed rather than added.
const ITEMS_OF_DELETION: u32 = 8;

/// Orphan items that one search returns.
const ORPHANS_PER_BATCH: usize = 256;

/// Keeps an inode in use: while a pin exists, the inode is not deleted, also without a name.
pub struct Pin {
    filesystem: Filesystem,
    entry: Arc<InodeEntry>,
}

impl fmt::Debug for Pin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pin").field("id", &self.entry.id).finish_non_exhaustive()
    }
}

impl Pin {
    pub(crate) fn entry(&self) -> &Arc<InodeEntry> {
        &self.entry
    }

    pub(crate) fn filesystem(&self) -> &Filesystem {
        &self.filesystem
    }

    /// Returns the id of the inode.
    pub fn id(&self) -> FileId {
        self.entry.id
    }
}

impl Drop for Pin {
    fn drop(&mut self) {
        NoUnpin::assert_unpin_allowed();
        if !self.entry.unpin() {
            return;
        }
        if self.entry.cached().is_some_and(|inode| inode.nlink == 0) {
            // If deleting fails, the next open for writing finds the orphan item (law 1).
            drop(self.filesystem.evict_orphan(&self.entry));
        } else if let Ok(write_state) = self.filesystem.write_state() {
            write_state.idle.add(&self.entry);
        }
    }
}

impl Filesystem {
    /// As [`FilesystemExt::pin`](crate::server::FilesystemExt::pin).
    pub(crate) fn pin(&self, id: FileId) -> Result<Option<Pin>> {
        let Some(write_state) = &self.shared.write_state else { return Ok(None) };
        if id.is_placeholder() {
            return Ok(None);
        }
        let entry = write_state.table.entry(id);
        let state = entry.lock_shared();
        self.attributes(&entry)?;
        entry.pin();
        drop(state);
        Ok(Some(self.new_pin(entry)))
    }

    /// Wraps a pin that the entry has counted already.
    pub(crate) fn new_pin(&self, entry: Arc<InodeEntry>) -> Pin {
        Pin { filesystem: self.clone(), entry }
    }

    /// Deletes an orphan, unless it is pinned.
    pub(crate) fn evict_orphan(&self, entry: &Arc<InodeEntry>) -> Result<()> {
        let write_state = self.write_state()?;
        // Before the inode lock: if nothing has been written to the subvolume yet, this deletes its
        // orphans and locks each of them.
        let subvolume = self.writable_subvolume(write_state, entry.id)?;
        let mut state = entry.lock();
        let Some(inode) = entry.cached().filter(|inode| inode.nlink == 0) else { return Ok(()) };
        if entry.is_pinned() {
            return Ok(());
        }
        require_deletable(&subvolume, Ino(entry.id.ino), &inode)?;
        self.drop_data(&subvolume, entry, &inode, &mut state)?;
        self.change(
            write_state,
            &subvolume,
            Need::items(ITEMS_OF_DELETION).deleting(),
            |change| {
                let ino = Ino(entry.id.ino);
                change.delete_inode(ino, inode.kind)?;
                change.step(names::remove_orphan(&change.edit, ino)).map(drop)
            },
        )?;
        write_state.forget(entry, &mut state);
        Ok(())
    }

    /// Frees the space of a file's data.
    fn drop_data(
        &self,
        subvolume: &WritableSubvolume,
        entry: &InodeEntry,
        inode: &Inode,
        state: &mut InodeState,
    ) -> Result<()> {
        if inode.kind != FileKind::File {
            return Ok(());
        }
        if state.file.is_none() && inode.size == 0 && inode.bytes_used == 0 {
            return Ok(());
        }
        let mut file = state.file.take().unwrap_or_else(|| {
            let ino = Ino(entry.id.ino);
            Box::new(FileState::new(&self.shared.source, &subvolume.tree, ino, inode))
        });
        file.discard();
        if file.size() > 0 || file.bytes_used() > 0 {
            file.truncate(0, &mut |_| {})?;
        }
        Ok(())
    }

    /// Deletes the orphans that the last use of the volume left. Nothing has been written to the
    /// subvolume yet. Skips an inode that cannot be deleted, which is left for the next open;
    /// returns what was left.
    pub(crate) fn delete_orphans(
        &self,
        write_state: &WriteState,
        subvolume: &WritableSubvolume,
    ) -> Option<LeftOrphans> {
        let mut left: Option<LeftOrphans> = None;
        let mut from = Some(Ino(0));
        while let Some(start) = from.take() {
            let found = match names::orphans(&subvolume.tree, start, ORPHANS_PER_BATCH) {
                Ok(found) => found,
                Err(error) => {
                    LeftOrphans::add(&mut left, subvolume.id, None, error.into());
                    break;
                }
            };
            for ino in &found {
                let Err(error) = self.delete_orphan(write_state, subvolume, *ino) else { continue };
                LeftOrphans::add(&mut left, subvolume.id, Some(*ino), error);
                if self.forest().write_error().is_some() {
                    return left;
                }
            }
            from = found.last().and_then(|last| last.0.checked_add(1)).map(Ino);
        }
        left
    }

    fn delete_orphan(
        &self,
        write_state: &WriteState,
        subvolume: &WritableSubvolume,
        ino: Ino,
    ) -> Result<()> {
        // An orphan can be open by its id: then its last pin deletes it.
        let entry = write_state.table.entry(FileId::new(subvolume.id.0, ino.0));
        let mut state = entry.lock();
        if entry.is_pinned() {
            return Ok(());
        }
        let inode = names::inode(&subvolume.tree, ino)?;
        let gone = inode.filter(|inode| inode.nlink == 0);
        if let Some(inode) = &gone {
            require_deletable(subvolume, ino, inode)?;
            entry.set(*inode);
            self.drop_data(subvolume, &entry, inode, &mut state)?;
        }
        self.change(write_state, subvolume, Need::items(ITEMS_OF_DELETION).deleting(), |change| {
            if let Some(inode) = &gone {
                change.delete_inode(ino, inode.kind)?;
            }
            change.step(names::remove_orphan(&change.edit, ino)).map(drop)
        })?;
        if gone.is_some() {
            write_state.forget(&entry, &mut state);
        }
        Ok(())
    }
}

/// Refuses the root of a subvolume, and a directory that has entries but no name.
fn require_deletable(subvolume: &WritableSubvolume, ino: Ino, inode: &Inode) -> Result<()> {
    if inode.kind != FileKind::Directory {
        return Ok(());
    }
    if ino.0 == ROOT_DIRECTORY {
        return Err(Error::Busy);
    }
    require_no_entries(subvolume, ino)
}
