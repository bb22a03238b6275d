//! Floor 5: the bytes of files. This crate knows no paths, names or open handles.
//!
//! A [`FileView`] is one file in one state of its subvolume. A [`Source`] is what reads of all
//! files of a volume share. A [`Stream`] reads an open file and reads ahead of its reader.
//! [`Mappings`] translates a range of a file to the extents that hold its bytes; seeks and listings
//! of extents use it.
//!
//! ```text
//! read_at, read_many -> plan (searches trees) -> one batch to the volume -> decompress -> copy
//! ```
//!
//! A [`FileState`] is a file that is being written. Data that is newer than the file's tree is in
//! an overlay, which every read looks up before the tree. From time to time the overlay is merged
//! into the trees.
//!
//! ```text
//! write_at -> dirty blocks -> writeback: compress, one batch to the volume
//!          -> pending extents, in the overlay -> merge -> trees
//! ```
//!
//! The modules, in the order in which they import each other, lowest first:
//!
//! | module | contents |
//! |---|---|
//! | `compress` | zlib, lzo and zstd, without I/O |
//! | `sealed_file` | the items of fs-verity of a file |
//! | `overlay`, `in_flight`, `shared_file` | what the readers and the writer of one file share |
//! | `extent_map`, `checksum_cache` | from a range of a file to its extents and checksums |
//! | `source`, `read` | reads, and readahead |
//! | `verity` | verification of reads by the hashes of fs-verity |
//! | `state` | a file that is being written: its dirty data and its reservations |
//! | `writeback`, `merge` | from dirty blocks to the disk; from the overlay to the trees |
//! | `write`, `truncate`, `fallocate`, `clone` | changes of a file that its caller requests |
//! | `defragment` | extents that are written again as fewer ones |
//! | `direct` | direct writes that are in flight without a lock |
//!
//! Left to others: the verification of bytes against checksums, mirrors and parity (`volume`); the
//! names of inodes (`names`); open handles and errnos (`fs`).

mod bounded_cache;
mod checksum_cache;
mod clone;
pub mod compress;
mod defragment;
mod direct;
mod error;
mod error_sequence;
mod extent_map;
mod fallocate;
mod in_flight;
mod merge;
mod overlay;
mod pending_total;
mod read;
mod sealed_file;
mod shared_file;
mod source;
mod spare_buffers;
mod state;
mod target;
#[cfg(test)]
mod test_volume;
mod truncate;
mod units;
mod verity;
mod wait;
mod write;
mod writeback;

pub use clone::CloneRange;
pub use compress::{BadCompressor, Compress, Compressor};
pub use defragment::{
    DefragmentPlan, DefragmentRule, ExaminedExtent, RewritePart, Rewritten, count_extents,
    start_of_last_extent,
};
pub use direct::{AllocationRun, DirectWrite, ReplacedSpace};
pub use error::FileError;
pub use error_sequence::ErrorCursor;
pub use extent_map::resolve::{DiskPlace, Resolved};
pub use extent_map::seek::{seek_data, seek_data_within, seek_hole, seek_hole_within};
pub use extent_map::view::FileView;
pub use extent_map::{Encoding, Mapping, MappingKind, Mappings};
pub use in_flight::RequestOwner;
pub use merge::dropped_extents::DroppedExtents;
pub use merge::{MergeFile, MergePass, PassStep, SharedMerge};
pub use read::ReadAt;
pub use read::stream::Stream;
pub use sealed_file::{read_descriptor, read_metadata, verity_keys};
pub use shared_file::InFlight;
pub use source::{Source, SourceOptions};
pub use state::{FallocateSize, FileState, InodeUpdate};
pub use units::FILE_BYTES_MAX;
pub use writeback::batch::WritebackBatch;
