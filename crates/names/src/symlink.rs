//! The text of a symbolic link: a file's bytes, always inside the extent item and never packed.
//!
//! The link's inode has the length of the text as its size and as its bytes used.

use crate::error::NamesError;
use crate::items::{Edit, Limits};
use butternut_format::file_extent::{FileExtent, RawFileExtentHeader};
use butternut_format::key::{ItemType, Key};
use butternut_format::units::{Generation, Ino};

/// Bytes in the longest path that the kernel follows, without the NUL.
const PATH_BYTES_MAX: usize = 4095;

/// Bytes of the longest text that fits into an item.
pub fn symlink_bytes_max(limits: Limits) -> usize {
    let room = limits.item_bytes_max.saturating_sub(size_of::<RawFileExtentHeader>());
    room.min(PATH_BYTES_MAX)
}

/// Writes the text of a link that is new.
pub fn put_symlink_text(
    edit: &impl Edit,
    ino: Ino,
    text: &[u8],
    generation: Generation,
) -> Result<(), NamesError> {
    if text.len() > symlink_bytes_max(edit.limits()) {
        return Err(NamesError::NameTooLong);
    }
    let item = FileExtent::inline(generation, text).to_bytes();
    Ok(edit.put(&Key::new(ino.0, ItemType::EXTENT_DATA, 0), &item)?)
}
