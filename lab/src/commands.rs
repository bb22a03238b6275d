//! The judge's commands: each file has its flags and a `run`.
//!
//! Each returns whether nothing was found that ends a gate: exit status 0, else 1. Errors are
//! returned for the program to report.

mod bisect;
mod compare;
mod findings;
mod flags;
mod gate;
mod history;
mod report;
mod self_check;
mod selftest;

pub use report::write as write_report;

use anyhow::Result;
use std::io::Write;

/// The judge's commands, to be flattened into those of a program.
#[derive(Debug, clap::Subcommand)]
pub enum Command {
    /// Compare two runs, or two targets or switch values of a run.
    Compare(compare::Flags),
    /// List the runs, or a row over all runs with the points at which its level changed.
    History(history::Flags),
    /// Compare a run with the runs before it; exit status 1 when a row is worse or a finding is
    /// open.
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

#[cfg(test)]
mod tests;
