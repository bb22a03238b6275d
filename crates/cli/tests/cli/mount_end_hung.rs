//! Signals end a mount also while a device, or the reader of its messages, does not respond.

use std::io::{BufRead, BufReader, PipeWriter, Write, pipe};
use std::process::Child;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::command::{butternut, command, shell};
use super::image::kernel_tests_enabled;
use super::mount::{MountPoint, holders, own_copy};
use super::mount_end::run_in_namespace;

/// Runs a script with a mount m2, of process D, of a loop device L whose file is in the mount m1.
/// The device hangs while the script has stopped the process O of m1. `make` creates the image of
/// the device in m1. In the script, `logged WORDS` waits up to 20 s for a message of D and prints
/// `WORDS`. Returns the output.
pub(super) fn run_on_device_that_can_hang(make: &str, options: &str, script: &str) -> String {
    run_in_namespace(&format!(
        "truncate -s 1G outer.img; $B mkfs -q outer.img; $B mount outer.img m1; O=$(daemon)
         D=; L=; F=; C=none; mkdir m3 connections; mount -t fusectl none connections
         undo() {{
             kill -CONT $O
             # A mount of another test may have the number of a connection that has ended.
             grep -q \"^State:.[^Z]\" /proc/$D/status && echo 1 >connections/$C/abort
             kill -9 $D $F; ended $D
             umount -l m3 m2; losetup -d $L; $B umount -q m1; kill -9 $O; umount -l m1
         }}
         trap \"undo 2>ignored || true\" EXIT
         {make}
         sync -f m1/inner.img
         L=$(losetup -f --show --direct-io=on m1/inner.img)
         $B mount --foreground -o {options} $L m2 2>log & D=$!
         logged() {{
             for n in $(seq 400); do grep -q \"$1\" log && break; sleep .05; done
             grep -o \"$1\" log || true
         }}
         logged \": mounted (\"
         C=$(grep \" $PWD/m2 \" /proc/self/mountinfo | cut -d \" \" -f 3)
         C=$(((${{C%:*}} << 20) + ${{C#*:}}))
         {script}"
    ))
}

const EMPTY: &str = "truncate -s 256M m1/inner.img; $B mkfs -q m1/inner.img";

/// Creates many subvolumes in one directory, and one in a directory of many files.
const SUBVOLUMES: &str = "truncate -s 512M m1/inner.img; mkfs.btrfs -q -f m1/inner.img
    mount -o loop m1/inner.img m2; cd m2
    for n in $(seq 30); do btrfs -q subvolume create s$n; done
    mkdir -p deep/a; btrfs -q subvolume create deep/a/sub
    for n in $(seq 3000); do echo x >deep/f$n; done
    cd ..; umount m2";

const ALL_SIGNALS: &str = "
    kill -TERM $D; logged \"still waits for a device\"
    kill -TERM $D; logged \"second signal:\"
    kill -TERM $D; logged \"third signal:\"
    ended $D && echo ended || echo it lives";

const ALL_LOGGED: &str =
    ": mounted (\nstill waits for a device\nsecond signal:\nthird signal:\nended\n";

#[test]
fn a_third_signal_ends_a_process_that_waits_to_write_its_last_changes() {
    if !kernel_tests_enabled("a_third_signal_ends_a_process_that_waits_to_write_its_last_changes") {
        return;
    }
    for (options, before, after) in [
        ("commit=3600", "", "umount m2"),
        ("commit=3600", "", ""),
        ("commit=3600", "exec 7>m2/open", ""),
        // umount(8) waits for the process.
        ("commit=3600,blkdev", "", "umount m2 &"),
        ("commit=3600,blkdev", "", ""),
    ] {
        let script = format!(
            "head -c 4M /dev/urandom >m2/file; {before}
             kill -STOP $O; {after}
             {ALL_SIGNALS}"
        );
        let output = run_on_device_that_can_hang(EMPTY, options, &script);
        assert_eq!(output, ALL_LOGGED, "{options} {before} {after}");
    }
}

/// A thread that notifies the kernel waits in it for pages that only threads of this process can
/// send. It cannot be killed, and it keeps the connection.
#[test]
fn a_third_signal_ends_a_process_that_waits_for_pages_of_the_kernel() {
    if !kernel_tests_enabled("a_third_signal_ends_a_process_that_waits_for_pages_of_the_kernel") {
        return;
    }
    // The kernel sends the pages in requests of 1 MiB, which go to the device at once. Where the
    // process lives, its first thread has ended, and `undo` would not abort.
    let script = format!(
        "exec 7<>m2/file; head -c 4M /dev/urandom >&7
         kill -STOP $O; sync -d m2/file & sleep 1
         {ALL_SIGNALS} | tee lives
         if grep -qs lives lives; then echo 1 >connections/$C/abort; fi"
    );
    let output = run_on_device_that_can_hang(EMPTY, "commit=3600,writeback", &script);
    assert_eq!(output, ALL_LOGGED);
}

/// The thread that ends the mount waits for a reply of its own process.
#[test]
fn a_process_that_waits_for_its_own_unmount_can_be_killed() {
    if !kernel_tests_enabled("a_process_that_waits_for_its_own_unmount_can_be_killed") {
        return;
    }
    let script = "head -c 4M /dev/urandom >m2/file; kill -STOP $O
         kill -TERM $D; logged \"still waits for a device\"
         kill -9 $D; ended $D && echo ended || echo it lives";
    let output = run_on_device_that_can_hang(EMPTY, "commit=3600,blkdev", script);
    assert_eq!(output, ": mounted (\nstill waits for a device\nended\n");
}

#[test]
fn a_third_signal_does_not_wait_for_a_request_of_another_process() {
    if !kernel_tests_enabled("a_third_signal_does_not_wait_for_a_request_of_another_process") {
        return;
    }
    // The requested subvolume is looked up on the device. The thread of the request is blocked once
    // it stays at one place of the kernel.
    let script = format!(
        "kill -STOP $O
         $B mount -o subvol=deep/a/sub $L m3 2>ignored & F=$!
         steps=0
         for n in $(seq 400); do
             T=$(grep -ls butternut-req /proc/$D/task/*/comm) || steps=0
             steps=$((steps + 1)); grep -qs '^0$' ${{T%/comm}}/wchan && steps=0
             [ $steps = 20 ] && break; sleep .05
         done
         echo ${{T:+looked up}}
         {ALL_SIGNALS}"
    );
    let output = run_on_device_that_can_hang(SUBVOLUMES, "subvolid=5", &script);
    assert_eq!(output, ALL_LOGGED.replacen('\n', "\nlooked up\n", 1));
}

#[test]
fn a_lazy_umount_detaches_a_mount_whose_device_does_not_respond() {
    if !kernel_tests_enabled("a_lazy_umount_detaches_a_mount_whose_device_does_not_respond") {
        return;
    }
    let script = "
         head -c 4M /dev/urandom >m2/file
         kill -STOP $O
         $B umount --lazy m2 & U=$!
         for n in $(seq 400); do
             grep -q \" $PWD/m2 \" /proc/self/mountinfo || break; sleep .05
         done
         grep -o \" $PWD/m2 \" /proc/self/mountinfo || echo detached
         kill -CONT $O; wait $U; echo $?; ended $D && echo ended
         $B cat $L /file | wc -c";
    let output = run_on_device_that_can_hang(EMPTY, "commit=3600", script);
    assert_eq!(output, ": mounted (\ndetached\n0\nended\n4194304\n");
}

#[test]
fn commands_report_that_they_wait_for_a_device() {
    if !kernel_tests_enabled("commands_report_that_they_wait_for_a_device") {
        return;
    }
    let note = "m2: note: still waits for a device";
    for words in ["filesystem sync m2", "mount -o remount,ro m2", "umount m2"] {
        let script = format!(
            "echo text >m2/file
             kill -STOP $O
             $B {words} 2>said & U=$!
             for n in $(seq 600); do [ -s said ] && break; sleep .05; done
             grep -o '{note}' said || cat said
             kill -CONT $O; wait $U; echo $?"
        );
        let output = run_on_device_that_can_hang(EMPTY, "commit=3600", &script);
        assert_eq!(output, format!(": mounted (\n{note}\n0\n"), "{words}");
    }
}

#[test]
fn a_process_that_resolves_a_path_in_its_own_mount_can_be_killed() {
    if !kernel_tests_enabled("a_process_that_resolves_a_path_in_its_own_mount_can_be_killed") {
        return;
    }
    // The library has cached the subvolume, so only the path lookup in the mount is blocked.
    let script = "
         $B mount -o subvol=s1 $L m3; umount m3
         kill -STOP $O
         $B mount -o subvol=s17 $L m3 2>ignored & F=$!
         for n in $(seq 400); do
             grep -qs request_wait_answer /proc/$D/task/*/wchan && break; sleep .05
         done
         grep -hs request_wait_answer /proc/$D/task/*/wchan || true
         kill -9 $D
         ended $D && echo ended || echo it lives";
    let output = run_on_device_that_can_hang(SUBVOLUMES, "subvolid=5", script);
    assert_eq!(output, ": mounted (\nrequest_wait_answer\nended\n");
}

#[test]
fn a_signal_ends_a_mount_that_is_still_opening_its_volume() {
    if !kernel_tests_enabled("a_signal_ends_a_mount_that_is_still_opening_its_volume") {
        return;
    }
    // The script waits until the process has blocked SIGTERM and waits for the file of its volume.
    let output = run_in_namespace(
        "truncate -s 1G outer.img; $B mkfs -q outer.img; $B mount outer.img m1; O=$(daemon); D=
         truncate -s 256M m1/inner.img; $B mkfs -q m1/inner.img; stat m1/inner.img >ignored
         undo() { kill -CONT $O; kill -9 $D; umount -l m2; $B umount -q m1; }
         trap \"undo 2>ignored || true\" EXIT
         kill -STOP $O
         $B mount --foreground m1/inner.img m2 2>log & D=$!
         for n in $(seq 800); do
             grep -q '^SigBlk:.*[4-7c-f]...$' /proc/$D/status &&
                 grep -qs request_wait_answer /proc/$D/task/*/wchan && break
             sleep .05
         done
         grep -o '^SigBlk:' /proc/$D/status
         kill -TERM $D; (sleep 20; kill -9 $D) 2>ignored & K=$!
         wait $D && s=0 || s=$?; echo $s; kill $K
         grep -o 'm1/inner.img: is not mounted: a signal ended the command' log",
    );
    let want = "SigBlk:\n143\nm1/inner.img: is not mounted: a signal ended the command\n";
    assert_eq!(output, want);
}

/// Waits for the end of a process, and kills it after 30 s. Returns whether it ended by itself.
fn ends(child: &mut Child) -> bool {
    let began = Instant::now();
    while began.elapsed() < Duration::from_secs(30) {
        if child.try_wait().unwrap().is_some() {
            return true;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    child.kill().unwrap();
    child.wait().unwrap();
    false
}

/// Fills a pipe, whose last page may be in part free.
pub(crate) fn fill(mut writer: &PipeWriter) {
    let has_space = || {
        let mut polled = [PollFd::new(writer, PollFlags::OUT)];
        poll(&mut polled, Some(&Timespec::default())).unwrap() > 0
    };
    while has_space() {
        writer.write_all(&[b'x'; 4096]).unwrap();
    }
}

pub(crate) fn wait_until(is_so: impl Fn() -> bool) {
    let deadline = Instant::now() + Duration::from_mins(1);
    while !is_so() {
        assert!(Instant::now() < deadline, "timeout");
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn a_mount_whose_stderr_is_full_from_the_start_ends_by_a_signal_and_by_umount() {
    if !kernel_tests_enabled(
        "a_mount_whose_stderr_is_full_from_the_start_ends_by_a_signal_and_by_umount",
    ) {
        return;
    }
    for is_signal in [true, false] {
        let (scratch, mount_point) = (tempfile::tempdir().unwrap(), MountPoint::new());
        let image = own_copy(&scratch);
        let (reader, writer) = pipe().unwrap();
        fill(&writer);
        let words = ["mount", "--foreground", image.to_str().unwrap(), mount_point.name()];
        let mut child = command().args(words).stderr(writer).spawn().unwrap();
        wait_until(|| mount_point.is_mounted());
        std::fs::write(mount_point.path().join("file"), b"text").unwrap();
        let mut umount = None;
        if is_signal {
            shell(&format!("kill -TERM {}", child.id()));
        } else {
            umount = Some(command().args(["umount", mount_point.name()]).spawn().unwrap());
        }
        assert!(ends(&mut child), "the process waits for the reader");
        if let Some(mut umount) = umount {
            assert!(umount.wait().unwrap().success());
        }
        drop(reader);
        let read = command().args(["cat", image.to_str().unwrap(), "/file"]).output().unwrap();
        assert_eq!(read.stdout, b"text");
    }
}

/// The daemon reports the missing device on the stderr of the command.
#[test]
fn a_daemon_does_not_wait_for_the_reader_of_its_notes() {
    if !kernel_tests_enabled("a_daemon_does_not_wait_for_the_reader_of_its_notes") {
        return;
    }
    let (scratch, mount_point) = (tempfile::tempdir().unwrap(), MountPoint::new());
    let one = scratch.path().join("one");
    let place = scratch.path().display();
    shell(&format!(
        "cd {place}; truncate -s 300M one two; mkfs.btrfs -q -d raid1 -m raid1 one two"
    ));
    let (reader, writer) = pipe().unwrap();
    fill(&writer);
    let words = ["mount", "--degraded", "-o", "ro", one.to_str().unwrap(), mount_point.name()];
    let mut child = command().args(words).stderr(writer).spawn().unwrap();
    assert!(ends(&mut child), "the command waits for the reader");
    assert!(mount_point.is_mounted());
    drop(reader);
    butternut(&["umount", mount_point.name()]).ok();
}

#[test]
fn no_signal_waits_for_the_reader_of_its_messages() {
    if !kernel_tests_enabled("no_signal_waits_for_the_reader_of_its_messages") {
        return;
    }
    let (scratch, mount_point) = (tempfile::tempdir().unwrap(), MountPoint::new());
    let image = own_copy(&scratch);
    let (reader, writer) = pipe().unwrap();
    let words = ["mount", "--foreground", image.to_str().unwrap(), mount_point.name()];
    let mut child = command().args(words).stderr(writer.try_clone().unwrap()).spawn().unwrap();
    let mut reader = BufReader::new(reader);
    let mut message = String::new();
    reader.read_line(&mut message).unwrap();
    assert!(message.contains(": mounted ("), "{message}");
    fill(&writer);
    let mut file = std::fs::File::create(mount_point.path().join("file")).unwrap();
    file.write_all(b"text").unwrap();
    let signal = || shell(&format!("kill -TERM {}", child.id()));
    signal();
    while mount_point.is_mounted() {
        std::thread::sleep(Duration::from_millis(20));
    }
    signal();
    assert!(ends(&mut child), "the process waits for the reader");
    drop((file, reader));
    assert!(holders(&image).is_empty());
    let read = command().args(["cat", image.to_str().unwrap(), "/file"]).output().unwrap();
    assert_eq!(read.stdout, b"text");
}
