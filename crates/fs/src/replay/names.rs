//! Names in a replay: entries of directories, and references of inodes.

use super::Replay;
use crate::Result;
use crate::names::bounded::Bounded;
use butternut_format::dir::{DirEntries, EntryKind};
use butternut_format::inode::FileKind;
use butternut_format::inode_ref::{InodeExtrefs, InodeRefs};
use butternut_format::key::{ItemType, Key};
use butternut_format::refused::Refused;
use butternut_format::units::{Ino, length};
use butternut_names::{self as names, Found, NewName, OldName, Target};
use butternut_tree::Tree;
use std::collections::BTreeSet;

/// A name of an inode.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct RefName {
    pub(super) dir: u64,
    pub(super) index: u64,
    pub(super) name: Vec<u8>,
}

/// An entry of a directory.
#[derive(Clone, Debug)]
struct Entry {
    dir: u64,
    index: u64,
    name: Vec<u8>,
    found: Found,
}

impl Replay<'_> {
    /// Replays the logged entries of directories.
    pub(super) fn entries(&mut self) -> Result<()> {
        let log = self.log.clone();
        let mut cursor = log.scan();
        cursor.seek(&Key::MIN)?;
        while let Some(item) = cursor.item() {
            let key = item.key();
            if key.item_type == ItemType::DIR_INDEX && !self.ignored.contains(&key.objectid) {
                self.entry(key, item.data())?;
            }
            cursor.advance()?;
        }
        Ok(())
    }

    fn entry(&mut self, key: Key, data: &[u8]) -> Result<()> {
        let logged = self.parse_entry(key, data)?;
        // Subvolumes are created and deleted by commits.
        let Target::Inode(ino) = logged.found.target else { return Ok(()) };
        if self.inode(logged.dir)?.is_none() || self.inode(ino.0)?.is_none() {
            return Ok(());
        }
        let named = names::lookup(&self.tree, Ino(logged.dir), &logged.name)?;
        let is_there = named.is_some_and(|known| known.target == logged.found.target);
        // A reference in the log adds the name later.
        if is_there || Self::has_reference(&self.log, ino.0, logged.dir, &logged.name)? {
            return Ok(());
        }
        self.link(&logged, ino.0)
    }

    /// Replays the references of an inode in one item of the log (law 3 of [`replay`](super)).
    pub(super) fn references(&mut self, key: Key, data: &[u8]) -> Result<()> {
        let ino = key.objectid;
        let Some(inode) = self.inode(ino)? else {
            return Err(self.corrupt(key, Refused::new("inode", "none", "one for a reference")));
        };
        let logged = self.parse_references(key, data)?;
        // All items of references of an inode follow each other.
        if self.old_names_removed.replace(ino) != Some(ino) {
            self.remove_old_names(ino)?;
        }
        for RefName { dir, index, name } in logged {
            // The root of a subvolume refers to itself, without an entry. Any other directory may
            // have been deleted after the inode was logged.
            if dir == ino || self.inode(dir)?.is_none() {
                continue;
            }
            let found = Found { target: Target::Inode(Ino(ino)), kind: inode.kind };
            let entry = Entry { dir, index, name, found };
            let indexed = self.indexed(dir, index)?;
            let is_there = indexed.is_some_and(|known| {
                known.name == entry.name && known.found.target == found.target
            });
            if !is_there || !Self::has_reference(&self.tree, ino, dir, &entry.name)? {
                self.link(&entry, ino)?;
            }
        }
        Ok(())
    }

    /// Removes the names of an inode that the log lacks, in each directory that it has logged names
    /// in.
    fn remove_old_names(&mut self, ino: u64) -> Result<()> {
        let logged: BTreeSet<RefName> = self.names_in(&self.log, ino)?.into_iter().collect();
        let dirs: BTreeSet<u64> = logged.iter().map(|name| name.dir).collect();
        for name in self.names_in(&self.tree, ino)? {
            if dirs.contains(&name.dir) && !logged.contains(&name) {
                self.unlink(name.dir, &name.name)?;
            }
        }
        Ok(())
    }

    /// Returns the names of all references of an inode in a tree.
    pub(super) fn names_in(&self, tree: &Tree, ino: u64) -> Result<Vec<RefName>> {
        let mut found = Vec::new();
        for item_type in [ItemType::INODE_REF, ItemType::INODE_EXTREF] {
            for (key, data) in Self::items_in(tree, &Self::keys(ino, item_type))? {
                found.append(&mut self.parse_references(key, &data)?);
            }
        }
        Ok(found)
    }

    fn has_reference(tree: &Tree, ino: u64, dir: u64, name: &[u8]) -> Result<bool> {
        #[cfg(test)]
        super::tests::count_read(2);
        Ok(names::reference_index(tree, Ino(ino), Ino(dir), name)?.is_some())
    }

    /// Adds a name to an inode, and removes what is in its place.
    fn link(&mut self, entry: &Entry, ino: u64) -> Result<()> {
        let dir = self.inode(entry.dir)?;
        if !dir.is_some_and(|dir| Self::is_directory(dir.kind)) {
            let key = Key::new(entry.dir, ItemType::DIR_INDEX, entry.index);
            return Err(self.corrupt(key, Refused::new("inode", "no directory", "a directory")));
        }
        if let Some(named) = names::lookup(&self.tree, Ino(entry.dir), &entry.name)? {
            self.unlink_found(entry.dir, &entry.name, named)?;
        }
        if let Some(indexed) = self.indexed(entry.dir, entry.index)? {
            self.unlink_found(entry.dir, &indexed.name, indexed.found)?;
        }
        let new = NewName {
            dir: Ino(entry.dir),
            name: &entry.name,
            index: entry.index,
            found: entry.found,
            generation: self.handle.generation(),
        };
        names::link(&self.edit, &new)?;
        let bytes = length(entry.name.len()) * 2;
        self.update_inode(entry.dir, |dir| dir.size = dir.size.saturating_add(bytes))?;
        self.touched.insert(ino);
        Ok(())
    }

    /// Removes the entry of a `DIR_INDEX` item of the subvolume.
    pub(super) fn unlink_item(&mut self, key: Key, data: &[u8]) -> Result<()> {
        let entry = self.parse_entry(key, data)?;
        self.unlink_found(entry.dir, &entry.name, entry.found)
    }

    fn unlink(&mut self, dir: u64, name: &[u8]) -> Result<()> {
        match names::lookup(&self.tree, Ino(dir), name)? {
            Some(found) => self.unlink_found(dir, name, found),
            None => Ok(()),
        }
    }

    fn unlink_found(&mut self, dir: u64, name: &[u8], found: Found) -> Result<()> {
        let key = Key::new(dir, ItemType::DIR_INDEX, 0);
        let Target::Inode(ino) = found.target else {
            let refused = Refused::new("name", "that of a subvolume", "one of an inode");
            return Err(self.corrupt(key, refused));
        };
        let nlink = self.inode(ino.0)?.map_or(0, |inode| inode.nlink);
        let tree = Bounded { tree: &self.tree, steps_left: &self.steps_left };
        let backref = names::backref(&tree, (Ino(dir), name), (ino, nlink))?;
        let old = OldName { dir: Ino(dir), name, target: backref.target(ino) };
        names::unlink(&self.edit, &old)?;
        let bytes = length(name.len()) * 2;
        self.update_inode(dir, |dir| dir.size = dir.size.saturating_sub(bytes))?;
        if self.inode(ino.0)?.is_some() {
            self.touched.insert(ino.0);
        }
        Ok(())
    }

    /// Returns the entry of a directory with an index.
    fn indexed(&self, dir: u64, index: u64) -> Result<Option<Entry>> {
        let key = Key::new(dir, ItemType::DIR_INDEX, index);
        let Some(item) = self.tree.find(&key)? else { return Ok(None) };
        self.parse_entry(key, item.data()).map(Some)
    }

    fn parse_entry(&self, key: Key, data: &[u8]) -> Result<Entry> {
        let corrupt = |refused| self.corrupt(key, refused);
        let entry = DirEntries::new(data).next();
        let entry = entry.ok_or_else(|| corrupt(Refused::new("entries", 0, 1)))?;
        let entry = entry.map_err(corrupt)?;
        let EntryKind::File(kind) = entry.kind else {
            let have = entry.kind.entry_type();
            return Err(corrupt(Refused::new("type", have, "a file's")));
        };
        let target = match entry.location.item_type {
            ItemType::INODE_ITEM => Target::Inode(Ino(entry.location.objectid)),
            _ => Target::Subvolume(butternut_format::units::TreeId(entry.location.objectid)),
        };
        let (dir, index, name) = (key.objectid, key.offset, entry.name.to_vec());
        Ok(Entry { dir, index, name, found: Found { target, kind } })
    }

    /// Returns the names in an item of references.
    fn parse_references(&self, key: Key, data: &[u8]) -> Result<Vec<RefName>> {
        let corrupt = |refused| self.corrupt(key, refused);
        let mut found = Vec::new();
        if key.item_type == ItemType::INODE_REF {
            for name in InodeRefs::new(data) {
                let name = name.map_err(corrupt)?;
                let (dir, index) = (key.offset, name.index);
                found.push(RefName { dir, index, name: name.name.to_vec() });
            }
        } else {
            for name in InodeExtrefs::new(data) {
                let name = name.map_err(corrupt)?;
                let (dir, index) = (name.parent.0, name.index);
                found.push(RefName { dir, index, name: name.name.to_vec() });
            }
        }
        Ok(found)
    }

    /// Removes all entries of a directory that has lost its last name.
    pub(super) fn remove_all_names(&mut self, dir: u64) -> Result<()> {
        for (key, data) in Self::items_in(&self.tree, &Self::keys(dir, ItemType::DIR_INDEX))? {
            self.unlink_item(key, &data)?;
        }
        Ok(())
    }

    /// Whether an inode is a directory.
    pub(super) fn is_directory(kind: FileKind) -> bool {
        kind == FileKind::Directory
    }
}
