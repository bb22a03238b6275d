//! Lengths and conversions that the whole crate uses.

use butternut_format::units::{SECTOR_BYTES, length};
use std::ops::Range;

/// Length of the regions in which files are mapped and maps are cached, in bytes.
pub(crate) const REGION_BYTES: u64 = 1 << 20;

/// Length of a block in bytes.
pub(crate) const BLOCK: usize = 4096;
const _: () = assert!(SECTOR_BYTES == 4096);

/// Maximum size of a file in bytes: the largest offset of the VFS (`MAX_LFS_FILESIZE`).
pub const FILE_BYTES_MAX: u64 = i64::MAX.unsigned_abs();

/// Converts a length to `usize`. On the 64-bit machines that this runs on, it always fits.
pub(crate) fn in_memory(bytes: u64) -> usize {
    debug_assert!(length(usize::MAX) >= bytes, "a length in memory is at most the address space");
    usize::try_from(bytes).unwrap_or(usize::MAX)
}

/// The pages of some blocks, by index.
pub(crate) fn pages_of(blocks: &Range<u64>) -> Range<u64> {
    blocks.start / SECTOR_BYTES..blocks.end.div_ceil(SECTOR_BYTES)
}
