//! Items that only log trees have: the ranges of a directory that the log covers.
//!
//! ```text
//! RawDirLogItem
//! 0     8
//! | end |
//! ```
//!
//! The key is (directory, `DIR_LOG_INDEX`, first index). A name whose index is in `first..=end` and
//! that is not in the log was deleted. Kernels before 5.17 also wrote `DIR_LOG_ITEM`, for ranges of
//! name hashes.

use crate::refused::Refused;
use zerocopy::little_endian::U64;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// A logged range in its on-disk form (`struct btrfs_dir_log_item`).
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct RawDirLogItem {
    pub end: U64,
}
const _: () = assert!(size_of::<RawDirLogItem>() == 8);

/// Checks a logged range and returns its last index.
pub fn check_dir_log(item: &[u8]) -> Result<u64, Refused> {
    let raw = RawDirLogItem::ref_from_bytes(item)
        .map_err(|_| Refused::new("item size", item.len(), size_of::<RawDirLogItem>()))?;
    Ok(raw.end.get())
}
