//! The last stage of a replay: the link counts of the inodes whose names changed.

use super::Replay;
use crate::Result;
use crate::inode::id::ROOT_DIRECTORY;
use butternut_format::key::{ItemType, Key};
use butternut_format::refused::Refused;
use butternut_format::units::{Ino, length};
use butternut_names as names;

impl Replay<'_> {
    /// Counts the names of all touched inodes. An inode without a name becomes an orphan, and a
    /// directory without one loses its entries, which touches more inodes.
    pub(super) fn links(&mut self) -> Result<()> {
        while let Some(ino) = self.touched.pop_first() {
            let Some(inode) = self.inode(ino)? else { continue };
            // The root of a subvolume has a reference to itself.
            let count = length(self.names_in(&self.tree, ino)?.len());
            let is_directory = Self::is_directory(inode.kind);
            if count == 0 && ino == ROOT_DIRECTORY {
                let key = Key::new(ino, ItemType::INODE_ITEM, 0);
                return Err(self.corrupt(key, Refused::new("names", 0, "1 of a root directory")));
            }
            if count == 0 && is_directory {
                self.remove_all_names(ino)?;
            }
            let nlink = if is_directory { count.min(1) } else { count };
            let nlink = u32::try_from(nlink).unwrap_or(u32::MAX);
            self.update_inode(ino, |inode| inode.nlink = nlink)?;
            if count == 0 {
                names::add_orphan(&self.edit, Ino(ino))?;
            }
        }
        Ok(())
    }
}
