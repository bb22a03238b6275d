//! Our mount shows the same as the kernel's mount for every image, through the same system calls.

use anyhow::{Result, anyhow};
use butternut_judges::compare::{Field, Side, compare};
use butternut_judges::fuse_mount::FuseMount;
use butternut_judges::image::{Image, View};
use butternut_judges::recipe::Recipe;
use butternut_judges::{trial, walk};
use std::process::ExitCode;

/// Fields that FUSE cannot show: its replies have no birth time and no attribute flags, and a mount
/// has one device number, so inode numbers are made unique across subvolumes.
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
