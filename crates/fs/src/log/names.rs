//! The names that an fsync logs: those of its inode or of the entries of its directory, and those
//! of every other inode that a replay of these would lose or leave in a wrong place.
//!
//! ```text
//! an inode with changed names     all its references; deletes the names that it has lost
//!   its directories, upward       if they are new or were moved: their names, too
//!   what the last commit or the log has under one of its names or indexes: its names, too
//!   what has a name that it lost: its names, too
//! a deleted inode                 leaves the log, and its names are deleted
//!   what was in this directory    its names, too
//! ```
//!
//! Laws:
//!
//! 1. A replay gives every inode whose names are logged exactly these names: each name that it had
//!    in the last commit, and has no more, is deleted by a range of one index in its directory
//!    (`DIR_LOG_INDEX`).
//! 2. The names of an inode that exists are logged if a replay removes one of them. So a replay
//!    never removes the last name of an inode that exists.
//! 3. A name is logged under a directory that the last commit has, or whose names are logged. The
//!    names of all its ancestors that changed are logged, so a replay makes no directory its own
//!    descendant.
//! 4. All inodes whose names or attributes are read are locked: [`RelatedLog::missing`] returns
//!    those that are not, and the caller begins again.
//! 5. An inode that is logged for its names only has an inode item of generation 0 and size 0: a
//!    replay keeps the item of the last commit. All extended attributes are logged beside any inode
//!    item, and all extents past the end of the file in the last commit, because a replay removes
//!    those that the log lacks.
//! 6. A file under a name or an index that another inode has in the last commit or in the log is
//!    logged only if its contents are in the log, as far as the trees have them; otherwise the
//!    fsync commits. So a crash leaves no file without its contents in place of the other inode.
//! 7. A name is logged only if the last commit and the log have no other name with its hash in its
//!    directory, and its extended reference only if the last commit has no other reference in the
//!    same item, but those that are logged. Names with one hash share an item: those that were
//!    removed since come back in a replay, and the item may be full.
//! 8. A sealed inode is logged only if the last commit has it sealed, and with a name. The log has
//!    no items of fs-verity, and a flag without them makes a file unreadable. An inode without a
//!    name has an orphan item, which a replay keeps: with a name, it means that the seal was not
//!    completed, and the next mount removes the items.
//!
//! Left to others: the contents of the synced inode ([`log`](super)).

use super::extents::extents_past_end;
use super::{Logged, Stop, all_keys, each_item};
use butternut_format::checksum::name_hash;
use butternut_format::dir::DirEntries;
use butternut_format::inode::{FileKind, Inode, InodeFlags, RawInodeItem};
use butternut_format::inode_ref::InodeExtrefs;
use butternut_format::key::{ItemType, Key};
use butternut_format::log_item::RawDirLogItem;
use butternut_format::units::{Ino, TreeId};
use butternut_names::{self as names, Link, Target};
use butternut_tree::{CommitReason, InodeLog, LogEntry, LoggedName, Tree};
use std::collections::{BTreeSet, HashSet};
use zerocopy::{FromBytes, IntoBytes};

/// The most inodes that one fsync logs. With more, a commit is cheaper.
const INODES_MAX: usize = 256;

/// The most names of one inode, or entries of a deleted directory, that are logged.
const NAMES_MAX: usize = 1024;

/// The most ancestors of a directory that are looked at.
const ANCESTORS_MAX: usize = 4096;

/// What of a related inode is logged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Part {
    /// All its names, and that it exists.
    Names,
    /// That it exists: names in it are deleted.
    Existence,
}

/// The log of one inode, and of the inodes that its names are related to.
pub(super) struct RelatedLog<'a> {
    log: &'a InodeLog,
    tree: &'a Tree,
    committed: Tree,
    /// The inode that is synced: its inode item is not logged here.
    synced: u64,
    locked: &'a BTreeSet<u64>,
    missing: BTreeSet<u64>,
    queue: Vec<(u64, Part)>,
    seen: HashSet<(u64, Part)>,
    has_seen_ancestors: HashSet<u64>,
    has_item: HashSet<u64>,
    entry: &'a mut LogEntry,
}

/// The target of an entry of a directory, and its name.
type IndexedName = (Target, Vec<u8>);

fn logged(link: Link) -> LoggedName {
    LoggedName { dir: link.parent.0, index: link.index, name: link.name }
}

impl<'a> RelatedLog<'a> {
    /// Begins to log what an fsync of `synced` needs. `locked` are the inodes that are locked.
    pub(super) fn new(
        log: &'a InodeLog,
        tree: &'a Tree,
        synced: u64,
        locked: &'a BTreeSet<u64>,
        entry: &'a mut LogEntry,
    ) -> Logged<Self> {
        let committed = log.committed_tree(tree.id())?;
        Ok(Self {
            log,
            tree,
            committed,
            synced,
            locked,
            missing: BTreeSet::new(),
            queue: Vec::new(),
            seen: HashSet::new(),
            has_seen_ancestors: HashSet::new(),
            has_item: HashSet::new(),
            entry,
        })
    }

    /// Logs the names of an inode, and what depends on them.
    pub(super) fn add_names(&mut self, ino: u64) -> Logged<()> {
        self.add(ino, Part::Names);
        self.run()
    }

    /// Logs the names of the inodes at some indexes of the synced directory, now and in the last
    /// commit or the log.
    pub(super) fn add_entries(&mut self, indexes: &BTreeSet<u64>) -> Logged<()> {
        let dir = self.synced;
        for &index in indexes {
            let now = entry_at(self.tree, dir, index)?;
            let was = entry_at(&self.committed, dir, index)?;
            if let Some((target, _)) = &now {
                let child = inode_of(*target)?;
                if self.needs_names(child)? {
                    self.add(child, Part::Names);
                }
            }
            if let Some((target, _)) = was.as_ref().filter(|_| now != was) {
                self.delete_entry(dir, index);
                self.add(inode_of(*target)?, Part::Names);
            }
            if let Some(logged) = self.log.logged_index(self.tree.id(), dir, index)
                && now.as_ref().is_none_or(|(target, _)| *target != Target::Inode(Ino(logged)))
            {
                self.add(logged, Part::Names);
            }
            self.run()?;
        }
        Ok(())
    }

    /// Whether the names of an inode are neither in the last commit nor in the log.
    pub(super) fn needs_names(&self, ino: u64) -> Logged<bool> {
        if self
            .log
            .changes(self.tree.id(), ino)?
            .map_err(Stop)?
            .is_some_and(|changes| changes.has_new_names)
        {
            return Ok(true);
        }
        let is_logged = !self.log.logged_names(self.tree.id(), ino).is_empty();
        Ok(!is_logged && !self.is_committed(ino)?)
    }

    /// Whether an inode that has lost its names has one after a crash: in the last commit, or in
    /// the log. What was written to it since would then be lost from a file that exists.
    pub(super) fn may_crash_restore(&self, ino: u64) -> Logged<bool> {
        let committed = names::inode(&self.committed, Ino(ino))?;
        let is_logged = !self.log.logged_names(self.tree.id(), ino).is_empty();
        Ok(is_logged || committed.is_some_and(|inode| inode.nlink > 0))
    }

    /// Requires that the seal of the synced inode, if it has one, can be logged (law 8).
    pub(super) fn require_loggable_seal(&self, inode: &Inode) -> Logged<()> {
        let committed = names::inode(&self.committed, Ino(self.synced))?;
        require_loggable_seal(inode, committed.as_ref())
    }

    /// Returns the inodes that have to be locked, too (law 4).
    pub(super) fn missing(self) -> BTreeSet<u64> {
        self.missing
    }

    fn add(&mut self, ino: u64, part: Part) {
        if self.seen.insert((ino, part)) {
            self.queue.push((ino, part));
            if !self.locked.contains(&ino) {
                self.missing.insert(ino);
            }
        }
    }

    fn run(&mut self) -> Logged<()> {
        while let Some((ino, part)) = self.queue.pop() {
            if self.seen.len() > INODES_MAX {
                return Err(Stop(CommitReason::TooMuch));
            }
            match (names::inode(self.tree, Ino(ino))?.filter(|inode| inode.nlink > 0), part) {
                (Some(inode), Part::Names) => self.log_names(ino, &inode)?,
                (Some(inode), Part::Existence) => self.log_existence(ino, &inode)?,
                (None, _) => self.log_deletion(ino)?,
            }
        }
        Ok(())
    }

    fn is_committed(&self, ino: u64) -> Logged<bool> {
        Ok(names::inode(&self.committed, Ino(ino))?.is_some())
    }

    /// Logs all names of an inode that exists (laws 1 to 3).
    fn log_names(&mut self, ino: u64, inode: &Inode) -> Logged<()> {
        for item_type in [ItemType::INODE_REF, ItemType::INODE_EXTREF] {
            self.entry.stale.push(all_keys(ino, item_type));
            each_item(self.tree, ino, item_type, &mut |key, data| {
                self.entry.items.push((key, data.to_vec()));
            })?;
        }
        let now = names_in(self.tree, ino)?;
        self.require_kept_references(ino, &now)?;
        for name in &now {
            self.require_alone(name)?;
            let key = Key::new(name.dir, ItemType::DIR_LOG_INDEX, name.index);
            self.entry.stale.push(key..=key);
            self.add_ancestors(name.dir)?;
            if self.add_others_at(ino, name)? {
                self.require_logged_contents(ino, inode)?;
            }
        }
        self.lose_names(ino, &now)?;
        self.log_existence(ino, inode)?;
        self.entry.names.push((ino, now));
        Ok(())
    }

    /// Requires that the last commit has no other name with the hash of this one in its directory
    /// (law 7). [`InodeLog`] refuses what the log has.
    fn require_alone(&self, name: &LoggedName) -> Logged<()> {
        let key = Key::new(name.dir, ItemType::DIR_ITEM, name_hash(&name.name));
        let Some(item) = self.committed.find(&key)? else { return Ok(()) };
        let mut entries = DirEntries::new(item.data());
        if entries.all(|entry| entry.is_ok_and(|entry| entry.name == name.name)) {
            return Ok(());
        }
        Err(Stop(CommitReason::Names))
    }

    /// Requires that the items of the extended references of an inode hold none in the last commit
    /// that it has lost since (law 7): a replay removes those in deleted directories last.
    fn require_kept_references(&self, ino: u64, now: &[LoggedName]) -> Logged<()> {
        let mut keys = Vec::new();
        each_item(self.tree, ino, ItemType::INODE_EXTREF, &mut |key, _| keys.push(key))?;
        for key in keys {
            let Some(item) = self.committed.find(&key)? else { continue };
            let is_kept = |dir: Ino, name: &[u8]| {
                now.iter().any(|logged| logged.dir == dir.0 && logged.name == name)
            };
            let mut references = InodeExtrefs::new(item.data());
            let all_kept =
                references.all(|found| found.is_ok_and(|found| is_kept(found.parent, found.name)));
            if !all_kept {
                return Err(Stop(CommitReason::Names));
            }
        }
        Ok(())
    }

    /// Requires that the log has the contents of a file that replaced another one, as far as the
    /// trees have them (law 6).
    fn require_logged_contents(&self, ino: u64, inode: &Inode) -> Logged<()> {
        let changes = self.log.changes(self.tree.id(), ino)?.map_err(Stop)?;
        let has_new_contents = changes.is_some_and(|changes| !changes.extents.is_empty());
        if ino != self.synced && inode.kind == FileKind::File && has_new_contents {
            return Err(Stop(CommitReason::Names));
        }
        Ok(())
    }

    /// Adds what the last commit and the log have under a name, and under its index. Returns
    /// whether there is such an inode.
    fn add_others_at(&mut self, ino: u64, name: &LoggedName) -> Logged<bool> {
        let named = names::lookup(&self.committed, Ino(name.dir), &name.name)?;
        let named = named.map(|found| found.target);
        let indexed = entry_at(&self.committed, name.dir, name.index)?;
        let in_log = self.log.logged_at(self.tree.id(), name).into_iter().flatten();
        let in_log = in_log.map(|other| Target::Inode(Ino(other)));
        let targets = named.into_iter().chain(indexed.map(|(target, _)| target)).chain(in_log);
        let mut has_other = false;
        for target in targets {
            has_other |= inode_of(target)? != ino;
            self.add_other(ino, target)?;
        }
        Ok(has_other)
    }

    fn add_other(&mut self, ino: u64, target: Target) -> Logged<()> {
        let other = inode_of(target)?;
        if other != ino {
            self.add(other, Part::Names);
        }
        Ok(())
    }

    /// Deletes the names that an inode had in the last commit and has no more. What has one of them
    /// now is logged, too: replacing a name is atomic.
    fn lose_names(&mut self, ino: u64, now: &[LoggedName]) -> Logged<()> {
        let was = names_in(&self.committed, ino)?;
        let in_log = self.log.logged_names(self.tree.id(), ino);
        for name in was.iter().chain(&in_log).filter(|name| !now.contains(name)) {
            let dir = names::inode(self.tree, Ino(name.dir))?;
            if dir.is_none_or(|dir| dir.nlink == 0) {
                // A replay deletes the directory, or does not make it.
                self.add(name.dir, Part::Names);
                continue;
            }
            if was.contains(name) {
                self.delete_entry(name.dir, name.index);
                self.add(name.dir, Part::Existence);
            }
            if let Some(found) = names::lookup(self.tree, Ino(name.dir), &name.name)? {
                self.add_other(ino, found.target)?;
            }
        }
        Ok(())
    }

    /// Logs that an index of a directory has no entry of the last commit.
    fn delete_entry(&mut self, dir: u64, index: u64) {
        let key = Key::new(dir, ItemType::DIR_LOG_INDEX, index);
        let range = RawDirLogItem { end: index.into() };
        self.entry.items.push((key, range.as_bytes().to_vec()));
    }

    /// Adds a directory and its ancestors, as far as their names changed (law 3).
    fn add_ancestors(&mut self, dir: u64) -> Logged<()> {
        let mut dir = dir;
        for _ in 0..ANCESTORS_MAX {
            if dir == crate::inode::id::ROOT_DIRECTORY || !self.has_seen_ancestors.insert(dir) {
                return Ok(());
            }
            if self.needs_names(dir)? {
                self.add(dir, Part::Names);
            }
            let Some(link) = names::first_link(self.tree, Ino(dir))? else { return Ok(()) };
            dir = link.parent.0;
        }
        Err(Stop(CommitReason::TooMuch))
    }

    /// Logs that an inode exists, with its extended attributes (law 5). A new inode that is not a
    /// file is logged whole. The contents of a file that was synced must be in the log already.
    fn log_existence(&mut self, ino: u64, inode: &Inode) -> Logged<()> {
        if ino == self.synced || !self.has_item.insert(ino) {
            return Ok(());
        }
        let changes = self.log.changes(self.tree.id(), ino)?.map_err(Stop)?;
        if changes.is_some_and(|changes| changes.is_synced_unlogged) {
            return Err(Stop(CommitReason::Names));
        }
        let key = Key::new(ino, ItemType::INODE_ITEM, 0);
        if !self.log.has_logged(self.tree.id(), &key) {
            let item = self.tree.find(&key)?.ok_or(Stop(CommitReason::Names))?;
            let mut raw = RawInodeItem::read_from_bytes(item.data())
                .map_err(|_| Stop(CommitReason::Unreadable))?;
            let committed = names::inode(&self.committed, Ino(ino))?;
            require_loggable_seal(inode, committed.as_ref())?;
            let is_whole = inode.kind != FileKind::File && committed.is_none();
            if !is_whole {
                raw.generation.set(0);
                raw.size.set(0);
            }
            if let Some(file) = committed.filter(|inode| inode.kind == FileKind::File) {
                let past_end = extents_past_end(&self.committed, ino, file.size)?;
                self.entry.items.extend(past_end);
            }
            self.entry.items.push((key, raw.as_bytes().to_vec()));
            if is_whole && inode.kind == FileKind::Symlink {
                self.copy_items(ino, ItemType::EXTENT_DATA)?;
            }
        }
        self.entry.stale.push(all_keys(ino, ItemType::XATTR_ITEM));
        self.copy_items(ino, ItemType::XATTR_ITEM)
    }

    fn copy_items(&mut self, ino: u64, item_type: ItemType) -> Logged<()> {
        let items = &mut self.entry.items;
        each_item(self.tree, ino, item_type, &mut |key, data| items.push((key, data.to_vec())))?;
        Ok(())
    }

    /// Removes an inode that is deleted from the log, and deletes its names. Of a directory, also
    /// logs the names that its former entries have now (law 2).
    fn log_deletion(&mut self, ino: u64) -> Logged<()> {
        self.entry
            .stale
            .push(Key::new(ino, ItemType(0), 0)..=Key::new(ino, ItemType(u8::MAX), u64::MAX));
        self.entry.names.push((ino, Vec::new()));
        for child in self.log.logged_in(self.tree.id(), ino) {
            self.add(child, Part::Names);
        }
        self.lose_names(ino, &[])?;
        let was = names::inode(&self.committed, Ino(ino))?;
        if was.is_none_or(|was| was.kind != FileKind::Directory) {
            return Ok(());
        }
        let mut children = Vec::new();
        each_item(&self.committed, ino, ItemType::DIR_INDEX, &mut |_, data| {
            children.push(
                DirEntries::new(data).next().and_then(Result::ok).map(|entry| entry.location),
            );
        })?;
        if children.len() > NAMES_MAX {
            return Err(Stop(CommitReason::TooMuch));
        }
        for location in children {
            match location {
                Some(key) if key.item_type == ItemType::INODE_ITEM => {
                    self.add(key.objectid, Part::Names);
                }
                _ => return Err(Stop(CommitReason::Names)),
            }
        }
        Ok(())
    }
}

/// Requires of a sealed inode that the last commit has it sealed, and with a name (law 8).
fn require_loggable_seal(inode: &Inode, committed: Option<&Inode>) -> Logged<()> {
    let is_sealed = |inode: &Inode| inode.flags.contains(InodeFlags::VERITY);
    if is_sealed(inode) && !committed.is_some_and(|was| is_sealed(was) && was.nlink > 0) {
        return Err(Stop(CommitReason::Sealed));
    }
    Ok(())
}

/// Returns the names of an inode.
fn names_in(tree: &Tree, ino: u64) -> Logged<Vec<LoggedName>> {
    let links = names::links(tree, Ino(ino), NAMES_MAX)?;
    Ok(links.into_iter().map(logged).collect())
}

/// Returns the entry at an index of a directory.
fn entry_at(tree: &Tree, dir: u64, index: u64) -> Logged<Option<IndexedName>> {
    let key = Key::new(dir, ItemType::DIR_INDEX, index);
    let Some(item) = tree.find(&key)? else { return Ok(None) };
    let Some(Ok(entry)) = DirEntries::new(item.data()).next() else {
        return Err(Stop(CommitReason::Unreadable));
    };
    let target = match entry.location.item_type {
        ItemType::INODE_ITEM => Target::Inode(Ino(entry.location.objectid)),
        _ => Target::Subvolume(TreeId(entry.location.objectid)),
    };
    Ok(Some((target, entry.name.to_vec())))
}

/// Returns the inode of an entry. Subvolumes are not logged.
fn inode_of(target: Target) -> Logged<u64> {
    match target {
        Target::Inode(ino) => Ok(ino.0),
        Target::Subvolume(_) => Err(Stop(CommitReason::Names)),
    }
}
