//! Files written on volumes in memory, compared with vectors of bytes.

#![allow(
    clippy::unwrap_used,
    clippy::cast_possible_truncation,
    reason = "a test that panics has failed; its patterns keep the low bits"
)]

mod changing_extents;
mod compressed_merges;
mod compression;
mod crashes;
mod damaged_leaf;
mod faults;
mod in_flight;
mod model;
mod nowait;
mod preallocated;
mod readahead;
mod script;
mod shared_merge;
mod uncached_streams;
mod volume;
