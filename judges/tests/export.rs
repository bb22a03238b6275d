//! `butternut export` copies what the kernel shows of every image.

use anyhow::{Result, anyhow};
use butternut_judges::compare::{Field, Side, compare};
use butternut_judges::image::{Image, View, images_dir};
use butternut_judges::recipe::Recipe;
use butternut_judges::scratch::Scratch;
use butternut_judges::{command, trial, walk};
use std::process::ExitCode;

/// Fields that a copy cannot preserve: inode numbers, birth and change times, allocation and order.
/// Attribute flags and btrfs properties are not copied.
const EXCUSED: [Field; 8] = [
    Field::Ino,
    Field::Btime,
    Field::Ctime,
    Field::Blocks,
    Field::Order,
    Field::Flags,
    Field::DirectorySize,
    Field::BtrfsXattrs,
];

fn main() -> ExitCode {
    trial::run(trial::over_all_views(an_export_holds_what_the_kernel_shows))
}

fn an_export_holds_what_the_kernel_shows(recipe: &Recipe, view: &View) -> Result<()> {
    let image = Image::load(&recipe.name)?;
    let want = image.kernel_manifest(view)?;
    let scratch = Scratch::new(&images_dir())?;
    let dest = scratch.root().join("export");
    let mut args = vec!["--quiet".into(), "export".into(), "--devices".into()];
    if !view.missing.is_empty() {
        args.push("--degraded".into());
    }
    args.extend([command::volume(&image, view), "/".into(), dest.clone().into()]);
    command::run(&args)?;
    let have = walk::walk(&dest)?;
    let want = Side { name: "kernel", manifest: &want };
    let have = Side { name: "the export", manifest: &have };
    compare(want, have, &EXCUSED).map(drop).map_err(|text| anyhow!("{}:\n{text}", recipe.about))
}
