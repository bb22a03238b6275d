//! Judges two sides cell by cell: ratio, interval, effect size, and a verdict for all cells
//! together.
//!
//! ```text
//! both sides are one run, with 6 or more common repeats     pairs of repeats
//! both sides have 3 or more runs                            locations of the runs
//! one side has 3 or more runs, the other has less           one more run of that history?
//! else                                                      repeats
//! ```
//!
//! Laws:
//!
//! 1. A difference is reported when its p-value, adjusted for the number of cells, is at most
//!    [`Limits::discoveries`], its interval excludes 1, and it is at least [`Limits::effect`].
//! 2. What is not reported comes with the smallest slowdown that would have been (four times out of
//!    five), so "within noise" never means "unchanged".
//! 3. How the cells are compared depends on the number of runs and repeats only, never on the
//!    values.
//! 4. Repeats of one run do not tell how much runs differ. A comparison that rests on them alone
//!    says so.

use super::selection::{Cells, Key, Values};
use super::statistics::{self as stats, Test};
use crate::record::{Better, Environment};
use serde::Serialize;

/// Fewest common repeats of one run that are compared as pairs.
pub const PAIRS_MIN: usize = 6;

/// Fewest runs of a side that are compared as runs.
pub const RUNS_MIN: usize = 3;

/// What is reported.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Limits {
    /// Expected part of false ones among the reported differences, in `0.0..1.0`.
    pub discoveries: f64,
    /// Smallest difference that is reported, as a part: 0.02 is 2 %.
    pub effect: f64,
    /// Level of the intervals, in `0.0..1.0`.
    pub level: f64,
}

impl Default for Limits {
    fn default() -> Self {
        Self { discoveries: 0.05, effect: 0.02, level: 0.95 }
    }
}

/// How a cell was compared.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Method {
    Pairs,
    Runs,
    History,
    Repeats,
}

/// The result for a cell.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Verdict {
    /// The second side is worse.
    Worse,
    /// The second side is better.
    Better,
    /// They differ, and by less than [`Limits::effect`].
    Small,
    WithinNoise,
    /// There are too few values, or none that have a ratio.
    NotJudged,
}

/// A side of a judged cell.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Side {
    /// Target and switches.
    pub label: String,
    pub median: f64,
    pub runs: usize,
    pub repeats: usize,
}

/// A judged cell.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Judgement {
    pub row: String,
    pub metric: String,
    pub unit: String,
    pub better: Better,
    pub first: Side,
    pub second: Side,
    pub method: Method,
    pub verdict: Verdict,
    /// Second to first.
    pub ratio: Option<f64>,
    /// Interval of the ratio.
    pub interval: Option<(f64, f64)>,
    /// Cliff's delta, in `-1.0..=1.0`; negative when the second side has lower values.
    pub effect: f64,
    pub p: Option<f64>,
    /// The p-value adjusted for the number of cells.
    pub p_adjusted: Option<f64>,
    /// Smallest slowdown that would have been reported, as a part of the first side's value.
    pub visible: Option<f64>,
    /// Why the cell was not judged.
    pub reason: Option<String>,
}

/// A whole comparison.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Comparison {
    pub limits: Limits,
    /// Worst first, then by row.
    pub cells: Vec<Judgement>,
    /// What the reader must know, in sentences.
    pub notes: Vec<String>,
}

impl Comparison {
    /// Number of cells with `verdict`.
    pub fn count(&self, verdict: Verdict) -> usize {
        self.cells.iter().filter(|cell| cell.verdict == verdict).count()
    }
}

/// Compares the cells that both sides have. `same_run` says that both sides are the same single
/// run.
pub fn compare(first: &Cells, second: &Cells, same_run: bool, limits: Limits) -> Comparison {
    let mut notes = missing(first, second);
    let mut cells = Vec::new();
    let mut tests = Vec::new();
    for (key, ours) in second {
        if let Some(theirs) = first.get(key) {
            let (judgement, test) = judge(key, theirs, ours, same_run, limits);
            cells.push(judgement);
            tests.push(test);
        }
    }
    decide(&mut cells, &tests, limits);
    if cells.iter().any(|cell| cell.method == Method::Repeats) && !same_run {
        notes.push(format!(
            "Fewer than {RUNS_MIN} runs a side: repeats of one run do not show how much runs \
             differ, so some of the reported differences may be differences between runs."
        ));
    }
    cells.sort_by(|a, b| order(a).partial_cmp(&order(b)).unwrap_or(std::cmp::Ordering::Equal));
    Comparison { limits, cells, notes }
}

/// Lists in sentences what differs between the environments of two runs.
pub fn differences(first: &Environment, second: &Environment) -> Vec<String> {
    let mut found = Vec::new();
    let mut tell = |what: &str, a: &str, b: &str| {
        if a != b {
            found.push(format!("The {what} differs: {a:?} and {b:?}."));
        }
    };
    tell("kernel", &first.kernel, &second.kernel);
    tell("processor", &first.cpu, &second.cpu);
    tell("number of cores", &first.cores.to_string(), &second.cores.to_string());
    tell("governor", &first.governor, &second.governor);
    tell("set of mitigations", &first.mitigations, &second.mitigations);
    tell("memory", &first.memory_bytes.to_string(), &second.memory_bytes.to_string());
    tell("device model", &first.device.model, &second.device.model);
    tell("kind of device", &first.device.kind, &second.device.kind);
    tell(
        "device size",
        &first.device.size_bytes.to_string(),
        &second.device.size_bytes.to_string(),
    );
    tell("I/O scheduler", &first.device.scheduler, &second.device.scheduler);
    tell("build profile", &first.build_profile, &second.build_profile);
    tell("set of compiler flags", &first.rustflags, &second.rustflags);
    for (name, version) in &first.versions {
        let other = second.versions.get(name).map_or("none", String::as_str);
        tell(&format!("version of {name}"), version, other);
    }
    found
}

fn missing(first: &Cells, second: &Cells) -> Vec<String> {
    let count =
        |of: &Cells, other: &Cells| of.keys().filter(|key| !other.contains_key(key)).count();
    let mut notes = Vec::new();
    for (count, side) in [(count(first, second), "first"), (count(second, first), "second")] {
        if count > 0 {
            notes.push(format!("{count} cells are on the {side} side only."));
        }
    }
    notes
}

fn judge(
    key: &Key,
    first: &Values,
    second: &Values,
    same_run: bool,
    limits: Limits,
) -> (Judgement, Option<Test>) {
    let method = method(first, second, same_run);
    let mut judgement = Judgement {
        row: key.row.clone(),
        metric: key.metric.clone(),
        unit: second.unit.clone(),
        better: second.better,
        first: side(first),
        second: side(second),
        method,
        verdict: Verdict::NotJudged,
        ratio: None,
        interval: None,
        effect: stats::dominance(&first.all(), &second.all()),
        p: None,
        p_adjusted: None,
        visible: None,
        reason: None,
    };
    let refusal = refusal(first, second);
    if refusal.is_some() {
        judgement.reason = refusal;
        return (judgement, None);
    }
    let pair = (logs(first), logs(second));
    let Some(test) = test(method, &pair.0, &pair.1) else {
        let have = judgement.first.repeats.min(judgement.second.repeats);
        let want = stats::REPEATS_MIN;
        judgement.reason = Some(format!("too few repeats: have {have}, want at least {want}"));
        return (judgement, None);
    };
    judgement.ratio = Some(test.difference.exp());
    judgement.interval = interval(method, &pair.0, &pair.1, limits.level, seed(key));
    judgement.p = Some(test.p);
    (judgement, Some(test))
}

/// Sets what depends on all cells together.
#[allow(clippy::cast_precision_loss, reason = "counts of rows are small")]
fn decide(cells: &mut [Judgement], tests: &[Option<Test>], limits: Limits) {
    let judged: Vec<usize> = (0..cells.len()).filter(|at| tests[*at].is_some()).collect();
    let p: Vec<f64> = judged.iter().filter_map(|at| cells[*at].p).collect();
    let adjusted = stats::adjusted(&p);
    let rejected = adjusted.iter().filter(|p| **p <= limits.discoveries).count();
    let alpha = limits.discoveries * rejected.max(1) as f64 / judged.len().max(1) as f64;
    for (at, p_adjusted) in judged.into_iter().zip(adjusted) {
        let (cell, Some(test)) = (&mut cells[at], tests[at]) else { continue };
        let log = stats::visible(test.error, test.freedom, alpha.min(0.5));
        let slowdown = match cell.better {
            Better::Higher => 1.0 - (-log).exp(),
            Better::Lower => log.exp() - 1.0,
        };
        cell.visible = Some(slowdown.max(limits.effect));
        cell.p_adjusted = Some(p_adjusted);
        let excludes = cell.interval.is_some_and(|(low, high)| low > 1.0 || high < 1.0);
        let is_worse = (test.difference < 0.0) == (cell.better == Better::Higher);
        cell.verdict = if p_adjusted > limits.discoveries || !excludes {
            Verdict::WithinNoise
        } else if (test.difference.exp() - 1.0).abs() < limits.effect {
            Verdict::Small
        } else if is_worse {
            Verdict::Worse
        } else {
            Verdict::Better
        };
    }
}

fn method(first: &Values, second: &Values, same_run: bool) -> Method {
    let (a, b) = (first.runs.len(), second.runs.len());
    if same_run && a == 1 && b == 1 && pairs(&first.runs[0], &second.runs[0]).len() >= PAIRS_MIN {
        Method::Pairs
    } else if a >= RUNS_MIN && b >= RUNS_MIN {
        Method::Runs
    } else if a >= RUNS_MIN || b >= RUNS_MIN {
        Method::History
    } else {
        Method::Repeats
    }
}

type Logs = Vec<Vec<(u32, f64)>>;

fn test(method: Method, first: &Logs, second: &Logs) -> Option<Test> {
    match method {
        Method::Pairs => stats::compare_pairs(&pairs(&first[0], &second[0])),
        Method::Runs => Some(stats::compare(
            stats::estimate(&locations(first))?,
            stats::estimate(&locations(second))?,
        )),
        Method::History if first.len() >= RUNS_MIN => {
            let one = all(second);
            let variance = stats::estimate(&one)?.variance;
            stats::compare_one(&locations(first), stats::location(&one)?, variance)
        }
        Method::History => {
            let test = test(method, second, first)?;
            Some(Test { difference: -test.difference, ..test })
        }
        Method::Repeats => {
            Some(stats::compare(stats::estimate(&all(first))?, stats::estimate(&all(second))?))
        }
    }
}

fn interval(
    method: Method,
    first: &Logs,
    second: &Logs,
    level: f64,
    seed: u64,
) -> Option<(f64, f64)> {
    let between = |a: Vec<f64>, b: Vec<f64>| {
        let (a, b) = (stats::winsorized(&a), stats::winsorized(&b));
        stats::interval(a.len().min(b.len()), level, seed, |rng| {
            let first = stats::location(&stats::resampled(&a, rng))?;
            Some(stats::location(&stats::resampled(&b, rng))? - first)
        })
    };
    let logs = match method {
        Method::Pairs => {
            let pairs = stats::winsorized(&pairs(&first[0], &second[0]));
            stats::interval(pairs.len(), level, seed, |rng| {
                stats::location(&stats::resampled(&pairs, rng))
            })
        }
        Method::Runs => between(locations(first), locations(second)),
        Method::Repeats => between(all(first), all(second)),
        Method::History if first.len() >= RUNS_MIN => {
            let (many, one) = (locations(first), stats::location(&all(second))?);
            let middle = stats::mean(&many)?;
            stats::interval(many.len(), level, seed, |rng| {
                // The one run may be as far from its level as any run of the history was.
                let away = many[rng.usize(..many.len())] - middle;
                Some(one + away - stats::mean(&stats::resampled(&many, rng))?)
            })
        }
        Method::History => {
            let (low, high) = interval(method, second, first, level, seed)?;
            return Some((1.0 / high, 1.0 / low));
        }
    };
    logs.map(|(low, high)| (low.exp(), high.exp()))
}

fn refusal(first: &Values, second: &Values) -> Option<String> {
    if first.unit != second.unit || first.better != second.better {
        return Some(format!("units differ: {:?} and {:?}", first.unit, second.unit));
    }
    let low = first.all().into_iter().chain(second.all()).find(|value| *value <= 0.0);
    low.map(|value| format!("a value has no ratio: {value}"))
}

fn side(values: &Values) -> Side {
    let all = values.all();
    Side {
        label: values.label.clone(),
        median: stats::median(&all).unwrap_or(0.0),
        runs: values.runs.len(),
        repeats: all.len(),
    }
}

fn logs(values: &Values) -> Logs {
    let log =
        |run: &Vec<(u32, f64)>| run.iter().map(|(repeat, value)| (*repeat, value.ln())).collect();
    values.runs.iter().map(log).collect()
}

fn locations(runs: &Logs) -> Vec<f64> {
    let values = |run: &Vec<(u32, f64)>| run.iter().map(|(_, value)| *value).collect::<Vec<_>>();
    runs.iter().filter_map(|run| stats::location(&values(run))).collect()
}

fn all(runs: &Logs) -> Vec<f64> {
    runs.iter().flatten().map(|(_, value)| *value).collect()
}

/// The differences of the repeats that both have, second minus first.
fn pairs(first: &[(u32, f64)], second: &[(u32, f64)]) -> Vec<f64> {
    let other = |repeat: u32| first.iter().find(|(r, _)| *r == repeat).map(|(_, value)| *value);
    second.iter().filter_map(|(repeat, value)| Some(value - other(*repeat)?)).collect()
}

/// A seed that depends on the cell alone, so that a comparison can be repeated (FNV-1a).
fn seed(key: &Key) -> u64 {
    let step = |hash: u64, byte: &u8| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
    let text = [key.row.as_bytes(), key.metric.as_bytes()].concat();
    text.iter().fold(0xcbf2_9ce4_8422_2325, step)
}

fn order(cell: &Judgement) -> (Verdict, f64, &str, &str) {
    let size = cell.ratio.map_or(0.0, |ratio| -ratio.ln().abs());
    let size = if cell.verdict <= Verdict::Better { size } else { 0.0 };
    (cell.verdict, size, &cell.row, &cell.metric)
}

#[cfg(test)]
mod tests;
