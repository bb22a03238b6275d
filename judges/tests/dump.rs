//! `inspect dump-super` and `inspect dump-tree` print the same as btrfs-progs for every image.

use anyhow::{Result, bail, ensure};
use butternut_judges::image::{Image, View};
use butternut_judges::recipe::Recipe;
use butternut_judges::{command, recipes, tool, trial};
use libtest_mimic::Trial;
use std::ffi::OsString;
use std::fmt::Write as _;
use std::process::ExitCode;

/// Differing lines that a report lists.
const LINES_MAX: usize = 10;

fn main() -> ExitCode {
    let mut trials = Vec::new();
    // btrfs-progs read neither volumes inside a larger file nor the trees of volumes without the
    // first superblock.
    for recipe in recipes::all().into_iter().filter(|recipe| recipe.offset == 0) {
        trials.push(trial_of("super", recipe.clone(), superblocks_are_printed_alike));
        if !recipe.name.starts_with("super-") {
            trials.push(trial_of("tree", recipe, trees_are_printed_alike));
        }
    }
    trial::run(trials)
}

fn trial_of(what: &str, recipe: Recipe, judge: fn(&Image) -> Result<()>) -> Trial {
    let name = format!("{}::{what}", recipe.name);
    trial::trial(&name, move || judge(&Image::load(&recipe.name)?))
}

fn superblocks_are_printed_alike(image: &Image) -> Result<()> {
    for path in image.paths() {
        let args: Vec<OsString> =
            ["inspect", "dump-super", "-f", "-a", "-F"].into_iter().map(Into::into).collect();
        let mut theirs = args.clone();
        theirs[1] = "dump-super".into();
        theirs[0] = "inspect-internal".into();
        same(&[theirs, vec![path.clone().into()]].concat(), &[args, vec![path.into()]].concat())?;
    }
    Ok(())
}

fn trees_are_printed_alike(image: &Image) -> Result<()> {
    let devices = command::devices(image, &View::top());
    let theirs = [vec!["inspect-internal".into(), "dump-tree".into()], devices.clone()].concat();
    let ours = [vec!["inspect".into(), "dump-tree".into()], devices].concat();
    same(&theirs, &ours)
}

fn same(theirs: &[OsString], ours: &[OsString]) -> Result<()> {
    let want = tool::output("btrfs", theirs)?.stdout;
    ensure!(want.len() > 1000, "btrfs-progs prints only {} bytes", want.len());
    let have = command::output(ours)?;
    if want == have.stdout {
        return Ok(());
    }
    let (want, have) = (String::from_utf8_lossy(&want), {
        String::from_utf8_lossy(&[&have.stdout[..], &have.stderr[..]].concat()).into_owned()
    });
    let mut text = String::new();
    let mut shown = 0;
    let (mut left, mut right) = (want.lines(), have.lines());
    for line in 1.. {
        let (a, b) = (left.next(), right.next());
        if a.is_none() && b.is_none() || shown == LINES_MAX {
            break;
        }
        if a != b {
            shown += 1;
            write!(text, "line {line}: btrfs-progs: {a:?}\n     butternut: {b:?}\n")?;
        }
    }
    bail!("{ours:?} differs:\n{text}")
}
