//! Floor 0: the on-disk format of btrfs.
//!
//! Every structure has two types: a `Raw` type has the bytes as they are on disk (little-endian,
//! unaligned, size asserted), and a checked type is proof that they passed its check. Checks run
//! once, after every read and before every write; the floors above rely on the type.
//!
//! This crate never does I/O, never reads a clock, and never panics or allocates without bound on
//! any input.

#![deny(clippy::as_conversions, clippy::indexing_slicing)]
#![cfg_attr(
    test,
    allow(
        clippy::as_conversions,
        clippy::indexing_slicing,
        reason = "a test that panics has failed"
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
pub mod stream;
pub mod super_block;
pub mod units;
pub mod uuid;
pub mod verity;
