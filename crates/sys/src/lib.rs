//! Floor 0: the machine. The only crate with `unsafe`: `io_uring`, aligned memory, raw files, parity.
//!
//! It knows nothing of btrfs and holds no policy.

pub mod alloc_count;
pub mod arena;
pub mod buffer;
pub mod errno;
pub mod file;
pub mod holder;
pub mod parity;
