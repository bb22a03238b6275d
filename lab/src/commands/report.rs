//! `report`: writes the report of a run into a directory.

#![allow(clippy::format_push_string, reason = "reports are not built where speed matters")]

use super::flags::{HistoryFlags, LimitFlags};
use super::{compare, gate};
use crate::history::{History, Point, machine};
use crate::judge::comparison::Comparison;
use crate::judge::selection::Selection;
use crate::record::Record;
use crate::reports::page::{Contents, page};
use crate::reports::published::{self, Published};
use crate::reports::tables::{Form, Table};
use crate::reports::{figures, words};
use anyhow::{Context, Result};
use std::io::Write;
use std::path::{Path, PathBuf};

/// The column that ratios are taken to, where no other is chosen.
const REFERENCE: &str = "kernel:btrfs";

/// Flags of `report`.
#[derive(Debug, clap::Args)]
pub struct Flags {
    /// The run: an id, a path, `latest` or `latest~N`.
    #[arg(default_value = "latest")]
    run: String,
    /// Directory of the report: report.html, report.md, report.txt, report.csv and results.jsonl.
    #[arg(long, value_name = "DIR")]
    out: PathBuf,
    /// Runs to compare with, separated by commas, instead of the eight before it.
    #[arg(long, value_name = "RUN,...", value_delimiter = ',')]
    baseline: Vec<String>,
    /// File of a suite, or directory of suites, whose published figures stand beside the measured
    /// ones instead of those of the suites of this program.
    #[arg(long, value_name = "PATH")]
    suites: Vec<PathBuf>,
    /// The column that ratios are taken to: the start of a target's name.
    #[arg(long, value_name = "TARGET", default_value = REFERENCE)]
    reference: String,
    #[command(flatten)]
    history: HistoryFlags,
    #[command(flatten)]
    limits: LimitFlags,
}

/// Writes the report of the run `run` of the history into `directory`, with the published figures
/// of `suites` (texts of suite files), and prints where it is to `out`.
///
/// # Errors
///
/// There is no such run, or the history cannot be read, or the report cannot be written.
pub fn write(
    history: &Path,
    run_id: &str,
    directory: &Path,
    suites: &[&str],
    out: &mut dyn Write,
) -> Result<()> {
    let flags = Flags {
        run: run_id.to_owned(),
        out: directory.to_owned(),
        baseline: Vec::new(),
        suites: Vec::new(),
        reference: REFERENCE.to_owned(),
        history: HistoryFlags { directory: Some(history.to_owned()) },
        limits: LimitFlags::default(),
    };
    run(&flags, suites, out).map(drop)
}

/// Writes the report, and prints where it is.
pub(super) fn run(flags: &Flags, suites: &[&str], out: &mut dyn Write) -> Result<bool> {
    let history = flags.history.open()?;
    let path = history.find(&flags.run)?;
    let record = Record::read(&path)?;
    let mut all = Vec::new();
    if flags.suites.is_empty() {
        for text in suites {
            all.extend(published::parse(text)?);
        }
    }
    for path in &flags.suites {
        all.extend(published::read(path)?);
    }
    let (comparison, baseline) = judged(&history, flags, &record)?;
    let points = points(&history, &record)?;
    let contents = Contents {
        record: &record,
        comparison: comparison.as_ref(),
        baseline,
        published: &all,
        history: &points,
        reference: &flags.reference,
    };
    std::fs::create_dir_all(&flags.out)
        .with_context(|| format!("cannot create {}", flags.out.display()))?;
    write_file(&flags.out, "report.html", &page(&contents)?)?;
    write_file(&flags.out, "report.md", &text(&contents, Form::Markdown))?;
    write_file(&flags.out, "report.txt", &text(&contents, Form::Text))?;
    write_file(&flags.out, "report.csv", &samples(&record, &all).show(Form::Csv))?;
    let copy = flags.out.join("results.jsonl");
    // The run may have been read from there.
    if copy.canonicalize().ok() != path.canonicalize().ok() {
        std::fs::copy(&path, &copy).with_context(|| format!("cannot write {}", copy.display()))?;
    }
    writeln!(out, "{}", flags.out.join("report.html").display())?;
    Ok(true)
}

/// The comparison with the baseline, and what the baseline is.
fn judged(
    history: &History,
    flags: &Flags,
    record: &Record,
) -> Result<(Option<Comparison>, String)> {
    let names = if flags.baseline.is_empty() {
        gate::earlier(history, 8, record)?
    } else {
        flags.baseline.clone()
    };
    if names.is_empty() {
        return Ok((None, String::new()));
    }
    let earlier: Vec<Record> =
        names.iter().map(|name| history.read(name)).collect::<Result<_, _>>()?;
    let first = Selection { runs: names.clone(), ..Selection::default() };
    let second = Selection { runs: vec![record.run.id.clone()], ..Selection::default() };
    let ours = std::slice::from_ref(record);
    let limits = flags.limits.limits();
    let comparison = compare::of_records((&first, &earlier), (&second, ours), limits);
    // A run of other rows than those before it is reported without a verdict.
    let Ok(comparison) = comparison else { return Ok((None, String::new())) };
    let many = if names.len() == 1 { "run" } else { "runs" };
    Ok((Some(comparison), format!("Compared with the {many} {}.", names.join(", "))))
}

/// The history of the rows of `record` on its machine.
fn points(history: &History, record: &Record) -> Result<Vec<Point>> {
    let machine = machine(&record.run.environment);
    let mut suites: Vec<&str> =
        record.samples.iter().filter_map(|sample| sample.row.split('/').next()).collect();
    suites.sort_unstable();
    suites.dedup();
    let mut all = Vec::new();
    for suite in suites {
        let found = history.points(suite)?.into_iter();
        all.extend(found.filter(|point| {
            let is_measured = |s: &crate::record::Sample| s.row == point.row;
            point.machine == machine && record.samples.iter().any(is_measured)
        }));
    }
    Ok(all)
}

/// The report as text or Markdown.
fn text(contents: &Contents<'_>, form: Form) -> String {
    let record = contents.record;
    let heading = |level: usize, text: &str| match form {
        Form::Markdown => format!("{} {text}\n\n", "#".repeat(level)),
        Form::Text | Form::Csv => format!("{text}\n\n"),
    };
    let mut page = heading(1, &format!("{}: {}", record.run.suite, record.run.id));
    if let Some(comparison) = contents.comparison {
        page.push_str(&format!("{} {}\n\n", words::summary(comparison), contents.baseline));
        page.push_str(&words::table(comparison).show(form));
        page.push('\n');
        for note in &comparison.notes {
            page.push_str(&format!("- {note}\n"));
        }
        page.push('\n');
    } else {
        page.push_str("Not compared: there is no earlier run to compare with.\n\n");
    }
    for scenario in figures::scenarios(record, contents.published) {
        page.push_str(&heading(2, &scenario.name));
        for metric in &scenario.metrics {
            page.push_str(&format!("{} ({})\n\n", metric.name, metric.unit));
            page.push_str(&figures_table(metric).show(form));
            page.push('\n');
        }
    }
    let environment = &record.run.environment;
    page.push_str(&heading(2, "Environment"));
    page.push_str(&format!(
        "{}, commit {}{}, {}\n",
        machine(environment),
        environment.commit,
        if environment.dirty { " with changes" } else { "" },
        record.run.command.join(" ")
    ));
    page
}

fn figures_table(metric: &figures::Metric<'_>) -> Table {
    let mut head = vec!["variant"];
    head.extend(metric.columns.iter().map(String::as_str));
    head.push("published");
    let mut table = Table::new(&head);
    for line in &metric.lines {
        let mut cells = vec![line.variant.clone()];
        let shown = |cell: &figures::Cell<'_>| {
            let (low, high) = (words::number(cell.low), words::number(cell.high));
            format!("{} [{low}, {high}]", words::number(cell.median))
        };
        cells.extend(line.cells.iter().map(|cell| cell.as_ref().map_or("-".to_owned(), shown)));
        let published = line.published.iter();
        let published = published.map(|p| format!("{} {}", words::number(p.value), p.what));
        cells.push(published.collect::<Vec<_>>().join("; "));
        table.push(cells);
    }
    table
}

/// All samples, one a line, and the published figures.
fn samples(record: &Record, published: &[Published]) -> Table {
    let mut table = Table::new(&[
        "row", "target", "metric", "unit", "value", "repeat", "order", "started", "seconds",
    ]);
    for sample in &record.samples {
        table.push(vec![
            sample.row.clone(),
            figures::label(sample),
            sample.metric.clone(),
            sample.unit.clone(),
            sample.value.to_string(),
            sample.repeat.to_string(),
            sample.order.to_string(),
            sample.started.clone(),
            sample.seconds.to_string(),
        ]);
    }
    for figure in published {
        let is_measured = |s: &crate::record::Sample| figure.is_of(&s.row, &s.metric);
        if let Some(sample) = record.samples.iter().find(|sample| is_measured(sample)) {
            table.push(vec![
                sample.row.clone(),
                format!("published: {}", figure.what),
                figure.metric.clone(),
                sample.unit.clone(),
                figure.value.to_string(),
            ]);
        }
    }
    table
}

fn write_file(directory: &Path, name: &str, text: &str) -> Result<()> {
    let path = directory.join(name);
    std::fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))
}
