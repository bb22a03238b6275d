//! `ls`, `stat`, `find`, `cat` and `inspect` on a mounted volume: on a mount of Butternut and on
//! one of the kernel they print what they print for the volume when it is not mounted.

use super::command::{butternut, shell};
use super::image::kernel_tests_enabled;
use super::volumes_mounted::{Scratch, expect_lines};

const FILES: &str = r#"
"$B" subvolume create sub
mkdir sub/dir dir; head -c 500000 /dev/urandom > sub/dir/big; ln sub/dir/big sub/linked
echo short > dir/inline; truncate -s 9M dir/sparse; fallocate -l 200000 dir/prealloc
touch dir/nocow; chattr +C dir/nocow; echo data > dir/nocow; chattr +d dir/inline
ln -s inline dir/link; ln -s /dir/inline dir/absolute; ln -s ../../../../dir/inline dir/above
mkfifo dir/fifo; mknod dir/null c 1 3; mknod dir/disk b 7 9; touch "dir/a name" $'dir/a\nline'
chown 1000:100 dir/inline; chmod 4711 dir/sparse; setfattr -n user.key -v value dir/inline
touch -d '2001-02-03 04:05:06.789 UTC' dir/fifo; mkdir dir/closed; chmod 700 dir/closed
"$B" subvolume snapshot -r sub snap; echo more >> sub/dir/big
sync -f .; "$B" filesystem sync .
"#;

/// Commands whose output is compared. `V` is the volume.
const COMPARED: [&str; 33] = [
    "ls V",
    "ls V /",
    "ls -l V /",
    "ls -lA V /dir",
    "ls -la V /dir",
    "ls -lai V sub/dir",
    "ls -i V /",
    "ls -R V /",
    "ls -lRh V /",
    "ls -tr V /dir",
    "ls -S V /dir",
    "ls -U V /dir",
    "ls -d V /dir",
    "ls -l V /dir/link /sub /dir/fifo",
    "--json ls -R V /",
    "find V /",
    "find V /sub",
    "find -x V /",
    "find --ls V /",
    "find --type v V /",
    "find --type l,p,c,b V /",
    "find --name *a* --max-depth 2 V /",
    "find --size +100K V /",
    "--json find V /",
    "stat V /",
    "stat V /dir/inline /dir/link /dir/absolute /dir/fifo /dir/null /dir/nocow /sub /snap",
    "stat -L V /dir/absolute /dir/above",
    "stat -x V /dir/inline",
    "--json stat V /dir/prealloc /sub/dir/big /dir/disk /sub/linked",
    "cat V /dir/inline /dir/absolute /dir/above /sub/dir/big",
    "cat --offset 2 --length 3 V /dir/link",
    "--json cat V /dir/inline",
    "inspect rootid V /sub/dir/big",
];

fn shown(words: &str, volume: &str) -> (Option<i32>, Vec<u8>, String) {
    let words: Vec<&str> =
        words.split(' ').map(|word| if word == "V" { volume } else { word }).collect();
    let ran = butternut(&words);
    (ran.code, ran.bytes, ran.err)
}

#[test]
fn what_commands_read_in_a_mount_is_what_the_volume_has() {
    if !kernel_tests_enabled("what_commands_read_in_a_mount_is_what_the_volume_has") {
        return;
    }
    let scratch = Scratch::new("256M");
    let (image, at) = (scratch.image(), scratch.at());
    scratch.mount("allow_other");
    scratch.script(FILES);
    let ours = COMPARED.map(|words| shown(words, &at));
    scratch.umount();
    let offline = COMPARED.map(|words| shown(words, &image));
    shell(&format!("mount -o loop,ro,noatime {image} {at}"));
    let kernels = COMPARED.map(|words| shown(words, &at));
    shell(&format!("umount {at}"));
    for (number, words) in COMPARED.iter().enumerate() {
        let text = |(code, bytes, err): &(Option<i32>, Vec<u8>, String)| {
            format!("{code:?} {}\n{err}", bytes.escape_ascii().to_string().replace("\\n", "\n"))
        };
        let want = text(&offline[number]);
        assert!(want.starts_with("Some(0)"), "{words}: {want}");
        assert_eq!(text(&ours[number]), want, "{words}");
        assert_eq!(text(&kernels[number]), want, "{words} on the kernel's mount");
    }
    scratch.check();
}

const ALONE: &str = r#"
try "$B" ls dir/closed; try "$B" ls "$M/dir/" | head -2
try "$B" find sub --type f
try "$B" stat dir/inline | head -1
try "$B" stat dir/link | head -1
try "$B" stat -L dir/link | sed -n 2p
try "$B" stat "$M" | head -1
try "$B" cat dir/inline
try "$B" cat "$M/dir/absolute"
try "$B" cat dir
try "$B" cat dir/fifo
try "$B" cat . /dir/fifo
try "$B" cat . missing
try "$B" ls missing
try "$B" ls . /missing
try "$B" ls /proc
try "$B" ls "$M@sub"
try "$B" stat "$M@256"
try "$B" stat --extents dir/inline
try "$B" cat "$T/outside"
# An image in a mount is a volume.
"$B" mkfs -q --size 128M disk.img
try "$B" stat disk.img | head -1
try "$B" ls disk.img
try "$B" cat disk.img
rm disk.img
# What another user may read.
try user "$B" ls "$M/dir/closed"
try user "$B" stat "$M/dir/inline" | tail -1
try user "$B" stat "$M/dir/closed/x"
try user "$B" cat "$M/dir/inline"
# What is mounted below is listed, and not entered.
mkdir other; mount -t tmpfs none other; echo x > other/inside
try "$B" find . --name '*in*' --type f --size -10
try "$B" ls . /other
try "$B" cat . /other/inside
umount other
"#;

#[test]
fn a_path_in_a_mount_may_be_named_alone() {
    if !kernel_tests_enabled("a_path_in_a_mount_may_be_named_alone") {
        return;
    }
    let scratch = Scratch::new("512M");
    scratch.mount("allow_other");
    std::fs::write(scratch.path("outside"), "outside").unwrap();
    let printed = scratch.script(&format!("{FILES}{ALONE}"));
    expect_lines(
        &printed,
        &[
            "butternut ls dir/closed: 0 ",
            "butternut ls M/dir/: 0 a",
            "butternut find sub --type f: 0 sub/",
            "sub/",
            "butternut stat dir/inline: 0   File: dir/inline",
            "butternut stat dir/link: 0   File: dir/link -> inline",
            "  Size: 6 ",
            "butternut stat M: 0   File: M",
            "butternut cat dir/inline: 0 short",
            "butternut cat M/dir/absolute: ",
            "butternut cat dir: 1 butternut: dir: is a directory",
            "butternut cat dir/fifo: 1 butternut: dir/fifo: is not a regular file",
            "butternut cat . /dir/fifo: 1 butternut: /dir/fifo: is not a regular file",
            "butternut cat . missing: 1 butternut: missing: no such file or directory (paths begin",
            "butternut ls missing: 1 butternut: missing: no such file or directory",
            "butternut ls . /missing: 1 butternut: /missing: no such file or directory (paths",
            "butternut ls /proc: 1 butternut: /proc: is in no mounted btrfs volume (name an image",
            "butternut ls M@sub: 1 butternut: M@sub: a subvolume of a mounted volume is named \
             without @ (name it by its path: M/sub)",
            "butternut stat M@256: 1 butternut: M@256: a subvolume of a mounted volume is named \
             without @ (name it by its path; `butternut subvolume list M` shows the paths)",
            "butternut stat --extents dir/inline: 1 butternut: --extents: is for a volume that",
            "butternut cat T/outside: 2 butternut: usage: name the files of the volume",
            "butternut stat disk.img: 0   File: /",
            "butternut ls disk.img: 0 ",
            "butternut cat disk.img: 2 butternut: usage: ",
            "user butternut ls M/dir/closed: 1 butternut: M/dir/closed: permission denied",
            " Btrfs: generation -, flags nodump, file id ",
            "user butternut stat M/dir/closed/x: 1 butternut: M/dir/closed/x: permission denied",
            "user butternut cat M/dir/inline: 0 short",
            "butternut find . --name *in* --type f --size -10: 0 ./dir/inline",
            "butternut ls . /other: 1 butternut: /other: ",
            "butternut cat . /other/inside: 1 butternut: /other/inside: ",
        ],
    );
    assert!(!printed.contains("./other/inside"), "{printed}");
    scratch.umount();
    scratch.check();
}

const INSPECTED: &str = r#"
try "$B" inspect rootid sub
try "$B" inspect rootid . /snap/dir/big
try "$B" --json inspect rootid dir/inline
try "$B" inspect inode-resolve "$INO" sub
try "$B" inspect inode-resolve "$INO" snap/dir
try "$B" inspect inode-resolve 256 sub
try "$B" inspect inode-resolve 99999 sub
try user "$B" inspect rootid "$M/snap"
try user "$B" inspect inode-resolve 257 "$M"
try "$B" inspect logical-resolve "$LOGICAL" "$M"
try "$B" inspect logical-resolve -P "$LOGICAL" dir
try "$B" --json inspect logical-resolve "$LOGICAL" .
try "$B" inspect logical-resolve 12345 .
try "$B" inspect dump-tree .
try "$B" inspect tree-stats "$M"
try "$B" inspect dump-super dir
"#;

#[test]
fn inspect_reads_a_mounted_volume() {
    if !kernel_tests_enabled("inspect_reads_a_mounted_volume") {
        return;
    }
    let scratch = Scratch::new("256M");
    let (image, at) = (scratch.image(), scratch.at());
    scratch.mount("allow_other");
    scratch.script(FILES);
    scratch.umount();
    let json = butternut(&["--json", "stat", "--extents", &image, "/snap/dir/big"]).ok();
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    let logical = json[0]["extents"][0]["logical"].as_u64().unwrap().to_string();
    let ino = json[0]["inode"].as_u64().unwrap().to_string();
    let offline = |words: &[&str]| butternut(words).ok();
    let resolved = offline(&["inspect", "logical-resolve", &logical, &image]);
    assert!(resolved.contains("/snap/dir/big\n"), "{resolved}");
    let of_json = offline(&["--json", "inspect", "logical-resolve", &logical, &image]);
    let numbers = offline(&["inspect", "logical-resolve", "-P", &logical, &image]);
    let names = offline(&["inspect", "inode-resolve", &ino, &format!("{image}@sub")]);
    assert_eq!(names.lines().count(), 2, "{names}");
    let script = INSPECTED.replace("$LOGICAL", &logical).replace("$INO", &ino);
    scratch.mount("allow_other");
    let printed = scratch.script(&script);
    scratch.umount();
    for (words, want) in [
        ("inspect rootid sub", "256\n".to_owned()),
        ("inspect rootid . /snap/dir/big", "257\n".to_owned()),
        (&format!("inspect inode-resolve {ino} sub"), names.clone()),
        (&format!("inspect inode-resolve {ino} snap/dir"), names.clone()),
        ("inspect inode-resolve 256 sub", "/\n".to_owned()),
        (&format!("inspect logical-resolve {logical} M"), resolved),
        (&format!("inspect logical-resolve -P {logical} dir"), numbers),
        (&format!("--json inspect logical-resolve {logical} ."), of_json),
    ] {
        let want = format!("butternut {words}: 0 {want}");
        assert!(printed.contains(&want), "{want}\n{printed}");
    }
    let refused = "is a directory, and `inspect";
    expect_lines(
        &printed,
        &[
            "butternut inspect inode-resolve 99999 sub: 1 butternut: inode 99999 of subvolume 256: \
             there is no such inode",
            "user butternut inspect rootid M/snap: 0 257",
            "user butternut inspect inode-resolve 257 M: 1 butternut: M: operation not permitted \
             (only root",
            "butternut inspect logical-resolve 12345 .: 1 butternut: logical address 12345: \
             no file",
            &format!("butternut inspect dump-tree .: 1 butternut: .: {refused} dump-tree` reads"),
            &format!("butternut inspect tree-stats M: 1 butternut: M: {refused} tree-stats` reads"),
            &format!("butternut inspect dump-super dir: 1 butternut: dir: {refused} dump-super`"),
        ],
    );
    shell(&format!("mount -o loop,ro {image} {at}"));
    let of = |words: &[&str]| butternut(&[&["inspect"], words].concat());
    let sub = format!("{at}/sub");
    let found = of(&["rootid", &sub]).out + &of(&["inode-resolve", &ino, &sub]).out;
    let theirs = shell(&format!("btrfs inspect-internal inode-resolve {ino} {sub}"));
    let refused = of(&["logical-resolve", &logical, &at]).failure();
    shell(&format!("umount {at}"));
    assert_eq!(found, format!("256\n{names}"));
    let theirs: Vec<&str> = theirs.lines().filter_map(|path| path.strip_prefix(&sub)).collect();
    assert_eq!(theirs, names.lines().collect::<Vec<_>>());
    assert!(refused.contains("`btrfs inspect-internal logical-resolve"), "{refused}");
}
