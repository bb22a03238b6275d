//! Floor 4: copy-on-write B-trees. Never knows files or names.
//!
//! A [`Forest`] is the set of trees of one volume and the node cache they share. A [`Tree`] is one
//! root in it: fixed where the volume is only read, and where it is open for writing whatever the
//! running transaction makes of it. A [`Cursor`] is a position in a tree, an [`Item`] a leaf slot
//! that keeps its block alive. Who holds a [`Handle`] takes part in the transaction, and changes
//! trees by [`TreeEdit`]s until he drops it.
//!
//! Laws:
//!
//! 1. A block reached from a parent has the level, generation and first key the parent promises,
//!    whether it came from the device or from the cache; so every descent ends.
//! 2. A committed block is immutable: readers share it and take no lock.
//! 3. The cache never holds more blocks than its byte limit allows.
//!
//! Left to others: what items mean (`format`), where blocks lie (`volume`).

#![deny(clippy::as_conversions, clippy::indexing_slicing)]
#![cfg_attr(test, allow(clippy::indexing_slicing, reason = "a test may panic"))]

mod block_groups;
mod cache;
mod chunks;
mod commit;
mod cursor;
mod data;
mod delayed_sums;
mod device_stats;
mod edit;
mod error;
mod forest;
mod free_space;
mod live;
mod readers;
mod references;
mod refusals;
mod room;
mod running;
mod sums;
mod transaction;
mod tree;
mod upkeep;
mod writable;

pub use cache::CacheCounters;
pub use cursor::Cursor;
pub use data::DATA_EXTENT_BYTES_MAX;
pub use error::TreeError;
pub use forest::{Forest, ForestOptions};
pub use live::change::{Alter, Change};
pub use readers::Reading;
pub use refusals::Refusals;
pub use transaction::{Handle, Need, PanicWatch, Purse, TreeEdit};
pub use tree::{Item, Tree};

use butternut_format::node::TreeBlock;
use butternut_sys::buffer::Buffer;

/// A tree block in the memory that the device read it into.
pub type Block = TreeBlock<Buffer>;
