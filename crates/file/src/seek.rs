//! Where data and holes begin, as `lseek` with `SEEK_DATA` and `SEEK_HOLE` asks.
//!
//! Laws, which are the kernel's:
//!
//! 1. Space that is set aside but not written is a hole; an inline extent is data.
//! 2. From inside what is sought, the answer is the offset asked.
//! 3. There is a hole at the end of every file.
//! 4. At or behind the end of the file there is neither.

use crate::error::FileError;
use crate::map::{MappingKind, Mappings};
use crate::view::FileView;

/// The first byte of data at or behind `offset`, or `None` where only holes follow.
pub fn seek_data(view: &FileView, offset: u64) -> Result<Option<u64>, FileError> {
    first(view, offset, true)
}

/// The first byte at or behind `offset` that is in a hole, or the end of the file; `None` where
/// `offset` is not in the file.
pub fn seek_hole(view: &FileView, offset: u64) -> Result<Option<u64>, FileError> {
    if offset >= view.size() {
        return Ok(None);
    }
    Ok(Some(first(view, offset, false)?.unwrap_or(view.size())))
}

fn first(view: &FileView, offset: u64, want_data: bool) -> Result<Option<u64>, FileError> {
    let _still = view.still_items();
    for mapping in Mappings::of(view, offset..view.size()) {
        let mapping = mapping?;
        let is_data = !matches!(mapping.kind, MappingKind::Hole | MappingKind::Preallocated { .. });
        if is_data == want_data {
            return Ok(Some(mapping.offset));
        }
    }
    Ok(None)
}
