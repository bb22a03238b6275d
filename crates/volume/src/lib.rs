//! Floor 2: logical addresses over devices, by profile. Never reads a tree.
//!
//! A [`Volume`] is made of the devices that were given; it maps logical addresses to them through
//! its chunks, reads from the copy that costs least, verifies what it read, and asks the other
//! copies (or the parity) where it is wrong. What it writes goes to every copy; a copy that a
//! failing device misses is counted and reported, as far as the profile tolerates it. Chunks and
//! device items are fed to it by the reader of the chunk tree; what the blocks mean is not its
//! business.

#![deny(clippy::as_conversions, clippy::indexing_slicing)]
#![cfg_attr(
    test,
    allow(clippy::as_conversions, clippy::indexing_slicing, reason = "a test may panic")
)]
#![cfg_attr(
    test,
    allow(clippy::cast_possible_truncation, reason = "test patterns keep the low bits")
)]

mod barrier;
mod chunk_map;
mod data_queue;
mod discard;
mod error;
mod lanes;
mod members;
mod missed;
mod profile;
mod read_block;
mod read_data;
mod request;
mod rescue;
mod stripe;
mod sums;
pub mod super_blocks;
mod tolerance;
mod troubles;
mod volume;
mod write_data;
mod write_run;

pub use chunk_map::Chunks;
pub use data_queue::{DataDone, DataQueue, DataQueueOptions, NotTaken};
pub use error::{BadRange, CopyFault, CopyKind, CopyVerdict, Unreadable, VolumeError, chain};
pub use members::{DeviceStatus, ErrorCounts};
pub use profile::Facts;
pub use read_data::{DataRead, Sums};
pub use rescue::RescueCounts;
pub use stripe::{Layout, Piece, Place};
pub use troubles::{Trouble, TroubleKind};
pub use volume::{OpenOptions, Volume};
pub use write_data::DataWrite;
