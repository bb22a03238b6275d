//! The target of a symbolic link: an inline extent that is never compressed.
//!
//! The size and the allocated bytes of the inode are the length of the target.

use crate::error::NamesError;
use crate::items::{EditItems, Limits};
use butternut_format::file_extent::{FileExtent, RawFileExtentHeader};
use butternut_format::key::{ItemType, Key};
use butternut_format::units::{Generation, Ino};

/// Length of the longest path that the kernel follows, in bytes, without the NUL.
const PATH_BYTES_MAX: usize = 4095;

/// Returns the length of the longest target that fits into an item, in bytes.
pub fn symlink_bytes_max(limits: Limits) -> usize {
    let space = limits.item_bytes_max.saturating_sub(size_of::<RawFileExtentHeader>());
    space.min(PATH_BYTES_MAX)
}

/// Writes the target of a new symbolic link.
///
/// # Errors
/// [`NamesError::NameTooLong`] if it does not fit into an item.
pub fn put_symlink_target(
    edit: &impl EditItems,
    ino: Ino,
    target: &[u8],
    generation: Generation,
) -> Result<(), NamesError> {
    if target.len() > symlink_bytes_max(edit.limits()) {
        return Err(NamesError::NameTooLong);
    }
    let item = FileExtent::inline(generation, target).to_bytes();
    Ok(edit.put(&Key::new(ino.0, ItemType::EXTENT_DATA, 0), &item)?)
}
