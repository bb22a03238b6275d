//! `butternut-judge`: the judge's commands alone, without the engine.

use anyhow::Result;
use butternut_lab::commands::Command;
use clap::Parser;
use std::process::ExitCode;

/// Judges and reports runs of the lab.
#[derive(Parser)]
#[command(name = "butternut-judge", version)]
struct Flags {
    #[command(subcommand)]
    command: Command,
}

fn main() -> Result<ExitCode> {
    let is_fine = Flags::parse().command.run(&[], &mut std::io::stdout().lock())?;
    Ok(if is_fine { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
