//! The plan of a run: its cells, their order, and how often each is repeated.
//!
//! ```text
//! cell     one row on one target with one combination of switches
//! round n  the n-th repeat of cells, in an order shuffled from the seed
//! ```
//!
//! 1. The order of a round depends on the seed and the number of the round only, so a run that is
//!    resumed continues with the same order.
//! 2. After the rounds that every cell takes part in, a cell is repeated while its mean is known
//!    less precisely than wanted. Whether it is depends only on repeats of earlier rounds (law 1).
//! 3. A cell that has failed twice is not repeated.

use crate::drivers::fio;
use crate::scenario::rows::{Row, combinations};
use crate::scenario::{Driver, Variables};
use crate::target::{Kind, Target};
use crate::tools::Tools;
use std::collections::BTreeMap;

/// Half of the 95 % interval of the mean, as a part of it, that ends the repeats of a cell.
const PRECISION: f64 = 0.03;
const FAILURES_MAX: usize = 2;

/// What is repeated: one row on one target.
#[derive(Clone, Debug)]
pub(crate) struct Cell {
    /// Indices of the rows and targets of the plan.
    pub(crate) row: usize,
    pub(crate) target: usize,
    pub(crate) switches: Variables,
    pub(crate) history: History,
}

/// What is known of a cell.
#[derive(Clone, Debug, Default)]
pub(crate) struct History {
    /// Values of its first metric, by repeat.
    pub(crate) values: BTreeMap<u32, f64>,
    /// Repeats that failed.
    pub(crate) failures: Vec<u32>,
}

/// Numbers of repeats.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Repeats {
    /// Every cell has this many.
    pub(crate) least: u32,
    pub(crate) most: u32,
}

/// The cells of a run, and what cannot be run.
#[derive(Debug)]
pub(crate) struct Plan {
    pub(crate) rows: Vec<Row>,
    pub(crate) targets: Vec<Target>,
    pub(crate) cells: Vec<Cell>,
    /// Reasons, with what is left out.
    pub(crate) left_out: Vec<String>,
}

impl Plan {
    /// Makes the cells of the rows on the targets. `is_given`: the user has named the targets, so
    /// those of the suites do not count.
    pub(crate) fn new(rows: Vec<Row>, targets: Vec<Target>, is_given: bool, tools: &Tools) -> Self {
        let (mut cells, mut left_out) = (Vec::new(), BTreeMap::<String, u32>::new());
        for (at, row) in rows.iter().enumerate() {
            for (to, target) in targets.iter().enumerate() {
                let kind = target.kind.name();
                if !is_given && !row.targets.contains(&target.label) {
                    continue;
                }
                let only = &row.scenario.only;
                if !only.is_empty() && !only.iter().any(|only| only == kind) {
                    continue;
                }
                if let Some(why) = refusal(row, target, tools) {
                    *left_out
                        .entry(format!("{} on {}: {why}", suite_of(row), target.label))
                        .or_default() += 1;
                    continue;
                }
                let switches = if target.kind.has_switches() {
                    combinations(&usable(row, kind))
                } else {
                    vec![Variables::new()]
                };
                cells.extend(switches.into_iter().map(|switches| Cell {
                    row: at,
                    target: to,
                    switches,
                    history: History::default(),
                }));
            }
        }
        let left_out = left_out.into_iter().map(|(why, count)| match count {
            1 => why,
            count => format!("{why} ({count} rows)"),
        });
        Self { rows, targets, cells, left_out: left_out.collect() }
    }

    /// Removes the targets that no cell is measured on.
    pub(crate) fn drop_unused_targets(&mut self) {
        let used: Vec<bool> = (0..self.targets.len())
            .map(|target| self.cells.iter().any(|cell| cell.target == target))
            .collect();
        for cell in &mut self.cells {
            cell.target = used[..cell.target].iter().filter(|is_used| **is_used).count();
        }
        let mut is_used = used.iter();
        self.targets.retain(|_| is_used.next().copied().unwrap_or(false));
    }

    /// Returns the cell of a sample.
    pub(crate) fn find(&self, row: &str, target: &str, switches: &Variables) -> Option<usize> {
        self.cells.iter().position(|cell| {
            self.rows[cell.row].name == row
                && self.targets[cell.target].label == target
                && cell.switches == *switches
        })
    }

    /// Returns the name of a cell for messages.
    pub(crate) fn name(&self, cell: usize) -> String {
        let cell = &self.cells[cell];
        let names = [self.rows[cell.row].name.clone(), self.targets[cell.target].label.clone()];
        let switches = cell.switches.iter().map(|(switch, value)| format!("{switch}={value}"));
        names.into_iter().chain(switches).collect::<Vec<_>>().join(" ")
    }

    /// Returns the number of measurements that are known to be wanted.
    pub(crate) fn planned(&self, repeats: Repeats) -> u32 {
        let of = |cell: &Cell| {
            let done = cell.history.values.len() + cell.history.failures.len();
            repeats.least.max(u32::try_from(done).unwrap_or(u32::MAX))
        };
        self.cells.iter().map(of).sum()
    }

    /// Returns the number of measurements in later rounds that every cell takes part in.
    pub(crate) fn left_after(&self, round: u32, repeats: Repeats) -> usize {
        let rounds = repeats.least.saturating_sub(round + 1);
        self.cells.len() * usize::try_from(rounds).unwrap_or(usize::MAX)
    }

    /// Returns the cells of a round, in their order (law 1).
    pub(crate) fn round(&self, round: u32, repeats: Repeats, seed: u64) -> Vec<usize> {
        let mut cells: Vec<usize> = (0..self.cells.len()).collect();
        fastrand::Rng::with_seed(seed.wrapping_add(u64::from(round))).shuffle(&mut cells);
        cells.retain(|cell| self.cells[*cell].history.wants(round, repeats));
        cells
    }
}

impl History {
    /// Returns whether a cell takes part in a round (laws 2 and 3).
    fn wants(&self, round: u32, repeats: Repeats) -> bool {
        let failures = self.failures.iter().filter(|repeat| **repeat < round).count();
        if round >= repeats.most || failures >= FAILURES_MAX {
            return false;
        }
        let values: Vec<f64> = self.values.range(..round).map(|(_, value)| *value).collect();
        round < repeats.least || half_interval(&values).is_none_or(|part| part > PRECISION)
    }

    /// Returns whether a repeat has been recorded, or has failed.
    pub(crate) fn is_done(&self, repeat: u32) -> bool {
        self.values.contains_key(&repeat) || self.failures.contains(&repeat)
    }
}

/// Returns half of the 95 % interval of the mean of values, as a part of the mean; nothing for less
/// than two values, or a mean of 0.
pub(crate) fn half_interval(values: &[f64]) -> Option<f64> {
    // Quantiles of Student's distribution, by degrees of freedom.
    const T95: [f64; 9] = [12.71, 4.30, 3.18, 2.78, 2.57, 2.45, 2.36, 2.31, 2.26];
    let count = values.len() as f64;
    let mean = values.iter().sum::<f64>() / count;
    if values.len() < 2 || mean == 0.0 {
        return None;
    }
    let squares: f64 = values.iter().map(|value| (value - mean).powi(2)).sum();
    let deviation = (squares / (count - 1.0)).sqrt();
    let t = T95.get(values.len() - 2).copied().unwrap_or(2.0);
    Some(t * deviation / count.sqrt() / mean.abs())
}

/// Returns the switches that a kind of target has: `buffers` is an option of the fio engine.
fn usable(row: &Row, kind: &str) -> BTreeMap<String, Vec<crate::scenario::Scalar>> {
    let mut switches = row.switches.clone();
    if kind != "butternut" {
        switches.remove("buffers");
    }
    switches
}

/// Says why a row cannot run on a target, or nothing.
fn refusal(row: &Row, target: &Target, tools: &Tools) -> Option<String> {
    let scenario = &row.scenario;
    let is_unmounted = matches!(target.kind, Kind::Raw | Kind::Butternut);
    if scenario.driver == Driver::Metadata && is_unmounted {
        return Some("the metadata driver needs a mounted filesystem".to_owned());
    }
    fio::refusal(row, target, tools)
}

fn suite_of(row: &Row) -> &str {
    row.name.split('/').next().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    const THREE_TO_FIVE: Repeats = Repeats { least: 3, most: 5 };

    fn history(values: &[f64]) -> History {
        let values = values.iter().enumerate();
        let values = values.map(|(at, value)| (u32::try_from(at).unwrap(), *value));
        History { values: values.collect(), ..History::default() }
    }

    #[test]
    fn a_noisy_cell_is_repeated_and_a_quiet_one_is_not() {
        let (noisy, quiet) = (history(&[1.0, 2.0, 3.0]), history(&[2.0, 2.0, 2.001]));
        assert!(noisy.wants(3, THREE_TO_FIVE) && !quiet.wants(3, THREE_TO_FIVE));
        assert!(quiet.wants(2, THREE_TO_FIVE) && !noisy.wants(5, THREE_TO_FIVE));
        let failed = History { failures: vec![0, 1], ..History::default() };
        assert!(failed.wants(1, THREE_TO_FIVE) && !failed.wants(2, THREE_TO_FIVE));
    }

    #[test]
    fn later_repeats_do_not_change_an_earlier_round() {
        let noisy = history(&[1.0, 2.0, 3.0, 2.0, 2.0]);
        assert!(noisy.wants(3, THREE_TO_FIVE) && noisy.is_done(4) && !noisy.is_done(5));
    }

    #[test]
    fn intervals_are_parts_of_the_mean() {
        assert_eq!(half_interval(&[1.0]), None);
        assert_eq!(half_interval(&[0.0, 0.0]), None);
        assert!((half_interval(&[9.0, 11.0]).unwrap() - 1.271).abs() < 1e-6);
        assert!(half_interval(&[5.0; 4]).unwrap() < 1e-9);
    }

    #[test]
    fn a_seed_decides_the_order() {
        let cell =
            Cell { row: 0, target: 0, switches: Variables::new(), history: History::default() };
        let plan = Plan {
            rows: Vec::new(),
            targets: Vec::new(),
            cells: vec![cell; 20],
            left_out: Vec::new(),
        };
        let order = |round, seed| plan.round(round, THREE_TO_FIVE, seed);
        assert_eq!(order(0, 7), order(0, 7));
        assert!(order(0, 7) != order(1, 7) && order(0, 7) != order(0, 8));
        let mut sorted = order(1, 7);
        sorted.sort_unstable();
        assert_eq!(sorted, (0..20).collect::<Vec<_>>());
    }
}
