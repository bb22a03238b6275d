//! The summary of a run: medians and ranges of each cell, as a table or as JSON.

use crate::progress::figure;
use crate::scenario::rows::Row;
use anyhow::Result;
use butternut_lab::record::{Cell, Record};
use butternut_lab::reports::published::Figure;
use serde_json::json;
use std::collections::BTreeMap;
use std::io::Write;
use std::path::Path;

/// Cells with their values in ascending order, and the unit.
type Cells<'a> = BTreeMap<Cell, (Vec<f64>, &'a str)>;

/// Prints the summary to stdout, with the published figures of the rows.
///
/// # Errors
/// It cannot be written.
pub(crate) fn print(record: &Record, rows: &[Row], path: &Path, as_json: bool) -> Result<()> {
    let mut cells = Cells::new();
    for sample in &record.samples {
        let cell = cells.entry(sample.cell()).or_insert((Vec::new(), &sample.unit));
        cell.0.push(sample.value);
    }
    for (values, _) in cells.values_mut() {
        values.sort_by(f64::total_cmp);
    }
    let mut out = std::io::stdout().lock();
    if as_json {
        writeln!(out, "{:#}", as_value(record, &cells, path))?;
        return Ok(());
    }
    let mut row = "";
    for (cell, (values, unit)) in &cells {
        if cell.row != row {
            row = &cell.row;
            writeln!(out, "{row}")?;
            for line in published(rows, row) {
                writeln!(out, "  published: {line}")?;
            }
        }
        let switches = cell.switches.iter().map(|(name, value)| format!("{name}={value}"));
        let target: Vec<_> = std::iter::once(cell.target.clone()).chain(switches).collect();
        writeln!(
            out,
            "  {:<40} {:<16} {:>10} {unit:<8} {} to {}, n={}",
            target.join(" "),
            cell.metric,
            figure(median(values)),
            figure(values[0]),
            figure(values[values.len() - 1]),
            values.len()
        )?;
    }
    for failure in &record.failures {
        writeln!(out, "failed: {} {} #{}", failure.row, failure.target, failure.repeat)?;
    }
    writeln!(out, "record: {}", path.display())?;
    Ok(())
}

fn as_value(record: &Record, cells: &Cells<'_>, path: &Path) -> serde_json::Value {
    let cells: Vec<_> = cells
        .iter()
        .map(|(cell, (values, unit))| {
            json!({
                "row": cell.row, "target": cell.target, "switches": cell.switches,
                "metric": cell.metric, "unit": unit, "repeats": values.len(),
                "median": median(values), "least": values[0], "most": values[values.len() - 1],
            })
        })
        .collect();
    let end = record.end.as_ref();
    json!({
        "id": record.run.id, "record": path, "seed": record.run.seed,
        "planned": end.map(|end| end.planned), "done": end.map(|end| end.done),
        "cells": cells, "failures": record.failures,
    })
}

/// Returns the figures that others have published for a row.
fn published(rows: &[Row], name: &str) -> Vec<String> {
    let Some(row) = rows.iter().find(|row| row.name == name) else { return Vec::new() };
    let of_variant = row.scenario.published.iter().filter(|published| {
        published.variant.is_empty() || name.ends_with(&format!("/{}", published.variant))
    });
    of_variant
        .map(|published| {
            let Figure { metric, what, value, .. } = published;
            format!("{metric} {} ({what})", figure(*value))
        })
        .collect()
}

/// Returns the median of sorted values, of which there is at least one.
fn median(values: &[f64]) -> f64 {
    let middle = values.len() / 2;
    match values.len() % 2 {
        0 => f64::midpoint(values[middle - 1], values[middle]),
        _ => values[middle],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_median_is_in_the_middle() {
        assert!((median(&[1.0, 2.0, 9.0]) - 2.0).abs() < 1e-9);
        assert!((median(&[1.0, 2.0, 4.0, 9.0]) - 3.0).abs() < 1e-9);
    }
}
