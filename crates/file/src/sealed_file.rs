//! [`SealedFile`]: what fs-verity has stored for a file, as its items in the tree have it.
//!
//! The items of a sealed file never change, so no lock is held while they are read.

use crate::error::FileError;
use butternut_format::key::{ItemType, Key};
use butternut_format::refused::{Refused, require};
use butternut_format::units::{Ino, length};
use butternut_format::verity::hash::BlockHasher;
use butternut_format::verity::merkle::MerkleShape;
use butternut_format::verity::{DESCRIPTOR_BYTES_MAX, RawVerityDescriptorItem, VerityDescriptor};
use butternut_tree::Tree;
use std::sync::OnceLock;

/// What verifies the reads of a sealed file.
#[derive(Debug)]
pub(crate) struct SealedFile {
    pub(crate) tree: Tree,
    pub(crate) ino: Ino,
    /// Set by the first read.
    loaded: OnceLock<Loaded>,
}

/// The descriptor of a sealed file, and what follows from it.
#[derive(Debug)]
pub(crate) struct Loaded {
    pub(crate) descriptor: VerityDescriptor,
    pub(crate) shape: MerkleShape,
    pub(crate) hasher: BlockHasher,
}

impl SealedFile {
    pub(crate) fn new(tree: Tree, ino: Ino) -> Self {
        Self { tree, ino, loaded: OnceLock::new() }
    }

    /// Returns the descriptor of the file, whose size is `size` bytes.
    pub(crate) fn loaded(&self, size: u64) -> Result<&Loaded, FileError> {
        if let Some(loaded) = self.loaded.get() {
            return Ok(loaded);
        }
        let descriptor = read_descriptor(&self.tree, self.ino)?;
        let descriptor = descriptor.ok_or_else(|| self.no_items("descriptor"))?.0;
        let have = descriptor.data_bytes;
        require(have == size, "data_size", have, size).map_err(|bad| self.corrupt(bad))?;
        let shape = descriptor.parameters.shape(size).map_err(|bad| self.corrupt(bad))?;
        let hasher = descriptor.parameters.hasher();
        Ok(self.loaded.get_or_init(|| Loaded { descriptor, shape, hasher }))
    }

    pub(crate) fn corrupt(&self, source: Refused) -> FileError {
        corrupt(&self.tree, self.ino, source)
    }

    fn no_items(&self, what: &'static str) -> FileError {
        self.corrupt(Refused::new(what, "none", "the items of fs-verity"))
    }
}

fn corrupt(tree: &Tree, ino: Ino, source: Refused) -> FileError {
    FileError::Extents { tree: tree.id(), ino, source: source.at("fs-verity") }
}

/// Reads the descriptor of a file, and the signature behind it; `None` if it has none.
///
/// # Errors
/// The items cannot be read or are invalid.
pub fn read_descriptor(
    tree: &Tree,
    ino: Ino,
) -> Result<Option<(VerityDescriptor, Vec<u8>)>, FileError> {
    let Some(item) = tree.find(&Key::new(ino.0, ItemType::VERITY_DESC_ITEM, 0))? else {
        return Ok(None);
    };
    let bytes = RawVerityDescriptorItem::check(item.data());
    let bytes = bytes.map_err(|refused| corrupt(tree, ino, refused))?;
    let mut all = vec![0; bytes.min(DESCRIPTOR_BYTES_MAX)];
    let read = read_items(tree, ino, ItemType::VERITY_DESC_ITEM, 1, &mut all)?;
    if read < all.len() {
        return Err(corrupt(tree, ino, Refused::new("descriptor", read, all.len())));
    }
    let descriptor = VerityDescriptor::check(&all);
    let descriptor = descriptor.map_err(|refused| corrupt(tree, ino, refused))?;
    let signature = all.split_off(descriptor.to_bytes().len());
    Ok(Some((descriptor, signature)))
}

/// Reads a part of the tree of hashes of a sealed file, as it is stored. Returns the number of
/// bytes read: fewer only at the end of the tree.
///
/// # Errors
/// The items cannot be read.
pub fn read_metadata(
    tree: &Tree,
    ino: Ino,
    offset: u64,
    buf: &mut [u8],
) -> Result<usize, FileError> {
    read_items(tree, ino, ItemType::VERITY_MERKLE_ITEM, offset, buf)
}

/// Reads bytes from the items of one type, whose key offsets are byte offsets. Returns how many
/// there are without a gap.
pub(crate) fn read_items(
    tree: &Tree,
    ino: Ino,
    item_type: ItemType,
    offset: u64,
    buf: &mut [u8],
) -> Result<usize, FileError> {
    let mut cursor = tree.cursor();
    cursor.seek_last(&Key::new(ino.0, item_type, offset))?;
    let mut done = 0;
    while let (Some((key, data)), true) = (cursor.item_parts(), done < buf.len()) {
        if key.objectid != ino.0 || key.item_type != item_type {
            break;
        }
        let at = offset.saturating_add(length(done));
        let skip = at.checked_sub(key.offset).and_then(|skip| usize::try_from(skip).ok());
        let Some(found) = skip.and_then(|skip| data.get(skip..)).filter(|all| !all.is_empty())
        else {
            break;
        };
        let place = buf.get_mut(done..).unwrap_or_default();
        let bytes = found.len().min(place.len());
        place.iter_mut().zip(found).for_each(|(to, from)| *to = *from);
        done += bytes;
        cursor.advance()?;
    }
    Ok(done)
}

/// Returns the keys of items of fs-verity of a file, at most `limit`.
///
/// # Errors
/// The tree cannot be read.
pub fn verity_keys(tree: &Tree, ino: Ino, limit: usize) -> Result<Vec<Key>, FileError> {
    let mut cursor = tree.cursor();
    cursor.seek(&Key::new(ino.0, ItemType::VERITY_DESC_ITEM, 0))?;
    let mut keys = Vec::new();
    while let (Some((key, _)), true) = (cursor.item_parts(), keys.len() < limit) {
        let types = [ItemType::VERITY_DESC_ITEM, ItemType::VERITY_MERKLE_ITEM];
        if key.objectid != ino.0 || !types.contains(&key.item_type) {
            break;
        }
        keys.push(key);
        cursor.advance()?;
    }
    Ok(keys)
}
