//! What is printed: for each row a line for each contestant, with its ratios.

use super::rows::{Entry, Row, Unit, Who};
use super::turn::Sample;
use crate::report::median;
use anyhow::Result;
use std::io::Write;

/// As the system words it.
const NOT_SUPPORTED: &str = "Operation not supported";

/// Samples of one row, by entry.
pub(crate) struct Cells {
    samples: Vec<Vec<Sample>>,
    refused: Vec<Option<String>>,
}

impl Cells {
    pub(crate) fn of(row: &Row) -> Self {
        let entries = row.entries.len();
        Self { samples: vec![Vec::new(); entries], refused: vec![None; entries] }
    }

    /// # Errors
    /// The sample's, where the kernel did not refuse what it may refuse.
    pub(crate) fn add(&mut self, at: usize, entry: &Entry, sample: Result<Sample>) -> Result<()> {
        match sample {
            Ok(sample) => self.samples[at].push(sample),
            Err(error) if entry.may_refuse && error.to_string().contains(NOT_SUPPORTED) => {
                self.refuse(at, "the kernel refuses it");
            }
            Err(error) => {
                return Err(error.context(format!("{} {}", entry.who.label(), entry.variant)));
            }
        }
        Ok(())
    }

    /// No sample will come, and why.
    pub(crate) fn refuse(&mut self, at: usize, why: &str) {
        self.refused[at] = Some(why.to_owned());
    }

    fn median(&self, at: usize, of: impl Fn(&Sample) -> Option<f64>) -> Option<f64> {
        let values: Vec<f64> = self.samples[at].iter().filter_map(of).collect();
        (!values.is_empty()).then(|| median(&values))
    }

    fn rate(&self, at: usize) -> Option<f64> {
        self.median(at, |sample| Some(sample.rate))
    }

    /// How far apart the samples lie, of the median.
    fn spread(&self, at: usize) -> Option<f64> {
        let rates = || self.samples[at].iter().map(|sample| sample.rate);
        let (low, high) = (rates().reduce(f64::min)?, rates().reduce(f64::max)?);
        if self.samples[at].len() == 1 {
            return None;
        }
        Some((high - low) / self.rate(at)?)
    }
}

/// What an entry is compared with.
struct Marks {
    raw: Option<f64>,
    btrfs: Option<f64>,
    /// The kernel's best of the row, whichever file system and variant it is.
    best: Option<f64>,
}

impl Marks {
    fn of(row: &Row, cells: &Cells, variant: &str) -> Self {
        let best_of = |is_one: &dyn Fn(&Entry) -> bool| {
            let places = row.entries.iter().enumerate().filter(|(_, entry)| is_one(entry));
            places.filter_map(|(at, _)| cells.rate(at)).reduce(f64::max)
        };
        let btrfs =
            |variant: &str| best_of(&|entry| entry.who == Who::Btrfs && entry.variant == variant);
        Self {
            raw: best_of(&|entry| entry.who == Who::Raw),
            // Like with like, where there is such a one.
            btrfs: btrfs(variant)
                .or_else(|| variant.starts_with("nodatasum").then(|| btrfs("nodatasum"))?)
                .or_else(|| btrfs(""))
                .or_else(|| best_of(&|entry| entry.who == Who::Btrfs)),
            best: best_of(&|entry| entry.who.is_kernel()),
        }
    }
}

pub(crate) fn print(row: &Row, cells: &Cells) -> Result<()> {
    let mut out = std::io::stdout().lock();
    let unit = match row.unit {
        Unit::KiloIops => "k/s",
        Unit::Megabytes => "MB/s",
    };
    writeln!(
        out,
        "\n{:<38}{unit:>9} spread  of raw  of btrfs  of best  CPU ns  (machine)  p99.9 us{}",
        row.name,
        if row.shows_memory { "  held MiB" } else { "" }
    )?;
    for (at, entry) in row.entries.iter().enumerate() {
        let name = format!("  {} {}", entry.who.label(), entry.variant);
        let Some(rate) = cells.rate(at) else {
            let why = cells.refused[at].as_deref().unwrap_or("not run");
            writeln!(out, "{name:<38}  left out: {why}")?;
            continue;
        };
        let marks = Marks::of(row, cells, entry.variant);
        let of = |mark: Option<f64>| mark.filter(|mark| *mark > 0.0).map(|mark| rate / mark);
        let spread = cells.spread(at).map(|spread| format!("{:.0}%", spread * 100.0));
        let spread = spread.as_deref().unwrap_or("-");
        write!(out, "{name:<38}{:>9}{spread:>7}", figure(Some(rate), 1))?;
        write!(
            out,
            "{:>8}{:>10}{:>9}{:>8}{:>11}{:>10}",
            figure(of(marks.raw), 2),
            figure(of(marks.btrfs), 2),
            figure(of(marks.best), 2),
            figure(cells.median(at, |sample| Some(sample.cpu_ns)), 0),
            format!("({})", figure(cells.median(at, |sample| Some(sample.machine_ns)), 0)),
            figure(cells.median(at, |sample| sample.p999_us), 0),
        )?;
        if row.shows_memory {
            let held = cells.median(at, |sample| Some(sample.held_bytes as f64 / 1_048_576.0));
            write!(out, "{:>10}", figure(held, 0))?;
        }
        writeln!(out, "{}", ways(cells.samples[at].last()))?;
    }
    Ok(())
}

fn figure(value: Option<f64>, decimals: usize) -> String {
    value.map_or_else(|| "-".to_owned(), |value| format!("{value:.decimals$}"))
}

/// Which way requests went, where that was more than one in a hundred of the most.
fn ways(sample: Option<&Sample>) -> String {
    let counts = sample.map_or(&[][..], |sample| &sample.ways);
    let most = counts.iter().map(|(_, count)| *count).max().unwrap_or(0);
    let often = counts.iter().filter(|(_, count)| count * 100 >= most);
    let ways: Vec<_> = often
        .map(|(name, count)| match count * 100 / most {
            100 => name.clone(),
            percent => format!("{name} {percent}%"),
        })
        .collect();
    if ways.is_empty() { String::new() } else { format!("  {}", ways.join(", ")) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cells(rates: &[f64]) -> Cells {
        let samples = rates.iter().map(|rate| Sample { rate: *rate, ..Sample::default() });
        Cells { samples: vec![samples.collect()], refused: vec![None] }
    }

    #[test]
    fn a_spread_is_of_the_median() {
        assert_eq!(cells(&[90.0, 100.0, 120.0]).spread(0), Some(0.3));
        assert_eq!(cells(&[]).spread(0), None);
        assert_eq!(cells(&[90.0]).spread(0), None, "one sample has none");
    }

    #[test]
    fn an_entry_is_compared_with_its_like_and_with_the_best() {
        let entries =
            [(Who::Btrfs, ""), (Who::Btrfs, "nodatasum"), (Who::Xfs, ""), (Who::Ours, "")];
        let suites = super::super::rows::all();
        let mut row = suites.into_iter().flat_map(|suite| suite.rows).next().unwrap();
        row.entries.retain(|entry| entries.contains(&(entry.who, entry.variant)));
        let mut cells = Cells::of(&row);
        for (at, rate) in [10.0, 20.0, 30.0, 15.0].into_iter().enumerate() {
            let sample = Sample { rate, ..Sample::default() };
            cells.add(at, &row.entries[at], Ok(sample)).unwrap();
        }
        let marks = |variant| {
            let marks = Marks::of(&row, &cells, variant);
            (marks.raw, marks.btrfs, marks.best)
        };
        assert_eq!(marks(""), (None, Some(10.0), Some(30.0)));
        assert_eq!(marks("nodatasum, simple_read=off"), (None, Some(20.0), Some(30.0)));
        assert_eq!(marks("borrowed"), (None, Some(10.0), Some(30.0)));
    }

    #[test]
    fn ways_that_hardly_anything_went_are_left_out() {
        let ways_of = |counts: &[(&str, u64)]| {
            let counts = counts.iter().map(|(name, count)| ((*name).to_owned(), *count));
            ways(Some(&Sample { ways: counts.collect(), ..Sample::default() }))
        };
        assert_eq!(ways_of(&[("a", 1000), ("b", 2)]), "  a");
        assert_eq!(ways_of(&[("a", 1000), ("b", 300)]), "  a, b 30%");
        assert_eq!(ways_of(&[]), "");
    }
}
