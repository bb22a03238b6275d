//! [`Roots`]: the trees of subvolumes in use, so that an inode's tree is found without a search.
//!
//! Laws:
//!
//! 1. Finding a cached tree takes no lock.
//! 2. At most [`ROOTS_MAX`] trees are cached; then the table is cleared.

use crate::{Error, Result, TOP_LEVEL};
use arc_swap::ArcSwap;
use butternut_format::units::TreeId;
use butternut_tree::{Forest, Tree};
use std::collections::HashMap;
use std::sync::Arc;

/// Maximum number of cached subvolume trees.
const ROOTS_MAX: usize = 4096;

#[derive(Debug, Default)]
pub(crate) struct Roots {
    trees: ArcSwap<HashMap<u64, Tree>>,
}

impl Roots {
    /// Calls `call` with a cached tree. The tree is borrowed: cloning it would count references in
    /// memory that all threads write.
    pub(crate) fn with<R>(&self, subvolume: u64, call: impl FnOnce(&Tree) -> R) -> Option<R> {
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

    /// Forgets a subvolume that is deleted.
    pub(crate) fn remove(&self, subvolume: u64) {
        self.trees.rcu(|trees| {
            let mut trees = HashMap::clone(trees);
            trees.remove(&subvolume);
            trees
        });
    }

    /// Returns the tree of a subvolume that exists and is not being deleted.
    pub(crate) fn tree(&self, forest: &Arc<Forest>, subvolume: u64) -> Result<Tree> {
        if let Some(tree) = self.with(subvolume, Tree::clone) {
            return Ok(tree);
        }
        let not_found = || Error::NoSubvolume { what: subvolume.to_string() };
        let id = TreeId(subvolume);
        if !id.is_subvolume() {
            return Err(not_found());
        }
        let (_, root) = forest.root_item(id)?.ok_or_else(not_found)?;
        if root.refs() == 0 && subvolume != TOP_LEVEL {
            return Err(not_found());
        }
        let tree = if forest.is_writable() {
            // A tree that follows later transactions.
            forest.tree(id)?.ok_or_else(not_found)?
        } else {
            forest.tree_of_root(id, &root)
        };
        self.insert(subvolume, &tree);
        // A deletion that was committed meanwhile may have removed the tree before it was inserted.
        let root = forest.root_item(id)?;
        if root.is_none_or(|(_, root)| root.refs() == 0 && subvolume != TOP_LEVEL) {
            self.remove(subvolume);
            return Err(not_found());
        }
        Ok(tree)
    }
}
