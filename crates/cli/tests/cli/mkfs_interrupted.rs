//! `mkfs --rootdir` that ends early leaves the old volume or none, and never an incomplete one.

use std::fs::{self, File};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;
use std::process::Stdio;
use std::thread::yield_now;

use rustix::process::{Pid, Signal, kill_process};

use super::change::check;
use super::command::{butternut, command, shell};

const MAGIC: &[u8] = b"_BHRfS_M";
/// The first two copies of the superblock.
const COPIES: [u64; 2] = [64 << 10, 64 << 20];
const SOURCE_BYTES: u64 = 96 << 20;

fn magic(image: &File, copy: u64) -> Vec<u8> {
    let mut bytes = vec![0; MAGIC.len()];
    image.read_exact_at(&mut bytes, copy + 64).unwrap();
    bytes
}

/// Makes a volume in which there is a file `old`.
fn old_volume(image: &Path) {
    butternut(&["mkfs", "-q", "--force", "--size", "300M", image.to_str().unwrap()]).ok();
    butternut(&["mkdir", image.to_str().unwrap(), "old"]).ok();
}

fn source(dir: &Path) {
    fs::create_dir(dir).unwrap();
    for number in 0..SOURCE_BYTES >> 20 {
        let bytes: Vec<u8> = (0..1 << 20).map(|at: u64| (at * (number + 3) % 251) as u8).collect();
        fs::write(dir.join(format!("file{number}")), bytes).unwrap();
    }
}

/// Starts `mkfs --rootdir` over a volume, and kills it when `is_time`.
fn killed(dir: &Path, image: &Path, is_time: impl Fn(&File) -> bool) {
    let mut mkfs = command();
    mkfs.args(["mkfs", "-q", "--force", "--rootdir"]).arg(dir).arg(image).stdin(Stdio::null());
    let file = File::open(image).unwrap();
    let mut child = mkfs.spawn().unwrap();
    while child.try_wait().unwrap().is_none() && !is_time(&file) {
        yield_now();
    }
    kill_process(Pid::from_child(&child), Signal::KILL).ok();
    child.wait().unwrap();
}

#[test]
fn a_kill_leaves_no_volume_that_is_incomplete() {
    let scratch = tempfile::tempdir_in("/var/tmp").unwrap();
    let (dir, image) = (scratch.path().join("source"), scratch.path().join("image"));
    source(&dir);
    let has_none = |file: &File| COPIES.iter().all(|copy| magic(file, *copy) != MAGIC);
    let (mut old, mut none) = (0, 0);
    // From before the first write until all data is there.
    for mib in [0, 1, 8, 40, 80, 95] {
        fs::remove_file(&image).ok();
        old_volume(&image);
        let blocks = fs::metadata(&image).unwrap().blocks();
        killed(&dir, &image, |file| {
            let new = file.metadata().unwrap().blocks().saturating_sub(blocks);
            mib == 0 || has_none(file) && new >= mib << 11
        });
        let file = File::open(&image).unwrap();
        let ls = butternut(&["ls", image.to_str().unwrap()]);
        if has_none(&file) {
            none += 1;
            assert_eq!((ls.code, ls.out.as_str()), (Some(1), ""), "{}", ls.err);
            let found = shell(&format!("blkid -p -o value -s TYPE {} || true", image.display()));
            assert_eq!(found, "");
            continue;
        }
        if magic(&file, COPIES[0]) == MAGIC {
            check(&image);
            assert_eq!((ls.code, ls.err.as_str()), (Some(0), ""));
        }
        // With the second copy alone, the volume is a whole one that can be rescued.
        old += u32::from(ls.out == "old\n");
        let is_whole = ls.out == "old\n" || ls.out.lines().count() == 96;
        assert!(is_whole || ls.code != Some(0), "{}{}", ls.out, ls.err);
    }
    assert!(old > 0 && none > 1, "{old} old volumes, {none} without one");
}

#[test]
fn a_failure_leaves_no_volume_and_says_so() {
    let scratch = tempfile::tempdir_in("/var/tmp").unwrap();
    let (dir, image) = (scratch.path().join("source"), scratch.path().join("image"));
    source(&dir);
    // The copy fails at the volume itself, after the other files.
    old_volume(&image);
    fs::hard_link(&image, dir.join("zzz")).unwrap();
    let words = ["mkfs", "--force", "--rootdir", dir.to_str().unwrap(), image.to_str().unwrap()];
    let message = butternut(&words).failure();
    assert!(message.contains("zzz: is the volume itself"), "{message}");
    assert!(message.contains("note: it has no volume now"), "{message}");
    let file = File::open(&image).unwrap();
    assert!(COPIES.iter().all(|copy| magic(&file, *copy) != MAGIC));
    fs::remove_file(dir.join("zzz")).unwrap();
    butternut(&["mkfs", "-q", "--rootdir", dir.to_str().unwrap(), image.to_str().unwrap()]).ok();
    check(&image);
}

/// The volume is complete before its file is truncated.
#[test]
fn a_file_that_cannot_be_truncated_has_the_volume() {
    let scratch = tempfile::tempdir_in("/var/tmp").unwrap();
    let (dir, image) = (scratch.path().join("source"), scratch.path().join("image"));
    let moved = scratch.path().join("moved");
    source(&dir);
    for is_new in [false, true] {
        fs::remove_file(&moved).ok();
        if !is_new {
            old_volume(&image);
        }
        let mut mkfs = command();
        mkfs.args(["mkfs", "-q", "--force", "--shrink", "--rootdir"]).arg(&dir).arg(&image);
        let blocks = fs::metadata(&image).map_or(0, |found| found.blocks());
        let child = mkfs.stdin(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
        // It has the file open.
        while fs::metadata(&image).map_or(0, |found| found.blocks()) < blocks + (8 << 11) {
            yield_now();
        }
        fs::rename(&image, &moved).unwrap();
        fs::write(&image, "another").unwrap();
        let ended = child.wait_with_output().unwrap();
        let message = String::from_utf8(ended.stderr).unwrap();
        assert_eq!(ended.status.code(), Some(1), "{message}");
        assert!(message.contains("the volume is complete"), "{message}");
        assert!(!message.contains("no volume now"), "{message}");
        check(&moved);
        assert_eq!(fs::read(&image).unwrap(), b"another");
        fs::remove_file(&image).unwrap();
    }
}
