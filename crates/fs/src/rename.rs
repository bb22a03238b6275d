//! Moving names: within a directory, across directories, over others, in exchange, with a whiteout
//! left behind.
//!
//! Laws:
//!
//! 1. A directory never gets below itself: what moves between directories moves one at a time, and
//!    the way up from the new place is walked before.
//! 2. At every moment the name at the new place leads somewhere: to what was there, or to what
//!    moved.

use crate::change::Change;
use crate::create::check_name;
use crate::held::forget;
use crate::inode_table::{Bodies, InodeEntry};
use crate::latency::Operation;
use crate::new_inode::{ITEMS_OF_CREATION, Made, NewInode, Prepared, next_index};
use crate::unlink::{Fate, FoundEntry, fate, may_lose_entry, require_empty, still_leads};
use crate::writer::{WritableSubvolume, Writer};
use crate::{Error, FileId, FileKind, Filesystem, Result};
use butternut_format::inode::Inode;
use butternut_format::units::Ino;
use butternut_names::{
    self as names, Climb, Exchanged, Found, Leads, Move, NewName, OldName, Target,
};
use butternut_tree::Need;
use std::sync::Arc;

/// Items that a rename may change: four of entries, three references, four inodes, an orphan's, and
/// what goes with the inode that is replaced.
const ITEMS_OF_RENAME: u32 = 18;

/// Directories above one another that are walked.
const CLIMB_STEPS_MAX: usize = 1 << 16;

/// How to rename.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RenameFlags {
    /// Fail where the new name is there.
    pub no_replace: bool,
    /// Both names must be there, and change places.
    pub exchange: bool,
    /// Leave a whiteout under the old name: a character device 0:0, of this user and group.
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

    /// This name in an exchange.
    fn side(&self, found: &FoundEntry, index: u64) -> Exchanged<'a> {
        let target = Target::Inode(Ino(found.entry.id.ino));
        let found = Found { target, kind: found.kind };
        Exchanged { dir: self.ino(), name: self.name, found, subvolume_index: 0, index }
    }
}

/// A rename with everything in hand and locked.
struct Renaming<'a> {
    filesystem: &'a Filesystem,
    writer: &'a Writer,
    subvolume: &'a WritableSubvolume,
    from: Place<'a>,
    to: Place<'a>,
    moved: &'a FoundEntry,
    victim: Option<&'a FoundEntry>,
}

impl Filesystem {
    /// Moves the name `from.1` in directory `from.0` to `to`, over what is there, unless `flags`
    /// say otherwise. Two names of one inode: nothing happens.
    ///
    /// # Errors
    /// [`Error::NotFound`], [`Error::Exists`] under `no_replace`, [`Error::NotEmpty`],
    /// [`Error::IsDirectory`], [`Error::NotDirectory`], [`Error::CrossesSubvolumes`],
    /// [`Error::InvalidArgument`] for a directory that would get below itself and for flags that
    /// exclude each other, [`Error::NotPermitted`], [`Error::Unsupported`] for a subvolume.
    pub fn rename(
        &self,
        from: (FileId, &[u8]),
        to: (FileId, &[u8]),
        flags: RenameFlags,
    ) -> Result<()> {
        let _timed = self.timed(Operation::Rename);
        let writer = self.begin()?;
        check_name(from.1)?;
        if flags.exchange && (flags.no_replace || flags.whiteout.is_some()) {
            return Err(Error::InvalidArgument { what: "an exchange excludes the other flags" });
        }
        let subvolume = self.writable_subvolume(writer, from.0)?;
        let (from_dir, to_dir) = (self.entry_of(writer, from.0)?, self.entry_of(writer, to.0)?);
        if from.0.subvolume != to.0.subvolume {
            return Err(Error::CrossesSubvolumes);
        }
        let is_across = from.0 != to.0;
        let _alone = is_across.then(|| writer.lock_renames());
        loop {
            let moved = self.found_entry(writer, from.0, from.1)?;
            check_name(to.1)?;
            let victim = match self.found_entry(writer, to.0, to.1) {
                Ok(victim) => Some(victim),
                Err(Error::NotFound) => None,
                Err(error) => return Err(error),
            };
            if victim.is_some() && writer.is_dirty(moved.entry.id) {
                // Whoever replaces a file by a new one must not find it empty after a crash.
                drop(self.write_back_one(writer, &moved.entry));
            }
            let mut entries: Vec<&InodeEntry> = vec![&from_dir, &to_dir, &moved.entry];
            entries.extend(victim.as_ref().map(|victim| &*victim.entry));
            let mut bodies = Bodies::lock(&entries);
            let renaming = Renaming {
                filesystem: self,
                writer,
                subvolume: &subvolume,
                from: Place { dir: &from_dir, name: from.1 },
                to: Place { dir: &to_dir, name: to.1 },
                moved: &moved,
                victim: victim.as_ref(),
            };
            if !renaming.is_still_so()? {
                continue;
            }
            let fate = renaming.run(&mut bodies, flags)?;
            drop(bodies);
            if let (Some(victim), Fate::Orphan) = (&victim, fate) {
                // What cannot be deleted now has its orphan item, and is found again.
                drop(self.bury(&victim.entry));
            }
            return Ok(());
        }
    }
}

impl Renaming<'_> {
    /// Whether both names lead where they did before the locks were had.
    fn is_still_so(&self) -> Result<bool> {
        let (subvolume, from, to) = (self.subvolume, self.from, self.to);
        if !still_leads(subvolume, from.dir.id, from.name, self.moved)? {
            return Ok(false);
        }
        let Some(victim) = self.victim else {
            return Ok(names::lookup(&subvolume.tree, to.ino(), to.name)?.is_none());
        };
        match still_leads(subvolume, to.dir.id, to.name, victim) {
            Err(Error::NotFound) => Ok(false),
            so => so,
        }
    }

    /// Says what becomes of the inode at the new place.
    fn run(&self, bodies: &mut Bodies<'_>, flags: RenameFlags) -> Result<Fate> {
        let moved = self.filesystem.facts(&self.moved.entry)?;
        let victim = self.victim.map(|victim| self.filesystem.facts(&victim.entry)).transpose()?;
        if flags.no_replace && victim.is_some() {
            return Err(Error::Exists);
        }
        if flags.exchange && victim.is_none() {
            return Err(Error::NotFound);
        }
        self.stay_a_tree(&moved, victim.as_ref(), flags.exchange)?;
        if self.victim.is_some_and(|victim| victim.entry.id == self.moved.entry.id) {
            return Ok(Fate::Stays);
        }
        let from_dir = self.filesystem.directory_to_change(self.from.dir)?;
        let to_dir = self.filesystem.directory_to_change(self.to.dir)?;
        may_lose_entry(&from_dir, &moved)?;
        if let Some(victim) = &victim {
            may_lose_entry(&to_dir, victim)?;
        }
        if flags.exchange {
            return self.exchange(bodies).map(|()| Fate::Stays);
        }
        let mut fate_of_victim = Fate::Stays;
        if let Some((inode, found)) = victim.as_ref().zip(self.victim) {
            self.may_replace(&moved, inode, found)?;
            fate_of_victim = fate(&found.entry, bodies.of(&found.entry), inode);
        }
        self.move_entry(bodies, flags, fate_of_victim)?;
        if let (Some(victim), Fate::Goes { .. }) = (self.victim, fate_of_victim) {
            forget(self.writer, &victim.entry, bodies.of(&victim.entry));
        }
        Ok(fate_of_victim)
    }

    /// Law 1.
    fn stay_a_tree(&self, moved: &Inode, victim: Option<&Inode>, exchange: bool) -> Result<()> {
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

    fn may_replace(&self, moved: &Inode, victim: &Inode, found: &FoundEntry) -> Result<()> {
        match (moved.kind == FileKind::Directory, victim.kind == FileKind::Directory) {
            (true, false) => Err(Error::NotDirectory),
            (false, true) => Err(Error::IsDirectory),
            (false, false) => Ok(()),
            (true, true) => require_empty(self.subvolume, &found.entry, victim),
        }
    }

    /// Moves the entry; the indexes that it takes are then known to the directories.
    fn move_entry(&self, bodies: &mut Bodies<'_>, flags: RenameFlags, fate: Fate) -> Result<()> {
        let (filesystem, subvolume) = (self.filesystem, self.subvolume);
        let to_index = next_index(subvolume, self.to.dir, bodies.of(self.to.dir))?;
        bodies.of(self.to.dir).next_index = to_index.checked_add(1);
        let whiteout = match flags.whiteout {
            Some(owner) => Some(self.whiteout(bodies, owner)?),
            None => None,
        };
        let mut facts = self.all_facts()?;
        let more = whiteout.as_ref().map_or(0, |_| ITEMS_OF_CREATION);
        let need = Need::items(ITEMS_OF_RENAME + more + fate.data_items());
        let need = if self.victim.is_some() { need.deleting() } else { need };
        let entry = whiteout.as_ref().map(|(made, _)| made.entry(self.writer, subvolume));
        let mut own = entry.as_ref().map(|entry| entry.body_mut());
        let moved = filesystem.change(self.writer, subvolume, need, |change| {
            let ino = Ino(self.moved.entry.id.ino);
            let leads = Found { target: Target::Inode(ino), kind: self.moved.kind };
            let generation = change.moment.generation;
            let replaces = self.victim.map(|victim| Leads::Inode(Ino(victim.entry.id.ino)));
            let (dir, name) = (self.from.ino(), self.from.name);
            let step = Move {
                from: OldName { dir, name, leads: Leads::Inode(ino) },
                to: self.new_name(leads, to_index, generation),
                replaces,
            };
            names::rename(&change.edit, &step)?;
            self.stamp(change, &mut facts, fate)?;
            let Some(((prepared, index), entry)) = whiteout.as_ref().zip(entry.as_ref()) else {
                return Ok(());
            };
            let inode = prepared.inode(&facts.from_dir, change);
            entry.set(inode);
            let leads = Found { target: Target::Inode(prepared.ino), kind: FileKind::CharDevice };
            let new = NewName { dir, name, index: *index, leads, generation };
            change.must(names::create(&change.edit, &new, prepared.ino, &inode))?;
            prepared.finish(change)?;
            names::entry_added(&mut facts.from_dir, name, change.moment);
            change.put(dir, &facts.from_dir)
        });
        if let (Err(_), Some((entry, own))) = (&moved, entry.as_ref().zip(own.as_mut())) {
            forget(self.writer, entry, own);
        }
        moved?;
        self.publish(&facts);
        Ok(())
    }

    /// The whiteout to be made, and its index.
    fn whiteout(
        &self,
        bodies: &mut Bodies<'_>,
        (uid, gid): (u32, u32),
    ) -> Result<(Prepared<'static>, u64)> {
        let (filesystem, dir) = (self.filesystem, self.from.dir);
        let inode = filesystem.facts(dir)?;
        let body = bodies.of(dir);
        let index = next_index(self.subvolume, dir, body)?;
        body.next_index = index.checked_add(1);
        let new = NewInode { permissions: 0, umask: 0, uid, gid };
        let made = Made::of(FileKind::CharDevice);
        let parent = (self.from.ino(), &inode);
        Ok((Prepared::new(self.subvolume, parent, body, (&new, &made))?, index))
    }

    fn new_name(
        &self,
        leads: Found,
        index: u64,
        generation: butternut_format::units::Generation,
    ) -> NewName<'_> {
        NewName { dir: self.to.ino(), name: self.to.name, index, leads, generation }
    }

    fn exchange(&self, bodies: &mut Bodies<'_>) -> Result<()> {
        let (filesystem, subvolume) = (self.filesystem, self.subvolume);
        let Some(victim) = self.victim else { return Err(Error::NotFound) };
        let mut index = |place: &Place<'_>| {
            let body = bodies.of(place.dir);
            let index = next_index(subvolume, place.dir, body)?;
            body.next_index = index.checked_add(1);
            Ok::<u64, Error>(index)
        };
        let (to_index, from_index) = (index(&self.to)?, index(&self.from)?);
        let one = self.from.side(self.moved, from_index);
        let other = self.to.side(victim, to_index);
        let mut facts = self.all_facts()?;
        let need = Need::items(ITEMS_OF_RENAME);
        filesystem.change(self.writer, subvolume, need, |change| {
            names::exchange(&change.edit, &one, &other, change.moment.generation)?;
            facts.touch_dirs(change);
            names::changed(&mut facts.moved, change.moment);
            if let Some(victim) = &mut facts.victim {
                names::changed(victim, change.moment);
            }
            self.put_all(change, &facts)
        })?;
        self.publish(&facts);
        Ok(())
    }

    fn all_facts(&self) -> Result<AllFacts> {
        let facts = |entry: &InodeEntry| self.filesystem.facts(entry);
        Ok(AllFacts {
            from_dir: facts(self.from.dir)?,
            to_dir: (self.from.dir.id != self.to.dir.id).then(|| facts(self.to.dir)).transpose()?,
            moved: facts(&self.moved.entry)?,
            victim: self.victim.map(|victim| facts(&victim.entry)).transpose()?,
        })
    }

    /// Counts and stamps after the entry moved, and writes all inodes.
    fn stamp(&self, change: &Change<'_>, facts: &mut AllFacts, fate: Fate) -> Result<()> {
        let moment = change.moment;
        names::entry_removed(&mut facts.from_dir, self.from.name, moment);
        let to_dir = facts.to_dir.as_mut().unwrap_or(&mut facts.from_dir);
        if self.victim.is_some() {
            names::entry_removed(to_dir, self.to.name, moment);
        }
        names::entry_added(to_dir, self.to.name, moment);
        names::changed(&mut facts.moved, moment);
        if let (Some(inode), Some(victim)) = (&mut facts.victim, self.victim) {
            change.lose_name(Ino(victim.entry.id.ino), inode, fate)?;
        }
        let rest = AllFacts { victim: None, ..*facts };
        self.put_all(change, &rest)
    }

    fn put_all(&self, change: &Change<'_>, facts: &AllFacts) -> Result<()> {
        change.put(self.from.ino(), &facts.from_dir)?;
        if let Some(to_dir) = &facts.to_dir {
            change.put(self.to.ino(), to_dir)?;
        }
        change.put(Ino(self.moved.entry.id.ino), &facts.moved)?;
        if let Some((inode, victim)) = facts.victim.as_ref().zip(self.victim) {
            change.put(Ino(victim.entry.id.ino), inode)?;
        }
        Ok(())
    }

    fn publish(&self, facts: &AllFacts) {
        self.from.dir.set(facts.from_dir);
        if let Some(to_dir) = facts.to_dir {
            self.to.dir.set(to_dir);
        }
        self.moved.entry.set(facts.moved);
        if let Some((inode, victim)) = facts.victim.zip(self.victim) {
            victim.entry.set(inode);
        }
    }
}

/// What the inodes of a rename are.
struct AllFacts {
    from_dir: Inode,
    /// `None` where it is the same.
    to_dir: Option<Inode>,
    moved: Inode,
    victim: Option<Inode>,
}

impl AllFacts {
    fn touch_dirs(&mut self, change: &Change<'_>) {
        for dir in std::iter::once(&mut self.from_dir).chain(&mut self.to_dir) {
            dir.mtime = change.moment.now;
            names::changed(dir, change.moment);
        }
    }
}

/// Whether `below` is `above` or somewhere below it. Nothing moves between directories now.
fn is_below(subvolume: &WritableSubvolume, below: Ino, above: Ino) -> Result<bool> {
    let mut climb = Climb::new(CLIMB_STEPS_MAX);
    let mut at = below;
    while at != above {
        climb.step()?;
        match names::first_link(&subvolume.tree, at)? {
            Some(link) if link.parent != at => at = link.parent,
            _ => return Ok(false),
        }
    }
    Ok(true)
}
