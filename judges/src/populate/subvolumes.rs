//! Subvolumes and snapshots, made with btrfs-progs.

use super::seeded::{Texture, bytes};
use crate::tool;
use anyhow::{Context, Result};
use std::fs;
use std::path::Path;

pub fn create(path: &Path) -> Result<()> {
    btrfs("subvolume create", &[path])
}

pub fn snapshot(from: &Path, to: &Path) -> Result<()> {
    btrfs("subvolume snapshot", &[from, to])
}

pub fn snapshot_read_only(from: &Path, to: &Path) -> Result<()> {
    btrfs("subvolume snapshot -r", &[from, to])
}

/// Deletes a subvolume, and waits for the cleaner if `wait` is set.
pub fn delete(path: &Path, wait: bool) -> Result<()> {
    let parent = path.parent().context("a subvolume has a parent")?;
    btrfs("subvolume delete --commit-after", &[path])?;
    if wait { btrfs("subvolume sync", &[parent]) } else { Ok(()) }
}

/// Returns the id of the subvolume that contains a path.
pub fn id(path: &Path) -> Result<u64> {
    let text = tool::text("btrfs", &tool::words_and_path("inspect-internal rootid", path))?;
    text.parse().with_context(|| text)
}

pub fn btrfs(words: &str, paths: &[&Path]) -> Result<()> {
    let mut args: Vec<std::ffi::OsString> = words.split_whitespace().map(Into::into).collect();
    args.extend(paths.iter().map(|path| path.as_os_str().to_owned()));
    tool::run("btrfs", &args).map(drop)
}

/// Makes nested subvolumes, snapshots of snapshots, a snapshot of a subvolume that contains another
/// one, read-only snapshots, and changed and deleted ones.
pub fn nested(root: &Path) -> Result<()> {
    let outer = root.join("outer");
    create(&outer)?;
    fs::write(outer.join("file"), bytes(30, Texture::Text, 50_000))?;
    fs::create_dir(outer.join("dir"))?;
    let inner = outer.join("dir/inner");
    create(&inner)?;
    fs::write(inner.join("file"), "in the inner subvolume")?;
    create(&inner.join("innermost"))?;
    fs::write(inner.join("innermost/file"), "three levels down")?;
    let snaps = root.join("snapshots");
    fs::create_dir(&snaps)?;
    snapshot(&outer, &snaps.join("of-outer"))?;
    snapshot_read_only(&outer, &snaps.join("of-outer-read-only"))?;
    fs::write(outer.join("file"), bytes(31, Texture::Text, 60_000))?;
    fs::write(outer.join("new"), "after the first snapshot")?;
    fs::write(snaps.join("of-outer/changed"), "in the snapshot")?;
    snapshot(&snaps.join("of-outer"), &snaps.join("of-snapshot"))?;
    snapshot_read_only(&inner, &snaps.join("of-inner"))?;
    snapshot(&outer, &outer.join("snapshot-of-itself"))?;
    fs::rename(&inner, outer.join("inner-moved"))?;
    snapshot(root, &root.join("snapshot-of-top"))?;
    for number in 0..5 {
        let path = root.join(format!("deleted-{number}"));
        create(&path)?;
        fs::write(path.join("file"), bytes(number, Texture::Noise, 20_000))?;
    }
    for number in 0..4 {
        delete(&root.join(format!("deleted-{number}")), true)?;
    }
    Ok(())
}

/// Makes a received subvolume, sent from a read-only snapshot in both protocols.
pub fn received(root: &Path, scratch: &Path) -> Result<()> {
    let source = root.join("source");
    create(&source)?;
    super::contents::appended(&source)?;
    super::extents::cloned(&source)?;
    let sent = root.join("sent");
    snapshot_read_only(&source, &sent)?;
    for (name, protocol) in [("received", "--proto=1"), ("received-encoded", "--proto=2")] {
        let dir = root.join(name);
        fs::create_dir(&dir)?;
        let stream = scratch.join("stream");
        let mut words = vec!["send", "-q", protocol];
        if protocol == "--proto=2" {
            words.push("--compressed-data");
        }
        let mut args: Vec<std::ffi::OsString> = words.into_iter().map(Into::into).collect();
        args.extend(["-f".into(), stream.clone().into(), sent.clone().into()]);
        tool::run("btrfs", &args)?;
        btrfs("receive -q -f", &[&stream, &dir])?;
        fs::remove_file(stream)?;
    }
    Ok(())
}
