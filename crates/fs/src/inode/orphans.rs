//! The deletion of orphans: of inodes without a name when their last pin is dropped, and of those
//! that the last use of the volume left.
//!
//! The laws are those of `inode/pin.rs`, and one more: an orphan is deleted in a read-only
//! subvolume too, as in the kernel. No name leads to it, so nothing that the subvolume shows
//! changes. The deletion holds `merges` shared, so meanwhile the subvolume is not deleted and does
//! not become read-only or writable.

use crate::inode::id::ROOT_DIRECTORY;
use crate::inode::table::{InodeEntry, InodeState};
use crate::write_state::{LeftOrphans, WritableSubvolume, WriteState};
use crate::{Error, FileId, FileKind, Filesystem, Result};
use butternut_file::FileState;
use butternut_format::inode::Inode;
use butternut_format::key::{ItemType, Key};
use butternut_format::units::{Ino, TreeId};
use butternut_names::{self as names, ReadItems};
use butternut_tree::Need;
use std::sync::Arc;

/// Items that deleting an inode without data may change, for a usual number of extended attributes.
/// With more, blocks are freed rather than added.
const ITEMS_OF_DELETION: u32 = 8;

/// Orphan items that one search returns.
const ORPHANS_PER_BATCH: usize = 256;

impl Filesystem {
    /// Deletes an orphan, unless it is pinned.
    pub(crate) fn evict_orphan(&self, entry: &Arc<InodeEntry>) -> Result<()> {
        let write_state = self.write_state()?;
        // Its subvolume is not deleted meanwhile.
        let _merges = write_state.merges.read();
        // Before the inode lock: if nothing has been written to the subvolume yet, this deletes its
        // orphans and locks each of them.
        let subvolume = self.subvolume_of_orphan(write_state, entry.id)?;
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

    /// Deletes the orphans of a new read-only snapshot: those that its source had.
    pub(crate) fn delete_orphans_of_snapshot(&self, write_state: &WriteState, id: u64) {
        let merges = write_state.merges.read();
        // If its tree cannot be read or it is deleted already, the orphans are left.
        let Ok(subvolume) = self.subvolume_of_orphan(write_state, FileId::root_of(id)) else {
            return;
        };
        if let Some(left) = self.delete_orphans(write_state, &subvolume) {
            write_state.left_orphans().push(left);
        }
        drop(merges);
    }

    /// Returns the subvolume of an orphan that is to be deleted, which may be read-only. The caller
    /// holds `merges` shared.
    fn subvolume_of_orphan(
        &self,
        write_state: &WriteState,
        id: FileId,
    ) -> Result<Arc<WritableSubvolume>> {
        match self.writable_subvolume(write_state, id) {
            Err(Error::ReadOnly { .. }) => write_state.closed_subvolume(id, || {
                WritableSubvolume::new(TreeId(id.subvolume), self.tree_of(id)?)
            }),
            found => found,
        }
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
        let deleted = inode.filter(|inode| inode.nlink == 0);
        if let Some(inode) = &deleted {
            require_deletable(subvolume, ino, inode)?;
            entry.set(*inode);
            self.drop_data(subvolume, &entry, inode, &mut state)?;
        }
        self.change(write_state, subvolume, Need::items(ITEMS_OF_DELETION).deleting(), |change| {
            if let Some(inode) = &deleted {
                change.delete_inode(ino, inode.kind)?;
            }
            change.step(names::remove_orphan(&change.edit, ino)).map(drop)
        })?;
        if deleted.is_some() {
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

/// Refuses a directory whose deletion would leave entry items without an inode. That includes
/// entries that only their hash finds, which only a damaged or crafted volume has.
pub(crate) fn require_no_entries(subvolume: &WritableSubvolume, dir: Ino) -> Result<()> {
    let first = subvolume.tree.first_from(&Key::new(dir.0, ItemType::DIR_ITEM, 0));
    match first.map_err(names::NamesError::from)? {
        Some((key, _)) if key.objectid == dir.0 => Err(Error::NotEmpty),
        _ => Ok(()),
    }
}
