//! [`Clones`]: ranges of files that the receiver already has, and that share an extent with a range
//! that is to be sent.
//!
//! The references to an extent lead to all files that share it. A file may be cloned from if it is
//! in the parent or another clone source, which the receiver has and does not change, or if it is
//! in the subvolume itself and was sent before.
//!
//! Laws:
//!
//! 1. A clone has whole blocks, except at the end of a file: its last block may be a part of one,
//!    if the source ends there, too. The rest of the range is written.
//! 2. The search for one extent visits at most [`VISITS_MAX`] blocks and items; then the data is
//!    written.
//! 3. A search that fails finds nothing, and the data is written. Only the search reads the extent
//!    tree: if that tree is damaged, the subvolume can still be sent.
//! 4. Preallocated ranges are no source: they refer to an extent, and read as zeros.

use crate::send::paths::Paths;
use crate::space::backref::{Backrefs, ExtentRef};
use crate::{Error, Filesystem, Result};
use butternut_format::units::{Ino, Logical, SECTOR_BYTES};
use butternut_format::uuid::Uuid;
use butternut_names::{self as names, DEPTH_MAX, PathBudget};
use butternut_tree::Tree;
use std::ops::ControlFlow;

/// Maximum number of blocks and items that are visited for one extent.
const VISITS_MAX: u64 = 4096;

/// A subvolume that the receiver has, or that the stream makes.
#[derive(Clone, Debug)]
pub(crate) struct CloneSource {
    pub(crate) id: u64,
    /// As in the commands that make the subvolume.
    pub(crate) uuid: Uuid,
    pub(crate) ctransid: u64,
    pub(crate) tree: Tree,
}

/// A range of an extent, counted in its data.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ExtentPart {
    pub(crate) logical: Logical,
    pub(crate) start: u64,
    pub(crate) bytes: u64,
    /// The part ends where the receiver's file ends, or after that.
    pub(crate) ends_file: bool,
}

/// A range of a file to clone from.
#[derive(Clone, Debug)]
pub(crate) struct CloneRange {
    pub(crate) uuid: Uuid,
    pub(crate) ctransid: u64,
    pub(crate) path: Vec<u8>,
    pub(crate) offset: u64,
    /// At most as many as the part has.
    pub(crate) bytes: u64,
}

/// The files that share extents.
pub(crate) struct Clones<'a> {
    /// `None` if the extent tree cannot be read (law 3).
    backrefs: Option<Backrefs<'a>>,
    /// The first one is the subvolume that is sent.
    sources: Vec<CloneSource>,
}

/// A file extent, and the number of its bytes that can be cloned.
#[derive(Clone, Copy)]
struct Candidate {
    source: usize,
    ino: u64,
    offset: u64,
    bytes: u64,
}

impl<'a> Clones<'a> {
    /// Prepares the search. The first source is the subvolume that is sent.
    pub(crate) fn new(filesystem: &'a Filesystem, sources: Vec<CloneSource>) -> Self {
        Self { backrefs: Backrefs::with_limit(filesystem, VISITS_MAX).ok(), sources }
    }

    /// Finds a file with a part of an extent, or with its beginning. The files of the subvolume
    /// below inode `sent_until` have been sent.
    pub(crate) fn find(
        &mut self,
        paths: &mut Paths,
        sent_until: u64,
        part: ExtentPart,
    ) -> Option<CloneRange> {
        // Law 3.
        self.search(paths, sent_until, part).unwrap_or(None)
    }

    fn search(
        &mut self,
        paths: &mut Paths,
        sent_until: u64,
        part: ExtentPart,
    ) -> Result<Option<CloneRange>> {
        let Some(backrefs) = &mut self.backrefs else { return Ok(None) };
        let Some(extent) = backrefs.covering(part.logical)? else { return Ok(None) };
        let mut candidates = Vec::new();
        let sources = &self.sources;
        let searched = backrefs.each_ref(&extent, |found| {
            let source = sources.iter().position(|source| source.id == found.subvolume);
            if let Some(source) = source
                && (source > 0 || found.ino < sent_until)
                && let Some(candidate) = candidate(source, &found, part)
            {
                candidates.push(candidate);
            }
            ControlFlow::Continue(())
        });
        match searched {
            // Law 2.
            Err(Error::LimitExceeded { .. }) => {}
            searched => searched?,
        }
        candidates.sort_by_key(|found| (std::cmp::Reverse(found.bytes), found.source, found.ino));
        for candidate in candidates {
            if let Some(range) = self.range(paths, candidate, part)? {
                return Ok(Some(range));
            }
        }
        Ok(None)
    }

    /// Returns what of a candidate is inside its file, if the file has a path.
    fn range(
        &self,
        paths: &mut Paths,
        found: Candidate,
        part: ExtentPart,
    ) -> Result<Option<CloneRange>> {
        let Some(source) = self.sources.get(found.source) else { return Ok(None) };
        let Some(inode) = names::inode(&source.tree, Ino(found.ino))? else { return Ok(None) };
        let rest = inode.size.saturating_sub(found.offset);
        let is_end = part.ends_file && found.bytes == part.bytes && rest == part.bytes;
        let bytes = if is_end { rest } else { whole_blocks(rest.min(found.bytes)) };
        if bytes == 0 || inode.nlink == 0 {
            return Ok(None);
        }
        let path = if found.source == 0 {
            Some(paths.of_new_inode(found.ino)?)
        } else {
            names::first_path(&source.tree, Ino(found.ino), &mut PathBudget::new(DEPTH_MAX))?
        };
        let CloneSource { uuid, ctransid, .. } = *source;
        Ok(path.map(|path| CloneRange { uuid, ctransid, path, offset: found.offset, bytes }))
    }
}

/// Returns what a file extent has of a part, from the part's start on.
fn candidate(source: usize, found: &ExtentRef, part: ExtentPart) -> Option<Candidate> {
    if found.is_preallocated {
        return None;
    }
    let skip = part.start.checked_sub(found.extent_offset)?;
    let bytes = found.bytes.checked_sub(skip)?.min(part.bytes);
    let offset = found.file_offset.checked_add(skip)?;
    (bytes > 0).then_some(Candidate { source, ino: found.ino, offset, bytes })
}

/// Law 1.
fn whole_blocks(bytes: u64) -> u64 {
    bytes - bytes % SECTOR_BYTES
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_candidate_begins_where_the_part_begins() {
        let found = ExtentRef {
            subvolume: 256,
            ino: 257,
            file_offset: 40960,
            extent_offset: 8192,
            bytes: 16384,
            is_compressed: false,
            is_preallocated: false,
        };
        let logical = Logical(1 << 20);
        let part = |start, bytes| ExtentPart { logical, start, bytes, ends_file: false };
        let of = |part| candidate(1, &found, part).map(|found| (found.offset, found.bytes));
        assert_eq!(of(part(8192, 4096)), Some((40960, 4096)));
        assert_eq!(of(part(12288, 65536)), Some((45056, 12288)));
        assert_eq!(of(part(4096, 65536)), None);
        assert_eq!(of(part(24576, 4096)), None);
        let zeros = ExtentRef { is_preallocated: true, ..found };
        assert!(candidate(1, &zeros, part(8192, 4096)).is_none());
    }
}
