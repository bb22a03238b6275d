//! Links: gives an inode another name, or an inode without a name its first.

use crate::inode::new_inode::next_index;
use crate::inode::table::{InodeEntry, LockedInodes};
use crate::names::create::check_name;
use crate::stats::latency::Operation;
use crate::write_state::{WritableSubvolume, WriteState};
use crate::{Error, FileId, FileKind, Filesystem, Result};
use butternut_file::verity_keys;
use butternut_format::inode::InodeFlags;
use butternut_format::units::Ino;
use butternut_names::{self as names, Found, LINKS_MAX, NamesError, NewName, Target};
use butternut_tree::Need;

/// Items that a link may change: two of the entry, the reference, both inodes, an orphan's.
const ITEMS_OF_LINK: u32 = 6;

impl Filesystem {
    /// Adds a name to an inode. An inode that never had a name ([`Filesystem::open_unnamed`]) gets
    /// its first.
    ///
    /// # Errors
    /// [`Error::Exists`]; [`Error::NotPermitted`] for a directory and for an inode that is
    /// immutable or append-only; [`Error::CrossesSubvolumes`]; [`Error::Names`] with `EMLINK` for
    /// more than 65,535 names; [`Error::NotFound`] for an inode that has lost all its names.
    pub fn link(&self, id: FileId, dir: FileId, name: &[u8]) -> Result<()> {
        let _timed = self.timed(Operation::Link);
        self.with_quota_room(dir.subvolume, || self.link_once(id, dir, name))
    }

    fn link_once(&self, id: FileId, dir: FileId, name: &[u8]) -> Result<()> {
        let writing = self.begin()?;
        let write_state = &*writing;
        check_name(name)?;
        let subvolume = self.writable_subvolume(write_state, dir)?;
        let (parent, target) = (self.entry_of(write_state, dir)?, self.entry_of(write_state, id)?);
        if id.subvolume != dir.subvolume {
            return Err(Error::CrossesSubvolumes);
        }
        self.link_entry(write_state, &subvolume, &parent, name, &target)
    }

    fn link_entry(
        &self,
        write_state: &WriteState,
        subvolume: &WritableSubvolume,
        parent: &InodeEntry,
        name: &[u8],
        target: &InodeEntry,
    ) -> Result<()> {
        let mut locked = LockedInodes::lock(&[parent, target]);
        let at = Ino(parent.id.ino);
        if names::lookup(&subvolume.tree, at, name)?.is_some() {
            return Err(Error::Exists);
        }
        let mut dir = self.directory_to_change(parent)?;
        let mut inode = self.attributes(target)?;
        let is_fixed = |flag| inode.flags.contains(flag);
        if inode.kind == FileKind::Directory
            || is_fixed(InodeFlags::IMMUTABLE)
            || is_fixed(InodeFlags::APPEND)
        {
            return Err(Error::NotPermitted { what: "such an inode cannot be linked" });
        }
        let was_unnamed = inode.nlink == 0;
        if was_unnamed && !locked.of(target).is_linkable {
            return Err(Error::NotFound);
        }
        if inode.nlink >= LINKS_MAX {
            return Err(NamesError::TooManyLinks.into());
        }
        // The orphan item also guards what a call has built for fs-verity, until the file is
        // sealed.
        let is_guard = was_unnamed
            && !is_fixed(InodeFlags::VERITY)
            && !verity_keys(&subvolume.tree, Ino(target.id.ino), 1)?.is_empty();
        let index = next_index(subvolume, parent, locked.of(parent))?;
        self.change(write_state, subvolume, Need::items(ITEMS_OF_LINK), |change| {
            let ino = Ino(target.id.ino);
            let found = Found { target: Target::Inode(ino), kind: inode.kind };
            let generation = change.moment.generation;
            let new = NewName { dir: at, name, index, found, generation };
            change.step(names::link(&change.edit, &new))?;
            change.step(names::link_added(&mut inode, change.moment))?;
            if was_unnamed && !is_guard {
                change.step(names::remove_orphan(&change.edit, ino))?;
            }
            change.put(ino, &inode)?;
            names::entry_added(&mut dir, name, change.moment);
            change.put(at, &dir)
        })?;
        locked.of(parent).next_index = index.checked_add(1);
        locked.of(target).is_linkable = false;
        parent.set(dir);
        target.set(inode);
        Ok(())
    }
}
