//! [`DiskUsage`]: the space of files, shared and exclusive.
//!
//! Shared ranges are kept, so that each byte is counted once for all files. Those that overlap or
//! touch are merged before there are twice as many as the last merge has left, so memory grows with
//! the ranges of the volume, and not with the number of files and snapshots that share them.

use crate::space::backref::{Backrefs, on_disk};
use crate::{Error, FileId, FileKind, Filesystem, Result};
use butternut_format::file_extent::{Compression, FileExtent};
use butternut_format::key::{ItemType, Key};
use butternut_format::units::{Logical, TreeId};
use std::ops::ControlFlow;

/// A range of a shared extent: logical addresses, or offsets into the uncompressed bytes of a
/// compressed extent, together with the extent's address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct SharedRange {
    compressed: Option<Logical>,
    start: u64,
    end: u64,
}

/// Ranges that are not merged until there are this many.
const RANGES_MIN: usize = 1024;

/// Shared ranges, in no order. Two of them are equal if they contain the same bytes.
#[derive(Clone, Debug, Default)]
struct SharedRanges {
    ranges: Vec<SharedRange>,
    /// Their number after the last merge.
    merged: usize,
}

impl SharedRanges {
    fn add(&mut self, more: &[SharedRange]) {
        self.ranges.extend_from_slice(more);
        if self.ranges.len() > self.merged.max(RANGES_MIN) * 2 {
            self.merge();
        }
    }

    fn merge(&mut self) {
        self.ranges.sort_unstable();
        self.ranges.dedup_by(|next, last| {
            let joins = next.compressed == last.compressed && next.start <= last.end;
            if joins {
                last.end = last.end.max(next.end);
            }
            joins
        });
        self.merged = self.ranges.len();
    }

    fn merged(&self) -> Self {
        let mut merged = self.clone();
        merged.merge();
        merged
    }
}

impl PartialEq for SharedRanges {
    fn eq(&self, other: &Self) -> bool {
        self.merged().ranges == other.merged().ranges
    }
}

impl Eq for SharedRanges {}

/// The space of one or more files. Inline data and holes are not counted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct DiskUsage {
    /// Bytes of the extents that the files refer to.
    pub total_bytes: u64,
    /// Bytes among these that nothing else refers to.
    pub exclusive_bytes: u64,
    shared: SharedRanges,
}

impl DiskUsage {
    /// Adds the space of other files.
    pub fn add(&mut self, other: &Self) {
        self.total_bytes = self.total_bytes.saturating_add(other.total_bytes);
        self.exclusive_bytes = self.exclusive_bytes.saturating_add(other.exclusive_bytes);
        self.shared.add(&other.shared.ranges);
    }

    /// Counts an extent that a mounted volume has told of: an address, or a compressed extent and
    /// an offset into its uncompressed bytes. All are in bytes.
    pub fn add_extent(&mut self, start: u64, compressed: Option<u64>, bytes: u64, shared: bool) {
        let (compressed, start) = match compressed {
            Some(offset) => (Some(Logical(start)), offset),
            None => (None, start),
        };
        self.count(SharedRange { compressed, start, end: start.saturating_add(bytes) }, shared);
    }

    /// Returns the bytes of the shared extents ("Set shared"), each byte counted once for all
    /// files.
    pub fn set_shared_bytes(&self) -> u64 {
        let ranges = self.shared.merged().ranges;
        let bytes = ranges.iter().map(|range| range.end.saturating_sub(range.start));
        bytes.fold(0, u64::saturating_add)
    }

    fn count(&mut self, range: SharedRange, is_shared: bool) {
        let bytes = range.end.saturating_sub(range.start);
        self.total_bytes = self.total_bytes.saturating_add(bytes);
        if is_shared {
            self.shared.add(&[range]);
        } else {
            self.exclusive_bytes = self.exclusive_bytes.saturating_add(bytes);
        }
    }
}

impl Filesystem {
    /// Returns the space of one inode, without its descendants.
    pub fn disk_usage(&self, id: FileId) -> Result<DiskUsage> {
        let mut usage = DiskUsage::default();
        if self.stat(id)?.kind != FileKind::File {
            return Ok(usage);
        }
        let mut search = Backrefs::new(self)?;
        let mut known: Option<(Logical, bool)> = None;
        let mut cursor = self.tree_of(id)?.scan();
        cursor.seek(&Key::new(id.ino, ItemType::EXTENT_DATA, 0))?;
        while let Some((key, data)) = cursor.item_parts() {
            if key.objectid != id.ino || key.item_type != ItemType::EXTENT_DATA {
                break;
            }
            let item = FileExtent::check(data, key.offset).map_err(|refused| Error::Corrupt {
                tree: TreeId(id.subvolume),
                source: refused.at(format_args!("item {key}")),
            })?;
            if let Some((disk, run)) = on_disk(&item) {
                let is_shared = match known.filter(|(logical, _)| *logical == disk.logical) {
                    Some((_, is_shared)) => is_shared,
                    None => is_shared(&mut search, disk.logical, id)?,
                };
                known = Some((disk.logical, is_shared));
                let (compressed, start) = match item.compression {
                    Compression::None => (None, disk.logical.0.saturating_add(run.offset)),
                    Compression::Zlib | Compression::Lzo | Compression::Zstd => {
                        (Some(disk.logical), run.offset)
                    }
                };
                let end = start.saturating_add(run.num_bytes);
                usage.count(SharedRange { compressed, start, end }, is_shared);
            }
            cursor.advance()?;
        }
        Ok(usage)
    }
}

/// Returns whether an inode other than `id` refers to a data extent.
pub(crate) fn is_shared(search: &mut Backrefs<'_>, logical: Logical, id: FileId) -> Result<bool> {
    let Some(extent) = search.covering(logical)? else { return Ok(false) };
    let mut is_shared = false;
    search.each_ref(&extent, |extent_ref| {
        is_shared = FileId::new(extent_ref.subvolume, extent_ref.ino) != id;
        if is_shared { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    })?;
    Ok(is_shared)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn overlapping_shared_ranges_count_once() {
        let plain = |start, end| SharedRange { compressed: None, start, end };
        let compressed = SharedRange { compressed: Some(Logical(4096)), start: 0, end: 100 };
        let mut usage = DiskUsage::default();
        for range in [plain(4096, 8192), plain(0, 4096), compressed] {
            usage.count(range, true);
        }
        let mut both = usage.clone();
        both.add(&usage);
        both.count(plain(2048, 6144), true);
        both.count(plain(10000, 10001), true);
        assert_eq!(usage.set_shared_bytes(), 8192 + 100);
        assert_eq!(both.set_shared_bytes(), 8193 + 100);
        assert_eq!(both.exclusive_bytes, 0);
    }

    /// As of a directory with 1000 snapshots that share all extents.
    #[test]
    fn shared_ranges_take_the_memory_of_distinct_ones() {
        let mut sum = DiskUsage::default();
        for _snapshot in 0..1000 {
            let mut of_snapshot = DiskUsage::default();
            for extent in 0..1000_u64 {
                of_snapshot.add_extent(extent << 20, None, 4096, true);
            }
            sum.add(&of_snapshot);
        }
        assert_eq!(sum.set_shared_bytes(), 1000 * 4096);
        assert!(sum.shared.ranges.len() <= 4096, "{}", sum.shared.ranges.len());
    }
}
