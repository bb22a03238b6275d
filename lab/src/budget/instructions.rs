//! The instructions of operations, counted by callgrind, which runs this program once more.
//!
//! Callgrind counts while the meter's function `counted` runs, on the thread that calls it, and
//! writes and resets its count whenever [`end_of_row`] returns.

use super::operations::Operation;
use crate::child;
use anyhow::{Context, Result, ensure};
use std::path::Path;

/// The kind of this build: counts of others differ.
pub(super) const BUILD: &str = match (cfg!(debug_assertions), cfg!(target_arch = "x86_64")) {
    (true, true) => "debug-x86_64",
    (false, true) => "release-x86_64",
    (true, false) => "debug",
    (false, false) => "release",
};

/// Ends the counts of an operation.
#[inline(never)]
pub(super) fn end_of_row() {
    std::hint::black_box(());
}

/// Returns the instructions of each operation by name, or why they cannot be counted.
///
/// # Errors
/// Callgrind fails.
pub(super) fn count(
    chosen: &[&Operation],
    only: &str,
) -> Result<Result<Vec<(String, u64)>, String>> {
    let Some(valgrind) = child::find("valgrind") else {
        return Ok(Err("valgrind is missing (apt-get install valgrind)".to_owned()));
    };
    let directory = tempfile::Builder::new().prefix("butternut-lab-").tempdir()?;
    let out = directory.path().join("count");
    let program = std::env::current_exe()?;
    let file = format!("--callgrind-out-file={}", out.display());
    let only = format!("--only={only}");
    let words = [
        "--tool=callgrind",
        "--collect-atstart=no",
        "--toggle-collect=*::meter::counted*",
        "--dump-after=*::instructions::end_of_row*",
        &file,
    ];
    let program = program.to_str().context("this program: its path is not UTF-8")?;
    let own = [program, "budget", "--under-callgrind", &only];
    child::run(&valgrind.to_string_lossy(), &[&words[..], &own].concat())?;
    let of = |(at, operation): (usize, &&Operation)| {
        let path = directory.path().join(format!("count.{}", at + 1));
        Ok((operation.name.to_owned(), total(&path)?))
    };
    chosen.iter().enumerate().map(of).collect::<Result<Vec<_>>>().map(Ok)
}

/// Returns the sum of a file of callgrind.
fn total(path: &Path) -> Result<u64> {
    let text = std::fs::read_to_string(path).with_context(|| path.display().to_string())?;
    let line = text.lines().find_map(|line| line.strip_prefix("summary:"));
    let line = line.or_else(|| text.lines().find_map(|line| line.strip_prefix("totals:")));
    let sum = line.and_then(|line| line.trim().parse().ok()).unwrap_or(0);
    ensure!(sum > 0, "{}: callgrind counted nothing", path.display());
    Ok(sum)
}
