//! Errors of tree searches, changes and commits.

use butternut_format::key::Key;
use butternut_format::quota::QgroupId;
use butternut_format::refused::Refused;
use butternut_format::units::{Logical, TreeId};
use butternut_space::SpaceError;
use butternut_volume::VolumeError;
use std::sync::Arc;

/// An error of a search, a change or a commit.
#[derive(Debug, thiserror::Error)]
pub enum TreeError {
    /// No mirror of the block can be read.
    #[error("tree {tree}: block {logical} cannot be read")]
    Block {
        tree: TreeId,
        logical: Logical,
        #[source]
        source: Box<VolumeError>,
    },
    /// The volume refused the devices or chunks that the chunk tree describes.
    #[error("the volume cannot be assembled from its chunk tree")]
    Assemble(#[source] Box<VolumeError>),
    /// Two blocks, or a block and an item, contradict each other.
    #[error("tree {tree} is corrupt")]
    Corrupt {
        tree: TreeId,
        #[source]
        source: Refused,
    },
    #[error("there is no tree {tree}")]
    NoTree { tree: TreeId },
    #[error("tree {tree} has an item {key} already")]
    Exists { tree: TreeId, key: Key },
    #[error("tree {tree}: item {key} has {bytes} bytes, a leaf holds {bytes_max}")]
    TooLarge { tree: TreeId, key: Key, bytes: usize, bytes_max: usize },
    #[error("no space for {bytes} bytes")]
    NoSpace { bytes: u64 },
    /// A limit of a quota group leaves no room for the change, which was not begun.
    #[error("the limit of quota group {group} is reached")]
    QuotaExceeded { group: QgroupId },
    /// The usage of the quota groups could not be computed. What was asked for is done, and the
    /// numbers are inconsistent.
    #[error("the usage of the quota groups cannot be computed, and is inconsistent")]
    QuotaUsage {
        #[source]
        source: Arc<TreeError>,
    },
    /// The call would have to wait, and its caller forbids it.
    #[error("the call would block")]
    WouldBlock,
    /// The volume was opened for reading.
    #[error("the volume is not open for writing")]
    NotWritable,
    /// The volume has a feature or a state that cannot be written.
    #[error("the volume cannot be written")]
    Unwritable(#[source] Refused),
    /// A commit failed, or a change was interrupted, and the volume has been read-only since.
    #[error("the volume is read-only because of an earlier error")]
    ReadOnly {
        #[source]
        cause: Arc<TreeError>,
    },
    /// Writing to the devices has ended, so there is no commit for these changes.
    #[error("writing has ended before these changes")]
    Ended,
    /// A thread panicked during a change and may have left half of it.
    #[error("a thread panicked in the middle of a change")]
    Panicked,
    /// A commit failed to write.
    #[error("transaction {generation} cannot be written")]
    Commit {
        generation: u64,
        #[source]
        source: Box<VolumeError>,
    },
    /// The log of a transaction failed to be flushed, or its superblock to be written.
    #[error("the log of transaction {generation} cannot be written")]
    Log {
        generation: u64,
        #[source]
        source: Box<VolumeError>,
    },
    #[error("the requested change is not valid")]
    Invalid(#[source] Refused),
    #[error("free space cannot be discarded")]
    Discard(#[source] Box<VolumeError>),
    /// The trees contradict each other about the space.
    #[error("the space accounting of the volume is inconsistent")]
    Space(#[source] Box<SpaceError>),
}
