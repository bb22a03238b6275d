//! [`Demand`]: an estimate of the space that a directory tree takes in a volume. It is an upper
//! bound for all but files that take much less space than their size.

use std::fs::{self, Metadata};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// Files up to this size are stored as inline extents.
const INLINE_BYTES_MAX: u64 = 2048;
const SECTOR_BYTES: u64 = 4096;
/// Metadata of a file besides its names and data: inode, references, directory entries, attributes.
const BYTES_PER_FILE: u64 = 500;
/// Metadata of an extent: two items and their leaf headers.
const BYTES_PER_EXTENT: u64 = 160;
/// Maximum length of an extent.
const EXTENT_BYTES_MAX: u64 = 4 << 20;

/// The space of a directory tree in bytes, in one copy.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Demand {
    pub(crate) data_bytes: u64,
    tree_bytes: u64,
}

impl Demand {
    /// Estimates the space of a file or directory tree. `csum_bytes`: the size of a checksum. With
    /// `one_file_system`, what is mounted below is left out.
    ///
    /// # Errors
    /// A file or directory that cannot be examined, with its path.
    pub(crate) fn of(
        path: &Path,
        csum_bytes: u64,
        one_file_system: bool,
    ) -> Result<Self, (PathBuf, io::Error)> {
        let mut demand = Self::default();
        let top = fs::metadata(path).map_err(|error| (path.to_path_buf(), error))?;
        if top.is_dir() {
            demand.add_tree(path, csum_bytes, one_file_system.then(|| top.dev()))?;
        } else {
            demand.add(&top, csum_bytes);
        }
        Ok(demand)
    }

    fn add_tree(
        &mut self,
        dir: &Path,
        csum_bytes: u64,
        only: Option<u64>,
    ) -> Result<(), (PathBuf, io::Error)> {
        let mut pending = vec![dir.to_path_buf()];
        while let Some(dir) = pending.pop() {
            let failed = |error| (dir.clone(), error);
            for entry in fs::read_dir(&dir).map_err(failed)? {
                let entry = entry.map_err(failed)?;
                let meta = entry.metadata().map_err(|error| (entry.path(), error))?;
                let is_other_filesystem = only.is_some_and(|device| device != meta.dev());
                let name_bytes = entry.file_name().len() as u64;
                self.tree_bytes += BYTES_PER_FILE + 3 * name_bytes;
                if meta.is_dir() && !is_other_filesystem {
                    pending.push(entry.path());
                } else {
                    self.add(&meta, csum_bytes);
                }
            }
        }
        Ok(())
    }

    fn add(&mut self, found: &Metadata, csum_bytes: u64) {
        if found.is_file() {
            self.add_file(found.len(), found.blocks().saturating_mul(512), csum_bytes);
        } else if found.is_symlink() {
            self.tree_bytes += found.len();
        }
    }

    /// Adds a file. A file that takes much less space than its size is sparse or compressed: its
    /// data is estimated as eight times the space that it takes.
    fn add_file(&mut self, size: u64, stored: u64, csum_bytes: u64) {
        if size <= INLINE_BYTES_MAX {
            self.tree_bytes += BYTES_PER_EXTENT + size;
            return;
        }
        let is_sparse = stored.saturating_mul(8) < size;
        let bytes = if is_sparse { size.min(stored.saturating_mul(8)) } else { size };
        let bytes = bytes.next_multiple_of(SECTOR_BYTES);
        self.data_bytes = self.data_bytes.saturating_add(bytes);
        let extents = bytes / EXTENT_BYTES_MAX + 1;
        self.tree_bytes += extents * BYTES_PER_EXTENT + bytes / SECTOR_BYTES * csum_bytes;
    }

    /// Returns the space on the devices, with these numbers of copies.
    pub(crate) fn device_bytes(self, data_copies: u64, metadata_copies: u64) -> u64 {
        let data = self.data_bytes.saturating_mul(data_copies);
        // Leaves are seldom full, and a commit writes new tree blocks before it frees the old ones.
        let trees = self.tree_bytes.saturating_mul(3).saturating_mul(metadata_copies);
        data.saturating_add(trees)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sparse_files_take_little_space_and_small_files_only_metadata() {
        let of = |size, stored| {
            let mut demand = Demand::default();
            demand.add_file(size, stored, 4);
            demand
        };
        assert_eq!(of(2048, 4096), Demand { data_bytes: 0, tree_bytes: 2208 });
        assert_eq!(of(5000, 8192), Demand { data_bytes: 8192, tree_bytes: 168 });
        assert_eq!(of(1 << 40, 4096).data_bytes, 8 * 4096);
        assert!(of(1 << 30, 1 << 30).device_bytes(1, 2) > 1 << 30);
    }
}
