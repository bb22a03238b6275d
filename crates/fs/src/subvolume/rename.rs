//! Renames with subvolumes: of one, across directories and subvolumes, also over an empty
//! directory; an exchange of one with anything; and of anything over a placeholder.
//!
//! Only entries move, and the references to subvolumes in the root tree. All are changed in one
//! commit, so the new names are durable when the call returns.
//!
//! | source | target | rename | exchange |
//! |---|---|---|---|
//! | subvolume | none, empty directory, placeholder | done | done, of a directory |
//! | subvolume | subvolume | `NotEmpty` | done, also across subvolumes |
//! | directory | subvolume | `NotEmpty` | done |
//! | directory | placeholder | done | `Unsupported` |
//! | file | subvolume | `IsDirectory` | done |
//! | placeholder | any | `NotEmpty` | `Unsupported` |
//!
//! Laws:
//!
//! 1. A subvolume or a directory never becomes its own descendant.
//! 2. Everything that can be refused is refused before the commit begins: a commit that fails ends
//!    writing to the volume.
//! 3. No subvolume is replaced. Nothing but subvolumes leaves its subvolume.
//! 4. Readers do not wait for the commit. The old entry is removed before the reference to it, and
//!    the new entry is added after its reference, so none is taken for a placeholder; and the
//!    subvolume has a parent at every moment. An exchange cannot keep that order: its readers
//!    repeat their lookup ([`exchanges`](super::exchanges)).
//! 5. An exchange and a replacement change an entry in place: every lookup of the new name finds
//!    what was there, or what was moved there.
//! 6. The log has nothing of it. Whatever a later fsync writes to the log is newer than the commit.

use crate::background::cleaner_signal::EvictBy;
use crate::background::merger::MergeScope;
use crate::inode::new_inode::{ITEMS_OF_CREATION, next_index};
use crate::inode::table::{InodeEntry, LockedInodes};
use crate::names::create::check_name;
use crate::names::rename::{ITEMS_OF_RENAME, RenameFlags, is_below};
use crate::names::unlink::{Fate, FoundEntry, fate, may_lose_entry, require_empty};
use crate::subvolume::renaming::{Item, Renaming, Side};
use crate::subvolume::{NESTING_MAX, corrupt_root_tree};
use crate::write_state::WriteState;
use crate::{Error, FileId, FileKind, Filesystem, Result};
use butternut_format::inode::{Inode, InodeFlags};
use butternut_format::refused::require;
use butternut_format::root::RootFlags;
use butternut_format::units::{Ino, TreeId};
use butternut_names::{self as names, OldTarget};
use butternut_tree::{QuotaHold, Tree};
use std::sync::Arc;

/// A name in a directory.
type At<'a> = (FileId, &'a [u8]);

/// What a rename has done.
#[derive(Debug)]
enum Outcome {
    /// No name is that of a subvolume or a placeholder.
    NoSubvolume,
    Done,
    /// Done, and the directory that was replaced is in use.
    Orphan(Arc<InodeEntry>),
}

impl Filesystem {
    /// Renames if one of the names is a subvolume's or a placeholder's. Returns whether one is.
    ///
    /// # Errors
    /// As [`Filesystem::rename`].
    pub(crate) fn rename_subvolume(
        &self,
        from: At<'_>,
        to: At<'_>,
        flags: RenameFlags,
    ) -> Result<bool> {
        check_name(to.1)?;
        let write_state = self.may_begin()?;
        let target_is_one = || match self.names_subvolume(to) {
            Err(error) if flags.exchange => Err(error),
            is_one => Ok(is_one.unwrap_or(false)),
        };
        if !self.names_subvolume(from)? && !target_is_one()? {
            return Ok(false);
        }
        self.open_before_exclusion(write_state, from.0)?;
        self.open_before_exclusion(write_state, to.0)?;
        if flags.exchange {
            // As for a file that replaces another one.
            for at in [from, to] {
                let Ok(found) = self.found_entry(write_state, at.0, at.1) else { continue };
                if write_state.is_dirty(found.entry.id) {
                    drop(self.write_back_one(write_state, &found.entry, MergeScope::Whole));
                }
            }
        }
        let excluded = write_state.snapshots.exclude_writes();
        let renamed = self.rename_excluded(write_state, from, to, flags);
        drop(excluded);
        match renamed? {
            Outcome::NoSubvolume => Ok(false),
            Outcome::Done => Ok(true),
            Outcome::Orphan(entry) => {
                // If deleting fails, the next open for writing finds the orphan item.
                drop(self.evict_orphan(&entry, EvictBy::Caller));
                Ok(true)
            }
        }
    }

    /// Returns whether a name is that of a subvolume, or of a placeholder.
    fn names_subvolume(&self, (dir, name): At<'_>) -> Result<bool> {
        let (id, _) = self.entry(dir, name)?;
        Ok(id.is_placeholder() || (id.is_subvolume_root() && id.subvolume != dir.subvolume))
    }

    /// Returns what a name refers to.
    fn item(&self, write_state: &WriteState, at: At<'_>) -> Result<Item> {
        let (id, kind) = self.entry(at.0, at.1)?;
        if id.is_placeholder() {
            return Ok(Item::Placeholder);
        }
        if id.is_subvolume_root() {
            let is_own = id.subvolume == at.0.subvolume;
            return if is_own {
                Err(Error::Busy)
            } else {
                Ok(Item::Subvolume(TreeId(id.subvolume)))
            };
        }
        Ok(Item::Inode(FoundEntry { entry: self.entry_of(write_state, id)?, kind }))
    }

    fn side<'a>(&self, write_state: &WriteState, at: At<'a>) -> Result<Side<'a>> {
        let subvolume = self.writable_subvolume(write_state, at.0)?;
        let dir = self.entry_of(write_state, at.0)?;
        let item = match self.item(write_state, at) {
            Err(Error::NotFound) => None,
            item => Some(item?),
        };
        Ok(Side { at, subvolume, dir, item })
    }

    fn rename_excluded(
        &self,
        write_state: &WriteState,
        from: At<'_>,
        to: At<'_>,
        flags: RenameFlags,
    ) -> Result<Outcome> {
        let (from, to) = (self.side(write_state, from)?, self.side(write_state, to)?);
        let moved = from.item.as_ref().ok_or(Error::NotFound)?;
        let victim = to.item.as_ref();
        // The names may refer to something else by now.
        if !std::iter::once(moved).chain(victim).any(|item| !matches!(item, Item::Inode(_))) {
            return Ok(Outcome::NoSubvolume);
        }
        if flags.no_replace && victim.is_some() {
            return Err(Error::Exists);
        }
        if flags.exchange && victim.is_none() {
            return Err(Error::NotFound);
        }
        if from.at == to.at {
            return Ok(Outcome::Done);
        }
        let exchanged = victim.filter(|_| flags.exchange);
        self.check_descent(moved, &to, &from)?;
        if let Some(victim) = exchanged {
            self.check_descent(victim, &from, &to)?;
        }
        // Dropped after the commit.
        let _holds = self.hold_for_rename(&from, &to, flags)?;
        let mut entries: Vec<&InodeEntry> = vec![&from.dir, &to.dir];
        let found = [Some(moved), victim].into_iter().flatten().filter_map(Item::found);
        entries.extend(found.map(|found| &*found.entry));
        let mut locked = LockedInodes::lock(&entries);
        let renaming = self.prepare(write_state, (&from, &to), &mut locked, flags)?;
        let fate = renaming.run(&mut locked)?;
        let orphan = victim.and_then(Item::found).filter(|_| fate == Fate::Orphan);
        Ok(orphan.map_or(Outcome::Done, |found| Outcome::Orphan(Arc::clone(&found.entry))))
    }

    /// Charges the blocks that a rename may add to the quota groups of both subvolumes.
    fn hold_for_rename(
        &self,
        from: &Side<'_>,
        to: &Side<'_>,
        flags: RenameFlags,
    ) -> Result<[Option<QuotaHold>; 2]> {
        let more = flags.whiteout.map_or(0, |_| ITEMS_OF_CREATION);
        let first = self.hold_quota(from.subvolume.id, ITEMS_OF_RENAME + more)?;
        let is_one = from.subvolume.id == to.subvolume.id;
        let second = if is_one { None } else { self.hold_quota(to.subvolume.id, ITEMS_OF_RENAME)? };
        Ok([first, second])
    }

    /// Checks everything, and reads what the commit needs (law 2).
    fn prepare<'a>(
        &'a self,
        write_state: &'a WriteState,
        (from, to): (&'a Side<'a>, &'a Side<'a>),
        locked: &mut LockedInodes<'_>,
        flags: RenameFlags,
    ) -> Result<Renaming<'a>> {
        let moved = from.item.as_ref().ok_or(Error::NotFound)?;
        let victim = to.item.as_ref();
        let from_dir = self.directory_to_change(&from.dir)?;
        let is_across = from.at.0 != to.at.0;
        let to_dir = is_across.then(|| self.directory_to_change(&to.dir)).transpose()?;
        let moved_inode = self.item_inode(moved)?;
        let victim_inode = victim.map(|victim| self.item_inode(victim)).transpose()?.flatten();
        may_lose(&from_dir, moved_inode.as_ref())?;
        if victim.is_some() {
            may_lose(to_dir.as_ref().unwrap_or(&from_dir), victim_inode.as_ref())?;
            if !flags.exchange {
                check_kinds(moved_inode.as_ref(), victim_inode.as_ref())?;
            }
        }
        let exchanged = victim.filter(|_| flags.exchange);
        if is_across {
            let mut leaving = std::iter::once(moved).chain(exchanged);
            leaving.try_for_each(|item| self.may_leave_directory(item))?;
        }
        check_crossing((from, moved), (to, victim), flags)?;
        let (from_target, is_stale) = self.old_target(from, moved_inode.as_ref())?;
        let to_target = victim.map(|_| self.old_target(to, victim_inode.as_ref())).transpose()?;
        if is_stale || (flags.exchange && to_target.is_some_and(|(_, is_stale)| is_stale)) {
            return Err(Error::NotFound);
        }
        let mut fate = Fate::Kept;
        if let (Some(Item::Inode(found)), None, Some(inode)) = (victim, exchanged, &victim_inode) {
            fate = fate_of_replaced(write_state, to, (found, inode), locked)?;
        }
        if victim.is_none() {
            let limits = names::Limits::of(self.super_block());
            names::check_addable(&to.subvolume.tree, limits, Ino(to.at.0.ino), to.at.1)?;
        }
        self.check_references((from, moved), (to, victim), flags)?;
        let mut index = |side: &Side<'_>| {
            let state = locked.of(&side.dir);
            let index = next_index(&side.subvolume, &side.dir, state)?;
            state.next_index = index.checked_add(1);
            Ok::<u64, Error>(index)
        };
        let to_index = index(to)?;
        let has_further = flags.exchange || flags.whiteout.is_some();
        let from_index = if has_further { index(from)? } else { to_index };
        Ok(Renaming {
            filesystem: self,
            write_state,
            from,
            to,
            flags,
            from_target,
            to_target: to_target.map(|(target, _)| target),
            indices: (from_index, to_index),
            fate,
            dirs: (from_dir, to_dir),
            inodes: (moved_inode, victim_inode),
        })
    }

    /// Checks that the inodes that move take references to their new names.
    fn check_references(
        &self,
        (from, moved): (&Side<'_>, &Item),
        (to, victim): (&Side<'_>, Option<&Item>),
        flags: RenameFlags,
    ) -> Result<()> {
        let limits = names::Limits::of(self.super_block());
        let exchanged = victim.filter(|_| flags.exchange).map(|victim| (victim, from));
        for (item, side) in std::iter::once((moved, to)).chain(exchanged) {
            if let Item::Inode(found) = item {
                let (tree, name) = (&side.subvolume.tree, (Ino(side.at.0.ino), side.at.1));
                names::check_referable(tree, limits, Ino(found.entry.id.ino), name)?;
            }
        }
        Ok(())
    }

    /// Returns the inode of an item, which a placeholder does not have.
    fn item_inode(&self, item: &Item) -> Result<Option<Inode>> {
        match item {
            Item::Subvolume(id) => self.inode(FileId::root_of(id.0)).map(Some),
            Item::Placeholder => Ok(None),
            Item::Inode(found) => self.attributes(&found.entry).map(Some),
        }
    }

    /// Returns how an item refers back to its name, and whether that is a stale name of a damaged
    /// volume.
    fn old_target(&self, side: &Side<'_>, inode: Option<&Inode>) -> Result<(OldTarget, bool)> {
        let (tree, dir, name) = (&side.subvolume.tree, Ino(side.at.0.ino), side.at.1);
        let index = match (&side.item, inode) {
            (Some(Item::Inode(found)), Some(inode)) => {
                let ino = Ino(found.entry.id.ino);
                let backref = names::backref(tree, (dir, name), (ino, inode.nlink))?;
                return Ok((backref.target(ino), backref.is_stale()));
            }
            (Some(Item::Subvolume(id)), _) => self.index_of_subvolume(tree, *id, side.at)?,
            _ => names::find_index(tree, dir, name)?.ok_or(Error::NotFound)?,
        };
        Ok((OldTarget::Unreferenced { index }, false))
    }

    /// Checks law 1 for an item that moves from one directory to another.
    fn check_descent(&self, item: &Item, to: &Side<'_>, from: &Side<'_>) -> Result<()> {
        match item {
            Item::Subvolume(id) => self.check_nesting(*id, to.subvolume.id),
            Item::Inode(found) if from.at.0 != to.at.0 && from.subvolume.id == to.subvolume.id => {
                let ino = Ino(found.entry.id.ino);
                if is_below(&to.subvolume, Ino(to.at.0.ino), ino)? {
                    let what = "a directory cannot be below itself";
                    return Err(Error::InvalidArgument { what });
                }
                Ok(())
            }
            Item::Inode(_) | Item::Placeholder => Ok(()),
        }
    }

    /// Checks law 1 for subvolume `id` and the subvolume that it moves to.
    fn check_nesting(&self, id: TreeId, target: TreeId) -> Result<()> {
        let roots = self.forest().root_tree();
        let mut ancestor = target;
        for _ in 0..NESTING_MAX {
            if ancestor == id {
                return Err(Error::InvalidArgument { what: "a subvolume cannot be below itself" });
            }
            match names::parent_link(&roots, ancestor)? {
                Some(link) => ancestor = link.parent,
                None => return Ok(()),
            }
        }
        Err(Error::InvalidArgument { what: "subvolumes are nested too deeply" })
    }

    /// Checks that the root directory of a subvolume may get another parent, for which the kernel
    /// wants it to be writable.
    fn may_leave_directory(&self, item: &Item) -> Result<()> {
        let Item::Subvolume(id) = item else { return Ok(()) };
        let root = self.forest().root_item(*id)?;
        let is_read_only =
            root.is_some_and(|(_, root)| root.flags().contains(RootFlags::READ_ONLY));
        if is_read_only { Err(Error::ReadOnly { what: "the subvolume" }) } else { Ok(()) }
    }

    /// Returns the index of the entry of a subvolume, which the directory and the root tree must
    /// agree on (law 2).
    fn index_of_subvolume(&self, tree: &Tree, id: TreeId, entry: At<'_>) -> Result<u64> {
        let link = self.subvolume_link_at(id, entry)?;
        let index = names::index_of_subvolume(tree, &link)?;
        require(index == link.index, "index", index, link.index).map_err(corrupt_root_tree)?;
        Ok(index)
    }
}

/// As [`may_lose_entry`], for an item that has no inode if it is a placeholder.
fn may_lose(dir: &Inode, inode: Option<&Inode>) -> Result<()> {
    match inode {
        Some(inode) => may_lose_entry(dir, inode),
        None if dir.flags.contains(InodeFlags::APPEND) => {
            Err(Error::NotPermitted { what: "the directory is append-only" })
        }
        None => Ok(()),
    }
}

/// Checks the kinds of what is moved and of what it replaces, which are directories if they have no
/// inode.
fn check_kinds(moved: Option<&Inode>, victim: Option<&Inode>) -> Result<()> {
    let is_directory =
        |inode: Option<&Inode>| inode.is_none_or(|inode| inode.kind == FileKind::Directory);
    match (is_directory(moved), is_directory(victim)) {
        (true, false) => Err(Error::NotDirectory),
        (false, true) => Err(Error::IsDirectory),
        (true, true) | (false, false) => Ok(()),
    }
}

/// Checks law 3, and that no placeholder is moved.
fn check_crossing(
    (from, moved): (&Side<'_>, &Item),
    (to, victim): (&Side<'_>, Option<&Item>),
    flags: RenameFlags,
) -> Result<()> {
    let exchanged = victim.filter(|_| flags.exchange);
    let is_subvolume = |item: &Item| matches!(item, Item::Subvolume(_));
    let crosses = from.subvolume.id != to.subvolume.id;
    if crosses && !std::iter::once(moved).chain(exchanged).all(is_subvolume) {
        return Err(Error::CrossesSubvolumes);
    }
    let is_placeholder = |item: &Item| matches!(item, Item::Placeholder);
    if flags.exchange {
        if std::iter::once(moved).chain(exchanged).any(is_placeholder) {
            return Err(Error::Unsupported { what: "exchanging the entry of a placeholder" });
        }
        return Ok(());
    }
    if is_placeholder(moved) || victim.is_some_and(is_subvolume) {
        return Err(Error::NotEmpty);
    }
    Ok(())
}

/// Returns what happens to a directory that is replaced, which must be empty.
fn fate_of_replaced(
    write_state: &WriteState,
    to: &Side<'_>,
    (found, inode): (&FoundEntry, &Inode),
    locked: &mut LockedInodes<'_>,
) -> Result<Fate> {
    let (subvolume, ino) = (&to.subvolume, Ino(found.entry.id.ino));
    let at = (Ino(to.at.0.ino), to.at.1);
    let backref = names::backref(&subvolume.tree, at, (ino, inode.nlink))?;
    let entry = (&*found.entry, &*locked.of(&found.entry), inode);
    let fate = fate(write_state, subvolume, entry, backref)?;
    if fate != Fate::Untouched {
        require_empty(subvolume, &found.entry, inode)?;
    }
    Ok(fate)
}
