//! Floor 6: finds equal data in files, and lets the filesystem share it.
//!
//! ```text
//! door     walks, names files             -> Search::add: hashes the blocks of each file
//! search   blocks, sorted by hash         -> Sharing::run: candidates, longest runs first
//! ranges   extents of source and target   -> what both store, and do not share yet
//! door     Place::dedupe                  -> the filesystem compares and shares
//! ```
//!
//! Laws:
//!
//! 1. A hash only nominates. The filesystem compares both ranges while it has both files locked,
//!    and its answer decides. A collision or a stale hash costs a comparison, never data.
//! 2. A file is a target only after every file that it may be deduplicated against: the files have
//!    an order, in which those that cannot be targets are first, and a source is always earlier
//!    than its target. So all copies of a block end up with the extents of the first one.
//! 3. Holes, preallocated ranges and blocks of zeros are left alone, and so is data that is stored
//!    inline. What shares its extents already is not deduplicated again, and not counted as saved.
//! 4. A file that is changed, removed or refused during the run is skipped and counted. Only the
//!    place ends a run ([`Problem::Ends`]).
//! 5. Memory is bounded by the numbers of files and of blocks with data ([`BLOCK_MEMORY_BYTES`]),
//!    and does not depend on the sizes of sparse files.
//!
//! It knows nothing of btrfs, opens no files by itself, and prints nothing. A [`Place`] is where
//! the files are: a volume that is not mounted, or a directory of a mounted filesystem.

mod hashes;
mod index;
mod place;
mod ranges;
mod search;
mod sharing;
#[cfg(test)]
mod tests;

pub use hashes::{BLOCK_BYTES_MAX, BLOCK_BYTES_MIN, BlockSize};
pub use index::{Index, IndexError};
pub use place::{
    Answer, DataExtent, Facts, Identity, Location, Place, Problem, SECTOR_BYTES, Skip,
};
pub use search::{BLOCK_MEMORY_BYTES, Search, TooMuch};
pub use sharing::{Event, Report, Sharing, Tell};
