//! `receive`: streams of the kernel's `btrfs send` become subvolumes that the kernel, mounting the
//! image, shows equal to their sources.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use butternut_format::stream::{
    COMMAND_HEADER_BYTES, Command, STREAM_HEADER_BYTES, StreamVersion, command_bytes,
};
use butternut_undo::MountGuard;
use tempfile::TempDir;

use super::command::{CommandOutput, butternut, command, run, shell};
use super::image::{build, kernel_tests_enabled, locked};

/// Snapshots of a tree that changes in between, and their streams: NAME.1, NAME.2 and NAME.c of
/// version 1, version 2, and version 2 with compressed data.
const SOURCE: &str = r#"
    truncate -s 1G IMG; mkfs.btrfs -q IMG; mkdir -p DIR/m
    mount -o loop,compress=zstd IMG DIR/m
    trap 'cd /; umount DIR/m' EXIT
    cd DIR/m
    btrfs -q subvolume create v; btrfs -q subvolume create other
    (
        cd v
        mkdir -p dir/deep/er "$(printf 'odd \\ \n\tname')"
        printf 'inline\n' > small; seq 60000 > dir/text; head -c 3M /dev/urandom > dir/random
        ln small dir/hard; ln dir/random dir/deep/random2
        ln -s ../small dir/link; ln -s /etc/passwd absolute
        mkfifo fifo; mknod null c 1 3; mknod big b 300 70000
        python3 -c 'import socket; socket.socket(socket.AF_UNIX).bind("socket")'
        truncate -s 10M holes
        printf x | dd of=holes bs=1 seek=5M conv=notrunc status=none
        fallocate -l 1M prealloc
        printf y | dd of=prealloc bs=1 seek=300000 conv=notrunc status=none
        fallocate -n -l 2M dir/text
        touch "$(printf 'n%.0s' $(seq 255))" "$(printf 'bad\377name')"
        for algorithm in zlib lzo zstd; do
            : > "$algorithm"; btrfs property set "$algorithm" compression "$algorithm"
            seq 50000 >> "$algorithm"
            : > "small-$algorithm"; btrfs property set "small-$algorithm" compression "$algorithm"
            seq 500 >> "small-$algorithm"
        done
        : > nocow; chattr +C nocow; head -c 100000 /dev/urandom >> nocow
        setfattr -n user.name -v value small; setfattr -n trusted.x -v y dir
        setfattr -n user.empty dir/text; setfattr -h -n trusted.l -v z dir/link
        setfattr -n user.zero -v 0x610062 small
        setfacl -m u:1000:rwx dir/text; setfacl -d -m u:1000:rx dir
        setcap cap_net_raw+ep dir/random; cp --reflink=always dir/random clone
        chown 1000:1001 dir/text; chmod 4755 small; mkdir sticky; chmod 1777 sticky
        touch -d '1960-01-01 00:00:00.5' null; touch -h -d '1999-01-01 01:02:03.4' dir/link
        for number in $(seq 300); do printf "$number" > "dir/deep/$number"; done
    )
    cp --reflink=always v/dir/random other/random
    btrfs -q subvolume snapshot -r v s1
    btrfs -q subvolume snapshot -r other o1
    (
        cd v
        mv dir renamed; mv renamed/text text; rm null; rm -r sticky; mkdir null sticky2
        mv renamed/deep/er above; mv renamed/deep above/deep
        printf 'more\n' >> small; truncate -s 1000 zlib; truncate -s 5M renamed/random
        setfattr -x user.name small; setfattr -n user.new -v new small; setfacl -b text
        rm renamed/hard; ln text hard2; rm above/deep/1*; seq 9 > above/deep/150
        fallocate -p -o 4096 -l 8192 holes; chown 5:6 holes; chattr +d holes
        dd if=/dev/urandom of=clone bs=4096 count=3 seek=9 conv=notrunc status=none
        touch -d '2001-02-03 04:05:06.7' zstd
        mv lzo swap; mv zstd lzo; mv swap zstd
    )
    btrfs -q subvolume snapshot -r v s2
    (
        cd v
        cp --reflink=always ../other/random from-other
        cp --reflink=always renamed/random own
        rm -r above; mkdir above; printf 'new\n' > above/deep
    )
    btrfs -q subvolume snapshot -r v s3
    for way in '1 --proto=1' '2 --proto=2' 'c --proto=2 --compressed-data'; do
        set -- $way; version=$1; shift
        btrfs -q send "$@" s1 -f DIR/s1.$version
        btrfs -q send "$@" o1 -f DIR/o1.$version
        btrfs -q send "$@" -p s1 s2 -f DIR/s2.$version
        btrfs -q send "$@" -p s2 -c o1 s3 -f DIR/s3.$version
    done
    btrfs -q send --no-data s1 -f DIR/s1.nodata
    btrfs -q send -e s1 o1 -f DIR/both.1"#;

const WAYS: [&str; 3] = ["1", "2", "c"];
const NAMES: [&str; 4] = ["s1", "o1", "s2", "s3"];

/// The source volume, and the directory of its streams. No other test mounts it meanwhile.
struct Source {
    image: PathBuf,
    folder: PathBuf,
    _lock: fs::File,
}

fn source() -> Source {
    let lock = locked("cli-send-source.lock");
    let (image, folder) = build("cli-send", SOURCE);
    Source { image, folder, _lock: lock }
}

impl Source {
    fn stream(&self, name: &str, way: &str) -> String {
        self.folder.join(format!("{name}.{way}")).to_str().unwrap().to_owned()
    }
}

/// A volume that the kernel has mounted, until this is dropped.
pub(crate) struct Mounted {
    guard: Option<MountGuard>,
    dir: TempDir,
}

impl Mounted {
    pub(crate) fn new(image: &Path, options: &str) -> Self {
        let dir = TempDir::with_prefix("butternut-test-").unwrap();
        let guard = Some(MountGuard::before_mount(dir.path()).unwrap());
        shell(&format!("mount -o loop,{options} {} {}", image.display(), dir.path().display()));
        Self { guard, dir }
    }

    pub(crate) fn path(&self, name: &str) -> String {
        self.dir.path().join(name).to_str().unwrap().to_owned()
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        if let Some(guard) = self.guard.take().filter(|_| !std::thread::panicking()) {
            guard.unmount().unwrap();
        }
    }
}

fn volume() -> (TempDir, PathBuf, String) {
    let scratch = tempfile::tempdir_in("/dev/shm").unwrap();
    let image = scratch.path().join("volume.img");
    let name = image.to_str().unwrap().to_owned();
    butternut(&["mkfs", "--size", "1G", &name]).ok();
    (scratch, image, name)
}

/// Lists everything in a tree: kinds, modes, owners, sizes, times, links, devices, contents,
/// extended attributes.
fn tree(path: &str) -> String {
    shell(&format!(
        r"cd {path}
        find . -printf '%P|%y|%m|%U|%G|%T@|%n|%l\0' | sort -z | tr '\0\n' '\n?'
        find . -not -type d -printf '%P|%s\0' | sort -z | tr '\0\n' '\n?'
        find . \( -type b -o -type c \) -exec stat -c '%n %t:%T' '{{}}' + | sort
        find . -type f -print0 | sort -z | xargs -0 sha256sum
        find . -print0 | sort -z | xargs -0 getfattr -h -d -m - -e hex"
    ))
}

fn assert_equal(have: &str, want: &str, what: &str) {
    let (have, want) = (tree(have), tree(want));
    for (have, want) in have.lines().zip(want.lines()) {
        assert_eq!(have, want, "{what}");
    }
    assert_eq!(have.lines().count(), want.lines().count(), "{what}");
}

fn received_uuids(path: &str) -> [String; 2] {
    let shown = run("btrfs", &["subvolume", "show", path].map(AsRef::as_ref));
    ["UUID:", "Received UUID:"].map(|key| {
        let line = shown.lines().find_map(|line| line.trim().strip_prefix(key));
        line.unwrap().trim().to_owned()
    })
}

#[test]
fn the_kernel_shows_what_it_has_sent() {
    if !kernel_tests_enabled("the_kernel_shows_what_it_has_sent") {
        return;
    }
    let source = source();
    for way in WAYS {
        let (_scratch, image, name) = volume();
        butternut(&["mkdir", &name, "/backups"]).ok();
        for stream in NAMES {
            let file = source.stream(stream, way);
            butternut(&["receive", "-f", &file, &name, "/backups"]).ok();
        }
        run("btrfs", &["check", "--check-data-csum", &name].map(AsRef::as_ref));
        butternut(&["check", "--check-data-csum", &name]).ok();
        let (sent, received) = (Mounted::new(&source.image, "ro"), Mounted::new(&image, "ro"));
        for stream in NAMES {
            let (have, want) = (received.path(&format!("backups/{stream}")), sent.path(stream));
            assert_equal(&have, &want, &format!("{stream}.{way}"));
            let ([_, have], [want, _]) = (received_uuids(&have), received_uuids(&want));
            assert_eq!(have, want);
        }
    }
}

#[test]
fn the_kernel_and_butternut_receive_in_turn() {
    if !kernel_tests_enabled("the_kernel_and_butternut_receive_in_turn") {
        return;
    }
    let source = source();
    let (_scratch, image, name) = volume();
    let mounted = |receive: &dyn Fn(&str)| receive(&Mounted::new(&image, "rw").path(""));
    let by_kernel = |stream: &str| {
        let file = source.stream(stream, "2");
        mounted(&|dir| drop(shell(&format!("btrfs -q receive -f {file} {dir}"))));
    };
    butternut(&["receive", "-f", &source.stream("s1", "2"), &name]).ok();
    by_kernel("s2");
    butternut(&["receive", "-f", &source.stream("o1", "c"), &name]).ok();
    butternut(&["receive", "-f", &source.stream("s3", "c"), &name]).ok();
    run("btrfs", &["check", "--check-data-csum", &name].map(AsRef::as_ref));
    let (sent, received) = (Mounted::new(&source.image, "ro"), Mounted::new(&image, "ro"));
    for stream in NAMES {
        assert_equal(&received.path(stream), &sent.path(stream), stream);
    }
}

#[test]
fn dump_prints_what_btrfs_progs_prints() {
    if !kernel_tests_enabled("dump_prints_what_btrfs_progs_prints") {
        return;
    }
    let source = source();
    let mut streams = vec![source.stream("s1", "nodata"), source.stream("both", "1")];
    for name in NAMES {
        streams.extend(WAYS.map(|way| source.stream(name, way)));
    }
    for stream in streams {
        let want = run("btrfs", &["receive", "--dump", "-f", &stream].map(AsRef::as_ref));
        let have = butternut(&["receive", "--dump", "-f", &stream]).ok();
        for (have, want) in have.lines().zip(want.lines()) {
            assert_eq!(have, want, "{stream}");
        }
        assert_eq!(have.lines().count(), want.lines().count(), "{stream}");
    }
}

#[test]
fn the_commands_of_the_kernel_are_encoded_to_the_same_bytes() {
    if !kernel_tests_enabled("the_commands_of_the_kernel_are_encoded_to_the_same_bytes") {
        return;
    }
    let source = source();
    for name in NAMES {
        for way in WAYS {
            let bytes = fs::read(source.stream(name, way)).unwrap();
            let (header, mut rest) = bytes.split_first_chunk::<STREAM_HEADER_BYTES>().unwrap();
            let version = StreamVersion::decode(header).unwrap();
            assert_eq!(version.number(), if way == "1" { 1 } else { 2 });
            while !rest.is_empty() {
                let header = rest.first_chunk::<COMMAND_HEADER_BYTES>().unwrap();
                let (command, after) = rest.split_at(command_bytes(version, header).unwrap());
                let mut encoded = Vec::new();
                let decoded = Command::decode(version, command).unwrap();
                decoded.encode(version, &mut encoded).unwrap();
                if let Command::EncodedWrite { .. } = decoded {
                    // Those of inline extents have no attribute for an encryption of 0.
                    assert_eq!(Command::decode(version, &encoded).unwrap(), decoded);
                } else {
                    assert!(encoded == command, "{name}.{way}: {}", decoded.name());
                }
                rest = after;
            }
        }
    }
}

#[test]
fn a_directory_gets_what_a_volume_gets() {
    if !kernel_tests_enabled("a_directory_gets_what_a_volume_gets") {
        return;
    }
    let source = source();
    // btrfs, because other filesystems have no properties: a volume that the kernel has mounted.
    let (_scratch, image, _) = volume();
    let (sent, target) = (Mounted::new(&source.image, "ro"), Mounted::new(&image, "rw"));
    for (name, way) in [("s1", "2"), ("o1", "c")] {
        let file = source.stream(name, way);
        butternut(&["receive", "-f", &file, "--to-directory", &target.path("")]).ok();
        assert_equal(&target.path(name), &sent.path(name), name);
    }
    let file = source.stream("s2", "1");
    let refused = butternut(&["receive", "-f", &file, "--to-directory", &target.path("")]);
    let refused = refused.failure();
    assert!(refused.contains("command 1 at byte 17: snapshot s2: "), "{refused}");
    assert!(refused.contains("the stream is incremental"), "{refused}");
}

pub(crate) fn encode(commands: &[Command<'_>]) -> Vec<u8> {
    let version = StreamVersion::Two;
    let mut bytes = version.encode().to_vec();
    for command in commands {
        command.encode(version, &mut bytes).unwrap();
    }
    bytes
}

/// Encodes a stream with one subvolume.
fn encode_subvolume(path: &[u8], uuid: u8, commands: &[Command<'_>]) -> Vec<u8> {
    let uuid = butternut_format::uuid::Uuid([uuid; 16]);
    let mut all = vec![Command::Subvol { path, uuid, ctransid: 1 }];
    all.extend(commands);
    all.push(Command::End);
    encode(&all)
}

/// Runs `receive` with a stream on stdin.
fn receive(words: &[&str], stream: &[u8]) -> CommandOutput {
    use std::io::Write;
    let mut command = command();
    command.arg("receive").args(words);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let mut stdin = child.stdin.take().unwrap();
    // A command that refuses the stream closes the pipe early.
    stdin.write_all(stream).unwrap_or_default();
    drop(stdin);
    child.wait_with_output().unwrap().into()
}

#[test]
fn a_stream_cannot_leave_its_directory() {
    let scratch = tempfile::tempdir().unwrap();
    let target = scratch.path().join("target");
    let to = target.to_str().unwrap();
    let outside = scratch.path().join("outside");
    fs::write(&outside, "untouched").unwrap();
    let link = outside.to_str().unwrap().as_bytes();
    let uuid = butternut_format::uuid::Uuid([1; 16]);
    let paths: [&[u8]; 7] =
        [b"../outside", b"up/outside", b"link", link, b"a/../../outside", b"", b"up/../outside"];
    for path in paths {
        let commands = [
            Command::Mkfile { path, ino: 1 },
            Command::Mkdir { path, ino: 1 },
            Command::Symlink { path, ino: 1, target: b"x" },
            Command::Rename { path: b"file", to: path },
            Command::Link { path, existing: b"file" },
            Command::Write { path, offset: 0, data: b"changed" },
            Command::Truncate { path, size: 0 },
            Command::Fallocate { path, mode: 0, offset: 0, len: 9 },
            Command::Clone {
                path: b"file",
                offset: 0,
                len: 9,
                clone_uuid: uuid,
                clone_ctransid: 1,
                clone_path: path,
                clone_offset: 0,
            },
            Command::Chmod { path, mode: 0o600 },
            Command::SetXattr { path, name: b"user.a", value: b"b" },
        ];
        for command in commands {
            // These change the link and the root themselves.
            let is_inside = (path == b"link" && matches!(command, Command::Rename { .. }))
                || (path.is_empty()
                    && matches!(command, Command::Chmod { .. } | Command::SetXattr { .. }));
            fs::create_dir(&target).unwrap();
            let stream = encode(&[
                Command::Subvol { path: b"sub", uuid, ctransid: 1 },
                Command::Symlink { path: b"up", ino: 2, target: b"../.." },
                Command::Symlink { path: b"link", ino: 3, target: link },
                Command::Mkfile { path: b"file", ino: 4 },
                command,
                Command::End,
            ]);
            let done = receive(&["--to-directory", to], &stream);
            if !is_inside {
                let refused = done.failure();
                let want = "butternut: stdin: command 5 at byte ";
                assert!(refused.starts_with(want), "{command:?}: {refused}");
            }
            assert_eq!(fs::read_to_string(&outside).unwrap(), "untouched", "{command:?}");
            let mode = fs::metadata(&outside).unwrap();
            assert_ne!(std::os::unix::fs::PermissionsExt::mode(&mode.permissions()) & 0o777, 0o600);
            assert_eq!(fs::read_dir(scratch.path()).unwrap().count(), 2, "{command:?}");
            fs::remove_dir_all(&target).unwrap();
        }
    }
    for path in [&b"../sub"[..], b"/tmp/sub", b"..", b"", b"a/b"] {
        fs::create_dir(&target).unwrap();
        let stream = encode(&[Command::Subvol { path, uuid, ctransid: 1 }, Command::End]);
        receive(&["--to-directory", to], &stream).failure();
        fs::remove_dir(&target).unwrap();
    }
}

#[test]
fn a_stream_that_fails_leaves_no_subvolume() {
    let (_scratch, _, image) = volume();
    let uuid = butternut_format::uuid::Uuid([1; 16]);
    let subvol = Command::Subvol { path: b"sub", uuid, ctransid: 1 };
    let file = Command::Mkfile { path: b"file", ino: 257 };
    let whole = encode(&[subvol, file, Command::End]);
    let refused = receive(&[&image], &whole[..whole.len() - 3]).failure();
    assert!(refused.contains("command 3 at byte "), "{refused}");
    assert!(refused.contains("bytes: have 7, want a command"), "{refused}");
    assert_eq!(butternut(&["subvolume", "list", &image]).ok(), "");
    assert_eq!(receive(&[&image], &whole).ok(), "");
    let refused = receive(&[&image], &whole).failure();
    assert!(refused.contains("subvol sub: file exists (remove it, or"), "{refused}");
    let list = butternut(&["subvolume", "list", &image]).ok();
    assert!(list.ends_with("path sub\n"), "{list}");
    let json = receive(
        &["--json", &image, "/"],
        &encode(&[Command::Subvol { path: b"b", uuid, ctransid: 1 }, Command::End]),
    );
    assert!(json.ok().contains("\"received_uuid\": \"01010101-0101-0101-0101-010101010101\""));
    run("btrfs", &["check", "--check-data-csum", &image].map(AsRef::as_ref));
}

#[test]
fn complete_subvolumes_are_reported_if_a_later_one_fails() {
    let (scratch, _, image) = volume();
    let whole = encode_subvolume(b"a", 1, &[]);
    let input = [&whole, &b"no stream"[..]].concat();
    let to = scratch.path().join("to");
    fs::create_dir(&to).unwrap();
    for place in [&[image.as_str()][..], &["--to-directory", to.to_str().unwrap()]] {
        let done = receive(&[&["--json"], place].concat(), &input);
        assert_eq!(done.code, Some(1), "{place:?}");
        assert!(done.err.contains("header of the stream at byte "), "{}", done.err);
        let made: serde_json::Value = serde_json::from_str(&done.out).unwrap();
        assert_eq!(made["subvolumes"][0]["name"], "a", "{place:?}");
        let verbose = receive(&[&["-v"], place].concat(), &b"no stream"[..]);
        assert!(!verbose.err.contains("received"), "{}", verbose.err);
    }
    let list = butternut(&["subvolume", "list", &image]).ok();
    assert!(list.ends_with("path a\n"), "{list}");
}

#[test]
fn a_stream_without_a_subvolume_is_noted() {
    let (scratch, _, image) = volume();
    let to = scratch.path().join("to");
    fs::create_dir(&to).unwrap();
    for place in [&[image.as_str()][..], &["--to-directory", to.to_str().unwrap()]] {
        let done = receive(place, &encode(&[Command::End]));
        let note = "butternut: stdin: note: the stream has no subvolume\n";
        assert_eq!((done.code, done.err.as_str()), (Some(0), note));
        assert_eq!(receive(&[&["-q"], place].concat(), &encode(&[Command::End])).ok(), "");
    }
}

/// A directory of a filesystem without properties of btrfs.
fn plain_directory() -> (TempDir, PathBuf, String) {
    let scratch = tempfile::tempdir_in("/dev/shm").unwrap();
    let to = scratch.path().join("to");
    fs::create_dir(&to).unwrap();
    let name = to.to_str().unwrap().to_owned();
    (scratch, to, name)
}

#[test]
fn a_directory_of_another_filesystem_gets_no_properties() {
    let (_scratch, to, name) = plain_directory();
    let set = |path| Command::SetXattr { path, name: b"btrfs.compression", value: b"zstd" };
    let commands = [
        set(b""),
        Command::Mkfile { path: b"f", ino: 257 },
        set(b"f"),
        Command::Write { path: b"f", offset: 0, data: b"data" },
    ];
    let done = receive(&["--to-directory", &name], &encode_subvolume(b"sub", 1, &commands));
    let note = "note: properties of btrfs (btrfs.*) are left out\n";
    assert_eq!((done.code, done.err), (Some(0), format!("butternut: {name}: {note}")));
    assert_eq!(fs::read_to_string(to.join("sub/f")).unwrap(), "data");
    let other = Command::SetXattr { path: b"", name: b"none.such", value: b"" };
    let stream = encode_subvolume(b"other", 2, &[other]);
    let refused = receive(&["--to-directory", &name], &stream).failure();
    assert!(refused.contains("set_xattr"), "{refused}");
}

#[test]
fn clones_keep_holes_and_are_refused_as_the_kernel_does() {
    use std::os::unix::fs::{FileExt, MetadataExt};
    // Small enough for a directory in memory, if the holes were copied as zeros.
    const BIG: u64 = 128 << 20;
    let (_scratch, to, name) = plain_directory();
    let uuid = butternut_format::uuid::Uuid([1; 16]);
    let clone = |path, offset, len, clone_path, clone_offset| Command::Clone {
        path,
        offset,
        len,
        clone_uuid: uuid,
        clone_ctransid: 1,
        clone_path,
        clone_offset,
    };
    let data = [7; 5000];
    let commands = [
        Command::Mkfile { path: b"holes", ino: 257 },
        Command::Truncate { path: b"holes", size: BIG },
        Command::Write { path: b"holes", offset: 1 << 20, data: &data },
        Command::Mkfile { path: b"copy", ino: 258 },
        Command::Write { path: b"copy", offset: 0, data: &data },
        clone(b"copy", 0, BIG, b"holes", 0),
        clone(b"holes", 64 << 20, 5000, b"holes", 1 << 20),
    ];
    let whole = encode_subvolume(b"sub", 1, &commands);
    let later = [Command::Mkfile { path: b"f", ino: 257 }, clone(b"f", 10, 5000, b"copy", 1 << 20)];
    let both = [&whole[..], &encode_subvolume(b"later", 2, &later)].concat();
    assert_eq!(receive(&["--to-directory", &name], &both).ok(), "");
    let copy = fs::File::open(to.join("sub/copy")).unwrap();
    let meta = copy.metadata().unwrap();
    assert_eq!(meta.size(), BIG);
    assert!(meta.blocks() < 1000, "{} blocks", meta.blocks());
    let mut read = [1; 5000];
    copy.read_exact_at(&mut read, 0).unwrap();
    assert_eq!(read, [0; 5000]);
    copy.read_exact_at(&mut read, 1 << 20).unwrap();
    assert_eq!(read, data);
    fs::File::open(to.join("sub/holes")).unwrap().read_exact_at(&mut read, 64 << 20).unwrap();
    assert_eq!(read, data);
    assert_eq!(fs::read(to.join("later/f")).unwrap()[10..], data);
    let refused = [
        (clone(b"holes", 1 << 20, 5000, b"holes", (1 << 20) + 4999), "CLONE_OFFSET: have 1053575"),
        (clone(b"copy", 0, 4096, b"holes", BIG - 4095), "CLONE_OFFSET + CLONE_LEN: have"),
        (clone(b"copy", 0, u64::MAX, b"holes", 1), "CLONE_LEN: have"),
    ];
    for (number, (command, want)) in (3..).zip(refused) {
        let name_of = format!("sub{number}");
        let mut all = commands[..5].to_vec();
        all.push(command);
        let stream = encode_subvolume(name_of.as_bytes(), 1, &all);
        let said = receive(&["--to-directory", &name], &stream).failure();
        assert!(said.contains(want), "{said}");
    }
}

/// What is in a subvolume is what its stream says, also where DIR has a default ACL and a group.
#[test]
fn a_directory_passes_nothing_on() {
    use std::os::unix::fs::{MetadataExt, PermissionsExt};
    let (_scratch, to, name) = plain_directory();
    shell(&format!("chmod 2755 {name}; setfacl -dm u:1000:rwx {name}"));
    let commands = [
        Command::Chmod { path: b"", mode: 0o755 },
        Command::Mkfile { path: b"f", ino: 257 },
        Command::Chmod { path: b"f", mode: 0o644 },
        Command::Mkdir { path: b"d", ino: 258 },
    ];
    let stream = encode_subvolume(b"sub", 1, &commands);
    receive(&["--to-directory", &name], &stream).ok();
    let acls = shell(&format!("cd {name}/sub; getfacl -sRp ."));
    assert_eq!(acls, "");
    let mode = |path| fs::metadata(to.join(path)).unwrap().mode() & 0o7777;
    assert_eq!((mode("sub"), mode("sub/f"), mode("sub/d")), (0o755, 0o644, 0o700));
    // Until its end, other users cannot enter it, whatever the stream says.
    let list = b"\x02\0\0\0\x01\0\x07\0\xff\xff\xff\xff\x02\0\x07\0\x01\0\0\0\
        \x04\0\x05\0\xff\xff\xff\xff\x10\0\x07\0\xff\xff\xff\xff\x20\0\x05\0\xff\xff\xff\xff";
    let commands = [
        Command::SetXattr { path: b"", name: b"system.posix_acl_access", value: list },
        Command::Chown { path: b"", uid: 1000, gid: 1000 },
        Command::Chmod { path: b"", mode: 0o777 },
        Command::Mkfile { path: b"f", ino: 257 },
    ];
    let whole = encode_subvolume(b"open", 1, &commands);
    receive(&["--to-directory", &name], &whole[..whole.len() - 10]).failure();
    let meta = fs::metadata(to.join("open")).unwrap();
    let own = fs::metadata(to.join("open/f")).unwrap().uid();
    assert_eq!((meta.permissions().mode() & 0o7777, meta.uid()), (0o700, own));
    fs::remove_dir_all(to.join("open")).unwrap();
    assert_eq!(receive(&["--to-directory", &name], &whole).ok(), "");
    assert_eq!(mode("open"), 0o777);
    assert!(shell(&format!("getfacl -cnp {name}/open")).contains("user:1:rwx"));
}

#[test]
fn a_directory_gets_more_subvolumes_than_files_may_be_open() {
    const COUNT: u8 = 120;
    let (scratch, to, name) = plain_directory();
    let subvolumes: Vec<Vec<u8>> = (1..=COUNT)
        .map(|number| encode_subvolume(format!("s{number}").as_bytes(), number, &[]))
        .collect();
    let file = scratch.path().join("stream");
    fs::write(&file, subvolumes.concat()).unwrap();
    let (program, file) = (command().get_program().to_str().unwrap().to_owned(), file.display());
    shell(&format!("ulimit -n 64; {program} receive -f {file} --to-directory {name}"));
    assert_eq!(fs::read_dir(&to).unwrap().count(), usize::from(COUNT));
}

/// stdin is read through no buffer that ends with the process.
#[test]
fn what_follows_the_end_command_is_left_on_stdin() {
    let (scratch, _, image) = volume();
    let stream = scratch.path().join("streams");
    let streams = [encode_subvolume(b"a", 1, &[]), encode_subvolume(b"b", 2, &[])];
    fs::write(&stream, streams.concat()).unwrap();
    let (program, stream) =
        (command().get_program().to_str().unwrap().to_owned(), stream.display());
    let rest =
        shell(&format!("cat {stream} | {{ {program} receive --dump -e > /dev/null; wc -c; }}"));
    assert_eq!(rest.trim(), streams[1].len().to_string());
    // Both streams can be received one after the other.
    let receive = format!("{program} receive -e {image}");
    shell(&format!("cat {stream} | {{ {receive}; {receive}; }}"));
    let list = butternut(&["subvolume", "list", &image]).ok();
    assert!(list.contains(" path a\n") && list.contains(" path b\n"), "{list}");
}

/// Streams that are cut and repeated with --resume: the kernel shows what it has sent.
#[test]
fn cut_streams_that_are_resumed_become_what_the_kernel_has_sent() {
    if !kernel_tests_enabled("cut_streams_that_are_resumed_become_what_the_kernel_has_sent") {
        return;
    }
    let source = source();
    let parts: &[usize] =
        if std::env::var_os("BUTTERNUT_LONG").is_some() { &[1, 2, 3, 4, 5, 6, 7] } else { &[2, 7] };
    for way in WAYS {
        let (_scratch, image, name) = volume();
        for stream in NAMES {
            let bytes = fs::read(source.stream(stream, way)).unwrap();
            for part in parts {
                let cut = bytes.len() * part / 8 + part;
                let refused = receive(&["--resume", &name], &bytes[..cut]).failure();
                assert!(refused.contains("commands are kept; repeat it"), "{refused}");
                let list = butternut(&["subvolume", "list", "-R", &name]).ok();
                assert!(list.contains("path .butternut-receive"), "{list}");
                run("btrfs", &["check", "--check-data-csum", &name].map(AsRef::as_ref));
            }
            assert_eq!(receive(&["--resume", &name], &bytes).ok(), "");
            // It is complete, so it stays as it is.
            assert_eq!(receive(&["--resume", &name], &bytes).ok(), "");
        }
        let list = butternut(&["subvolume", "list", &name]).ok();
        assert!(!list.contains("butternut-receive"), "{list}");
        run("btrfs", &["check", "--check-data-csum", &name].map(AsRef::as_ref));
        let (sent, received) = (Mounted::new(&source.image, "ro"), Mounted::new(&image, "ro"));
        for stream in NAMES {
            assert_equal(&received.path(stream), &sent.path(stream), &format!("{stream}.{way}"));
        }
    }
}

/// What cannot begin leaves nothing behind that no message names.
#[test]
fn a_receive_that_cannot_begin_leaves_no_checkpoint() {
    let scratch = tempfile::tempdir().unwrap();
    let image = scratch.path().join("volume.img").to_str().unwrap().to_owned();
    butternut(&["mkfs", "--size", "128M", &image]).ok();
    // A directory, not a subvolume, has the name.
    butternut(&["mkdir", &image, "/name"]).ok();
    let stream = encode_subvolume(b"name", 7, &[]);
    let refused = receive(&["--resume", &image], &stream).failure();
    assert!(refused.contains("exists"), "{refused}");
    assert_eq!(butternut(&["subvolume", "list", &image]).ok(), "");
}
