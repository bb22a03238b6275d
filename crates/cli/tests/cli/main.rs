//! Tests of the command line as a program.
//!
//! They need `mkfs.btrfs`. Tests that call `kernel_tests_enabled` also need root, loop devices and
//! FUSE; `BUTTERNUT_NO_KERNEL=1` skips them.

#![allow(
    clippy::unwrap_used,
    clippy::print_stderr,
    reason = "helpers of tests panic as tests do, and say what is skipped"
)]

mod as_typed;
mod block_device;
mod block_device_errors;
mod browse;
mod btrfs_progs;
mod change;
mod check;
mod command;
mod control;
mod dedupe;
mod dedupe_mounted;
mod defragment;
mod directories;
mod dump_tree;
mod errors;
mod examples;
mod export;
mod files_mounted;
mod further_mounts;
mod further_mounts_race;
mod hints;
mod hostile;
mod image;
mod import;
mod import_tar;
mod installing;
#[path = "../../../fs/tests/suite/kernel_history.rs"]
mod kernel_history;
#[path = "../../../fs/tests/suite/kernel_received.rs"]
mod kernel_received;
mod lab;
mod limited_calls;
mod listing;
mod long_mount_tables;
mod man_pages;
mod messages;
mod mkfs;
mod mkfs_interrupted;
mod mkfs_overlap;
mod mkfs_quotas;
mod mkswapfile;
mod mount;
mod mount_end;
mod mount_end_hung;
mod mount_start;
mod node_ids;
mod other_users_mount;
mod partitions;
mod quotas;
mod receive;
mod receive_interrupted;
mod receive_mounted;
mod recursive_snapshots;
mod rescued_reads;
mod send;
mod send_histories;
mod send_mounted;
mod send_real_trees;
mod stream_effects;
mod subvolume_lookups;
mod subvolume_renames;
mod subvolumes;
mod subvolumes_in_use;
mod subvolumes_mounted;
mod subvolumes_named;
mod tree_search;
mod unresponsive;
mod verity;
mod volumes_mounted;
