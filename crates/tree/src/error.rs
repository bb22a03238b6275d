//! Why a tree could not be searched.

use butternut_format::refused::Refused;
use butternut_format::units::{Logical, TreeId};
use butternut_volume::VolumeError;

/// An error of a search or an iteration.
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
}
