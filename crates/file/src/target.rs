//! [`Target`]: where a run of blocks is to be written.

use butternut_format::file_extent::DiskExtent;
use butternut_format::units::Logical;

/// Where a run of blocks is to be written. [`crate::write::target`] states when a block is written
/// in place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Target {
    /// To space that is allocated for it.
    New,
    /// Into preallocated space.
    Preallocated { extent: DiskExtent, skip: u64 },
    /// Over the data that is there (nodatacow).
    Overwrite(Logical),
}

impl Target {
    /// The target of the blocks `bytes` further on.
    pub(crate) fn advanced(self, bytes: u64) -> Self {
        match self {
            Self::New => Self::New,
            Self::Preallocated { extent, skip } => {
                Self::Preallocated { extent, skip: skip + bytes }
            }
            Self::Overwrite(logical) => Self::Overwrite(Logical(logical.0 + bytes)),
        }
    }

    /// The logical address, unless it is still to be allocated.
    pub(crate) fn logical(self) -> Option<Logical> {
        match self {
            Self::New => None,
            Self::Preallocated { extent, skip } => {
                Some(Logical(extent.logical.0.saturating_add(skip)))
            }
            Self::Overwrite(logical) => Some(logical),
        }
    }
}
