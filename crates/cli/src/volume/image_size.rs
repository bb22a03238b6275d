//! The size of the image file of an open volume.
//!
//! 1. A path may name another file by the time that a size is set. So a file is changed only if it
//!    is the one that was found when the volume was opened.

use std::fs::{Metadata, OpenOptions};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

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
    let file = OpenOptions::new().write(true).open(path)?;
    if !files.contains(&identity(&file.metadata()?)) {
        return Err(io::Error::other("another file has replaced the image, and is not changed"));
    }
    file.set_len(bytes)
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
        let files = [identity(&fs::metadata(&image).unwrap())];
        set(&image, &files, 2).unwrap();
        assert_eq!(fs::read(&image).unwrap(), b"im");
        fs::rename(&image, scratch.path().join("moved")).unwrap();
        std::os::unix::fs::symlink(&other, &image).unwrap();
        set(&image, &files, 1).unwrap_err();
        assert_eq!(fs::read(&other).unwrap(), b"other");
    }
}
