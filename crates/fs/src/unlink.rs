//! Taking names away; with the last one the inode goes, now or when it is let go.

use crate::change::Change;
use crate::create::check_name;
use crate::held::forget;
use crate::inode_table::{Bodies, Body, InodeEntry};
use crate::latency::Operation;
use crate::root::ROOT_DIRECTORY;
use crate::writer::{WritableSubvolume, Writer};
use crate::{Error, FileId, FileKind, Filesystem, Result};
use butternut_file::FileState;
use butternut_format::inode::{Inode, InodeFlags};
use butternut_format::units::{Ino, SECTOR_BYTES};
use butternut_names::{self as names, Leads, OldName};
use butternut_tree::Need;
use std::sync::Arc;

/// Items that taking a name away may change: two of the entry, the reference, the directory's, the
/// inode's, its orphan's, and what goes with the inode.
const ITEMS_OF_REMOVAL: u32 = 8;

/// A file of no more bytes than this goes with its name, in one transaction.
const BYTES_AT_ONCE: u64 = 128 << 10;

/// What becomes of an inode that loses a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fate {
    /// It has other names.
    Stays,
    /// It is in use, or its data may take transactions of its own to go.
    Orphan,
    /// It goes with its name; its data may have so many items.
    Goes { data_items: u32 },
}

impl Fate {
    /// Items that may change beside those of the name.
    pub(crate) fn data_items(self) -> u32 {
        match self {
            Self::Goes { data_items } => data_items,
            Self::Stays | Self::Orphan => 0,
        }
    }
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
        let _timed = self.timed(Operation::Unlink);
        let writer = self.begin()?;
        check_name(name)?;
        let subvolume = self.writable_subvolume(writer, dir)?;
        let parent = self.entry_of(writer, dir)?;
        loop {
            let edits = subvolume.tree.edits();
            let found = self.entry(dir, name)?;
            if found.0.is_placeholder() {
                suits(FileKind::Directory)?;
                return self.remove_placeholder(writer, &subvolume, &parent, name);
            }
            let Some(target) = self.behind(writer, dir, name, found)? else { continue };
            let mut bodies = Bodies::lock(&[&parent, &target.entry]);
            // Whoever had the directory before may have changed what the name leads to.
            let is_same = subvolume.tree.edits() == edits;
            if !is_same && !still_leads(&subvolume, dir, name, &target)? {
                continue;
            }
            let body = bodies.of(&target.entry);
            let at = (&*parent, name);
            let fate = self.remove_locked(writer, &subvolume, at, (&target, body), &suits)?;
            if let Fate::Goes { .. } = fate {
                forget(writer, &target.entry, body);
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
            let found = self.entry(dir, name)?;
            if let Some(found) = self.behind(writer, dir, name, found)? {
                return Ok(found);
            }
        }
    }

    /// The inode that a name was found to lead to; `None`: it went since, and its name with it.
    fn behind(
        &self,
        writer: &Writer,
        dir: FileId,
        name: &[u8],
        (id, kind): (FileId, FileKind),
    ) -> Result<Option<FoundEntry>> {
        if id.is_placeholder() || id.subvolume != dir.subvolume {
            return Err(Error::Unsupported { what: "changing the entry of a subvolume" });
        }
        if id.ino == ROOT_DIRECTORY {
            return Err(Error::Busy);
        }
        match self.entry_of(writer, id) {
            Err(Error::Stale { .. }) if self.entry(dir, name)?.0 != id => Ok(None),
            entry => Ok(Some(FoundEntry { entry: entry?, kind })),
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
        if !self.entry(parent.id, name)?.0.is_placeholder() {
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
        (FoundEntry { entry: target, kind }, body): (&FoundEntry, &Body),
        suits: &dyn Fn(FileKind) -> Result<()>,
    ) -> Result<Fate> {
        let mut dir = self.directory_to_change(parent)?;
        let mut inode = self.facts(target)?;
        may_lose_entry(&dir, &inode)?;
        suits(*kind)?;
        if inode.kind == FileKind::Directory {
            require_empty(subvolume, target, &inode)?;
        }
        let fate = fate(target, body, &inode);
        let need = Need::items(ITEMS_OF_REMOVAL + fate.data_items()).deleting();
        self.change(writer, subvolume, need, |change| {
            let (at, ino) = (Ino(parent.id.ino), Ino(target.id.ino));
            names::entry_removed(&mut dir, name, change.moment);
            if let Fate::Goes { .. } = fate {
                let whole = (ino, inode.kind);
                let edit = &change.edit;
                change.delete(ino, |see| names::unlink_last(edit, (at, name), whole, see))?;
                return change.put(at, &dir);
            }
            names::unlink(&change.edit, &OldName { dir: at, name, leads: Leads::Inode(ino) })?;
            change.put(at, &dir)?;
            change.lose_name(ino, &mut inode, fate)
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
pub(crate) fn fate(entry: &InodeEntry, body: &Body, inode: &Inode) -> Fate {
    if inode.nlink > 1 {
        return Fate::Stays;
    }
    if entry.is_held() {
        return Fate::Orphan;
    }
    if inode.kind != FileKind::File {
        return Fate::Goes { data_items: 0 };
    }
    let facts = (inode.size, inode.bytes_used);
    let (size, bytes_used) = body.file.as_deref().map_or(facts, FileState::in_tree);
    let bytes = size.max(bytes_used);
    if bytes > BYTES_AT_ONCE {
        return Fate::Orphan;
    }
    // Extents of a sector each, a hole behind each, and a checksum item apart.
    let sectors = u32::try_from(bytes.div_ceil(SECTOR_BYTES)).unwrap_or(u32::MAX);
    Fate::Goes { data_items: sectors.saturating_mul(3) }
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
            Fate::Goes { .. } => self.delete_inode(ino, inode.kind),
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
