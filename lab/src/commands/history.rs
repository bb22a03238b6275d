//! `history`: lists runs, or shows one row over the runs.

use super::flags::HistoryFlags;
use crate::history::{History, Point};
use crate::judge::comparison::Limits;
use crate::judge::{change_points, statistics};
use crate::reports::tables::{Form, Table};
use crate::reports::words;
use anyhow::Result;
use std::collections::BTreeMap;
use std::io::Write;

/// Flags of `history`.
#[derive(Debug, clap::Args)]
pub struct Flags {
    /// Row, the start of a row (suite/scenario) or a part of its name; all runs without it.
    row: Option<String>,
    /// Only targets whose name contains this.
    #[arg(long, value_name = "TARGET", default_value = "")]
    target: String,
    /// Only this metric.
    #[arg(long, value_name = "NAME")]
    metric: Option<String>,
    /// Make the index again from the records first.
    #[arg(long)]
    rebuild: bool,
    /// Form of the output.
    #[arg(long, value_enum, default_value_t)]
    format: Form,
    #[command(flatten)]
    history: HistoryFlags,
}

/// Prints the history.
pub(super) fn run(flags: &Flags, out: &mut dyn Write) -> Result<bool> {
    let mut history = flags.history.open()?;
    if flags.rebuild {
        history.rebuild()?;
    }
    match &flags.row {
        None => runs(&history, flags.format, out)?,
        Some(row) => rows(flags, row, &history.points(row)?, out)?,
    }
    Ok(true)
}

fn runs(history: &History, form: Form, out: &mut dyn Write) -> Result<()> {
    let mut table = Table::new(&[
        "run", "started", "suite", "samples", "failures", "state", "commit", "kernel",
    ]);
    for run in history.runs()? {
        let state = match (run.is_complete, run.note.is_empty()) {
            (true, true) => "complete".to_owned(),
            (false, true) => "not complete".to_owned(),
            (_, false) => run.note,
        };
        let (samples, failures) = (run.samples.to_string(), run.failures.to_string());
        let revision = run.revision;
        table.push(vec![
            run.id,
            run.started,
            run.suite,
            samples,
            failures,
            state,
            revision,
            run.kernel,
        ]);
    }
    write!(out, "{}", table.show(form))?;
    Ok(())
}

/// A cell over the runs of one machine.
type Track<'a> = BTreeMap<(String, String), Vec<&'a Point>>;

fn rows(flags: &Flags, row: &str, points: &[Point], out: &mut dyn Write) -> Result<()> {
    let mut tracks = Track::new();
    for point in points {
        let is_wanted = flags.metric.as_ref().is_none_or(|metric| *metric == point.metric);
        if is_wanted && point.target.contains(&flags.target) {
            tracks.entry((cell(point), point.machine.clone())).or_default().push(point);
        }
    }
    anyhow::ensure!(!tracks.is_empty(), "no complete run has a row {row:?}");
    let mut table = Table::new(&["cell", "run", "started", "commit", "median", "unit", "change"]);
    for ((cell, _), track) in &tracks {
        let changes = changes(track);
        for (at, point) in track.iter().enumerate() {
            table.push(vec![
                cell.clone(),
                point.run.clone(),
                point.started.clone(),
                point.revision.clone(),
                words::number(statistics::median(&point.values).unwrap_or(0.0)),
                point.unit.clone(),
                changes.get(&at).cloned().unwrap_or_default(),
            ]);
        }
    }
    write!(out, "{}", table.show(flags.format))?;
    Ok(())
}

fn cell(point: &Point) -> String {
    let cell = crate::record::Cell {
        row: point.row.clone(),
        target: point.target.clone(),
        switches: point.switches.clone(),
        metric: point.metric.clone(),
    };
    cell.to_string()
}

/// The change points of a track by index, each as a phrase.
fn changes(track: &[&Point]) -> BTreeMap<usize, String> {
    let series: Vec<f64> =
        track.iter().map(|point| statistics::median(&point.values).unwrap_or(0.0)).collect();
    let changes = change_points::notable(&series, Limits::default().effect, 1);
    let phrase = |ratio: f64| {
        let sign = if ratio < 1.0 { "" } else { "+" };
        format!("{sign}{}", words::percent(ratio - 1.0))
    };
    changes.into_iter().map(|change| (change.index, phrase(change.ratio))).collect()
}
