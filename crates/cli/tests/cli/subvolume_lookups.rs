//! Calls that tell of a volume, its devices and its subvolumes: the same script on a mount of ours
//! and on one of the kernel, with the same results.

use super::command::{butternut, run};
use super::image::kernel_tests_enabled;
use super::subvolume_renames::{assert_same_lines, mount_by_kernel, outcome_of, unmount_by_kernel};

const SCRIPT: &str = include_str!("subvolume_lookups.py");

#[test]
fn a_mount_tells_of_devices_and_subvolumes_as_the_kernel_does() {
    if !kernel_tests_enabled("a_mount_tells_of_devices_and_subvolumes_as_the_kernel_does") {
        return;
    }
    let check = |image: &str| {
        run("btrfs", &["check", image].map(AsRef::as_ref));
    };
    let kernels = outcome_of(SCRIPT, mount_by_kernel, unmount_by_kernel, check);
    let ours = outcome_of(
        SCRIPT,
        |image, at| {
            butternut(&["mount", "-o", "allow_other", image, at]).ok();
        },
        |at| {
            butternut(&["umount", "-q", at]).ok();
        },
        check,
    );
    assert_same_lines(&ours.0, &kernels.0, "calls");
    assert!(kernels.0.lines().count() > 700, "{}", kernels.0);
}
