//! Volumes that `butternut mkfs` makes: `btrfs check` finds nothing, the kernel mounts, fills and
//! scrubs them without a warning, the library shows what the kernel wrote, and the on-disk data is
//! what `mkfs.btrfs` writes for the same options.

mod cases;
mod devices;
mod fields;
mod judged;

use butternut_judges::trial;
use std::process::ExitCode;

fn main() -> ExitCode {
    let mut trials = Vec::new();
    for case in cases::pairwise() {
        let name = format!("kernel::{}", case.name());
        trials.push(trial::trial(&name, move || judged::the_kernel_accepts_the_volume(&case)));
    }
    for case in cases::of_mkfs_btrfs() {
        let name = format!("alike::{}", case.name());
        trials.push(trial::trial(&name, move || fields::both_tools_make_the_same(&case)));
    }
    trials.push(trial::trial(
        "devices::a_mounted_device_is_refused",
        devices::a_mounted_device_is_refused,
    ));
    trials.push(trial::trial(
        "devices::a_block_device_is_discarded_unless_told_not_to",
        devices::a_block_device_is_discarded_unless_told_not_to,
    ));
    trials.push(trial::trial(
        "devices::the_kernel_repairs_from_the_second_copy",
        devices::the_kernel_repairs_from_the_second_copy,
    ));
    trial::run(trials)
}
