//! The sectors of data, and the checksums that they are verified against.

use butternut_format::units::SECTOR_BYTES;

/// [`SECTOR_BYTES`] as a length in memory.
pub(crate) const SECTOR: usize = 4096;
const _: () = assert!(SECTOR_BYTES == 4096);

/// The checksums that a read is verified against.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Checksums<'a> {
    /// The data has no checksums.
    None,
    /// One checksum for each sector, concatenated as in the checksum tree.
    Stored(&'a [u8]),
}
