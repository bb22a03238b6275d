//! `import --tar`: an archive becomes what GNU tar extracts from it onto the kernel's btrfs, and no
//! archive creates anything outside of its destination.

use std::fs;
use std::io::Write;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::Stdio;
use std::thread::yield_now;

use rustix::io::ioctl_fionread;
use rustix::process::{Pid, Signal, kill_process};

use super::change::{ACL, Volume};
use super::command::{butternut, command, in_mount_namespace, shell};
use super::image::{KernelMount, kernel, kernel_tests_enabled};
use super::import::tree;

/// A script that lists everything that an archive keeps of the files below the current directory.
const LISTING: &str = r"
    find . ! -type d ! -type s -printf '%p %y %m %n %U %G %s %T@ %l\n' | sort
    find . -type d -printf '%p %y %m %U %G %T@\n' | sort
    find . -type b -o -type c | sort | xargs -r stat -c '%n %t:%T'
    find . -type f -print0 | sort -z | xargs -0 sha256sum
    find . ! -type s -print0 | sort -z | xargs -0 getfattr -h -d -m - -e hex | sed /btrfs/d";

/// Returns what the kernel shows of a volume.
fn shown_by_kernel(image: &Path) -> String {
    let image = image.display();
    shell(&in_mount_namespace(&format!(
        "m=$(mktemp -d /tmp/m.XXXXXX); mount -t btrfs -o ro,loop {image} $m
         cd $m; {LISTING}
         cd /; umount $m; rmdir $m"
    )))
}

/// Extracts an archive with GNU tar onto a volume of the kernel, and returns what it shows then.
fn extracted_by_tar(dir: &Path, archive: &Path) -> String {
    let (image, archive) = (dir.join("kernel.img"), archive.display());
    shell(&format!("rm -f {0}; truncate -s 256M {0}; mkfs.btrfs -q {0}", image.display()));
    shell(&in_mount_namespace(&format!(
        "m=$(mktemp -d /tmp/m.XXXXXX); mount -t btrfs -o loop {} $m
         tar --xattrs --xattrs-include='*' --acls --numeric-owner -C $m -xpf {archive}
         cd $m; {LISTING}
         cd /; umount $m; rmdir $m",
        image.display()
    )))
}

/// Adds to a tree what only root can make, and names that need more than one header.
fn add_more(root: &Path) {
    let (name, root) = ("n".repeat(200), root.display());
    shell(&format!(
        r"cd {root}; mknod null c 1 3; mknod disk b 259 70000; chown 12345:3000000000 size2
        mkdir -p {name}/{name}; echo x > {name}/{name}/file; ln {name}/{name}/file hard
        ln -s {name}/{name}/{name} long; chmod 3771 {name}; chown 7:8 {name}; chown -h 9:10 long
        setfattr -n system.posix_acl_access -v {ACL} size0
        setfattr -n system.posix_acl_default -v {ACL} deep/er
        setfattr -n security.capability -v 0x0100000200040000000000000000000000000000 size4
        setfattr -n trusted.x -v 0x00ff0a size3; setfattr -n user.empty {name}
        setfattr -n user.a=b -v 1 size3; setfattr -n user.50% -v 2 size3
        setfattr -n user.%3D%25%41 -v = size3
        touch -d '1950-01-01 00:00:00.25' size6; touch -d '2001-02-03 04:05:06.7' {name} ."
    ));
}

#[test]
fn an_archive_becomes_what_tar_extracts_from_it() {
    if !kernel_tests_enabled("an_archive_becomes_what_tar_extracts_from_it") {
        return;
    }
    let source = tempfile::tempdir_in("/var/tmp").unwrap();
    let (root, archive) = (source.path().join("tree"), source.path().join("a.tar"));
    tree(&root);
    add_more(&root);
    for how in [
        "--format=posix --xattrs --xattrs-include='*' --acls",
        "--format=posix -S --sparse-version=1.0 --xattrs --xattrs-include='*' --acls",
        "--format=posix -S --sparse-version=0.1",
        "--format=posix -S --sparse-version=0.0",
        "--format=gnu -S",
        "--format=gnu -b 1",
        "--format=oldgnu",
    ] {
        let (from, to) = (root.display(), archive.display());
        shell(&format!("tar {how} -C {from} -cf {to} ."));
        let volume = Volume::new();
        volume.ok(&format!("import --tar VOL {to} /"));
        let want = extracted_by_tar(source.path(), &archive);
        let have = shown_by_kernel(&volume.image);
        assert!(have == want, "{how}: we have\n{have}\nand tar has\n{want}");
        let blocks = |path: &str| volume.stat(path)["blocks"].as_u64().unwrap();
        if how.contains("-S") {
            assert!(blocks("sparse") <= 16, "{how}: {}", blocks("sparse"));
        }
    }
}

#[test]
fn a_volume_goes_through_an_archive() {
    if !kernel_tests_enabled("a_volume_goes_through_an_archive") {
        return;
    }
    let (mount, volume) = (KernelMount::new(), Volume::new());
    let words = ["export", "-q", "--devices", "--tar", kernel().to_str().unwrap(), "/", "-"];
    let archive = butternut(&words).bytes;
    volume.feed("import --tar VOL - /", &archive).ok();
    let kept = |text: String| {
        let lines = text.lines().filter(|line| !line.contains("/nested")).map(str::to_owned);
        lines.collect::<Vec<_>>()
    };
    let want = shell(&format!("cd {}; {LISTING}", mount.path().display()));
    assert_eq!(kept(shown_by_kernel(&volume.image)), kept(want));
}

/// The names that GNU tar encodes are those that it finds in an archive of ours.
#[test]
fn names_of_attributes_go_through_an_archive() {
    let volume = Volume::new();
    volume.write("f", b"x");
    for name in ["a=b", "50%", "%3D", "%25%41", "=%="] {
        volume.ok(&format!("setfattr -n user.{name} -v {name} VOL f"));
    }
    let words = ["export", "-q", "--tar", volume.image.to_str().unwrap(), "f", "-"];
    volume.feed("import --tar VOL - back", &butternut(&words).bytes).ok();
    let want = volume.ok("getfattr VOL f").replace("# file: f", "# file: back/f");
    assert_eq!(volume.ok("getfattr VOL back/f"), want);
    assert_eq!(want.matches("\nuser.").count(), 5, "{want}");
}

/// Returns a header, whose size is not checked.
fn header(name: &str, flag: u8, link: &str, size: &[u8]) -> Vec<u8> {
    let mut block = vec![0; 512];
    for (at, field) in [
        (0, name.as_bytes()),
        (100, b"0000644"),
        (108, b"0000000"),
        (116, b"0000000"),
        (124, size),
        (136, b"00000000000"),
        (148, b"        "),
        (156, &[flag]),
        (157, link.as_bytes()),
        (257, b"ustar\x0000"),
    ] {
        block[at..at + field.len()].copy_from_slice(field);
    }
    let sum: u32 = block.iter().map(|byte| u32::from(*byte)).sum();
    block[148..155].copy_from_slice(format!("{sum:06o}\0").as_bytes());
    block
}

fn member(name: &str, flag: u8, link: &str, data: &[u8]) -> Vec<u8> {
    let mut member = header(name, flag, link, format!("{:011o}", data.len()).as_bytes());
    member.extend_from_slice(data);
    member.resize(member.len().next_multiple_of(512), 0);
    member
}

fn archive(members: &[Vec<u8>]) -> Vec<u8> {
    [members.concat(), vec![0; 1024]].concat()
}

fn record(key: &str, value: &str) -> String {
    let mut bytes = key.len() + value.len() + 3;
    while bytes != key.len() + value.len() + 3 + bytes.to_string().len() {
        bytes = key.len() + value.len() + 3 + bytes.to_string().len();
    }
    format!("{bytes} {key}={value}\n")
}

fn pax(records: &[(&str, &str)]) -> Vec<u8> {
    let text: String = records.iter().map(|(key, value)| record(key, value)).collect();
    member("pax", b'x', "", text.as_bytes())
}

/// Imports an archive, which must fail and change nothing.
#[track_caller]
fn refused(volume: &Volume, archive: &[u8], want: &str) {
    fs::write(volume.dir.path().join("a.tar"), archive).unwrap();
    let message = volume.failure("import --tar VOL a.tar /d");
    assert!(message.starts_with(want), "{message}, not {want}");
}

#[test]
fn no_archive_leaves_its_destination() {
    let volume = Volume::new();
    volume.ok("mkdir VOL d outside");
    volume.ok("ln -s VOL /outside d/old");
    volume.write("d/there", b"there");
    let file = |name| member(name, b'0', "", b"data");
    for (members, want) in [
        (vec![file("../x")], "a.tar: ../x: has .. in its name"),
        (vec![file("a/../../x")], "a.tar: a/../../x: has .. in its name"),
        (vec![pax(&[("path", "b/../../x")]), file("x")], "a.tar: b/../../x: has .. in its name"),
        (
            vec![member("link", b'2', "/outside", b""), file("link/x")],
            "a.tar: link/x: link is a symlink, and nothing is created through it",
        ),
        (vec![file("old/x")], "a.tar: old/x: old is a symlink"),
        (vec![file("f"), file("f/x")], "a.tar: f/x: f is not a directory"),
        (vec![member("h", b'1', "../outside/x", b"")], "a.tar: h: is a hard link to ../outside/x"),
        (vec![member("h", b'1', "old/x", b"")], "a.tar: h: is a hard link to old/x, which is not"),
        (vec![member("h", b'1', "later", b""), file("later")], "a.tar: h: is a hard link to later"),
        (vec![file("there")], "there: file exists"),
        (vec![file(".")], "a.tar: .: has the name of the destination"),
        (vec![member("z", b'Z', "", b"")], "a.tar: z: is a member of the unknown type 'Z'"),
    ] {
        refused(&volume, &archive(&members), want);
    }
    // A slash in front is dropped, and the last of several members counts.
    let members = [
        file("/abs/file"),
        file("twice"),
        member("again", b'1', "/twice", b""),
        member("twice", b'0', "", b"last"),
        member("abs/", b'5', "", b""),
    ];
    fs::write(volume.dir.path().join("a.tar"), archive(&members)).unwrap();
    volume.ok("import --tar VOL a.tar d");
    volume.ok("import --tar VOL a.tar new");
    assert!(volume.ok("ls VOL outside").is_empty());
    for dir in ["d", "new"] {
        assert_eq!(volume.cat(&format!("{dir}/abs/file")), b"data");
        assert_eq!(volume.cat(&format!("{dir}/twice")), b"last");
        assert_eq!(volume.cat(&format!("{dir}/again")), b"data");
    }
    assert_eq!(volume.cat("d/there"), b"there");
}

const NO_ARCHIVE: &str = "a.tar: is not an archive of tar (leave out --tar to copy a file)";

#[test]
fn damaged_archives_change_nothing() {
    let volume = Volume::new();
    volume.ok("mkdir VOL d");
    let file = member("file", b'0', "", &[7; 3000]);
    let whole = archive(&[pax(&[("mtime", "5.5")]), file.clone(), member("b", b'0', "", b"b")]);
    for end in (0..whole.len() - 1024).step_by(256) {
        let start = match end {
            0..512 => "a.tar: is not an archive of tar (leave out --tar",
            512..1024 => "a.tar: the archive ends in the middle of this member (it was truncated",
            1024..1536 => "a.tar: ends without the end mark of an archive (it was truncated",
            _ => "a.tar: ",
        };
        refused(&volume, &whole[..end], start);
    }
    let mut damaged = whole.clone();
    let at = whole.len() - 2048;
    damaged[at] ^= 1;
    refused(&volume, &damaged, "a.tar: file: the header behind this member is damaged");
    let sparse = [("GNU.sparse.major", "1"), ("GNU.sparse.minor", "0")];
    let sized = [&sparse[..], &[("GNU.sparse.realsize", "9")]].concat();
    let named = |records: &[(&str, &str)], data: &[u8]| {
        archive(&[pax(records), member("s", b'0', "", data)])
    };
    let octal_max = header("huge", b'0', "", b"77777777777");
    let binary_max = header("huge", b'0', "", b"\x80\0\0\0\x7f\xff\xff\xff\xff\xff\xff\xff");
    for (bytes, want) in [
        ([octal_max, vec![0; 4096]].concat(), "a.tar: huge: the archive ends in the middle"),
        ([binary_max, vec![0; 4096]].concat(), "a.tar: huge: the archive ends in the middle"),
        (
            [file.clone(), header("pax", b'x', "", b"77777777777")].concat(),
            "a.tar: file: has a header of 8589934591 bytes",
        ),
        (header("long", b'L', "", b"77777777777"), "a.tar: has a header of 8589934591 bytes"),
        (named(&sparse, b"0\n"), "a.tar: s: is a sparse file without its size"),
        (named(&sized, &[b'1'; 2048]), "a.tar: s: has a damaged sparse map"),
        (named(&sized, &[b'\n'; 512]), "a.tar: s: has a damaged sparse map"),
        (named(&sized, &padded(b"99999999999\n")), "a.tar: s: has a sparse map of 99999999999"),
        (named(&sized, &padded(b"1\n8\n5\n")), "a.tar: s: its sparse map has ranges that overlap"),
        (named(&sized, &padded(b"1\n0\n5\n")), "a.tar: s: its sparse map is for another number"),
        (named(&[("mtime", "soon")], b""), "a.tar: has a pax header with a damaged record"),
        (
            named(&[("SCHILY.acl.access", "user:no such user:rwx")], b""),
            "a.tar: s: has an access list with the entry \"user:no such user:rwx\"",
        ),
        (b"not an archive".repeat(100), NO_ARCHIVE),
        (b"text\n".to_vec(), NO_ARCHIVE),
        (Vec::new(), NO_ARCHIVE),
        // As an image of a volume, which has no header at its start.
        ([vec![0; 65536], b"_BHRfS_M".to_vec()].concat(), NO_ARCHIVE),
    ] {
        refused(&volume, &bytes, want);
    }
    assert_eq!(volume.paths(), ["/d"]);
}

/// An archive without members is one, however long its end is.
#[test]
fn what_cannot_be_imported_is_named() {
    let volume = Volume::new();
    fs::write(volume.dir.path().join("a.tar"), vec![0; 10240]).unwrap();
    volume.ok("import --tar VOL a.tar empty");
    assert_eq!(volume.paths(), ["/empty"]);
    let large =
        pax(&[("SCHILY.xattr.user.small", "v"), ("SCHILY.xattr.user.big", &"v".repeat(20000))]);
    for (last, path) in [(member("f", b'0', "", b"x"), "f"), (member("d/", b'5', "", b""), "d/")] {
        let bytes = archive(&[large.clone(), last]);
        let want = format!("{path}: the attribute user.big is too large: ");
        refused(&volume, &bytes, &want);
        let message = volume.failure("import --tar VOL a.tar /d");
        let hint = "(--no-xattrs leaves out extended attributes and access lists)";
        assert!(message.ends_with(hint), "{message}");
        volume.ok("import --tar --no-xattrs VOL a.tar /empty");
    }
    assert_eq!(volume.paths(), ["/empty", "/empty/d", "/empty/f"]);
    volume.ok("subvolume create VOL s");
    volume.ok("property set VOL s ro true");
    let message = volume.failure("import --tar VOL a.tar s");
    assert!(message.starts_with("s: the subvolume is read-only"), "{message}");
}

/// Data of one block that begins with a sparse map.
fn padded(map: &[u8]) -> Vec<u8> {
    let mut block = map.to_vec();
    block.resize(512, 0);
    block
}

#[test]
fn compressed_archives_are_recognized() {
    let volume = Volume::new();
    let bytes = archive(&[member("file", b'0', "", &[7; 3000])]);
    fs::write(volume.dir.path().join("a.tar"), bytes).unwrap();
    let dir = volume.dir.path().display();
    shell(&format!(
        "cd {dir}; gzip -k a.tar; zstd -q a.tar; xz -k a.tar; head -c 90 a.tar.gz >cut.gz"
    ));
    volume.ok("import --tar VOL a.tar.gz gz");
    let zstd = fs::read(volume.dir.path().join("a.tar.zst")).unwrap();
    volume.feed("import --tar VOL - zst", &zstd).ok();
    assert_eq!(volume.paths(), ["/gz", "/gz/file", "/zst", "/zst/file"]);
    let xz = volume.failure("import --tar VOL a.tar.xz /");
    assert!(xz.starts_with("a.tar.xz: is compressed with xz (decompress it: `xz -dc"), "{xz}");
    let cut = volume.failure("import --tar VOL cut.gz /cut");
    assert!(
        cut.starts_with("cut.gz: file: the compressed data of the archive is not complete ("),
        "{cut}"
    );
}

#[test]
fn headers_and_names_are_bounded() {
    let volume = Volume::new();
    volume.ok("mkdir VOL d");
    let file = || member("f", b'0', "", b"x");
    let global = |key: &str, bytes: usize| {
        member("pax", b'g', "", record(key, &"v".repeat(bytes)).as_bytes())
    };
    let many = |header: &dyn Fn(usize) -> Vec<u8>, count: usize| {
        let headers = (0..count).map(header);
        archive(&headers.chain([file()]).collect::<Vec<_>>())
    };
    let large = "v".repeat(1 << 20);
    let comment = |_| pax(&[("comment", &large)]);
    refused(&volume, &many(&comment, 17), "a.tar: has headers of 16777488 bytes before it");
    let names = |_| member("long", b'L', "", &vec![b'n'; 60000]);
    refused(&volume, &many(&names, 300), "a.tar: has headers of 16800000 bytes before it");
    let kept = |number| global(&format!("SCHILY.xattr.user.{number}"), 30000);
    refused(&volume, &many(&kept, 3), "a.tar: has headers for all members of 90");
    let long = "n".repeat(1 << 20);
    for (records, flag, want) in [
        ([("path", &long[..])], b'0', "...: has a name of 1048576 bytes, above 65536"),
        ([("path", &long[..65537])], b'5', "...: has a name of 65537 bytes, above 65536"),
        ([("path", &"a/".repeat(2049)[..])], b'5', "has 2049 levels of directories, above 2048"),
        ([("linkpath", &long[..65537])], b'1', "a.tar: f: has a target of 65537 bytes, above"),
        ([("linkpath", &long[..4096])], b'2', "a.tar: f: has a target of 4096 bytes, above 4095"),
    ] {
        let bytes = archive(&[pax(&records), member("f", flag, "", b"")]);
        fs::write(volume.dir.path().join("a.tar"), bytes).unwrap();
        let message = volume.failure("import --tar VOL a.tar /d");
        assert!(message.contains(want) && message.len() < 1000, "{message}");
    }
    // What is not kept has no limit, and neither have headers that replace one another.
    let system = |number| global(&format!("SCHILY.xattr.system.{number}"), 60000);
    let same = |_| global("SCHILY.xattr.user.a", 9000);
    let deep = format!("{}f", "a/".repeat(2046));
    for (bytes, path) in [
        (many(&system, 20), "d/f"),
        (many(&same, 20), "d/f"),
        (archive(&[pax(&[("path", &deep)]), file()]), &format!("d/{deep}")[..]),
    ] {
        fs::write(volume.dir.path().join("a.tar"), bytes).unwrap();
        volume.ok("import --tar VOL a.tar /d");
        assert_eq!(volume.cat(path), b"x");
        volume.ok("rm -r VOL d");
        volume.ok("mkdir VOL d");
    }
    // Longer than a path that programs can open.
    let long = format!("{}f", format!("{}/", "n".repeat(200)).repeat(22));
    let bytes = archive(&[pax(&[("path", &long)]), file()]);
    fs::write(volume.dir.path().join("a.tar"), bytes).unwrap();
    volume.ok("import --tar VOL a.tar /d");
    volume.ok("rm -r VOL d");
}

#[test]
fn members_that_no_kernel_makes_are_refused() {
    let volume = Volume::new();
    volume.ok("mkdir VOL d");
    let file = || member("f", b'0', "", b"x");
    let with = |key, value| archive(&[pax(&[(key, value)]), file()]);
    let directory = || member("f/", b'5', "", b"");
    for (bytes, want) in [
        (with("uid", "4294967295"), "a.tar: f: has the owner 4294967295, which no file can have"),
        (with("gid", "4294967295"), "a.tar: f: has the group 4294967295, which no file can have"),
        (
            with("SCHILY.xattr.user.", "v"),
            "f: names or attributes cannot be read or changed: the name",
        ),
        (
            archive(&[pax(&[("linkpath", "a\0b")]), member("l", b'2', "", b"")]),
            "l: the target of a symlink has no zero byte",
        ),
        (
            archive(&[directory(), file()]),
            "a.tar: f: is a directory earlier in the archive, and not here",
        ),
        (
            archive(&[member("f/x", b'0', "", b""), file()]),
            "a.tar: f: is a directory earlier in the archive, and not here",
        ),
    ] {
        refused(&volume, &bytes, want);
    }
    volume.ok("mkdir VOL d/f");
    let want = "a.tar: f: is a directory in the volume, and not in the archive (remove it, or";
    refused(&volume, &archive(&[file()]), want);
}

#[test]
fn access_lists_that_are_left_out_are_not_read() {
    let volume = Volume::new();
    let records = [
        ("SCHILY.acl.access", "user:no such user:rwx"),
        ("SCHILY.acl.default", "what::rwx"),
        ("SCHILY.xattr.user.a", "v"),
    ];
    let bytes = archive(&[pax(&records), member("f", b'0', "", b"x")]);
    fs::write(volume.dir.path().join("a.tar"), bytes).unwrap();
    volume.ok("import --tar --no-xattrs VOL a.tar /");
    assert_eq!(volume.ok("getfattr VOL f"), "");
}

/// Each member gets attributes of three leaves, and metadata of 256 MiB is committed.
#[test]
fn a_failure_after_a_commit_says_what_is_left() {
    let volume = Volume::new();
    volume.ok("mkfs -q -f --size 2G VOL");
    let global = |name: &str| {
        let record = record(&format!("SCHILY.xattr.user.{name}"), &"v".repeat(15000));
        member("pax", b'g', "", record.as_bytes())
    };
    let globals = [global("a"), global("b"), global("c")];
    let files = (0..6000).map(|number| member(&format!("f{number}"), b'0', "", b""));
    let bytes: Vec<Vec<u8>> = globals.into_iter().chain(files).collect();
    fs::write(volume.dir.path().join("a.tar"), bytes.concat()).unwrap();
    let message = volume.run("import --tar VOL a.tar /d").failure();
    let hint = "(a part of the archive was committed before: remove it from /d)";
    assert!(message.trim_end().ends_with(hint), "{message}");
    assert!(volume.paths().len() > 1000);
}

#[test]
fn compressed_archives_have_what_decompressors_skip() {
    let volume = Volume::new();
    let bytes = archive(&[member("file", b'0', "", &[7; 3000])]);
    let (first, rest) = bytes.split_at(1000);
    fs::write(volume.dir.path().join("first"), first).unwrap();
    fs::write(volume.dir.path().join("rest"), rest).unwrap();
    let dir = volume.dir.path().display();
    shell(&format!(
        r"cd {dir}; gzip first; gzip -k rest
        (cat first.gz rest.gz; head -c 300000 /dev/zero) >padded.gz
        (cat first.gz rest.gz; head -c 3000 /dev/zero; echo more) >followed.gz
        cp first.gz damaged.gz; gzip -dc first.gz | cat - rest | zstd -qc >whole.zst
        (printf '\137\052\115\030\005\0\0\0apart'; cat whole.zst) >skipped.zst"
    ));
    volume.ok("import --tar VOL padded.gz gz");
    volume.ok("import --tar VOL skipped.zst zst");
    assert_eq!(volume.paths(), ["/gz", "/gz/file", "/zst", "/zst/file"]);
    assert_eq!(volume.cat("gz/file"), [7; 3000]);
    let followed = volume.failure("import --tar VOL followed.gz /cut");
    assert!(followed.starts_with("followed.gz: "), "{followed}");
    let cut = volume.failure("import --tar VOL damaged.gz /cut");
    assert!(cut.starts_with("damaged.gz: "), "{cut}");
}

#[test]
fn an_interrupted_import_of_an_archive_leaves_nothing() {
    let volume = Volume::new();
    let superblock = || fs::read(&volume.image).unwrap()[65536..65536 + 4096].to_vec();
    let before = superblock();
    let data = vec![7; 3_000_000];
    let bytes = archive(&[member("file", b'0', "", &data), member("b", b'0', "", b"")]);
    for signal in [Signal::INT, Signal::TERM] {
        let mut import = command();
        import.args(["import", "--tar", volume.image.to_str().unwrap(), "-", "/d"]);
        import.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = import.spawn().unwrap();
        let mut stdin = child.stdin.take().unwrap();
        stdin.write_all(&bytes[..bytes.len() - 1024]).unwrap();
        while ioctl_fionread(&stdin).unwrap() > 0 {
            yield_now();
        }
        kill_process(Pid::from_child(&child), signal).unwrap();
        let output = child.wait_with_output().unwrap();
        drop(stdin);
        assert_eq!(output.status.signal(), Some(signal.as_raw()));
        assert!(superblock() == before, "the volume was committed");
        assert!(volume.paths().is_empty());
    }
}
