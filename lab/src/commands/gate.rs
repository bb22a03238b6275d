//! `gate`: one run against the runs before it, with an exit status for CI.
//!
//! Laws:
//!
//! 1. The gate opens only for a complete run that was compared: a run without an end, without an
//!    earlier comparable run, or without a judged cell is an error, not a success.
//! 2. It stays shut while a finding is open, also when the cell was not measured this time, and
//!    when a repeat of the run failed.

use super::compare;
use super::findings::{FileFlags, list};
use super::flags::LimitFlags;
use crate::findings::Findings;
use crate::history::{History, machine};
use crate::judge::comparison::{RUNS_MIN, Verdict};
use crate::judge::selection::Selection;
use crate::record::Record;
use crate::reports::tables::Form;
use anyhow::{Result, ensure};
use std::io::Write;

/// Flags of `gate`.
#[derive(Debug, clap::Args)]
pub struct Flags {
    /// The run to judge: an id, a path, `latest` or `latest~N`.
    #[arg(default_value = "latest")]
    run: String,
    /// Runs to compare with, separated by commas, instead of those before it.
    #[arg(long, value_name = "RUN,...", value_delimiter = ',')]
    baseline: Vec<String>,
    /// Compare with at most this many earlier runs of the same suite and machine.
    #[arg(
        long,
        value_name = "N",
        default_value_t = 8,
        value_parser = clap::value_parser!(u32).range(1..=100)
    )]
    runs: u32,
    #[command(flatten)]
    limits: LimitFlags,
    #[command(flatten)]
    file: FileFlags,
    /// Form of the output.
    #[arg(long, value_enum, default_value_t)]
    format: Form,
}

/// Judges the run, and takes the result into the findings. Returns `true` when the gate opens.
pub(super) fn run(flags: &Flags, out: &mut dyn Write) -> Result<bool> {
    let history = flags.file.history.open()?;
    let record = history.read(&flags.run)?;
    let id = record.run.id.clone();
    ensure!(record.is_complete(), "run {id} is not complete (`butternut-lab run --resume {id}`)");
    let baseline = baseline(&history, flags, &record)?;
    let names = Selection {
        runs: baseline.iter().map(|record| record.run.id.clone()).collect(),
        ..Selection::default()
    };
    let side = Selection { runs: vec![id.clone()], ..Selection::default() };
    let limits = flags.limits.limits();
    let comparison =
        compare::of_records((&names, &baseline), (&side, std::slice::from_ref(&record)), limits)?;
    let judged = comparison.cells.len() - comparison.count(Verdict::NotJudged);
    ensure!(judged > 0, "run {id}: no cell could be judged");
    let path = flags.file.path();
    let mut findings = Findings::read(&path)?;
    let before = findings.clone();
    findings.take(&comparison.cells, limits.effect, &id, &record.run.started);
    if findings != before {
        findings.write(&path)?;
    }
    compare::show(&comparison, flags.format, out)?;
    if flags.format != Form::Csv {
        conclude(&record, &baseline, &findings, flags.format, out)?;
    }
    Ok(findings.open_ones().next().is_none() && record.failures.is_empty())
}

fn conclude(
    record: &Record,
    baseline: &[Record],
    findings: &Findings,
    form: Form,
    out: &mut dyn Write,
) -> Result<()> {
    let names: Vec<&str> = baseline.iter().map(|record| record.run.id.as_str()).collect();
    writeln!(out, "\nRun {} against {}.", record.run.id, names.join(", "))?;
    if baseline.len() < RUNS_MIN {
        writeln!(out, "From {RUNS_MIN} earlier runs on, the gate knows how much runs differ.")?;
    }
    for failure in &record.failures {
        let (row, target, why) = (&failure.row, &failure.target, &failure.message);
        writeln!(out, "Failed: {row} {target}, repeat {}: {why}", failure.repeat)?;
    }
    let is_open = findings.open_ones().next().is_some() || !record.failures.is_empty();
    writeln!(out, "{}\n", if is_open { "The gate is shut." } else { "The gate is open." })?;
    list(findings, false, form, out)
}

/// The runs to compare with: those named, or the last complete ones before the run, of the same
/// suite and machine.
fn baseline(history: &History, flags: &Flags, record: &Record) -> Result<Vec<Record>> {
    let names = if flags.baseline.is_empty() {
        earlier(history, flags.runs as usize, record)?
    } else {
        flags.baseline.clone()
    };
    ensure!(
        !names.is_empty(),
        "no earlier complete run of suite {:?} on this machine ({}); measure one first, or name it \
         with --baseline",
        record.run.suite,
        machine(&record.run.environment)
    );
    let read = |name: &String| {
        let earlier = history.read(name)?;
        ensure!(earlier.is_complete(), "run {name} is not complete, so it is no baseline");
        ensure!(earlier.run.id != record.run.id, "run {name} is the run to judge");
        Ok(earlier)
    };
    names.iter().map(read).collect()
}

/// Names of the last complete runs before `record`, of the same suite and machine.
pub(super) fn earlier(history: &History, most: usize, record: &Record) -> Result<Vec<String>> {
    let machine = machine(&record.run.environment);
    let started = &record.run.started;
    let mut names: Vec<String> = history
        .runs()?
        .into_iter()
        .filter(|run| run.is_complete && run.suite == record.run.suite && run.machine == machine)
        .filter(|run| run.id != record.run.id && run.started < *started)
        .map(|run| run.id)
        .collect();
    names.drain(..names.len().saturating_sub(most));
    Ok(names)
}
