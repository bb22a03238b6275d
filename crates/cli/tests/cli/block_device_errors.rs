//! Errors of a mount with `-o blkdev`: what callers learn of writes that fail, and the messages of
//! mounts that are refused.

use super::block_device::run_on_loop;
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
        let output = run_on_failing(&format!(
            "fallocate -l 128M t/own.img
             data=$(btrfs inspect-internal dump-tree -t chunk $L |
                 awk '/ type DATA/ {{ n = $2 }} n && /stripe 0 / {{ print $NF, n; exit }}')
             fallocate -p -o ${{data% *}} -l ${{data#* }} t/own.img
             mounted; fail
             head -c 200K /dev/urandom >m1/lost; refused sync -f m1 | grep -o Input/output
             works
             sync -f m1; echo text >m1/new; sync -f m1; echo saved: $(saved /new)
             refused {last} | grep -o \"{expected}\"
             sync -f m1; umount -q m1 || true"
        ));
        assert_eq!(output, format!("Input/output\nsaved: text\n{expected}\n"), "{last}");
    }
}

/// After the failed commit, a second one only finds that the volume is read-only.
#[test]
fn commands_report_the_first_error_of_a_failed_commit() {
    if !kernel_tests_enabled("commands_report_the_first_error_of_a_failed_commit") {
        return;
    }
    for command in ["umount", "filesystem sync", "mount -o remount,ro $L"] {
        let output = run_on_failing(&format!(
            "mounted; mkdir m1/new; fail
             refused $B {command} m1
             works; umount -q m1 || true"
        ));
        assert!(output.contains(": input/output error"), "{command}: {output}");
    }
}
