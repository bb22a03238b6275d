//! `selftest`: the judge's own error rates, by simulation.

use crate::judge::error_rates;
use anyhow::{Context, Result};
use std::io::Write;
use std::path::PathBuf;

/// Flags of `selftest`.
#[derive(Debug, clap::Args)]
pub struct Flags {
    /// Simulated comparisons for each figure.
    #[arg(long, default_value_t = 200, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    trials: u32,
    /// Seed of the simulation.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Write the page to this file instead of printing it.
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
}

/// Prints or writes the table of error rates as Markdown.
pub(super) fn run(flags: &Flags, out: &mut dyn Write) -> Result<bool> {
    let command = format!("butternut-lab selftest --trials {} --seed {}", flags.trials, flags.seed);
    let page = error_rates::page(flags.trials as usize, flags.seed, &command);
    match &flags.out {
        Some(path) => std::fs::write(path, page)
            .with_context(|| format!("cannot write {}", path.display()))?,
        None => write!(out, "{page}")?,
    }
    Ok(true)
}
