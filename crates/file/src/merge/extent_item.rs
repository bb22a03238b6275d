//! [`ExtentItem`]: one extent item of a file, to be cut, joined or replaced.
//!
//! Laws:
//!
//! 1. Cutting an item leaves the mapping of the remaining bytes as it was. An inline item cannot be
//!    cut.
//! 2. Two items are joined only where one item can represent both.

use butternut_format::file_extent::{Compression, DiskExtent, ExtentBody, ExtentRun, FileExtent};
use butternut_format::refused::Refused;
use butternut_format::units::Generation;
use std::ops::Range;

/// One extent item of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ExtentItem<'a> {
    /// Offset in the file, in bytes.
    pub(crate) start: u64,
    /// An inline item that was read from the tree holds no bytes: it can only be dropped.
    pub(crate) extent: FileExtent<'a>,
    /// Created or changed by the running transaction, whose generation is set when it is applied.
    pub(crate) is_new: bool,
}

/// A reference to a data extent: the extent, and the file offset at which it would start.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Reference {
    pub(crate) extent: DiskExtent,
    /// Wraps below 0 where a clone shows only the end of an extent at the start of the file.
    pub(crate) offset: u64,
}

impl<'a> ExtentItem<'a> {
    pub(crate) fn new(start: u64, extent: FileExtent<'a>) -> Self {
        Self { start, extent, is_new: true }
    }

    /// Parses the item at `start` of the file.
    pub(crate) fn from_item(start: u64, data: &[u8]) -> Result<ExtentItem<'static>, Refused> {
        let FileExtent { generation, ram_bytes, compression, body } =
            FileExtent::check(data, start)?;
        let body = match body {
            ExtentBody::Inline(_) => ExtentBody::Inline(&[]),
            ExtentBody::Regular { disk, run } => ExtentBody::Regular { disk, run },
            ExtentBody::Hole { num_bytes } => ExtentBody::Hole { num_bytes },
            ExtentBody::Preallocated { disk, run } => ExtentBody::Preallocated { disk, run },
        };
        let extent = FileExtent { generation, ram_bytes, compression, body };
        Ok(ExtentItem { start, extent, is_new: false })
    }

    /// A hole item, for a volume without the no-holes feature.
    pub(crate) fn hole(range: Range<u64>) -> Self {
        Self::new(range.start, FileExtent::hole(Generation(0), range.end - range.start))
    }

    pub(crate) fn end(&self) -> u64 {
        self.start.saturating_add(self.extent.file_bytes())
    }

    /// Bytes that the item adds to the inode's byte count.
    pub(crate) fn bytes_used(&self) -> u64 {
        match self.extent.body {
            ExtentBody::Inline(_) => self.extent.ram_bytes,
            ExtentBody::Hole { .. } => 0,
            ExtentBody::Regular { run, .. } | ExtentBody::Preallocated { run, .. } => run.num_bytes,
        }
    }

    pub(crate) fn is_inline(&self) -> bool {
        matches!(self.extent.body, ExtentBody::Inline(_))
    }

    pub(crate) fn reference(&self) -> Option<Reference> {
        match self.extent.body {
            ExtentBody::Inline(_) | ExtentBody::Hole { .. } => None,
            ExtentBody::Regular { disk, run } | ExtentBody::Preallocated { disk, run } => {
                Some(Reference { extent: disk, offset: self.start.wrapping_sub(run.offset) })
            }
        }
    }

    /// The parts of the item before and after `range`, which it overlaps.
    pub(crate) fn without(
        &self,
        range: &Range<u64>,
    ) -> Result<(Option<Self>, Option<Self>), Refused> {
        let (has_front, has_back) = (self.start < range.start, range.end < self.end());
        if self.is_inline() && (has_front || has_back) {
            return Err(Refused::new("type", "inline", "regular, where only a part is replaced"));
        }
        let front = has_front.then(|| self.part(self.start, range.start));
        let back = has_back.then(|| self.part(range.end, self.end()));
        Ok((front, back))
    }

    /// The part from `start` to `end`, which the item covers.
    pub(crate) fn part(&self, start: u64, end: u64) -> Self {
        let (skip, num_bytes) = (start - self.start, end - start);
        let cut = |run: ExtentRun| ExtentRun { offset: run.offset.saturating_add(skip), num_bytes };
        let mut extent = self.extent;
        match &mut extent.body {
            ExtentBody::Inline(_) => {}
            ExtentBody::Hole { num_bytes: bytes } => {
                *bytes = num_bytes;
                extent.ram_bytes = num_bytes;
            }
            ExtentBody::Regular { run, .. } | ExtentBody::Preallocated { run, .. } => {
                *run = cut(*run);
            }
        }
        Self { start, extent, is_new: self.is_new }
    }

    /// Extends the item by `next`, if one item can represent both (law 2). Returns whether it did.
    pub(crate) fn join(&mut self, next: &Self) -> bool {
        let is_plain = self.extent.compression == Compression::None
            && next.extent.compression == Compression::None;
        if !is_plain || self.end() != next.start {
            return false;
        }
        match (&mut self.extent.body, next.extent.body) {
            (ExtentBody::Hole { num_bytes }, ExtentBody::Hole { num_bytes: more }) => {
                *num_bytes = num_bytes.saturating_add(more);
                self.extent.ram_bytes = *num_bytes;
            }
            (
                ExtentBody::Regular { disk, run },
                ExtentBody::Regular { disk: next_disk, run: next_run },
            )
            | (
                ExtentBody::Preallocated { disk, run },
                ExtentBody::Preallocated { disk: next_disk, run: next_run },
            ) => {
                let follows = run.offset.saturating_add(run.num_bytes) == next_run.offset;
                if *disk != next_disk || !follows {
                    return false;
                }
                run.num_bytes += next_run.num_bytes;
            }
            _ => return false,
        }
        self.is_new = true;
        true
    }
}
