//! Removal of names. An inode is deleted with its last name, or with its last pin.
//!
//! Law: removing a stale name of a damaged volume ([`names::Backref`]) removes the entry alone: its
//! inode has as many references as links without it, and keeps them, its item and its data.

use crate::background::cleaner_signal::EvictBy;
use crate::change::Change;
use crate::inode::orphans::require_no_entries;
use crate::inode::table::{InodeEntry, InodeState, LockedInodes};
use crate::names::create::check_name;
use crate::stats::latency::Operation;
use crate::write_state::{WritableSubvolume, WriteState};
use crate::{Error, FileId, FileKind, Filesystem, Result};
use butternut_file::{FileState, verity_keys};
use butternut_format::inode::{Inode, InodeFlags};
use butternut_format::units::{Ino, SECTOR_BYTES};
use butternut_names::{self as names, Backref, OldName, OldTarget};
use butternut_tree::Need;
use std::sync::Arc;

/// Items that a removal may change: two of the entry, the reference, the directory's, the inode's,
/// its orphan's, and those that are deleted with the inode.
const ITEMS_OF_REMOVAL: u32 = 8;

/// A file of at most this many bytes is deleted with its last name, in one transaction.
pub(crate) const DELETE_BYTES_MAX: u64 = 128 << 10;

/// The most items that fs-verity has of such a file: a descriptor with a signature of 16 KiB, and a
/// tree of a sixteenth of the data, with blocks of 1 KiB.
const VERITY_ITEMS_MAX: u32 = 24;

/// What happens to an inode that loses a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fate {
    /// It has other names.
    Kept,
    /// The name was stale: its inode loses nothing.
    Untouched,
    /// It becomes an orphan: it is pinned, or its data, or the items of fs-verity that a call has
    /// left, may take transactions of their own to delete.
    Orphan,
    /// It is deleted with its name, and at most this many items of its data.
    Deleted { data_items: u32 },
}

impl Fate {
    /// Returns the number of items that may change besides those of the name.
    pub(crate) fn data_items(self) -> u32 {
        match self {
            Self::Deleted { data_items } => data_items,
            Self::Kept | Self::Untouched | Self::Orphan => 0,
        }
    }
}

/// An existing name, and the inode of the same subvolume that it refers to.
#[derive(Debug)]
pub(crate) struct FoundEntry {
    pub(crate) entry: Arc<InodeEntry>,
    pub(crate) kind: FileKind,
}

impl Filesystem {
    /// Removes the name of an inode that is no directory.
    ///
    /// # Errors
    /// [`Error::NotFound`], [`Error::IsDirectory`], [`Error::ReadOnly`]; [`Error::NotPermitted`] if
    /// the inode or its directory is immutable or append-only.
    pub fn unlink(&self, dir: FileId, name: &[u8]) -> Result<()> {
        self.remove(dir, name, |kind| {
            if kind == FileKind::Directory { Err(Error::IsDirectory) } else { Ok(()) }
        })
    }

    /// Removes an empty directory. An empty subvolume is deleted, as
    /// [`Filesystem::delete_subvolume`] does it.
    ///
    /// # Errors
    /// As [`Filesystem::unlink`]; [`Error::NotDirectory`], [`Error::NotEmpty`]; for a subvolume as
    /// [`Filesystem::delete_subvolume`].
    pub fn rmdir(&self, dir: FileId, name: &[u8]) -> Result<()> {
        let remove = || {
            self.remove(dir, name, |kind| {
                if kind == FileKind::Directory { Ok(()) } else { Err(Error::NotDirectory) }
            })
        };
        match remove() {
            Err(Error::Unsupported { .. }) => match self.delete_empty_subvolume(dir, name) {
                // Another thread has put a directory in its place.
                Err(Error::InvalidArgument { .. }) => remove(),
                deleted => deleted,
            },
            removed => removed,
        }
    }

    fn remove(
        &self,
        dir: FileId,
        name: &[u8],
        check_kind: impl Fn(FileKind) -> Result<()>,
    ) -> Result<()> {
        let _timed = self.timed(Operation::Unlink);
        let writing = self.begin()?;
        let write_state = &*writing;
        check_name(name)?;
        let subvolume = self.writable_subvolume(write_state, dir)?;
        let parent = self.entry_of(write_state, dir)?;
        loop {
            let edits = subvolume.tree.version();
            let found = self.entry(dir, name)?;
            if found.0.is_placeholder() {
                check_kind(FileKind::Directory)?;
                return self.remove_placeholder(write_state, &subvolume, &parent, name);
            }
            if found.0.is_subvolume_root() {
                check_kind(FileKind::Directory)?;
            }
            let Some(target) = self.entry_target(write_state, dir, name, found)? else { continue };
            let mut locked = LockedInodes::lock(&[&parent, &target.entry]);
            // The thread that had the directory locked before may have changed the entry.
            let is_same = subvolume.tree.version() == edits;
            if !is_same && !still_refers(&subvolume, dir, name, &target)? {
                continue;
            }
            let state = locked.of(&target.entry);
            let at = (&*parent, name);
            let fate =
                self.remove_locked(write_state, &subvolume, at, (&target, state), &check_kind)?;
            if let Fate::Deleted { .. } = fate {
                write_state.forget(&target.entry, state);
            }
            drop(locked);
            // A deletion of much data is no part of the operation, and excludes no snapshot.
            drop(writing);
            if fate == Fate::Orphan {
                // If deleting fails, the next open for writing finds the orphan item.
                drop(self.evict_orphan(&target.entry, EvictBy::Caller));
            }
            return Ok(());
        }
    }

    /// Returns the inode that a name refers to, for a change: not the root of a subvolume.
    pub(crate) fn found_entry(
        &self,
        write_state: &WriteState,
        dir: FileId,
        name: &[u8],
    ) -> Result<FoundEntry> {
        loop {
            let found = self.entry(dir, name)?;
            if let Some(found) = self.entry_target(write_state, dir, name, found)? {
                return Ok(found);
            }
        }
    }

    /// Returns the inode that a name was found to refer to; `None` if the name has been removed
    /// since.
    fn entry_target(
        &self,
        write_state: &WriteState,
        dir: FileId,
        name: &[u8],
        (id, kind): (FileId, FileKind),
    ) -> Result<Option<FoundEntry>> {
        if id.is_placeholder() || id.subvolume != dir.subvolume {
            return Err(Error::Unsupported { what: "changing the entry of a subvolume" });
        }
        if id.is_subvolume_root() {
            return Err(Error::Busy);
        }
        match self.entry_of(write_state, id) {
            Err(Error::Stale { .. }) if self.entry(dir, name)?.0 != id => Ok(None),
            entry => Ok(Some(FoundEntry { entry: entry?, kind })),
        }
    }

    /// Removes a placeholder from a snapshot.
    fn remove_placeholder(
        &self,
        write_state: &WriteState,
        subvolume: &WritableSubvolume,
        parent: &InodeEntry,
        name: &[u8],
    ) -> Result<()> {
        let _state = parent.lock();
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
        self.change(write_state, subvolume, need, |change| {
            let old = OldName { dir: at, name, target: OldTarget::Unreferenced { index } };
            change.step(names::unlink(&change.edit, &old))?;
            names::entry_removed(&mut dir, name, change.moment);
            change.put(at, &dir)
        })?;
        parent.set(dir);
        Ok(())
    }

    fn remove_locked(
        &self,
        write_state: &WriteState,
        subvolume: &WritableSubvolume,
        (parent, name): (&InodeEntry, &[u8]),
        (FoundEntry { entry: target, kind }, state): (&FoundEntry, &InodeState),
        check_kind: &dyn Fn(FileKind) -> Result<()>,
    ) -> Result<Fate> {
        let mut dir = self.directory_to_change(parent)?;
        let mut inode = self.attributes(target)?;
        may_lose_entry(&dir, &inode)?;
        check_kind(*kind)?;
        let (at, ino) = (Ino(parent.id.ino), Ino(target.id.ino));
        let backref = names::backref(&subvolume.tree, (at, name), (ino, inode.nlink))?;
        let fate = fate(write_state, subvolume, (target, state, &inode), backref)?;
        if inode.kind == FileKind::Directory && fate != Fate::Untouched {
            require_empty(subvolume, target, &inode)?;
        }
        let need = Need::items(ITEMS_OF_REMOVAL + fate.data_items()).deleting();
        self.change(write_state, subvolume, need, |change| {
            let old = OldName { dir: at, name, target: backref.target(ino) };
            names::entry_removed(&mut dir, name, change.moment);
            if let Fate::Deleted { .. } = fate {
                let whole = (ino, inode.kind);
                let edit = &change.edit;
                change.delete(ino, |see| names::unlink_last(edit, &old, whole, see))?;
                return change.put(at, &dir);
            }
            change.step(names::unlink(&change.edit, &old))?;
            change.put(at, &dir)?;
            change.remove_link(ino, &mut inode, fate)
        })?;
        parent.set(dir);
        if fate != Fate::Untouched {
            target.set(inode);
        }
        Ok(fate)
    }
}

/// Returns whether a name still refers to the same inode. The caller holds the directory's inode
/// lock.
pub(crate) fn still_refers(
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
    if inode.size > 0 {
        return Err(Error::NotEmpty);
    }
    require_no_entries(subvolume, Ino(dir.id.ino))
}

/// Returns what happens to an inode that loses a name. The caller holds its inode lock.
pub(crate) fn fate(
    write_state: &WriteState,
    subvolume: &WritableSubvolume,
    (entry, state, inode): (&InodeEntry, &InodeState, &Inode),
    backref: Backref,
) -> Result<Fate> {
    let fate = fate_by_size(entry, state, inode, backref);
    let is_sealed = inode.flags.contains(InodeFlags::VERITY);
    if !matches!(fate, Fate::Deleted { .. }) || is_sealed || !write_state.has_left_seals() {
        return Ok(fate);
    }
    // A call may have left any number of items: the size of the file says nothing of them.
    let left = verity_keys(&subvolume.tree, Ino(entry.id.ino), 1)?;
    Ok(if left.is_empty() { fate } else { Fate::Orphan })
}

/// As [`fate`], if no call has left items of fs-verity.
fn fate_by_size(entry: &InodeEntry, state: &InodeState, inode: &Inode, backref: Backref) -> Fate {
    if backref.is_stale() {
        return Fate::Untouched;
    }
    if inode.nlink > 1 {
        return Fate::Kept;
    }
    if entry.is_pinned() {
        return Fate::Orphan;
    }
    if inode.kind != FileKind::File {
        return Fate::Deleted { data_items: 0 };
    }
    let attributes = (inode.size, inode.bytes_used);
    let (size, bytes_used) = state.file.as_deref().map_or(attributes, FileState::in_tree);
    let bytes = size.max(bytes_used);
    if bytes > DELETE_BYTES_MAX {
        return Fate::Orphan;
    }
    // At worst, every sector is an extent of its own, with a hole after it and its own checksum
    // item.
    let sectors = u32::try_from(bytes.div_ceil(SECTOR_BYTES)).unwrap_or(u32::MAX);
    let is_sealed = inode.flags.contains(InodeFlags::VERITY);
    let verity_items = if is_sealed { VERITY_ITEMS_MAX } else { 0 };
    Fate::Deleted { data_items: sectors.saturating_mul(3).saturating_add(verity_items) }
}

impl Change<'_> {
    /// Updates the inode item of an inode that has lost a name, or deletes the inode with its last
    /// name.
    pub(crate) fn remove_link(&self, ino: Ino, inode: &mut Inode, fate: Fate) -> Result<()> {
        if fate == Fate::Untouched {
            return Ok(());
        }
        names::link_removed(inode, self.moment);
        if inode.kind == FileKind::Directory {
            inode.size = 0;
        }
        match fate {
            Fate::Kept | Fate::Untouched => self.put(ino, inode),
            Fate::Orphan => {
                self.step(names::add_orphan(&self.edit, ino))?;
                self.put(ino, inode)
            }
            Fate::Deleted { .. } => self.delete_inode(ino, inode.kind),
        }
    }
}

/// Checks that the flags of a directory and of an inode in it allow removing or changing the entry.
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
