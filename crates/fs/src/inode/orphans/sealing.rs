//! Removes the items of fs-verity: of files that are deleted, and of calls that did not complete.
//!
//! The items of a file may be many, so they are removed in steps ([`ITEMS_PER_STEP`]), as its data
//! is. A file that is sealed keeps its items as long as it exists.

use super::Owner;
use crate::inode::table::InodeEntry;
use crate::write_state::{WritableSubvolume, WriteState};
use crate::{Filesystem, Result};
use butternut_file::verity_keys;
use butternut_format::inode::{Inode, InodeFlags};
use butternut_format::units::Ino;
use butternut_names::{self as names, NamesError};
use butternut_tree::Need;

/// Items that one transaction removes.
const ITEMS_PER_STEP: u32 = 64;
/// Items of the step that ends a rollback: the orphan item.
const ITEMS_OF_END: u32 = 2;

impl Filesystem {
    /// Removes some items of fs-verity of an inode that has an orphan item, unless it is sealed and
    /// has a name. Returns whether there may be more. The caller holds the inode lock.
    pub(super) fn drop_verity_items(
        &self,
        write_state: &WriteState,
        subvolume: &WritableSubvolume,
        ino: Ino,
        inode: Option<&Inode>,
    ) -> Result<bool> {
        let is_kept = |inode: &Inode| inode.nlink > 0 && inode.flags.contains(InodeFlags::VERITY);
        if inode.is_none_or(is_kept) {
            return Ok(false);
        }
        self.remove_verity_items(write_state, subvolume, ino)
    }

    /// Removes some items of fs-verity of a file. Returns whether there were any.
    fn remove_verity_items(
        &self,
        write_state: &WriteState,
        subvolume: &WritableSubvolume,
        ino: Ino,
    ) -> Result<bool> {
        let count = usize::try_from(ITEMS_PER_STEP).unwrap_or(1);
        let keys = verity_keys(&subvolume.tree, ino, count)?;
        if keys.is_empty() {
            return Ok(false);
        }
        self.change(write_state, subvolume, Need::items(ITEMS_PER_STEP).deleting(), |change| {
            keys.iter().try_for_each(|key| {
                let removed = change.edit.remove(key).map_err(NamesError::from);
                change.step(removed).map(drop)
            })
        })?;
        Ok(true)
    }

    /// Removes what a call that enables fs-verity has made of a file that is still pinned, and the
    /// orphan item that guards it.
    pub(crate) fn roll_back_seal(&self, entry: &InodeEntry) -> Result<()> {
        let write_state = self.write_state()?;
        let ino = Ino(entry.id.ino);
        loop {
            let goes_on = self.in_owner(write_state, Owner::Shared(entry.id), |subvolume| {
                let _state = entry.lock_without_drain();
                if self.remove_verity_items(write_state, subvolume, ino)? {
                    return Ok(true);
                }
                let inode = names::inode(&subvolume.tree, ino)?;
                if inode.is_some_and(|inode| inode.nlink > 0) {
                    let need = Need::items(ITEMS_OF_END).deleting();
                    self.change(write_state, subvolume, need, |change| {
                        change.step(names::remove_orphan(&change.edit, ino)).map(drop)
                    })?;
                }
                Ok(false)
            })?;
            if !goes_on {
                return Ok(());
            }
        }
    }
}
