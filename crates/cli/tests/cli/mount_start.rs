//! How a mount begins: the command ends with the volume mounted, or with an error and the volume
//! not mounted, also if it is ended meanwhile.

use std::fs;
use std::io::Read;
use std::os::unix::process::ExitStatusExt;
use std::process::Stdio;

use super::command::{command, shell};
use super::image::{kernel_tests_enabled, plain};
use super::mount::{MountPoint, holders, own_copy};
use super::mount_end::run_in_namespace;
use super::mount_end_hung::{fill, wait_until};

/// Defines `$AS COMMAND...`, which runs a command as a user other than root, and `$U`, a program
/// that this user can run. The user owns the image and the directory u.
pub(crate) const OTHER_USER: &str = "
    cp $B butternut; U=$PWD/butternut; mkdir u; chmod 755 . butternut; chown 65534 own.img u
    AS='setpriv --reuid=65534 --regid=65534 --clear-groups'";

#[test]
fn a_second_signal_ends_a_mount_that_is_not_made() {
    if !kernel_tests_enabled("a_second_signal_ends_a_mount_that_is_not_made") {
        return;
    }
    // A fusermount3 that does not respond stands for everything that blocks the mount while the
    // volume is open.
    let output = run_in_namespace(&format!(
        "{OTHER_USER}
         mkdir bin; printf '#!/bin/sh\\necho $$ >u/helper\\nexec sleep 1000\\n' >bin/fusermount3
         chmod 755 bin bin/fusermount3
         $AS env PATH=$PWD/bin:$PATH $U mount --foreground own.img u 2>log & D=$!
         trap \"{{ kill -9 $D; kill -9 \\$(cat u/helper); }} 2>ignored || true\" EXIT
         for n in $(seq 400); do [ -s u/helper ] && break; sleep .05; done
         kill -TERM $D
         for n in $(seq 400); do grep -q 'still waits for the mount' log && break; sleep .05; done
         kill -TERM $D; ended $D && echo ended || echo it lives
         grep -o 'still waits for the mount\\|own.img: is not mounted' log"
    ));
    assert_eq!(output, "ended\nstill waits for the mount\nown.img: is not mounted\n");
}

/// The fusermount3 hangs before or after it has mounted, or after it has sent the descriptor, and
/// goes on when the command has ended.
#[test]
fn a_hung_fusermount3_ends_with_the_command_and_leaves_no_mount() {
    if !kernel_tests_enabled("a_hung_fusermount3_ends_with_the_command_and_leaves_no_mount") {
        return;
    }
    let hang = "echo $$ >helper; while [ ! -e go ]; do sleep .05; done";
    let before = format!("{hang}; exec $REAL \"$@\"");
    // Without a socket it cannot send the descriptor, as to a command that has ended.
    let after = format!("_FUSE_COMMFD=2 $REAL \"$@\"; {hang}");
    let sent = format!("$REAL \"$@\"; {hang}");
    for way in [before, after, sent] {
        let output = run_in_namespace(&format!(
            "{OTHER_USER}
             mknod fuse c 10 229; chmod 666 fuse; mount --bind fuse /dev/fuse
             mkdir bin; cat >bin/fusermount3 <<'END'
#!/bin/sh
REAL=/usr/bin/fusermount3
case $1 in -u*) exec $REAL \"$@\";; esac
{way}
END
             chmod 755 bin bin/fusermount3; touch helper; chmod 666 helper
             $AS env PATH=$PWD/bin:$PATH $U mount --foreground own.img u 2>log & D=$!
             trap \"{{ kill -9 $D; kill -9 \\$(cat helper); umount -l u; }} 2>ignored || true\" EXIT
             for n in $(seq 400); do [ -s helper ] && break; sleep .05; done
             kill -TERM $D
             for n in $(seq 400); do grep -q 'still waits' log && break; sleep .05; done
             kill -TERM $D; ended $D && echo ended || echo it lives
             touch go; ended $(cat helper) && echo the helper ended || echo the helper lives
             grep \" $PWD/u \" /proc/self/mountinfo || echo not mounted"
        ));
        assert_eq!(output, "ended\nthe helper ended\nnot mounted\n", "{way}");
    }
}

/// The signal arrives while the daemon opens a volume on a device that does not respond.
#[test]
fn a_signal_to_the_command_ends_the_daemon_too() {
    if !kernel_tests_enabled("a_signal_to_the_command_ends_the_daemon_too") {
        return;
    }
    for signal in ["TERM", "HUP"] {
        let output = run_in_namespace(&format!(
            "truncate -s 1G outer.img; $B mkfs -q outer.img; $B mount outer.img m1; O=$(daemon); D=
             truncate -s 256M m1/inner.img; $B mkfs -q m1/inner.img; stat m1/inner.img >ignored
             undo() {{ kill -CONT $O; kill -9 $D; umount -l m2; $B umount -q m1; }}
             trap \"undo 2>ignored || true\" EXIT
             # A thread that has not stopped yet would take a request, whose program nothing ends.
             kill -STOP $O
             while grep -L '^State:.T' /proc/$O/task/*/status | grep -q .; do sleep .05; done
             env --default-signal=HUP $B mount m1/inner.img m2 2>log & P=$!
             for n in $(seq 800); do
                 D=$(cat /proc/$P/task/$P/children); D=${{D% }}
                 grep -qs '^SigBlk:.*[4-7c-f]...$' /proc/${{D:-0}}/status &&
                     grep -qs request_wait_answer /proc/$D/task/*/wchan && break
                 sleep .05
             done
             kill -{signal} $P; wait $P && s=0 || s=$?; kill -l $((s - 128))
             ended $D && echo ended || echo it lives
             grep -o 'm1/inner.img: is not mounted: a signal ended the command' log
             grep m2 /proc/self/mounts || true"
        ));
        let message = "m1/inner.img: is not mounted: a signal ended the command";
        assert_eq!(output, format!("{signal}\nended\n{message}\n"));
    }
}

/// The command is killed after the daemon has mounted the volume, and before it has reported that:
/// its pipe is full.
#[test]
fn a_daemon_that_cannot_report_commits_what_other_programs_wrote() {
    if !kernel_tests_enabled("a_daemon_that_cannot_report_commits_what_other_programs_wrote") {
        return;
    }
    for is_in_use in [false, true] {
        let (scratch, mount_point) = (tempfile::tempdir().unwrap(), MountPoint::new());
        let image = own_copy(&scratch);
        let (reader, writer) = std::io::pipe().unwrap();
        fill(&writer);
        let path = image.to_str().unwrap();
        let words = ["mount", "--ready", "-o", "commit=3600", path, mount_point.name()];
        let child = command().args(words).stdout(writer).stderr(Stdio::piped()).spawn().unwrap();
        wait_until(|| mount_point.is_mounted());
        fs::write(mount_point.path().join("new"), "text").unwrap();
        let open = fs::File::open(mount_point.path().join("new")).unwrap();
        let open = is_in_use.then_some(open);
        drop(reader);
        wait_until(|| !mount_point.is_mounted());
        if let Some(mut open) = open {
            let mut text = String::new();
            open.read_to_string(&mut text).unwrap();
            assert_eq!(text, "text", "open files stay usable");
        }
        let output = child.wait_with_output().unwrap();
        let message = String::from_utf8_lossy(&output.stderr);
        assert!(message.contains("the daemon's parent: broken pipe"), "{message}");
        assert!(!output.status.success());
        assert!(holders(&image).is_empty());
        let read = command().args(["cat", path, "/new"]).output().unwrap();
        assert_eq!(String::from_utf8_lossy(&read.stdout), "text");
    }
}

#[test]
fn a_daemon_without_a_parent_mounts_nothing() {
    if !kernel_tests_enabled("a_daemon_without_a_parent_mounts_nothing") {
        return;
    }
    let mount_point = MountPoint::new();
    let words = ["mount", "--ready", "-o", "ro", plain().0.to_str().unwrap(), mount_point.name()];
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let ran = command().args(words).stdout(writer).output().unwrap();
    let message = String::from_utf8_lossy(&ran.stderr);
    assert!(message.contains("the daemon's parent: broken pipe (nothing is mounted)"), "{message}");
    assert!(!ran.status.success() && !mount_point.is_mounted());
}

#[test]
fn a_mount_for_which_there_are_too_few_threads_fails_with_a_message() {
    if !kernel_tests_enabled("a_mount_for_which_there_are_too_few_threads_fails_with_a_message") {
        return;
    }
    // A user that has no processes of other tests.
    let output = run_in_namespace(&format!(
        "{OTHER_USER}
         AS=\"setpriv --reuid=games --regid=games --clear-groups\"; chown games own.img u
         mknod fuse c 10 229; chmod 666 fuse; mount --bind fuse /dev/fuse
         for n in $(seq 2 60); do
             $AS prlimit --nproc=$n $U mount -o threads=4 own.img u 2>log && break
             grep -q '^butternut: ' log && ! grep -q panicked log || {{ echo $n; cat log; }}
             ! grep \" $PWD/u \" /proc/self/mountinfo
         done
         grep -q \" $PWD/u \" /proc/self/mountinfo && echo mounted
         $AS $U umount u"
    ));
    assert_eq!(output, "mounted\n");
}

/// A shell without job control ignores interrupts for its background jobs.
#[test]
fn an_interrupt_that_is_ignored_from_the_start_does_not_end_a_mount() {
    if !kernel_tests_enabled("an_interrupt_that_is_ignored_from_the_start_does_not_end_a_mount") {
        return;
    }
    let output = run_in_namespace(
        "$B mount --foreground own.img m1 2>log & D=$!
         for n in $(seq 200); do grep -qF ': mounted (' log && break; sleep .05; done
         exec 7<m1/hello.txt
         kill -INT $D
         kill -TERM $D
         for n in $(seq 200); do grep -q 'still in use' log && break; sleep .05; done
         cat <&7
         exec 7<&-
         ended $D || echo it lives
         grep -o 'second signal:' log || true",
    );
    assert_eq!(output, "hello\n");
}

/// The signal arrives at any time. The status tells a shell which one has ended the command, so
/// that it ends its script.
#[test]
fn an_interrupted_command_has_mounted_the_volume_or_not() {
    if !kernel_tests_enabled("an_interrupted_command_has_mounted_the_volume_or_not") {
        return;
    }
    let (scratch, mount_point) = (tempfile::tempdir().unwrap(), MountPoint::new());
    let image = own_copy(&scratch);
    let words = ["mount", image.to_str().unwrap(), mount_point.name()];
    let mut child = command().args(words).stderr(Stdio::null()).spawn().unwrap();
    shell(&format!("kill -INT {}", child.id()));
    let status = child.wait().unwrap();
    let is_mounted = mount_point.is_mounted();
    assert!(if is_mounted { status.success() } else { status.signal() == Some(2) }, "{status}");
    assert!(is_mounted || holders(&image).is_empty());
}

/// As for other FUSE filesystems.
#[test]
fn fsname_is_the_source_that_mount_tables_show() {
    if !kernel_tests_enabled("fsname_is_the_source_that_mount_tables_show") {
        return;
    }
    let output = run_in_namespace(
        "trap \"{ umount -l m1 m2; } 2>ignored || true\" EXIT
         $B mount -o \"fsname=my name\" own.img m1; findmnt -no SOURCE m1
         $B mount -o \"fsname=my name\" own.img m2; findmnt -no SOURCE m2
         $B mount -o fsname=other own.img data 2>&1 || true
         $B mount -o \"remount,ro,fsname=my name\" own.img m1
         $B mount -o remount,fsname=other own.img m1 2>&1 || true
         $B umount m2; $B umount m1",
    );
    let refused = "butternut: option fsname=other: the volume is mounted with fsname=my name \
         (leave it out, or unmount the volume everywhere and mount it with this option)";
    assert_eq!(output, format!("my name\nmy name\n{refused}\n{refused}\n"));
}
