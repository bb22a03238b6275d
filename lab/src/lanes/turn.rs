//! A contestant's turn: fio runs on what he has made of the device.
//!
//! Files are laid out by the job that will use them, run for that alone, so that neither its
//! processor time nor its memory counts.

use super::Plan;
use super::cost::{self, Cost};
use super::rows::{Entry, Row, Setting, Unit, Who};
use super::stage::{Stage, warn};
use crate::rig::{drop_caches, text};
use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;
use std::collections::BTreeSet;
use std::fs;
use std::path::PathBuf;
use std::process::{Command, Stdio};

const PAGE_BYTES: u64 = 4096;

pub(crate) struct Turn<'a> {
    stage: &'a Stage,
    who: Who,
    /// Directories that have their files.
    laid_out: BTreeSet<String>,
}

/// What one run of an entry gave.
#[derive(Clone, Debug, Default)]
pub(crate) struct Sample {
    /// In the row's unit.
    pub(crate) rate: f64,
    pub(crate) p999_us: Option<f64>,
    pub(crate) cpu_ns: f64,
    pub(crate) machine_ns: f64,
    /// Of file data: in the kernel's page cache, or in ours.
    pub(crate) held_bytes: u64,
    /// Which way our counters say that requests went.
    pub(crate) ways: Vec<(String, u64)>,
}

impl<'a> Turn<'a> {
    pub(crate) fn new(stage: &'a Stage, who: Who) -> Self {
        Self { stage, who, laid_out: BTreeSet::new() }
    }

    /// Runs the entry's job, its files laid out before.
    pub(crate) fn run(&mut self, plan: &Plan, row: &Row, entry: &Entry) -> Result<Sample> {
        let mut set = row.set.clone();
        set.extend(&entry.set);
        let under = value(&set, "UNDER").unwrap_or(row.job);
        if row.is_laid_out && self.laid_out.insert(under.to_owned()) {
            self.lay_out(plan, row.job, &set)?;
        }
        let (said, cost) = cost::measured(row.shows_memory, || {
            output(self.command(plan, row.job, &set, &["--output-format=json"]))
        })?;
        let mut sample = sample(row.unit, &json(&said)?, &cost)?;
        if self.who == Who::Ours {
            let stats = self.stats()?;
            sample.held_bytes = stats["cached_pages_peak"].as_u64().unwrap_or(0) * PAGE_BYTES;
            sample.ways = ways(&stats["stats"]["lanes"]);
        }
        Ok(sample)
    }

    /// Leaves the files of the job on the device, and nothing of them in memory.
    pub(crate) fn lay_out(&self, plan: &Plan, job: &str, set: &[Setting]) -> Result<()> {
        if self.who == Who::Raw {
            return Ok(());
        }
        let mut command = self.command(plan, job, set, &[]);
        command.env("LAY_OUT", "1");
        output(command).context("laying files out")?;
        drop_caches()
    }

    /// fio with a job of `crates/fio/jobs`; it does not outlive this process.
    pub(crate) fn command(
        &self,
        plan: &Plan,
        job: &str,
        set: &[Setting],
        fio_options: &[&str],
    ) -> Command {
        let (target, place) = match self.who {
            Who::Raw => ("raw", &self.stage.device),
            Who::Btrfs | Who::Xfs | Who::Ext4 => ("kernel", &self.stage.place),
            Who::Ours => ("butternut", &self.stage.device),
        };
        let mut switches = format!("stats={}", self.stats_path().display());
        if let Some(more) = value(set, "SWITCHES") {
            switches = format!("{more},{switches}");
        }
        let mut command = Command::new("setpriv");
        command
            .args(["--pdeathsig", "KILL"])
            .arg(concat!(env!("CARGO_MANIFEST_DIR"), "/../scripts/fio-row"))
            .args([job, target, text(place)])
            .args(fio_options)
            .current_dir(self.stage.dir.path())
            .stdin(Stdio::null())
            .env("FIO", &plan.fio)
            .env("ENGINE", &plan.engine)
            .env("SIZE", format!("{}M", plan.file_mib))
            .env("RUNTIME", plan.seconds.to_string())
            .env("RAMP", "0")
            .envs(set.iter().copied())
            .env("SWITCHES", switches);
        command
    }

    /// What our volume counted when it was open the last time.
    pub(crate) fn stats(&self) -> Result<Value> {
        let text = fs::read_to_string(self.stats_path()).context("the engine gave no stats")?;
        Ok(serde_json::from_str(&text)?)
    }

    fn stats_path(&self) -> PathBuf {
        self.stage.dir.path().join("stats.json")
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        if self.who.is_kernel() {
            warn(self.stage.unmount());
        }
    }
}

/// The last one that is set.
pub(crate) fn value<'a>(set: &[(&'a str, &'a str)], key: &str) -> Option<&'a str> {
    set.iter().rev().find(|(name, _)| *name == key).map(|(_, value)| *value)
}

fn output(mut command: Command) -> Result<String> {
    let output = command.output().context("cannot run setpriv; scripts/setup installs it")?;
    let (said, complained) =
        (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    if !output.status.success() {
        let text = if complained.trim().is_empty() { &said } else { &complained };
        bail!("fio failed: {}", text.trim());
    }
    Ok(said.into_owned())
}

/// fio's account, which may stand behind its warnings.
fn json(said: &str) -> Result<Value> {
    let start = said.find('{').context("fio printed no JSON")?;
    Ok(serde_json::from_str(&said[start..])?)
}

fn sample(unit: Unit, account: &Value, cost: &Cost) -> Result<Sample> {
    let jobs = account["jobs"].as_array().context("fio told of no jobs")?;
    let (mut rate, mut operations, mut worst) = (0.0, 0.0, None::<f64>);
    for part in jobs.iter().flat_map(|job| [&job["read"], &job["write"]]) {
        let number = |key: &str| part[key].as_f64().unwrap_or(0.0);
        operations += number("total_ios");
        rate += match unit {
            Unit::KiloIops => number("iops") / 1e3,
            Unit::Megabytes => number("bw_bytes") / 1e6,
        };
        let p999 = part["clat_ns"]["percentile"]["99.900000"].as_f64().map(|ns| ns / 1e3);
        worst = worst.into_iter().chain(p999).reduce(f64::max);
    }
    ensure!(operations > 0.0, "fio did nothing");
    Ok(Sample {
        rate,
        p999_us: worst.filter(|us| *us > 0.0),
        cpu_ns: cost.cpu.as_secs_f64() * 1e9 / operations,
        machine_ns: cost.machine.as_secs_f64() * 1e9 / operations,
        held_bytes: cost.page_cache_bytes,
        ways: Vec::new(),
    })
}

/// Counts that are not 0.
fn ways(lanes: &Value) -> Vec<(String, u64)> {
    let counts = lanes.as_object().into_iter().flatten();
    counts
        .filter_map(|(name, count)| Some((name.clone(), count.as_u64()?)))
        .filter(|(_, count)| *count > 0)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_setting_counts() {
        let set = [("BS", "4k"), ("MODE", "direct"), ("BS", "64k")];
        assert_eq!(value(&set, "BS"), Some("64k"));
        assert_eq!(value(&set, "JOBS"), None);
    }

    #[test]
    fn an_account_is_summed_over_jobs_and_directions() {
        assert!(json("warning: {").is_err());
        let said = r#"fio: a warning
            {"jobs": [
              {"read": {"iops": 0, "total_ios": 0},
               "write": {"iops": 1500, "total_ios": 3000,
                         "clat_ns": {"percentile": {"99.900000": 5000}}}},
              {"read": {"iops": 500, "total_ios": 1000,
                        "clat_ns": {"percentile": {"99.900000": 7000}}},
               "write": {"iops": 0, "total_ios": 0}}]}"#;
        let cost = Cost { cpu: std::time::Duration::from_millis(4), ..Cost::default() };
        let sample = sample(Unit::KiloIops, &json(said).unwrap(), &cost).unwrap();
        assert!((sample.rate - 2.0).abs() < 1e-9);
        assert!((sample.cpu_ns - 1000.0).abs() < 1e-6);
        assert_eq!(sample.p999_us, Some(7.0));
    }
}
