//! Floor 3: who may have which bytes. Never reads a tree, never touches a device.
//!
//! [`Space`] knows every block group: which of its bytes are free, which are in use, and which
//! were freed but must not be used again before a commit is down. It is fed at mount by who reads
//! the trees, hands out ranges to whoever writes, and tells at each commit what changed.
//!
//! ```text
//!              allocate                 pin (freed in a transaction)
//!     free  ------------->  taken  ------------------------------->  pinned
//!      ^                    |    ^                                      |
//!      +---- release -------+    +---- take_pinned (to discard) --------+
//!      +---------------------------- unpin (its commit is down) --------+
//! ```
//!
//! Laws:
//! 1. A range that was handed out is not handed out again before it was released or unpinned.
//! 2. Pinned bytes are not allocatable.
//! 3. In every group, free, taken, pinned and excluded bytes add up to its size.
//! 4. A ticket is granted only while what is free covers all tickets, and the reserve unless it
//!    was asked for urgently: then half of it.
//! 5. No range crosses the border of a group, and addresses have the alignment that was asked for.
//! 6. Nothing here waits for anything but the one lock, which is held for a bounded time.
//!
//! There is one lock, and nobody calls out of this crate while holding it.

#![deny(clippy::as_conversions, clippy::indexing_slicing)]
#![cfg_attr(
    test,
    allow(clippy::as_conversions, clippy::indexing_slicing, reason = "a test may panic")
)]

mod account;
mod allocator;
mod class;
mod devices;
mod error;
mod free;
mod group;
mod new_chunk;
mod pinned;
mod resize;
mod state;
mod super_stripes;
mod ticket;
mod trim;
mod window;

pub use account::{Delta, GroupChange, Totals};
pub use class::{Class, Cluster, Want};
pub use devices::{DeviceExtent, DeviceUsage};
pub use error::{NoSpace, SpaceError};
pub use group::{Group, GroupStatus};
pub use new_chunk::ChunkPlan;
pub use state::{Space, SpaceOptions};
pub use super_stripes::excluded_ranges;
pub use ticket::Ticket;
