//! The library shows the same as the kernel for every image: every byte, hole and flag.

use anyhow::{Result, anyhow};
use butternut_judges::compare::{Side, compare};
use butternut_judges::image::{Image, View};
use butternut_judges::recipe::Recipe;
use butternut_judges::{library, trial};
use std::process::ExitCode;

fn main() -> ExitCode {
    trial::run(trial::over_all_views(the_library_shows_what_the_kernel_shows))
}

fn the_library_shows_what_the_kernel_shows(recipe: &Recipe, view: &View) -> Result<()> {
    let image = Image::load(&recipe.name)?;
    let want = image.kernel_manifest(view)?;
    let have = library::walk(&library::open(&image, view)?)?;
    let want = Side { name: "kernel", manifest: &want };
    let have = Side { name: "library", manifest: &have };
    compare(want, have, &[]).map(drop).map_err(|text| anyhow!("{}:\n{text}", recipe.about))
}
