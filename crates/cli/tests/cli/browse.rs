//! Send streams in the place of a volume: the commands that read show what the streams make, and
//! those that change a volume refuse them.

use std::fs;
use std::path::Path;

use butternut_format::stream::{Command, StreamVersion};
use butternut_format::uuid::Uuid;

use super::command::{butternut, command, shell};
use super::image::kernel_tests_enabled;

const FIRST: Uuid = Uuid([1; 16]);
const SECOND: Uuid = Uuid([2; 16]);

fn write(path: &Path, commands: &[Command<'_>]) -> String {
    write_as(StreamVersion::Two, path, commands)
}

fn write_as(version: StreamVersion, path: &Path, commands: &[Command<'_>]) -> String {
    let mut bytes = version.encode().to_vec();
    for command in commands.iter().chain([&Command::End]) {
        command.encode(version, &mut bytes).unwrap();
    }
    fs::write(path, bytes).unwrap();
    path.to_str().unwrap().to_owned()
}

/// Writes a stream, and one that continues it: `(first, second)`.
fn streams(dir: &Path) -> (String, String) {
    let first = [
        Command::Subvol { path: b"one", uuid: FIRST, ctransid: 7 },
        Command::Mkdir { path: b"dir", ino: 257 },
        Command::Mkfile { path: b"dir/file", ino: 258 },
        Command::Write { path: b"dir/file", offset: 0, data: b"old\n" },
    ];
    let second = [
        Command::Snapshot {
            path: b"two",
            uuid: SECOND,
            ctransid: 9,
            clone_uuid: FIRST,
            clone_ctransid: 7,
        },
        Command::Rename { path: b"dir/file", to: b"moved" },
        Command::Write { path: b"moved", offset: 0, data: b"new\n" },
    ];
    (write(&dir.join("first"), &first), write(&dir.join("second"), &second))
}

#[test]
fn commands_that_read_show_what_streams_make() {
    let scratch = tempfile::tempdir().unwrap();
    let (first, second) = streams(scratch.path());
    let both = format!("{first},{second}");
    assert_eq!(butternut(&["ls", &first]).ok(), "one\n");
    assert_eq!(butternut(&["ls", &both]).ok(), "one\ntwo\n");
    assert_eq!(butternut(&["ls", &format!("{both}@two")]).ok(), "dir\nmoved\n");
    assert_eq!(butternut(&["cat", &both, "/one/dir/file", "/two/moved"]).ok(), "old\nnew\n");
    let found = butternut(&["find", &both, "/", "--type", "f"]).ok();
    assert_eq!(found, "/one/dir/file\n/two/moved\n");
    let stat = butternut(&["stat", &both, "/two/moved"]).ok();
    assert!(stat.contains("/two/moved"), "{stat}");
    let list = butternut(&["subvolume", "list", &first, &second]).ok();
    assert!(list.ends_with("path two\n"), "{list}");
    let copy = scratch.path().join("copy");
    butternut(&["export", "--no-owner", &both, "/two", copy.to_str().unwrap()]).ok();
    assert_eq!(fs::read(copy.join("moved")).unwrap(), b"new\n");
}

#[test]
fn a_stream_without_its_parent_is_refused_with_the_missing_uuid() {
    let scratch = tempfile::tempdir().unwrap();
    let (first, second) = streams(scratch.path());
    for volume in [second.clone(), format!("{second},{first}")] {
        let refused = butternut(&["ls", &volume]).failure();
        let place = format!("{second}: command 1 at byte 17: snapshot two: ");
        assert!(refused.contains(&place), "{refused}");
        assert!(refused.contains(&format!("UUID or received UUID {FIRST}")), "{refused}");
        assert!(refused.contains("before this one, as FIRST,SECOND"), "{refused}");
    }
}

#[test]
fn commands_that_change_a_volume_refuse_a_stream() {
    let scratch = tempfile::tempdir().unwrap();
    let (first, _) = streams(scratch.path());
    let before = fs::read(&first).unwrap();
    let commands: [&[&str]; 6] = [
        &["mkdir", &first, "/new"],
        &["rm", "-r", &first, "/one"],
        &["subvolume", "create", &first, "/new"],
        &["receive", "-f", &first, &first],
        &["filesystem", "resize", &first, "1G"],
        &["filesystem", "label", &first, "new"],
    ];
    for words in commands {
        let refused = butternut(words).failure();
        assert!(refused.contains("is a send stream, which can only be read"), "{refused}");
    }
    // It has a status of its own for what cannot be checked.
    let checked = butternut(&["check", &first]);
    assert_eq!(checked.code, Some(8));
    assert!(checked.err.contains("is a send stream"), "{}", checked.err);
    assert_eq!(fs::read(&first).unwrap(), before);
}

#[test]
fn damaged_streams_and_mixtures_are_refused() {
    let scratch = tempfile::tempdir().unwrap();
    let (first, second) = streams(scratch.path());
    let mut bytes = fs::read(&first).unwrap();
    let cut = scratch.path().join("cut");
    fs::write(&cut, &bytes[..bytes.len() - 3]).unwrap();
    let refused = butternut(&["ls", cut.to_str().unwrap()]).failure();
    assert!(refused.contains("cut: command 5 at byte "), "{refused}");
    let last = bytes.len() - 12;
    bytes[last] ^= 1;
    fs::write(&cut, &bytes).unwrap();
    let refused = butternut(&["ls", cut.to_str().unwrap()]).failure();
    assert!(refused.contains("cut: command 4 at byte "), "{refused}");
    let image = scratch.path().join("image");
    butternut(&["mkfs", "--size", "128M", image.to_str().unwrap()]).ok();
    let refused = butternut(&["ls", &format!("{second},{}", image.display())]).failure();
    assert!(refused.contains("image: is not a send stream, and others are"), "{refused}");
    let twice = butternut(&["ls", &format!("{first},{first}")]).failure();
    assert!(twice.contains("name only streams that make different names"), "{twice}");
}

/// The temporary file has no name, and a directory where it cannot be is named.
/// A few bytes make a file of any size, and a seal hashes all of it.
#[test]
fn a_stream_that_seals_far_more_than_it_has_is_refused() {
    let scratch = tempfile::tempdir().unwrap();
    let sealed_as = |name: &str, size, algorithm, block_bytes| {
        let commands = [
            Command::Subvol { path: name.as_bytes(), uuid: FIRST, ctransid: 7 },
            Command::Mkfile { path: b"file", ino: 257 },
            Command::Truncate { path: b"file", size },
            Command::EnableVerity {
                path: b"file",
                algorithm,
                block_bytes,
                salt: b"",
                signature: b"",
            },
        ];
        write_as(StreamVersion::Three, &scratch.path().join(name), &commands)
    };
    let sealed = |size| sealed_as("one", size, 1, 4096);
    let refused = butternut(&["ls", &sealed(1 << 48)]).failure();
    for part in [
        "command 4 at byte ",
        ": bytes of sealed files: have 281474976710656, want at most ",
        "(`butternut receive` seals files of any size in a volume)",
    ] {
        assert!(refused.contains(part), "{part}: {refused}");
    }
    assert_eq!(butternut(&["ls", &sealed(64 << 20), "one"]).ok(), "file\n");
    // The largest hashes of the smallest blocks are a sixteenth of a file, and need space.
    let refused = butternut(&["ls", &sealed_as("two", 16 << 30, 2, 1024)]).failure();
    assert!(refused.contains(": bytes of hashes of sealed files: have "), "{refused}");
    // Several streams have one limit.
    let parts = [sealed_as("three", 1200 << 20, 2, 1024), sealed_as("four", 1200 << 20, 2, 1024)];
    let refused = butternut(&["ls", &parts.join(",")]).failure();
    assert!(refused.contains("four: command 4 at byte "), "{refused}");
    assert!(refused.contains(": bytes of hashes of sealed files: have "), "{refused}");
}

/// Clones a file of one block that was doubled some times to its own end.
fn doubling<'a>(times: u32) -> Command<'a> {
    let (offset, len) = (4096 << times, 4096 << times);
    let (path, clone_path) = (&b"file"[..], &b"file"[..]);
    let (clone_uuid, clone_ctransid, clone_offset) = (FIRST, 7, 0);
    Command::Clone { path, offset, len, clone_uuid, clone_ctransid, clone_path, clone_offset }
}

/// A file that is cloned to its own end has twice as many extents with each command of some bytes,
/// or twice as many bytes where the offsets differ in their blocks.
#[test]
fn a_stream_that_clones_far_more_extents_than_it_has_is_refused() {
    let scratch = tempfile::tempdir().unwrap();
    let cloned = |name: &str, doublings: u32| {
        let mut commands = vec![
            Command::Subvol { path: name.as_bytes(), uuid: FIRST, ctransid: 7 },
            Command::Mkfile { path: b"file", ino: 257 },
            Command::Write { path: b"file", offset: 0, data: &[7; 4096] },
        ];
        commands.extend((0..doublings).map(doubling));
        write_as(StreamVersion::Three, &scratch.path().join(name), &commands)
    };
    let few = cloned("few", 8);
    assert_eq!(butternut(&["cat", &few, "few/file"]).bytes, vec![7; 4096 << 8]);
    let sparse = |name: &str, size, offset| {
        let commands = [
            Command::Subvol { path: name.as_bytes(), uuid: FIRST, ctransid: 7 },
            Command::Mkfile { path: b"file", ino: 257 },
            Command::Truncate { path: b"file", size },
            Command::Clone {
                path: b"file",
                offset,
                len: size,
                clone_uuid: FIRST,
                clone_ctransid: 7,
                clone_path: b"file",
                clone_offset: 0,
            },
        ];
        write_as(StreamVersion::Three, &scratch.path().join(name), &commands)
    };
    assert_eq!(butternut(&["ls", &sparse("one", 4 << 30, 4 << 30), "one"]).ok(), "file\n");
    let refused = butternut(&["ls", &sparse("two", 4 << 30, (4 << 30) + 1)]).failure();
    for part in [
        "command 4 at byte ",
        ": extents that are cloned or freed: have 524",
        ", want at most 524",
        "(`butternut receive` clones and frees any number of extents in a volume)",
    ] {
        assert!(refused.contains(part), "{part}: {refused}");
    }
}

/// Each snapshot of a subvolume has all extents again, which a truncation frees.
#[test]
fn a_stream_that_frees_far_more_extents_than_it_has_is_refused() {
    let scratch = tempfile::tempdir().unwrap();
    let freed = |name: &str, snapshots: u8, free: Command<'static>| {
        let mut commands = vec![
            Command::Subvol { path: b"s", uuid: FIRST, ctransid: 7 },
            Command::Mkfile { path: b"file", ino: 257 },
            Command::Write { path: b"file", offset: 0, data: &[7; 4096] },
        ];
        commands.extend((0..16).map(doubling));
        let path = scratch.path().join(name);
        let part = |commands: &[Command<'_>]| {
            write_as(StreamVersion::Three, &path, commands);
            fs::read(&path).unwrap()
        };
        let mut bytes = part(&commands);
        for number in 10..10 + snapshots {
            let name = format!("s{number}");
            let snapshot = Command::Snapshot {
                path: name.as_bytes(),
                uuid: Uuid([number; 16]),
                ctransid: 7,
                clone_uuid: FIRST,
                clone_ctransid: 7,
            };
            bytes.extend(part(&[snapshot, free]));
        }
        fs::write(&path, bytes).unwrap();
        path.to_str().unwrap().to_owned()
    };
    let cut = Command::Truncate { path: b"file", size: 4096 };
    butternut(&["ls", &freed("few", 5, cut)]).ok();
    for (name, free) in [("cut", cut), ("removed", Command::Unlink { path: b"file" })] {
        let refused = butternut(&["ls", &freed(name, 9, free)]).failure();
        assert!(refused.contains(": extents that are cloned or freed: have 524"), "{refused}");
    }
}

#[test]
fn a_stream_leaves_no_file_in_its_temporary_directory() {
    let scratch = tempfile::tempdir().unwrap();
    let (first, _) = streams(scratch.path());
    let temporary = scratch.path().join("temporary");
    fs::create_dir(&temporary).unwrap();
    let run = |dir: &Path| {
        let output = command().args(["ls", &first]).env("TMPDIR", dir).output().unwrap();
        (output.status.success(), String::from_utf8(output.stderr).unwrap())
    };
    assert_eq!(run(&temporary), (true, String::new()));
    assert_eq!(fs::read_dir(&temporary).unwrap().count(), 0);
    let (is_done, why) = run(&scratch.path().join("missing"));
    assert!(!is_done && why.contains("missing: no such file or directory (set TMPDIR"), "{why}");
}

/// Snapshots that the kernel has sent, before and after they were changed, compared with the
/// kernel's view of them: names, attributes and data.
#[test]
fn a_mount_and_an_export_of_streams_equal_what_the_kernel_has_sent() {
    if !kernel_tests_enabled("a_mount_and_an_export_of_streams_equal_what_the_kernel_has_sent") {
        return;
    }
    let scratch = tempfile::tempdir_in("/dev/shm").unwrap();
    let butternut = env!("CARGO_BIN_EXE_butternut");
    let script = format!(
        r#"cd {}; mkdir kernel streams; truncate -s 512M img; mkfs.btrfs -q img
        mount -o loop,compress=zstd img kernel
        trap 'mountpoint -q streams && {butternut} umount streams; umount kernel' EXIT
        btrfs -q subvolume create kernel/v
        (
            cd kernel/v; mkdir -p a/b; seq 30000 > a/text; head -c 1M /dev/urandom > a/b/random
            ln a/text hard; ln -s a/text soft; mkfifo fifo; truncate -s 5M hole; echo x >> hole
            chown 12:34 a/text; chmod 4711 a/text; setfattr -n user.k -v v a/b
        )
        btrfs -q subvolume snapshot -r kernel/v kernel/s1
        (cd kernel/v; mv a c; seq 9 > c/text; cp --reflink c/b/random again; rm fifo)
        btrfs -q subvolume snapshot -r kernel/v kernel/s2
        btrfs -q send kernel/s1 -f 1; btrfs -q send --proto 2 --compressed-data kernel/s1 -f c
        btrfs -q send -p kernel/s1 kernel/s2 -f 2
        list() {{ (
            cd "$1"; find . -printf '%p|%y|%m|%U|%G|%T@|%l\n' | sort
            find . -not -type d -printf '%p|%n|%s\n' | sort
            find . -type f -print0 | sort -z | xargs -0 sha256sum
            find . -print0 | sort -z | xargs -0 getfattr -h -d -m user -e hex
        ) }}
        for full in 1 c; do
            {butternut} mount $full 2 streams
            for s in s1 s2; do
                list kernel/$s > want; list streams/$s > have; diff want have >&2
            done
            touch streams/new 2> why && exit 1; grep -q 'Read-only file system' why
            {butternut} umount streams
            {butternut} export $full,2 /s2 copy-$full
            list copy-$full > have; diff want have >&2
        done
        wc -l < want"#,
        scratch.path().display()
    );
    let lines: u32 = shell(&script).trim().parse().unwrap();
    assert!(lines > 10, "{lines}");
}

/// The temporary file is as large as it can be made, which is less than the space that is free.
#[test]
fn a_stream_is_read_where_the_size_of_files_is_limited() {
    let scratch = tempfile::tempdir().unwrap();
    let (first, _) = streams(scratch.path());
    // 256 MiB, in units of 512 bytes.
    let program = command().get_program().to_str().unwrap().to_owned();
    let list = shell(&format!("ulimit -f 524288; {program} ls {first}@one"));
    assert_eq!(list, butternut(&["ls", &format!("{first}@one")]).ok());
}
