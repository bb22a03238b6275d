//! `bisect`: finds the commit that made a measurement worse.

use crate::bisect::{Event, Found, Plan, bisect};
use anyhow::{Result, ensure};
use std::io::Write;
use std::path::PathBuf;

/// Flags of `bisect`.
#[derive(Debug, clap::Args)]
pub struct Flags {
    /// A commit that is good.
    good: String,
    /// A commit that is bad, and has the good one behind it.
    bad: String,
    /// Shell command that measures in the work tree and prints the value on its last line.
    #[arg(long, value_name = "COMMAND")]
    measure: String,
    /// The repository.
    #[arg(long, value_name = "DIR", default_value = ".")]
    repository: PathBuf,
    /// Most measurements of a commit before it is skipped.
    #[arg(
        long,
        value_name = "N",
        default_value_t = 40,
        value_parser = clap::value_parser!(u32).range(5..=10_000)
    )]
    repeats: u32,
    /// Command that builds a commit in the work tree.
    #[arg(last = true, value_name = "BUILD-COMMAND")]
    build: Vec<String>,
}

/// Searches, and prints each step. Returns `true` when one commit was found.
pub(super) fn run(flags: &Flags, out: &mut dyn Write) -> Result<bool> {
    ensure!(!flags.measure.trim().is_empty(), "--measure: have nothing, want a command");
    let plan = Plan {
        repository: flags.repository.clone(),
        good: flags.good.clone(),
        bad: flags.bad.clone(),
        build: flags.build.clone(),
        measure: flags.measure.clone(),
        repeats: (3, flags.repeats),
    };
    let mut printed = Ok(());
    let found = bisect(&plan, &mut |event: &Event| {
        if printed.is_ok() {
            printed = writeln!(out, "{event}").and_then(|()| out.flush());
        }
    })?;
    printed?;
    match found {
        Found::Commit { id, subject } => {
            writeln!(out, "\nThe first bad commit is {id}\n    {subject}")?;
            Ok(true)
        }
        Found::OneOf(ids) => {
            writeln!(out, "\nSkipped commits hide it. It is one of these:")?;
            for id in ids {
                writeln!(out, "    {id}")?;
            }
            Ok(false)
        }
    }
}
