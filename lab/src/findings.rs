//! Findings: cells that a gate found worse. Each stays open until it is measured as good again, or
//! waived by name.
//!
//! ```text
//! (gate: worse) -> open -> fixed     a gate measured the old level again
//!                       -> waived    accepted by name, with owner and reason
//! fixed, waived -> open              a gate found the cell worse again, or worse than was accepted
//! ```
//!
//! Laws:
//!
//! 1. The file is TOML, to be read, edited and committed by hand. It is replaced as a whole, by a
//!    rename.
//! 2. Only a measurement closes a finding as fixed.
//! 3. A waiver accepts the level that the finding has. A cell that falls further is a new finding.

use crate::judge::comparison::{Judgement, Verdict};
use crate::record::Better;
use serde::{Deserialize, Serialize};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

/// State of a finding.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum State {
    Open,
    Fixed,
    Waived,
}

/// A cell that became worse.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Finding {
    /// The name that a waiver gives.
    pub name: String,
    pub state: State,
    pub row: String,
    /// Target and switches.
    pub cell: String,
    pub metric: String,
    pub unit: String,
    pub better: Better,
    /// Level before, and level found.
    pub before: f64,
    pub found: f64,
    /// The run that found it, and its start.
    pub run: String,
    pub date: String,
    /// The run that closed it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fixed_by: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub owner: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

/// All findings, in the order in which they were found.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Findings {
    #[serde(default, rename = "finding", skip_serializing_if = "Vec::is_empty")]
    pub all: Vec<Finding>,
}

/// Why findings could not be read, written or changed.
#[derive(Debug, thiserror::Error)]
pub enum FindingsError {
    #[error("{}: cannot {what} the findings", path.display())]
    Io {
        path: PathBuf,
        what: &'static str,
        #[source]
        source: io::Error,
    },
    #[error("{}: {what}", path.display())]
    Malformed { path: PathBuf, what: String },
    #[error("no finding {name:?} (see `butternut-lab findings`)")]
    Unknown { name: String },
    #[error("finding {name:?}: {field}: have nothing, want a name or a sentence")]
    Missing { name: String, field: &'static str },
}

impl Findings {
    /// Reads the file at `path`. One that does not exist has no findings.
    ///
    /// # Errors
    ///
    /// The file cannot be read, is malformed, or has a waiver without owner or reason.
    pub fn read(path: &Path) -> Result<Self, FindingsError> {
        let text = match std::fs::read_to_string(path) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Self::default()),
            Err(source) => {
                return Err(FindingsError::Io { path: path.to_owned(), what: "read", source });
            }
        };
        let malformed = |what: String| FindingsError::Malformed { path: path.to_owned(), what };
        let findings: Self = toml::from_str(&text).map_err(|error| malformed(error.to_string()))?;
        for (at, finding) in findings.all.iter().enumerate() {
            finding.check()?;
            if findings.all[..at].iter().any(|other| other.name == finding.name) {
                return Err(malformed(format!("two findings are named {:?}", finding.name)));
            }
        }
        Ok(findings)
    }

    /// Replaces the file at `path`.
    ///
    /// # Errors
    ///
    /// The file cannot be written; it is then as it was.
    pub fn write(&self, path: &Path) -> Result<(), FindingsError> {
        let text = toml::to_string(self).map_err(|error| FindingsError::Malformed {
            path: path.to_owned(),
            what: error.to_string(),
        })?;
        let replaced = || -> io::Result<()> {
            let directory = path.parent().filter(|parent| !parent.as_os_str().is_empty());
            let directory = directory.unwrap_or_else(|| Path::new("."));
            std::fs::create_dir_all(directory)?;
            let mut file = tempfile::NamedTempFile::new_in(directory)?;
            file.write_all(HEADER.as_bytes())?;
            file.write_all(text.as_bytes())?;
            file.as_file().sync_all()?;
            file.persist(path)?;
            std::fs::File::open(directory)?.sync_all()
        };
        replaced().map_err(|source| FindingsError::Io {
            path: path.to_owned(),
            what: "write",
            source,
        })
    }

    /// Accepts the level of the finding `name`.
    ///
    /// # Errors
    ///
    /// There is no such finding, or the owner or the reason is empty.
    pub fn waive(&mut self, name: &str, owner: &str, reason: &str) -> Result<(), FindingsError> {
        for (field, value) in [("owner", owner), ("reason", reason)] {
            if value.trim().is_empty() {
                return Err(FindingsError::Missing { name: name.to_owned(), field });
            }
        }
        let finding = self.named(name)?;
        finding.state = State::Waived;
        finding.owner = Some(owner.to_owned());
        finding.reason = Some(reason.to_owned());
        Ok(())
    }

    /// Opens the finding `name` again.
    ///
    /// # Errors
    ///
    /// There is no such finding.
    pub fn reopen(&mut self, name: &str) -> Result<(), FindingsError> {
        let finding = self.named(name)?;
        finding.state = State::Open;
        (finding.owner, finding.reason, finding.fixed_by) = (None, None, None);
        Ok(())
    }

    /// Takes what the run `run`, started at `date`, showed: a cell that is worse opens a finding,
    /// and an open one whose cell has its level again, but for the part `effect`, becomes fixed.
    pub fn take(&mut self, cells: &[Judgement], effect: f64, run: &str, date: &str) {
        for cell in cells {
            let median = cell.second.median;
            if cell.verdict == Verdict::NotJudged {
                continue;
            }
            for finding in self.all.iter_mut().filter(|finding| finding.is_of(cell)) {
                let has_level = !is_worse(finding.before, median, effect, cell.better);
                if finding.state != State::Fixed && cell.verdict != Verdict::Worse && has_level {
                    finding.state = State::Fixed;
                    finding.fixed_by = Some(run.to_owned());
                }
            }
            if cell.verdict == Verdict::Worse && !self.covers(cell, effect) {
                self.open(cell, run, date);
            }
        }
    }

    /// The open findings.
    pub fn open_ones(&self) -> impl Iterator<Item = &Finding> {
        self.all.iter().filter(|finding| finding.state == State::Open)
    }

    /// Tells whether an open finding, or a waiver of this level, has the cell already.
    fn covers(&self, cell: &Judgement, effect: f64) -> bool {
        self.all.iter().filter(|finding| finding.is_of(cell)).any(|finding| match finding.state {
            State::Open => true,
            State::Fixed => false,
            State::Waived => !is_worse(finding.found, cell.second.median, effect, cell.better),
        })
    }

    fn open(&mut self, cell: &Judgement, run: &str, date: &str) {
        let name = self.free_name(cell);
        self.all.push(Finding {
            name,
            state: State::Open,
            row: cell.row.clone(),
            cell: cell.second.label.clone(),
            metric: cell.metric.clone(),
            unit: cell.unit.clone(),
            better: cell.better,
            before: cell.first.median,
            found: cell.second.median,
            run: run.to_owned(),
            date: date.to_owned(),
            fixed_by: None,
            owner: None,
            reason: None,
        });
    }

    /// A name made of the row, the target and the metric, with a number where it is taken.
    fn free_name(&self, cell: &Judgement) -> String {
        let text = format!("{} {} {}", cell.row, cell.second.label, cell.metric);
        let words: Vec<&str> = text
            .split(|c: char| !c.is_ascii_alphanumeric())
            .filter(|word| !word.is_empty())
            .collect();
        let name = words.join("-").to_ascii_lowercase();
        let is_free = |name: &String| self.all.iter().all(|finding| finding.name != *name);
        let numbered = (2..).map(|number: usize| format!("{name}-{number}"));
        [name.clone()].into_iter().chain(numbered).find(is_free).unwrap_or_default()
    }

    fn named(&mut self, name: &str) -> Result<&mut Finding, FindingsError> {
        let unknown = || FindingsError::Unknown { name: name.to_owned() };
        self.all.iter_mut().find(|finding| finding.name == name).ok_or_else(unknown)
    }
}

impl Finding {
    fn is_of(&self, cell: &Judgement) -> bool {
        self.row == cell.row && self.metric == cell.metric && self.cell == cell.second.label
    }

    fn check(&self) -> Result<(), FindingsError> {
        let missing = |field| Err(FindingsError::Missing { name: self.name.clone(), field });
        let is_empty = |text: &Option<String>| text.as_ref().is_none_or(|t| t.trim().is_empty());
        if self.name.trim().is_empty() {
            return missing("name");
        }
        if self.state == State::Waived && is_empty(&self.owner) {
            return missing("owner");
        }
        if self.state == State::Waived && is_empty(&self.reason) {
            return missing("reason");
        }
        Ok(())
    }
}

const HEADER: &str = "\
# Cells that a gate of the lab found worse. `butternut-lab gate` adds them and marks them as fixed;
# `butternut-lab findings waive NAME --owner OWNER --reason REASON` accepts one.

";

/// Tells whether `now` is worse than `level` by more than the part `effect`.
fn is_worse(level: f64, now: f64, effect: f64, better: Better) -> bool {
    match better {
        Better::Higher => now < level * (1.0 - effect),
        Better::Lower => now > level * (1.0 + effect),
    }
}
