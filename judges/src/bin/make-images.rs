//! `make-images [--list] [--jobs N] [NAME...]`: makes the test images that are missing or outdated.

use anyhow::{Context, Result, bail};
use butternut_judges::image::images_dir;
use butternut_judges::maker::{Outcome, Work, make_all};
use std::io::Write;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

fn main() -> Result<()> {
    let mut names = Vec::new();
    let mut workers = std::thread::available_parallelism().map_or(1, Into::into);
    let mut args = std::env::args().skip(1);
    while let Some(arg) = args.next() {
        match arg.as_str() {
            "--list" => return list(),
            "--jobs" => workers = args.next().context("--jobs needs a number")?.parse()?,
            flag if flag.starts_with('-') => bail!("{flag}: no such option"),
            name => names.push(name.to_owned()),
        }
    }
    let images_dir = images_dir();
    let start = Instant::now();
    let (made, failed) = (AtomicUsize::new(0), AtomicUsize::new(0));
    make_all(&images_dir, &names, workers, &|outcome| {
        match outcome.result {
            Ok(Work::Nothing) => return,
            Ok(_) => made.fetch_add(1, Ordering::Relaxed),
            Err(_) => failed.fetch_add(1, Ordering::Relaxed),
        };
        // Continue if stdout is a closed pipe.
        say(outcome).ok();
    })?;
    let (made, failed) = (made.into_inner(), failed.into_inner());
    if failed > 0 {
        bail!("{failed} images could not be made");
    }
    if made > 0 {
        let secs = start.elapsed().as_secs_f64();
        writeln!(
            std::io::stdout(),
            "{made} images made in {secs:.0} s in {}",
            images_dir.display()
        )?;
    }
    Ok(())
}

fn say(outcome: &Outcome) -> std::io::Result<()> {
    let secs = outcome.took.as_secs_f64();
    match &outcome.result {
        Ok(_) => writeln!(std::io::stdout(), "{:>6.1} s  {}", secs, outcome.name),
        Err(error) => writeln!(std::io::stderr(), "  FAILED  {error:#}"),
    }
}

fn list() -> Result<()> {
    for recipe in butternut_judges::recipes::all() {
        writeln!(std::io::stdout(), "{:<28} {}", recipe.name, recipe.about)?;
    }
    Ok(())
}
