//! The data of a file that goes at once with all its items.
//!
//! Law: whoever takes the items out shows them here first, and lets the extents go in the same
//! handle. This is for files of a few extents; those of others go before the file does
//! ([`FileState::truncate`](crate::FileState::truncate)).

use crate::piece::{Piece, Reference};
use butternut_format::extent::DataRef;
use butternut_format::key::{ItemType, Key};
use butternut_format::refused::Refused;
use butternut_format::units::{Ino, TreeId};
use butternut_tree::{Handle, TreeError};

/// What the items that went have named.
#[derive(Debug)]
pub struct Gone {
    tree: TreeId,
    ino: Ino,
    references: Vec<Reference>,
    refused: Option<Refused>,
}

impl Gone {
    pub fn new(tree: TreeId, ino: Ino) -> Self {
        Self { tree, ino, references: Vec::new(), refused: None }
    }

    /// Takes note of an item of the file; only its extents count.
    pub fn see(&mut self, key: Key, item: &[u8]) {
        if key.objectid != self.ino.0 || key.item_type != ItemType::EXTENT_DATA {
            return;
        }
        match Piece::of_item(key.offset, item) {
            Ok(piece) => self.references.extend(piece.reference()),
            Err(refused) => {
                self.refused.get_or_insert(refused.at(format_args!("item {key}")));
            }
        }
    }

    /// Gives the references up.
    ///
    /// # Errors
    /// An item that was no extent: the change cannot go on.
    pub fn let_go(self, handle: &Handle) -> Result<(), TreeError> {
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
