//! Each error of opening a volume has its hint, whatever the text of the error.

use std::fs::{self, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::Path;

use butternut::format::checksum::ChecksumKind;
use butternut::{DevicePath, Filesystem, MountOptions};
use tempfile::TempDir;

use super::command::{butternut, shell};
use super::image::{kernel_tests_enabled, plain};

const NOT_BTRFS: &str =
    "(check that this is a btrfs volume; if it starts inside a larger image, add ?offset=N)";
const SUPER_AT: u64 = 65536;
const SECOND_SUPER_AT: u64 = 64 << 20;

/// Runs `command` on `volume`, which fails with this status and a message that ends with the hint.
#[track_caller]
fn check(command: &str, volume: &str, status: i32, hint: &str) {
    let words: Vec<&str> = command.split(' ').map(|w| if w == "V" { volume } else { w }).collect();
    let ran = butternut(&words);
    assert_eq!((ran.code, ran.out.as_str()), (Some(status), ""), "{}", ran.err);
    assert!(ran.err.starts_with(&format!("butternut: {volume}: ")), "{}", ran.err);
    assert!(ran.err.ends_with(&format!("{hint}\n")), "{hint}: {}", ran.err);
    assert_eq!(ran.err.lines().count(), 1, "{}", ran.err);
}

/// Checks the hints of the commands that read, write and check a volume.
#[track_caller]
fn check_all(volume: &str, hint: &str) {
    check("ls V", volume, 1, hint);
    check("mkdir V new", volume, 1, hint);
    check("check V", volume, 8, hint);
}

fn path(scratch: &TempDir, name: &str) -> String {
    scratch.path().join(name).to_str().unwrap().to_owned()
}

fn own_plain(scratch: &TempDir) -> String {
    let image = path(scratch, "own.img");
    fs::copy(&plain().0, &image).unwrap();
    image
}

/// Changes the superblocks of an image, with a right checksum if `is_valid`.
fn change_super_blocks(image: &str, is_valid: bool, change: impl Fn(&mut [u8])) {
    let file = OpenOptions::new().read(true).write(true).open(image).unwrap();
    for at in [SUPER_AT, SECOND_SUPER_AT] {
        let mut block = [0; 4096];
        file.read_exact_at(&mut block, at).unwrap();
        change(&mut block);
        if is_valid {
            let checksum = ChecksumKind::Crc32c.compute(&block[32..]);
            block[..32].copy_from_slice(&checksum);
        }
        file.write_all_at(&block, at).unwrap();
    }
}

#[test]
fn files_that_are_no_volumes() {
    let scratch = tempfile::tempdir().unwrap();
    let (junk, empty) = (path(&scratch, "junk"), path(&scratch, "empty"));
    fs::write(&junk, vec![1; 1 << 20]).unwrap();
    fs::write(&empty, "").unwrap();
    check_all(&junk, NOT_BTRFS);
    check_all(&empty, NOT_BTRFS);
    check_all("/dev/null", "(name an image file or a block device)");
    check("mkfs V", "/dev/null", 1, "(name an image file or a block device)");
    let image = own_plain(&scratch);
    check_all(&format!("{image}?offset=2G"), "(check the number after ?offset=)");
}

#[test]
fn damaged_and_unknown_superblocks() {
    let scratch = tempfile::tempdir().unwrap();
    let image = own_plain(&scratch);
    // An incompat feature that no version knows.
    change_super_blocks(&image, true, |block| block[0xbc + 6] |= 1);
    check_all(&image, "(use the kernel's btrfs for this volume)");
    change_super_blocks(&image, false, |block| block[0x100] ^= 1);
    let hint = "(`butternut inspect dump-super --all` shows what the superblocks contain)";
    check_all(&image, hint);
    butternut(&["inspect", "dump-super", "--all", &image]).ok();
}

#[test]
fn devices_that_do_not_make_up_a_volume() {
    let scratch = tempfile::tempdir().unwrap();
    let dir = scratch.path().display();
    shell(&format!(
        "cd {dir}; truncate -s 300M a b; mkfs.btrfs -q -d raid0 -m raid0 a b
         truncate -s 300M c; mkfs.btrfs -q c; cp --sparse=always c d; truncate -s 100M d"
    ));
    let name = |name: &str| path(&scratch, name);
    let all = "(name all its devices, separated by commas, or add --degraded)";
    check_all(&name("a"), all);
    let more = "(name more of its devices, separated by commas)";
    check("--degraded ls V", &name("a"), 1, more);
    check("--degraded check V", &name("a"), 8, more);
    check_all(&format!("{},{}", name("a"), name("c")), "(name only devices of one volume)");
    fs::copy(name("c"), name("e")).unwrap();
    let copies = format!("{},{}", name("c"), name("e"));
    check_all(&copies, "(name one of them; the other is a copy, or the same device)");
    let short =
        "(if it was truncated, restore its size, or name the other devices and add --degraded)";
    check("ls V", &name("d"), 1, short);
    check("mkdir V new", &name("d"), 1, short);
}

#[test]
fn volumes_in_use() {
    let scratch = tempfile::tempdir().unwrap();
    let image = own_plain(&scratch);
    let options = MountOptions::default().read_only(false);
    let filesystem = Filesystem::open(&[DevicePath::from(Path::new(&image))], &options).unwrap();
    let free = "(unmount it, or wait until it is free)";
    check("mkdir V new", &image, 1, free);
    check("mkfs --force V", &image, 1, free);
    check("check V", &image, 8, "(unmount it, mount it read-only, or add --force)");
    filesystem.close().unwrap();
    butternut(&["mkdir", &image, "new"]).ok();
}

#[test]
fn volumes_that_may_not_be_opened() {
    if !kernel_tests_enabled("volumes_that_may_not_be_opened") {
        return;
    }
    let scratch = tempfile::tempdir_in("/var/tmp").unwrap();
    let image = own_plain(&scratch);
    let dir = scratch.path().display();
    let run = |words: &str| {
        shell(&format!(
            "cd {dir}; cp {} butternut; mkdir -p m; chmod 755 . butternut
             setpriv --reuid=1234 --regid=1234 --clear-groups ./butternut {words} 2>&1 || true",
            env!("CARGO_BIN_EXE_butternut"),
        ))
    };
    let owner = "permission denied (run as its owner or as root, or use a copy that you own)\n";
    shell(&format!("chmod 600 {image}"));
    for words in ["ls own.img", "rm own.img x", "check own.img", "mkfs -f own.img"] {
        let said = run(words);
        assert!(said.ends_with(owner), "{words}: {said}");
    }
    let said = run("mkfs --size 200M /etc/new.img");
    let want = "permission denied (choose a file in a directory that you can write to)\n";
    assert!(said.ends_with(want), "{said}");
    shell(&format!("chmod 644 {image}"));
    let said = run("mount own.img m");
    assert!(said.ends_with("permission denied (mount it read-only with -o ro)\n"), "{said}");
    assert!(run("rm own.img x").ends_with(owner));
    let said = run("export own.img hello.txt /etc/new");
    assert!(said.contains("permission denied (choose a DEST that you can write to)"), "{said}");
}

#[test]
fn devices_that_are_read_only() {
    if !kernel_tests_enabled("devices_that_are_read_only") {
        return;
    }
    let output = shell(&format!(
        "L=$(losetup --find --show --read-only {}); trap \"losetup -d $L\" EXIT
         {} mkdir $L new 2>&1 || true; {1} mkfs -f $L 2>&1 || true",
        plain().0.display(),
        env!("CARGO_BIN_EXE_butternut"),
    ));
    let hint = "(make it writable with `blockdev --setrw`, or use a copy)";
    assert!(output.lines().count() == 2 && output.lines().all(|l| l.ends_with(hint)), "{output}");
}

#[test]
fn other_hints() {
    let scratch = tempfile::tempdir().unwrap();
    let image = own_plain(&scratch);
    let said = butternut(&["getfattr", "-n", "user.none", &image, "hello.txt"]).failure();
    assert!(said.ends_with("(`butternut getfattr` shows what there is)"), "{said}");
    let said = butternut(&["rm", "-d", &image, "docs"]).failure();
    assert!(said.ends_with("(`butternut rm -r` removes it and its contents)"), "{said}");
    let said = butternut(&["man", &image]).failure();
    assert!(said.ends_with(": is not a directory (name a directory for the pages)"), "{said}");
    let said = butternut(&["mount", &image]).failure();
    assert!(said.ends_with("(the form is `butternut mount VOLUME MOUNTPOINT`)"), "{said}");
    let new = path(&scratch, "none/new.img");
    check("mkfs --size 200M V", &new, 1, "(create its directory first)");
}
