//! `butternut export` copies out of every image what the kernel shows of it.

use anyhow::{Result, anyhow};
use butternut_judges::compare::{Field, Side, compare};
use butternut_judges::image::{Image, View, shelf};
use butternut_judges::recipe::Recipe;
use butternut_judges::scratch::Scratch;
use butternut_judges::{command, trial, walk};
use std::process::ExitCode;

/// What a copy cannot have: other inode numbers, its own times of birth and change, its own
/// allocation and order. Attribute flags and properties of btrfs are not copied.
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
    let scratch = Scratch::new(&shelf())?;
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
