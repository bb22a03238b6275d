//! What root does with the mount of another user, to which FUSE denies root the access, and what
//! other users can do with a mount of root.

use super::image::kernel_tests_enabled;
use super::mount_end::run_in_namespace;
use super::mount_start::OTHER_USER;

/// Lets the other user mount, with a directory for the control socket.
const MAY_MOUNT: &str = "
    mknod fuse c 10 229; chmod 666 fuse; mount --bind fuse /dev/fuse
    mount -t tmpfs run /run; mkdir /run/user; mkdir -m 700 /run/user/65534
    chown 65534 /run/user/65534
    serving() { $AS getfattr --only-values -n butternut.daemon u; }";

#[test]
fn root_commits_the_mount_of_another_user_that_it_makes_read_only() {
    if !kernel_tests_enabled("root_commits_the_mount_of_another_user_that_it_makes_read_only") {
        return;
    }
    let output = run_in_namespace(&format!(
        "{OTHER_USER}{MAY_MOUNT}
         $AS $U mount -o commit=3600 own.img u; D=$(serving)
         trap \"{{ kill -9 $D; umount -l u; }} 2>ignored || true\" EXIT
         $AS sh -c 'echo text >u/new'
         $B mount -o remount,ro u 2>&1; echo $?
         grep \" $PWD/u \" /proc/self/mountinfo | cut -d ' ' -f 6 | cut -d , -f 1
         kill -9 $D; ended $D; $B cat own.img /new"
    ));
    assert_eq!(output, "0\nro\ntext\n");
}

/// Without its socket, root cannot tell the process of another user's mount to commit.
#[test]
fn an_unmount_without_a_commit_has_no_status_of_success() {
    if !kernel_tests_enabled("an_unmount_without_a_commit_has_no_status_of_success") {
        return;
    }
    let output = run_in_namespace(&format!(
        "{OTHER_USER}{MAY_MOUNT}
         $AS $U mount -o commit=3600 own.img u; D=$(serving)
         trap \"{{ kill -9 $D; umount -l u; }} 2>ignored || true\" EXIT
         rm /run/user/65534/butternut/*.sock
         $B umount -q u 2>log && echo success || echo failure
         grep -o 'u: not committed before the unmount: no control socket: [^(]*(it is un' log ||
             cat log
         grep \" $PWD/u \" /proc/self/mountinfo || echo not mounted
         ended $D && echo ended"
    ));
    let why = "no control socket: no such file or directory";
    let message = format!("u: not committed before the unmount: {why} (it is un");
    assert_eq!(output, format!("failure\n{message}\nnot mounted\nended\n"));
}

/// There is nothing to commit, as for a mount of root.
#[test]
fn root_removes_the_mount_of_another_user_whose_process_has_ended() {
    if !kernel_tests_enabled("root_removes_the_mount_of_another_user_whose_process_has_ended") {
        return;
    }
    for option in ["", "--lazy"] {
        let output = run_in_namespace(&format!(
            "{OTHER_USER}{MAY_MOUNT}
             $AS $U mount own.img u; D=$(serving); trap 'umount -l u 2>ignored || true' EXIT
             kill -9 $D; ended $D && echo ended
             $B umount -q {option} u 2>&1 && echo success
             grep \" $PWD/u \" /proc/self/mountinfo || echo not mounted"
        ));
        assert_eq!(output, "ended\nsuccess\nnot mounted\n", "{option}");
    }
}

#[test]
fn root_sees_what_keeps_a_mount_of_another_user_busy() {
    if !kernel_tests_enabled("root_sees_what_keeps_a_mount_of_another_user_busy") {
        return;
    }
    let output = run_in_namespace(&format!(
        "{OTHER_USER}{MAY_MOUNT}
         $AS $U mount own.img u; D=$(serving); P=
         trap \"{{ kill -9 \\$P $D; umount -l u; }} 2>ignored || true\" EXIT
         mkfifo held; chmod 666 held
         $AS sh -c 'cd u; exec cat ../held' & P=$!
         exec 7>held
         $B umount u 2>&1 || true
         exec 7>&-; wait $P
         $B umount u && echo unmounted"
    ));
    let (message, rest) = output.split_once('\n').unwrap();
    let reason = "(cat) has its working directory in it (end the process, or detach the mount \
                  with --lazy)";
    assert!(message.contains("/u: is busy: process ") && message.ends_with(reason), "{message}");
    assert_eq!(rest, "unmounted\n");
}

/// One line says why.
#[test]
fn a_user_does_not_unmount_the_mount_of_another() {
    if !kernel_tests_enabled("a_user_does_not_unmount_the_mount_of_another") {
        return;
    }
    let output = run_in_namespace(&format!(
        "{OTHER_USER}{MAY_MOUNT}
         $B mount own.img m1; trap 'umount -l m1 2>ignored || true' EXIT
         for option in '' --lazy; do $AS $U umount $option m1 2>&1 && echo success || true; done
         $B umount m1"
    ));
    let lines: Vec<&str> = output.lines().collect();
    assert_eq!(lines.len(), 2, "{output}");
    let reason = "/m1: is a mount of another user (run as that user or as root)";
    assert!(lines.iter().all(|line| line.ends_with(reason)), "{output}");
}

#[test]
fn a_request_waits_for_a_slow_device_and_others_are_answered_meanwhile() {
    if !kernel_tests_enabled("a_request_waits_for_a_slow_device_and_others_are_answered_meanwhile")
    {
        return;
    }
    // The device is a file of a mount whose process is stopped until the note appears.
    let output = run_in_namespace(&format!(
        "{OTHER_USER}{MAY_MOUNT}
         truncate -s 1G outer.img; $B mkfs -q outer.img; $B mount -o allow_other outer.img m1
         O=$(daemon); D=
         undo() {{ kill -CONT $O; kill -9 $D; umount -l u; $B umount -q m1; }}
         trap \"undo 2>ignored || true\" EXIT
         truncate -s 256M m1/inner.img; $B mkfs -q m1/inner.img; chown 65534 m1/inner.img
         $AS $U mount -o commit=3600 m1/inner.img u; D=$(serving)
         $AS sh -c 'echo text >u/new'
         kill -STOP $O
         $B mount -o remount,ro u 2>log & R=$!
         for n in $(seq 600); do [ -s log ] && break; sleep .05; done
         grep -o 'u: note: still waits for a device' log || cat log
         $B ctl u nosec
         kill -CONT $O; wait $R; echo $?
         kill -9 $D; ended $D; $B cat m1/inner.img /new"
    ));
    assert_eq!(output, "u: note: still waits for a device\non\n0\ntext\n");
}

#[test]
fn root_waits_for_the_process_of_another_user_that_it_unmounts() {
    if !kernel_tests_enabled("root_waits_for_the_process_of_another_user_that_it_unmounts") {
        return;
    }
    let output = run_in_namespace(&format!(
        "{OTHER_USER}{MAY_MOUNT}
         $AS $U mount -o commit=3600 own.img u; D=$(serving)
         trap \"{{ kill -9 $D; umount -l u; }} 2>ignored || true\" EXIT
         $AS sh -c 'echo text >u/new'
         $B umount --json u 2>&1 | grep -o '\"released\":.*true'
         ended $D && echo ended
         $B cat own.img /new"
    ));
    assert!(output.ends_with("true\nended\ntext\n"), "{output}");
}

#[test]
fn root_unmounts_a_mount_of_another_user_whose_process_does_not_respond() {
    if !kernel_tests_enabled("root_unmounts_a_mount_of_another_user_whose_process_does_not_respond")
    {
        return;
    }
    let output = run_in_namespace(&format!(
        "{OTHER_USER}{MAY_MOUNT}
         $AS $U mount own.img u; D=$(serving)
         trap \"{{ kill -9 $D; umount -l u; }} 2>ignored || true\" EXIT
         kill -STOP $D
         $B umount --timeout 1 u 2>&1 && echo unmounted || true
         grep \" $PWD/u \" /proc/self/mountinfo || echo not mounted
         kill -CONT $D; ended $D && echo ended"
    ));
    assert!(output.contains("/u: no response within 1 s (it is unmounted; "), "{output}");
    assert!(output.ends_with("\nnot mounted\nended\n"), "{output}");
}

/// Runs a script in its own mount namespace, with a device `$L` that can hold no file data: a file
/// with a hole where the data would be, on a filesystem without free space.
fn lossy(script: &str) -> String {
    const DEVICE: &str = r#"mount -t tmpfs -o size=100M t data
         truncate -s 256M data/img; mkfs.btrfs -q -m single -d single data/img
         set -- $(btrfs inspect-internal dump-tree -t chunk data/img | awk '
             /length [0-9]/{ size = $2; is_data = /type DATA/ }
             /stripe 0 devid/{ if (is_data) print $6, size }')
         fallocate -l 64M data/img; fallocate -p -o $1 -l $2 data/img
         head -c 200M /dev/zero >data/fill 2>ignored || true
         L=$(losetup --find --show data/img)
         trap "{ umount -l m1; losetup -d $L; } 2>ignored || true" EXIT
         "#;
    run_in_namespace(&[DEVICE, script].concat())
}

/// A user with access to the mount syncs before root unmounts, and data of a file is lost by that.
/// Both get the error.
#[test]
fn another_user_gets_an_error_and_does_not_take_it_from_umount() {
    if !kernel_tests_enabled("another_user_gets_an_error_and_does_not_take_it_from_umount") {
        return;
    }
    let output = lossy(
        "$B mount -o allow_other,commit=3600 $L m1; D=$(daemon); chmod 777 m1; chmod 755 .
         AS='setpriv --reuid=65534 --regid=65534 --clear-groups'
         head -c 64K /dev/urandom >m1/file && echo written
         cp $B butternut; chmod 755 butternut
         for n in 1 2; do
             $AS ./butternut filesystem sync m1 2>&1 | grep -o 'm1: input/output error' || echo none
         done
         $B umount m1 2>&1 | grep -o 'the last changes could not be written'
         ended $D && echo ended",
    );
    let error = "m1: input/output error";
    assert_eq!(
        output,
        format!("written\n{error}\n{error}\nthe last changes could not be written\nended\n")
    );
}

/// A user waits for the deletion of a subvolume, and data of another user's file is lost by that.
#[test]
fn a_wait_for_a_deletion_takes_no_error_from_umount() {
    if !kernel_tests_enabled("a_wait_for_a_deletion_takes_no_error_from_umount") {
        return;
    }
    let output = lossy(
        "$B mount -o allow_other,commit=3600 $L m1; D=$(daemon); chmod 777 m1; chmod 755 .
         AS='setpriv --reuid=65534 --regid=65534 --clear-groups'
         cp $B butternut; chmod 755 butternut
         $B subvolume create -q m1/sub; echo text >m1/sub/file
         head -c 64K /dev/urandom >m1/file && echo written
         $B subvolume delete -q m1/sub
         $AS ./butternut subvolume sync m1 2>errors && echo freed || cat errors
         $B umount m1 2>&1 | grep -o 'the last changes could not be written'
         ended $D && echo ended",
    );
    // The space of the subvolume is free: the lost data is not the waiting user's.
    assert_eq!(output, "written\nfreed\nthe last changes could not be written\nended\n");
}

#[test]
fn a_shutdown_is_done_also_if_the_data_of_a_file_cannot_be_written() {
    if !kernel_tests_enabled("a_shutdown_is_done_also_if_the_data_of_a_file_cannot_be_written") {
        return;
    }
    let output = lossy(
        r#"$B mount -o commit=3600 $L m1; D=$(daemon)
         head -c 64K /dev/urandom >m1/file
         perl -e 'open(my $f, "<", "m1") or die $!; my $mode = pack("L", 0);
             print ioctl($f, 0x8004587d, $mode) ? "0\n" : ($! + 0) . "\n"'
         mkdir m1/late 2>ignored && echo alive || echo shut down
         $B umount m1 2>ignored || true; ended $D && echo ended"#,
    );
    assert_eq!(output, "5\nshut down\nended\n");
}
