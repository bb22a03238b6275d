//! Rows: every variant of every scenario of a suite, with the values of its variables.
//!
//! A row is named `suite/scenario/variant`; the variant is `name=value` for each dimension, in the
//! order of their names, or `all` without dimensions. `{name}` in an option stands for the value
//! of a dimension or of a variable of the suite.

use super::{Scalar, Scenario, Suite, Variables};
use crate::size;
use anyhow::{Context, Result, bail, ensure};
use std::collections::BTreeMap;
use std::sync::Arc;

/// How deep suites may include each other.
const INCLUDE_MAX: usize = 4;

/// What becomes of the memory limits of suites.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum MemoryChange {
    #[default]
    Keep,
    /// No limit. Sizes still refer to that of the suite.
    Off,
    /// Another limit, in bytes.
    Limit(u64),
}

/// What the command line changes of a suite.
#[derive(Clone, Debug, Default)]
pub(crate) struct Changes {
    pub(crate) quick: bool,
    pub(crate) seconds: Option<u32>,
    pub(crate) memory: MemoryChange,
    pub(crate) variables: Variables,
    /// Switches that replace those of the scenarios.
    pub(crate) switches: BTreeMap<String, Vec<Scalar>>,
    /// Part of the name of each row that is kept.
    pub(crate) only: String,
}

/// One variant of a scenario.
#[derive(Clone, Debug)]
pub(crate) struct Row {
    /// `suite/scenario/variant`.
    pub(crate) name: String,
    pub(crate) scenario: Arc<Scenario>,
    /// Values of the dimensions and of the suite's variables.
    pub(crate) variables: Variables,
    pub(crate) switches: BTreeMap<String, Vec<Scalar>>,
    pub(crate) seconds: u32,
    pub(crate) ramp: u32,
    /// The memory limit, in bytes.
    pub(crate) memory_bytes: Option<u64>,
    /// What a factor of the memory refers to, in bytes: the limit of the suite, also where it is
    /// turned off.
    memory_base_bytes: u64,
    /// Targets of the suite, where the command line names none.
    pub(crate) targets: Arc<Vec<String>>,
}

/// Returns the rows of a suite and of those that it includes.
///
/// # Errors
/// An included suite is not known, or a size cannot be evaluated.
pub(crate) fn rows(suite: &Suite, changes: &Changes) -> Result<Vec<Row>> {
    let mut rows = Vec::new();
    add(suite, changes, 0, &mut rows)?;
    rows.retain(|row| row.name.contains(&changes.only));
    ensure!(!rows.is_empty(), "no row of {} contains {:?}", suite.name, changes.only);
    for row in &rows {
        row.check().with_context(|| row.name.clone())?;
    }
    Ok(rows)
}

fn add(suite: &Suite, changes: &Changes, depth: usize, rows: &mut Vec<Row>) -> Result<()> {
    ensure!(depth <= INCLUDE_MAX, "{}: suites include each other in a circle", suite.name);
    let first = rows.len();
    for name in &suite.include {
        let mut included = Suite::load(name).with_context(|| format!("{}: include", suite.name))?;
        if included.targets.is_empty() {
            included.targets.clone_from(&suite.targets);
        }
        add(&included, changes, depth + 1, rows)?;
    }
    let quick = changes.quick.then_some(&suite.quick);
    let mut variables = suite.variables.clone();
    variables.extend(quick.map(|quick| quick.variables.clone()).unwrap_or_default());
    variables.extend(changes.variables.clone());
    let memory = quick.and_then(|quick| quick.memory.as_ref()).or(suite.memory.as_ref());
    let own = memory.map(|text| size::parse(text)).transpose()?;
    let memory_bytes = match changes.memory {
        MemoryChange::Keep => own,
        MemoryChange::Off => None,
        // Suites without a limit have no use for one.
        MemoryChange::Limit(bytes) => own.map(|_| bytes),
    };
    let usual = quick.and_then(|quick| quick.seconds).unwrap_or(suite.seconds);
    let targets = Arc::new(suite.targets.clone());
    for scenario in &suite.scenarios {
        if changes.quick && scenario.quick_skip {
            continue;
        }
        let scenario = Arc::new(scenario.clone());
        for variant in variants(&scenario, changes.quick) {
            let mut variables = variables.clone();
            variables.extend(variant.iter().cloned());
            let mut switches = scenario.switches.clone();
            switches.extend(changes.switches.clone());
            rows.push(Row {
                name: format!("{}/{}/{}", suite.name, scenario.name, label(&variant)),
                scenario: Arc::clone(&scenario),
                variables,
                switches,
                seconds: changes.seconds.unwrap_or(usual),
                ramp: quick.and_then(|quick| quick.ramp).unwrap_or(suite.ramp),
                memory_bytes,
                memory_base_bytes: memory_bytes.or(own).unwrap_or(0),
                targets: Arc::clone(&targets),
            });
        }
    }
    if changes.quick && !suite.quick.rows.is_empty() {
        let kept = kept_rows(&suite.quick.rows, rows.split_off(first));
        rows.extend(kept.with_context(|| format!("{}: quick", suite.name))?);
    }
    Ok(())
}

/// Returns the rows whose names contain one of `parts`.
fn kept_rows(parts: &[String], rows: Vec<Row>) -> Result<Vec<Row>> {
    for part in parts {
        ensure!(rows.iter().any(|row| row.name.contains(part)), "no row contains {part:?}");
    }
    let is_kept = |row: &Row| parts.iter().any(|part| row.name.contains(part));
    Ok(rows.into_iter().filter(is_kept).collect())
}

/// Returns every combination of the values of the dimensions.
fn variants(scenario: &Scenario, is_quick: bool) -> Vec<Vec<(String, String)>> {
    let mut all = vec![Vec::new()];
    for (name, values) in &scenario.over {
        let values = scenario.quick_over.get(name).filter(|_| is_quick).unwrap_or(values);
        let longer = |before: &Vec<(String, String)>| {
            let before = before.clone();
            values.iter().map(move |value| {
                let mut next = before.clone();
                next.push((name.clone(), value.0.clone()));
                next
            })
        };
        all = all.iter().flat_map(longer).collect();
    }
    all
}

fn label(variant: &[(String, String)]) -> String {
    if variant.is_empty() {
        return "all".to_owned();
    }
    let parts: Vec<_> = variant.iter().map(|(name, value)| format!("{name}={value}")).collect();
    parts.join(",")
}

/// Returns every combination of the values of switches.
pub(crate) fn combinations(switches: &BTreeMap<String, Vec<Scalar>>) -> Vec<Variables> {
    let mut all = vec![Variables::new()];
    for (name, values) in switches {
        let longer = |before: &Variables| {
            let before = before.clone();
            values.iter().map(move |value| {
                let mut next = before.clone();
                next.insert(name.clone(), value.0.clone());
                next
            })
        };
        all = all.iter().flat_map(longer).collect();
    }
    all
}

impl Row {
    /// Replaces `{name}` by the value of the variable.
    ///
    /// # Errors
    /// A variable has no value.
    pub(crate) fn fill(&self, text: &str) -> Result<String> {
        let mut filled = String::new();
        let mut rest = text;
        while let Some((before, after)) = rest.split_once('{') {
            let Some((name, after)) = after.split_once('}') else {
                bail!("{text:?}: a brace is not closed")
            };
            let Some(value) = self.variables.get(name) else {
                bail!("{text:?}: there is no variable or dimension {name:?}")
            };
            filled.push_str(before);
            filled.push_str(value);
            rest = after;
        }
        filled.push_str(rest);
        Ok(filled)
    }

    /// Evaluates a size of the scenario, in bytes.
    ///
    /// # Errors
    /// As of [`Self::fill`] and [`size::evaluate`].
    pub(crate) fn bytes(&self, text: &str) -> Result<u64> {
        size::evaluate(&self.fill(text)?, self.memory_base_bytes)
    }

    /// Returns a number of the scenario.
    ///
    /// # Errors
    /// It is not a positive number.
    pub(crate) fn number(&self, text: &str) -> Result<u64> {
        let filled = self.fill(text)?;
        let number: u64 = filled.trim().parse().with_context(|| format!("{filled:?}"))?;
        ensure!(number > 0, "{text:?}: have 0, want 1 or more");
        Ok(number)
    }

    /// Returns an option of a job, with the variables replaced.
    ///
    /// # Errors
    /// As of [`Self::fill`].
    pub(crate) fn option(&self, job: &toml::Table, key: &str) -> Result<Option<String>> {
        let text = job.get(key).and_then(super::scalar);
        text.map(|text| self.fill(&text)).transpose()
    }

    /// Returns the number of bytes of all files of the row.
    ///
    /// # Errors
    /// A size cannot be evaluated.
    pub(crate) fn file_bytes(&self) -> Result<u64> {
        if let Some(metadata) = &self.scenario.metadata {
            // An inode and a name need about a kilobyte, in two copies.
            let each = self.number_or_zero(&metadata.bytes.0)?.div_ceil(4096) * 4096 + 2048;
            return Ok(self.number(&metadata.files.0)?.saturating_mul(each).saturating_mul(2));
        }
        let mut total = 0_u64;
        for job in self.scenario.job.values() {
            let (size, copies) = self.job_files(job)?;
            total = total.saturating_add(size.saturating_mul(copies));
        }
        Ok(total)
    }

    /// Returns the size of each file of a job in bytes, and the number of its files.
    ///
    /// # Errors
    /// The size or the number cannot be evaluated.
    pub(crate) fn job_files(&self, job: &toml::Table) -> Result<(u64, u64)> {
        let size = self.option(job, "size")?.context("size: missing")?;
        let copies = match (job.contains_key("files"), self.option(job, "numjobs")?) {
            (true, Some(jobs)) => self.number(&jobs).context("numjobs")?,
            _ => 1,
        };
        Ok((self.bytes(&size).context("size")?, copies))
    }

    fn number_or_zero(&self, text: &str) -> Result<u64> {
        size::parse(&self.fill(text)?)
    }

    fn check(&self) -> Result<()> {
        self.file_bytes()?;
        for (name, job) in &self.scenario.job {
            for (key, value) in job {
                if let Some(text) = super::scalar(value) {
                    self.fill(&text).with_context(|| format!("job {name:?}: {key}"))?;
                }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = r#"
        name = "mine"
        about = "reads"
        memory = "64M"
        variables = { size = "2x memory", block = "4k" }
        quick = { seconds = 1, memory = "32M", variables = { block = "8k" } }
        [[scenario]]
        name = "read"
        over = { depth = [1, 64], jobs = [2] }
        quick-over = { depth = [64] }
        switches = { nosec = ["on", "off"] }
        metrics = ["iops"]
        [scenario.job.a]
        rw = "randread"
        bs = "{block}"
        size = "{size} / {jobs}"
        files = "own"
        numjobs = "{jobs}"
        iodepth = "{depth}"
    "#;

    fn names(changes: &Changes) -> Vec<String> {
        let suite = Suite::parse(TEXT, "mine").unwrap();
        rows(&suite, changes).unwrap().into_iter().map(|row| row.name).collect()
    }

    #[test]
    fn a_row_for_each_combination() {
        let all = ["mine/read/depth=1,jobs=2", "mine/read/depth=64,jobs=2"];
        assert_eq!(names(&Changes::default()), all);
        assert_eq!(names(&Changes { quick: true, ..Changes::default() }), all[1..]);
        assert_eq!(names(&Changes { only: "depth=1".into(), ..Changes::default() }), all[..1]);
        let suite = Suite::parse(TEXT, "mine").unwrap();
        let none = Changes { only: "other".into(), ..Changes::default() };
        assert!(rows(&suite, &none).is_err());
    }

    #[test]
    fn a_quick_run_keeps_named_rows_of_included_suites() {
        let text = r#"
            name = "some"
            about = "a part"
            include = ["nosec", "stable"]
            quick = { rows = ["one-file/jobs=32", "owned/block=4k"] }
        "#;
        let suite = Suite::parse(text, "some").unwrap();
        let quick = Changes { quick: true, ..Changes::default() };
        let names: Vec<String> =
            rows(&suite, &quick).unwrap().into_iter().map(|row| row.name).collect();
        assert_eq!(names, ["nosec/one-file/jobs=32", "stable/owned/block=4k"]);
        assert!(rows(&suite, &Changes::default()).unwrap().len() > 10);
        let other = Suite::parse(&text.replace("=4k", "=5k"), "some").unwrap();
        let error = format!("{:#}", rows(&other, &quick).unwrap_err());
        assert_eq!(error, "some: quick: no row contains \"owned/block=5k\"");
    }

    #[test]
    fn variables_and_the_memory_limit_decide_sizes() {
        let suite = Suite::parse(TEXT, "mine").unwrap();
        let row = |changes: &Changes| rows(&suite, changes).unwrap().remove(0);
        let usual = row(&Changes::default());
        assert_eq!(usual.file_bytes().unwrap(), 128 << 20);
        assert_eq!(usual.fill("{block}").unwrap(), "4k");
        let quick = row(&Changes { quick: true, ..Changes::default() });
        assert_eq!((quick.file_bytes().unwrap(), quick.seconds), (64 << 20, 1));
        assert_eq!(quick.fill("{block}").unwrap(), "8k");
        // Without a limit, sizes are those of the suite's limit.
        let free = row(&Changes { memory: MemoryChange::Off, ..Changes::default() });
        assert_eq!((free.memory_bytes, free.file_bytes().unwrap()), (None, 128 << 20));
        assert!(usual.fill("{other}").is_err() && usual.fill("{block").is_err());
    }

    #[test]
    fn switches_are_combined() {
        let values = |text: &[&str]| text.iter().map(|v| Scalar((*v).into())).collect();
        let switches = [("a".to_owned(), values(&["on", "off"])), ("b".to_owned(), values(&["1"]))];
        let all = combinations(&switches.into_iter().collect());
        assert_eq!(all.len(), 2);
        assert_eq!((all[1]["a"].as_str(), all[1]["b"].as_str()), ("off", "1"));
        assert_eq!(combinations(&BTreeMap::new()), [Variables::new()]);
    }
}
