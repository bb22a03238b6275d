//! Scenarios: what a suite measures, as a TOML file that a person reads and edits.
//!
//! ```text
//! NAME | FILE.toml -> Suite: variables, scenarios, published figures   (`load`)
//! Suite -> Row: one variant of one scenario, with all variables known  (`rows`)
//! ```
//!
//! Laws:
//!
//! 1. A key that is not known is an error that names it, so that a misspelt option is not ignored.
//! 2. Everything that can be checked without a target is checked when the file is read.
//! 3. The suites of this program are files of the same form (`lab/suites`), and `show` prints them.
//!
//! The form is described in docs/lab/README.md.

pub(crate) mod rows;
pub(crate) mod suites;

use anyhow::{Context, Result, bail, ensure};
use butternut_lab::reports::published::Figure;
use serde::Deserialize;
use std::collections::BTreeMap;
use std::path::Path;

/// Values of variables, by name.
pub(crate) type Variables = BTreeMap<String, String>;

/// A suite as its file says it.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub(crate) struct Suite {
    pub(crate) name: String,
    /// What the suite measures, in a sentence; `list` prints it.
    pub(crate) about: String,
    /// Names of other suites whose scenarios are part of this one.
    #[serde(default)]
    pub(crate) include: Vec<String>,
    /// Targets where the command line names none.
    #[serde(default)]
    pub(crate) targets: Vec<String>,
    /// The memory limit. A suite without one runs without a limit.
    pub(crate) memory: Option<String>,
    /// Duration of each timed measurement, in seconds.
    #[serde(default = "default_seconds")]
    pub(crate) seconds: u32,
    /// Seconds of a timed job that do not count, before the measurement.
    #[serde(default)]
    pub(crate) ramp: u32,
    #[serde(default)]
    pub(crate) variables: Variables,
    /// What `--quick` changes.
    #[serde(default)]
    pub(crate) quick: Quick,
    #[serde(default, rename = "scenario")]
    pub(crate) scenarios: Vec<Scenario>,
}

/// What `--quick` changes of a suite.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub(crate) struct Quick {
    pub(crate) seconds: Option<u32>,
    pub(crate) ramp: Option<u32>,
    pub(crate) memory: Option<String>,
    #[serde(default)]
    pub(crate) variables: Variables,
    /// Parts of the names of the rows that are kept, of included suites, too; empty: all.
    #[serde(default)]
    pub(crate) rows: Vec<String>,
}

/// One workload, in every combination of its dimensions.
#[expect(clippy::struct_excessive_bools, reason = "keys of a file")]
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub(crate) struct Scenario {
    pub(crate) name: String,
    #[serde(default)]
    pub(crate) about: String,
    /// Dimensions: a variable, and the values that it takes.
    #[serde(default)]
    pub(crate) over: BTreeMap<String, Vec<Scalar>>,
    /// The values of `--quick`, for the dimensions that it shortens.
    #[serde(default)]
    pub(crate) quick_over: BTreeMap<String, Vec<Scalar>>,
    /// Whether `--quick` leaves the scenario out.
    #[serde(default)]
    pub(crate) quick_skip: bool,
    /// Switches of Butternut, and the values that each takes; the first one is the default.
    #[serde(default)]
    pub(crate) switches: BTreeMap<String, Vec<Scalar>>,
    /// Kinds of targets that can run the scenario; empty: all that the driver supports.
    #[serde(default)]
    pub(crate) only: Vec<String>,
    #[serde(default)]
    pub(crate) driver: Driver,
    /// New files are written in place: nodatacow on btrfs.
    #[serde(default)]
    pub(crate) in_place: bool,
    /// The files are written before the measurement, and the caches dropped.
    #[serde(default)]
    pub(crate) lay_out: bool,
    /// The job runs for `seconds`; otherwise until it has transferred its size once.
    #[serde(default = "yes")]
    pub(crate) timed: bool,
    /// Metrics, the first one is that of the progress line: `iops`, or `reader:p99.9` for a job.
    pub(crate) metrics: Vec<String>,
    /// Jobs of fio that run at the same time, by name, with their options.
    #[serde(default)]
    pub(crate) job: BTreeMap<String, toml::Table>,
    /// Files of the metadata driver.
    pub(crate) metadata: Option<Metadata>,
    /// Figures that others have published for this workload, on other machines.
    #[serde(default)]
    pub(crate) published: Vec<Figure>,
}

/// What drives a workload.
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Driver {
    #[default]
    Fio,
    Metadata,
}

/// The files of a metadata workload.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub(crate) struct Metadata {
    /// Number of files, of all threads together.
    pub(crate) files: Scalar,
    pub(crate) threads: Scalar,
    /// Bytes of each file.
    pub(crate) bytes: Scalar,
}

/// A value of a dimension, a switch or an option, as its text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Scalar(pub(crate) String);

impl<'de> Deserialize<'de> for Scalar {
    fn deserialize<D: serde::Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let value = toml::Value::deserialize(from)?;
        scalar(&value)
            .map(Scalar)
            .ok_or_else(|| serde::de::Error::custom("want a text, a number, true or false"))
    }
}

/// Returns the text of a text, a number or a boolean. fio writes booleans as 1 and 0.
pub(crate) fn scalar(value: &toml::Value) -> Option<String> {
    match value {
        toml::Value::String(text) => Some(text.clone()),
        toml::Value::Integer(number) => Some(number.to_string()),
        toml::Value::Float(number) => Some(number.to_string()),
        toml::Value::Boolean(flag) => Some(u8::from(*flag).to_string()),
        toml::Value::Datetime(_) | toml::Value::Array(_) | toml::Value::Table(_) => None,
    }
}

fn default_seconds() -> u32 {
    10
}

fn yes() -> bool {
    true
}

/// Kinds of targets, which `only` and the tables of target options name.
pub(crate) const KINDS: [&str; 6] = ["raw", "kernel", "butternut", "mount", "dir", "custom"];

/// Names of the metrics of fio jobs, with the unit and whether more is better.
pub(crate) const FIO_METRICS: &[(&str, &str, bool)] = &[
    ("iops", "1/s", true),
    ("mbps", "MB/s", true),
    ("mean", "us", false),
    ("p50", "us", false),
    ("p95", "us", false),
    ("p99", "us", false),
    ("p99.9", "us", false),
    ("max", "us", false),
    ("sync-mean", "us", false),
    ("sync-p50", "us", false),
    ("sync-p95", "us", false),
    ("sync-p99", "us", false),
    ("sync-p99.9", "us", false),
    ("sync-max", "us", false),
    ("cpu", "us/op", false),
    ("peak-cached", "bytes", false),
    ("peak-dirty", "bytes", false),
];

/// Names of the metrics of the metadata driver; each is a rate of files.
pub(crate) const METADATA_METRICS: &[&str] =
    &["create", "stat", "list", "rename", "unlink", "untar"];

impl Suite {
    /// Parses a suite. `place` names the file in errors.
    ///
    /// # Errors
    /// The text is not TOML of this form, or a name, metric or option is not known.
    pub(crate) fn parse(text: &str, place: &str) -> Result<Self> {
        let suite: Self = toml::from_str(text).map_err(|error| {
            let text = error.to_string();
            anyhow::anyhow!("{place}: {}", text.trim().replace('\n', "\n  "))
        })?;
        suite.check().with_context(|| place.to_owned())?;
        Ok(suite)
    }

    /// Loads the suite of this program with the name, or a file whose name ends in `.toml`.
    ///
    /// # Errors
    /// No suite has the name, or the file cannot be read or parsed.
    pub(crate) fn load(name: &str) -> Result<Self> {
        if let Some(text) = suites::text(name) {
            return Self::parse(text, name);
        }
        let path = Path::new(name);
        if path.extension().is_none_or(|extension| extension != "toml") {
            let known: Vec<_> = suites::names().collect();
            bail!(
                "suite {name:?}: not known (use one of {}, or a file FILE.toml)",
                known.join(", ")
            );
        }
        let text = std::fs::read_to_string(path)
            .with_context(|| format!("{name}: cannot read the suite"))?;
        Self::parse(&text, name)
    }

    fn check(&self) -> Result<()> {
        name(&self.name).context("name")?;
        ensure!(self.seconds > 0, "seconds: have 0, want 1 or more");
        ensure!(
            !self.scenarios.is_empty() || !self.include.is_empty(),
            "the suite has no scenario ([[scenario]]) and includes none"
        );
        for (at, scenario) in self.scenarios.iter().enumerate() {
            scenario.check().with_context(|| format!("scenario {:?}", scenario.name))?;
            let is_double = self.scenarios[..at].iter().any(|other| other.name == scenario.name);
            ensure!(!is_double, "scenario {:?}: there are two of this name", scenario.name);
        }
        Ok(())
    }
}

impl Scenario {
    fn check(&self) -> Result<()> {
        name(&self.name).context("name")?;
        for kind in &self.only {
            let known = KINDS.join(", ");
            ensure!(KINDS.contains(&kind.as_str()), "only: {kind:?}: want one of {known}");
        }
        for (dimension, values) in self.over.iter().chain(&self.switches) {
            name(dimension)?;
            ensure!(!values.is_empty(), "{dimension}: no values");
        }
        for dimension in self.quick_over.keys() {
            ensure!(self.over.contains_key(dimension), "quick-over: {dimension:?}: not in over");
        }
        ensure!(!self.metrics.is_empty(), "metrics: none");
        match self.driver {
            Driver::Fio => {
                ensure!(!self.job.is_empty(), "no job ([scenario.job.NAME])");
                ensure!(self.metadata.is_none(), "metadata: the driver is fio");
            }
            Driver::Metadata => {
                ensure!(self.metadata.is_some(), "no table [scenario.metadata]");
                ensure!(self.job.is_empty(), "job: the driver is metadata");
            }
        }
        for metric in &self.metrics {
            self.check_metric(metric)?;
        }
        for (job, options) in &self.job {
            name(job)?;
            check_options(options).with_context(|| format!("job {job:?}"))?;
        }
        for published in &self.published {
            self.check_metric(&published.metric).context("published")?;
        }
        Ok(())
    }

    fn check_metric(&self, metric: &str) -> Result<()> {
        if self.driver == Driver::Metadata {
            let known = METADATA_METRICS.join(", ");
            ensure!(METADATA_METRICS.contains(&metric), "metric {metric:?}: want one of {known}");
            return Ok(());
        }
        let (job, plain) = split_metric(metric);
        if let Some(job) = job {
            ensure!(self.job.contains_key(job), "metric {metric:?}: there is no job {job:?}");
        }
        let known: Vec<_> = FIO_METRICS.iter().map(|(name, ..)| *name).collect();
        ensure!(known.contains(&plain), "metric {metric:?}: want one of {}", known.join(", "));
        Ok(())
    }
}

/// Splits `JOB:METRIC` into the job, if it is named, and the metric.
pub(crate) fn split_metric(metric: &str) -> (Option<&str>, &str) {
    match metric.split_once(':') {
        Some((job, plain)) => (Some(job), plain),
        None => (None, metric),
    }
}

fn check_options(options: &toml::Table) -> Result<()> {
    ensure!(options.contains_key("rw"), "rw: missing");
    ensure!(options.contains_key("size"), "size: missing");
    let files = ["file", "files"].into_iter().filter(|key| options.contains_key(*key)).count();
    ensure!(files == 1, "want one of file (shared) or files (one for each of numjobs)");
    for (key, value) in options {
        if let toml::Value::Table(more) = value {
            ensure!(KINDS.contains(&key.as_str()), "{key}: want a kind of target");
            for (key, value) in more {
                ensure!(scalar(value).is_some(), "{key}: want a text or a number");
            }
            continue;
        }
        ensure!(scalar(value).is_some(), "{key}: want a text or a number");
        let own = ["filename", "filename_format", "runtime", "ramp_time", "ioengine", "thread"];
        ensure!(!own.contains(&key.as_str()), "{key}: the lab sets it (see docs/lab/README.md)");
    }
    Ok(())
}

/// Checks a name that becomes part of a row.
fn name(text: &str) -> Result<()> {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    ensure!(
        !text.is_empty() && text.chars().all(is_plain),
        "{text:?}: want letters, digits, '-', '_' or '.'"
    );
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const SMALL: &str = r#"
        name = "mine"
        about = "reads"
        [[scenario]]
        name = "read"
        over = { depth = [1, 64] }
        metrics = ["iops", "a:p99"]
        job.a = { rw = "randread", bs = "4k", size = "64M", file = "data", iodepth = "{depth}" }
    "#;

    #[test]
    fn a_suite_is_parsed() {
        let suite = Suite::parse(SMALL, "mine.toml").unwrap();
        assert_eq!(suite.seconds, 10);
        assert_eq!(suite.scenarios[0].over["depth"], ["1", "64"].map(|v| Scalar(v.into())));
    }

    #[test]
    fn what_is_not_known_is_refused_by_name() {
        for (from, to, want) in [
            ("about", "abuot", "abuot"),
            ("\"iops\"", "\"iopz\"", "iopz"),
            ("a:p99", "b:p99", "there is no job \"b\""),
            ("file = \"data\"", "filename = \"data\"", "want one of file"),
            ("name = \"read\"", "name = \"a/b\"", "a/b"),
            ("metrics = [\"iops\", \"a:p99\"]", "metrics = []", "metrics: none"),
            ("size = \"64M\", ", "", "size: missing"),
            ("over =", "only = [\"disk\"]\nover =", "\"disk\""),
        ] {
            assert!(SMALL.contains(from), "{from}");
            let error = Suite::parse(&SMALL.replace(from, to), "mine.toml").unwrap_err();
            let error = format!("{error:#}");
            assert!(error.contains(want) && error.contains("mine.toml"), "{from}: {error}");
        }
    }

    #[test]
    fn every_suite_of_the_program_is_valid() {
        for name in suites::names() {
            let suite = Suite::load(name).unwrap();
            assert_eq!(suite.name, name);
        }
        let error = Suite::load("nosuch").unwrap_err().to_string();
        assert!(error.contains("nosec"), "{error}");
    }
}
