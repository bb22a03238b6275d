//! The judge's commands: each file has its flags and a `run`.
//!
//! Each returns whether nothing was found that ends a gate: exit status 0, else 1. Errors are returned
//! for the program to report.

mod bisect;
mod compare;
mod findings;
mod gate;
mod history;
mod report;
mod self_check;
mod selftest;

pub use report::write as write_report;

use crate::history::History;
use crate::judge::comparison::Limits;
use crate::record::default_history;
use anyhow::Result;
use std::io::Write;
use std::path::PathBuf;

/// The judge's commands, to be flattened into those of a program.
#[derive(Debug, clap::Subcommand)]
pub enum Command {
    /// Compare two runs, or two targets or switch values of a run.
    Compare(compare::Flags),
    /// List the runs, or a row over all runs with the points at which its level changed.
    History(history::Flags),
    /// Compare a run with the runs before it; exit status 1 when a row is worse or a finding is open.
    Gate(gate::Flags),
    /// List findings, waive one by name, or open one again.
    Findings(findings::Flags),
    /// Find the commit that made a measurement worse.
    Bisect(bisect::Flags),
    /// Compare equal runs with each other, and one that differs with all of them.
    SelfCheck(self_check::Flags),
    /// Measure the judge's own misses and false alarms by simulation.
    Selftest(selftest::Flags),
    /// Write the report of a run.
    Report(report::Flags),
}

impl Command {
    /// Runs the command. What it prints goes to `out`; `suites` are the texts of the program's own
    /// suites, whose published figures a report shows.
    ///
    /// Returns `false` when something was found that ends a gate, such as a row that is worse.
    ///
    /// # Errors
    ///
    /// The command could not do what it was called for.
    pub fn run(&self, suites: &[&str], out: &mut dyn Write) -> Result<bool> {
        match self {
            Self::Compare(flags) => compare::run(flags, out),
            Self::History(flags) => history::run(flags, out),
            Self::Gate(flags) => gate::run(flags, out),
            Self::Findings(flags) => findings::run(flags, out),
            Self::Bisect(flags) => bisect::run(flags, out),
            Self::SelfCheck(flags) => self_check::run(flags, out),
            Self::Selftest(flags) => selftest::run(flags, out),
            Self::Report(flags) => report::run(flags, suites, out),
        }
    }
}

/// Where the runs are.
#[derive(Debug, Clone, Default, clap::Args)]
struct HistoryFlags {
    /// Directory of the runs [default: $XDG_DATA_HOME/butternut-lab/history].
    #[arg(long = "history", value_name = "DIR", global = true)]
    directory: Option<PathBuf>,
}

impl HistoryFlags {
    fn path(&self) -> PathBuf {
        self.directory.clone().unwrap_or_else(default_history)
    }

    fn open(&self) -> Result<History> {
        Ok(History::open(&self.path())?)
    }
}

/// What counts as a difference.
#[derive(Debug, Clone, clap::Args)]
struct LimitFlags {
    /// Expected part of false ones among the reported differences.
    #[arg(long, value_name = "PART", default_value_t = Limits::default().discoveries, value_parser = part)]
    discoveries: f64,
    /// Smallest difference that is reported: 0.02 is 2 %.
    #[arg(long, value_name = "PART", default_value_t = Limits::default().effect, value_parser = part)]
    effect: f64,
}

impl Default for LimitFlags {
    fn default() -> Self {
        let Limits { discoveries, effect, .. } = Limits::default();
        Self { discoveries, effect }
    }
}

impl LimitFlags {
    fn limits(&self) -> Limits {
        Limits { discoveries: self.discoveries, effect: self.effect, ..Limits::default() }
    }
}

/// Parses a number of at least 0 and less than 1.
fn part(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(part) if (0.0..1.0).contains(&part) => Ok(part),
        _ => Err("want a number of at least 0 and less than 1".to_owned()),
    }
}

#[cfg(test)]
mod tests;
