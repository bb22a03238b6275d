//! One measurement: a session of the target, the layout, the job, and the samples that come of it.

use crate::child;
use crate::cost::{Cost, Meter};
use crate::drivers::{Figures, Measured, fio, metadata};
use crate::interrupt;
use crate::memory_limit::MemoryLimit;
use crate::scenario::rows::Row;
use crate::scenario::{Driver, FIO_METRICS, Variables, split_metric};
use crate::target::device::Device;
use crate::target::session::{Place, Session, Setup, drop_caches};
use crate::target::{Kind, Target};
use crate::tools::Tools;
use anyhow::{Context, Result};
use butternut_lab::record::{Better, Sample};
use std::path::Path;

const PAGE_BYTES: u64 = 4096;

/// What a measurement needs.
#[derive(Debug)]
pub(crate) struct Task<'a> {
    pub(crate) row: &'a Row,
    pub(crate) target: &'a Target,
    pub(crate) switches: &'a Variables,
    pub(crate) device: Option<&'a Device>,
    pub(crate) tools: &'a Tools,
    /// Servers of fio, as of [`fio::Run`].
    pub(crate) servers: &'a [String],
    pub(crate) work: &'a Path,
}

/// What was measured, and what it cost.
#[derive(Debug)]
pub(crate) struct Outcome {
    pub(crate) measured: Measured,
    cost: Cost,
}

impl Task<'_> {
    /// Measures once. Nothing stays mounted, also after an error.
    ///
    /// # Errors
    /// The target cannot be made, the job fails, the target has died, or the run is interrupted.
    pub(crate) fn run(&self) -> Result<Outcome> {
        interrupt::check()?;
        let page_cache_bytes = self.row.memory_bytes;
        let mut mount_options = fio::mount_options(self.switches);
        if self.target.kind.has_switches() {
            mount_options.extend(page_cache_bytes.map(|bytes| format!("page_cache={bytes}")));
        }
        let session = Session::begin(Setup {
            target: self.target,
            device: self.device,
            work: self.work,
            butternut: self.tools.butternut.as_deref(),
            mount_options,
            in_place: self.row.scenario.in_place,
        })?;
        let outcome = self.in_session(&session, page_cache_bytes);
        // A dead target explains an error of the job, so it is reported first.
        let alive = session.check();
        let outcome = match (outcome, alive) {
            (Err(error), Err(dead)) if !error.is::<interrupt::Interrupted>() => {
                Err(error.context(format!("{dead:#}")))
            }
            (outcome, _) => outcome,
        };
        let ended = session.end();
        let outcome = outcome?;
        ended?;
        Ok(outcome)
    }

    /// Returns the peaks of cached and dirty bytes of the process of a mount, which come on top of
    /// those of the kernel.
    fn peaks_of_mount(&self, files: &Path) -> Result<(u64, u64)> {
        let program = self.tools.butternut.as_deref().context("butternut")?;
        let words = ["stats".as_ref(), "--json".as_ref(), files.as_os_str()];
        let text = child::run(&program.display().to_string(), &words)?;
        let stats: serde_json::Value = serde_json::from_str(&text).context("butternut stats")?;
        let bytes = |key: &str| stats["pages"][key].as_u64().unwrap_or(0);
        Ok((bytes("cached_bytes_peak"), bytes("dirty_bytes_peak")))
    }

    fn in_session(&self, session: &Session<'_>, page_cache_bytes: Option<u64>) -> Result<Outcome> {
        let row = self.row;
        let run = fio::Run {
            row,
            place: session.place(),
            kind: self.target.kind.name(),
            switches: self.switches,
            page_cache_bytes,
            tools: self.tools,
            servers: self.servers,
            work: self.work,
        };
        if row.scenario.driver == Driver::Fio && row.scenario.lay_out {
            run.lay_out()?;
        }
        drop_caches()?;
        // The library has its own cache with a limit; in a group it would be killed instead.
        let limit = match (row.memory_bytes, &self.target.kind) {
            (None, _) | (_, Kind::Butternut) => None,
            (Some(bytes), _) => Some(MemoryLimit::make(bytes)?),
        };
        let wrap = |command| match &limit {
            Some(limit) => limit.enter(command),
            None => command,
        };
        let mut meter = Meter::start(session.device())?;
        let measured = match (row.scenario.driver, session.place()) {
            (Driver::Metadata, Place::Directory(files)) => {
                metadata::measure(row, files, self.work, wrap, || meter.sample())?
            }
            _ => run.measure(wrap, || meter.sample())?,
        };
        let mut cost = meter.stop()?;
        if matches!(self.target.kind, Kind::Butternut) {
            let (cached, dirty) = peaks_of_library(&run.stats_path())?;
            (cost.peak_cached_bytes, cost.peak_dirty_bytes) = (cached, dirty);
        }
        if let (Kind::Mount, Place::Directory(files)) = (&self.target.kind, session.place()) {
            let (cached, dirty) = self.peaks_of_mount(files)?;
            cost.peak_cached_bytes += cached;
            cost.peak_dirty_bytes += dirty;
        }
        Ok(Outcome { measured, cost })
    }
}

/// Reads the peaks of cached and dirty bytes that the fio engine has written.
fn peaks_of_library(path: &Path) -> Result<(u64, u64)> {
    let text = std::fs::read_to_string(path).context("the fio engine wrote no counters")?;
    let stats: serde_json::Value = serde_json::from_str(&text)?;
    let bytes = |key: &str| stats[key].as_u64().unwrap_or(0) * PAGE_BYTES;
    Ok((bytes("cached_pages_peak"), bytes("dirty_pages_peak")))
}

/// Where and when a sample was measured.
#[derive(Clone, Debug)]
pub(crate) struct When {
    pub(crate) repeat: u32,
    pub(crate) order: u32,
    pub(crate) started: String,
}

impl Outcome {
    /// Returns a sample for each metric of the row that has a value. The first one of each job has
    /// its latencies, the first one of all has the cost.
    ///
    /// # Errors
    /// The first metric has no value.
    pub(crate) fn samples(
        &self,
        row: &Row,
        target: &Target,
        switches: &Variables,
        when: &When,
    ) -> Result<Vec<Sample>> {
        let mut samples: Vec<Sample> = Vec::new();
        for metric in &row.scenario.metrics {
            let (job, plain) = split_metric(metric);
            let figures = match job {
                Some(job) => self.measured.jobs.get(job),
                None => Some(&self.measured.all),
            };
            let Some(figures) = figures else { continue };
            let Some(value) = self.value(figures, plain) else { continue };
            let (unit, better) = unit_of(row.scenario.driver, plain);
            let is_first_of_job =
                !samples.iter().any(|sample| split_metric(&sample.metric).0 == job);
            let percentiles = figures.percentiles.clone();
            let is_first = samples.is_empty();
            let cost = is_first.then_some(&self.cost);
            samples.push(Sample {
                row: row.name.clone(),
                target: target.label.clone(),
                switches: switches.clone(),
                metric: metric.clone(),
                unit: unit.to_owned(),
                better,
                value,
                repeat: when.repeat,
                order: when.order,
                started: when.started.clone(),
                seconds: self.measured.seconds,
                percentiles: if is_first_of_job { percentiles } else { <_>::default() },
                series: series(figures, plain),
                cpu_us_per_op: cost.map(|_| self.cpu_us(&self.measured.all)),
                peak_dirty_bytes: cost.map(|cost| cost.peak_dirty_bytes),
                peak_cached_bytes: cost.map(|cost| cost.peak_cached_bytes),
                device_read_bytes: cost.and_then(|cost| cost.device_read_bytes),
                device_write_bytes: cost.and_then(|cost| cost.device_write_bytes),
            });
        }
        let first = &row.scenario.metrics[0];
        let has_first = samples.first().is_some_and(|sample| sample.metric == *first);
        anyhow::ensure!(has_first, "metric {first}: the job has no such value");
        Ok(samples)
    }

    fn value(&self, figures: &Figures, metric: &str) -> Option<f64> {
        match metric {
            "cpu" => Some(self.cpu_us(figures)),
            "peak-cached" => Some(self.cost.peak_cached_bytes as f64),
            "peak-dirty" => Some(self.cost.peak_dirty_bytes as f64),
            _ => figures.values.get(metric).copied(),
        }
    }

    fn cpu_us(&self, figures: &Figures) -> f64 {
        self.cost.cpu_seconds * 1e6 / figures.operations.max(1.0)
    }
}

/// Returns the metric over time. The log has MB/s; a rate of operations has the same shape.
fn series(figures: &Figures, metric: &str) -> Vec<(f64, f64)> {
    let of = |name: &str| figures.values.get(name).copied().unwrap_or(0.0);
    let scale = match metric {
        "mbps" => 1.0,
        "iops" if of("mbps") > 0.0 => of("iops") / of("mbps"),
        _ => return Vec::new(),
    };
    figures.series.iter().map(|(second, value)| (*second, value * scale)).collect()
}

fn unit_of(driver: Driver, metric: &str) -> (&'static str, Better) {
    let known = FIO_METRICS.iter().find(|(name, ..)| *name == metric);
    match (driver, known) {
        (Driver::Fio, Some((_, unit, true))) => (unit, Better::Higher),
        (Driver::Fio, Some((_, unit, false))) => (unit, Better::Lower),
        _ => ("files/s", Better::Higher),
    }
}
