//! Prints the rows: one line for each entry, with its ratios to the baselines.

use super::rows::{Contestant, Entry, Row, Unit};
use super::session::Sample;
use crate::report::median;
use anyhow::Result;
use std::io::Write;

/// The text of `EOPNOTSUPP`, which fio prints.
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

    /// Records the sample of entry `at`. An entry that may be refused and fails with `EOPNOTSUPP`
    /// is left out instead.
    ///
    /// # Errors
    /// Any other error of the sample.
    pub(crate) fn add(&mut self, at: usize, entry: &Entry, sample: Result<Sample>) -> Result<()> {
        match sample {
            Ok(sample) => self.samples[at].push(sample),
            Err(error) if entry.may_refuse && error.to_string().contains(NOT_SUPPORTED) => {
                self.refuse(at, "not supported by the kernel");
            }
            Err(error) => {
                return Err(error.context(format!(
                    "{} {}",
                    entry.contestant.label(),
                    entry.variant
                )));
            }
        }
        Ok(())
    }

    /// Leaves entry `at` out, for the reason `why`.
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

    /// Returns the range of the samples as a fraction of their median, if there are two or more.
    fn spread(&self, at: usize) -> Option<f64> {
        let rates = || self.samples[at].iter().map(|sample| sample.rate);
        let (low, high) = (rates().reduce(f64::min)?, rates().reduce(f64::max)?);
        if self.samples[at].len() == 1 {
            return None;
        }
        Some((high - low) / self.rate(at)?)
    }
}

/// The rates that an entry is compared with.
struct Baselines {
    raw: Option<f64>,
    btrfs: Option<f64>,
    /// The best rate of the kernel's file systems in this row, in any variant.
    best: Option<f64>,
}

impl Baselines {
    fn of(row: &Row, cells: &Cells, variant: &str) -> Self {
        let best_of = |is_one: &dyn Fn(&Entry) -> bool| {
            let places = row.entries.iter().enumerate().filter(|(_, entry)| is_one(entry));
            places.filter_map(|(at, _)| cells.rate(at)).reduce(f64::max)
        };
        let btrfs = |variant: &str| {
            best_of(&|entry| entry.contestant == Contestant::Btrfs && entry.variant == variant)
        };
        Self {
            raw: best_of(&|entry| entry.contestant == Contestant::Raw),
            // The same variant of btrfs, if the row has it, or else the nearest one.
            btrfs: btrfs(variant)
                .or_else(|| variant.starts_with("nodatasum").then(|| btrfs("nodatasum"))?)
                .or_else(|| btrfs(""))
                .or_else(|| best_of(&|entry| entry.contestant == Contestant::Btrfs)),
            best: best_of(&|entry| entry.contestant.is_kernel()),
        }
    }
}

pub(crate) fn print(row: &Row, cells: &Cells) -> Result<()> {
    let mut out = std::io::stdout().lock();
    let unit = match row.unit {
        Unit::KiloIops => "k/s",
        Unit::Megabytes => "MB/s",
        Unit::Transactions => "/s",
    };
    writeln!(
        out,
        "\n{:<38}{unit:>9} spread  of raw  of btrfs  of best  CPU ns  (machine)  p99.9 us{}",
        row.name,
        if row.shows_memory { "  cached MiB" } else { "" }
    )?;
    for (at, entry) in row.entries.iter().enumerate() {
        let name = format!("  {} {}", entry.contestant.label(), entry.variant);
        let Some(rate) = cells.rate(at) else {
            let why = cells.refused[at].as_deref().unwrap_or("not run");
            writeln!(out, "{name:<38}  left out: {why}")?;
            continue;
        };
        let baselines = Baselines::of(row, cells, entry.variant);
        let of = |mark: Option<f64>| mark.filter(|mark| *mark > 0.0).map(|mark| rate / mark);
        let spread = cells.spread(at).map(|spread| format!("{:.0}%", spread * 100.0));
        let spread = spread.as_deref().unwrap_or("-");
        write!(out, "{name:<38}{:>9}{spread:>7}", figure(Some(rate), 1))?;
        write!(
            out,
            "{:>8}{:>10}{:>9}{:>8}{:>11}{:>10}",
            figure(of(baselines.raw), 2),
            figure(of(baselines.btrfs), 2),
            figure(of(baselines.best), 2),
            figure(cells.median(at, |sample| Some(sample.cpu_ns)), 0),
            format!("({})", figure(cells.median(at, |sample| Some(sample.machine_ns)), 0)),
            figure(cells.median(at, |sample| sample.p999_us), 0),
        )?;
        if row.shows_memory {
            let session = cells.median(at, |sample| Some(sample.cached_bytes as f64 / 1_048_576.0));
            write!(out, "{:>10}", figure(session, 0))?;
        }
        writeln!(out, "{}", busy_lanes(cells.samples[at].last()))?;
    }
    Ok(())
}

fn figure(value: Option<f64>, decimals: usize) -> String {
    value.map_or_else(|| "-".to_owned(), |value| format!("{value:.decimals$}"))
}

/// Names the lanes that served requests, without those below 1% of the busiest lane.
fn busy_lanes(sample: Option<&Sample>) -> String {
    let counts = sample.map_or(&[][..], |sample| &sample.lanes);
    let most = counts.iter().map(|(_, count)| *count).max().unwrap_or(0);
    let often = counts.iter().filter(|(_, count)| count * 100 >= most);
    let lanes: Vec<_> = often
        .map(|(name, count)| match count * 100 / most {
            100 => name.clone(),
            percent => format!("{name} {percent}%"),
        })
        .collect();
    if lanes.is_empty() { String::new() } else { format!("  {}", lanes.join(", ")) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cells(rates: &[f64]) -> Cells {
        let samples = rates.iter().map(|rate| Sample { rate: *rate, ..Sample::default() });
        Cells { samples: vec![samples.collect()], refused: vec![None] }
    }

    #[test]
    fn spread_is_a_fraction_of_the_median() {
        assert_eq!(cells(&[90.0, 100.0, 120.0]).spread(0), Some(0.3));
        assert_eq!(cells(&[]).spread(0), None);
        assert_eq!(cells(&[90.0]).spread(0), None, "one sample has no spread");
    }

    #[test]
    fn an_entry_is_compared_with_the_same_variant_and_with_the_best() {
        let entries = [
            (Contestant::Btrfs, ""),
            (Contestant::Btrfs, "nodatasum"),
            (Contestant::Xfs, ""),
            (Contestant::Butternut, ""),
        ];
        let suites = super::super::rows::all();
        let mut row = suites.into_iter().flat_map(|suite| suite.rows).next().unwrap();
        row.entries.retain(|entry| entries.contains(&(entry.contestant, entry.variant)));
        let mut cells = Cells::of(&row);
        for (at, rate) in [10.0, 20.0, 30.0, 15.0].into_iter().enumerate() {
            let sample = Sample { rate, ..Sample::default() };
            cells.add(at, &row.entries[at], Ok(sample)).unwrap();
        }
        let baselines = |variant| {
            let baselines = Baselines::of(&row, &cells, variant);
            (baselines.raw, baselines.btrfs, baselines.best)
        };
        assert_eq!(baselines(""), (None, Some(10.0), Some(30.0)));
        assert_eq!(baselines("nodatasum, simple_read=off"), (None, Some(20.0), Some(30.0)));
        assert_eq!(baselines("borrowed"), (None, Some(10.0), Some(30.0)));
    }

    #[test]
    fn lanes_below_one_percent_are_left_out() {
        let lanes_of = |counts: &[(&str, u64)]| {
            let counts = counts.iter().map(|(name, count)| ((*name).to_owned(), *count));
            busy_lanes(Some(&Sample { lanes: counts.collect(), ..Sample::default() }))
        };
        assert_eq!(lanes_of(&[("a", 1000), ("b", 2)]), "  a");
        assert_eq!(lanes_of(&[("a", 1000), ("b", 300)]), "  a, b 30%");
        assert_eq!(lanes_of(&[]), "");
    }
}
