//! The laws of what a subvolume and the tree log are made of: inodes, names, xattrs, file extents.

use super::{Around, LeafItem};
use crate::refused::Refused;

/// Checks one item whose type belongs to a subvolume; others pass.
pub(super) fn item(_item: &LeafItem<'_>, _around: &Around<'_>) -> Result<(), Refused> {
    // A type that belongs to no subvolume is another family's.
    Ok(())
}
