//! Renames: within a directory, across directories, over another entry, as an exchange, with a
//! whiteout left behind.
//!
//! Laws:
//!
//! 1. A directory never becomes its own descendant: moves between directories happen one at a time,
//!    and the ancestors of the new parent are checked first.
//! 2. While a rename replaces an entry, every lookup of the new name finds an inode: the one that
//!    is replaced, or the one that is moved.
//! 3. A stale name of a damaged volume ([`names::Backref`]) is never moved or exchanged: the call
//!    fails with [`Error::NotFound`] and changes nothing. Replacing one leaves its inode as it is.

use crate::background::cleaner_signal::EvictBy;
use crate::background::merger::MergeScope;
use crate::change::Change;
use crate::inode::new_inode::{ITEMS_OF_CREATION, InodeSpec, NewInode, Prepared, next_index};
use crate::inode::table::{InodeEntry, LockedInodes};
use crate::names::create::check_name;
use crate::names::unlink::{Fate, FoundEntry, fate, may_lose_entry, require_empty, still_refers};
use crate::stats::latency::Operation;
use crate::write_state::{WritableSubvolume, WriteState};
use crate::{Error, FileId, FileKind, Filesystem, Result};
use butternut_format::inode::Inode;
use butternut_format::units::Ino;
use butternut_names::{
    self as names, Backref, Exchanged, Found, Move, NewName, OldName, OldTarget, PathBudget, Target,
};
use butternut_tree::Need;
use std::sync::Arc;

/// Items that a rename may change: four of entries, three references, four inodes, an orphan's, and
/// those that are deleted with the inode that is replaced.
pub(crate) const ITEMS_OF_RENAME: u32 = 18;

/// Maximum number of ancestors that are checked.
const PATH_STEPS_MAX: usize = 1 << 16;

/// The flags of a rename (`renameat2`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RenameFlags {
    /// Fail if the new name exists (`RENAME_NOREPLACE`).
    pub no_replace: bool,
    /// Exchange both names, which must exist (`RENAME_EXCHANGE`).
    pub exchange: bool,
    /// Leave a whiteout under the old name: a character device 0:0 with this user and group
    /// (`RENAME_WHITEOUT`).
    pub whiteout: Option<(u32, u32)>,
}

/// A name in a directory.
#[derive(Clone, Copy, Debug)]
struct Place<'a> {
    dir: &'a Arc<InodeEntry>,
    name: &'a [u8],
}

impl<'a> Place<'a> {
    fn ino(&self) -> Ino {
        Ino(self.dir.id.ino)
    }

    /// Returns this name as one side of an exchange.
    fn side(&self, found: &FoundEntry, old_target: OldTarget, index: u64) -> Exchanged<'a> {
        let target = Target::Inode(Ino(found.entry.id.ino));
        let found = Found { target, kind: found.kind };
        Exchanged { dir: self.ino(), name: self.name, found, old_target, index }
    }
}

/// How both names are referred to before a rename.
struct OldTargets {
    from: OldTarget,
    to: Option<(OldTarget, Backref)>,
}

/// A rename with all inodes looked up and locked.
struct Renaming<'a> {
    filesystem: &'a Filesystem,
    write_state: &'a WriteState,
    subvolume: &'a WritableSubvolume,
    from: Place<'a>,
    to: Place<'a>,
    moved: &'a FoundEntry,
    victim: Option<&'a FoundEntry>,
}

impl Filesystem {
    /// Moves the name `from.1` in directory `from.0` to `to`, replacing an entry there unless
    /// `flags` say otherwise. Does nothing if both are names of one inode.
    ///
    /// # Errors
    /// [`Error::NotFound`], also for a stale name; [`Error::Exists`] with `no_replace`;
    /// [`Error::NotEmpty`]; [`Error::IsDirectory`]; [`Error::NotDirectory`];
    /// [`Error::CrossesSubvolumes`];
    /// [`Error::InvalidArgument`] for a directory that would become its own descendant and for
    /// flags that exclude each other; [`Error::NotPermitted`]; [`Error::Unsupported`] for an
    /// exchange with the entry of a subvolume in a snapshot.
    ///
    /// The rename of a subvolume is durable when this returns. It may cross subvolumes, as may an
    /// exchange of two subvolumes. No subvolume is replaced: that is [`Error::NotEmpty`].
    pub fn rename(
        &self,
        from: (FileId, &[u8]),
        to: (FileId, &[u8]),
        flags: RenameFlags,
    ) -> Result<()> {
        let _timed = self.timed(Operation::Rename);
        let rename = || self.with_quota_room(to.0.subvolume, || self.rename_inode(from, to, flags));
        match rename() {
            Err(error @ (Error::CrossesSubvolumes | Error::Unsupported { .. })) => {
                let of_subvolume = || self.rename_subvolume(from, to, flags);
                if self.with_quota_room(to.0.subvolume, of_subvolume)? {
                    return Ok(());
                }
                // The names of one subvolume lead to inodes of it by now.
                if let Error::Unsupported { .. } = error { rename() } else { Err(error) }
            }
            renamed => renamed,
        }
    }

    /// Returns what the VFS answers before it asks whether the subvolume may change, if it does: a
    /// rename of one inode to itself succeeds in a read-only subvolume.
    fn rename_nothing(
        &self,
        from: (FileId, &[u8]),
        to: (FileId, &[u8]),
        flags: RenameFlags,
    ) -> Option<Result<()>> {
        let moved = match self.lookup(from.0, from.1) {
            Ok(moved) => moved,
            Err(error) => return Some(Err(error)),
        };
        match self.lookup(to.0, to.1) {
            Ok(_) if flags.no_replace => Some(Err(Error::Exists)),
            Ok(victim) if victim == moved => Some(Ok(())),
            Err(Error::NotFound) if flags.exchange => Some(Err(Error::NotFound)),
            Ok(_) | Err(_) => None,
        }
    }

    /// Renames anything but a subvolume.
    fn rename_inode(
        &self,
        from: (FileId, &[u8]),
        to: (FileId, &[u8]),
        flags: RenameFlags,
    ) -> Result<()> {
        let writing = self.begin()?;
        let write_state = &*writing;
        check_name(from.1)?;
        if flags.exchange && (flags.no_replace || flags.whiteout.is_some()) {
            return Err(Error::InvalidArgument { what: "an exchange excludes the other flags" });
        }
        let subvolume = match self.writable_subvolume(write_state, from.0) {
            Err(error @ Error::ReadOnly { .. }) => {
                return self.rename_nothing(from, to, flags).unwrap_or(Err(error));
            }
            subvolume => subvolume?,
        };
        let (from_dir, to_dir) =
            (self.entry_of(write_state, from.0)?, self.entry_of(write_state, to.0)?);
        if from.0.subvolume != to.0.subvolume {
            self.writable_subvolume(write_state, to.0)?;
            return Err(Error::CrossesSubvolumes);
        }
        let is_across = from.0 != to.0;
        let alone = is_across.then(|| write_state.lock_renames());
        loop {
            let moved = self.found_entry(write_state, from.0, from.1)?;
            check_name(to.1)?;
            let victim = match self.found_entry(write_state, to.0, to.1) {
                Ok(victim) => Some(victim),
                Err(Error::NotFound) => None,
                Err(error) => return Err(error),
            };
            if let Some(victim) = &victim {
                // A file that replaces another must not be empty after a crash: its data is written
                // first. In an exchange each replaces the other.
                let both = std::iter::once(&moved).chain(flags.exchange.then_some(victim));
                for found in both.filter(|found| write_state.is_dirty(found.entry.id)) {
                    drop(self.write_back_one(write_state, &found.entry, MergeScope::Whole));
                }
            }
            let mut entries: Vec<&InodeEntry> = vec![&from_dir, &to_dir, &moved.entry];
            entries.extend(victim.as_ref().map(|victim| &*victim.entry));
            let mut locked = LockedInodes::lock(&entries);
            let renaming = Renaming {
                filesystem: self,
                write_state,
                subvolume: &subvolume,
                from: Place { dir: &from_dir, name: from.1 },
                to: Place { dir: &to_dir, name: to.1 },
                moved: &moved,
                victim: victim.as_ref(),
            };
            if !renaming.is_unchanged()? {
                continue;
            }
            let fate = renaming.run(&mut locked, flags)?;
            drop(locked);
            drop(alone);
            // A deletion of much data is no part of the operation, and excludes no snapshot.
            drop(writing);
            if let (Some(victim), Fate::Orphan) = (&victim, fate) {
                // If deleting fails, the next open for writing finds the orphan item.
                drop(self.evict_orphan(&victim.entry, EvictBy::Caller));
            }
            return Ok(());
        }
    }
}

impl Renaming<'_> {
    /// Returns whether both names still refer to the inodes that were looked up before locking.
    fn is_unchanged(&self) -> Result<bool> {
        let (subvolume, from, to) = (self.subvolume, self.from, self.to);
        if !still_refers(subvolume, from.dir.id, from.name, self.moved)? {
            return Ok(false);
        }
        let Some(victim) = self.victim else {
            return Ok(names::lookup(&subvolume.tree, to.ino(), to.name)?.is_none());
        };
        match still_refers(subvolume, to.dir.id, to.name, victim) {
            Err(Error::NotFound) => Ok(false),
            so => so,
        }
    }

    /// Renames, and returns what happens to the inode that is replaced.
    fn run(&self, locked: &mut LockedInodes<'_>, flags: RenameFlags) -> Result<Fate> {
        let moved = self.filesystem.attributes(&self.moved.entry)?;
        let victim =
            self.victim.map(|victim| self.filesystem.attributes(&victim.entry)).transpose()?;
        if flags.no_replace && victim.is_some() {
            return Err(Error::Exists);
        }
        if flags.exchange && victim.is_none() {
            return Err(Error::NotFound);
        }
        self.check_ancestry(&moved, victim.as_ref(), flags.exchange)?;
        if self.victim.is_some_and(|victim| victim.entry.id == self.moved.entry.id) {
            return Ok(Fate::Kept);
        }
        let from_dir = self.filesystem.directory_to_change(self.from.dir)?;
        let to_dir = self.filesystem.directory_to_change(self.to.dir)?;
        may_lose_entry(&from_dir, &moved)?;
        if let Some(victim) = &victim {
            may_lose_entry(&to_dir, victim)?;
        }
        let targets = self.old_targets(&moved, victim.as_ref())?;
        if flags.exchange {
            return self.exchange(locked, &targets).map(|()| Fate::Kept);
        }
        let mut fate_of_victim = Fate::Kept;
        if let (Some((inode, found)), Some((_, backref))) =
            (victim.as_ref().zip(self.victim), targets.to)
        {
            let victim = (&*found.entry, &*locked.of(&found.entry), inode);
            let (write_state, subvolume) = (self.write_state, self.subvolume);
            fate_of_victim = fate(write_state, subvolume, victim, backref)?;
            self.may_replace(&moved, inode, (found, fate_of_victim))?;
        }
        self.move_entry(locked, flags, &targets, fate_of_victim)?;
        if let (Some(victim), Fate::Deleted { .. }) = (self.victim, fate_of_victim) {
            self.write_state.forget(&victim.entry, locked.of(&victim.entry));
        }
        Ok(fate_of_victim)
    }

    /// Reads how the inodes refer back to both names.
    fn old_targets(&self, moved: &Inode, victim: Option<&Inode>) -> Result<OldTargets> {
        let read = |place: &Place<'_>, found: &FoundEntry, inode: &Inode| {
            let ino = Ino(found.entry.id.ino);
            let entry = (place.ino(), place.name);
            let backref = names::backref(&self.subvolume.tree, entry, (ino, inode.nlink))?;
            Ok::<_, Error>((backref.target(ino), backref))
        };
        let (from, backref) = read(&self.from, self.moved, moved)?;
        if backref.is_stale() {
            return Err(Error::NotFound);
        }
        let victim = victim.zip(self.victim);
        let to = victim.map(|(inode, found)| read(&self.to, found, inode)).transpose()?;
        Ok(OldTargets { from, to })
    }

    /// Checks law 1.
    fn check_ancestry(&self, moved: &Inode, victim: Option<&Inode>, exchange: bool) -> Result<()> {
        if self.from.dir.id == self.to.dir.id {
            return Ok(());
        }
        let is_below = |place: &Place<'_>, entry: &FoundEntry| {
            is_below(self.subvolume, place.ino(), Ino(entry.entry.id.ino))
        };
        if moved.kind == FileKind::Directory && is_below(&self.to, self.moved)? {
            return Err(Error::InvalidArgument { what: "a directory cannot be below itself" });
        }
        if let Some((victim, found)) = victim.zip(self.victim)
            && victim.kind == FileKind::Directory
            && is_below(&self.from, found)?
        {
            let what = "a directory cannot be below itself";
            return Err(if exchange { Error::InvalidArgument { what } } else { Error::NotEmpty });
        }
        Ok(())
    }

    fn may_replace(
        &self,
        moved: &Inode,
        victim: &Inode,
        (found, fate): (&FoundEntry, Fate),
    ) -> Result<()> {
        match (moved.kind == FileKind::Directory, victim.kind == FileKind::Directory) {
            (true, false) => Err(Error::NotDirectory),
            (false, true) => Err(Error::IsDirectory),
            (false, false) => Ok(()),
            (true, true) if fate == Fate::Untouched => Ok(()),
            (true, true) => require_empty(self.subvolume, &found.entry, victim),
        }
    }

    /// Moves the entry, and advances the next index of both directories.
    fn move_entry(
        &self,
        locked: &mut LockedInodes<'_>,
        flags: RenameFlags,
        targets: &OldTargets,
        fate: Fate,
    ) -> Result<()> {
        let (filesystem, subvolume) = (self.filesystem, self.subvolume);
        let to_index = next_index(subvolume, self.to.dir, locked.of(self.to.dir))?;
        locked.of(self.to.dir).next_index = to_index.checked_add(1);
        let whiteout = match flags.whiteout {
            Some(owner) => Some(self.whiteout(locked, owner)?),
            None => None,
        };
        let mut inodes = self.all_inodes(fate)?;
        let more = whiteout.as_ref().map_or(0, |_| ITEMS_OF_CREATION);
        let need = Need::items(ITEMS_OF_RENAME + more + fate.data_items());
        let need = if self.victim.is_some() { need.deleting() } else { need };
        let entry =
            whiteout.as_ref().map(|(prepared, _)| prepared.entry(self.write_state, subvolume));
        let mut new_state = entry.as_ref().map(|entry| entry.lock_nested());
        let moved = filesystem.change(self.write_state, subvolume, need, |change| {
            let ino = Ino(self.moved.entry.id.ino);
            let found = Found { target: Target::Inode(ino), kind: self.moved.kind };
            let generation = change.moment.generation;
            let (dir, name) = (self.from.ino(), self.from.name);
            let step = Move {
                from: OldName { dir, name, target: targets.from },
                to: self.new_name(found, to_index, generation),
                replaces: targets.to.map(|(target, _)| target),
            };
            change.step(names::rename(&change.edit, &step))?;
            self.update_inodes(change, &mut inodes, fate)?;
            let Some(((prepared, index), entry)) = whiteout.as_ref().zip(entry.as_ref()) else {
                return Ok(());
            };
            let inode = prepared.inode(&inodes.from_dir, change.moment);
            entry.set(inode);
            let found = Found { target: Target::Inode(prepared.ino), kind: FileKind::CharDevice };
            let new = NewName { dir, name, index: *index, found, generation };
            change.step(names::create(&change.edit, &new, prepared.ino, &inode))?;
            prepared.write_items(change)?;
            names::entry_added(&mut inodes.from_dir, name, change.moment);
            change.put(dir, &inodes.from_dir)
        });
        if let (Err(_), Some((entry, new_state))) = (&moved, entry.as_ref().zip(new_state.as_mut()))
        {
            self.write_state.forget(entry, new_state);
        }
        moved?;
        self.publish(&inodes);
        Ok(())
    }

    /// Prepares the whiteout; returns it with its index.
    fn whiteout(
        &self,
        locked: &mut LockedInodes<'_>,
        (uid, gid): (u32, u32),
    ) -> Result<(Prepared<'static>, u64)> {
        let (filesystem, dir) = (self.filesystem, self.from.dir);
        let inode = filesystem.attributes(dir)?;
        let state = locked.of(dir);
        let index = next_index(self.subvolume, dir, state)?;
        state.next_index = index.checked_add(1);
        let new = NewInode { permissions: 0, umask: 0, uid, gid };
        let spec = InodeSpec::of(FileKind::CharDevice);
        let parent = (self.from.ino(), &inode);
        Ok((Prepared::new(self.subvolume, parent, state, (&new, &spec))?, index))
    }

    fn new_name(
        &self,
        found: Found,
        index: u64,
        generation: butternut_format::units::Generation,
    ) -> NewName<'_> {
        NewName { dir: self.to.ino(), name: self.to.name, index, found, generation }
    }

    fn exchange(&self, locked: &mut LockedInodes<'_>, targets: &OldTargets) -> Result<()> {
        let (filesystem, subvolume) = (self.filesystem, self.subvolume);
        let Some((victim, (to_target, backref))) = self.victim.zip(targets.to) else {
            return Err(Error::NotFound);
        };
        if backref.is_stale() {
            return Err(Error::NotFound);
        }
        let mut index = |place: &Place<'_>| {
            let state = locked.of(place.dir);
            let index = next_index(subvolume, place.dir, state)?;
            state.next_index = index.checked_add(1);
            Ok::<u64, Error>(index)
        };
        let (to_index, from_index) = (index(&self.to)?, index(&self.from)?);
        let one = self.from.side(self.moved, targets.from, from_index);
        let other = self.to.side(victim, to_target, to_index);
        let mut inodes = self.all_inodes(Fate::Kept)?;
        let need = Need::items(ITEMS_OF_RENAME);
        filesystem.change(self.write_state, subvolume, need, |change| {
            let generation = change.moment.generation;
            change.step(names::exchange(&change.edit, &one, &other, generation))?;
            inodes.touch_dirs(change);
            names::changed(&mut inodes.moved, change.moment);
            if let Some(victim) = &mut inodes.victim {
                names::changed(victim, change.moment);
            }
            self.put_all(change, &inodes)
        })?;
        self.publish(&inodes);
        Ok(())
    }

    fn all_inodes(&self, fate: Fate) -> Result<AllInodes> {
        let victim = self.victim.filter(|_| fate != Fate::Untouched);
        let attributes = |entry: &InodeEntry| self.filesystem.attributes(entry);
        Ok(AllInodes {
            from_dir: attributes(self.from.dir)?,
            to_dir: (self.from.dir.id != self.to.dir.id)
                .then(|| attributes(self.to.dir))
                .transpose()?,
            moved: attributes(&self.moved.entry)?,
            victim: victim.map(|victim| attributes(&victim.entry)).transpose()?,
        })
    }

    /// Updates sizes, link counts and times after the entry moved, and writes all inodes.
    fn update_inodes(&self, change: &Change<'_>, inodes: &mut AllInodes, fate: Fate) -> Result<()> {
        let moment = change.moment;
        names::entry_removed(&mut inodes.from_dir, self.from.name, moment);
        let to_dir = inodes.to_dir.as_mut().unwrap_or(&mut inodes.from_dir);
        if self.victim.is_some() {
            names::entry_removed(to_dir, self.to.name, moment);
        }
        names::entry_added(to_dir, self.to.name, moment);
        names::changed(&mut inodes.moved, moment);
        if let (Some(inode), Some(victim)) = (&mut inodes.victim, self.victim) {
            change.remove_link(Ino(victim.entry.id.ino), inode, fate)?;
        }
        let rest = AllInodes { victim: None, ..*inodes };
        self.put_all(change, &rest)
    }

    fn put_all(&self, change: &Change<'_>, inodes: &AllInodes) -> Result<()> {
        change.put(self.from.ino(), &inodes.from_dir)?;
        if let Some(to_dir) = &inodes.to_dir {
            change.put(self.to.ino(), to_dir)?;
        }
        change.put(Ino(self.moved.entry.id.ino), &inodes.moved)?;
        if let Some((inode, victim)) = inodes.victim.as_ref().zip(self.victim) {
            change.put(Ino(victim.entry.id.ino), inode)?;
        }
        Ok(())
    }

    fn publish(&self, inodes: &AllInodes) {
        self.from.dir.set(inodes.from_dir);
        if let Some(to_dir) = inodes.to_dir {
            self.to.dir.set(to_dir);
        }
        self.moved.entry.set(inodes.moved);
        if let Some((inode, victim)) = inodes.victim.zip(self.victim) {
            victim.entry.set(inode);
        }
    }
}

/// The inode items of a rename.
struct AllInodes {
    from_dir: Inode,
    /// `None` if it is the same directory.
    to_dir: Option<Inode>,
    moved: Inode,
    /// `None` also if its item stays as it is.
    victim: Option<Inode>,
}

impl AllInodes {
    fn touch_dirs(&mut self, change: &Change<'_>) {
        for dir in std::iter::once(&mut self.from_dir).chain(&mut self.to_dir) {
            dir.mtime = change.moment.now;
            names::changed(dir, change.moment);
        }
    }
}

/// Returns whether `below` is `above` or a descendant of it. Moves between directories are locked
/// out.
pub(crate) fn is_below(subvolume: &WritableSubvolume, below: Ino, above: Ino) -> Result<bool> {
    let mut budget = PathBudget::new(PATH_STEPS_MAX);
    let mut at = below;
    while at != above {
        budget.step()?;
        match names::first_link(&subvolume.tree, at)? {
            Some(link) if link.parent != at => at = link.parent,
            _ => return Ok(false),
        }
    }
    Ok(true)
}
