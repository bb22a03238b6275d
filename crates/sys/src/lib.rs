//! Floor 0: access to the machine: `io_uring`, aligned memory, raw files, locks, mounts, signals;
//! and parity arithmetic. Only this crate and one file of `fio` have `unsafe` code.
//!
//! It knows nothing of btrfs and decides no policy.

pub mod affinity;
pub mod allocations;
pub mod arena;
pub mod block_device;
pub mod buffer;
pub mod buffers;
pub mod clock;
pub mod defragment_calls;
pub mod descriptors;
pub mod errno;
pub mod event;
pub mod extent_calls;
pub mod file;
pub mod forbid;
pub mod frames;
pub mod fuse_device;
pub mod fuse_node;
pub mod holder;
pub mod lock;
pub mod mapped;
pub mod mount_users;
pub mod mounts;
pub mod parity;
pub mod peer;
pub mod priority;
pub mod private_fd_table;
mod process_search;
pub mod random;
pub mod ring;
pub mod scribble;
pub mod signal;
pub mod slabs;
pub mod storage;
pub mod subvolume_calls;
pub mod text;
pub mod tree_search_calls;
pub mod verity_calls;
pub mod volume_calls;
pub mod wait;
pub mod workers;
