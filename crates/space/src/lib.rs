//! Floor 3: the free space of a volume. Never reads a tree, never touches a device.
//!
//! [`Space`] knows for every block group which bytes are free, allocated, or pinned: freed in a
//! transaction that is not committed yet. `tree` adds the block groups when it opens a volume for
//! writing, allocates ranges from them, and reads at each commit which groups changed.
//!
//! ```text
//!            allocate                      pin (freed in a transaction)
//!     free  ---------->  allocated  ---------------------------------->  pinned
//!      ^                  |     ^                                          |
//!      +----- release ----+     +----- unpin_to_caller (for a discard) ----+
//!      +------------------------------ unpin (its commit is complete) -----+
//! ```
//!
//! Laws:
//! 1. An allocated range is not allocated again before it was released or unpinned.
//! 2. Pinned bytes cannot be allocated.
//! 3. In every group, free, allocated, pinned and excluded bytes add up to its size.
//! 4. A reservation is granted only while the free bytes cover all reservations of its class and
//!    the global reserve. A reservation for a deletion leaves half of the global reserve alone, one
//!    for changes that were reserved before leaves a quarter.
//! 5. No range crosses the border of a group. Addresses and lengths are multiples of the alignment
//!    that the request names.
//! 6. A call waits for nothing but the one lock, which each holder keeps for a bounded time.
//!
//! There is one lock, and no code of this crate calls out while it holds the lock.

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
mod next_profile;
mod pin;
mod pinned;
mod reservation;
mod resize;
mod state;
mod super_stripes;
mod trim;
mod window;

pub use account::{ExtentChange, GroupChange, Totals};
pub use class::{AllocationRequest, Class, Cluster};
pub use devices::{DeviceExtent, DeviceUsage};
pub use error::{NoSpace, SpaceError};
pub use group::{Group, GroupStatus};
pub use new_chunk::ChunkPlan;
pub use reservation::Reservation;
pub use resize::NextEnd;
pub use state::{Space, SpaceOptions};
pub use super_stripes::excluded_ranges;
