//! `compare`: judges two sides cell by cell.

use super::flags::{HistoryFlags, LimitFlags};
use crate::history::History;
use crate::judge::comparison::{Comparison, Limits, Verdict, compare, differences};
use crate::judge::selection::{Selection, gather};
use crate::record::Record;
use crate::reports::tables::Form;
use crate::reports::words;
use anyhow::Result;
use std::io::Write;

/// Flags of `compare`.
#[derive(Debug, clap::Args)]
pub struct Flags {
    /// First side: RUN[,RUN...][:NAME=VALUE,...], where RUN is an id, a path, `latest` or
    /// `latest~N`, and NAME is target, row, metric or a switch.
    first: String,
    /// Second side, which is judged against the first. `:NAME=VALUE,...` alone means the same runs.
    second: String,
    #[command(flatten)]
    history: HistoryFlags,
    #[command(flatten)]
    limits: LimitFlags,
    /// Form of the output.
    #[arg(long, value_enum, default_value_t, conflicts_with = "json")]
    format: Form,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

/// Compares both sides. Returns `true` when no cell is worse.
pub(super) fn run(flags: &Flags, out: &mut dyn Write) -> Result<bool> {
    let history = flags.history.open()?;
    let first = Selection::parse(&flags.first)?;
    let second = match flags.second.strip_prefix(':') {
        Some(_) => Selection::parse(&format!("{}{}", first.runs.join(","), flags.second))?,
        None => Selection::parse(&flags.second)?,
    };
    let comparison = of(&history, &first, &second, flags.limits.limits())?;
    if flags.json {
        serde_json::to_writer_pretty(&mut *out, &comparison)?;
        writeln!(out)?;
    } else {
        show(&comparison, flags.format, out)?;
    }
    Ok(comparison.count(Verdict::Worse) == 0)
}

/// Reads both sides and compares them.
pub(super) fn of(
    history: &History,
    first: &Selection,
    second: &Selection,
    limits: Limits,
) -> Result<Comparison> {
    let read = |side: &Selection| -> Result<Vec<Record>> {
        side.runs.iter().map(|name| Ok(history.read(name)?)).collect()
    };
    let (theirs, ours) = (read(first)?, read(second)?);
    of_records((first, &theirs), (second, &ours), limits)
}

/// Compares the records of two sides.
pub(super) fn of_records(
    first: (&Selection, &[Record]),
    second: (&Selection, &[Record]),
    limits: Limits,
) -> Result<Comparison> {
    let cells = (gather(first.0, second.0, first.1)?, gather(second.0, first.0, second.1)?);
    let same_run = match (first.1, second.1) {
        ([first], [second]) => first.run.id == second.run.id,
        _ => false,
    };
    let mut comparison = compare(&cells.0, &cells.1, same_run, limits);
    anyhow::ensure!(!comparison.cells.is_empty(), "both sides have no cell in common");
    comparison.notes.extend(notes(first.1, second.1));
    Ok(comparison)
}

/// Prints a comparison in `form`.
pub(super) fn show(comparison: &Comparison, form: Form, out: &mut dyn Write) -> Result<()> {
    if form == Form::Csv {
        write!(out, "{}", words::table(comparison).show(form))?;
        return Ok(());
    }
    writeln!(out, "{}\n", words::summary(comparison))?;
    write!(out, "{}", words::table(comparison).show(form))?;
    if !comparison.notes.is_empty() {
        writeln!(out)?;
    }
    for note in &comparison.notes {
        writeln!(out, "Note: {note}")?;
    }
    Ok(())
}

fn notes(first: &[Record], second: &[Record]) -> Vec<String> {
    let mut notes = Vec::new();
    for record in first.iter().chain(second) {
        notes.extend(record.notes.iter().cloned());
        if !record.is_complete() {
            notes.push(format!("Run {} is not complete.", record.run.id));
        }
        if !record.failures.is_empty() {
            notes.push(format!("Run {}: {} repeats failed.", record.run.id, record.failures.len()));
        }
    }
    if let (Some(first), Some(second)) = (first.first(), second.first()) {
        notes.extend(differences(&first.run.environment, &second.run.environment));
    }
    notes.dedup();
    notes
}
