//! Finds the commit that made a measurement worse: drives `git bisect` with enough repeats to
//! decide.
//!
//! ```text
//! build GOOD, measure; build BAD, measure     until the two levels are apart, or never are
//! git bisect: build, measure                  until the odds for one level exceed the limit
//!             -> good, bad; or skip: it does not build, or stays undecided
//! ```
//!
//! Laws:
//!
//! 1. Bisection happens in a work tree of its own, which is removed at the end. The caller's work
//!    tree and branch are not touched.
//! 2. A commit is decided by a sequential test of Wald: each measurement adds the log of how much
//!    likelier it is at the bad level than at the good one. The tails of the likelihood are heavy,
//!    so no single outlier decides.
//! 3. Levels that cannot be told apart end the search with an error that says so.

use crate::judge::statistics as stats;
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

/// Log of the odds at which a commit is decided: at most one in a thousand decisions is wrong where
/// the noise is as it was when both ends were measured.
const ODDS: f64 = 6.9;

/// Degrees of freedom of the likelihood of law 2.
const FREEDOM: f64 = 4.0;

/// What to search.
#[derive(Debug, Clone)]
pub struct Plan {
    /// The repository.
    pub repository: PathBuf,
    pub good: String,
    pub bad: String,
    /// Builds the measured program; run in the work tree.
    pub build: Vec<String>,
    /// Prints the measured value on its last line; run by `sh` in the work tree.
    pub measure: String,
    /// Fewest and most measurements of one commit.
    pub repeats: (u32, u32),
}

/// What happened, for the user.
#[derive(Debug, Clone, PartialEq)]
pub enum Event {
    Built { commit: String },
    Level { commit: String, median: f64, repeats: usize },
    Decided { commit: String, median: f64, repeats: usize, is_bad: bool },
    Skipped { commit: String, reason: String },
}

/// The result.
#[derive(Debug, Clone, PartialEq)]
pub enum Found {
    /// The first bad commit.
    Commit { id: String, subject: String },
    /// Skipped commits hide it: it is one of these.
    OneOf(Vec<String>),
}

/// Why a search ended without a result.
#[derive(Debug, thiserror::Error)]
pub enum BisectError {
    #[error("cannot run {program}")]
    Run {
        program: String,
        #[source]
        source: io::Error,
    },
    #[error("git {arguments}: {message}")]
    Git { arguments: String, message: String },
    #[error("{commit}: {what}: {message}")]
    End { commit: String, what: &'static str, message: String },
    #[error(
        "good and bad cannot be told apart: {good} and {bad} after {repeats} measurements each \
         (allow more with --repeats, or measure longer)"
    )]
    Same { good: f64, bad: f64, repeats: usize },
    #[error("the search did not end after {steps} steps")]
    Endless { steps: usize },
}

/// A level and its spread, on the logarithmic scale.
#[derive(Debug, Clone, Copy)]
struct Level {
    mean: f64,
}

/// Both levels, and the standard deviation of one measurement.
#[derive(Debug, Clone, Copy)]
struct Levels {
    good: Level,
    bad: Level,
    deviation: f64,
}

/// Searches the first bad commit. `tell` is called as things happen.
///
/// # Errors
///
/// Git fails, an end does not build or cannot be measured, or both ends measure the same.
pub fn bisect(plan: &Plan, tell: &mut dyn FnMut(&Event)) -> Result<Found, BisectError> {
    let tree = WorkTree::add(plan)?;
    let levels = tree.levels(tell)?;
    let mut text = tree.git(&["bisect", "start", &tree.bad, &tree.good])?;
    // A search among all commits between both ends looks at each of them at most once.
    let range = format!("{}..{}", tree.good, tree.bad);
    let count = tree.git(&["rev-list", "--count", &range])?;
    let steps: usize = count.trim().parse().unwrap_or(1) + 1;
    for _ in 0..=steps {
        if let Some(found) = tree.result(&text)? {
            return Ok(found);
        }
        let word = tree.decide(levels, tell)?;
        text = tree.bisect(word)?;
    }
    Err(BisectError::Endless { steps })
}

/// The work tree of a search.
struct WorkTree<'a> {
    plan: &'a Plan,
    good: String,
    bad: String,
    path: PathBuf,
    /// Removed with its content at the end.
    _directory: tempfile::TempDir,
}

impl<'a> WorkTree<'a> {
    fn add(plan: &'a Plan) -> Result<Self, BisectError> {
        let resolve = |name: &str| {
            let commit = format!("{name}^{{commit}}");
            let id =
                git(&plan.repository, &["rev-parse", "--verify", "--end-of-options", &commit])?;
            Ok::<_, BisectError>(id.trim().to_owned())
        };
        let (good, bad) = (resolve(&plan.good)?, resolve(&plan.bad)?);
        let made = tempfile::Builder::new().prefix("butternut-bisect-").tempdir();
        let directory = made
            .map_err(|source| BisectError::Run { program: "the work tree".to_owned(), source })?;
        let path = directory.path().join("tree");
        let name = path.to_string_lossy().into_owned();
        git(&plan.repository, &["worktree", "add", "--detach", &name, &bad])?;
        Ok(Self { plan, good, bad, path, _directory: directory })
    }

    /// Measures both ends until they are apart.
    fn levels(&self, tell: &mut dyn FnMut(&Event)) -> Result<Levels, BisectError> {
        let (low, high) = self.plan.repeats;
        let mut values = [Vec::new(), Vec::new()];
        loop {
            for (commit, values) in [&self.good, &self.bad].into_iter().zip(&mut values) {
                self.git(&["checkout", "--quiet", "--detach", commit])?;
                self.build().map_err(|message| ended(commit, "does not build", message))?;
                tell(&Event::Built { commit: commit.clone() });
                let more = if values.is_empty() { low.max(5) as usize } else { values.len() };
                for _ in 0..more {
                    let value = self.measure();
                    values.push(value.map_err(|m| ended(commit, "cannot be measured", m))?);
                }
                let median = stats::median(values).unwrap_or(0.0);
                let repeats = values.len();
                tell(&Event::Level { commit: commit.clone(), median, repeats });
            }
            let [good, bad] = &values;
            if let Some(levels) = Levels::apart(good, bad) {
                return Ok(levels);
            }
            if good.len() >= high as usize {
                let median = |values: &[f64]| stats::median(values).unwrap_or(0.0);
                let (good_level, bad_level) = (median(good), median(bad));
                let repeats = good.len();
                return Err(BisectError::Same { good: good_level, bad: bad_level, repeats });
            }
        }
    }

    /// Decides the commit that is checked out, and returns git's word for it.
    fn decide(
        &self,
        levels: Levels,
        tell: &mut dyn FnMut(&Event),
    ) -> Result<&'static str, BisectError> {
        let commit = self.git(&["rev-parse", "HEAD"])?.trim().to_owned();
        let mut skip = |reason: String| {
            tell(&Event::Skipped { commit: commit.clone(), reason });
            Ok("skip")
        };
        if let Err(message) = self.build() {
            return skip(format!("does not build: {message}"));
        }
        let (low, high) = self.plan.repeats;
        let mut values = Vec::new();
        let mut odds = 0.0;
        for repeat in 1..=high {
            match self.measure() {
                Ok(value) => values.push(value),
                Err(message) => return skip(format!("cannot be measured: {message}")),
            }
            odds += levels.odds(values[values.len() - 1].ln());
            if repeat >= low && odds.abs() >= ODDS {
                let median = stats::median(&values).unwrap_or(0.0);
                let (repeats, is_bad) = (values.len(), odds > 0.0);
                tell(&Event::Decided { commit, median, repeats, is_bad });
                return Ok(if is_bad { "bad" } else { "good" });
            }
        }
        skip(format!("undecided after {high} measurements"))
    }

    fn build(&self) -> Result<(), String> {
        let Some((program, arguments)) = self.plan.build.split_first() else { return Ok(()) };
        let mut command = Command::new(program);
        command.args(arguments).current_dir(&self.path).stdin(Stdio::null());
        let output = command.output().map_err(|error| format!("{program}: {error}"))?;
        if output.status.success() { Ok(()) } else { Err(last_line(&output)) }
    }

    fn measure(&self) -> Result<f64, String> {
        let mut command = Command::new("sh");
        command.args(["-c", &self.plan.measure]).current_dir(&self.path).stdin(Stdio::null());
        let output = command.output().map_err(|error| format!("sh: {error}"))?;
        if !output.status.success() {
            return Err(last_line(&output));
        }
        let text = String::from_utf8_lossy(&output.stdout);
        let line = text.lines().rev().find(|line| !line.trim().is_empty()).unwrap_or_default();
        match line.trim().parse::<f64>() {
            Ok(value) if value.is_finite() && value > 0.0 => Ok(value),
            _ => Err(format!("last line: have {line:?}, want a number above 0")),
        }
    }

    fn git(&self, arguments: &[&str]) -> Result<String, BisectError> {
        git(&self.path, arguments)
    }

    /// Tells git the word for the current commit. Git fails when only skipped commits are left, and
    /// says so on its output, which is then a result.
    fn bisect(&self, word: &str) -> Result<String, BisectError> {
        let output = run_git(&self.path, &["bisect", word])?;
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        if output.status.success() || text.contains(ONLY_SKIPPED) {
            return Ok(text);
        }
        Err(BisectError::Git { arguments: format!("bisect {word}"), message: last_line(&output) })
    }

    /// Reads the result from what git printed.
    fn result(&self, text: &str) -> Result<Option<Found>, BisectError> {
        if text.contains(ONLY_SKIPPED) {
            let is_id =
                |line: &&str| line.len() >= 40 && line.bytes().all(|byte| byte.is_ascii_hexdigit());
            let ids = text.lines().map(str::trim).filter(is_id).map(str::to_owned).collect();
            return Ok(Some(Found::OneOf(ids)));
        }
        let mut lines = text.lines();
        let Some(id) = lines.find_map(|line| line.strip_suffix(" is the first bad commit")) else {
            return Ok(None);
        };
        let subject = self.git(&["log", "-1", "--format=%s", "--end-of-options", id])?;
        Ok(Some(Found::Commit { id: id.to_owned(), subject: subject.trim().to_owned() }))
    }
}

const ONLY_SKIPPED: &str = "only 'skip'ped commits left";

impl Drop for WorkTree<'_> {
    fn drop(&mut self) {
        // The directory is removed in any case, and git prunes what remains of it by itself.
        let name = self.path.to_string_lossy().into_owned();
        drop(git(&self.path, &["bisect", "reset"]));
        drop(git(&self.plan.repository, &["worktree", "remove", "--force", &name]));
    }
}

impl Levels {
    /// Returns both levels when the test tells them apart with much to spare.
    #[allow(clippy::cast_precision_loss, reason = "counts of repeats are small")]
    fn apart(good: &[f64], bad: &[f64]) -> Option<Self> {
        let logs = |values: &[f64]| values.iter().map(|value| value.ln()).collect::<Vec<_>>();
        let (good, bad) = (logs(good), logs(bad));
        let (first, second) = (stats::estimate(&good)?, stats::estimate(&bad)?);
        let variance = |values: &[f64], of: stats::Estimate| of.variance * values.len() as f64;
        let deviation = f64::midpoint(variance(&good, first), variance(&bad, second)).sqrt();
        let levels = Self {
            good: Level { mean: first.mean },
            bad: Level { mean: second.mean },
            deviation: deviation.max(stats::DEVIATION_MIN),
        };
        (stats::compare(first, second).p < 1e-3).then_some(levels)
    }

    /// The log of how much likelier a value is at the bad level than at the good one.
    fn odds(self, value: f64) -> f64 {
        let density = |level: Level| {
            let z = (value - level.mean) / self.deviation;
            -f64::midpoint(FREEDOM, 1.0) * (1.0 + z * z / FREEDOM).ln()
        };
        density(self.bad) - density(self.good)
    }
}

impl fmt::Display for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let short = |commit: &str| commit.chars().take(12).collect::<String>();
        match self {
            Self::Built { commit } => write!(f, "{}: built", short(commit)),
            Self::Level { commit, median, repeats } => {
                write!(f, "{}: level {median:.4} of {repeats} measurements", short(commit))
            }
            Self::Decided { commit, median, repeats, is_bad } => {
                let word = if *is_bad { "bad" } else { "good" };
                write!(f, "{}: {word}, {median:.4} of {repeats} measurements", short(commit))
            }
            Self::Skipped { commit, reason } => write!(f, "{}: skipped, {reason}", short(commit)),
        }
    }
}

fn git(directory: &Path, arguments: &[&str]) -> Result<String, BisectError> {
    let output = run_git(directory, arguments)?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    Err(BisectError::Git { arguments: arguments.join(" "), message: last_line(&output) })
}

fn run_git(directory: &Path, arguments: &[&str]) -> Result<Output, BisectError> {
    let mut command = Command::new("git");
    command.args(arguments).current_dir(directory).stdin(Stdio::null());
    // Git's messages are read, so they are not translated.
    command.env("LC_ALL", "C");
    command.output().map_err(|source| BisectError::Run { program: "git".to_owned(), source })
}

fn ended(commit: &str, what: &'static str, message: String) -> BisectError {
    BisectError::End { commit: commit.to_owned(), what, message }
}

/// The last line that a failed program printed, or its status.
fn last_line(output: &Output) -> String {
    let text = String::from_utf8_lossy(&output.stderr).into_owned()
        + &String::from_utf8_lossy(&output.stdout);
    let line = String::from_utf8_lossy(&output.stderr)
        .lines()
        .rev()
        .chain(text.lines().rev())
        .find(|line| !line.trim().is_empty())
        .map(str::to_owned);
    line.unwrap_or_else(|| output.status.to_string())
}

#[cfg(test)]
mod tests;
