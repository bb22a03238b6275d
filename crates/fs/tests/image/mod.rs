//! Small images made by `mkfs.btrfs --rootdir`, for tests and for the examples in the
//! documentation.
//!
//! They need no root and no kernel mount, only `mkfs.btrfs` (Debian: btrfs-progs).

use std::path::{Path, PathBuf};
use std::process::Command;

/// A temporary directory with an image, which is removed on drop.
pub(crate) struct Image {
    _dir: tempfile::TempDir,
    pub(crate) path: PathBuf,
}

/// Makes an image of the files that `fill` writes into an empty directory.
pub(crate) fn image_of(options: &[&str], fill: impl FnOnce(&Path)) -> Image {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let (source, path) = (dir.path().join("source"), dir.path().join("volume.img"));
    std::fs::create_dir(&source).expect("an empty directory");
    fill(&source);
    std::fs::File::create(&path).and_then(|file| file.set_len(256 << 20)).expect("a sparse file");
    let made = Command::new("mkfs.btrfs")
        .args(["-q", "--rootdir"])
        .arg(&source)
        .args(options)
        .arg(&path)
        .output()
        .expect("mkfs.btrfs runs (Debian: apt-get install btrfs-progs)");
    assert!(made.status.success(), "mkfs.btrfs: {}", String::from_utf8_lossy(&made.stderr));
    std::fs::remove_dir_all(&source).expect("the source directory can be removed");
    Image { _dir: dir, path }
}
