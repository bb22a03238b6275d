//! [`Ref`]: a back reference of an extent, and how many changes of them are many.

use butternut_format::extent::DataRef;
use butternut_format::units::{Logical, TreeId};

/// Changed and dropped references that are many: about 160 bytes each.
pub(crate) const RECORDS_MAX: usize = if cfg!(test) { 1 << 14 } else { 1 << 20 };

/// A back reference of an extent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Ref {
    /// Of a tree block, by the tree that it belongs to.
    Tree(TreeId),
    /// Of a tree block, by the node that names it.
    Shared(Logical),
    /// Of data, by a file.
    Data(DataRef),
    /// Of data, by the leaf that names it.
    SharedData(Logical),
}

impl Ref {
    /// Makes the reference of a file. Its count is kept separately.
    pub(crate) fn data(data: DataRef) -> Self {
        Self::Data(DataRef { count: 1, ..data })
    }
}
