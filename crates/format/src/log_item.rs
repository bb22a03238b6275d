//! Items that only log trees hold: which ranges of a directory the log speaks for.
//!
//! ```text
//! RawDirLogItem
//! 0     8
//! | end |
//! ```
//!
//! The key is (directory, `DIR_LOG_INDEX`, first index); names whose index lies in `first..=end`
//! and that the log does not hold were deleted. Kernels before 5.17 wrote `DIR_LOG_ITEM` too, for
//! ranges of name hashes.

use crate::refused::Refused;
use zerocopy::little_endian::U64;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// A logged range as it lies on disk (`struct btrfs_dir_log_item`).
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct RawDirLogItem {
    pub end: U64,
}
const _: () = assert!(size_of::<RawDirLogItem>() == 8);

/// Checks a logged range, and gives its last index.
pub fn check_dir_log(item: &[u8]) -> Result<u64, Refused> {
    let raw = RawDirLogItem::ref_from_bytes(item)
        .map_err(|_| Refused::new("item size", item.len(), size_of::<RawDirLogItem>()))?;
    Ok(raw.end.get())
}
