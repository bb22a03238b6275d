//! Giving an inode another name, or one without a name its first.

use crate::create::check_name;
use crate::inode_table::{Bodies, InodeEntry};
use crate::latency::Operation;
use crate::new_inode::next_index;
use crate::writer::{WritableSubvolume, Writer};
use crate::{Error, FileId, FileKind, Filesystem, Result};
use butternut_format::inode::InodeFlags;
use butternut_format::units::Ino;
use butternut_names::{self as names, Found, LINKS_MAX, NamesError, NewName, Target};
use butternut_tree::Need;

/// Items that a link may change: two of the entry, the reference, both inodes, an orphan's.
const ITEMS_OF_LINK: u32 = 6;

impl Filesystem {
    /// Gives an inode one more name.
    ///
    /// # Errors
    /// [`Error::Exists`], [`Error::NotPermitted`] for a directory and for what is immutable or
    /// append-only, [`Error::CrossesSubvolumes`]; [`Error::Names`] with `EMLINK` past 65,535 names;
    /// [`Error::NotFound`] for an inode that lost all its names. One that never had any (see
    /// [`Filesystem::open_unnamed`]) is given its first.
    pub fn link(&self, id: FileId, dir: FileId, name: &[u8]) -> Result<()> {
        let _timed = self.timed(Operation::Link);
        let writer = self.begin()?;
        check_name(name)?;
        let subvolume = self.writable_subvolume(writer, dir)?;
        let (parent, target) = (self.entry_of(writer, dir)?, self.entry_of(writer, id)?);
        if id.subvolume != dir.subvolume {
            return Err(Error::CrossesSubvolumes);
        }
        self.link_entry(writer, &subvolume, &parent, name, &target)
    }

    fn link_entry(
        &self,
        writer: &Writer,
        subvolume: &WritableSubvolume,
        parent: &InodeEntry,
        name: &[u8],
        target: &InodeEntry,
    ) -> Result<()> {
        let mut bodies = Bodies::lock(&[parent, target]);
        let at = Ino(parent.id.ino);
        if names::lookup(&subvolume.tree, at, name)?.is_some() {
            return Err(Error::Exists);
        }
        let mut dir = self.directory_to_change(parent)?;
        let mut inode = self.facts(target)?;
        let is_fixed = |flag| inode.flags.contains(flag);
        if inode.kind == FileKind::Directory
            || is_fixed(InodeFlags::IMMUTABLE)
            || is_fixed(InodeFlags::APPEND)
        {
            return Err(Error::NotPermitted { what: "such an inode gets no other name" });
        }
        let was_unnamed = inode.nlink == 0;
        if was_unnamed && !bodies.of(target).is_linkable {
            return Err(Error::NotFound);
        }
        if inode.nlink >= LINKS_MAX {
            return Err(NamesError::TooManyLinks.into());
        }
        let index = next_index(subvolume, parent, bodies.of(parent))?;
        self.change(writer, subvolume, Need::items(ITEMS_OF_LINK), |change| {
            let ino = Ino(target.id.ino);
            let leads = Found { target: Target::Inode(ino), kind: inode.kind };
            let generation = change.moment.generation;
            let new = NewName { dir: at, name, index, leads, generation };
            names::link(&change.edit, &new)?;
            change.must(names::link_added(&mut inode, change.moment))?;
            if was_unnamed {
                change.must(names::remove_orphan(&change.edit, ino))?;
            }
            change.put(ino, &inode)?;
            names::entry_added(&mut dir, name, change.moment);
            change.put(at, &dir)
        })?;
        bodies.of(parent).next_index = index.checked_add(1);
        bodies.of(target).is_linkable = false;
        parent.set(dir);
        target.set(inode);
        Ok(())
    }
}
