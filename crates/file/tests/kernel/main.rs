//! Reads, maps and seeks of files that the kernel wrote, compared with the kernel's results.
//!
//! Needs root, loop devices and mkfs.btrfs. `BUTTERNUT_NO_KERNEL=1` skips these tests.

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
