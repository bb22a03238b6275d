//! Reads what fio writes: JSON with histograms (`json+`), and bandwidth logs.
//!
//! Latencies of several jobs, or of reads and writes together, are those of the sum of their
//! histograms. A result without histograms has no latencies.

use super::{Figures, Measured};
use anyhow::{Context, Result, ensure};
use serde_json::Value;
use std::collections::BTreeMap;
use std::path::Path;

/// Percentiles of a sample, with the metric that has the same value.
const PERCENTILES: [(&str, f64, &str); 4] =
    [("50", 0.5, "p50"), ("95", 0.95, "p95"), ("99", 0.99, "p99"), ("99.9", 0.999, "p99.9")];
const NS_PER_US: f64 = 1e3;
/// What fio calls the sum of the results of several servers.
const SUM_OF_SERVERS: &str = "All clients";

/// Operations and bytes of one or more directions, and their latencies.
#[derive(Default)]
struct Total {
    operations: f64,
    iops: f64,
    bytes_per_second: f64,
    latency: Latency,
    /// Of the syncs between the operations.
    sync: Latency,
}

/// A distribution of latencies.
#[derive(Default)]
struct Latency {
    sum_ns: f64,
    max_ns: f64,
    /// Number of operations, by their latency in nanoseconds.
    histogram: BTreeMap<u64, u64>,
}

/// Parses a result; warnings may precede the JSON.
///
/// # Errors
/// The text is not such a result, a job failed, or none completed an operation.
pub(crate) fn parse(text: &str, names: &BTreeMap<String, toml::Table>) -> Result<Measured> {
    let start = text.find('{').context("fio wrote no JSON")?;
    let result: Value = serde_json::from_str(&text[start..]).context("the result of fio")?;
    // The second are those of servers, of which each runs all jobs.
    let jobs = ["jobs", "client_stats"].iter().find_map(|key| result[*key].as_array());
    let mut measured = Measured::default();
    let (mut all, mut totals) = (Total::default(), BTreeMap::<&str, Total>::new());
    for job in jobs.context("the result of fio has no jobs")? {
        let name = job["jobname"].as_str().context("a job of fio has no name")?;
        if name == SUM_OF_SERVERS {
            continue;
        }
        let error = job["error"].as_i64().unwrap_or(0);
        ensure!(error == 0, "fio: job {name}: error {error}");
        ensure!(names.contains_key(name), "fio: job {name}: not one of the row");
        let total = totals.entry(name).or_default();
        for direction in [&job["read"], &job["write"], &job["trim"]] {
            total.add(direction);
            all.add(direction);
            let runtime = direction["runtime"].as_f64().unwrap_or(0.0) / 1e3;
            measured.seconds = measured.seconds.max(runtime);
        }
        total.sync.add(&job["sync"]["lat_ns"]);
        all.sync.add(&job["sync"]["lat_ns"]);
    }
    for (name, total) in totals {
        ensure!(total.operations > 0.0, "fio: job {name}: completed no operation");
        measured.jobs.insert(name.to_owned(), total.figures());
    }
    ensure!(all.operations > 0.0, "fio completed no operation");
    measured.all = all.figures();
    Ok(measured)
}

impl Total {
    fn add(&mut self, direction: &Value) {
        self.operations += number(&direction["total_ios"]);
        self.iops += number(&direction["iops"]);
        self.bytes_per_second += number(&direction["bw_bytes"]);
        self.latency.add(&direction["clat_ns"]);
    }

    fn figures(&self) -> Figures {
        let mut values = BTreeMap::new();
        values.insert("iops".to_owned(), self.iops);
        values.insert("mbps".to_owned(), self.bytes_per_second / 1e6);
        let percentiles = self.latency.percentiles("", &mut values);
        self.sync.percentiles("sync-", &mut values);
        Figures { operations: self.operations, values, percentiles, series: Vec::new() }
    }
}

impl Latency {
    fn add(&mut self, latency: &Value) {
        self.sum_ns += number(&latency["mean"]) * number(&latency["N"]);
        self.max_ns = self.max_ns.max(number(&latency["max"]));
        for (ns, count) in latency["bins"].as_object().into_iter().flatten() {
            if let (Ok(ns), Some(count)) = (ns.parse(), count.as_u64()) {
                *self.histogram.entry(ns).or_default() += count;
            }
        }
    }

    /// Adds the values in microseconds, and returns the percentiles in nanoseconds.
    fn percentiles(
        &self,
        prefix: &str,
        values: &mut BTreeMap<String, f64>,
    ) -> BTreeMap<String, f64> {
        let mut percentiles = BTreeMap::new();
        let count: u64 = self.histogram.values().sum();
        if count == 0 {
            return percentiles;
        }
        for (label, part, metric) in PERCENTILES {
            let ns = percentile(&self.histogram, count, part);
            percentiles.insert(label.to_owned(), ns);
            values.insert(format!("{prefix}{metric}"), ns / NS_PER_US);
        }
        values.insert(format!("{prefix}mean"), self.sum_ns / count as f64 / NS_PER_US);
        values.insert(format!("{prefix}max"), self.max_ns / NS_PER_US);
        percentiles
    }
}

fn number(value: &Value) -> f64 {
    value.as_f64().unwrap_or(0.0)
}

/// Returns the smallest latency that a part of all operations do not exceed, in nanoseconds.
fn percentile(histogram: &BTreeMap<u64, u64>, count: u64, part: f64) -> f64 {
    let want = count as f64 * part;
    let mut seen = 0;
    for (ns, operations) in histogram {
        seen += operations;
        if seen as f64 >= want {
            return *ns as f64;
        }
    }
    0.0
}

/// Reads a bandwidth log: pairs of a second and the MB/s of all jobs in it. A log that cannot be
/// read is empty: fio writes none for a job of less than a second.
pub(crate) fn series(path: &Path) -> Vec<(f64, f64)> {
    let text = std::fs::read_to_string(path).unwrap_or_default();
    let mut seconds: BTreeMap<u64, f64> = BTreeMap::new();
    for line in text.lines() {
        let mut fields = line.split(',').map(|field| field.trim().parse::<u64>());
        if let (Some(Ok(ms)), Some(Ok(kib))) = (fields.next(), fields.next()) {
            *seconds.entry((ms + 500) / 1000).or_default() += kib as f64 * 1024.0 / 1e6;
        }
    }
    seconds.into_iter().map(|(second, value)| (second as f64, value)).collect()
}

/// Adds the series of several jobs.
pub(crate) fn sum<'a>(all: impl Iterator<Item = &'a [(f64, f64)]>) -> Vec<(f64, f64)> {
    let mut total: Vec<(f64, f64)> = Vec::new();
    for series in all {
        for (second, value) in series {
            match total.iter_mut().find(|(known, _)| (known - second).abs() < 0.5) {
                Some((_, sum)) => *sum += value,
                None => total.push((*second, *value)),
            }
        }
    }
    total.sort_by(|a, b| a.0.total_cmp(&b.0));
    total
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names() -> BTreeMap<String, toml::Table> {
        ["a", "b"].map(|name| (name.to_owned(), toml::Table::new())).into_iter().collect()
    }

    #[test]
    fn rates_are_summed_and_histograms_are_merged() {
        let text = r#"fio: a warning
            {"jobs": [
              {"jobname": "a", "error": 0,
               "read": {"iops": 0, "total_ios": 0},
               "write": {"iops": 90, "bw_bytes": 4000000, "total_ios": 90, "runtime": 1000,
                 "clat_ns": {"N": 90, "mean": 1000, "max": 1200, "bins": {"1000": 90}}}},
              {"jobname": "b", "error": 0,
               "read": {"iops": 10, "bw_bytes": 1000000, "total_ios": 10, "runtime": 900,
                 "clat_ns": {"N": 10, "mean": 5000, "max": 9000, "bins": {"5000": 10}}},
               "write": {"iops": 0, "total_ios": 0},
               "sync": {"total_ios": 2,
                 "lat_ns": {"N": 2, "mean": 3000, "max": 4000,
                   "bins": {"2000": 1, "4000": 1}}}}]}"#;
        let measured = parse(text, &names()).unwrap();
        assert!((measured.seconds - 1.0).abs() < 1e-9);
        let all = &measured.all.values;
        let near = |metric: &str, want: f64| (all[metric] - want).abs() < 1e-9;
        assert!(near("iops", 100.0) && near("mbps", 5.0) && near("mean", 1.4));
        assert!(near("p50", 1.0) && near("p95", 5.0) && near("max", 9.0), "{all:?}");
        assert!(near("sync-p50", 2.0) && near("sync-p99", 4.0) && near("sync-mean", 3.0));
        assert!(!measured.jobs["a"].values.contains_key("sync-p50"));
        assert!((measured.jobs["a"].values["p99.9"] - 1.0).abs() < 1e-9);
        assert!((measured.all.percentiles["99"] - 5000.0).abs() < 1e-9);
    }

    #[test]
    fn results_of_servers_are_summed_by_job() {
        let text = r#"{"client_stats": [
            {"jobname": "a", "error": 0, "write": {"iops": 3, "total_ios": 3}},
            {"jobname": "a", "error": 0, "write": {"iops": 4, "total_ios": 4}},
            {"jobname": "All clients", "error": 0, "write": {"iops": 7, "total_ios": 7}}]}"#;
        let measured = parse(text, &names()).unwrap();
        assert!((measured.jobs["a"].values["iops"] - 7.0).abs() < 1e-9);
        assert!((measured.all.operations - 7.0).abs() < 1e-9);
    }

    #[test]
    fn failures_are_errors() {
        for (text, want) in [
            ("fio: no such job", "no JSON"),
            (r#"{"jobs": [{"jobname": "a", "error": 28}]}"#, "error 28"),
            (r#"{"jobs": [{"jobname": "c", "error": 0}]}"#, "not one of the row"),
            (r#"{"jobs": [{"jobname": "a", "error": 0, "read": {}}]}"#, "no operation"),
        ] {
            let error = parse(text, &names()).unwrap_err().to_string();
            assert!(error.contains(want), "{text}: {error}");
        }
    }

    #[test]
    fn logs_are_summed_by_second() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a_bw.log");
        std::fs::write(
            &path,
            "1000, 1000, 1, 65536, 0\n1001, 3000, 1, 65536, 0\n2000, 500, 1, 1, 0\n",
        )
        .unwrap();
        let read = series(&path);
        assert_eq!(read.len(), 2);
        assert!((read[0].1 - 4.096).abs() < 1e-9 && (read[1].0 - 2.0).abs() < 1e-9);
        let both = sum([&read[..], &read[..]].into_iter());
        assert!((both[0].1 - 8.192).abs() < 1e-9);
        assert!(series(&dir.path().join("none")).is_empty());
    }
}
