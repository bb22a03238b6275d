//! Volumes that `mkfs.btrfs` and the kernel made, over loop devices, read through this crate alone.
//!
//! Needs root, loop devices and btrfs-progs; `BUTTERNUT_NO_KERNEL=1` leaves these tests out.

#![allow(
    clippy::unwrap_used,
    clippy::print_stderr,
    reason = "a test panics at the first failure and may print why"
)]

mod devices;
mod image;
mod profiles;
mod straddle;
mod survey;
