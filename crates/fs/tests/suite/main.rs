//! The tests of the library, as one program, because each program is linked with the whole engine.
//! Tests that count the allocations of their process are programs of their own.

#![allow(
    clippy::unwrap_used,
    clippy::print_stderr,
    clippy::manual_assert,
    clippy::cast_possible_truncation,
    reason = "tests panic on failure, print what is left out, and their numbers are small"
)]

mod admin;
mod busy_files;
mod clone;
mod clone_failures;
mod commit_budgets;
mod damage;
mod damaged_names;
mod damaged_neighbour;
mod defragment;
mod device_failures;
mod end_writes;
mod freed_leaves;
mod full_drops;
mod hostile_chunks;
mod hostile_entries;
mod hostile_generation;
mod hostile_order;
mod hostile_space;
mod identity;
#[path = "../image/mod.rs"]
mod image;
mod kernel;
mod kernel_accounts;
mod kernel_chain;
mod kernel_compare;
mod kernel_drops;
mod kernel_history;
#[path = "../kernel_image/mod.rs"]
mod kernel_image;
mod kernel_many_snapshots;
mod kernel_quota;
mod kernel_received;
mod kernel_references;
mod kernel_send;
mod kernel_simple_quota;
mod kernel_streams;
mod kernel_subvolumes;
mod kernel_writes;
mod lanes;
mod leaf;
mod log_names;
mod log_space;
mod memory_bounds;
mod orphans;
mod page_cache;
mod paths;
mod preallocated_again;
mod queue;
mod queue_devices;
mod queue_nowait;
mod quotas;
mod receive;
mod receive_resumed;
mod recursive_snapshots;
mod sealed_files;
mod send;
mod send_clones;
mod send_live;
mod space_returns;
mod stable_pages;
mod std_io;
mod subvolume_renames;
mod subvolumes;
mod sync_under_writers;
mod tunables;
mod verity;
mod verity_damaged;
mod volume;
mod write_attributes;
mod write_compression;
mod write_data;
mod write_errors;
mod write_full;
mod write_names;
