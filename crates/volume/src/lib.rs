//! Floor 2: maps logical addresses to devices, by profile. It never reads a tree.
//!
//! A [`Volume`] is opened over the devices that the caller gives. It maps logical addresses through
//! its chunks to stripes on those devices, reads one mirror, verifies what it read, and reads
//! another mirror or reconstructs from parity if that is bad. It writes every mirror; a mirror
//! whose write failed is counted and reported, and the write succeeds as long as the profile
//! tolerates the failure. The caller reads the chunk tree and installs its chunks and device items
//! here. The contents of tree blocks are not interpreted here, except to check them.

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
mod checksums;
mod chunk_map;
mod data_queue;
mod device_events;
mod discard;
mod error;
mod in_place;
mod last_super;
mod members;
mod own_supers;
mod profile;
mod queue_pool;
mod read_batch;
mod read_block;
mod read_data;
mod rescue;
mod sectors;
mod stale_ranges;
mod stripe;
pub mod super_blocks;
mod tolerance;
mod volume;
mod write_batch;
mod write_data;
mod write_guard;

pub use barrier::NotDurable;
pub use chunk_map::Chunks;
pub use data_queue::{DataDone, DataQueue, DataQueueOptions, SubmitError};
pub use device_events::{DeviceEvent, DeviceEventKind};
pub use error::{BadRange, ReadSource, SourceFault, SourceVerdict, Unreadable, VolumeError, chain};
pub use members::{DeviceStatus, ErrorCounts};
pub use profile::ProfileAttributes;
pub use read_data::DataRead;
pub use rescue::counts::RescueCounts;
pub use sectors::Checksums;
pub use stripe::{IoStripe, Layout, Segment};
pub use volume::{OpenOptions, Volume};
pub use write_data::DataWrite;
