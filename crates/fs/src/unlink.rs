//! Taking names away; with the last one the inode goes, now or when it is let go.

use crate::change::Change;
use crate::create::check_name;
use crate::held::{delete_items, forget};
use crate::inode_table::{Bodies, InodeEntry};
use crate::root::ROOT_DIRECTORY;
use crate::writer::{WritableSubvolume, Writer};
use crate::{Error, FileId, FileKind, Filesystem, Result};
use butternut_format::inode::{Inode, InodeFlags};
use butternut_format::units::Ino;
use butternut_names::{self as names, Leads, OldName};
use butternut_tree::Need;
use std::sync::Arc;

/// Items that taking a name away may change: two of the entry, the reference, the directory's, the
/// inode's, its orphan's, and what goes with the inode.
const ITEMS_OF_REMOVAL: u32 = 8;

/// What becomes of an inode that loses a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fate {
    /// It has other names.
    Stays,
    /// It is in use, or its data takes transactions of its own to go.
    Orphan,
    /// It goes with its name.
    Goes,
}

/// A name that is there and an inode of the same subvolume behind it.
#[derive(Debug)]
pub(crate) struct FoundEntry {
    pub(crate) entry: Arc<InodeEntry>,
    pub(crate) kind: FileKind,
}

impl Filesystem {
    /// Takes the name of anything but a directory away.
    ///
    /// # Errors
    /// [`Error::NotFound`], [`Error::IsDirectory`], [`Error::ReadOnly`]; [`Error::NotPermitted`]
    /// where the inode or its directory is immutable or append-only.
    pub fn unlink(&self, dir: FileId, name: &[u8]) -> Result<()> {
        self.remove(dir, name, |kind| {
            if kind == FileKind::Directory { Err(Error::IsDirectory) } else { Ok(()) }
        })
    }

    /// Removes an empty directory.
    ///
    /// # Errors
    /// As [`Filesystem::unlink`]; [`Error::NotDirectory`], [`Error::NotEmpty`],
    /// [`Error::Unsupported`] for a subvolume.
    pub fn rmdir(&self, dir: FileId, name: &[u8]) -> Result<()> {
        self.remove(dir, name, |kind| {
            if kind == FileKind::Directory { Ok(()) } else { Err(Error::NotDirectory) }
        })
    }

    fn remove(
        &self,
        dir: FileId,
        name: &[u8],
        suits: impl Fn(FileKind) -> Result<()>,
    ) -> Result<()> {
        let writer = self.begin()?;
        check_name(name)?;
        let subvolume = self.writable_subvolume(writer, dir)?;
        let parent = self.entry_of(writer, dir)?;
        if self.entry(dir, name)?.0.placeholder_dir().is_some() {
            suits(FileKind::Directory)?;
            return self.remove_placeholder(writer, &subvolume, &parent, name);
        }
        loop {
            let target = self.found_entry(writer, dir, name)?;
            let mut bodies = Bodies::lock(&[&parent, &target.entry]);
            // Whoever had the directory before may have changed what the name leads to.
            if !still_leads(&subvolume, dir, name, &target)? {
                continue;
            }
            let fate = self.remove_locked(writer, &subvolume, (&parent, name), &target, &suits)?;
            if fate == Fate::Goes {
                forget(writer, &target.entry, bodies.of(&target.entry));
            }
            drop(bodies);
            if fate == Fate::Orphan {
                // What cannot be deleted now has its orphan item, and is found again.
                drop(self.bury(&target.entry));
            }
            return Ok(());
        }
    }

    /// The inode that a name leads to, for a change: not a subvolume's root.
    pub(crate) fn found_entry(
        &self,
        writer: &Writer,
        dir: FileId,
        name: &[u8],
    ) -> Result<FoundEntry> {
        loop {
            let (id, kind) = self.entry(dir, name)?;
            if id.placeholder_dir().is_some() || id.subvolume != dir.subvolume {
                return Err(Error::Unsupported { what: "changing the entry of a subvolume" });
            }
            if id.ino == ROOT_DIRECTORY {
                return Err(Error::Busy);
            }
            match self.entry_of(writer, id) {
                // It went since it was looked up, and its name with it.
                Err(Error::Stale { .. }) if self.entry(dir, name)?.0 != id => {}
                entry => return Ok(FoundEntry { entry: entry?, kind }),
            }
        }
    }

    /// Removes what a snapshot has in place of a subvolume that it does not hold.
    fn remove_placeholder(
        &self,
        writer: &Writer,
        subvolume: &WritableSubvolume,
        parent: &InodeEntry,
        name: &[u8],
    ) -> Result<()> {
        let _body = parent.body_mut();
        let mut dir = self.directory_to_change(parent)?;
        let at = Ino(parent.id.ino);
        if dir.flags.contains(InodeFlags::APPEND) {
            return Err(Error::NotPermitted { what: "the directory is append-only" });
        }
        let index = names::find_index(&subvolume.tree, at, name)?.ok_or(Error::NotFound)?;
        if self.entry(parent.id, name)?.0.placeholder_dir().is_none() {
            return Err(Error::NotFound);
        }
        let need = Need::items(ITEMS_OF_REMOVAL).deleting();
        self.change(writer, subvolume, need, |change| {
            let old = OldName { dir: at, name, leads: Leads::Subvolume { index } };
            names::unlink(&change.edit, &old)?;
            names::entry_removed(&mut dir, name, change.moment);
            change.put(at, &dir)
        })?;
        parent.set(dir);
        Ok(())
    }

    fn remove_locked(
        &self,
        writer: &Writer,
        subvolume: &WritableSubvolume,
        (parent, name): (&InodeEntry, &[u8]),
        FoundEntry { entry: target, kind }: &FoundEntry,
        suits: &dyn Fn(FileKind) -> Result<()>,
    ) -> Result<Fate> {
        let mut dir = self.directory_to_change(parent)?;
        let mut inode = self.facts(target)?;
        may_lose_entry(&dir, &inode)?;
        suits(*kind)?;
        if inode.kind == FileKind::Directory {
            require_empty(subvolume, target, &inode)?;
        }
        let fate = fate(subvolume, target, &inode)?;
        let need = Need::items(ITEMS_OF_REMOVAL).deleting();
        self.change(writer, subvolume, need, |change| {
            let leads = Leads::Inode(Ino(target.id.ino));
            let old = OldName { dir: Ino(parent.id.ino), name, leads };
            names::unlink(&change.edit, &old)?;
            names::entry_removed(&mut dir, name, change.moment);
            change.put(Ino(parent.id.ino), &dir)?;
            change.lose_name(Ino(target.id.ino), &mut inode, fate)
        })?;
        parent.set(dir);
        target.set(inode);
        Ok(fate)
    }
}

/// Whether a name still leads where it did. The caller has the directory's body.
pub(crate) fn still_leads(
    subvolume: &WritableSubvolume,
    dir: FileId,
    name: &[u8],
    found: &FoundEntry,
) -> Result<bool> {
    let now = names::lookup(&subvolume.tree, Ino(dir.ino), name)?.ok_or(Error::NotFound)?;
    let ino = Ino(found.entry.id.ino);
    Ok(now.target == names::Target::Inode(ino) && now.kind == found.kind)
}

/// Refuses a directory that has entries.
pub(crate) fn require_empty(
    subvolume: &WritableSubvolume,
    dir: &InodeEntry,
    inode: &Inode,
) -> Result<()> {
    let first = || names::list(&subvolume.tree, Ino(dir.id.ino), 0).next().transpose();
    if inode.size > 0 || first()?.is_some() {
        return Err(Error::NotEmpty);
    }
    Ok(())
}

/// What becomes of an inode when it loses a name.
pub(crate) fn fate(
    subvolume: &WritableSubvolume,
    entry: &InodeEntry,
    inode: &Inode,
) -> Result<Fate> {
    if inode.nlink > 1 {
        return Ok(Fate::Stays);
    }
    if entry.is_held() {
        return Ok(Fate::Orphan);
    }
    if inode.kind != FileKind::File {
        return Ok(Fate::Goes);
    }
    let in_tree = names::inode(&subvolume.tree, Ino(entry.id.ino))?;
    let has_data = in_tree.is_some_and(|inode| inode.size > 0 || inode.bytes_used > 0);
    Ok(if has_data { Fate::Orphan } else { Fate::Goes })
}

impl Change<'_> {
    /// The inode has lost a name: counts that, and lets it go if it was the last.
    pub(crate) fn lose_name(&self, ino: Ino, inode: &mut Inode, fate: Fate) -> Result<()> {
        names::link_removed(inode, self.moment);
        if inode.kind == FileKind::Directory {
            inode.size = 0;
        }
        match fate {
            Fate::Stays => self.put(ino, inode),
            Fate::Orphan => {
                self.must(names::add_orphan(&self.edit, ino))?;
                self.put(ino, inode)
            }
            Fate::Goes => self.must(delete_items(&self.edit, ino, inode.kind)),
        }
    }
}

/// Whether the flags of a directory and of an inode in it let the entry go, or change.
pub(crate) fn may_lose_entry(dir: &Inode, inode: &Inode) -> Result<()> {
    if dir.flags.contains(InodeFlags::APPEND) {
        return Err(Error::NotPermitted { what: "the directory is append-only" });
    }
    let is_fixed = |flag| inode.flags.contains(flag);
    if is_fixed(InodeFlags::IMMUTABLE) || is_fixed(InodeFlags::APPEND) {
        return Err(Error::NotPermitted { what: "the inode is immutable or append-only" });
    }
    Ok(())
}
