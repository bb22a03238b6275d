//! `send`: what it refuses, and streams of volumes that Butternut made.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::Stdio;
use std::thread::yield_now;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use super::command::{butternut, command, run, shell};
use super::image::kernel_tests_enabled;

/// A volume with a writable subvolume `/w`, and a snapshot `/a` of it with a file of 1 MB.
struct Volume {
    scratch: tempfile::TempDir,
    image: String,
}

impl Volume {
    fn new() -> Self {
        let scratch = tempfile::tempdir_in("/dev/shm").unwrap();
        let image = scratch.path().join("volume.img").to_str().unwrap().to_owned();
        butternut(&["mkfs", "--size", "256M", &image]).ok();
        butternut(&["subvolume", "create", &image, "/w"]).ok();
        let file = scratch.path().join("file");
        fs::write(&file, vec![7; 1_000_000]).unwrap();
        butternut(&["import", &image, file.to_str().unwrap(), "/w/file"]).ok();
        fs::remove_file(&file).unwrap();
        butternut(&["subvolume", "snapshot", "-r", &image, "/w", "/a"]).ok();
        Self { scratch, image }
    }

    fn path(&self, name: &str) -> String {
        self.scratch.path().join(name).to_str().unwrap().to_owned()
    }

    /// Returns the names of all files beside the volume.
    fn names(&self) -> Vec<String> {
        let entries = fs::read_dir(self.scratch.path()).unwrap();
        let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
        let mut names: Vec<String> = names.collect();
        names.sort();
        names
    }
}

#[test]
fn streams_are_written_to_stdout_and_to_files() {
    let scratch = tempfile::tempdir_in("/var/tmp").unwrap();
    let image = scratch.path().join("volume.img");
    let image = image.to_str().unwrap();
    butternut(&["mkfs", "--size", "256M", image]).ok();
    butternut(&["subvolume", "create", image, "/w"]).ok();
    let file = scratch.path().join("file");
    std::fs::write(&file, vec![7; 100_000]).unwrap();
    butternut(&["import", image, file.to_str().unwrap(), "/w/file"]).ok();
    butternut(&["subvolume", "snapshot", "-r", image, "/w", "/a"]).ok();
    butternut(&["mv", image, "/w/file", "/w/moved"]).ok();
    butternut(&["mkdir", image, "/w/dir"]).ok();
    butternut(&["subvolume", "snapshot", "-r", image, "/w", "/b"]).ok();
    let stream = scratch.path().join("stream");
    let stream = stream.to_str().unwrap();
    let dump = |stream: &str| run("btrfs", &["receive", "--dump", "-f", stream].map(AsRef::as_ref));

    let whole = butternut(&["send", image, "/a"]);
    assert_eq!((whole.code, whole.err.as_str()), (Some(0), ""));
    assert!(whole.bytes.len() > 100_000);
    std::fs::write(stream, &whole.bytes).unwrap();
    let text = dump(stream);
    assert!(text.contains("mkfile") && text.contains("./a/file"), "{text}");

    assert_eq!(butternut(&["send", "-p", "/a", "-f", stream, image, "/b"]).ok(), "");
    let difference = std::fs::read(stream).unwrap();
    let text = dump(stream);
    assert!(text.contains("rename") && !text.contains("write"), "{text}");
    butternut(&["send", "-c", "/a", "-f", stream, image, "/b"]).ok();
    assert_eq!(std::fs::read(stream).unwrap(), difference);
    butternut(&["send", "--no-data", "--proto", "2", "-f", stream, image, "/a"]).ok();
    let text = dump(stream);
    assert!(text.contains("update_extent") && !text.contains("write"), "{text}");

    let refused = butternut(&["send", image, "/w"]).failure();
    assert!(refused.contains("/w: operation not permitted: only read-only"), "{refused}");
    assert!(refused.contains("ro true"), "{refused}");
    // A parent that was writable after it was sent differs from that of the receiver.
    for option in ["-p", "-c"] {
        let refused = butternut(&["send", option, "/w", image, "/b"]).failure();
        assert!(refused.contains("/w: operation not permitted: only read-only"), "{refused}");
        assert!(refused.contains("(name the read-only snapshot that was sent"), "{refused}");
    }
    let refused = butternut(&["send", image, "/a/file"]).failure();
    assert!(refused.contains("not a subvolume"), "{refused}");
    let refused = butternut(&["send", "--compressed-data", "--proto", "1", image, "/a"]).failure();
    assert!(refused.contains("compressed data needs protocol 2"), "{refused}");
    butternut(&["subvolume", "create", image, "/x"]).ok();
    butternut(&["property", "set", image, "/x", "ro", "true"]).ok();
    let refused = butternut(&["send", "-c", "/x", image, "/b"]).failure();
    assert!(refused.contains("name the parent with -p"), "{refused}");
    let program = command().get_program().to_str().unwrap().to_owned();
    let said = shell(&format!("script -qec '{program} send {image} /a' /dev/null || true"));
    assert!(said.contains("a stream is not written to a terminal"), "{said}");
}

/// As by `butternut send VOLUME SUBVOLUME | ssh HOST btrfs receive DIR` when the connection ends.
#[test]
fn a_stream_that_is_not_read_to_its_end_is_a_failure() {
    let volume = Volume::new();
    let mut child = command()
        .args(["send", &volume.image, "/a"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    drop(child.stdout.take());
    let output = child.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert_eq!(said, "butternut: stdout: broken pipe (the stream is not complete)\n");
}

#[test]
fn a_stream_does_not_overwrite_its_volume() {
    let volume = Volume::new();
    let image = &volume.image;
    let before = fs::read(image).unwrap();
    let (hard, soft) = (volume.path("hard"), volume.path("soft"));
    fs::hard_link(image, &hard).unwrap();
    symlink(image, &soft).unwrap();
    for file in [image, &hard, &soft] {
        let refused = butternut(&["send", "-f", file, image, "/a"]).failure();
        assert!(refused.contains(&format!("{file}: is a device of the volume")), "{refused}");
        assert!(fs::read(image).unwrap() == before, "{file}");
    }
    if !kernel_tests_enabled("a_stream_does_not_overwrite_its_volume") {
        return;
    }
    let device = butternut_undo::LoopGuard::attach(image.as_ref(), &[]).unwrap();
    let device = device.path().to_str().unwrap();
    for (file, source) in [(image.as_str(), device), (device, image), (device, device)] {
        let refused = butternut(&["send", "-f", file, source, "/a"]).failure();
        assert!(refused.contains(&format!("{file}: is a device of the volume")), "{refused}");
        assert!(fs::read(image).unwrap() == before, "{file} {source}");
    }
}

#[test]
fn a_stream_that_fails_leaves_its_file_as_it_was() {
    let volume = Volume::new();
    let (image, file, new) = (&volume.image, volume.path("good"), volume.path("new"));
    fs::write(&file, "good").unwrap();
    butternut(&["send", "-f", &file, image, "/w"]).failure();
    butternut(&["send", "-f", &file, "-p", "/none", image, "/a"]).failure();
    assert_eq!(fs::read_to_string(&file).unwrap(), "good");
    // The size of a file is limited to less than the stream has.
    let program = command().get_program().to_str().unwrap().to_owned();
    for to in [&file, &new] {
        let said = shell(&format!("ulimit -f 100; {program} send -f {to} {image} /a 2>&1 || true"));
        assert!(said.contains(&format!("{to}: file too large")), "{said}");
    }
    assert_eq!(fs::read_to_string(&file).unwrap(), "good");
    assert_eq!(volume.names(), ["good", "volume.img"]);
}

/// Returns whether a process has a file open in a directory, other than the volume.
fn has_output(process: u32, directory: &Path) -> bool {
    let Ok(open) = fs::read_dir(format!("/proc/{process}/fd")) else { return false };
    open.filter_map(|file| fs::read_link(file.ok()?.path()).ok()).any(|path| {
        path.parent() == Some(directory) && path.file_name() != Some("volume.img".as_ref())
    })
}

#[test]
fn a_signal_leaves_nothing_of_a_stream() {
    let scratch = tempfile::tempdir_in("/var/tmp").unwrap();
    let image = scratch.path().join("volume.img").to_str().unwrap().to_owned();
    butternut(&["mkfs", "--size", "1G", &image]).ok();
    butternut(&["subvolume", "create", &image, "/w"]).ok();
    let data = tempfile::NamedTempFile::new_in("/var/tmp").unwrap();
    fs::write(data.path(), vec![7; 400 << 20]).unwrap();
    butternut(&["import", &image, data.path().to_str().unwrap(), "/w/file"]).ok();
    butternut(&["property", "set", &image, "/w", "ro", "true"]).ok();
    let file = scratch.path().join("stream");
    for (signal, content) in [(Signal::TERM, None), (Signal::INT, Some("old"))] {
        if let Some(content) = content {
            fs::write(&file, content).unwrap();
        }
        let mut command = command();
        command.args(["send", "-f", file.to_str().unwrap(), &image, "/w"]);
        let mut child = command.spawn().unwrap();
        while !has_output(child.id(), scratch.path()) {
            assert_eq!(child.try_wait().unwrap(), None, "it has ended before the signal");
            yield_now();
        }
        kill_process(Pid::from_child(&child), signal).unwrap();
        let status = child.wait().unwrap();
        assert_eq!(status.signal(), Some(signal.as_raw()));
        assert_eq!(fs::read_to_string(&file).ok().as_deref(), content);
        let left = fs::read_dir(scratch.path()).unwrap().count();
        assert_eq!(left, 1 + usize::from(content.is_some()));
    }
}

/// As in a shell that has `trap '' TERM`.
#[test]
fn a_signal_that_is_ignored_keeps_no_other_from_ending_a_send() {
    let volume = Volume::new();
    let (image, fifo) = (&volume.image, volume.path("fifo"));
    shell(&format!("mkfifo {fifo}"));
    let program = command().get_program().to_str().unwrap().to_owned();
    for first in [None, Some(Signal::TERM)] {
        // It waits for a reader of the FIFO.
        let script = format!("trap '' TERM; exec {program} send -f {fifo} {image} /a");
        let mut child = std::process::Command::new("sh").args(["-c", &script]).spawn().unwrap();
        let process = Pid::from_child(&child);
        let has_signal_thread = || {
            let threads = fs::read_dir(format!("/proc/{}/task", child.id())).unwrap();
            let names =
                threads.map(|thread| fs::read_to_string(thread.unwrap().path().join("comm")));
            names.flatten().any(|name| name.trim() == "signals")
        };
        while !has_signal_thread() {
            yield_now();
        }
        if let Some(first) = first {
            kill_process(process, first).unwrap();
            // Long enough for a thread that receives it to do so.
            std::thread::sleep(Duration::from_millis(200));
            assert_eq!(child.try_wait().unwrap(), None, "it ignores SIGTERM");
        }
        kill_process(process, Signal::HUP).unwrap();
        let by = Instant::now() + Duration::from_mins(1);
        while child.try_wait().unwrap().is_none() && Instant::now() < by {
            std::thread::sleep(Duration::from_millis(10));
        }
        child.kill().unwrap_or_default();
        assert_eq!(child.wait().unwrap().signal(), Some(Signal::HUP.as_raw()), "{first:?}");
    }
}

#[test]
fn a_stream_replaces_its_file_and_keeps_the_mode() {
    let volume = Volume::new();
    let image = &volume.image;
    let whole = butternut(&["send", image, "/a"]).bytes;
    let (file, link) = (volume.path("file"), volume.path("link"));
    fs::write(&file, "old").unwrap();
    fs::set_permissions(&file, fs::Permissions::from_mode(0o640)).unwrap();
    symlink("file", &link).unwrap();
    butternut(&["send", "-f", &link, image, "/a"]).ok();
    assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
    assert!(fs::read(&file).unwrap() == whole);
    assert_eq!(fs::metadata(&file).unwrap().mode() & 0o7777, 0o640);
    let fifo = volume.path("fifo");
    let program = command().get_program().to_str().unwrap().to_owned();
    let read = volume.path("read");
    shell(&format!(
        "mkfifo {fifo}; cat {fifo} > {read} & {program} send -f {fifo} {image} /a; wait"
    ));
    assert!(fs::read(&read).unwrap() == whole);
    let through = shell(&format!("{program} send -f /dev/stdout {image} /a | wc -c"));
    assert_eq!(through.trim(), whole.len().to_string());
    assert_eq!(volume.names(), ["fifo", "file", "link", "read", "volume.img"]);
}

/// A stream has the contents of every file of the subvolume, also of those that only root reads.
#[test]
fn the_file_of_a_stream_can_be_read_by_its_owner_only() {
    let volume = Volume::new();
    let (image, new, old, link) =
        (&volume.image, volume.path("new"), volume.path("old"), volume.path("link"));
    fs::write(&old, "old").unwrap();
    fs::set_permissions(&old, fs::Permissions::from_mode(0o640)).unwrap();
    symlink(volume.path("target"), &link).unwrap();
    let program = command().get_program().to_str().unwrap().to_owned();
    for (file, mode) in [(&new, 0o600), (&old, 0o640), (&link, 0o600)] {
        shell(&format!("umask 022; {program} send -f {file} {image} /a"));
        assert_eq!(fs::metadata(file).unwrap().mode() & 0o777, mode, "{file}");
    }
}
