//! Who points at an extent: from a logical address to inodes.

use crate::backref::{Backrefs, Holder, VISITS_MAX};
use crate::{Error, Filesystem, Result};
use butternut_format::units::Logical;
use std::collections::BTreeSet;
use std::ops::ControlFlow;

/// One reference to a data extent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ExtentOwner {
    pub subvolume: u64,
    pub ino: u64,
    /// Where in the file the address shows, in bytes. For a compressed extent, and with
    /// `any_offset`, where the file's part of the extent starts.
    pub offset: u64,
}

impl Filesystem {
    /// Every file that holds the byte at `logical`, in every subvolume, in order. With
    /// `any_offset`, files that hold another part of the same extent count too.
    ///
    /// # Errors
    /// [`Error::NotFound`] where no extent covers the address, [`Error::InvalidArgument`] where
    /// the one that does is a tree block, [`Error::LimitExceeded`] past a million references.
    pub fn owners_of_logical(&self, logical: u64, any_offset: bool) -> Result<Vec<ExtentOwner>> {
        let mut owners = BTreeSet::new();
        self.each_owner(logical, any_offset, |owner| {
            owners.insert(owner);
            ControlFlow::Continue(())
        })?;
        debug_assert!(u64::try_from(owners.len()).is_ok_and(|count| count <= VISITS_MAX));
        Ok(owners.into_iter().collect())
    }

    /// The owner that is found first, whichever part of the extent it shows.
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
        search.each_holder(&extent, |holder| match shown_at(&holder, wanted) {
            Some(offset) => each(holder.owner(offset)),
            None => ControlFlow::Continue(()),
        })?;
        Ok(())
    }
}

/// Where in its file a holder shows the byte at `wanted` of the extent, if it does.
fn shown_at(holder: &Holder, wanted: Option<u64>) -> Option<u64> {
    let Some(wanted) = wanted.filter(|_| !holder.is_compressed) else {
        return Some(holder.file_offset);
    };
    let into = wanted.checked_sub(holder.extent_offset).filter(|into| *into < holder.bytes)?;
    holder.file_offset.checked_add(into)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_shows_only_its_own_part_of_an_extent() {
        let holder = Holder {
            subvolume: 5,
            ino: 257,
            file_offset: 40960,
            extent_offset: 8192,
            bytes: 4096,
            is_compressed: false,
        };
        assert_eq!(shown_at(&holder, Some(8192 + 100)), Some(40960 + 100));
        assert_eq!(shown_at(&holder, Some(8191)), None);
        assert_eq!(shown_at(&holder, Some(12288)), None);
        assert_eq!(shown_at(&holder, None), Some(40960));
        let packed = Holder { is_compressed: true, ..holder };
        assert_eq!(shown_at(&packed, Some(0)), Some(40960));
    }
}
