//! Files written on volumes in memory, against vectors of bytes.

#![allow(
    clippy::unwrap_used,
    clippy::cast_possible_truncation,
    reason = "a test that panics has failed; its patterns keep the low bits"
)]

mod crashes;
mod faults;
mod model;
mod packing;
mod script;
mod shared_merge;
mod volume;
