//! Real applications on our mount, each on a volume of its own. `scripts/apps` runs and checks
//! them.
//!
//! `BUTTERNUT_LONG=1` runs all of them; otherwise those run that take seconds and need only the
//! tools that build this project.

use anyhow::{Result, ensure};
use butternut_judges::{command, trial};
use std::path::Path;
use std::process::{Command, ExitCode};

const SHORT: [&str; 3] = ["tar", "git", "build"];
const LONG: [&str; 11] = [
    "rsync",
    "cargo",
    "sqlite",
    "sqlite-killed",
    "dbench",
    "postgres",
    "postgres-killed",
    "stress-names",
    "stress-sizes",
    "stress-trees",
    "stress-files",
];

fn main() -> ExitCode {
    let is_long = std::env::var_os("BUTTERNUT_LONG").is_some_and(|value| !value.is_empty());
    let long: &[&'static str] = if is_long { &LONG } else { &[] };
    let mut trials = vec![trial::trial("every_application_is_run", every_one_is_named)];
    for &name in SHORT.iter().chain(long) {
        trials.push(trial::trial(name, move || run(name)));
    }
    trial::run(trials)
}

fn script() -> Command {
    Command::new(Path::new(env!("CARGO_MANIFEST_DIR")).join("../scripts/apps"))
}

fn run(name: &str) -> Result<()> {
    let output = script().arg(name).env("BUTTERNUT_BIN", command::butternut()?).output()?;
    ensure!(
        output.status.success(),
        "{}{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
    Ok(())
}

/// The script's list of applications and the one here are equal.
fn every_one_is_named() -> Result<()> {
    let output = script().arg("--list").env("BUTTERNUT_BIN", command::butternut()?).output()?;
    let mut listed: Vec<_> = std::str::from_utf8(&output.stdout)?.lines().collect();
    let mut named: Vec<_> = SHORT.iter().chain(&LONG).copied().collect();
    listed.sort_unstable();
    named.sort_unstable();
    ensure!(listed == named, "listed: {listed:?}, named: {named:?}");
    Ok(())
}
