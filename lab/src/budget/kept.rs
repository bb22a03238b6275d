//! [`Kept`]: the file of the counts, and what differs from it.
//!
//! ```toml
//! [tolerance]          # parts by which a count may differ; 0 for those that are not here
//! instructions = 0.02
//!
//! [row.create]         # sums of so many operations
//! operations = 64
//! writes = 0
//! ```

use anyhow::{Result, ensure};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt::{self, Display, Formatter, Write};

const HEAD: &str = "\
# What operations of Butternut cost: sums of the requests to the device, their bytes, and the
# allocations of the calling thread. `butternut-lab budget` compares them, and
# `butternut-lab budget --update` writes this file.

";

/// The kept counts.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Kept {
    /// By the name of a count: the part by which it may differ.
    tolerance: BTreeMap<String, f64>,
    row: BTreeMap<String, Row>,
}

/// Sums of all measured calls of an operation.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Row {
    pub(super) operations: u64,
    pub(super) reads: u64,
    pub(super) read_bytes: u64,
    pub(super) writes: u64,
    pub(super) written_bytes: u64,
    pub(super) flushes: u64,
    pub(super) allocations: u64,
    /// By the kind of the build.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub(super) instructions: BTreeMap<String, u64>,
}

/// A count that is not the kept one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Difference {
    row: String,
    what: String,
    have: String,
    want: String,
    /// It costs more, or one of the sides has no such row.
    pub(super) is_failure: bool,
}

impl Display for Difference {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let Self { row, what, have, want, is_failure } = self;
        let note = if *is_failure { "" } else { " (fewer)" };
        write!(f, "{row}: {what}: have {have}, want {want}{note}")
    }
}

impl Row {
    /// Returns each count with its name.
    fn counts(&self) -> Vec<(&'static str, u64)> {
        vec![
            ("operations", self.operations),
            ("reads", self.reads),
            ("read_bytes", self.read_bytes),
            ("writes", self.writes),
            ("written_bytes", self.written_bytes),
            ("flushes", self.flushes),
            ("allocations", self.allocations),
        ]
    }
}

impl Kept {
    /// Parses the file.
    ///
    /// # Errors
    /// A key or a tolerance is wrong.
    pub(super) fn parse(text: &str) -> Result<Self> {
        let kept: Self = toml::from_str(text)?;
        for (name, part) in &kept.tolerance {
            let is_known = Row::default().counts().iter().any(|(known, _)| known == name);
            ensure!(is_known || name == "instructions", "tolerance.{name}: no count of this name");
            ensure!((0.0..1.0).contains(part), "tolerance.{name}: have {part}, want 0 to 1");
        }
        Ok(kept)
    }

    /// Returns the text of the file.
    ///
    /// # Errors
    /// None, as long as the counts are numbers of TOML.
    pub(super) fn text(&self) -> Result<String> {
        Ok(format!("{HEAD}{}", toml::to_string(self)?))
    }

    /// Replaces all counts. Instructions of other builds, and of rows that were counted without
    /// instructions, are kept.
    pub(super) fn replace(&mut self, rows: BTreeMap<String, Row>) {
        let mut old = std::mem::replace(&mut self.row, rows);
        for (name, row) in &mut self.row {
            let mut instructions = old.remove(name).unwrap_or_default().instructions;
            instructions.extend(std::mem::take(&mut row.instructions));
            row.instructions = instructions;
        }
    }

    /// Compares counts with the kept ones. `is_all`: rows that were not counted exist no more.
    pub(super) fn compare(&self, rows: &BTreeMap<String, Row>, is_all: bool) -> Vec<Difference> {
        let mut found = Vec::new();
        for (name, row) in rows {
            match self.row.get(name) {
                Some(kept) => self.compare_row(name, row, kept, &mut found),
                None => found.push(difference(name, "row", ("one", "none"), true)),
            }
        }
        let gone = self.row.keys().filter(|name| is_all && !rows.contains_key(*name));
        found.extend(gone.map(|name| difference(name, "row", ("none", "one"), true)));
        found
    }

    fn compare_row(&self, name: &str, row: &Row, kept: &Row, found: &mut Vec<Difference>) {
        let mut pairs: Vec<(String, u64, u64)> = row
            .counts()
            .into_iter()
            .zip(kept.counts())
            .map(|((what, have), (_, want))| (what.to_owned(), have, want))
            .collect();
        for (build, have) in &row.instructions {
            if let Some(want) = kept.instructions.get(build) {
                pairs.push(("instructions".to_owned(), *have, *want));
            }
        }
        for (what, have, want) in pairs {
            let part = self.tolerance.get(&what).copied().unwrap_or(0.0);
            if !is_within(have, want, part) {
                let shown = (each(have, row.operations), each(want, kept.operations));
                let is_failure = have > want || what == "operations";
                found.push(difference(name, &what, (&shown.0, &shown.1), is_failure));
            }
        }
    }
}

fn difference(row: &str, what: &str, pair: (&str, &str), is_failure: bool) -> Difference {
    let (have, want) = (pair.0.to_owned(), pair.1.to_owned());
    Difference { row: row.to_owned(), what: what.to_owned(), have, want, is_failure }
}

fn is_within(have: u64, want: u64, part: f64) -> bool {
    have.abs_diff(want) as f64 <= want as f64 * part
}

/// Returns a sum as text, with the number of operations.
fn each(sum: u64, operations: u64) -> String {
    format!("{sum} in {operations}")
}

/// Returns the counts for each operation, as a table.
pub(super) fn table(rows: &BTreeMap<String, Row>) -> Result<String, fmt::Error> {
    let has_instructions = rows.values().any(|row| !row.instructions.is_empty());
    let mut text = format!("{:<28}", "of each operation");
    for head in ["reads", "read B", "writes", "written B", "flushes", "allocations"] {
        write!(text, " {head:>11}")?;
    }
    text.push_str(if has_instructions { " instructions\n" } else { "\n" });
    for (name, row) in rows {
        write!(text, "{name:<28}")?;
        for (_, sum) in row.counts().into_iter().skip(1) {
            write!(text, " {:>11}", mean(sum, row.operations))?;
        }
        for sum in row.instructions.values() {
            write!(text, " {:>12}", mean(*sum, row.operations))?;
        }
        text.push('\n');
    }
    Ok(text)
}

/// Returns a mean with at most two digits after the point.
fn mean(sum: u64, operations: u64) -> String {
    let mean = format!("{:.2}", sum as f64 / operations.max(1) as f64);
    mean.trim_end_matches('0').trim_end_matches('.').to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(writes: u64, allocations: u64) -> Row {
        Row { operations: 4, writes, allocations, ..Row::default() }
    }

    fn kept(tolerance: &str, rows: &[(&str, Row)]) -> Kept {
        let empty = Kept::parse(&format!("[tolerance]\n{tolerance}\n[row]\n")).unwrap();
        let row = rows.iter().map(|(name, row)| ((*name).to_owned(), row.clone())).collect();
        Kept { row, ..empty }
    }

    fn shown(kept: &Kept, rows: &[(&str, Row)], is_all: bool) -> Vec<String> {
        let rows = rows.iter().map(|(name, row)| ((*name).to_owned(), row.clone())).collect();
        kept.compare(&rows, is_all).iter().map(ToString::to_string).collect()
    }

    #[test]
    fn a_difference_names_its_row_what_it_has_and_what_is_wanted() {
        let kept = kept("", &[("create", row(8, 100)), ("gone", row(1, 1))]);
        let have = [("create", row(9, 99)), ("new", row(1, 1))];
        let all = shown(&kept, &have, true);
        assert_eq!(
            all,
            [
                "create: writes: have 9 in 4, want 8 in 4",
                "create: allocations: have 99 in 4, want 100 in 4 (fewer)",
                "new: row: have one, want none",
                "gone: row: have none, want one",
            ]
        );
        assert_eq!(shown(&kept, &[("create", row(8, 100))], false), Vec::<String>::new());
    }

    #[test]
    fn a_tolerance_is_a_part_of_the_kept_count() {
        let kept = kept("allocations = 0.1", &[("create", row(8, 100))]);
        assert!(shown(&kept, &[("create", row(8, 110))], true).is_empty());
        assert_eq!(shown(&kept, &[("create", row(8, 111))], true).len(), 1);
        assert_eq!(shown(&kept, &[("create", row(8, 89))], true).len(), 1);
        for (line, want) in [
            ("writs = 0.1", "tolerance.writs: no count of this name"),
            ("writes = 1.5", "have 1.5, want 0 to 1"),
        ] {
            let error = Kept::parse(&format!("[tolerance]\n{line}\n[row]\n")).unwrap_err();
            assert!(error.to_string().contains(want), "{error}");
        }
    }

    #[test]
    fn instructions_are_those_of_the_same_build() {
        let of = |build: &str, count| Row {
            instructions: BTreeMap::from([(build.to_owned(), count)]),
            ..row(1, 1)
        };
        let mut kept = kept("instructions = 0.02", &[("create", of("debug", 1000))]);
        assert!(shown(&kept, &[("create", of("release", 5000))], true).is_empty());
        assert!(shown(&kept, &[("create", of("debug", 1020))], true).is_empty());
        assert_eq!(shown(&kept, &[("create", of("debug", 1021))], true).len(), 1);
        kept.replace(BTreeMap::from([("create".to_owned(), of("release", 400))]));
        let text = kept.text().unwrap();
        assert_eq!(Kept::parse(&text).unwrap(), kept);
        assert!(text.contains("debug = 1000") && text.contains("release = 400"), "{text}");
    }
}
