//! [`Roots`]: the trees of subvolumes in use, so that an inode's tree is found without a search.
//!
//! Laws:
//!
//! 1. Finding a cached tree takes no lock.
//! 2. At most [`ROOTS_MAX`] trees are cached; then the table is cleared.

use crate::{Error, FileId, Filesystem, Result, TOP_LEVEL};
use arc_swap::ArcSwap;
use butternut_format::units::TreeId;
use butternut_tree::Tree;
use std::collections::HashMap;

/// Maximum number of cached subvolume trees.
const ROOTS_MAX: usize = 4096;

#[derive(Debug, Default)]
pub(crate) struct Roots {
    trees: ArcSwap<HashMap<u64, Tree>>,
}

impl Roots {
    /// Calls `call` with a cached tree. The tree is borrowed: cloning it would count references in
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
    /// Returns the tree of a subvolume that exists and is not being deleted.
    pub(crate) fn subvolume_tree(&self, subvolume: u64) -> Result<Tree> {
        if let Some(tree) = self.shared.roots.with(subvolume, Tree::clone) {
            return Ok(tree);
        }
        let not_found = || Error::NoSubvolume { what: subvolume.to_string() };
        let id = TreeId(subvolume);
        if !id.is_subvolume() {
            return Err(not_found());
        }
        let (_, root) = self.forest().root_item(id)?.ok_or_else(not_found)?;
        if root.refs() == 0 && subvolume != TOP_LEVEL {
            return Err(not_found());
        }
        let forest = self.forest();
        let tree = if forest.is_writable() {
            // A tree that follows later transactions.
            forest.tree(id)?.ok_or_else(not_found)?
        } else {
            forest.tree_of_root(id, &root)
        };
        self.shared.roots.insert(subvolume, &tree);
        Ok(tree)
    }

    /// Returns the tree of an inode's subvolume; [`Error::Stale`] if that does not exist.
    pub(crate) fn tree_of(&self, id: FileId) -> Result<Tree> {
        match self.subvolume_tree(id.subvolume) {
            Err(Error::NoSubvolume { .. }) => Err(Error::Stale { id }),
            tree => tree,
        }
    }

    /// As [`Self::tree_of`], for a call that needs the tree only while it runs.
    pub(crate) fn in_tree_of<R>(&self, id: FileId, call: impl Fn(&Tree) -> Result<R>) -> Result<R> {
        match self.shared.roots.with(id.subvolume, &call) {
            Some(result) => result,
            None => call(&self.tree_of(id)?),
        }
    }
}
