//! The trees of subvolumes that are in use, so that an inode's tree is found without a search.
//!
//! Laws:
//!
//! 1. Finding a known tree takes no lock.
//! 2. At most [`ROOTS_MAX`] are kept; past that the table starts anew.

use crate::{Error, FileId, Filesystem, Result, id::TOP_LEVEL};
use arc_swap::ArcSwap;
use butternut_format::units::TreeId;
use butternut_tree::Tree;
use std::collections::HashMap;

/// Subvolume trees remembered at once.
const ROOTS_MAX: usize = 4096;

/// The inode number of every subvolume's root directory.
pub(crate) const ROOT_DIRECTORY: u64 = 256;

#[derive(Debug, Default)]
pub(crate) struct Roots {
    trees: ArcSwap<HashMap<u64, Tree>>,
}

impl Roots {
    /// What `call` makes of a known tree. The tree is borrowed: a clone of it would be counted in
    /// memory that all threads write.
    fn with<R>(&self, subvolume: u64, call: impl FnOnce(&Tree) -> R) -> Option<R> {
        self.trees.load().get(&subvolume).map(call)
    }

    fn insert(&self, subvolume: u64, tree: &Tree) {
        self.trees.rcu(|trees| {
            let mut trees =
                if trees.len() < ROOTS_MAX { HashMap::clone(trees) } else { HashMap::new() };
            trees.insert(subvolume, tree.clone());
            trees
        });
    }
}

impl Filesystem {
    /// The tree of a subvolume that exists and is not being deleted.
    pub(crate) fn subvolume_tree(&self, subvolume: u64) -> Result<Tree> {
        if let Some(tree) = self.shared.roots.with(subvolume, Tree::clone) {
            return Ok(tree);
        }
        let gone = || Error::NoSubvolume { what: subvolume.to_string() };
        let id = TreeId(subvolume);
        if !id.is_subvolume() {
            return Err(gone());
        }
        let (_, root) = self.forest().root_item(id)?.ok_or_else(gone)?;
        if root.refs() == 0 && subvolume != TOP_LEVEL {
            return Err(gone());
        }
        let forest = self.forest();
        let tree = if forest.is_writable() {
            // One that follows what is written.
            forest.tree(id)?.ok_or_else(gone)?
        } else {
            forest.tree_of_root(id, &root)
        };
        self.shared.roots.insert(subvolume, &tree);
        Ok(tree)
    }

    /// The tree that `id` is in; an id of a subvolume that is gone is stale.
    pub(crate) fn tree_of(&self, id: FileId) -> Result<Tree> {
        match self.subvolume_tree(id.subvolume) {
            Err(Error::NoSubvolume { .. }) => Err(Error::Stale { id }),
            tree => tree,
        }
    }

    /// As [`Self::tree_of`], for a call that needs the tree no longer than it runs.
    pub(crate) fn in_tree_of<R>(&self, id: FileId, call: impl Fn(&Tree) -> Result<R>) -> Result<R> {
        match self.shared.roots.with(id.subvolume, &call) {
            Some(result) => result,
            None => call(&self.tree_of(id)?),
        }
    }
}
