//! A side of a comparison: runs, and the cells of them that are meant.
//!
//! ```text
//! RUN[,RUN...][:NAME=VALUE,...]
//!
//! 2026-01-02,2026-01-03            all cells of two runs
//! latest:target=kernel:btrfs       the cells of one target
//! latest:simple_read=off           the cells with one value of a switch
//! ```
//!
//! Names are `target`, `row`, `metric` or that of a switch. A target is selected by its whole name,
//! or by the part of it before a `:` or `@`; a row by its name or by the part before a `/`.

#![allow(clippy::format_push_string, reason = "reports are not built where speed matters")]

use crate::record::{Better, Record, Sample, Switches};
use std::collections::BTreeMap;

/// A side as it was written.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Selection {
    /// Names of runs, at least one.
    pub runs: Vec<String>,
    /// What the samples must have, by name.
    pub wanted: BTreeMap<String, String>,
}

/// Why a side cannot be compared.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum SelectionError {
    #[error("{text:?}: no run is named (write RUN, RUN,RUN or RUN:target=NAME)")]
    NoRun { text: String },
    #[error("{text:?}: {part:?}: want NAME=VALUE")]
    Part { text: String, part: String },
    #[error(
        "{row} {metric}: {side} has several cells: {first}; {second} (select one by NAME=VALUE)"
    )]
    Several { row: String, metric: String, side: String, first: String, second: String },
}

/// What the cells of two sides have in common. The parts that a side selects are not in it.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Key {
    pub row: String,
    pub target: Option<String>,
    pub switches: Switches,
    pub metric: String,
}

/// The values of one cell on one side.
#[derive(Debug, Clone, PartialEq)]
pub struct Values {
    pub unit: String,
    pub better: Better,
    /// The cell's target and switches, for the reader.
    pub label: String,
    /// For each run that has the cell: its values by repeat, in the order of the repeats.
    pub runs: Vec<Vec<(u32, f64)>>,
}

impl Values {
    /// All values, of all runs.
    pub fn all(&self) -> Vec<f64> {
        self.runs.iter().flatten().map(|(_, value)| *value).collect()
    }
}

/// The cells of one side.
pub type Cells = BTreeMap<Key, Values>;

impl Selection {
    /// Parses the form at the top of this file.
    ///
    /// # Errors
    ///
    /// No run is named, or a part is not `NAME=VALUE`.
    pub fn parse(text: &str) -> Result<Self, SelectionError> {
        let (runs, parts) = text.split_once(':').unwrap_or((text, ""));
        let runs: Vec<String> = runs
            .split(',')
            .map(str::trim)
            .filter(|run| !run.is_empty())
            .map(str::to_owned)
            .collect();
        if runs.is_empty() {
            return Err(SelectionError::NoRun { text: text.to_owned() });
        }
        let mut wanted = BTreeMap::new();
        for part in parts.split(',').filter(|part| !part.is_empty()) {
            let pair = part.split_once('=').filter(|(name, _)| !name.is_empty());
            let Some((name, value)) = pair else {
                let (text, part) = (text.to_owned(), part.to_owned());
                return Err(SelectionError::Part { text, part });
            };
            wanted.insert(name.to_owned(), value.to_owned());
        }
        Ok(Self { runs, wanted })
    }

    fn admits(&self, sample: &Sample) -> bool {
        self.wanted.iter().all(|(name, value)| match name.as_str() {
            "target" => is_part(&sample.target, value, &[':', '@']),
            "row" => is_part(&sample.row, value, &['/']),
            "metric" => sample.metric == *value,
            switch => sample.switches.get(switch).is_some_and(|have| have == value),
        })
    }
}

/// Gathers the cells of `side` from `records`, which are the runs that it names. Keys leave out
/// what `side` or `other` selects.
///
/// # Errors
///
/// Two cells of the side have the same key.
pub fn gather(
    side: &Selection,
    other: &Selection,
    records: &[Record],
) -> Result<Cells, SelectionError> {
    let selected = |name: &str| side.wanted.contains_key(name) || other.wanted.contains_key(name);
    let mut cells = Cells::new();
    for record in records {
        let mut open: BTreeMap<Key, Vec<(u32, f64)>> = BTreeMap::new();
        for sample in record.samples.iter().filter(|sample| side.admits(sample)) {
            let key = key(sample, &selected);
            let label = label(sample);
            let values = cells.entry(key.clone()).or_insert_with(|| Values {
                unit: sample.unit.clone(),
                better: sample.better,
                label: label.clone(),
                runs: Vec::new(),
            });
            if values.label != label {
                return Err(SelectionError::Several {
                    row: key.row,
                    metric: key.metric,
                    side: side.runs.join(","),
                    first: values.label.clone(),
                    second: label,
                });
            }
            open.entry(key).or_default().push((sample.repeat, sample.value));
        }
        for (key, mut run) in open {
            run.sort_by_key(|(repeat, _)| *repeat);
            if let Some(values) = cells.get_mut(&key) {
                values.runs.push(run);
            }
        }
    }
    Ok(cells)
}

fn key(sample: &Sample, selected: &impl Fn(&str) -> bool) -> Key {
    let switches = sample.switches.iter().filter(|(name, _)| !selected(name));
    Key {
        row: sample.row.clone(),
        target: (!selected("target")).then(|| sample.target.clone()),
        switches: switches.map(|(name, value)| (name.clone(), value.clone())).collect(),
        metric: sample.metric.clone(),
    }
}

fn label(sample: &Sample) -> String {
    let mut label = sample.target.clone();
    for (name, value) in &sample.switches {
        label.push_str(&format!(" {name}={value}"));
    }
    label
}

fn is_part(whole: &str, part: &str, ends: &[char]) -> bool {
    whole.strip_prefix(part).is_some_and(|rest| rest.is_empty() || rest.starts_with(ends))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_side_names_runs_and_what_their_samples_must_have() {
        let side = Selection::parse("a,b:target=kernel:btrfs,nosec=on").expect("parsed");
        assert_eq!(side.runs, ["a", "b"]);
        assert_eq!(side.wanted["target"], "kernel:btrfs");
        assert_eq!(side.wanted["nosec"], "on");
        for (text, want) in [("", "no run"), (":target=x", "no run"), ("a:x", "want NAME=VALUE")] {
            let error = Selection::parse(text).expect_err(text).to_string();
            assert!(error.contains(want), "{error}");
        }
    }

    #[test]
    fn a_target_is_selected_by_its_name_or_the_start_of_it() {
        let ends = [':', '@'];
        assert!(is_part("kernel:btrfs@/dev/x", "kernel:btrfs", &ends));
        assert!(is_part("kernel:btrfs:-n 4k@/dev/x", "kernel:btrfs", &ends));
        assert!(is_part("raw:/dev/x", "raw", &ends));
        assert!(!is_part("kernel:btrfs", "kernel:b", &ends));
    }
}
