//! `butternut-lab`: an I/O benchmark of Butternut, the kernel's filesystems and others.
//!
//! ```text
//! scenario  what is measured: suites as TOML files      target   what it is measured on
//! drivers   what produces the load: fio, metadata       run      plan, order, repeats, record
//! record    one file of JSON Lines for each run, which the commands of the library judge
//! ```
//!
//! Errors are printed as `butternut-lab: WHAT: WHY (WHAT TO DO)`.

#![allow(clippy::cast_precision_loss, reason = "figures are rounded before they are used")]

mod child;
mod cost;
mod drivers;
mod environment;
mod interrupt;
mod memory_limit;
mod progress;
mod run;
mod scenario;
mod size;
mod target;
mod tools;

use anyhow::Result;
use clap::{Parser, Subcommand};
use std::io::Write;
use std::process::ExitCode;

/// Measures filesystems, devices and directories with the same workloads, in an order that is
/// shuffled, and keeps every sample
#[derive(Debug, Parser)]
#[command(name = "butternut-lab", version, max_term_width = 100, disable_help_subcommand = true)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Run a suite on targets
    Run(Box<run::Args>),
    /// List the suites
    List,
    /// Print the file of a suite
    Show {
        /// Name of a suite, or a file FILE.toml
        suite: String,
        /// Print the names of the rows instead
        #[arg(long)]
        rows: bool,
    },
    #[command(flatten)]
    Judge(butternut_lab::commands::Command),
    /// Internal: the process of the metadata driver
    #[command(hide = true)]
    DriveMetadata(drivers::metadata::Args),
}

fn main() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => {
            // Help and version are no errors, and have status 0.
            drop(error.print());
            return ExitCode::from(u8::try_from(error.exit_code()).unwrap_or(2));
        }
    };
    let done = match &cli.command {
        Command::Run(args) => interrupt::install().and_then(|()| run::run(args)),
        Command::List => list(),
        Command::Show { suite, rows } => show(suite, *rows),
        Command::Judge(command) => {
            let suites: Vec<&str> =
                scenario::suites::names().filter_map(scenario::suites::text).collect();
            command.run(&suites, &mut std::io::stdout().lock())
        }
        Command::DriveMetadata(args) => drivers::metadata::drive(args).map(|()| true),
    };
    match done {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            let is_interrupted = error.is::<interrupt::Interrupted>();
            progress::line(&format!("{error:#}"));
            if is_interrupted {
                interrupt::end_process();
            }
            ExitCode::FAILURE
        }
    }
}

fn list() -> Result<bool> {
    let mut out = std::io::stdout().lock();
    for name in scenario::suites::names() {
        let suite = scenario::Suite::load(name)?;
        writeln!(out, "{name:<16} {}", suite.about)?;
    }
    Ok(true)
}

fn show(name: &str, shows_rows: bool) -> Result<bool> {
    let suite = scenario::Suite::load(name)?;
    let mut out = std::io::stdout().lock();
    if shows_rows {
        for row in scenario::rows::rows(&suite, &scenario::rows::Changes::default())? {
            writeln!(out, "{:<40} {}", row.name, row.scenario.about)?;
        }
    } else if let Some(text) = scenario::suites::text(name) {
        out.write_all(text.as_bytes())?;
    } else {
        out.write_all(&std::fs::read(name)?)?;
    }
    Ok(true)
}
