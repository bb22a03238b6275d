//! Images by profile: each with all devices, and with every tolerated device missing.

use crate::populate;
use crate::populate::seeded::stamped;
use crate::recipe::Recipe;
use anyhow::Result;
use std::fs;
use std::path::Path;

const SMALL: u64 = 256;

pub(super) fn recipes() -> Vec<Recipe> {
    let two = [SMALL; 2];
    let three = [SMALL; 3];
    let four = [SMALL; 4];
    vec![
        profile("single", "single", &[SMALL]),
        profile("dup", "dup", &[SMALL]),
        profile("single-over-two", "single", &two),
        profile("raid0", "raid0", &three).mkfs("-d raid0 -m raid1"),
        profile("raid1", "raid1", &two).missing(&[&[0], &[1]]),
        profile("raid1-of-three", "raid1", &three).missing(&[&[0], &[1], &[2]]),
        profile("raid1c3", "raid1c3", &three).missing(&[&[0], &[1], &[2], &[0, 1], &[1, 2]]),
        profile("raid1c4", "raid1c4", &four).missing(&[&[0], &[3], &[0, 1], &[0, 1, 2]]),
        profile("raid10", "raid10", &four).missing(&[&[0], &[1], &[2], &[3]]),
        profile("raid5", "raid5", &three).missing(&[&[0], &[1], &[2]]),
        profile("raid5-of-two", "raid5", &two).missing(&[&[0], &[1]]),
        profile("raid5-of-five", "raid5", &[SMALL; 5]).missing(&[&[0], &[4]]),
        profile("raid6", "raid6", &four).missing(&[
            &[0],
            &[1],
            &[2],
            &[3],
            &[0, 1],
            &[0, 2],
            &[0, 3],
            &[1, 2],
            &[1, 3],
            &[2, 3],
        ]),
        profile("raid6-of-three", "raid6", &three).missing(&[&[0], &[0, 1], &[1, 2]]),
        profile("raid5-data-raid1-metadata", "raid5", &[SMALL, 300, 400])
            .mkfs("-d raid5 -m raid1c3 --csum xxhash -n 4096")
            .missing(&[&[0], &[1], &[2]]),
        Recipe::new("raid1-compressed", "raid1 with everything in it, compressed")
            .devices(&two)
            .mkfs("-d raid1 -m raid1")
            .mount("compress=zstd")
            .missing(&[&[0], &[1]]),
        Recipe::new("raid5-everything", "raid5 with everything in it")
            .devices(&three)
            .mkfs("-d raid5 -m raid5")
            .missing(&[&[1]]),
        Recipe::new("raid0-everything", "raid0 over four devices of different sizes")
            .devices(&[SMALL, 300, 400, 500])
            .mkfs("-d raid0 -m raid0"),
        Recipe::new("converted", "block groups of several profiles after an unfinished balance")
            .devices(&four)
            .mkfs("-d single -m dup")
            .fill(converted),
    ]
}

fn profile(name: &str, profile: &str, devices: &[u64]) -> Recipe {
    Recipe::new(&format!("profile-{name}"), &format!("{profile} on {} device(s)", devices.len()))
        .devices(devices)
        .mkfs(&format!("-d {profile} -m {profile}"))
        .fill(sectors)
}

/// Makes files whose sectors contain their file and position, so that a test finds every copy on
/// the devices by content; some small files; and enough names for a tree of two levels.
fn sectors(root: &Path) -> Result<()> {
    for (number, count) in [(1, 1), (2, 16), (3, 17), (4, 100), (5, 777), (6, 1024)] {
        fs::write(root.join(format!("sectors-{number}")), stamped(number, count))?;
    }
    let many = root.join("many");
    fs::create_dir(&many)?;
    for number in 0..400 {
        fs::write(many.join(format!("inline-{number}")), format!("inline {number}"))?;
    }
    Ok(())
}

/// Converts some block groups to another profile, and keeps the others.
fn converted(root: &Path) -> Result<()> {
    sectors(root)?;
    populate::contents::large(root)?;
    populate::subvolumes::btrfs(
        "balance start -f -dconvert=raid1,limit=1 -mconvert=raid1c3",
        &[root],
    )?;
    populate::contents::sizes(root)
}
