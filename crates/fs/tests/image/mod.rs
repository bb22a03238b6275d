//! Small images made by `mkfs.btrfs --rootdir`, for tests and for the examples in the docs.
//!
//! No root rights and no kernel mount are needed; `mkfs.btrfs` (Debian: btrfs-progs) is.

use std::path::{Path, PathBuf};
use std::process::Command;

/// A directory that holds an image, and goes away with it.
pub struct Image {
    pub dir: tempfile::TempDir,
    pub path: PathBuf,
}

/// Makes an image of what `fill` puts into an empty directory.
pub fn image_of(options: &[&str], fill: impl FnOnce(&Path)) -> Image {
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
    std::fs::remove_dir_all(&source).expect("the source directory is ours");
    Image { dir, path }
}

/// `hello.txt` with "hello, world\n", `docs/guide.txt`, and `link` that points at `hello.txt`.
pub fn small_image() -> Image {
    image_of(&[], |root| {
        std::fs::write(root.join("hello.txt"), "hello, world\n").expect("written");
        std::fs::create_dir(root.join("docs")).expect("made");
        std::fs::write(root.join("docs/guide.txt"), "read me\n".repeat(1000)).expect("written");
        std::os::unix::fs::symlink("hello.txt", root.join("link")).expect("made");
    })
}
