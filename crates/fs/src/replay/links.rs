//! The last stage of a replay: the link counts of the inodes whose names changed.

use super::Replay;
use crate::Result;
use crate::inode::id::ROOT_DIRECTORY;
use butternut_format::key::{ItemType, Key};
use butternut_format::refused::Refused;
use butternut_format::units::{Ino, length};
use butternut_names as names;
use std::collections::BTreeSet;

impl Replay<'_> {
    /// Counts the names of all touched inodes. An inode without a name becomes an orphan, and a
    /// directory without one loses its entries, which touches more inodes.
    ///
    /// Many such directories may have a name of the same inode. Its names are counted after all of
    /// them have lost theirs.
    pub(super) fn links(&mut self) -> Result<()> {
        let mut changed = BTreeSet::new();
        while let Some(ino) = self.touched.pop_first() {
            changed.insert(ino);
            let is_directory = self.inode(ino)?.is_some_and(|it| Self::is_directory(it.kind));
            if is_directory && names::first_link(&self.tree, Ino(ino))?.is_none() {
                self.remove_all_names(ino)?;
            }
        }
        changed.into_iter().try_for_each(|ino| self.count_names(ino))
    }

    fn count_names(&self, ino: u64) -> Result<()> {
        let Some(inode) = self.inode(ino)? else { return Ok(()) };
        // The root of a subvolume has a reference to itself.
        let count = length(self.names_in(&self.tree, ino)?.len());
        if count == 0 && ino == ROOT_DIRECTORY {
            let key = Key::new(ino, ItemType::INODE_ITEM, 0);
            return Err(self.corrupt(key, Refused::new("names", 0, "1 of a root directory")));
        }
        let nlink = if Self::is_directory(inode.kind) { count.min(1) } else { count };
        let nlink = u32::try_from(nlink).unwrap_or(u32::MAX);
        self.update_inode(ino, |inode| inode.nlink = nlink)?;
        if count == 0 {
            names::add_orphan(&self.edit, Ino(ino))?;
        }
        Ok(())
    }
}
