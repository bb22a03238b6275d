//! Why a tree could not be searched or changed.

use butternut_format::key::Key;
use butternut_format::refused::Refused;
use butternut_format::units::{Logical, TreeId};
use butternut_space::SpaceError;
use butternut_volume::VolumeError;
use std::sync::Arc;

/// An error of a search, a change or a commit.
#[derive(Debug, thiserror::Error)]
pub enum TreeError {
    /// The block could not be had from any copy.
    #[error("tree {tree}: block {logical} cannot be read")]
    Block {
        tree: TreeId,
        logical: Logical,
        #[source]
        source: Box<VolumeError>,
    },
    /// The volume refused what the chunk tree says of its devices and chunks.
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
    #[error("no space for {wanted} bytes")]
    NoSpace { wanted: u64 },
    /// The volume was opened for reading.
    #[error("the volume is not open for writing")]
    NotWritable,
    /// The volume must not be written, for what it is.
    #[error("the volume cannot be written")]
    Unwritable(#[source] Refused),
    /// A commit failed, or a change stopped half-way; nothing is written any more.
    #[error("the volume is read-only since an error")]
    ReadOnly {
        #[source]
        cause: Arc<TreeError>,
    },
    /// A thread panicked while it changed something: what it left may be half a change.
    #[error("a thread panicked in the middle of a change")]
    Panicked,
    /// A commit could not write what it had to.
    #[error("transaction {generation} cannot be written")]
    Commit {
        generation: u64,
        #[source]
        source: Box<VolumeError>,
    },
    #[error("the volume cannot be changed like that")]
    Invalid(#[source] Refused),
    #[error("free space cannot be discarded")]
    Discard(#[source] Box<VolumeError>),
    /// What the trees say of the space does not fit together.
    #[error("the volume's space cannot be accounted for")]
    Space(#[source] Box<SpaceError>),
}
