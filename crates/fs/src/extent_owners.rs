//! Who points at an extent: from a logical address to inodes.

use crate::{Filesystem, Result};

/// One reference to a data extent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ExtentOwner {
    pub subvolume: u64,
    pub ino: u64,
    /// Where in the file the address shows, in bytes.
    pub offset: u64,
}

impl Filesystem {
    /// Every file that holds the byte at `logical`, in every subvolume. Empty where no data
    /// extent covers the address. With `any_offset`, files that hold another part of the same
    /// extent count too.
    ///
    /// # Errors
    /// [`Error::LimitExceeded`](crate::Error::LimitExceeded) past a million references.
    pub fn owners_of_logical(&self, logical: u64, any_offset: bool) -> Result<Vec<ExtentOwner>> {
        let _ = (logical, any_offset);
        self.not_yet(self.root())
    }
}
