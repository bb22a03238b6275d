//! `mkfs` and `resize` inside a larger image: nothing else in it is overwritten without `--force`.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;

use tempfile::TempDir;

use butternut_undo::MountGuard;

use super::command::{CommandOutput, command, shell};
use super::image::kernel_tests_enabled;

/// Runs the program in `dir`.
fn run(dir: &TempDir, line: &str) -> CommandOutput {
    command().current_dir(dir.path()).args(line.split_whitespace()).output().unwrap().into()
}

/// Runs a command that is refused, with a message that has these parts, and writes nothing.
#[track_caller]
fn refuse(dir: &TempDir, line: &str, wanted: &[&str]) {
    // Each write changes the modification time.
    let state = || shell(&format!("cd {}; ls; stat -c '%s %b %y' disk.img", dir.path().display()));
    let before = state();
    let said = run(dir, line).failure();
    assert!(wanted.iter().all(|part| said.contains(part)), "{line}: {said}");
    assert_eq!(said.lines().count(), 1, "{said}");
    assert_eq!(state(), before, "{line}");
}

fn fresh(script: &str) -> TempDir {
    let dir = tempfile::tempdir_in("/var/tmp").unwrap();
    shell(&format!("cd {}; truncate -s 400M disk.img; {script}", dir.path().display()));
    dir
}

/// Checks that `disk.img` still has what `is_whole`, a shell command, finds.
#[track_caller]
fn check(dir: &TempDir, is_whole: &str) {
    shell(&format!("cd {}; {is_whole}", dir.path().display()));
}

#[test]
fn a_filesystem_around_the_volume_is_kept() {
    for (made, what, is_whole) in [
        ("mkfs.btrfs -q disk.img", "a btrfs volume", "btrfs check disk.img 2>&1"),
        ("mkfs.ext4 -q disk.img", "ext4 filesystem, bytes 0 to 419430400", "e2fsck -fn disk.img"),
        ("mkfs.xfs -q disk.img", "an XFS filesystem, bytes 0 to 419430400", ": disk.img"),
        ("mkswap -q disk.img 2>/dev/null >&2", "swap space, bytes 0 to 419430400", ":"),
    ] {
        let dir = fresh(made);
        shell(&format!("mkdir {0}/tree; echo file > {0}/tree/file", dir.path().display()));
        let wanted = ["overlap ", what, "(--force overwrites it)"];
        for line in [
            "mkfs disk.img?offset=1M",
            "mkfs --size 200M disk.img?offset=100M",
            // Past the end, but for a filesystem that ends before.
            "mkfs --size 200M disk.img?offset=300M",
            "mkfs --rootdir tree disk.img?offset=64M",
            "mkfs --rootdir tree --shrink disk.img?offset=64M",
        ] {
            refuse(&dir, line, &wanted);
        }
        check(&dir, is_whole);
        run(&dir, "mkfs -q --force disk.img?offset=100M").ok();
        assert_eq!(run(&dir, "ls disk.img?offset=100M").ok(), "");
    }
}

#[test]
fn a_volume_may_be_behind_a_filesystem_that_says_how_long_it_is() {
    let dir = fresh("mkfs.btrfs -q -b 120M disk.img");
    refuse(&dir, "mkfs disk.img?offset=119M", &["(disk.img?offset=120M is behind it; "]);
    run(&dir, "mkfs -q disk.img?offset=120M").ok();
    check(&dir, "btrfs check disk.img 2>&1");
    assert_eq!(run(&dir, "ls disk.img?offset=120M").ok(), "");
}

#[test]
fn a_volume_at_an_offset_is_found_from_the_start() {
    let dir = fresh("");
    run(&dir, "mkfs -q --size 200M disk.img?offset=1M").ok();
    let hint = "(--size 1M ends in front of it; --force overwrites it)";
    refuse(&dir, "mkfs disk.img", &["overlap a btrfs volume, bytes 1048576 to 210763776", hint]);
    refuse(&dir, "mkfs disk.img?offset=2M", &["(disk.img?offset=201M is behind it; "]);
    assert_eq!(run(&dir, "ls disk.img?offset=1M").ok(), "");
    run(&dir, "mkfs -q -f disk.img").ok();
}

/// Two partitions of 150 MiB, at 1 and at 200 MiB.
const TABLES: [&str; 2] = ["gpt", "dos"];

fn partitioned(table: &str) -> TempDir {
    let rule = "start=2048, size=307200\\nstart=409600, size=307200\\n";
    fresh(&format!("printf 'label: {table}\\n{rule}' | sfdisk -q disk.img"))
}

#[test]
fn a_volume_is_a_partition_or_refused() {
    for table in TABLES {
        let dir = partitioned(table);
        let first = "(disk.img?partition=1 is that partition; --force overwrites it)";
        refuse(&dir, "mkfs disk.img", &["partition table (--force overwrites it)"]);
        refuse(&dir, "mkfs disk.img?offset=1M", &["overlap partition 1 of a", first]);
        refuse(&dir, "mkfs --size 151M disk.img?offset=1M", &["partition 1 of a"]);
        refuse(&dir, "mkfs --size 120M disk.img?offset=2M", &["partition 1 of a"]);
        refuse(&dir, "mkfs --size 120M disk.img?offset=151M", &["partition 2 of a"]);
        refuse(&dir, "mkfs --size 180M disk.img?offset=201M", &["partition 2 of a"]);
        run(&dir, "mkfs -q --size 150M disk.img?offset=1M").ok();
        run(&dir, "mkfs -q --size 120M disk.img?offset=200M").ok();
        check(
            &dir,
            "sfdisk -q --verify disk.img 2>&1; sfdisk -d disk.img | grep -c size= | grep 2",
        );
        let grown = run(&dir, "filesystem resize disk.img?offset=1M 200M").failure();
        assert!(grown.contains("overlap partition 1 of a"), "{grown}");
        let grown = run(&dir, "filesystem resize disk.img?offset=200M max").failure();
        assert!(grown.contains("overlap partition 2 of a"), "{grown}");
        run(&dir, "filesystem resize disk.img?offset=200M 150M").ok();
        for offset in ["1M", "200M"] {
            assert_eq!(run(&dir, &format!("ls disk.img?offset={offset}")).ok(), "");
        }
        check(&dir, "sfdisk -q --verify disk.img 2>&1");
    }
}

#[test]
fn the_backup_of_a_partition_table_is_kept() {
    let dir = partitioned("gpt");
    // Behind the last partition is room for a small volume, but not on the backup.
    shell(&format!(
        "cd {}; truncate -s 600M disk.img; sfdisk -q --relocate gpt-bak-std disk.img",
        dir.path().display()
    ));
    let table = ["overlap a GPT partition table (--force overwrites it)"];
    refuse(&dir, "mkfs disk.img?offset=350M", &table);
    run(&dir, "mkfs -q --size 200M disk.img?offset=350M").ok();
    check(&dir, "sfdisk -q --verify disk.img 2>&1");
}

#[test]
fn a_partition_is_the_place_of_a_volume_and_beside_a_damaged_table_is_none() {
    for table in TABLES {
        let dir = partitioned(table);
        refuse(&dir, "mkfs --size 151M disk.img?partition=1", &["does not fit on the 157286400"]);
        run(&dir, "mkfs -q disk.img?partition=1").ok();
        run(&dir, "mkfs -q --size 120M disk.img?partition=2").ok();
        run(&dir, "filesystem resize disk.img?partition=2 max").ok();
        assert_eq!(fs::metadata(dir.path().join("disk.img")).unwrap().len(), 400 << 20);
        refuse(&dir, "mkfs disk.img?partition=1", &["it holds a btrfs volume (--force "]);
        check(&dir, "sfdisk -q --verify disk.img 2>&1");
    }
    // Both headers are damaged, and the record in front of them is lost.
    let dir = partitioned("gpt");
    let damage = "for at in 560 419429936; do printf X | \
        dd of=disk.img bs=1 seek=$at conv=notrunc status=none; done";
    check(&dir, damage);
    let table = ["overlap a GPT partition table (--force overwrites it)"];
    refuse(&dir, "mkfs --size 120M disk.img?offset=20M", &table);
    check(&dir, "dd if=/dev/zero of=disk.img bs=512 count=1 conv=notrunc status=none");
    refuse(&dir, "mkfs --size 120M disk.img?offset=20M", &table);
    run(&dir, "mkfs -q --force --size 120M disk.img?offset=20M").ok();
}

#[test]
fn a_volume_that_shrinks_leaves_what_is_behind_it() {
    let dir = partitioned("dos");
    shell(&format!("mkdir {0}/tree; echo file > {0}/tree/file", dir.path().display()));
    run(&dir, "mkfs -q --size 120M disk.img?offset=200M").ok();
    run(&dir, "mkfs -q --rootdir tree --shrink --size 150M disk.img?offset=1M").ok();
    assert_eq!(fs::metadata(dir.path().join("disk.img")).unwrap().len(), 400 << 20);
    assert_eq!(run(&dir, "cat disk.img?offset=1M file").ok(), "file\n");
    assert_eq!(run(&dir, "ls disk.img?offset=200M").ok(), "");
}

/// The second copy of the superblock lies behind the new end, in a file that is not truncated. A
/// file is, or is not, full of an older volume with that copy.
#[test]
fn a_volume_that_shrinks_leaves_no_superblock_behind_its_end() {
    for old in ["", "mkfs -q -M disk.img"] {
        let dir = tempfile::tempdir_in("/var/tmp").unwrap();
        let script = "truncate -s 100M disk.img; mkdir tree; echo file >tree/file";
        shell(&format!("cd {}; {script}", dir.path().display()));
        if !old.is_empty() {
            run(&dir, old).ok();
        }
        run(&dir, "mkfs -q -f -M --size 78M --rootdir tree --shrink disk.img").ok();
        let image = dir.path().join("disk.img");
        assert_eq!(fs::metadata(&image).unwrap().len(), 100 << 20);
        let mut copy = [0; 4096];
        File::open(&image).unwrap().read_exact_at(&mut copy, 64 << 20).unwrap();
        assert!(copy == [0; 4096], "a superblock of a larger volume");
        assert_eq!(run(&dir, "cat disk.img file").ok(), "file\n");
        run(&dir, "check disk.img").ok();
        shell(&format!("btrfs check {} 2>&1", image.display()));
    }
}

#[test]
fn a_mounted_volume_does_not_grow_over_another_partition() {
    if !kernel_tests_enabled("a_mounted_volume_does_not_grow_over_another_partition") {
        return;
    }
    for table in TABLES {
        let dir = partitioned(table);
        run(&dir, "mkfs -q --size 120M disk.img?offset=1M").ok();
        run(&dir, "mkfs -q --size 120M disk.img?offset=200M").ok();
        let at = dir.path().join("at");
        fs::create_dir(&at).unwrap();
        let _guard = MountGuard::before_mount(&at).unwrap();
        run(&dir, "mount -o rw disk.img?offset=1M at").ok();
        let grown =
            ["max", "200M", "+100M"].map(|size| run(&dir, &format!("filesystem resize at {size}")));
        let within = run(&dir, "filesystem resize at 150M");
        // What would be written over partition 2.
        shell(&format!("head -c 180M /dev/urandom > {}/fill 2> /dev/null || :", at.display()));
        run(&dir, "umount at").ok();
        for grown in grown {
            let said = grown.failure();
            assert!(said.contains("overlap partition 1 of a"), "{said}");
        }
        within.ok();
        assert_eq!(run(&dir, "ls disk.img?offset=200M").ok(), "");
        run(&dir, "check disk.img?offset=200M").ok();
        check(&dir, "sfdisk -q --verify disk.img 2>&1");
    }
}
