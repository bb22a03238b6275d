//! [`Roots`]: the trees of subvolumes in use, so that an inode's tree is found without a search.
//!
//! Laws:
//!
//! 1. Finding a cached tree takes no lock.
//! 2. No tree of a deleted subvolume is added after [`Roots::remove`]: a tree is added only if no
//!    other thread has changed the table since its root item was read.
//! 3. At most [`ROOTS_MAX`] trees are cached; then the table is cleared.

use crate::{Error, Result, TOP_LEVEL};
use arc_swap::ArcSwap;
use butternut_format::root::RootFlags;
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

    /// Adds a tree, unless the table has changed since it was `before` (law 2). Returns whether the
    /// tree was added.
    fn insert(&self, before: &Arc<HashMap<u64, Tree>>, subvolume: u64, tree: &Tree) -> bool {
        let mut trees =
            if before.len() < ROOTS_MAX { HashMap::clone(before) } else { HashMap::new() };
        trees.insert(subvolume, tree.clone());
        let seen = self.trees.compare_and_swap(before, Arc::new(trees));
        Arc::ptr_eq(&seen, before)
    }

    /// Forgets a subvolume that is deleted. The deletion is in the root tree.
    pub(crate) fn remove(&self, subvolume: u64) {
        self.trees.rcu(|trees| {
            let mut trees = HashMap::clone(trees);
            trees.remove(&subvolume);
            trees
        });
    }

    /// Returns the tree of a subvolume that exists and is not being deleted; and the flags of its
    /// root item, if the tree was not cached.
    pub(crate) fn tree(
        &self,
        forest: &Arc<Forest>,
        subvolume: u64,
    ) -> Result<(Tree, Option<RootFlags>)> {
        loop {
            let before = self.trees.load_full();
            if let Some(tree) = before.get(&subvolume) {
                return Ok((tree.clone(), None));
            }
            let (tree, flags) = Self::read(forest, subvolume)?;
            // Each attempt that fails is one change by another thread.
            if self.insert(&before, subvolume, &tree) {
                return Ok((tree, Some(flags)));
            }
        }
    }

    fn read(forest: &Arc<Forest>, subvolume: u64) -> Result<(Tree, RootFlags)> {
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
        Ok((tree, root.flags()))
    }
}
