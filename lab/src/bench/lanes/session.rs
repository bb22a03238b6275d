//! A contestant's session: jobs run on the device as formatted for that contestant.
//!
//! Before the timed run of a job, the same job runs once to lay its files out. Its CPU time and its
//! memory do not count. The jobs are those of fio and of databases.

use super::cost::{self, Cost};
use super::plan::Plan;
use super::rows::{Contestant, Entry, Row, Script, Setting, Unit};
use super::stage::{Stage, warn};
use crate::rig::{drop_caches, run, text};
use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;
use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

const PAGE_BYTES: u64 = 4096;

pub(crate) struct Session<'a> {
    stage: &'a Stage,
    contestant: Contestant,
    butternut: Option<PathBuf>,
    /// Directories whose files were laid out.
    laid_out: BTreeSet<String>,
}

/// Measurements of one run of an entry.
#[derive(Clone, Debug, Default)]
pub(crate) struct Sample {
    /// In the row's unit.
    pub(crate) rate: f64,
    pub(crate) p999_us: Option<f64>,
    pub(crate) cpu_ns: f64,
    pub(crate) machine_ns: f64,
    /// File data in the kernel's page cache, or in that of Butternut.
    pub(crate) cached_bytes: u64,
    /// Requests that each lane of Butternut served.
    pub(crate) lanes: Vec<(String, u64)>,
}

impl<'a> Session<'a> {
    /// `butternut` is the command line that has mounted the device, if it has.
    pub(crate) fn new(
        stage: &'a Stage,
        contestant: Contestant,
        butternut: Option<PathBuf>,
    ) -> Self {
        Self { stage, contestant, butternut, laid_out: BTreeSet::new() }
    }

    /// Runs the entry's job, after laying out its files.
    pub(crate) fn run(&mut self, plan: &Plan, row: &Row, entry: &Entry) -> Result<Sample> {
        let mut set = row.set.clone();
        set.extend(&entry.set);
        let under = value(&set, "UNDER").unwrap_or(row.job);
        if row.is_laid_out && self.laid_out.insert(under.to_owned()) {
            self.lay_out(self.row_command(plan, row, &set, &[]))?;
        }
        let (stdout, cost) = cost::measured(row.shows_memory, || {
            output(self.row_command(plan, row, &set, &["--output-format=json"]))
        })?;
        let mut sample = match row.script {
            Script::Fio => sample(row.unit, &json(&stdout)?, &cost)?,
            Script::Database => transactions(&stdout, &cost)?,
        };
        if self.contestant == Contestant::Butternut {
            let stats = self.stats()?;
            sample.cached_bytes = stats["cached_pages_peak"].as_u64().unwrap_or(0) * PAGE_BYTES;
            sample.lanes = busy_lanes(&stats["stats"]["lanes"]);
        }
        Ok(sample)
    }

    /// Writes the files of the job that a command runs, then drops the kernel's caches.
    pub(crate) fn lay_out(&self, mut command: Command) -> Result<()> {
        if self.contestant == Contestant::Raw {
            return Ok(());
        }
        command.env("LAY_OUT", "1");
        output(command).context("laying files out")?;
        drop_caches()
    }

    /// Returns a command that runs the row's job. It is killed when this process ends.
    fn row_command(
        &self,
        plan: &Plan,
        row: &Row,
        set: &[Setting],
        fio_options: &[&str],
    ) -> Command {
        match row.script {
            Script::Fio => self.command(plan, row.job, set, fio_options),
            Script::Database => {
                let mut command = self.script("database-row", "TERM");
                command
                    .args([row.job, text(&self.stage.mount_point)])
                    .env("RUNTIME", plan.seconds.to_string())
                    .envs(set.iter().copied());
                command
            }
        }
    }

    /// Returns a command that runs a program of `scripts`, which gets a signal when this process
    /// ends.
    fn script(&self, name: &str, signal: &str) -> Command {
        let mut command = Command::new("setpriv");
        let scripts = concat!(env!("CARGO_MANIFEST_DIR"), "/../scripts");
        command
            .args(["--pdeathsig", signal])
            .arg(Path::new(scripts).join(name))
            .current_dir(self.stage.dir.path())
            .stdin(Stdio::null());
        command
    }

    /// Returns a command that runs fio with a job of `crates/fio/jobs`.
    pub(crate) fn command(
        &self,
        plan: &Plan,
        job: &str,
        set: &[Setting],
        fio_options: &[&str],
    ) -> Command {
        let (target, path) = match self.contestant {
            Contestant::Raw => ("raw", &self.stage.device),
            Contestant::Btrfs | Contestant::Xfs | Contestant::Ext4 | Contestant::Mount => {
                ("kernel", &self.stage.mount_point)
            }
            Contestant::Butternut => ("butternut", &self.stage.device),
        };
        let mut mount_options = format!("stats={}", self.stats_path().display());
        if let Some(more) = value(set, "MOUNT_OPTIONS") {
            mount_options = format!("{more},{mount_options}");
        }
        let mut command = self.script("fio-row", "KILL");
        command
            .args([job, target, text(path)])
            .args(fio_options)
            .env("FIO", &plan.fio)
            .env("ENGINE", &plan.engine)
            .env("SIZE", format!("{}M", plan.file_mib))
            .env("RUNTIME", plan.seconds.to_string())
            .env("RAMP", "0")
            .envs(set.iter().copied())
            .env("MOUNT_OPTIONS", mount_options);
        command
    }

    /// Returns the statistics that the fio engine wrote when it last closed the volume.
    pub(crate) fn stats(&self) -> Result<Value> {
        let text =
            fs::read_to_string(self.stats_path()).context("the fio engine wrote no statistics")?;
        Ok(serde_json::from_str(&text)?)
    }

    fn stats_path(&self) -> PathBuf {
        self.stage.dir.path().join("stats.json")
    }
}

impl Drop for Session<'_> {
    fn drop(&mut self) {
        match &self.butternut {
            Some(butternut) => {
                let unmount = ["--quiet", "umount", text(&self.stage.mount_point)];
                warn(run(text(butternut), &unmount).map(drop));
            }
            None if self.contestant.is_kernel() => warn(self.stage.unmount()),
            None => {}
        }
    }
}

/// Returns the last setting of `key`.
pub(crate) fn value<'a>(set: &[(&'a str, &'a str)], key: &str) -> Option<&'a str> {
    set.iter().rev().find(|(name, _)| *name == key).map(|(_, value)| *value)
}

fn output(mut command: Command) -> Result<String> {
    let output = command.output().context("cannot run setpriv; scripts/setup installs it")?;
    let (stdout, stderr) =
        (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    if !output.status.success() {
        let text = if stderr.trim().is_empty() { &stdout } else { &stderr };
        bail!("the job failed: {}", text.trim());
    }
    Ok(stdout.into_owned())
}

/// Parses fio's JSON, which may follow warnings.
fn json(stdout: &str) -> Result<Value> {
    let start = stdout.find('{').context("fio printed no JSON")?;
    Ok(serde_json::from_str(&stdout[start..])?)
}

fn sample(unit: Unit, result: &Value, cost: &Cost) -> Result<Sample> {
    let jobs = result["jobs"].as_array().context("fio's result has no jobs")?;
    let (mut rate, mut operations, mut worst) = (0.0, 0.0, None::<f64>);
    for part in jobs.iter().flat_map(|job| [&job["read"], &job["write"]]) {
        let number = |key: &str| part[key].as_f64().unwrap_or(0.0);
        operations += number("total_ios");
        rate += match unit {
            Unit::KiloIops => number("iops") / 1e3,
            Unit::Megabytes => number("bw_bytes") / 1e6,
            Unit::Transactions => bail!("fio runs no transactions"),
        };
        let p999 = part["clat_ns"]["percentile"]["99.900000"].as_f64().map(|ns| ns / 1e3);
        worst = worst.into_iter().chain(p999).reduce(f64::max);
    }
    ensure!(operations > 0.0, "fio completed no operation");
    Ok(Sample {
        rate,
        p999_us: worst.filter(|us| *us > 0.0),
        cpu_ns: cost.cpu.as_secs_f64() * 1e9 / operations,
        machine_ns: cost.machine.as_secs_f64() * 1e9 / operations,
        cached_bytes: cost.page_cache_bytes,
        lanes: Vec::new(),
    })
}

/// Parses the number of transactions and their seconds, which `scripts/database-row` prints.
fn transactions(stdout: &str, cost: &Cost) -> Result<Sample> {
    let numbers: Vec<f64> =
        stdout.split_whitespace().filter_map(|word| word.parse().ok()).collect();
    let [count, seconds] = numbers[..] else { bail!("the database printed: {stdout}") };
    ensure!(count > 0.0 && seconds > 0.0, "the database completed no transaction");
    Ok(Sample {
        rate: count / seconds,
        cpu_ns: cost.cpu.as_secs_f64() * 1e9 / count,
        machine_ns: cost.machine.as_secs_f64() * 1e9 / count,
        ..Sample::default()
    })
}

/// Returns the lanes whose counts are not 0.
fn busy_lanes(lanes: &Value) -> Vec<(String, u64)> {
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
    fn rates_are_summed_over_jobs_and_directions() {
        assert!(json("warning: {").is_err());
        let stdout = r#"fio: a warning
            {"jobs": [
              {"read": {"iops": 0, "total_ios": 0},
               "write": {"iops": 1500, "total_ios": 3000,
                         "clat_ns": {"percentile": {"99.900000": 5000}}}},
              {"read": {"iops": 500, "total_ios": 1000,
                        "clat_ns": {"percentile": {"99.900000": 7000}}},
               "write": {"iops": 0, "total_ios": 0}}]}"#;
        let cost = Cost { cpu: std::time::Duration::from_millis(4), ..Cost::default() };
        let sample = sample(Unit::KiloIops, &json(stdout).unwrap(), &cost).unwrap();
        assert!((sample.rate - 2.0).abs() < 1e-9);
        assert!((sample.cpu_ns - 1000.0).abs() < 1e-6);
        assert_eq!(sample.p999_us, Some(7.0));
    }
}
