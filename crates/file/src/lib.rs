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
//! A [`FileState`] is a file that is being written. What is newer than its tree lies above it, in
//! an overlay that every read looks at first, and is merged into the trees from time to time.
//!
//! ```text
//! write_at -> dirty blocks -> flush: pack, one batch to the volume -> patches -> merge into trees
//! ```
//!
//! Left to others: checksums against bytes, copies and parity (`volume`); what an inode is called
//! (`names`); open handles and errno (`fs`).

mod assign;
mod at_once;
mod cache;
pub mod compress;
mod direct;
mod dirty;
mod down;
mod edge;
mod edit;
mod error;
mod error_sequence;
mod flush;
mod gone;
mod hole;
mod items;
mod known;
mod live;
mod map;
mod mapped;
mod merge;
mod overlay;
mod pack;
mod piece;
mod place;
mod plain;
mod plan;
mod promise;
mod read;
mod rewrite;
mod room;
mod seek;
mod small;
mod source;
mod state;
mod stream;
mod sums;
mod traffic;
mod truncate;
mod unpack;
mod view;
mod write;

pub use compress::{BadPacker, Packer};
pub use direct::{DirectPlace, DirectRoom, DirectWrite, InFlight, Patience};
pub use error::FileError;
pub use error_sequence::ErrorCursor;
pub use flush::Flight;
pub use gone::Gone;
pub use map::{Mapping, MappingKind, Mappings, Packing};
pub use merge::{MergePart, Merging};
pub use pack::Compress;
pub use read::ReadAt;
pub use seek::{seek_data, seek_hole};
pub use source::{Source, SourceOptions};
pub use state::{FileEnd, FileState, Stamp};
pub use stream::Stream;
pub use traffic::Help;
pub use view::{FILE_BYTES_MAX, FileView};
