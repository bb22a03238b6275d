//! How mounts end: by signals, by errors, with what was written; and what they take along.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStderr, Stdio};

use super::command::{WITHOUT_OTHERS, butternut, command, shell};
use super::image::{kernel_is_here, plain};
use super::mount::{Place, holders, own_copy};

/// A mount whose process stays in the foreground; what it says comes line by line.
fn served(image: &Path, place: &Place, options: &str) -> (Child, BufReader<ChildStderr>) {
    let words = ["mount", "--foreground", "-o", options, image.to_str().unwrap(), place.name()];
    let mut child = command().args(words).stderr(Stdio::piped()).spawn().unwrap();
    let mut said = BufReader::new(child.stderr.take().unwrap());
    assert!(line(&mut said).contains(": serves ("));
    (child, said)
}

fn line(said: &mut BufReader<ChildStderr>) -> String {
    let mut line = String::new();
    said.read_line(&mut line).unwrap();
    line
}

fn terminate(child: &Child) {
    shell(&format!("kill -TERM {}", child.id()));
}

fn checked(image: &Path) {
    shell(&format!("btrfs check --check-data-csum {} >/dev/null 2>&1", image.display()));
}

#[test]
fn a_second_signal_ends_a_mount_in_use_and_loses_nothing() {
    if !kernel_is_here("a_second_signal_ends_a_mount_in_use_and_loses_nothing") {
        return;
    }
    let (scratch, place) = (tempfile::tempdir().unwrap(), Place::new());
    let image = own_copy(&scratch);
    let (mut child, mut said) = served(&image, &place, "commit=3600");
    let file = fs::File::create(place.path().join("new")).unwrap();
    let first = vec![1; 1 << 20];
    file.write_all_at(&first, 0).unwrap();
    fs::write(place.path().join("closed"), "closed\n").unwrap();
    terminate(&child);
    let told = line(&mut said);
    let me = format!("still in use: process {} (", std::process::id());
    assert!(told.contains(&me) && told.contains("a second signal ends it"), "{told}");
    assert!(!place.is_mounted());
    // What is open is usable until then, and what was acknowledged is kept.
    let second = vec![2; 1 << 20];
    file.write_all_at(&second, 1 << 20).unwrap();
    terminate(&child);
    let told = line(&mut said);
    assert!(told.contains("second signal: commits and ends"), "{told}");
    assert!(child.wait().unwrap().success());
    assert!(file.sync_all().is_err(), "the file is dead");
    drop(file);
    assert_eq!(holders(&image), Vec::<PathBuf>::new());
    let path = image.to_str().unwrap();
    let read = command().args(["cat", path, "/new"]).output().unwrap().stdout;
    assert!(read == [first, second].concat(), "{} bytes", read.len());
    assert_eq!(butternut(&["cat", path, "/closed"]).ok(), "closed\n");
    checked(&image);
}

#[test]
fn a_signal_ends_a_mount_that_is_bound_to_another_directory() {
    if !kernel_is_here("a_signal_ends_a_mount_that_is_bound_to_another_directory") {
        return;
    }
    let (place, bound) = (Place::new(), Place::new());
    let (mut child, _said) = served(&plain().0, &place, "ro");
    shell(&format!("mount --bind {}/docs {}", place.name(), bound.name()));
    terminate(&child);
    assert!(child.wait().unwrap().success());
    assert!(!place.is_mounted() && !bound.is_mounted());
}

/// Runs a script in a mount namespace of its own, with an image of its own; what it printed.
fn in_a_namespace(script: &str) -> String {
    let scratch = tempfile::tempdir().unwrap();
    own_copy(&scratch);
    let script = format!(
        "{WITHOUT_OTHERS} cd {}; B={}; mkdir m1 m2 data
         daemon() {{ getfattr --only-values -n butternut.daemon m1 2>/dev/null; }}
         ended() {{
             for n in $(seq 200); do [ -d /proc/$1 ] || return 0; sleep .05; done; return 1
         }}
         {script}",
        scratch.path().display(),
        env!("CARGO_BIN_EXE_butternut"),
    );
    let script = script.replace('\'', "'\\''");
    shell(&format!("unshare --mount --propagation private sh -ec '{script}'"))
}

#[test]
fn a_signal_unmounts_the_volume_wherever_it_is_and_nothing_else() {
    if !kernel_is_here("a_signal_unmounts_the_volume_wherever_it_is_and_nothing_else") {
        return;
    }
    // Another filesystem is where the volume was mounted first; it is idle, busy, or was moved.
    let put = [
        "mount --bind data m1",
        "mount --bind data m1; exec 7<m1/file",
        "mkdir x; mount -t tmpfs other x; echo kept >x/file; mount --move x m1",
    ];
    for (n, put) in put.into_iter().enumerate() {
        let said = in_a_namespace(&format!(
            "mount -t tmpfs user data; echo kept >data/file
             $B mount own.img m1; $B mount own.img m2; D=$(daemon)
             $B umount -q m1; {put}
             kill -TERM $D; ended $D || echo it lives
             cat m1/file data/file
             if grep own.img /proc/self/mounts; then echo still mounted; fi"
        ));
        assert_eq!(said, "kept\nkept\n", "{n}");
    }
    // A place that was moved, or whose first place is bare.
    for change in ["mount --move m1 m2", "$B mount own.img m2; $B umount -q m1"] {
        let said = in_a_namespace(&format!(
            "$B mount own.img m1; D=$(daemon); {change}
             kill -TERM $D; ended $D || echo it lives
             if grep own.img /proc/self/mounts; then echo still mounted; fi"
        ));
        assert_eq!(said, "", "{change}");
    }
}

#[test]
fn a_signal_leaves_places_that_carry_other_filesystems() {
    if !kernel_is_here("a_signal_leaves_places_that_carry_other_filesystems") {
        return;
    }
    for over in ["m1/docs", "m1"] {
        let said = in_a_namespace(&format!(
            "$B mount --foreground own.img m1 2>said & D=$!
             for n in $(seq 200); do grep -q serves said && break; sleep .05; done
             $B mount own.img m2
             mount -t tmpfs user {over}; echo kept >{over}/file
             kill -TERM $D
             for n in $(seq 200); do grep -q second said && break; sleep .05; done
             cat {over}/file; grep -o \"m1: stays mounted: there is a mount on .*{over} (end\" said
             grep -q /m2 /proc/self/mounts && echo m2 is left
             kill -TERM $D; ended $D || echo it lives
             cat {over}/file"
        ));
        assert!(said.contains("stays mounted: there is a mount on "), "{over}: {said}");
        assert!(!said.contains("left") && !said.contains("lives"), "{over}: {said}");
        assert!(said.starts_with("kept\n") && said.matches("kept\n").count() <= 2, "{said}");
    }
}

#[test]
fn a_signal_tells_of_mounts_in_other_namespaces_and_a_second_one_ends_them() {
    if !kernel_is_here("a_signal_tells_of_mounts_in_other_namespaces_and_a_second_one_ends_them") {
        return;
    }
    let said = in_a_namespace(
        "$B mount --foreground own.img m1 2>said & D=$!
         for n in $(seq 200); do grep -q serves said && break; sleep .05; done
         unshare --mount --propagation private sleep 1000 & S=$!
         trap \"kill $S\" EXIT
         while [ $(readlink /proc/$S/ns/mnt) = $(readlink /proc/self/ns/mnt) ]; do sleep .05; done
         $B umount m1 2>&1
         kill -TERM $D
         for n in $(seq 200); do grep -q second said && break; sleep .05; done
         kill -TERM $D; ended $D || echo it lives
         tail -n +2 said",
    );
    let lines: Vec<&str> = said.lines().collect();
    assert_eq!(lines.len(), 3, "{said}");
    let note = "m1: note: the volume is still mounted in another mount namespace";
    assert!(lines[0].ends_with(note), "{said}");
    let why = "m1: is not mounted here, but still in use: it is mounted on ";
    assert!(lines[1].contains(why), "{said}");
    assert!(lines[1].ends_with("in another mount namespace (a second signal ends it)"), "{said}");
    assert!(lines[2].contains("second signal: commits and ends"), "{said}");
}

#[test]
fn an_error_that_close_has_told_is_not_told_by_umount_again() {
    if !kernel_is_here("an_error_that_close_has_told_is_not_told_by_umount_again") {
        return;
    }
    let (scratch, place) = (tempfile::tempdir().unwrap(), Place::new());
    let image = own_copy(&scratch);
    butternut(&["mount", image.to_str().unwrap(), place.name()]).ok();
    // The error comes from a write, or from the close.
    let said = shell(&format!(
        "if head -c 300M /dev/zero > {}/big; then echo fits; fi 2>/dev/null",
        place.name()
    ));
    assert_eq!(said, "", "the image has 200 MiB");
    butternut(&["umount", place.name()]).ok();
    assert_eq!(holders(&image), Vec::<PathBuf>::new());
    checked(&image);
}

#[test]
fn a_daemon_has_no_descriptor_of_its_callers() {
    if !kernel_is_here("a_daemon_has_no_descriptor_of_its_callers") {
        return;
    }
    let (scratch, place) = (tempfile::tempdir().unwrap(), Place::new());
    let (lock, image) = (scratch.path().join("lock"), plain().0.display());
    let program = env!("CARGO_BIN_EXE_butternut");
    let said = shell(&format!(
        "exec 9> {lock}; flock 9
         {program} mount -o ro {image} {place}
         exec 9>&-
         flock --nonblock {lock} echo free",
        lock = lock.display(),
        place = place.name(),
    ));
    assert_eq!(said, "free\n");
    butternut(&["umount", place.name()]).ok();
}

#[test]
fn a_daemon_that_fails_after_the_mount_leaves_no_dead_mount() {
    if !kernel_is_here("a_daemon_that_fails_after_the_mount_leaves_no_dead_mount") {
        return;
    }
    let place = Place::new();
    let words = ["mount", "--ready", "-o", "ro", plain().0.to_str().unwrap(), place.name()];
    // It cannot say that it serves.
    let full = fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
    let ran = command().args(words).stdout(full).output().unwrap();
    let said = String::from_utf8_lossy(&ran.stderr);
    assert!(said.contains("the daemon's parent: no space left"), "{said}");
    assert!(!ran.status.success() && !place.is_mounted());
}

#[test]
fn a_remount_changes_what_the_kernel_and_the_switches_allow() {
    if !kernel_is_here("a_remount_changes_what_the_kernel_and_the_switches_allow") {
        return;
    }
    let (scratch, place) = (tempfile::tempdir().unwrap(), Place::new());
    let image = own_copy(&scratch);
    let path = image.to_str().unwrap();
    butternut(&["mount", "-o", "threads=100", path, place.name()]).ok();
    let options = || shell(&format!("findmnt -no OPTIONS {}", place.name()));
    let remount = |words: &str| butternut(&["mount", "-o", words, place.name()]);
    assert!(options().starts_with("rw,nosuid,nodev"), "{}", options());
    let mut file = fs::File::create(place.path().join("new")).unwrap();
    let said = remount("remount,ro").failure();
    assert!(said.contains("(close the files that are open for writing)"), "{said}");
    file.write_all(b"text").unwrap();
    drop(file);
    remount("remount,ro,nosec=off").ok();
    // It is committed, as in the kernel's filesystems.
    let cut = scratch.path().join("cut.img");
    fs::copy(&image, &cut).unwrap();
    assert_eq!(butternut(&["cat", cut.to_str().unwrap(), "/new"]).ok(), "text");
    assert!(options().starts_with("ro,nosuid,nodev"), "{}", options());
    assert_eq!(fs::write(place.path().join("more"), "").unwrap_err().raw_os_error(), Some(30));
    assert_eq!(butternut(&["ctl", place.name(), "nosec"]).ok(), "off\n");
    // As mount(8) calls its helper, with the words of the mount table.
    let link = scratch.path().join("mount.fuse.butternut");
    std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_butternut"), &link).unwrap();
    shell(&format!(
        "{} {path} {} -o remount,rw,dev,noexec,threads=100,user_id=0,max_read=1048576,subvol=/",
        link.display(),
        place.name()
    ));
    assert!(options().starts_with("rw,nosuid,noexec,noatime"), "{}", options());
    fs::write(place.path().join("more"), "").unwrap();
    for (words, why) in [
        ("remount,uncached", "option uncached: the volume is mounted with parallel_direct ("),
        ("remount,ro,compress", "option compress: the volume is mounted with compress=no ("),
        ("remount,page_cache=1G", "option page_cache=1G: the volume is mounted with page_cache="),
    ] {
        let said = remount(words).failure();
        assert!(said.contains(why), "{said}");
    }
    assert!(options().starts_with("rw,nosuid,noexec,noatime"), "{}", options());
    remount("remount,noexec,parallel_direct,commit=30,threads=100").ok();
    let said = remount("remount,frob").failure();
    assert!(said.contains("option frob: is not known"), "{said}");
    butternut(&["umount", place.name()]).ok();
    butternut(&["mount", "-o", "ro", path, place.name()]).ok();
    let said = remount("remount,rw").failure();
    assert!(said.contains("the volume is open for reading only"), "{said}");
    butternut(&["umount", place.name()]).ok();
    let said = remount("remount,rw").failure();
    assert!(said.contains("is not mounted by butternut"), "{said}");
}
