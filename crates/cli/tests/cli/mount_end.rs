//! How mounts end: by signals and errors, with all written data, and without other mounts. And how
//! they are remounted.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::FileExt;
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStderr, Stdio};

use super::command::{butternut, command, in_mount_namespace, shell};
use super::image::{kernel_tests_enabled, plain};
use super::mount::{MountPoint, holders, own_copy};

/// Mounts in the foreground. Returns the process and its messages, of which the first was read.
fn mount_foreground(
    image: &Path,
    mount_point: &MountPoint,
    options: &str,
) -> (Child, BufReader<ChildStderr>) {
    let words =
        ["mount", "--foreground", "-o", options, image.to_str().unwrap(), mount_point.name()];
    let mut child = command().args(words).stderr(Stdio::piped()).spawn().unwrap();
    let mut stderr = BufReader::new(child.stderr.take().unwrap());
    assert!(line(&mut stderr).contains(": mounted ("));
    (child, stderr)
}

fn line(stderr: &mut BufReader<ChildStderr>) -> String {
    let mut line = String::new();
    stderr.read_line(&mut line).unwrap();
    line
}

fn terminate(child: &Child) {
    shell(&format!("kill -TERM {}", child.id()));
}

fn checked(image: &Path) {
    shell(&format!("btrfs check --check-data-csum {} >/dev/null 2>&1", image.display()));
}

#[test]
fn a_second_signal_commits_and_ends_a_busy_mount() {
    if !kernel_tests_enabled("a_second_signal_commits_and_ends_a_busy_mount") {
        return;
    }
    let (scratch, mount_point) = (tempfile::tempdir().unwrap(), MountPoint::new());
    let image = own_copy(&scratch);
    let (mut child, mut output) = mount_foreground(&image, &mount_point, "commit=3600");
    let file = fs::File::create(mount_point.path().join("new")).unwrap();
    let first = vec![1; 1 << 20];
    file.write_all_at(&first, 0).unwrap();
    fs::write(mount_point.path().join("closed"), "closed\n").unwrap();
    terminate(&child);
    let message = line(&mut output);
    let me = format!("still in use: process {} (", std::process::id());
    assert!(message.contains(&me) && message.contains("a second signal ends it"), "{message}");
    assert!(!mount_point.is_mounted());
    // Open files stay usable until then, and acknowledged writes are kept.
    let second = vec![2; 1 << 20];
    file.write_all_at(&second, 1 << 20).unwrap();
    terminate(&child);
    let message = line(&mut output);
    assert!(message.contains("second signal: committing and exiting"), "{message}");
    assert!(child.wait().unwrap().success());
    assert!(file.sync_all().is_err(), "the connection has ended");
    drop(file);
    assert_eq!(holders(&image), Vec::<PathBuf>::new());
    let path = image.to_str().unwrap();
    let read = command().args(["cat", path, "/new"]).output().unwrap().stdout;
    assert!(read == [first, second].concat(), "{} bytes", read.len());
    assert_eq!(butternut(&["cat", path, "/closed"]).ok(), "closed\n");
    checked(&image);
}

#[test]
fn a_signal_unmounts_bind_mounts_too() {
    if !kernel_tests_enabled("a_signal_unmounts_bind_mounts_too") {
        return;
    }
    let (mount_point, bound) = (MountPoint::new(), MountPoint::new());
    let (mut child, _said) = mount_foreground(&plain().0, &mount_point, "ro");
    shell(&format!("mount --bind {}/docs {}", mount_point.name(), bound.name()));
    terminate(&child);
    assert!(child.wait().unwrap().success());
    assert!(!mount_point.is_mounted() && !bound.is_mounted());
}

/// Runs a script in its own mount namespace, with its own image, and returns its output.
pub(crate) fn run_in_namespace(script: &str) -> String {
    let scratch = tempfile::tempdir().unwrap();
    own_copy(&scratch);
    let script = format!(
        "cd {}; B={}; mkdir m1 m2 data
         daemon() {{ getfattr --only-values -n butternut.daemon m1 2>/dev/null; }}
         ended() {{
             for n in $(seq 1200); do [ -d /proc/$1 ] || return 0; sleep .05; done; return 1
         }}
         {script}",
        scratch.path().display(),
        env!("CARGO_BIN_EXE_butternut"),
    );
    shell(&in_mount_namespace(&script))
}

#[test]
fn a_signal_unmounts_all_mounts_of_the_volume_and_no_others() {
    if !kernel_tests_enabled("a_signal_unmounts_all_mounts_of_the_volume_and_no_others") {
        return;
    }
    // The first mount point has another filesystem by now, which is idle, busy, or was moved there.
    let put = [
        "mount --bind data m1",
        "mount --bind data m1; exec 7<m1/file",
        "mkdir x; mount -t tmpfs other x; echo kept >x/file; mount --move x m1",
    ];
    for (n, put) in put.into_iter().enumerate() {
        let output = run_in_namespace(&format!(
            "mount -t tmpfs user data; echo kept >data/file
             $B mount own.img m1; $B mount own.img m2; D=$(daemon)
             $B umount -q m1; {put}
             kill -TERM $D; ended $D || echo it lives
             cat m1/file data/file
             if grep own.img /proc/self/mounts; then echo still mounted; fi"
        ));
        assert_eq!(output, "kept\nkept\n", "{n}");
    }
    // A mount that was moved, or whose first mount point has no mount any more.
    for change in ["mount --move m1 m2", "$B mount own.img m2; $B umount -q m1"] {
        let output = run_in_namespace(&format!(
            "$B mount own.img m1; D=$(daemon); {change}
             kill -TERM $D; ended $D || echo it lives
             if grep own.img /proc/self/mounts; then echo still mounted; fi"
        ));
        assert_eq!(output, "", "{change}");
    }
}

#[test]
fn a_signal_keeps_mounts_under_other_filesystems() {
    if !kernel_tests_enabled("a_signal_keeps_mounts_under_other_filesystems") {
        return;
    }
    for over in ["m1/docs", "m1"] {
        let output = run_in_namespace(&format!(
            "$B mount --foreground own.img m1 2>log & D=$!
             for n in $(seq 200); do grep -qF ': mounted (' log && break; sleep .05; done
             $B mount own.img m2
             mount -t tmpfs user {over}; echo kept >{over}/file
             kill -TERM $D
             for n in $(seq 200); do grep -q second log && break; sleep .05; done
             cat {over}/file
             grep -o \"m1: stays mounted: there is a mount on .*{over} (unmount\" log
             grep -q /m2 /proc/self/mounts && echo m2 is left
             kill -TERM $D; ended $D || echo it lives
             cat {over}/file"
        ));
        assert!(output.contains("stays mounted: there is a mount on "), "{over}: {output}");
        assert!(!output.contains("left") && !output.contains("lives"), "{over}: {output}");
        assert!(output.starts_with("kept\n") && output.matches("kept\n").count() <= 2, "{output}");
    }
}

#[test]
fn a_signal_reports_mounts_in_other_namespaces_and_a_second_one_ends_them() {
    if !kernel_tests_enabled(
        "a_signal_reports_mounts_in_other_namespaces_and_a_second_one_ends_them",
    ) {
        return;
    }
    let output = run_in_namespace(
        "$B mount --foreground own.img m1 2>log & D=$!
         for n in $(seq 200); do grep -qF ': mounted (' log && break; sleep .05; done
         unshare --mount --propagation private sleep 1000 & S=$!
         trap \"kill $S\" EXIT
         while [ $(readlink /proc/$S/ns/mnt) = $(readlink /proc/self/ns/mnt) ]; do sleep .05; done
         $B umount m1 2>&1
         kill -TERM $D
         for n in $(seq 200); do grep -q second log && break; sleep .05; done
         kill -TERM $D; ended $D || echo it lives
         tail -n +2 log",
    );
    let lines: Vec<&str> = output.lines().collect();
    assert_eq!(lines.len(), 3, "{output}");
    let note = "m1: note: the volume is still mounted in another mount namespace";
    assert!(lines[0].ends_with(note), "{output}");
    let why = "m1: is not mounted here, but still in use: it is mounted on ";
    assert!(lines[1].contains(why), "{output}");
    assert!(lines[1].ends_with("in another mount namespace (a second signal ends it)"), "{output}");
    assert!(lines[2].contains("second signal: committing and exiting"), "{output}");
}

/// A sandbox begins with a copy of each mount, and detaches what it does not want.
#[test]
fn umount_waits_for_a_namespace_that_is_being_set_up() {
    if !kernel_tests_enabled("umount_waits_for_a_namespace_that_is_being_set_up") {
        return;
    }
    // The copy is detached as soon as the mount itself is gone.
    let output = run_in_namespace(
        "$B mount own.img m1
         unshare --mount --propagation private sh -c \
             'while grep -q \"$PWD/m1 \" /proc/$1/mountinfo; do sleep .01; done
              umount m1; exec sleep 1000' sh $$ & S=$!
         trap \"kill $S\" EXIT
         while [ $(readlink /proc/$S/ns/mnt) = $(readlink /proc/self/ns/mnt) ]; do sleep .05; done
         $B umount m1 2>&1
         $B check own.img >/dev/null && echo released",
    );
    assert_eq!(output, "released\n");
}

/// The kernel ends a process that writes past its limit, unless it ignores the signal.
#[test]
fn a_limit_of_file_sizes_fails_writes_and_not_the_mount() {
    if !kernel_tests_enabled("a_limit_of_file_sizes_fails_writes_and_not_the_mount") {
        return;
    }
    // 32 MiB in blocks of 512 bytes: before the second copy of the superblock.
    let output = run_in_namespace(
        "(ulimit -f 65536; exec $B mount own.img m1)
         D=$(daemon)
         touch m1/new
         $B filesystem sync m1 2>/dev/null || true
         $B umount m1 2>/dev/null || echo reported
         ended $D || echo it lives
         $B ls own.img | grep -x new || true",
    );
    assert!(["new\n", "reported\n", "reported\nnew\n"].contains(&&*output), "{output}");
}

/// umount(8) without its helper waits for nothing, so only syslog can tell.
#[test]
fn a_failed_last_commit_is_reported_to_syslog() {
    if !kernel_tests_enabled("a_failed_last_commit_is_reported_to_syslog") {
        return;
    }
    let scratch = tempfile::tempdir().unwrap();
    let log = scratch.path().join("log");
    let socket = UnixDatagram::bind(&log).unwrap();
    socket.set_nonblocking(true).unwrap();
    let output = run_in_namespace(&format!(
        "mkdir dev; mount -t tmpfs dev dev
         for f in null zero urandom fuse; do touch dev/$f; mount --bind /dev/$f dev/$f; done
         touch dev/log; mount --bind {} dev/log; mount --move dev /dev
         $B mount -o commit=3600 own.img m1
         D=$(daemon)
         echo lost >m1/new
         truncate -s 64M own.img
         umount -i m1
         ended $D || echo it lives",
        log.display()
    ));
    assert_eq!(output, "");
    let mut bytes = [0; 4096];
    let mut told = String::new();
    while let Ok(count) = socket.recv(&mut bytes) {
        told += &String::from_utf8_lossy(&bytes[..count]);
        told.push('\n');
    }
    let is_last = |line: &str| line.starts_with("<26>butternut[") && line.contains("m1: the last");
    assert!(told.lines().any(is_last), "{told}");
}

/// In another process namespace, the process of the mount has another id, or none that is visible,
/// and `/proc` may show other processes under the ids of this one.
#[test]
fn another_process_namespace_commits_and_reads_counters() {
    const NAME: &str = "another_process_namespace_commits_and_reads_counters";
    if !kernel_tests_enabled(NAME) {
        return;
    }
    for proc in ["true", "mount -t proc proc /proc"] {
        let output = run_in_namespace(&format!(
            "$B mount -o commit=3600 own.img m1
             echo kept >m1/new
             D=$(daemon)
             unshare --pid --fork sh -ec '{proc}; $0 stats m1 | head -1; $0 umount m1 2>&1' $B ||
                 echo failed
             umount /proc 2>/dev/null || true
             ended $D || echo it lives
             $B cat own.img /new"
        ));
        let lines: Vec<&str> = output.lines().collect();
        let note = "m1: note: not waiting for its process, which has ended or is not visible";
        assert!(lines.len() == 3 && lines[1].ends_with(note) && lines[2] == "kept", "{output}");
    }
}

#[test]
fn a_hang_up_that_is_ignored_from_the_start_does_not_end_a_mount() {
    if !kernel_tests_enabled("a_hang_up_that_is_ignored_from_the_start_does_not_end_a_mount") {
        return;
    }
    let output = run_in_namespace(
        "trap '' HUP
         $B mount --foreground own.img m1 2>log & D=$!
         for n in $(seq 200); do grep -qF ': mounted (' log && break; sleep .05; done
         exec 7<m1/hello.txt
         kill -HUP $D
         kill -TERM $D
         for n in $(seq 200); do grep -q 'still in use' log && break; sleep .05; done
         cat <&7
         exec 7<&-
         ended $D || echo it lives
         grep -o 'second signal:' log || true",
    );
    assert_eq!(output, "hello\n");
}

#[test]
fn umount_does_not_repeat_an_error_that_close_returned() {
    if !kernel_tests_enabled("umount_does_not_repeat_an_error_that_close_returned") {
        return;
    }
    let (scratch, mount_point) = (tempfile::tempdir().unwrap(), MountPoint::new());
    let image = own_copy(&scratch);
    butternut(&["mount", image.to_str().unwrap(), mount_point.name()]).ok();
    // The write or the close returns the error.
    let output = shell(&format!(
        "if head -c 300M /dev/zero > {}/big; then echo fits; fi 2>/dev/null",
        mount_point.name()
    ));
    assert_eq!(output, "", "the image has 200 MiB");
    butternut(&["umount", mount_point.name()]).ok();
    assert_eq!(holders(&image), Vec::<PathBuf>::new());
    checked(&image);
}

#[test]
fn the_daemon_inherits_no_descriptors() {
    if !kernel_tests_enabled("the_daemon_inherits_no_descriptors") {
        return;
    }
    let (scratch, mount_point) = (tempfile::tempdir().unwrap(), MountPoint::new());
    let (lock, image) = (scratch.path().join("lock"), plain().0.display());
    let program = env!("CARGO_BIN_EXE_butternut");
    let output = shell(&format!(
        "exec 9> {lock}; flock 9
         {program} mount -o ro {image} {mount_point}
         exec 9>&-
         flock --nonblock {lock} echo free",
        lock = lock.display(),
        mount_point = mount_point.name(),
    ));
    assert_eq!(output, "free\n");
    butternut(&["umount", mount_point.name()]).ok();
}

#[test]
fn a_daemon_that_fails_after_the_mount_leaves_no_dead_mount() {
    if !kernel_tests_enabled("a_daemon_that_fails_after_the_mount_leaves_no_dead_mount") {
        return;
    }
    let mount_point = MountPoint::new();
    let words = ["mount", "--ready", "-o", "ro", plain().0.to_str().unwrap(), mount_point.name()];
    // The daemon cannot report that it serves.
    let full = fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
    let ran = command().args(words).stdout(full).output().unwrap();
    let output = String::from_utf8_lossy(&ran.stderr);
    assert!(output.contains("the daemon's parent: no space left"), "{output}");
    assert!(!ran.status.success() && !mount_point.is_mounted());
}

/// As umount(8) does it.
#[test]
fn an_image_or_device_names_its_only_mount() {
    if !kernel_tests_enabled("an_image_or_device_names_its_only_mount") {
        return;
    }
    let scratch = tempfile::tempdir().unwrap();
    let image = own_copy(&scratch);
    let other = scratch.path().join("other.img");
    fs::copy(&image, &other).unwrap();
    let (path, other) = (image.to_str().unwrap(), other.to_str().unwrap());
    let points = [MountPoint::new(), MountPoint::new(), MountPoint::new()];
    let mount = |image: &str, at: usize| butternut(&["mount", image, points[at].name()]).ok();
    mount(path, 0);
    mount(other, 1);
    let ended: serde_json::Value =
        serde_json::from_str(&butternut(&["umount", "--json", path]).ok()).unwrap();
    assert_eq!(ended, serde_json::json!({ "mountpoint": points[0].name(), "released": true }));
    assert!(!points[0].is_mounted() && points[1].is_mounted());
    let refused = butternut(&["umount", path]).failure();
    assert!(refused.starts_with(&format!("butternut: {path}: is not mounted (")), "{refused}");
    mount(other, 2);
    let refused = butternut(&["umount", other]).failure();
    let (first, second) = (points[1].name(), points[2].name());
    assert!(
        refused.contains(": is mounted at several mount points (name one of them: "),
        "{refused}"
    );
    assert!(refused.contains(first) && refused.contains(second), "{refused}");
    butternut(&["umount", "-q", second]).ok();
    butternut(&["umount", other]).ok();
    butternut(&["mkdir", other, "new"]).ok();
}

#[test]
fn a_remount_changes_mount_flags_and_tunables() {
    if !kernel_tests_enabled("a_remount_changes_mount_flags_and_tunables") {
        return;
    }
    let (scratch, mount_point) = (tempfile::tempdir().unwrap(), MountPoint::new());
    let image = own_copy(&scratch);
    let path = image.to_str().unwrap();
    butternut(&["mount", "-o", "threads=100", path, mount_point.name()]).ok();
    let options = || shell(&format!("findmnt -no OPTIONS {}", mount_point.name()));
    let remount = |words: &str| butternut(&["mount", "-o", words, mount_point.name()]);
    assert!(options().starts_with("rw,nosuid,nodev"), "{}", options());
    let mut file = fs::File::create(mount_point.path().join("new")).unwrap();
    let message = remount("remount,ro").failure();
    assert!(message.contains("(close the files that are open for writing)"), "{message}");
    file.write_all(b"text").unwrap();
    drop(file);
    remount("remount,ro,nosec=off").ok();
    // A remount to `ro` commits, as in filesystems of the kernel.
    let cut = scratch.path().join("cut.img");
    fs::copy(&image, &cut).unwrap();
    assert_eq!(butternut(&["cat", cut.to_str().unwrap(), "/new"]).ok(), "text");
    assert!(options().starts_with("ro,nosuid,nodev"), "{}", options());
    assert_eq!(
        fs::write(mount_point.path().join("more"), "").unwrap_err().raw_os_error(),
        Some(30)
    );
    assert_eq!(butternut(&["ctl", mount_point.name(), "nosec"]).ok(), "off\n");
    // mount(8) calls its helper with the options in the mount table.
    let link = scratch.path().join("mount.fuse.butternut");
    std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_butternut"), &link).unwrap();
    shell(&format!(
        "{} {path} {} -o remount,rw,dev,noexec,threads=100,user_id=0,max_read=1048576,subvol=/",
        link.display(),
        mount_point.name()
    ));
    assert!(options().starts_with("rw,nosuid,noexec,noatime"), "{}", options());
    fs::write(mount_point.path().join("more"), "").unwrap();
    for (words, why) in [
        ("remount,uncached", "option uncached: the volume is mounted with parallel_direct ("),
        ("remount,ro,compress", "option compress: the volume is mounted with compress=no ("),
        ("remount,page_cache=1G", "option page_cache=1G: the volume is mounted with page_cache="),
    ] {
        let message = remount(words).failure();
        assert!(message.contains(why), "{message}");
    }
    assert!(options().starts_with("rw,nosuid,noexec,noatime"), "{}", options());
    remount("remount,noexec,parallel_direct,commit=30,threads=100").ok();
    let message = remount("remount,frob").failure();
    assert!(message.contains("option frob: is not known"), "{message}");
    butternut(&["umount", mount_point.name()]).ok();
    butternut(&["mount", "-o", "ro", path, mount_point.name()]).ok();
    let message = remount("remount,rw").failure();
    assert!(message.contains("the volume is open read-only"), "{message}");
    butternut(&["umount", mount_point.name()]).ok();
    let message = remount("remount,rw").failure();
    assert!(message.contains("is not mounted by butternut"), "{message}");
}

#[test]
fn signals_are_handled_while_a_device_does_not_answer() {
    if !kernel_tests_enabled("signals_are_handled_while_a_device_does_not_answer") {
        return;
    }
    // The device is a file of a mount whose process is stopped. Two signals that arrive before the
    // first is handled count as one, so each is repeated until it is handled.
    let output = run_in_namespace(
        "truncate -s 1G outer.img; $B mkfs -q outer.img; $B mount outer.img m1; O=$(daemon)
         truncate -s 256M m1/inner.img; $B mkfs -q m1/inner.img; sync -f m1/inner.img
         $B mount --foreground -o commit=3600 m1/inner.img m2 2>log & D=$!
         trap \"{ kill -9 $O $D; umount -l m2 m1; } 2>ignored || true\" EXIT
         for n in $(seq 200); do grep -qF ': mounted (' log && break; sleep .05; done
         exec 7>m2/file; echo x >&7; kill -STOP $O
         for which in second third; do
             for n in $(seq 200); do
                 kill -TERM $D 2>ignored || true; grep -q \"$which signal:\" log && break; sleep .05
             done
             grep -o \"$which signal:\" log
         done
         ended $D && echo ended || echo it lives",
    );
    assert_eq!(output, "second signal:\nthird signal:\nended\n");
}

#[test]
fn a_sync_of_a_mounted_directory_commits() {
    if !kernel_tests_enabled("a_sync_of_a_mounted_directory_commits") {
        return;
    }
    let (scratch, mount_point) = (tempfile::tempdir().unwrap(), MountPoint::new());
    let image = own_copy(&scratch);
    for options in ["commit=3600", "commit=3600,writeback"] {
        butternut(&["mount", "-o", options, image.to_str().unwrap(), mount_point.name()]).ok();
        let dir = mount_point.path().join(options);
        fs::create_dir(&dir).unwrap();
        let mut file = fs::File::create(dir.join("new")).unwrap();
        file.write_all(options.as_bytes()).unwrap();
        butternut(&["filesystem", "sync", dir.to_str().unwrap()]).ok();
        // As if the machine had stopped now.
        let cut = scratch.path().join("cut.img");
        fs::copy(&image, &cut).unwrap();
        let path = format!("/{options}/new");
        assert_eq!(butternut(&["cat", cut.to_str().unwrap(), &path]).ok(), options);
        drop(file);
        butternut(&["umount", mount_point.name()]).ok();
    }
}

/// Users mount through fusermount3 in the mount namespace of all, up to 1,000 filesystems, with a
/// mount point, a source and a type of 4 KiB each, of whose bytes the table shows four characters.
#[test]
fn a_long_mount_table_keeps_no_mount() {
    if !kernel_tests_enabled("a_long_mount_table_keeps_no_mount") {
        return;
    }
    // 4,096 mounts, each with a source that the table shows as 8,400 characters.
    let output = run_in_namespace(
        "$B mount own.img m1; D=$(daemon)
         trap \"{ kill -9 $D; umount -l m1; } 2>ignored || true\" EXIT
         mkdir t; mount -t tmpfs \"$(printf %2100s | tr ' ' '#')\" t
         for n in 1 2 3 4 5 6 7 8 9 10 11 12; do mkdir t/$n; mount --rbind t t/$n; done
         [ $(wc -c </proc/self/mountinfo) -gt 33554432 ] || echo too short
         $B subvolume create m1/new && echo created
         kill -TERM $D; ended $D && echo ended || echo it lives
         grep -c \" $PWD/m1 \" /proc/self/mountinfo || true",
    );
    assert_eq!(output, "created\nended\n0\n");
}

/// The kernel sends no FORGET for it after the abort. The directory must be deleted before the last
/// commit, and not after it.
#[test]
fn an_aborted_mount_leaves_no_removed_directory_that_a_process_was_in() {
    if !kernel_tests_enabled("an_aborted_mount_leaves_no_removed_directory_that_a_process_was_in") {
        return;
    }
    let output = run_in_namespace(
        r#"mkdir connections; mount -t fusectl none connections
        $B mount -o commit=3600 own.img m1; mkdir m1/dir; D=$(daemon); N=$(mountpoint -d m1)
        perl -e 'chdir("m1/dir") or die $!; rmdir("../dir") or die $!;
            open(my $file, ">", "../../removed") or die $!; sleep 1000' & P=$!
        trap '{ kill $P; } 2>ignored || true' EXIT
        for n in $(seq 400); do [ -e removed ] && break; sleep .05; done
        echo late >m1/late
        echo 1 >connections/$((${N%:*} << 20 | ${N#*:}))/abort
        ended $D && $B cat own.img /late
        $B inspect dump-tree own.img >tree; grep -c ORPHAN tree || true"#,
    );
    assert_eq!(
        output,
        "late
0
"
    );
}
