//! Messages name the right object, and say what to do, where names, volumes and files are not what
//! a command needs.

use std::fs::{self, OpenOptions};
use std::os::unix::fs::FileExt;

use butternut_undo::MountGuard;
use tempfile::TempDir;

use super::command::{butternut, run, script_on_mount, shell};
use super::image::{kernel_tests_enabled, plain};
use super::mount::MountPoint;

fn own_plain(dir: &TempDir, name: &str) -> String {
    let image = dir.path().join(name).to_str().unwrap().to_owned();
    fs::copy(&plain().0, &image).unwrap();
    image
}

#[test]
fn what_is_not_btrfs_is_named() {
    let dir = tempfile::tempdir_in("/var/tmp").unwrap();
    let (at, image) = (dir.path().display(), dir.path().join("disk.img"));
    let image = image.to_str().unwrap();
    let plain = plain().0.display();
    // Partitions at 1 MiB and 250 MiB; the second one holds the volume.
    let partitioned = |table: &str| {
        format!(
            "truncate -s 500M disk.img
             printf 'label: {table}\\nstart=2048, size=20480\\nstart=512000, size=409600\\n' |
                 sfdisk -q disk.img
             dd if={plain} of=disk.img bs=1M seek=250 conv=notrunc,sparse status=none"
        )
    };
    let listed = "(it has partitions: ?partition=2 is a btrfs volume; partition 1 of 10.00MiB has \
         no known contents)";
    for (script, hint) in [
        ("truncate -s 100M disk.img; mkfs.ext4 -q disk.img".to_owned(), "(it holds an ext2, ext3"),
        ("truncate -s 400M disk.img; mkfs.xfs -q disk.img".to_owned(), "(it holds an XFS file"),
        (
            "printf 'QFI\\373' > disk.img; truncate -s 1M disk.img".to_owned(),
            "it is a qcow2 image: ",
        ),
        ("echo x | gzip > disk.img".to_owned(), "(it is compressed: gunzip(1) decompresses it)"),
        (partitioned("gpt"), listed),
        (partitioned("dos"), listed),
        // A filesystem at the start, and a table with a volume: as on a medium that also boots.
        (
            format!(
                "{}; printf CD001 | dd of=disk.img bs=1 seek=32769 conv=notrunc status=none",
                partitioned("dos")
            ),
            listed,
        ),
        (
            "truncate -s 40M disk.img; printf 'start=2048, size=20480' | sfdisk -q disk.img
             mkfs.ext4 -q -E offset=1048576 disk.img 10M"
                .to_owned(),
            "(it has partitions, none of btrfs: ?partition=1 is an ext2, ext3 or ext4 filesystem)",
        ),
        (
            "truncate -s 40M disk.img; echo label: gpt | sfdisk -q disk.img".to_owned(),
            "(it holds a GPT partition table)",
        ),
        (
            format!("truncate -s 2M disk.img; cat {plain} >> disk.img"),
            "(a btrfs volume begins at byte 2097152: add ?offset=2M)",
        ),
    ] {
        shell(&format!("cd {at}; rm -f disk.img; {script}"));
        for words in [&["ls", image][..], &["mkdir", image, "x"], &["check", image]] {
            let said = butternut(words);
            assert_ne!(said.code, Some(0));
            assert!(said.err.contains(hint), "{hint}: {}", said.err);
            assert_eq!(said.err.lines().count(), 1, "{}", said.err);
            assert_eq!(said.err.matches(" (it ").count() + said.err.matches(" (a ").count(), 1);
        }
    }
    let said = butternut(&["ls", &format!("{plain}?offset=1M")]).failure();
    assert!(said.ends_with("(a btrfs volume begins at byte 0: leave out ?offset)"), "{said}");
}

#[test]
fn a_damaged_first_superblock_is_told_once_by_each_command() {
    let dir = tempfile::tempdir().unwrap();
    let image = own_plain(&dir, "a.img");
    let damage = || {
        let file = OpenOptions::new().write(true).open(&image).unwrap();
        file.write_all_at(&[0x55; 64], 65536 + 128).unwrap();
    };
    damage();
    for words in [&["ls", &image][..], &["cat", &image, "hello.txt"], &["df", &image]] {
        let ran = butternut(words);
        assert_eq!(ran.code, Some(0), "{}", ran.err);
        assert_eq!(ran.err.matches("the first superblock is damaged").count(), 1, "{}", ran.err);
        assert_eq!(butternut(&[words, &["-q"]].concat()).err, "");
    }
    let ran = butternut(&["mkdir", &image, "new"]);
    assert!(ran.code == Some(0) && ran.err.contains("superblock is damaged"), "{}", ran.err);
    assert_eq!(butternut(&["ls", &image, "new"]).ok(), "");
    run("btrfs", &["check", &image].map(AsRef::as_ref));
}

#[test]
fn an_import_names_what_exists_and_how_much_space_it_needs() {
    let dir = tempfile::tempdir_in("/var/tmp").unwrap();
    let image = own_plain(&dir, "a.img");
    let path = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
    shell(&format!(
        "cd {}; mkdir -p tree/docs; echo x > hello.txt; echo x > tree/docs/numbers
         for i in 1 2 3; do head -c 100M /dev/urandom > tree/big$i; done",
        dir.path().display()
    ));
    let check = |words: &[&str], want: &str| {
        let said = butternut(&[&["import", &image][..], words].concat()).failure();
        assert!(said.starts_with(&format!("butternut: {want}")), "{said}");
    };
    check(&[&path("hello.txt"), "/"], "/hello.txt: file exists (");
    check(&[&path("hello.txt"), "/empty"], "/empty: file exists (");
    check(&[&path("tree/docs"), "/"], "/docs: file exists (");
    check(&[&path("tree/docs/."), "docs"], "docs/numbers: file exists (");
    let said = butternut(&["import", &image, &path("tree"), "/new"]).failure();
    assert!(said.contains(": the volume is full: no space for "), "{said}");
    assert!(said.contains(" bytes (the copy needs about 30"), "{said}");
    assert!(said.contains("MiB were free; remove files, or extend the volume"), "{said}");
    run("btrfs", &["check", &image].map(AsRef::as_ref));
}

#[test]
fn paths_of_a_subvolume_begin_inside_it() {
    let dir = tempfile::tempdir().unwrap();
    let image = own_plain(&dir, "a.img");
    butternut(&["subvolume", "create", &image, "/sub"]).ok();
    let hint = format!(
        "(paths begin inside subvolume 256; name the volume {image}@5 to begin at the top level)"
    );
    let inside = format!("{image}@sub");
    for words in [&["ls", &inside, "sub/x"][..], &["cat", &inside, "x"], &["rm", &inside, "x"]] {
        let said = butternut(words);
        assert!(said.code == Some(1) && said.err.trim_end().ends_with(&hint), "{}", said.err);
    }
}

#[test]
fn counts_have_their_number() {
    let dir = tempfile::tempdir().unwrap();
    let image = own_plain(&dir, "a.img");
    let said = butternut(&["-v", "check", &image]).err;
    assert!(said.contains(" subvolume, ") && !said.contains("1 subvolumes"), "{said}");
    let file = dir.path().join("file");
    fs::write(&file, "x").unwrap();
    let said = butternut(&["-v", "import", &image, file.to_str().unwrap(), "/file"]).err;
    assert!(said.contains("file: 1 file, 0 directories, 0 links, "), "{said}");
}

#[test]
fn a_stream_is_whole_and_a_directory_takes_it_with_an_option() {
    let dir = tempfile::tempdir_in("/var/tmp").unwrap();
    let image = own_plain(&dir, "a.img");
    let path = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
    let (data, stream) = (path("data"), path("s.stream"));
    fs::write(&data, vec![7; 1 << 20]).unwrap();
    butternut(&["subvolume", "create", &image, "/sub"]).ok();
    butternut(&["import", "-q", &image, &data, "/sub/data"]).ok();
    butternut(&["property", "set", &image, "/sub", "ro", "true"]).ok();
    butternut(&["send", "--proto", "0", "-f", &stream, &image, "/sub"]).ok();
    assert_eq!(butternut(&["ls", &stream, "/sub"]).ok(), "data\n");
    let plain = dir.path().to_str().unwrap();
    let said = butternut(&["receive", "-f", &stream, plain]).failure();
    let want = format!(
        "butternut: {plain}: is in no mounted btrfs volume (`receive --to-directory {plain}` makes \
         plain directories in it)"
    );
    assert_eq!(said, want);
}

#[test]
fn the_top_level_and_a_path_that_is_no_device() {
    let dir = tempfile::tempdir().unwrap();
    let image = own_plain(&dir, "a.img");
    butternut(&["property", "set", &image, "/", "ro", "false"]).ok();
    let said = butternut(&["property", "set", &image, "/", "ro", "true"]).failure();
    assert!(said.contains("the top level cannot be read-only"), "{said}");
    run("btrfs", &["check", &image].map(AsRef::as_ref));
    for path in ["/", "none"] {
        let said = butternut(&["subvolume", "list", &image, path]);
        let want = format!(
            "butternut: {path}: is no device (the command takes no path; -o VOLUME@SUBVOL lists \
             the subvolumes below one)\n"
        );
        assert_eq!((said.code, said.err), (Some(2), want));
    }
    butternut(&["subvolume", "create", &image, "/home"]).ok();
    butternut(&["subvolume", "set-default", &image, "/home"]).ok();
    let said = butternut(&["subvolume", "set-default", &image, "/"]);
    assert!(said.code == Some(0) && said.err.contains("/: note: this is the default already (5 "));
}

/// As for [`script_on_mount`]; `$T` is a directory for other files.
const SCRIPT: &str = r#"
"$B" subvolume create s
mkdir s/dir plain
echo x > file
try "$B" subvolume set-default "$M/plain"
try "$B" subvolume set-default s/dir
try "$B" subvolume set-default file
try "$B" subvolume set-default "$M" 9999
"$B" subvolume get-default "$M"
try "$B" property set s/dir ro true
try "$B" property set plain ro false
try "$B" subvolume snapshot plain new
try "$B" subvolume show "$M" s
try "$B" subvolume set-default "$M" s
try "$B" send typo -f "$T/stream"
try "$B" send file -f "$T/stream"
try "$B" filesystem defragment "$M/nope"
try "$B" filesystem defragment nope/nope
try "$B" dedupe "$M/nope"
try "$B" subvolume delete "$M"
try "$B" subvolume delete "$M/."
try "$B" subvolume set-default s
try "$B" subvolume delete s
"$B" subvolume set-default "$M" 5
try "$B" subvolume create "$M" new
try "$B" subvolume snapshot "$M/s" s new
try "$B" send "$M" /s -f "$T/stream"
try "$B" filesystem du "$M/file" file
refused="$("$B" qgroup show "$M/file" 2>&1)"
echo "butternut hint: ${refused##*; }"
try "$B" property get file compression
try "$B" property set "$M" ro false
"#;

const WANT: [&str; 26] = [
    "butternut subvolume set-default M/plain: 1 butternut: M/plain: not a subvolume (`butternut \
     subvolume list` shows what there is)",
    "butternut subvolume set-default s/dir: 1 butternut: s/dir: not a subvolume (`butternut \
     subvolume list` shows what there is)",
    "butternut subvolume set-default file: 1 butternut: file: not a directory",
    "butternut subvolume set-default M 9999: 1 butternut: M: no subvolume 9999 (`butternut \
     subvolume list` shows what there is)",
    "ID 5 (FS_TREE)",
    "butternut property set s/dir ro true: 1 butternut: s/dir: not a subvolume (`butternut \
     subvolume list` shows what there is)",
    "butternut property set plain ro false: 1 butternut: plain: not a subvolume (`butternut \
     subvolume list` shows what there is)",
    "butternut subvolume snapshot plain new: 1 butternut: plain: not a subvolume (`butternut \
     subvolume list` shows what there is)",
    "butternut subvolume show M s: 2 butternut: usage: in a mounted volume, each path is one \
     argument: M/s (--help shows both forms of the command)",
    "butternut subvolume set-default M s: 2 butternut: usage: in a mounted volume, each path is \
     one argument: M/s (--help shows both forms of the command)",
    "butternut send typo -f T/stream: 1 butternut: typo: no such file or directory",
    "butternut send file -f T/stream: 1 butternut: file: not a subvolume (`butternut subvolume \
     list` shows what there is)",
    "butternut filesystem defragment M/nope: 1 butternut: M/nope: no such file or directory",
    "butternut filesystem defragment nope/nope: 1 butternut: nope/nope: no such file or directory",
    "butternut dedupe M/nope: 1 butternut: M/nope: no such file or directory",
    "butternut subvolume delete M: 1 butternut: M: is a mount point (unmount it first, or name a \
     subvolume in it)",
    "butternut subvolume delete M/.: 1 butternut: M/.: is a mount point (unmount it first, or name \
     a subvolume in it)",
    "butternut subvolume set-default s: 0 ",
    "butternut subvolume delete s: 1 butternut: s: is the default subvolume, which cannot be \
     deleted (`butternut subvolume set-default` makes another one the default)",
    "butternut subvolume create M new: 2 butternut: usage: in a mounted volume, each path is one \
     argument: M/new (--help shows both forms of the command)",
    "butternut subvolume snapshot M/s s new: 2 butternut: usage: in a mounted volume, each path is \
     one argument: M/s/s M/s/new (--help shows both forms of the command)",
    "butternut send M /s -f T/stream: 2 butternut: usage: in a mounted volume, each path is one \
     argument: M/s (--help shows both forms of the command)",
    "butternut filesystem du M/file file: 0      Total   Exclusive  Set shared  Filename",
    "butternut hint: to use the mounted volume that the file is in, name a directory of it)",
    "butternut property get file compression: 2 butternut: compression: is no property of a \
     subvolume (`setfattr -n btrfs.compression -v zstd` sets it)",
    "butternut property set M ro false: 0 ",
];

#[test]
fn a_mount_of_ours_and_of_the_kernel_have_the_same_messages() {
    if !kernel_tests_enabled("a_mount_of_ours_and_of_the_kernel_have_the_same_messages") {
        return;
    }
    let dir = tempfile::tempdir_in("/var/tmp").unwrap();
    let image = own_plain(&dir, "a.img");
    let scratch = dir.path().to_str().unwrap();
    let said = |mount_point: &str| {
        let said = script_on_mount(mount_point, SCRIPT, &[("T", scratch)]);
        let said = said.replace(scratch, "T");
        // `defragment` and `dedupe` print what they have done, too.
        let is_message = |line: &&str| line.starts_with("butternut ") || line.starts_with("ID ");
        said.lines().filter(is_message).map(str::to_owned).collect::<Vec<_>>()
    };
    let mount_point = MountPoint::new();
    butternut(&["mount", &image, mount_point.name()]).ok();
    assert_eq!(said(mount_point.name()), WANT);
    let refused = butternut(&["property", "set", mount_point.name(), "ro", "true"]).failure();
    assert!(refused.ends_with(": the top level cannot be read-only"), "{refused}");
    // What uses the volume, and where it is mounted.
    let busy = butternut(&["ls", &image]).failure();
    let at = mount_point.name();
    let want = format!(
        "(butternut) has it open (it is mounted on {at}; `butternut umount {at}` releases it)"
    );
    assert!(busy.ends_with(&want), "{busy}");
    butternut(&["umount", at]).ok();
    let kernel = dir.path().join("m");
    fs::create_dir(&kernel).unwrap();
    let guard = MountGuard::before_mount(&kernel).unwrap();
    let image = own_plain(&dir, "k.img");
    shell(&format!("mount -o loop {image} {}", kernel.display()));
    let at = kernel.to_str().unwrap();
    assert_eq!(said(at), WANT);
    for command in ["quota status", "quota rescan", "qgroup show", "qgroup limit 1M"] {
        let words: Vec<&str> = command.split(' ').chain([at]).collect();
        let refused = butternut(&words).failure();
        let command = command.trim_end_matches(" 1M");
        let want = format!(
            "butternut: {at}: is on a mount of the kernel's btrfs (`btrfs {command}` does it there)"
        );
        assert_eq!(refused, want);
    }
    guard.unmount().unwrap();
}

#[test]
fn a_read_only_mount_says_what_makes_it_writable() {
    if !kernel_tests_enabled("a_read_only_mount_says_what_makes_it_writable") {
        return;
    }
    let dir = tempfile::tempdir_in("/var/tmp").unwrap();
    let image = own_plain(&dir, "a.img");
    butternut(&["subvolume", "snapshot", "-q", "-r", &image, "/", "s"]).ok();
    let stream = dir.path().join("s.stream");
    let stream = stream.to_str().unwrap();
    butternut(&["send", "-q", "-f", stream, &image, "s"]).ok();
    let mount_point = MountPoint::new();
    let at = mount_point.name();
    let refused = |hint: &str| {
        for words in [&["quota", "enable", at][..], &["filesystem", "label", at, "new"]] {
            let want = format!("butternut: {at}: read-only file system ({hint})");
            assert_eq!(butternut(words).failure(), want);
        }
    };
    butternut(&["mount", "-o", "ro", &image, at]).ok();
    refused("the volume is open read-only: unmount it, and mount it again without ro");
    butternut(&["umount", at]).ok();
    butternut(&["mount", &image, at]).ok();
    butternut(&["mount", "-o", "remount,ro", at]).ok();
    refused("`mount -o remount,rw` makes the mount writable");
    butternut(&["mount", "-o", "remount,rw", at]).ok();
    butternut(&["filesystem", "label", at, "new"]).ok();
    butternut(&["umount", at]).ok();
    butternut(&["mount", stream, at]).ok();
    refused(
        "a mounted send stream can only be read; `butternut receive` makes its subvolumes in a \
         volume",
    );
    let unchecked = "is a send stream, which cannot be checked (`butternut receive` makes its \
                     subvolumes in a volume, which can)";
    for (words, what) in [
        (&["check", "--online", at][..], format!("{at}: {stream}")),
        (&["check", stream], stream.to_owned()),
    ] {
        let checked = butternut(words);
        let want = format!("butternut: {what}: {unchecked}\n");
        assert_eq!((checked.code, checked.err), (Some(8), want));
    }
    butternut(&["umount", at]).ok();
}
