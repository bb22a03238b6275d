//! Floor 0: the machine. The only crate with `unsafe`: `io_uring`, aligned memory, raw files,
//! parity, signals.
//!
//! It knows nothing of btrfs and holds no policy.

pub mod affinity;
pub mod allocations;
pub mod arena;
mod block;
pub mod buffer;
pub mod buffers;
pub mod clock;
pub mod descriptors;
pub mod errno;
pub mod file;
pub mod forbid;
pub mod frames;
pub mod fuse_device;
pub mod holder;
pub mod mapped;
pub mod mount_users;
pub mod mounts;
pub mod parity;
pub mod random;
pub mod ring;
pub mod scribble;
pub mod signal;
pub mod slabs;
pub mod text;
pub mod workers;
