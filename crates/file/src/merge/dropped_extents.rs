//! [`DroppedExtents`]: the data extents of a file that is deleted with all its items in one
//! transaction.
//!
//! Law: the thread that removes the items passes each of them to [`DroppedExtents::note_item`]
//! first, and drops the references under the same handle. This is for files of a few extents; those
//! of larger files are dropped before, by [`FileState::truncate`](crate::FileState::truncate).

use crate::merge::extent_item::{ExtentItem, Reference};
use butternut_format::extent::DataRef;
use butternut_format::key::{ItemType, Key};
use butternut_format::refused::Refused;
use butternut_format::units::{Ino, TreeId};
use butternut_tree::{Handle, TreeError};

/// The references of removed extent items.
#[derive(Debug)]
pub struct DroppedExtents {
    tree: TreeId,
    ino: Ino,
    references: Vec<Reference>,
    refused: Option<Refused>,
}

impl DroppedExtents {
    /// Returns an empty record for inode `ino` of `tree`.
    pub fn new(tree: TreeId, ino: Ino) -> Self {
        Self { tree, ino, references: Vec::new(), refused: None }
    }

    /// Records the references of an item of the file. Items that are not extent items are ignored.
    pub fn note_item(&mut self, key: Key, item: &[u8]) {
        if key.objectid != self.ino.0 || key.item_type != ItemType::EXTENT_DATA {
            return;
        }
        match ExtentItem::from_item(key.offset, item) {
            Ok(item) => self.references.extend(item.reference()),
            Err(refused) => {
                self.refused.get_or_insert(refused.at(format_args!("item {key}")));
            }
        }
    }

    /// Drops the references.
    ///
    /// # Errors
    /// An item could not be parsed. The caller must abort the transaction.
    pub fn drop_references(self, handle: &Handle) -> Result<(), TreeError> {
        let Self { tree, ino, references, refused } = self;
        if let Some(source) = refused {
            return Err(TreeError::Corrupt { tree, source });
        }
        for Reference { extent, offset } in references {
            let reference = DataRef { tree, ino, offset, count: 1 };
            handle.drop_data_ref(extent.logical, extent.bytes, reference);
        }
        Ok(())
    }
}
