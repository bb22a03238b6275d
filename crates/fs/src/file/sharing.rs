//! The extents of a file, and which of them are shared.
//!
//! An extent is shared if another inode refers to it, also one in another subvolume. Data that is
//! in no tree yet is not. Where an extent may be shared, the last commit decides that, so one is
//! made first; where the references are too many to follow, it counts as shared.

use super::extent;
use crate::space::backref::Backrefs;
use crate::space::disk_usage;
use crate::{Error, Extent, File, Result};
use butternut_file::{Mapping, MappingKind, Mappings};
use butternut_format::extent::DataRef;
use butternut_format::file_extent::DiskExtent;
use butternut_format::units::{Generation, Ino, Logical, TreeId};
use std::collections::BTreeMap;

impl File {
    /// As [`FileExt::extents_with_sharing`](crate::server::FileExt::extents_with_sharing).
    pub(crate) fn extents_with_sharing(
        &self,
        from: u64,
        count: usize,
    ) -> Result<Vec<(Extent, bool)>> {
        let mut all = Mappings::of(self.view(), from..u64::MAX);
        let mut mappings: Vec<Mapping> = Vec::new();
        while mappings.len() < count {
            let state = self.shared_lock();
            let next = all.next().transpose()?;
            drop(state);
            let Some(mapping) = next else { break };
            mappings.extend((!matches!(mapping.kind, MappingKind::Hole)).then_some(mapping));
        }
        let shared = self.shared_among(&mappings)?;
        let described = |mapping: Mapping| {
            let at = in_tree(&mapping).map(|(disk, ..)| disk.logical);
            (extent(mapping), at.is_some_and(|at| shared.get(&at) == Some(&true)))
        };
        Ok(mappings.into_iter().map(described).collect())
    }

    /// Returns the extents that may be shared, and whether they are.
    fn shared_among(&self, mappings: &[Mapping]) -> Result<BTreeMap<Logical, bool>> {
        let (filesystem, id) = (&self.filesystem, self.id());
        let (forest, tree) = (filesystem.forest(), TreeId(id.subvolume));
        let mut unsure = BTreeMap::new();
        let is_writable = filesystem.is_writable();
        let last_snapshot = if is_writable { Some(forest.last_snapshot(tree)?) } else { None };
        for mapping in mappings {
            let Some((disk, generation, skip)) = in_tree(mapping) else { continue };
            let offset = mapping.offset.wrapping_sub(skip);
            let reference = DataRef { tree, ino: Ino(id.ino), offset, count: 1 };
            let may_be = match last_snapshot {
                None => true,
                Some(last) => {
                    generation.is_none_or(|generation| generation <= last)
                        || forest.is_shared(disk.logical, disk.bytes, &reference)?
                }
            };
            if may_be {
                unsure.insert(disk.logical, false);
            }
        }
        if unsure.is_empty() {
            return Ok(unsure);
        }
        if is_writable {
            filesystem.commit()?;
        }
        let mut search = Backrefs::new(filesystem)?;
        for (logical, is_shared) in &mut unsure {
            *is_shared = match disk_usage::is_shared(&mut search, *logical, id) {
                Err(Error::LimitExceeded { .. }) => true,
                found => found?,
            };
        }
        Ok(unsure)
    }
}

/// Returns the data extent that the tree has for a mapping, its generation where it is known, and
/// the offset into it.
fn in_tree(mapping: &Mapping) -> Option<(DiskExtent, Option<Generation>, u64)> {
    match mapping.kind {
        MappingKind::Regular { extent, encoding, skip } => {
            encoding.is_in_tree().then_some((extent, Some(encoding.generation), skip))
        }
        MappingKind::Preallocated { extent, skip } => Some((extent, None, skip)),
        MappingKind::Hole | MappingKind::Inline { .. } | MappingKind::Buffered => None,
    }
}
