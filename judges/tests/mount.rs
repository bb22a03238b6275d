//! Our mount shows of every image what the kernel's mount shows, through the same system calls.

use anyhow::{Result, anyhow};
use butternut_judges::compare::{Field, Side, compare};
use butternut_judges::fuse_mount::FuseMount;
use butternut_judges::image::{Image, View};
use butternut_judges::recipe::Recipe;
use butternut_judges::{trial, walk};
use std::process::ExitCode;

/// What FUSE cannot show: the time of birth and attribute flags have no place in its replies, and
/// one mount has one device number, so inode numbers are made distinct across subvolumes.
const EXCUSED: [Field; 3] = [Field::Btime, Field::Flags, Field::Ino];

fn main() -> ExitCode {
    trial::run(trial::over_all_views(the_mount_shows_what_the_kernel_shows))
}

fn the_mount_shows_what_the_kernel_shows(recipe: &Recipe, view: &View) -> Result<()> {
    let image = Image::load(&recipe.name)?;
    let want = image.kernel_manifest(view)?;
    let mount = FuseMount::new(&image, view)?;
    let have = walk::walk(mount.root())?;
    mount.unmount()?;
    let want = Side { name: "kernel", manifest: &want };
    let have = Side { name: "our mount", manifest: &have };
    compare(want, have, &EXCUSED).map(drop).map_err(|text| anyhow!("{}:\n{text}", recipe.about))
}
