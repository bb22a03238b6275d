//! The command line, run as its users run it.
//!
//! Needs `mkfs.btrfs`; those that say so need root, loop devices and FUSE too, and
//! `BUTTERNUT_NO_KERNEL=1` leaves them out.

#![allow(
    clippy::unwrap_used,
    clippy::print_stderr,
    reason = "helpers of tests panic as tests do, and say what is left out"
)]

mod change;
mod check;
mod command;
mod control;
mod directories;
mod dump_tree;
mod ending;
mod errors;
mod export;
mod further;
mod hostile;
mod image;
mod import;
mod listing;
mod mkfs;
mod mount;
mod node_numbers;
mod pages;
mod progs;
mod troubles;
