//! Floor 5: a file's bytes. Never knows paths, names or open handles.
//!
//! A [`FileView`] is one file in one state of its subvolume; a [`Source`] is what reads of all the
//! files of a volume share; a [`Stream`] reads an open file, and ahead of its reader. [`Mappings`]
//! is the one mapper, from a range of the file to where its bytes live; reads, seeks and listings
//! of extents all ask it.
//!
//! ```text
//! read_at, read_many -> plan (searches trees) -> one batch to the volume -> unpack -> copy
//! ```
//!
//! Left to others: checksums against bytes, copies and parity (`volume`); what an inode is called
//! (`names`); open handles and errno (`fs`).

mod cache;
pub mod compress;
mod error;
mod live;
mod map;
mod overlay;
mod piece;
mod plan;
mod read;
mod rewrite;
mod seek;
mod source;
mod state;
mod stream;
mod sums;
mod unpack;
mod view;

pub use error::FileError;
pub use map::{Mapping, MappingKind, Mappings, Packing};
pub use read::ReadAt;
pub use seek::{seek_data, seek_hole};
pub use source::{Source, SourceOptions};
pub use state::{FileEnd, FileState, Merging, Stamp};
pub use stream::Stream;
pub use view::{FILE_BYTES_MAX, FileView};
