//! `mkfs`: what it makes, what it prints, what it refuses.

use super::command::{butternut, command};
use serde_json::Value;
use std::fs;
use std::path::Path;

const UUID: &str = "8f2a1c3e-5b6d-4e7f-8091-a2b3c4d5e6f7";

/// Runs `mkfs` in `dir`.
fn mkfs(dir: &Path, line: &str) -> super::command::Ran {
    let mut command = command();
    command.current_dir(dir).arg("mkfs").args(line.split_whitespace());
    command.env_remove("SOURCE_DATE_EPOCH").output().unwrap().into()
}

#[test]
fn a_new_volume_is_described_and_opens() {
    let dir = tempfile::tempdir().unwrap();
    let said = mkfs(dir.path(), &format!("--size 200M -L new -U {UUID} a.img")).ok();
    assert_eq!(
        said,
        format!(
            "Label: 'new'  uuid: {UUID}\n\tsize 200.00MiB used 144.00KiB\n\tnode size 16.00KiB \
             checksum crc32c\n\tfeatures extref, skinny-metadata, no-holes, free-space-tree\n\
             \tgroup data, single: 8.00MiB\n\tgroup system, dup: 8.00MiB\n\tgroup metadata, dup: \
             32.00MiB\n"
        )
    );
    let image = dir.path().join("a.img");
    assert_eq!(butternut(&["ls", image.to_str().unwrap()]).ok(), "");
    let shown = butternut(&["filesystem", "show", image.to_str().unwrap()]).ok();
    assert!(shown.starts_with(&format!("Label: 'new'  uuid: {UUID}\n")), "{shown}");
    assert_eq!(mkfs(dir.path(), "-q -f a.img").ok(), "");
    let said = mkfs(dir.path(), "-f --json -M -O bgt --csum xxhash a.img").ok();
    let made: Value = serde_json::from_str(&said).unwrap();
    assert_eq!((&made["bytes"], &made["node_bytes"]), (&(200 << 20).into(), &4096.into()));
    assert_eq!(made["checksum"], "xxhash64");
    assert_eq!(made["groups"][1]["type"], "data+metadata");
    assert!(made["features"].as_array().unwrap().contains(&"block-group-tree".into()));
}

#[test]
fn an_epoch_and_a_uuid_give_the_same_bytes_twice() {
    let dir = tempfile::tempdir().unwrap();
    let make = |name: &str| {
        let mut command = command();
        command.current_dir(dir.path()).env("SOURCE_DATE_EPOCH", "1700000000");
        let words = ["mkfs", "-q", "--size", "120M", "-U", UUID, "-L", "same", name];
        let ran: super::command::Ran = command.args(words).output().unwrap().into();
        ran.ok();
        fs::read(dir.path().join(name)).unwrap()
    };
    assert!(make("a.img") == make("b.img"));
    let mut wrong = command();
    wrong.env("SOURCE_DATE_EPOCH", "today").args(["mkfs", "--size", "120M", "/nowhere/c.img"]);
    let said = super::command::Ran::from(wrong.output().unwrap()).failure();
    assert!(said.starts_with("butternut: SOURCE_DATE_EPOCH: today is not a number ("), "{said}");
    let said = butternut(&["stat", dir.path().join("a.img").to_str().unwrap(), "/"]).ok();
    assert!(said.contains("2023-11-14 22:13:20"), "{said}");
}

#[test]
fn features_are_listed() {
    let dir = tempfile::tempdir().unwrap();
    let said = mkfs(dir.path(), "-O list-all").ok();
    assert_eq!(said.lines().count(), 6);
    assert!(said.contains("block-group-tree block groups in a tree of their own"), "{said}");
    let said = mkfs(dir.path(), "--json -O list-all").ok();
    let list: Value = serde_json::from_str(&said).unwrap();
    assert_eq!((&list[3]["name"], &list[3]["default"]), (&"no-holes".into(), &true.into()));
}

#[test]
fn what_is_refused_is_said_with_what_to_do_and_nothing_is_left() {
    let dir = tempfile::tempdir().unwrap();
    let check = |line: &str, want: &str| {
        let said = mkfs(dir.path(), line).failure();
        assert!(said.starts_with(&format!("butternut: {want}")), "{said}");
        assert!(!said.contains('\n') && said.ends_with(')'), "{said}");
    };
    check("a.img", "a.img: no such file or directory (name an image file");
    check("--size 20M a.img", "a.img: 20971520 bytes are too few: a volume of data in profile");
    check("--size 200M -n 12K a.img", "a.img: node size 12288: want a power of two");
    check("--size 200M -M -d dup a.img", "a.img: mixed groups hold data and metadata, ");
    check("--size 200M -m raid1 a.img", "a.img: profile raid1: a volume on one device");
    check("--size 200M -d raid9 a.img", "--data: \"raid9\" is not a profile (");
    check("--size 200M --csum md5 a.img", "--csum: \"md5\" is not a checksum (");
    check("--size 200M -O zoned a.img", "--features: feature zoned is not supported (");
    check("--size 200M -O bgt,^fst a.img", "a.img: block-group-tree needs free-space-tree (");
    check("--size 200M -U 123 a.img", "--uuid: \"123\" is not a uuid (");
    check("--size 2OOM a.img", "--size: \"2OOM\" is not a number of bytes (");
    check("--size 200M a.img b.img", "a.img b.img: a new volume lies on one device (");
    check("--size 200M a.img@sub", "a.img@sub: names a subvolume, and a new volume has none (");
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
}

#[test]
fn other_filesystems_and_a_volume_in_use_are_not_overwritten() {
    let dir = tempfile::tempdir().unwrap();
    let image = dir.path().join("a.img");
    let refuse = |what: &str| {
        let said = mkfs(dir.path(), "a.img").failure();
        assert_eq!(
            said,
            format!("butternut: a.img: it holds {what} (--force makes the volume over it)")
        );
    };
    for (tool, what) in [
        ("mkfs.btrfs -q", "a btrfs volume"),
        ("mkfs.ext4 -q", "an ext2, ext3 or ext4 filesystem"),
        ("mkfs.xfs -q", "an XFS filesystem"),
        ("mkswap -q", "swap space"),
    ] {
        fs::File::create(&image).unwrap().set_len(400 << 20).unwrap();
        super::command::shell(&format!("{tool} {} 2>/dev/null >&2", image.display()));
        refuse(what);
        mkfs(dir.path(), "-q -f a.img").ok();
        refuse("a btrfs volume");
    }
}
