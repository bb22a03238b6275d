//! `receive` that a signal ends, and arguments of `receive` in the wrong place.

use std::fs;
use std::io::Write;
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Stdio};
use std::thread::yield_now;

use butternut_format::stream::{Command, StreamVersion};
use butternut_format::uuid::Uuid;
use rustix::io::ioctl_fionread;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use tempfile::TempDir;

use super::command::{CommandOutput, butternut, command, run};
use super::image::kernel_tests_enabled;
use super::mount::MountPoint;
use super::receive::encode;

const UUID: Uuid = Uuid([7; 16]);

fn volume() -> (TempDir, String) {
    let scratch = tempfile::tempdir_in("/var/tmp").unwrap();
    let image = scratch.path().join("volume.img").to_str().unwrap().to_owned();
    butternut(&["mkfs", "--size", "256M", &image]).ok();
    (scratch, image)
}

/// The stream of a subvolume with two files.
fn stream() -> Vec<u8> {
    encode(&[
        Command::Subvol { path: b"sub", uuid: UUID, ctransid: 1 },
        Command::Mkfile { path: b"a", ino: 257 },
        Command::Write { path: b"a", offset: 0, data: &[1; 5000] },
        Command::Mkfile { path: b"b", ino: 258 },
        Command::End,
    ])
}

/// Ends a receive with a signal when it has read all but the last bytes of the stream.
fn interrupted(words: &[&str], stream: &[u8], signal: Signal) -> CommandOutput {
    let mut command = command();
    command.arg("receive").args(words);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child: Child = command.spawn().unwrap();
    let mut stdin = child.stdin.take().unwrap();
    stdin.write_all(&stream[..stream.len() - 4]).unwrap();
    while ioctl_fionread(&stdin).unwrap() > 0 {
        yield_now();
    }
    kill_process(Pid::from_child(&child), signal).unwrap();
    let output = child.wait_with_output().unwrap();
    // The pipe is open until the process has ended: what ended it is not the end of the stream.
    drop(stdin);
    assert_eq!(output.status.signal(), Some(signal.as_raw()));
    output.into()
}

#[test]
fn a_signal_deletes_the_incomplete_subvolume() {
    for signal in [Signal::TERM, Signal::INT, Signal::HUP] {
        let (_scratch, image) = volume();
        let said = interrupted(&[&image], &stream(), signal).err;
        assert!(
            said.contains("a signal has ended the receive (no incomplete subvolume is left; "),
            "{said}"
        );
        assert_eq!(said.lines().count(), 1, "{said}");
        assert_eq!(butternut(&["subvolume", "list", &image]).ok(), "");
        run("btrfs", &["check", &image].map(AsRef::as_ref));
    }
}

/// The file is sparse, and its seal would take days.
#[test]
fn a_signal_ends_a_seal() {
    let (_scratch, image) = volume();
    let version = StreamVersion::Three;
    let (salt, signature, path) = (b"".as_slice(), b"".as_slice(), b"a".as_slice());
    let mut stream = version.encode().to_vec();
    for command in [
        Command::Subvol { path: b"sub", uuid: UUID, ctransid: 1 },
        Command::Mkfile { path, ino: 257 },
        Command::Truncate { path, size: 1 << 48 },
        Command::EnableVerity { path, algorithm: 1, block_bytes: 4096, salt, signature },
        // Not read before the seal has ended.
        Command::Write { path: b"b", offset: 0, data: &[1; 5000] },
    ] {
        command.encode(version, &mut stream).unwrap();
    }
    let said = interrupted(&[&image], &stream, Signal::TERM).err;
    assert!(said.contains("command 4 at byte ") && said.lines().count() == 1, "{said}");
    assert!(said.contains("no incomplete subvolume is left"), "{said}");
    assert_eq!(butternut(&["subvolume", "list", &image]).ok(), "");
    run("btrfs", &["check", &image].map(AsRef::as_ref));
}

#[test]
fn a_signal_keeps_what_is_resumed() {
    let (scratch, image) = volume();
    let said = interrupted(&["--resume", &image], &stream(), Signal::TERM).err;
    assert!(said.contains("a signal has ended the receive ("), "{said}");
    assert!(said.trim_end().ends_with(" commands are kept; repeat it to go on)"), "{said}");
    let file = scratch.path().join("stream");
    fs::write(&file, stream()).unwrap();
    butternut(&["receive", "--resume", "-f", file.to_str().unwrap(), &image]).ok();
    let list = butternut(&["subvolume", "list", &image]).ok();
    assert!(list.lines().count() == 1 && list.ends_with("path sub\n"), "{list}");
    run("btrfs", &["check", "--check-data-csum", &image].map(AsRef::as_ref));
}

/// As the owner of its root directory, which the stream sets, can do on a mount.
#[test]
fn a_kept_snapshot_that_was_changed_is_named_and_stays() {
    let (scratch, image) = volume();
    let file = scratch.path().join("stream").to_str().unwrap().to_owned();
    let whole = stream();
    fs::write(&file, &whole[..whole.len() - 4]).unwrap();
    butternut(&["receive", "--resume", "-f", &file, &image]).failure();
    let list = butternut(&["subvolume", "list", &image]).ok();
    let left = format!("/{}", list.trim().rsplit(' ').next().unwrap());
    assert!(left.starts_with("/.butternut-receive"), "{list}");
    // It has the UUID of a receive.
    butternut(&["property", "set", &image, &left, "ro", "false"]).failure();
    butternut(&["property", "set", "-f", &image, &left, "ro", "false"]).ok();
    butternut(&["touch", &image, &format!("{left}/intruder")]).ok();
    butternut(&["property", "set", &image, &left, "ro", "true"]).ok();
    fs::write(&file, &whole).unwrap();
    let ran = butternut(&["receive", "--resume", "-f", &file, &image]);
    let want = format!(
        "butternut: {left}: note: is not as an interrupted receive of this version has left it, \
         so it is not used (delete it if nothing in it is needed)\n"
    );
    assert_eq!((ran.code, ran.err), (Some(0), want));
    assert_eq!(butternut(&["ls", &image, "/sub"]).ok(), "a\nb\n");
    assert!(butternut(&["ls", &image, &left]).ok().contains("intruder"));
    run("btrfs", &["check", &image].map(AsRef::as_ref));
}

#[test]
fn a_dump_is_a_list_of_objects() {
    let scratch = tempfile::tempdir().unwrap();
    let file = scratch.path().join("stream").to_str().unwrap().to_owned();
    let all = encode(&[
        Command::Subvol { path: b"sub", uuid: UUID, ctransid: 1 },
        Command::Mkdir { path: b"\xff", ino: 257 },
        Command::SetXattr { path: b"a b", name: b"user.x", value: b"v" },
        Command::Write { path: b"a b", offset: 4096, data: &[1; 50] },
        Command::Chmod { path: b"a b", mode: 0o644 },
        Command::Rename { path: b"a b", to: b"c" },
        Command::End,
    ]);
    fs::write(&file, &all).unwrap();
    let dumped = butternut(&["--json", "receive", "--dump", "-f", &file]).ok();
    let dumped: Value = serde_json::from_str(&dumped).unwrap();
    let uuid = "07070707-0707-0707-0707-070707070707";
    let wanted = json!([
        { "command": "subvol", "path": "sub", "uuid": uuid, "transid": 1 },
        { "command": "mkdir", "path": "\u{fffd}", "path_bytes": "ff", "ino": 257 },
        { "command": "set_xattr", "path": "a b", "name": "user.x", "value": "v" },
        { "command": "write", "path": "a b", "offset": 4096, "len": 50 },
        { "command": "chmod", "path": "a b", "mode": 0o644 },
        { "command": "rename", "path": "a b", "dest": "c" },
        { "command": "end" },
    ]);
    assert_eq!(dumped, wanted);
    // A damaged stream is a list of the commands before the damage.
    fs::write(&file, &all[..all.len() - 3]).unwrap();
    let ran = butternut(&["--json", "receive", "--dump", "-f", &file]);
    let dumped: Value = serde_json::from_str(&ran.out).unwrap();
    assert_eq!((ran.code, dumped.as_array().unwrap().len()), (Some(1), 6), "{}", ran.err);
}

#[test]
fn a_stream_in_the_place_of_the_volume_is_refused() {
    let (scratch, image) = volume();
    let file = scratch.path().join("stream").to_str().unwrap().to_owned();
    fs::write(&file, stream()).unwrap();
    let said = butternut(&["receive", &file, &image]).failure();
    let want = format!(
        "butternut: {file}: is a send stream, not a volume (`butternut receive -f {file} {image}` \
         receives it)"
    );
    assert_eq!(said, want);
    let said = butternut(&["receive", &file]).failure();
    assert!(said.contains(&format!("`butternut receive -f {file} VOLUME`")), "{said}");
    if !kernel_tests_enabled("a_stream_in_the_place_of_the_volume_is_refused") {
        return;
    }
    let mount_point = MountPoint::new();
    let ran = butternut(&["mount", "-o", "rw", &file, mount_point.name()]);
    let want = format!("butternut: {file}: note: a send stream is mounted read-only\n");
    assert_eq!((ran.code, ran.err), (Some(0), want));
    butternut(&["umount", mount_point.name()]).ok();
    butternut(&["mount", &file, mount_point.name()]).ok();
    butternut(&["umount", mount_point.name()]).ok();
}

/// A receive that was killed leaves its subvolume under its final name. The message says what it
/// is, and which command goes on with it or removes it.
#[test]
fn an_incomplete_subvolume_is_named() {
    let (scratch, image) = volume();
    let file = scratch.path().join("stream").to_str().unwrap().to_owned();
    let whole = stream();
    fs::write(&file, &whole[..whole.len() - 4]).unwrap();
    butternut(&["receive", "--resume", "-f", &file, &image]).failure();
    let list = butternut(&["subvolume", "list", &image]).ok();
    let left = format!("/{}", list.trim().rsplit(' ').next().unwrap());
    fs::write(&file, &whole).unwrap();
    // As a crash leaves it: made from the snapshot that is kept.
    butternut(&["subvolume", "snapshot", &image, &left, "/sub"]).ok();
    let said = butternut(&["receive", "-f", &file, &image]).failure();
    let what = "an interrupted receive has left an incomplete subvolume of that name";
    assert!(said.contains(what) && said.contains("`butternut receive --resume` goes on"), "{said}");
    // An older version marked nothing.
    butternut(&["property", "set", "-f", &image, &left, "ro", "false"]).ok();
    butternut(&["property", "set", &image, &left, "ro", "true"]).ok();
    let said = butternut(&["receive", "--resume", "-f", &file, &image]).failure();
    assert!(said.contains(what), "{said}");
    assert!(said.contains("remove it by `butternut subvolume delete`, and repeat"), "{said}");
    butternut(&["subvolume", "delete", &image, "/sub"]).ok();
    assert_eq!(butternut(&["receive", "--resume", "-f", &file, &image]).code, Some(0));
    assert_eq!(butternut(&["ls", &image, "/sub"]).ok(), "a\nb\n");
}
