//! How much of a file's space is its own: `du` that knows shared extents.

use crate::backref::{Backrefs, on_disk};
use crate::{Error, FileId, FileKind, Filesystem, Result};
use butternut_format::file_extent::{Compression, FileExtent};
use butternut_format::key::{ItemType, Key};
use butternut_format::units::{Logical, TreeId};
use std::ops::ControlFlow;

/// Space of one or more files. Inline data and holes do not count.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DiskUsage {
    /// Bytes of extents that the files refer to.
    pub total_bytes: u64,
    /// Of these, bytes in extents that nothing else refers to.
    pub exclusive_bytes: u64,
    /// Logical ranges of the shared ones: start, end.
    shared: Vec<(u64, u64)>,
}

impl DiskUsage {
    /// Adds another file's.
    pub fn add(&mut self, other: &Self) {
        self.total_bytes = self.total_bytes.saturating_add(other.total_bytes);
        self.exclusive_bytes = self.exclusive_bytes.saturating_add(other.exclusive_bytes);
        self.shared.extend_from_slice(&other.shared);
    }

    /// Bytes of the shared extents, each byte of disk counted once ("Set shared").
    pub fn set_shared_bytes(&self) -> u64 {
        let mut ranges = self.shared.clone();
        ranges.sort_unstable();
        let (mut total, mut reached) = (0_u64, 0_u64);
        for (start, end) in ranges {
            let start = start.max(reached);
            total = total.saturating_add(end.saturating_sub(start));
            reached = reached.max(end);
        }
        total
    }

    fn count(&mut self, start: u64, bytes: u64, is_shared: bool) {
        self.total_bytes = self.total_bytes.saturating_add(bytes);
        if is_shared {
            self.shared.push((start, start.saturating_add(bytes)));
        } else {
            self.exclusive_bytes = self.exclusive_bytes.saturating_add(bytes);
        }
    }
}

impl Filesystem {
    /// The space of one inode, not of what is below it.
    pub fn disk_usage(&self, id: FileId) -> Result<DiskUsage> {
        let mut usage = DiskUsage::default();
        if id.placeholder_dir().is_some() || self.inode(id)?.kind != FileKind::File {
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
                let into = if item.compression == Compression::None { run.offset } else { 0 };
                usage.count(disk.logical.0.saturating_add(into), run.num_bytes, is_shared);
            }
            cursor.advance()?;
        }
        Ok(usage)
    }
}

/// Whether anything but `id` refers to a data extent.
fn is_shared(search: &mut Backrefs<'_>, logical: Logical, id: FileId) -> Result<bool> {
    let Some(extent) = search.covering(logical)? else { return Ok(false) };
    let mut is_shared = false;
    search.each_holder(&extent, |holder| {
        is_shared = FileId::new(holder.subvolume, holder.ino) != id;
        if is_shared { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    })?;
    Ok(is_shared)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn overlapping_shared_ranges_count_once() {
        let mut usage = DiskUsage { shared: vec![(4096, 8192), (0, 4096)], ..DiskUsage::default() };
        usage.add(&DiskUsage { shared: vec![(2048, 6144), (10000, 10001)], ..usage.clone() });
        assert_eq!(usage.set_shared_bytes(), 8193);
    }
}
