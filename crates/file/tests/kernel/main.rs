//! Reads, maps and seeks of files that the kernel wrote, against what the kernel says of them.
//!
//! Needs root, loop devices and mkfs.btrfs; `BUTTERNUT_NO_KERNEL=1` leaves these tests out.

#![allow(
    clippy::unwrap_used,
    clippy::cast_possible_truncation,
    reason = "a test that panics has failed; its patterns keep the low bits"
)]

mod content;
mod image;
mod reads;
mod rot;
#[path = "../writes/script.rs"]
mod script;
mod seeks;
mod writes;
