//! Floor 0: what the bytes of a btrfs volume mean.
//!
//! Every structure exists twice: a `Raw` type is the bytes as they lie on disk (little-endian,
//! unaligned, size asserted), and a checked type is proof that they passed the check beside it.
//! Checks run once, after every read and before every write; floors above trust the type.
//!
//! This crate never does I/O, never reads a clock, and never panics or allocates without bound on
//! any input.

#![deny(clippy::as_conversions, clippy::indexing_slicing)]
#![cfg_attr(
    test,
    allow(
        clippy::as_conversions,
        clippy::indexing_slicing,
        reason = "a test that panics has failed, as it should"
    )
)]

pub mod balance;
pub mod block_group;
pub mod check;
pub mod checksum;
pub mod chunk;
pub mod device_extent;
pub mod device_item;
pub mod dir;
pub mod extent;
pub mod feature;
pub mod file_extent;
pub mod free_space;
pub mod inode;
pub mod inode_ref;
pub mod key;
pub mod log_item;
pub mod node;
pub mod orphan;
pub mod quota;
pub mod refused;
pub mod root;
pub mod root_ref;
pub mod super_block;
pub mod units;
pub mod uuid;
pub mod verity;
