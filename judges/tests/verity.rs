//! fs-verity between Butternut and a kernel that has it, in a virtual machine. In `scripts/verity`
//! each of them seals files, and the other one verifies them.
//!
//! `BUTTERNUT_LONG=1` runs all cases; otherwise only the list of them is compared, because the
//! machine and its kernel are installed for the long tests.

use anyhow::{Result, ensure};
use butternut_judges::{command, trial};
use std::path::Path;
use std::process::{Command, ExitCode};

const CASES: [&str; 8] =
    ["ours", "mounted", "signed", "theirs", "cut", "killed", "synced", "unnamed"];

fn main() -> ExitCode {
    let is_long = std::env::var_os("BUTTERNUT_LONG").is_some_and(|value| !value.is_empty());
    let cases: &[&'static str] = if is_long { &CASES } else { &[] };
    let mut trials = vec![trial::trial("every_case_is_run", every_one_is_named)];
    for &name in cases {
        trials.push(trial::trial(&format!("seals::{name}"), move || run(name)));
    }
    trial::run(trials)
}

fn script() -> Command {
    Command::new(Path::new(env!("CARGO_MANIFEST_DIR")).join("../scripts/verity"))
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

/// The script's list of cases and the one here are equal.
fn every_one_is_named() -> Result<()> {
    let output = script().arg("--list").output()?;
    let listed: Vec<_> = std::str::from_utf8(&output.stdout)?.lines().collect();
    ensure!(listed == CASES, "listed: {listed:?}, named: {CASES:?}");
    Ok(())
}
