//! `mkfs`: the volumes that it makes, its output, and the options that it rejects.

use super::command::{butternut, command};
use serde_json::Value;
use std::fs;
use std::path::Path;

const UUID: &str = "8f2a1c3e-5b6d-4e7f-8091-a2b3c4d5e6f7";

/// Runs `mkfs` in `dir`.
fn mkfs(dir: &Path, line: &str) -> super::command::CommandOutput {
    let mut command = command();
    command.current_dir(dir).arg("mkfs").args(line.split_whitespace());
    command.env_remove("SOURCE_DATE_EPOCH").output().unwrap().into()
}

#[test]
fn mkfs_describes_a_volume_that_opens() {
    let dir = tempfile::tempdir().unwrap();
    let output = mkfs(dir.path(), &format!("--size 200M -L new -U {UUID} a.img")).ok();
    assert_eq!(
        output,
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
    let output = mkfs(dir.path(), "-f --json -M -O bgt --csum xxhash a.img").ok();
    let made: Value = serde_json::from_str(&output).unwrap();
    assert_eq!((&made["bytes"], &made["node_bytes"]), (&(200 << 20).into(), &4096.into()));
    assert_eq!(made["checksum"], "xxhash64");
    assert_eq!(made["groups"][1]["type"], "data+metadata");
    assert!(made["features"].as_array().unwrap().contains(&"block-group-tree".into()));
}

#[test]
fn mkfs_is_reproducible_with_an_epoch_and_a_uuid() {
    let dir = tempfile::tempdir().unwrap();
    let make = |name: &str| {
        let mut command = command();
        command.current_dir(dir.path()).env("SOURCE_DATE_EPOCH", "1700000000");
        let words = ["mkfs", "-q", "--size", "120M", "-U", UUID, "-L", "same", name];
        let ran: super::command::CommandOutput = command.args(words).output().unwrap().into();
        ran.ok();
        fs::read(dir.path().join(name)).unwrap()
    };
    assert!(make("a.img") == make("b.img"));
    let mut wrong = command();
    wrong.env("SOURCE_DATE_EPOCH", "today").args(["mkfs", "--size", "120M", "/nowhere/c.img"]);
    let message = super::command::CommandOutput::from(wrong.output().unwrap()).failure();
    assert!(
        message.starts_with("butternut: SOURCE_DATE_EPOCH: today is not a number ("),
        "{message}"
    );
    let output = butternut(&["stat", dir.path().join("a.img").to_str().unwrap(), "/"]).ok();
    assert!(output.contains("2023-11-14 22:13:20"), "{output}");
}

#[test]
fn features_are_listed() {
    let dir = tempfile::tempdir().unwrap();
    let output = mkfs(dir.path(), "-O list-all").ok();
    assert_eq!(output.lines().count(), 8);
    assert!(output.contains("block-group-tree block groups in a separate tree"), "{output}");
    let output = mkfs(dir.path(), "--json -O list-all").ok();
    let list: Value = serde_json::from_str(&output).unwrap();
    assert_eq!((&list[3]["name"], &list[3]["default"]), (&"no-holes".into(), &true.into()));
}

#[test]
fn refused_options_are_reported_and_leave_no_file() {
    let dir = tempfile::tempdir().unwrap();
    let check = |line: &str, want: &str| {
        let message = mkfs(dir.path(), line).failure();
        assert!(message.starts_with(&format!("butternut: {want}")), "{message}");
        assert!(!message.contains('\n') && message.ends_with(')'), "{message}");
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
    check("--size 200M -U 123 a.img", "--uuid: \"123\" is not a UUID (");
    let said = mkfs(dir.path(), "--size 2OOM a.img").usage();
    assert!(said.starts_with("butternut: --size: \"2OOM\" is not a number of bytes ("), "{said}");
    check("--size 200M a.img b.img", "a.img b.img: a new volume is created on one device (");
    check("--size 200M a.img@sub", "a.img@sub: names a subvolume, and a new volume has none (");
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
}

#[test]
fn existing_filesystems_are_not_overwritten() {
    let dir = tempfile::tempdir().unwrap();
    let image = dir.path().join("a.img");
    let refuse = |what: &str| {
        let message = mkfs(dir.path(), "a.img").failure();
        assert_eq!(message, format!("butternut: a.img: it holds {what} (--force overwrites it)"));
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

/// A volume has the contents of files that only their owners may read.
#[test]
fn a_new_image_can_be_read_by_its_owner_only() {
    use std::os::unix::fs::PermissionsExt;
    let scratch = tempfile::tempdir().unwrap();
    let path = |name: &str| scratch.path().join(name).to_str().unwrap().to_owned();
    let (new, with_files, old) = (path("new"), path("with-files"), path("old"));
    let program = env!("CARGO_BIN_EXE_butternut");
    let dir = path("dir");
    super::command::shell(&format!(
        "umask 022; mkdir {dir}; echo secret > {dir}/file; chmod 600 {dir}/file
         {program} mkfs --size 128M {new}
         {program} mkfs --size 128M --rootdir {dir} {with_files}
         truncate -s 64M {old}; {program} mkfs --size 128M {old}"
    ));
    for (image, mode) in [(new, 0o600), (with_files, 0o600), (old, 0o644)] {
        assert_eq!(
            std::fs::metadata(&image).unwrap().permissions().mode() & 0o777,
            mode,
            "{image}"
        );
    }
}
