//! Our checker finds nothing on volumes that the kernel made, whole or with devices missing, and
//! reports damage exactly where `btrfs check` does.

use anyhow::{Context, Result, ensure};
use butternut_check::{CheckOptions, Kind, Report, check, open_device};
use butternut_judges::image::{Image, View};
use butternut_judges::kernel_mount::LoopDevice;
use butternut_judges::recipe::Recipe;
use butternut_judges::{recipes, tool, trial};
use libtest_mimic::Trial;
use std::ffi::OsString;
use std::path::Path;
use std::process::ExitCode;

/// Images with superblocks that were damaged on purpose, and the finding.
const DAMAGED: [(&str, Kind); 4] = [
    ("super-first-bad", Kind::SuperCopy),
    ("super-first-old", Kind::SuperCopy),
    ("super-last-good", Kind::SuperCopy),
    ("super-mirrors-bad", Kind::SuperMirror),
];

fn main() -> ExitCode {
    let mut trials = trial::over_all_views(ours);
    trials.extend(recipes::all().into_iter().filter(is_readable_by_progs).map(theirs));
    trial::run(trials)
}

fn ours(recipe: &Recipe, view: &View) -> Result<()> {
    let image = Image::load(&recipe.name)?;
    let inline = look(&image, view, 1)?;
    let threaded = look(&image, view, 0)?;
    ensure!(inline.findings == threaded.findings, "the findings depend on the number of threads");
    ensure!(inline.counts == threaded.counts, "the counts depend on the number of threads");
    let damaged = DAMAGED.iter().find(|(name, _)| *name == recipe.name);
    let mut kinds: Vec<Kind> = inline.findings.iter().map(|finding| finding.kind).collect();
    kinds.dedup();
    if let Some((_, kind)) = damaged {
        ensure!(kinds.contains(kind), "not found: {kind:?}");
    }
    // What mkfs.btrfs leaves, and what a view excludes.
    let expected = |kind: &Kind| {
        matches!(kind, Kind::FreeSpaceNoGroup | Kind::DeviceMissing)
            || damaged.is_some() && matches!(kind, Kind::SuperCopy | Kind::SuperMirror)
    };
    let findings: Vec<String> = inline.findings.iter().map(ToString::to_string).collect();
    ensure!(kinds.iter().all(expected), "{}", findings.join("\n"));
    Ok(())
}

fn look(image: &Image, view: &View, threads: usize) -> Result<Report> {
    let paths = image.paths_of(view);
    let devices = paths.iter().map(|path| open_device(path, image.offset, None, false));
    let devices = devices.collect::<Result<Vec<_>, _>>()?;
    let options = CheckOptions {
        check_data_csum: true,
        degraded: !view.missing.is_empty(),
        threads,
        ..CheckOptions::default()
    };
    check(devices, &options).context("the check itself")
}

/// btrfs-progs read neither volumes inside a larger file nor volumes without the first superblock.
fn is_readable_by_progs(recipe: &Recipe) -> bool {
    recipe.offset == 0 && !recipe.name.starts_with("super-")
}

fn theirs(recipe: Recipe) -> Trial {
    let name = format!("{}::btrfs-check", recipe.name);
    trial::trial(&name, move || {
        let image = Image::load(&recipe.name)?;
        let mut args: Vec<OsString> = vec!["check".into(), "--check-data-csum".into()];
        let paths = image.paths();
        // btrfs check takes one device of a volume, and finds the others itself.
        let loops = if paths.len() > 1 {
            paths.iter().map(|path| attach(path)).collect()
        } else {
            Ok(vec![])
        };
        let loops: Vec<LoopDevice> = loops?;
        let first = loops.first().map(|first| first.path().to_path_buf());
        args.push(first.or_else(|| paths.first().cloned()).context("a device")?.into());
        let output = tool::output("btrfs", &args)?;
        let printed = String::from_utf8_lossy(&output.stderr).into_owned();
        let report = look(&image, &View::top(), 1)?;
        ensure!(report.is_clean() == output.status.success(), "btrfs check prints: {printed}");
        Ok(())
    })
}

fn attach(path: &Path) -> Result<LoopDevice> {
    LoopDevice::attach(path, true, 0)
}
