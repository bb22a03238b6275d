//! Searches of one tree by key and generation, as `BTRFS_IOC_TREE_SEARCH` makes them.
//!
//! A search sees the items that the running transaction has in its trees. What waits in memory for
//! the next commit (pending extents, delayed references, pending checksums) is not among them.
//! While a subvolume is searched, its blocks are not freed ([`crate::subvolume::listings`]).

use crate::inspect::Inspect;
use crate::subvolume::listings::Listing;
use crate::{Error, Result};
use butternut_format::key::Key;
use butternut_format::units::{Generation, TreeId};
use butternut_tree::Tree;
use std::ops::{ControlFlow, RangeInclusive};

/// The items that a search finds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TreeSearch {
    pub tree: TreeId,
    /// The keys in key order, both ends included.
    pub keys: RangeInclusive<Key>,
    /// The generations of the leaves, both ends included.
    pub generations: RangeInclusive<u64>,
}

/// An item that a search has found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FoundItem<'a> {
    pub key: Key,
    /// The generation of its leaf.
    pub generation: Generation,
    pub data: &'a [u8],
}

impl Inspect {
    /// Calls `visit` with each item of a search in key order, until it returns `Break`.
    ///
    /// # Errors
    /// [`Error::NoSubvolume`] if there is no such tree; a block cannot be read or is corrupt.
    pub fn search(
        &self,
        search: &TreeSearch,
        visit: &mut dyn FnMut(&FoundItem<'_>) -> ControlFlow<()>,
    ) -> Result<()> {
        // Before the tree is looked up.
        let write_state = self.filesystem.shared.write_state.as_ref();
        let listing = write_state.map(|write_state| Listing::begin(write_state, search.tree.0));
        let mut cursor = self.searched_tree(search.tree)?.scan();
        cursor.seek(search.keys.start())?;
        while let Some((leaf, slot)) = cursor.position() {
            let Some((key, data)) = leaf.item(slot).filter(|(key, _)| search.keys.contains(key))
            else {
                break;
            };
            let generation = leaf.generation();
            if search.generations.contains(&generation.0)
                && visit(&FoundItem { key, generation, data }).is_break()
            {
                break;
            }
            cursor.advance()?;
        }
        drop(listing);
        Ok(())
    }

    fn searched_tree(&self, id: TreeId) -> Result<Tree> {
        let forest = self.filesystem.forest();
        match id {
            TreeId::ROOT => Ok(forest.root_tree()),
            TreeId::CHUNK => Ok(forest.chunk_tree()),
            id if id.is_subvolume() => self.filesystem.subvolume_tree(id.0),
            id => forest.tree(id)?.ok_or_else(|| Error::NoSubvolume { what: id.0.to_string() }),
        }
    }
}
