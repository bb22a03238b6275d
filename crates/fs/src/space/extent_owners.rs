//! Owners of an extent: from a logical address to inodes.

use crate::space::backref::{Backrefs, ExtentRef, VISITS_MAX};
use crate::{Error, Filesystem, Result};
use butternut_format::units::Logical;
use std::collections::BTreeSet;
use std::ops::ControlFlow;

/// One reference to a data extent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ExtentOwner {
    pub subvolume: u64,
    pub ino: u64,
    /// Offset in the file of the byte at the address, in bytes. For a compressed extent, and with
    /// `any_offset`, the start of the file's range of the extent.
    pub offset: u64,
}

impl Filesystem {
    /// Returns every file that contains the byte at `logical`, in every subvolume, in order. With
    /// `any_offset`, also files that contain another part of the same extent.
    ///
    /// # Errors
    /// [`Error::NotFound`] if no extent contains the address, [`Error::InvalidArgument`] if the
    /// extent is a tree block, [`Error::LimitExceeded`] for more than a million references.
    pub fn owners_of_logical(&self, logical: u64, any_offset: bool) -> Result<Vec<ExtentOwner>> {
        let mut owners = BTreeSet::new();
        self.each_owner(logical, any_offset, |owner| {
            owners.insert(owner);
            ControlFlow::Continue(())
        })?;
        debug_assert!(u64::try_from(owners.len()).is_ok_and(|count| count <= VISITS_MAX));
        Ok(owners.into_iter().collect())
    }

    /// Returns the first owner that is found, of any part of the extent.
    pub(crate) fn first_owner_of_logical(&self, logical: u64) -> Result<Option<ExtentOwner>> {
        let mut first = None;
        self.each_owner(logical, true, |owner| {
            first = Some(owner);
            ControlFlow::Break(())
        })?;
        Ok(first)
    }

    fn each_owner(
        &self,
        logical: u64,
        any_offset: bool,
        mut each: impl FnMut(ExtentOwner) -> ControlFlow<()>,
    ) -> Result<()> {
        let mut search = Backrefs::new(self)?;
        let extent = search.covering(Logical(logical))?.ok_or(Error::NotFound)?;
        if extent.level.is_some() {
            return Err(Error::InvalidArgument { what: "the address is a tree block's" });
        }
        let wanted = (!any_offset).then(|| logical.saturating_sub(extent.start.0));
        search.each_ref(&extent, |extent_ref| match offset_in_file(&extent_ref, wanted) {
            Some(offset) => each(extent_ref.owner(offset)),
            None => ControlFlow::Continue(()),
        })?;
        Ok(())
    }
}

/// Returns the offset in the file of the byte at `wanted` of the extent, if the file extent
/// contains it.
fn offset_in_file(extent_ref: &ExtentRef, wanted: Option<u64>) -> Option<u64> {
    let Some(wanted) = wanted.filter(|_| !extent_ref.is_compressed) else {
        return Some(extent_ref.file_offset);
    };
    let into =
        wanted.checked_sub(extent_ref.extent_offset).filter(|into| *into < extent_ref.bytes)?;
    extent_ref.file_offset.checked_add(into)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_owns_only_its_own_range_of_an_extent() {
        let extent_ref = ExtentRef {
            subvolume: 5,
            ino: 257,
            file_offset: 40960,
            extent_offset: 8192,
            bytes: 4096,
            is_compressed: false,
            is_preallocated: false,
        };
        assert_eq!(offset_in_file(&extent_ref, Some(8192 + 100)), Some(40960 + 100));
        assert_eq!(offset_in_file(&extent_ref, Some(8191)), None);
        assert_eq!(offset_in_file(&extent_ref, Some(12288)), None);
        assert_eq!(offset_in_file(&extent_ref, None), Some(40960));
        let compressed = ExtentRef { is_compressed: true, ..extent_ref };
        assert_eq!(offset_in_file(&compressed, Some(0)), Some(40960));
    }
}
