//! `self-check`: A/B/A/A. Equal runs must not differ, and the other one is judged against them.

use super::compare;
use super::flags::{HistoryFlags, LimitFlags};
use crate::judge::comparison::{Comparison, Verdict};
use crate::judge::selection::Selection;
use crate::record::Record;
use crate::reports::tables::Form;
use crate::reports::words;
use anyhow::Result;
use std::io::Write;

/// Flags of `self-check`.
#[derive(Debug, clap::Args)]
pub struct Flags {
    /// Either one run, whose repeats are split into two equal halves, or four runs in the order in
    /// which they were measured: A B A A.
    #[arg(num_args = 1..=4, required = true, value_name = "RUN")]
    runs: Vec<String>,
    #[command(flatten)]
    history: HistoryFlags,
    #[command(flatten)]
    limits: LimitFlags,
}

/// Prints the comparisons. Returns `true` when no pair of equal runs differs.
pub(super) fn run(flags: &Flags, out: &mut dyn Write) -> Result<bool> {
    let history = flags.history.open()?;
    let records: Vec<Record> =
        flags.runs.iter().map(|name| history.read(name)).collect::<Result<_, _>>()?;
    let limits = flags.limits.limits();
    let side = Selection { runs: vec!["a run".to_owned()], ..Selection::default() };
    let judge = |first: &[Record], second: &[Record]| {
        compare::of_records((&side, first), (&side, second), limits)
    };
    let equal: Vec<(String, Comparison)> = match records.as_slice() {
        [whole] => {
            let (even, odd) = halves(whole);
            vec![("even against odd repeats".to_owned(), judge(&[even], &[odd])?)]
        }
        [a, _, b, c] => {
            let mut pairs = Vec::new();
            for (first, second) in [(a, b), (b, c), (a, c)] {
                let title = format!("A/A: {} and {}", first.run.id, second.run.id);
                let pair = (std::slice::from_ref(first), std::slice::from_ref(second));
                pairs.push((title, judge(pair.0, pair.1)?));
            }
            pairs
        }
        _ => anyhow::bail!("want one run, or four in the order A B A A"),
    };
    let mut differing = 0;
    for (title, comparison) in &equal {
        let found = differ(comparison);
        differing += found.len();
        writeln!(out, "{title}: {} of {} cells differ", found.len(), comparison.cells.len())?;
        for line in found {
            writeln!(out, "  {line}")?;
        }
    }
    if let [a, b, c, d] = records.as_slice() {
        writeln!(out, "\nB against the three A:")?;
        let equal = [a.clone(), c.clone(), d.clone()];
        compare::show(&judge(&equal, std::slice::from_ref(b))?, Form::Text, out)?;
    }
    Ok(differing == 0)
}

fn differ(comparison: &Comparison) -> Vec<String> {
    let is_different = |verdict| matches!(verdict, Verdict::Worse | Verdict::Better);
    let cells = comparison.cells.iter().filter(|cell| is_different(cell.verdict));
    let line = |cell| words::verdict(cell, comparison.limits.effect);
    cells.map(|cell| format!("{} {}: {}", cell.row, cell.metric, line(cell))).collect()
}

/// The record with its even, and with its odd repeats.
fn halves(whole: &Record) -> (Record, Record) {
    let part = |rest: u32, name: &str| {
        let mut part = whole.clone();
        part.run.id = format!("{}-{name}", whole.run.id);
        part.samples.retain(|sample| sample.repeat % 2 == rest);
        part
    };
    (part(0, "even"), part(1, "odd"))
}
