//! `butternut-lab`: an I/O benchmark of Butternut, the kernel's filesystems and others.
//!
//! ```text
//! scenario  what is measured: suites as TOML files      target   what it is measured on
//! drivers   what produces the load: fio, metadata       run      plan, order, repeats, record
//! record    one file of JSON Lines for each run, which the commands of the library judge
//! top       the live view of a mount
//! budget    deterministic counts of what operations cost, without a run
//! ```
//!
//! Errors are printed as `butternut-lab: WHAT: WHY (WHAT TO DO)`.

#![allow(clippy::cast_precision_loss, reason = "figures are rounded before they are used")]

mod budget;
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
mod top;

use anyhow::Result;
use butternut_sys::allocations::CountingAllocator;
use clap::{Parser, Subcommand};
use std::io::Write;
use std::process::ExitCode;

/// Counts the allocations of operations for `budget`.
#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator;

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
    /// Count what operations of Butternut cost (device requests, bytes, flushes, allocations,
    /// instructions), and compare with the kept counts; exit status 1 when one is higher
    Budget(budget::Args),
    /// Show operations, latencies, memory and devices of a mount, live
    Top(top::Args),
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
        Command::Budget(args) => budget::run(args),
        Command::Top(args) => interrupt::install().and_then(|()| top::run(args)),
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
