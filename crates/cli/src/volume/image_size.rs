//! The size of the image file of an open volume.
//!
//! 1. A path may name another file by the time that a size is set, also one that was put there
//!    right after the volume was opened. So a file is changed only if it is one that was found
//!    then, and that this process has open: the volume keeps its devices open.

use std::fs::{DirEntry, Metadata, OpenOptions};
use std::io;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;

use rustix::fs::OFlags;

/// Device and inode number of an image file.
pub(crate) type Identity = (u64, u64);

/// Returns which file a metadata is of.
pub(crate) fn identity(found: &Metadata) -> Identity {
    (found.dev(), found.ino())
}

/// Extends or truncates the image file at a path, which must be one of `files` (law 1).
///
/// # Errors
/// As open(2) and ftruncate(2); another file has the path.
pub(crate) fn set(path: &Path, files: &[Identity], bytes: u64) -> io::Result<()> {
    let open = open_files()?;
    // The path may name a FIFO by now.
    let flags = OFlags::NONBLOCK.bits().cast_signed();
    let file = OpenOptions::new().write(true).custom_flags(flags).open(path)?;
    let found = identity(&file.metadata()?);
    if !files.contains(&found) || !open.contains(&found) {
        return Err(io::Error::other("another file has replaced the image, and is not changed"));
    }
    file.set_len(bytes)
}

/// Returns the files that this process has open.
fn open_files() -> io::Result<Vec<Identity>> {
    let descriptors = std::fs::read_dir("/proc/self/fd")?;
    let found = |entry: io::Result<DirEntry>| std::fs::metadata(entry.ok()?.path()).ok();
    Ok(descriptors.filter_map(found).map(|found| identity(&found)).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn a_file_that_has_replaced_the_image_is_not_truncated() {
        let scratch = tempfile::tempdir().unwrap();
        let (image, other) = (scratch.path().join("image"), scratch.path().join("other"));
        fs::write(&image, "image").unwrap();
        fs::write(&other, "other").unwrap();
        let files = [&image, &other].map(|path| identity(&fs::metadata(path).unwrap()));
        set(&image, &files, 2).expect_err("this process has it not open");
        let open = fs::File::open(&image).unwrap();
        set(&image, &files, 2).unwrap();
        assert_eq!(fs::read(&image).unwrap(), b"im");
        fs::rename(&image, scratch.path().join("moved")).unwrap();
        std::os::unix::fs::symlink(&other, &image).unwrap();
        set(&image, &files, 1).unwrap_err();
        assert_eq!(fs::read(&other).unwrap(), b"other");
        drop(open);
    }
}
