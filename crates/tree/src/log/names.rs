//! [`LoggedNames`]: the names that the log of the running transaction gives to inodes.
//!
//! Laws:
//!
//! 1. A name, and an index of a directory, belongs to one inode at most: a replay would give it to
//!    one of them, and the other one would be lost.
//! 2. The names of an inode are replaced together.
//! 3. Each name is alone in its hash: the names of a directory with one hash share an item, and a
//!    log has names that were removed since. They may not fit into one item beside each other.

use butternut_format::checksum::name_hash;
use butternut_format::units::TreeId;
use std::collections::{BTreeMap, HashMap, HashSet};

/// A name of an inode in a log.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LoggedName {
    /// The inode number of the directory.
    pub dir: u64,
    /// The index of the entry in the directory.
    pub index: u64,
    /// The bytes of the name.
    pub name: Vec<u8>,
}

#[derive(Debug, Default)]
pub(super) struct LoggedNames {
    of_inode: HashMap<(TreeId, u64), Vec<LoggedName>>,
    /// The inode, and the name, by the hash of the name (law 3).
    by_hash: HashMap<(TreeId, u64, u64), (u64, Vec<u8>)>,
    by_index: BTreeMap<(TreeId, u64, u64), u64>,
}

impl LoggedNames {
    /// Returns the logged names of an inode.
    pub(super) fn of(&self, tree: TreeId, ino: u64) -> &[LoggedName] {
        self.of_inode.get(&(tree, ino)).map_or(&[], Vec::as_slice)
    }

    /// Returns the inodes that the log has under this name and under this index.
    pub(super) fn at(&self, tree: TreeId, name: &LoggedName) -> [Option<u64>; 2] {
        let named = self.hashed(tree, name).filter(|(_, other)| *other == name.name);
        [named.map(|(ino, _)| *ino), self.indexed(tree, name.dir, name.index)]
    }

    /// Returns what the log has under the hash of a name.
    fn hashed(&self, tree: TreeId, name: &LoggedName) -> Option<&(u64, Vec<u8>)> {
        self.by_hash.get(&(tree, name.dir, name_hash(&name.name)))
    }

    /// Returns the inode that the log has under an index of a directory.
    pub(super) fn indexed(&self, tree: TreeId, dir: u64, index: u64) -> Option<u64> {
        self.by_index.get(&(tree, dir, index)).copied()
    }

    /// Returns the inodes that the log has in a directory.
    pub(super) fn in_dir(&self, tree: TreeId, dir: u64) -> Vec<u64> {
        let all = self.by_index.range((tree, dir, 0)..=(tree, dir, u64::MAX));
        all.map(|(_, ino)| *ino).collect()
    }

    /// Replaces the names of some inodes. Fails, without a change, if another inode has one of them
    /// (law 1), or another name has the hash of one (law 3).
    pub(super) fn replace(
        &mut self,
        tree: TreeId,
        inodes: Vec<(u64, Vec<LoggedName>)>,
    ) -> Result<(), NameTaken> {
        let is_replaced = |ino: u64| inodes.iter().any(|(replaced, _)| *replaced == ino);
        let names = || inodes.iter().flat_map(|(_, names)| names);
        let is_taken = |name: &LoggedName| {
            let hashed = self.hashed(tree, name).map(|(ino, _)| *ino);
            let indexed = self.indexed(tree, name.dir, name.index);
            hashed.into_iter().chain(indexed).any(|ino| !is_replaced(ino))
        };
        let mut seen = HashSet::new();
        if names().any(|name| is_taken(name) || !seen.insert((name.dir, name_hash(&name.name)))) {
            return Err(NameTaken);
        }
        for (ino, _) in &inodes {
            self.remove(tree, *ino);
        }
        for (ino, names) in inodes {
            for LoggedName { dir, index, name } in &names {
                let hashed = (tree, *dir, name_hash(name));
                let other = self.by_hash.insert(hashed, (ino, name.clone()));
                let same = self.by_index.insert((tree, *dir, *index), ino);
                debug_assert!(other.is_none() && same.is_none(), "law 1: two inodes share a name");
            }
            if !names.is_empty() {
                self.of_inode.insert((tree, ino), names);
            }
        }
        Ok(())
    }

    fn remove(&mut self, tree: TreeId, ino: u64) {
        for LoggedName { dir, index, name } in
            self.of_inode.remove(&(tree, ino)).into_iter().flatten()
        {
            self.by_hash.remove(&(tree, dir, name_hash(&name)));
            self.by_index.remove(&(tree, dir, index));
        }
    }
}

/// Another inode has the name, or another name its hash.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct NameTaken;

#[cfg(test)]
mod tests {
    use super::*;

    fn name(dir: u64, index: u64, name: &str) -> LoggedName {
        LoggedName { dir, index, name: name.as_bytes().to_vec() }
    }

    #[test]
    fn a_name_and_an_index_belong_to_one_inode() {
        let tree = TreeId::FS;
        let mut names = LoggedNames::default();
        let (a, b) = (name(256, 2, "a"), name(256, 3, "b"));
        assert_eq!(
            names.replace(tree, vec![(257, vec![a.clone()]), (258, vec![b.clone()])]),
            Ok(())
        );
        assert_eq!(names.at(tree, &a), [Some(257), Some(257)]);
        assert_eq!(names.replace(tree, vec![(259, vec![name(256, 9, "a")])]), Err(NameTaken));
        assert_eq!(names.replace(tree, vec![(259, vec![name(256, 2, "c")])]), Err(NameTaken));
        assert_eq!(names.of(tree, 259), []);
        // An exchange replaces both.
        assert_eq!(
            names.replace(tree, vec![(257, vec![b.clone()]), (258, vec![a.clone()])]),
            Ok(())
        );
        assert_eq!(names.at(tree, &a), [Some(258), Some(258)]);
        assert_eq!(names.of(tree, 257), std::slice::from_ref(&b));
        assert_eq!(names.replace(tree, vec![(258, Vec::new())]), Ok(()));
        assert_eq!(names.at(tree, &a), [None, None]);
        assert_eq!(names.indexed(tree, 256, 3), Some(257));
    }
}
