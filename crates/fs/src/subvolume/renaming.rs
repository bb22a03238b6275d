//! [`Renaming`]: the commit of a rename with subvolumes, which has been checked (`rename`).

use crate::change::put_attributes;
use crate::inode::new_inode::{InodeSpec, NewInode, Prepared};
use crate::inode::table::{InodeEntry, LockedInodes};
use crate::names::rename::RenameFlags;
use crate::names::unlink::{Fate, FoundEntry};
use crate::write_state::{WritableSubvolume, WriteState};
use crate::{Error, FileId, FileKind, Filesystem, Result};
use butternut_format::inode::Inode;
use butternut_format::root_ref::RootRef;
use butternut_format::units::{Ino, TreeId};
use butternut_names::{
    self as names, Exchanged, Found, Moment, Move, NewName, OldName, OldTarget, SubvolumePair,
    Target,
};
use butternut_tree::{AtCommit, ReservationLevel, TreeEdit};
use std::sync::Arc;

/// What a name refers to.
#[derive(Debug)]
pub(crate) enum Item {
    Subvolume(TreeId),
    Placeholder,
    Inode(FoundEntry),
}

impl Item {
    pub(crate) fn found(&self) -> Option<&FoundEntry> {
        match self {
            Self::Inode(found) => Some(found),
            Self::Subvolume(_) | Self::Placeholder => None,
        }
    }

    pub(crate) fn kind(&self) -> FileKind {
        self.found().map_or(FileKind::Directory, |found| found.kind)
    }

    /// Returns what an entry of it has; `None` for a placeholder, which is never moved.
    fn entry(&self) -> Option<Found> {
        let target = match self {
            Self::Subvolume(id) => Target::Subvolume(*id),
            Self::Inode(found) => Target::Inode(Ino(found.entry.id.ino)),
            Self::Placeholder => return None,
        };
        Some(Found { target, kind: self.kind() })
    }
}

/// One of both names.
#[derive(Debug)]
pub(crate) struct Side<'a> {
    pub(crate) at: (FileId, &'a [u8]),
    pub(crate) subvolume: Arc<WritableSubvolume>,
    pub(crate) dir: Arc<InodeEntry>,
    /// What the name refers to before the rename.
    pub(crate) item: Option<Item>,
}

impl<'a> Side<'a> {
    fn dir_ino(&self) -> Ino {
        Ino(self.at.0.ino)
    }

    fn name(&self) -> &'a [u8] {
        self.at.1
    }

    fn new_name(&self, found: Found, index: u64, moment: Moment) -> NewName<'a> {
        let (dir, name, generation) = (self.dir_ino(), self.name(), moment.generation);
        NewName { dir, name, index, found, generation }
    }

    fn exchanged(&self, found: Found, old_target: OldTarget, index: u64) -> Exchanged<'a> {
        Exchanged { dir: self.dir_ino(), name: self.name(), found, old_target, index }
    }
}

/// A rename with everything checked and read.
pub(crate) struct Renaming<'a> {
    pub(crate) filesystem: &'a Filesystem,
    pub(crate) write_state: &'a WriteState,
    pub(crate) from: &'a Side<'a>,
    pub(crate) to: &'a Side<'a>,
    pub(crate) flags: RenameFlags,
    /// How the items refer back to their names.
    pub(crate) from_target: OldTarget,
    pub(crate) to_target: Option<OldTarget>,
    /// The next index of each directory. That of the first is for an exchange or a whiteout.
    pub(crate) indices: (u64, u64),
    /// What happens to what is replaced.
    pub(crate) fate: Fate,
    /// The directories; `None` for the second one if it is the first.
    pub(crate) dirs: (Inode, Option<Inode>),
    /// What is moved, and what is replaced or exchanged with it.
    pub(crate) inodes: (Option<Inode>, Option<Inode>),
}

impl Renaming<'_> {
    /// Renames in a commit, and returns what has happened to the inode that was replaced.
    pub(crate) fn run(mut self, locked: &mut LockedInodes<'_>) -> Result<Fate> {
        let whiteout = self.prepare_whiteout(locked)?;
        let now = self.write_state.clock.now();
        let forest = self.filesystem.forest();
        forest.commit_with(ReservationLevel::Normal, |at_commit| -> Result<()> {
            let moment = Moment { generation: at_commit.generation(), now };
            if self.flags.exchange {
                self.exchange(at_commit, moment)
            } else {
                self.move_entry(at_commit, moment, whiteout.as_ref())
            }
        })?;
        self.publish(locked);
        Ok(self.fate)
    }

    fn prepare_whiteout(&self, locked: &mut LockedInodes<'_>) -> Result<Option<Prepared<'static>>> {
        let Some((uid, gid)) = self.flags.whiteout else { return Ok(None) };
        let new = NewInode { permissions: 0, umask: 0, uid, gid };
        let spec = InodeSpec::of(FileKind::CharDevice);
        let parent = (self.from.dir_ino(), &self.dirs.0);
        let state = locked.of(&self.from.dir);
        Prepared::new(&self.from.subvolume, parent, state, (&new, &spec)).map(Some)
    }

    /// Moves the entry of what is moved, over what is replaced.
    fn move_entry(
        &mut self,
        at_commit: &AtCommit<'_>,
        moment: Moment,
        whiteout: Option<&Prepared<'_>>,
    ) -> Result<()> {
        let (from, to) = (self.from, self.to);
        let source = at_commit.tree(from.subvolume.id)?;
        let old = OldName { dir: from.dir_ino(), name: from.name(), target: self.from_target };
        let moved = entry_of(from)?;
        let new = to.new_name(moved, self.indices.1, moment);
        if let Target::Subvolume(id) = moved.target {
            let _moving = self.filesystem.shared.exchanges.begin();
            names::unlink(&source, &old)?;
            move_reference(at_commit, id, (from, to), self.indices.1)?;
            let target = at_commit.tree(to.subvolume.id)?;
            match self.to_target {
                None => names::link(&target, &new)?,
                Some(replaced) => names::replace(&target, &new, replaced)?,
            }
        } else {
            names::rename(&source, &Move { from: old, to: new, replaces: self.to_target })?;
        }
        let target = at_commit.tree(to.subvolume.id)?;
        names::entry_removed(&mut self.dirs.0, from.name(), moment);
        let to_dir = self.dirs.1.as_mut().unwrap_or(&mut self.dirs.0);
        if self.to_target.is_some() {
            names::entry_removed(to_dir, to.name(), moment);
        }
        names::entry_added(to_dir, to.name(), moment);
        self.change_moved(&source, moment)?;
        self.remove_victim(&target, moment)?;
        if let Some(whiteout) = whiteout {
            self.leave(&source, whiteout, moment)?;
        }
        self.put_dirs(&source, &target)
    }

    /// Inserts the whiteout under the old name.
    fn leave(&mut self, edit: &TreeEdit<'_>, new: &Prepared<'_>, moment: Moment) -> Result<()> {
        let inode = new.inode(&self.dirs.0, moment);
        let found = Found { target: Target::Inode(new.ino), kind: FileKind::CharDevice };
        let name = self.from.new_name(found, self.indices.0, moment);
        names::create(edit, &name, new.ino, &inode)?;
        new.put_items(edit, moment.generation)?;
        names::entry_added(&mut self.dirs.0, self.from.name(), moment);
        Ok(())
    }

    /// Exchanges the targets of both entries.
    fn exchange(&mut self, at_commit: &AtCommit<'_>, moment: Moment) -> Result<()> {
        let (from, to) = (self.from, self.to);
        let (moved, other) = (entry_of(from)?, entry_of(to)?);
        let to_target = self.to_target.ok_or(Error::NotFound)?;
        let source = at_commit.tree(from.subvolume.id)?;
        let target = at_commit.tree(to.subvolume.id)?;
        let exchanging = self.filesystem.shared.exchanges.begin();
        if from.subvolume.id == to.subvolume.id {
            let one = from.exchanged(moved, self.from_target, self.indices.0);
            let two = to.exchanged(other, to_target, self.indices.1);
            names::exchange(&source, &one, &two, moment.generation)?;
        } else {
            let here = from.new_name(other, self.indices.0, moment);
            names::replace(&source, &here, self.from_target)?;
            let there = to.new_name(moved, self.indices.1, moment);
            names::replace(&target, &there, to_target)?;
        }
        if let Target::Subvolume(id) = moved.target {
            move_reference(at_commit, id, (from, to), self.indices.1)?;
        }
        if let Target::Subvolume(id) = other.target {
            move_reference(at_commit, id, (to, from), self.indices.0)?;
        }
        drop(exchanging);
        self.change_moved(&source, moment)?;
        if let (Some(Item::Inode(found)), Some(inode)) = (&to.item, &mut self.inodes.1) {
            names::changed(inode, moment);
            put_attributes(&target, Ino(found.entry.id.ino), inode)?;
        }
        for dir in std::iter::once(&mut self.dirs.0).chain(&mut self.dirs.1) {
            dir.mtime = moment.now;
            names::changed(dir, moment);
        }
        self.put_dirs(&source, &target)
    }

    /// Writes the inode that is moved. The root directory of a subvolume stays as it is.
    fn change_moved(&mut self, edit: &TreeEdit<'_>, moment: Moment) -> Result<()> {
        if let (Some(Item::Inode(found)), Some(inode)) = (&self.from.item, &mut self.inodes.0) {
            names::changed(inode, moment);
            put_attributes(edit, Ino(found.entry.id.ino), inode)?;
        }
        Ok(())
    }

    /// Removes a link of the directory that is replaced.
    fn remove_victim(&mut self, edit: &TreeEdit<'_>, moment: Moment) -> Result<()> {
        let (Some(Item::Inode(found)), Some(inode)) = (&self.to.item, &mut self.inodes.1) else {
            return Ok(());
        };
        let ino = Ino(found.entry.id.ino);
        if self.fate == Fate::Untouched {
            return Ok(());
        }
        names::link_removed(inode, moment);
        inode.size = 0;
        match self.fate {
            Fate::Deleted { .. } => {
                names::remove_inode(edit, ino, inode.kind, &mut |_, _| {})?;
            }
            Fate::Orphan => {
                names::add_orphan(edit, ino)?;
                put_attributes(edit, ino, inode)?;
            }
            Fate::Kept | Fate::Untouched => put_attributes(edit, ino, inode)?,
        }
        Ok(())
    }

    fn put_dirs(&self, source: &TreeEdit<'_>, target: &TreeEdit<'_>) -> Result<()> {
        names::put_inode(source, self.from.dir_ino(), &self.dirs.0)?;
        if let Some(to_dir) = &self.dirs.1 {
            names::put_inode(target, self.to.dir_ino(), to_dir)?;
        }
        Ok(())
    }

    /// Makes the table's entries have what was committed.
    fn publish(&self, locked: &mut LockedInodes<'_>) {
        self.from.dir.set(self.dirs.0);
        if let Some(to_dir) = self.dirs.1 {
            self.to.dir.set(to_dir);
        }
        for (side, inode) in [(self.from, self.inodes.0), (self.to, self.inodes.1)] {
            if let (Some(Item::Inode(found)), Some(inode)) = (&side.item, inode) {
                found.entry.set(inode);
            }
        }
        let victim = self.to.item.as_ref().and_then(Item::found);
        if let (Some(victim), Fate::Deleted { .. }) = (victim, self.fate) {
            self.write_state.forget(&victim.entry, locked.of(&victim.entry));
        }
    }
}

/// Makes the references of a subvolume those of its new place.
fn move_reference(
    at_commit: &AtCommit<'_>,
    child: TreeId,
    (from, to): (&Side<'_>, &Side<'_>),
    index: u64,
) -> Result<()> {
    let roots = at_commit.tree(TreeId::ROOT)?;
    let reference = RootRef { dir: to.dir_ino(), index, name: to.name() };
    names::put_root_ref(&roots, SubvolumePair { child, parent: to.subvolume.id }, &reference)?;
    if from.subvolume.id != to.subvolume.id {
        let pair = SubvolumePair { child, parent: from.subvolume.id };
        names::remove_root_ref(&roots, pair)?;
    }
    Ok(())
}

/// Returns what the entry of a side has.
fn entry_of(side: &Side<'_>) -> Result<Found> {
    side.item.as_ref().and_then(Item::entry).ok_or(Error::NotFound)
}
