//! Floor 4: copy-on-write B-trees and the transaction that changes them. Knows no files or names.
//!
//! A [`Forest`] is the set of trees of one volume and the node cache that they share. A [`Tree`] is
//! one root in it: on a volume that is open for reading it is fixed, and on one that is open for
//! writing it follows the running transaction. A [`Cursor`] is a position in a tree. An [`Item`] is
//! a leaf slot that keeps its block alive. A caller that holds a [`Handle`] is part of the running
//! transaction: it changes trees with [`TreeEdit`]s until it drops the handle.
//!
//! A file imports files of lower layers, and of its own:
//!
//! ```text
//! forest        Forest, and its methods: joining, reserving, committing, data, log,
//!               administration; drop_tree: a method of Handle
//! commit steps  commit::context, checksum_tree, references::apply, chunks, device_stats,
//!               quota::account
//! transaction   running, TreeEdit; cow::copy, cow::shape, cow::change
//! waiting       references, pending_checksums, chunks::changes, quota: in memory until the
//!               commit
//! trees         Tree, Cursor, committed; cow: a tree as the running transaction has it
//! blocks        blocks and their cache, one step of a search; the gate, read epochs
//! ```
//!
//! Laws:
//!
//! 1. A block reached from a parent has the level, generation and first key that the parent names,
//!    whether it comes from a device or from the cache. So every descent ends.
//! 2. A committed block is immutable: readers share it and take no lock.
//! 3. The node cache holds at most as many blocks as its byte limit allows, or 64 if that is more.
//!
//! Left to others: what items mean (`format`), where blocks lie (`volume`).

#![deny(clippy::as_conversions, clippy::indexing_slicing)]
#![cfg_attr(test, allow(clippy::indexing_slicing, reason = "a test may panic"))]

mod admin;
mod block_edit;
mod blocks;
mod cache;
mod checksum_tree;
mod chunks;
mod committed;
mod cow;
mod cursor;
mod data;
mod device_stats;
mod drop_tree;
mod error;
mod forest;
mod log;
mod pending_checksums;
mod quota;
mod references;
mod search;
mod transaction;
mod tree;

pub use cache::CacheCounters;
pub use cow::change::{Alter, Change};
pub use cursor::Cursor;
pub use data::DATA_EXTENT_BYTES_MAX;
pub use drop_tree::Dropped;
pub use error::TreeError;
pub use forest::{Forest, ForestOptions};
pub use log::{
    CommitReason, InodeChanges, InodeLog, LogClaim, LogCounters, LogEntry, LogTicket, LoggedName,
    SubvolumeLog,
};
pub use quota::admin::{Qgroup, QgroupLimits, QuotaMode, Quotas};
pub use quota::charge::QuotaHold;
pub use quota::count::{QgroupCount, QuotaCheck};
pub use quota::groups::QgroupUsage;
pub use transaction::commit::at_commit::AtCommit;
pub use transaction::enospc::EnospcInjector;
pub use transaction::global_reserve::REFERENCES_PER_PART;
pub use transaction::read_epochs::ReadEpoch;
pub use transaction::{Handle, Need, PanicWatch, ReservationLevel, TreeEdit};
pub use tree::{Item, Tree};

use butternut_format::node::TreeBlock;
use butternut_sys::buffer::Buffer;

/// A tree block in the memory that the device read it into.
pub type Block = TreeBlock<Buffer>;
