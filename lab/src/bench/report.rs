//! Prints rows as they are measured: each contestant's median and range, and the ratios.

use anyhow::Result;
use std::io::Write;

/// The samples of one contestant in a row.
pub(crate) struct Column {
    pub(crate) name: &'static str,
    pub(crate) samples: Vec<f64>,
}

/// A contestant that goes through several phases, and returns one sample for each.
pub(crate) type PhaseRunner<'a> = (&'static str, &'a mut dyn FnMut() -> Result<Vec<f64>>);

pub(crate) struct Report {
    only: String,
    rows: usize,
}

impl Report {
    pub(crate) fn new(only: &str) -> Self {
        Self { only: only.to_owned(), rows: 0 }
    }

    pub(crate) fn is_selected(&self, row: &str) -> bool {
        row.contains(&self.only)
    }

    /// Runs every contestant `repeats` times in alternating order (A B B A ...) and prints the row
    /// with the ratios of the first contestant to each of the others.
    pub(crate) fn row(
        &mut self,
        name: &str,
        unit: &str,
        repeats: usize,
        contestants: &mut [(&'static str, &mut dyn FnMut() -> Result<f64>)],
    ) -> Result<()> {
        if !self.is_selected(name) {
            return Ok(());
        }
        let mut columns: Vec<Column> = contestants
            .iter()
            .map(|(name, _)| Column { name, samples: Vec::with_capacity(repeats) })
            .collect();
        for index in alternating(columns.len(), repeats) {
            let sample = (contestants[index].1)()?;
            columns[index].samples.push(sample);
        }
        self.print(name, unit, &columns)
    }

    /// As [`Self::row`], with a row for each phase.
    pub(crate) fn phases(
        &mut self,
        name: &str,
        unit: &str,
        phases: &[&str],
        repeats: usize,
        contestants: &mut [PhaseRunner<'_>],
    ) -> Result<()> {
        if !self.is_selected(name) {
            return Ok(());
        }
        let mut columns: Vec<Vec<Column>> = phases
            .iter()
            .map(|_| {
                let column = |(name, _): &PhaseRunner<'_>| Column { name, samples: Vec::new() };
                contestants.iter().map(column).collect()
            })
            .collect();
        for index in alternating(contestants.len(), repeats) {
            for (phase, sample) in (contestants[index].1)()?.into_iter().enumerate() {
                columns[phase][index].samples.push(sample);
            }
        }
        for (phase, columns) in phases.iter().zip(&columns) {
            self.print(&format!("{name}: {phase}"), unit, columns)?;
        }
        Ok(())
    }

    /// Prints a row of one value, such as a count or a size.
    pub(crate) fn value(&mut self, name: &str, value: &str) -> Result<()> {
        if self.is_selected(name) {
            self.rows += 1;
            writeln!(std::io::stdout(), "{name:<44} {value}")?;
        }
        Ok(())
    }

    pub(crate) fn print(&mut self, name: &str, unit: &str, columns: &[Column]) -> Result<()> {
        let mut out = std::io::stdout().lock();
        write!(out, "{name:<44}")?;
        let ours = median(&columns[0].samples);
        for column in columns {
            let middle = median(&column.samples);
            let (low, high) = range(&column.samples);
            write!(
                out,
                " {} {} [{}..{}] {unit}",
                column.name,
                show(middle),
                show(low),
                show(high)
            )?;
            if !std::ptr::eq(column, &raw const columns[0]) && middle > 0.0 {
                write!(out, " (ratio {:.2})", ours / middle)?;
            }
            write!(out, ";")?;
        }
        writeln!(out)?;
        self.rows += 1;
        Ok(())
    }

    pub(crate) fn finish(&self) -> Result<()> {
        anyhow::ensure!(self.rows > 0, "no row's name contains '{}'", self.only);
        Ok(())
    }
}

/// Returns the indices of the contestants in the order in which they run: A B B A ...
fn alternating(contestants: usize, repeats: usize) -> Vec<usize> {
    let at = |repeat: usize, turn: usize| {
        if repeat.is_multiple_of(2) { turn } else { contestants - 1 - turn }
    };
    (0..repeats).flat_map(|repeat| (0..contestants).map(move |turn| at(repeat, turn))).collect()
}

fn show(value: f64) -> String {
    if value >= 100.0 { format!("{value:.0}") } else { format!("{value:.2}") }
}

fn range(samples: &[f64]) -> (f64, f64) {
    samples
        .iter()
        .fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), s| (low.min(*s), high.max(*s)))
}

pub(crate) fn median(samples: &[f64]) -> f64 {
    let mut sorted = samples.to_vec();
    sorted.sort_by(f64::total_cmp);
    let middle = sorted.len() / 2;
    match (sorted.len(), sorted.len() % 2) {
        (0, _) => 0.0,
        (_, 1) => sorted[middle],
        _ => f64::midpoint(sorted[middle - 1], sorted[middle]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_of_an_even_count_is_the_mean_of_the_middle_two() {
        assert!((median(&[4.0, 1.0, 3.0, 2.0]) - 2.5).abs() < 1e-9);
        assert!((median(&[3.0, 1.0, 2.0]) - 2.0).abs() < 1e-9);
    }
}
