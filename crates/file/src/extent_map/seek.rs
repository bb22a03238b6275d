//! Where data and holes begin: `lseek` with `SEEK_DATA` and `SEEK_HOLE`.
//!
//! Laws, which are the kernel's:
//!
//! 1. Preallocated space that has not been written is a hole; an inline extent is data.
//! 2. An offset that is already inside data, or a hole, is returned unchanged.
//! 3. There is a hole at the end of every file.
//! 4. At or past the end of the file there is neither data nor hole.

use crate::error::FileError;
use crate::extent_map::view::FileView;
use crate::extent_map::{MappingKind, Mappings};
use std::ops::Range;

/// Returns the first byte of data at or after `offset`, or `None` where only holes follow.
///
/// # Errors
/// The file's items cannot be read.
pub fn seek_data(view: &FileView, offset: u64) -> Result<Option<u64>, FileError> {
    first(view, offset..view.size(), true)
}

/// Returns the first byte of data in a range, or `None` where it has only holes. Reads the items of
/// the range only.
///
/// # Errors
/// The file's items cannot be read.
pub fn seek_data_within(view: &FileView, range: Range<u64>) -> Result<Option<u64>, FileError> {
    first(view, range.start..range.end.min(view.size()), true)
}

/// Returns the first byte of a range that is in a hole; `None` where the range has only data, as
/// far as it is in the file. Reads the items of the range only.
///
/// # Errors
/// The file's items cannot be read.
pub fn seek_hole_within(view: &FileView, range: Range<u64>) -> Result<Option<u64>, FileError> {
    first(view, range.start..range.end.min(view.size()), false)
}

/// Returns the first byte at or after `offset` that is in a hole, or the end of the file; `None`
/// where `offset` is not in the file.
///
/// # Errors
/// The file's items cannot be read.
pub fn seek_hole(view: &FileView, offset: u64) -> Result<Option<u64>, FileError> {
    if offset >= view.size() {
        return Ok(None);
    }
    Ok(Some(first(view, offset..view.size(), false)?.unwrap_or(view.size())))
}

fn first(view: &FileView, range: Range<u64>, want_data: bool) -> Result<Option<u64>, FileError> {
    for mapping in Mappings::of(view, range.clone()) {
        let mapping = mapping?;
        let is_data = !matches!(mapping.kind, MappingKind::Hole | MappingKind::Preallocated { .. });
        if is_data == want_data {
            debug_assert!(range.contains(&mapping.offset), "laws 2 and 4");
            return Ok(Some(mapping.offset));
        }
    }
    Ok(None)
}
