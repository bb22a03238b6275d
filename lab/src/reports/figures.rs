//! The figures of a run, arranged by scenario, metric, variant and target.

use crate::judge::statistics as stats;
use crate::record::{Better, Record, Sample};
use crate::reports::published::Published;
use std::cmp::Ordering;
use std::collections::BTreeMap;

/// One scenario of a run (`suite/scenario`).
#[derive(Debug, Clone)]
pub struct Scenario<'a> {
    pub name: String,
    pub metrics: Vec<Metric<'a>>,
}

/// One metric of a scenario: variants down, targets across.
#[derive(Debug, Clone)]
pub struct Metric<'a> {
    pub name: String,
    pub unit: String,
    pub better: Better,
    /// Target and switches of each column.
    pub columns: Vec<String>,
    pub lines: Vec<Line<'a>>,
}

/// One variant.
#[derive(Debug, Clone)]
pub struct Line<'a> {
    pub row: String,
    pub variant: String,
    /// A cell for each column.
    pub cells: Vec<Option<Cell<'a>>>,
    pub published: Vec<&'a Published>,
}

/// The repeats of one cell.
#[derive(Debug, Clone)]
pub struct Cell<'a> {
    pub median: f64,
    pub low: f64,
    pub high: f64,
    /// In the order of the repeats.
    pub samples: Vec<&'a Sample>,
}

impl Cell<'_> {
    /// The sample whose value is the median, or the nearest below it.
    pub fn middle(&self) -> &Sample {
        let mut sorted = self.samples.clone();
        sorted.sort_by(|a, b| a.value.total_cmp(&b.value));
        sorted[(sorted.len() - 1) / 2]
    }
}

/// Arranges the samples of `record`.
pub fn scenarios<'a>(record: &'a Record, published: &'a [Published]) -> Vec<Scenario<'a>> {
    let mut groups: BTreeMap<Natural, Vec<&Sample>> = BTreeMap::new();
    for sample in &record.samples {
        groups.entry(Natural(parts(&sample.row).0)).or_default().push(sample);
    }
    let scenario = |(name, samples): (Natural, Vec<&'a Sample>)| {
        let mut names: Vec<&str> = Vec::new();
        for sample in &samples {
            if !names.contains(&sample.metric.as_str()) {
                names.push(&sample.metric);
            }
        }
        names.sort_by_key(|name| rank_of_metric(name));
        let of = |name: &str| -> Vec<&Sample> {
            samples.iter().copied().filter(|s| s.metric == name).collect()
        };
        let metrics = names.iter().map(|name| metric(name, &of(name), published)).collect();
        Scenario { name: name.0, metrics }
    };
    groups.into_iter().map(scenario).collect()
}

/// Splits a row into `suite/scenario` and the variant.
pub fn parts(row: &str) -> (String, String) {
    let mut pieces = row.splitn(3, '/');
    let (suite, scenario) = (pieces.next().unwrap_or_default(), pieces.next());
    let name = scenario.map_or(suite.to_owned(), |scenario| format!("{suite}/{scenario}"));
    (name, pieces.next().unwrap_or_default().to_owned())
}

/// The number at the end of a variant, such as 4 of `jobs=4`, and what is before it.
pub fn number(variant: &str) -> Option<(&str, f64)> {
    let digits = variant.bytes().rev().take_while(u8::is_ascii_digit).count();
    let (name, number) = variant.split_at(variant.len() - digits);
    Some((name.strip_suffix('=')?, number.parse().ok()?))
}

fn metric<'a>(name: &str, samples: &[&'a Sample], published: &'a [Published]) -> Metric<'a> {
    let mut labels: Vec<(usize, Natural)> = Vec::new();
    let mut lines: BTreeMap<Natural, BTreeMap<String, Vec<&'a Sample>>> = BTreeMap::new();
    for sample in samples {
        let label = label(sample);
        let key = (rank(&label), Natural(label.clone()));
        if !labels.contains(&key) {
            labels.push(key);
        }
        let line = lines.entry(Natural(sample.row.clone())).or_default();
        line.entry(label).or_default().push(*sample);
    }
    labels.sort();
    let columns: Vec<String> = labels.into_iter().map(|(_, label)| label.0).collect();
    let line = |(row, mut cells): (Natural, BTreeMap<String, Vec<&'a Sample>>)| Line {
        variant: parts(&row.0).1,
        cells: columns.iter().map(|column| cells.remove(column).and_then(cell)).collect(),
        published: published.iter().filter(|p| p.is_of(&row.0, name)).collect(),
        row: row.0,
    };
    let lines = lines.into_iter().map(line).collect();
    let (unit, better) =
        samples.first().map_or((String::new(), Better::Higher), |s| (s.unit.clone(), s.better));
    Metric { name: name.to_owned(), unit, better, columns, lines }
}

fn cell(mut samples: Vec<&Sample>) -> Option<Cell<'_>> {
    samples.sort_by_key(|sample| sample.repeat);
    let values: Vec<f64> = samples.iter().map(|sample| sample.value).collect();
    let (low, high) = values
        .iter()
        .fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), v| (low.min(*v), high.max(*v)));
    Some(Cell { median: stats::median(&values)?, low, high, samples })
}

/// Target and switches as one label.
pub fn label(sample: &Sample) -> String {
    let switches = sample.switches.iter().map(|(name, value)| format!(" {name}={value}"));
    sample.target.clone() + &switches.collect::<String>()
}

/// Butternut comes first, then the kernel's filesystems, then the rest, and the raw device last.
fn rank(label: &str) -> usize {
    let starts = ["butternut", "mount", "kernel:btrfs", "kernel:"];
    let known = starts.iter().position(|start| label.starts_with(start));
    known.unwrap_or(if label.starts_with("raw") { 6 } else { 5 })
}

/// Throughput comes first, then latency, then the rest, in the order of the record.
fn rank_of_metric(name: &str) -> usize {
    let starts = ["mbps", "iops", "mean", "p50", "p9"];
    starts.iter().position(|start| name.contains(start)).unwrap_or(starts.len())
}

/// A text that is ordered by its numbers, so that `jobs=4` comes before `jobs=16`.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Natural(String);

impl PartialOrd for Natural {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Natural {
    fn cmp(&self, other: &Self) -> Ordering {
        pieces(&self.0).cmp(&pieces(&other.0)).then_with(|| self.0.cmp(&other.0))
    }
}

/// A run of digits as a number, or the text between two of them.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
enum Piece<'a> {
    Number(u64),
    Text(&'a str),
}

fn pieces(text: &str) -> Vec<Piece<'_>> {
    let mut pieces = Vec::new();
    let mut rest = text;
    while !rest.is_empty() {
        let is_number = rest.starts_with(|c: char| c.is_ascii_digit());
        let end = rest.find(|c: char| c.is_ascii_digit() != is_number).unwrap_or(rest.len());
        let (piece, after) = rest.split_at(end);
        let number = if is_number { piece.parse().ok() } else { None };
        pieces.push(number.map_or(Piece::Text(piece), Piece::Number));
        rest = after;
    }
    pieces
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_split_into_scenario_and_variant() {
        let own = |a: &str, b: &str| (a.to_owned(), b.to_owned());
        assert_eq!(parts("nosec/own/jobs=4"), own("nosec/own", "jobs=4"));
        assert_eq!(parts("nosec/own"), own("nosec/own", ""));
        assert_eq!(parts("nosec"), own("nosec", ""));
        assert_eq!(parts("a/b/c/d"), own("a/b", "c/d"));
        assert_eq!(number("jobs=16"), Some(("jobs", 16.0)));
        assert_eq!(number("bs=4k"), None);
        assert_eq!(number("16"), None);
    }

    #[test]
    fn names_are_ordered_by_their_numbers() {
        let mut names = ["jobs=16", "jobs=4", "a", "jobs=1,bs=4k"].map(|n| Natural(n.to_owned()));
        names.sort();
        assert_eq!(names.map(|name| name.0), ["a", "jobs=1,bs=4k", "jobs=4", "jobs=16"]);
    }
}
