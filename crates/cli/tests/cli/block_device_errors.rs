//! Errors of a mount with `-o blkdev`: what callers learn of writes that fail, and the messages of
//! mounts that are refused.

use super::block_device::{check_output, run_on_loop};
use super::image::kernel_tests_enabled;

/// Runs a script as [`run_on_loop`] does, with L over `t/own.img`, a sparse image in a tmpfs of
/// little more than its size. After `fail`, the device fails each write of a block that the image
/// does not have yet. `works` ends that.
fn run_on_failing(script: &str) -> String {
    run_on_loop(&format!(
        "losetup -d $L; mkdir t; mount -t tmpfs -o size=140M t t; truncate -s 128M t/own.img
         L=$(losetup -f --show t/own.img); mkfs.btrfs -q -f -K -d single -m single $L
         fail() {{ cat /dev/zero >t/fill 2>ignored || true; }}
         works() {{ rm t/fill; }}
         saved() {{ cp --sparse=always t/own.img copy.img; $B cat copy.img $1; }}
         {script}"
    ))
}

#[test]
fn syncfs_reports_lost_data_once_and_leaves_it_for_others() {
    if !kernel_tests_enabled("syncfs_reports_lost_data_once_and_leaves_it_for_others") {
        return;
    }
    for (last, expected) in
        [("$B umount m1", "could not be written"), ("sync m1/lost", "Input/output error")]
    {
        let script = format!(
            "fallocate -l 128M t/own.img
             data=$(btrfs inspect-internal dump-tree -t chunk $L |
                 awk '/ type DATA/ {{ n = $2 }} n && /stripe 0 / {{ print $NF, n; exit }}')
             fallocate -p -o ${{data% *}} -l ${{data#* }} t/own.img
             mounted; fail
             head -c 200K /dev/urandom >m1/lost
             refused sync -f m1 | grep -o Input/output || echo taken
             works
             sync -f m1; echo text >m1/new; sync -f m1; echo saved: $(saved /new)
             refused {last} | grep -o \"{expected}\"
             sync -f m1; umount -q m1 || true"
        );
        let expected = format!("Input/output\nsaved: text\n{expected}\n");
        check_output(|| run_on_failing(&script), |output| output == expected, last);
    }
}

/// The mount is gone, and its process still has to commit and to end.
#[test]
fn a_command_after_umount_8_waits_for_the_process_of_the_mount() {
    if !kernel_tests_enabled("a_command_after_umount_8_waits_for_the_process_of_the_mount") {
        return;
    }
    let plain = "$B mount -o commit=3600 $L m1; D=$(daemon)";
    for (mount, umount, next) in [
        (plain, "umount -i m1", "$B cat $L /new"),
        (plain, "umount -i m1", "$B mkdir $L /dir"),
        (plain, "umount -i m1", "$B mount -o blkdev $L m2"),
        ("mounted", "umount -i -f m1", "$B cat $L /new"),
        // Its claim for the last commit and the new mount need the same device.
        ("mounted", "umount -i -f m1", "$B mount -o blkdev $L m2"),
    ] {
        let output = run_on_loop(&format!(
            "{mount}; echo text >m1/new; kill -STOP $D; {umount}
             {next} 2>errors & P=$!
             sleep .5; kill -CONT $D; wait $P || cat errors
             ended $D; D=none
             if findmnt m2 >out; then D=$(getfattr --only-values -n butternut.daemon m2); fi
             cat m2/new 2>errors || $B cat $L /new
             umount -q m2 || true"
        ));
        let times = if next.contains("cat") { 2 } else { 1 };
        assert_eq!(output, "text\n".repeat(times), "{umount}; {next}");
    }
    // The kernel has released the device, and the process has its locks until it ends.
    let output = run_on_loop(
        "for n in $(seq 10); do
             mounted; head -c 20M /dev/zero | tr '\\0' x >m1/data; echo $n >m1/new; umount m1
             $B cat $L /new
         done",
    );
    assert_eq!(output, "1\n2\n3\n4\n5\n6\n7\n8\n9\n10\n");
}

/// The process of such a mount commits by itself, and ends.
#[test]
fn commands_wait_for_the_process_of_an_aborted_mount() {
    if !kernel_tests_enabled("commands_wait_for_the_process_of_an_aborted_mount") {
        return;
    }
    for command in ["umount m1", "umount --lazy m1"] {
        let output = run_on_loop(&format!(
            "mkdir connections; mount -t fusectl none connections
             mounted; echo text >m1/new; N=$(mountpoint -d m1); kill -STOP $D
             echo 1 >connections/$((${{N%:*}} << 20 | ${{N#*:}}))/abort
             $B {command} 2>&1 & P=$!
             while findmnt m1 >out; do sleep .05; done
             kill -CONT $D; wait $P; echo saved: $(saved /new)
             findmnt m1 || echo unmounted"
        ));
        assert_eq!(output, "saved: text\nunmounted\n", "{command}");
    }
    // A further mount point of a dead mount would be dead, too. The process cannot detach it.
    let output = run_on_loop(
        "mkdir connections; mount -t fusectl none connections
         mounted; mkdir m1/t; mount -t tmpfs t m1/t; exec 7>m1/open; N=$(mountpoint -d m1)
         kill -STOP $D
         echo 1 >connections/$((${N%:*} << 20 | ${N#*:}))/abort
         $B mount $L m2 2>errors & P=$!
         sleep .5; kill -CONT $D; wait $P || echo refused
         findmnt m2 || echo not mounted; umount -l m1; exec 7>&-",
    );
    assert_eq!(output, "refused\nnot mounted\n");
}

/// The help names these cases.
#[test]
fn umount_8_returns_before_the_commit_while_the_volume_is_in_use() {
    if !kernel_tests_enabled("umount_8_returns_before_the_commit_while_the_volume_is_in_use") {
        return;
    }
    let users = [
        ("exec 7<m1/new", "umount -l m1", "exec 7<&-"),
        ("$B mount $L m2", "umount m1", "umount m2"),
        (
            "unshare --mount --propagation private sleep 60 & S=$!
             while [ $(readlink /proc/$S/ns/mnt) = $(readlink /proc/self/ns/mnt) ]; do
                 sleep .05
             done",
            "umount m1",
            "kill $S",
        ),
    ];
    for (begin, umount, end) in users {
        let script = format!(
            "mounted; echo text >m1/new; {begin}
             {umount}; echo used: $(saved /new)
             {end}; ended $D; D=none; echo ended: $(saved /new)"
        );
        let expected = "used: none\nended: text\n";
        check_output(|| run_on_loop(&script), |output| output == expected, begin);
    }
    let script = "mounted; mkdir m1/new; fail; umount m1; echo unmounted; works
         mounted; mkdir m1/new; fail; refused sync -f m1 | grep -o Input/output || echo committed
         umount m1";
    let expected = "unmounted\nInput/output\n";
    check_output(|| run_on_failing(script), |output| output == expected, "a failed commit");
}

/// The kernel finds the mounted volume by a path of its device.
#[test]
fn further_mounts_work_when_the_path_of_the_first_one_has_changed() {
    if !kernel_tests_enabled("further_mounts_work_when_the_path_of_the_first_one_has_changed") {
        return;
    }
    let other_paths = [
        ("ln -s $L n/path", "ln -sfn /dev/null n/path"),
        ("ln -s $L n/path", "rm n/path"),
        ("ln -s two n/path; ln -s $L n/two", "rm n/two"),
        ("cp -a $L n/path", "rm n/path"),
        ("cp -a $L n/path", "ln -sfn /dev/null n/path"),
    ];
    for (make, change) in other_paths {
        let output = run_on_loop(&format!(
            "mkdir n; mount -t tmpfs n n; {make}
             $B mount -o blkdev $PWD/n/path m1; D=$(daemon); findmnt -no SOURCE m1
             echo text >m1/new; $B mount $L m2; findmnt -no SOURCE m2
             {change}
             $B mount $L m3; findmnt -no SOURCE m3; cat m3/new
             umount m1 m2 m3"
        ));
        assert_eq!(output, "n/path\nn/path\nL\ntext\n", "{make}; {change}");
    }
    // No known path is left.
    let output = run_on_loop(
        "mkdir n; mount -t tmpfs n n; cp -a $L n/one; touch file
         $B mount -o blkdev n/one m1; D=$(daemon); mv n/one n/other; mount --bind file $L
         refused $B mount n/other m2 | sed \"s/7:[0-9]*/7:N/\"
         umount $L; $B mount n/other m2; umount m1 m2",
    );
    let why = "n/one does not lead to the mounted block device 7:N any more";
    assert_eq!(output, format!("butternut: n/other: {why}\n"));
}

#[test]
fn the_holder_of_a_device_is_found_by_any_path() {
    if !kernel_tests_enabled("the_holder_of_a_device_is_found_by_any_path") {
        return;
    }
    let script = "mkdir n; mount -t tmpfs n n; cp -a $L n/dev; $B mount n/dev m1; D=$(daemon)
         refused $B mkdir $L /other; $B umount m1";
    let why = "is busy: process N (butternut) has it open (it is mounted on m1; `butternut umount \
         m1` releases it)";
    let expected = format!("butternut: L: {why}\n");
    // Other programs may have the device open for a moment.
    check_output(|| run_on_loop(script), |output| output == expected, "another path");
}

/// After the failed commit, a second one only finds that the volume is read-only.
#[test]
fn commands_report_the_first_error_of_a_failed_commit() {
    if !kernel_tests_enabled("commands_report_the_first_error_of_a_failed_commit") {
        return;
    }
    for command in ["umount", "filesystem sync", "mount -o remount,ro $L"] {
        let script = format!(
            "mounted; mkdir m1/new; fail
             refused $B {command} m1
             works; umount -q m1 || true"
        );
        let is_right = |output: &str| output.contains(": input/output error");
        check_output(|| run_on_failing(&script), is_right, command);
    }
}

#[test]
fn a_device_that_the_kernel_cannot_mount_is_refused_with_the_cause() {
    if !kernel_tests_enabled("a_device_that_the_kernel_cannot_mount_is_refused_with_the_cause") {
        return;
    }
    let output = run_on_loop(
        "losetup -d $L; L=$(losetup -f --show -b 8192 own.img)
         refused $B mount -o blkdev $L m1; $B mount $L m2; $B umount m2
         mkdir n; mount -t tmpfs -o nodev n n; cp -a $L n/dev
         refused $B mount -o blkdev n/dev m1
         mount -o remount,dev n; refused $B mount -o blkdev n/dev m1 | grep -o 8192",
    );
    let expected = "butternut: L: has logical blocks of 8192 bytes, and -o blkdev allows at most \
         4096 (mount without -o blkdev)\n\
         butternut: n/dev: is on a filesystem that is mounted with nodev, where no device can be \
         opened (name the device by its path in /dev)\n8192\n";
    assert_eq!(output, expected);
}

#[test]
fn a_second_read_only_mount_is_refused_with_what_works() {
    if !kernel_tests_enabled("a_second_read_only_mount_is_refused_with_what_works") {
        return;
    }
    let output = run_on_loop(
        "mounted -o ro; refused $B mount -o blkdev,ro $L m2
         $B mount -o ro $L m2; findmnt -no FSTYPE m2; $B umount m2
         refused $B mount -o blkdev $L m2
         umount m1",
    );
    let busy = "butternut: L: is busy: the kernel has mounted L on m1";
    let expected = format!(
        "{busy} (mount without -o blkdev)\nfuse.butternut\n\
         {busy} (unmount it, or wait until it is free)\n"
    );
    assert_eq!(output, expected);
}

/// The kernel opens the source of such a mount as the device.
#[test]
fn fsname_is_a_path_of_the_block_device() {
    if !kernel_tests_enabled("fsname_is_a_path_of_the_block_device") {
        return;
    }
    let output = run_on_loop(
        "refused $B mount -o blkdev,fsname=name $L m1
         mkdir n; mount -t tmpfs n n; ln -s $L n/path
         $B mount -o blkdev,fsname=n/path $L m1; D=$(daemon); findmnt -no SOURCE m1
         $B mount $L m2; findmnt -no SOURCE m2
         umount m1 m2",
    );
    let expected = "butternut: option fsname=name: is not a path of L, which -o blkdev mounts \
         (leave it out, or name a path of the device)\nn/path\nn/path\n";
    assert_eq!(output, expected);
}
