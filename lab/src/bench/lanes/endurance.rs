//! `--long`: random overwrites for ten minutes, with commits. It shows whether throughput and
//! latency stay constant.
//!
//! fio prints its totals at every `--status-interval`; the figures of a minute are the
//! difference of two totals.

use super::cost;
use super::plan::Plan;
use super::rows::{Contestant, Setting};
use super::stage::Stage;
use anyhow::{Context, Result, ensure};
use serde_json::{Deserializer, Value};
use std::collections::BTreeMap;
use std::io::{BufReader, Write};
use std::process::Stdio;
use std::time::Duration;

const JOB: &str = "stable";
/// Number of parts of the run that are reported: minutes, of the default ten.
const PARTS: u32 = 10;

/// fio's totals since the run began.
#[derive(Clone, Default)]
struct Totals {
    milliseconds: u64,
    writes: u64,
    /// User and system time of all threads of fio.
    cpu: Duration,
    /// Completion latency in nanoseconds -> number of writes.
    bins: BTreeMap<u64, u64>,
}

struct Part {
    kilo_iops: f64,
    p999_us: f64,
    cpu_ns: f64,
}

pub(crate) fn run(stage: &Stage, plan: &Plan) -> Result<()> {
    let set: [Setting; 1] = [("BS", "4k")];
    let session = stage.session(Contestant::Butternut, &[])?;
    session.lay_out(session.command(plan, JOB, &set, &[]))?;
    let interval = (plan.seconds / PARTS).max(1);
    let options = ["--output-format=json+", &format!("--status-interval={interval}")];
    let mut child =
        session.command(plan, JOB, &set, &options).stdout(Stdio::piped()).spawn().context("fio")?;
    let stdout = child.stdout.take().context("fio's output is not a pipe")?;
    let mut out = std::io::stdout().lock();
    writeln!(out, "overwrite 4K, at random, {} s, in parts of {interval} s", plan.seconds)?;
    let (mut last, mut parts) = (Totals::default(), Vec::new());
    for totals in Deserializer::from_reader(BufReader::new(stdout)).into_iter::<Value>() {
        let totals = Totals::of(&totals?, cost::of_process(child.id())?)?;
        // fio's final totals may follow those of the last part immediately.
        if totals.milliseconds < last.milliseconds + u64::from(interval) * 500 {
            continue;
        }
        let part = totals.since(&last);
        last = totals;
        let (number, seconds) = (parts.len() + 1, last.milliseconds / 1000);
        let Part { kilo_iops, p999_us, cpu_ns } = part;
        writeln!(
            out,
            "  part {number:>2}, to {seconds:>4} s {kilo_iops:>9.1} k/s   \
             p99.9 {p999_us:>9.0} us   CPU {cpu_ns:>6.0} ns"
        )?;
        parts.push(part);
    }
    ensure!(child.wait()?.success(), "fio failed");
    let (first, last) = (parts.first(), parts.last());
    let (first, last) = first.zip(last).context("fio printed no totals")?;
    let counted = session.stats()?;
    writeln!(
        out,
        "last part relative to the first: throughput {:.2}, p99.9 {:.2}, CPU time {:.2}; \
         {} commits, and one at the end",
        last.kilo_iops / first.kilo_iops,
        last.p999_us / first.p999_us,
        last.cpu_ns / first.cpu_ns,
        counted["stats"]["trees"]["commits"]
    )?;
    Ok(())
}

impl Totals {
    fn of(totals: &Value, cpu: Duration) -> Result<Self> {
        let write = &totals["jobs"][0]["write"];
        let count =
            |key: &str| write[key].as_u64().with_context(|| format!("fio's totals have no {key}"));
        let bins = write["clat_ns"]["bins"].as_object().into_iter().flatten();
        let bins = bins.filter_map(|(ns, count)| Some((ns.parse().ok()?, count.as_u64()?)));
        Ok(Self {
            milliseconds: count("runtime")?,
            writes: count("total_ios")?,
            cpu,
            bins: bins.collect(),
        })
    }

    fn since(&self, earlier: &Self) -> Part {
        let milliseconds = self.milliseconds.saturating_sub(earlier.milliseconds).max(1);
        let writes = self.writes.saturating_sub(earlier.writes);
        let bins: Vec<(u64, u64)> = self
            .bins
            .iter()
            .map(|(ns, count)| (*ns, count - earlier.bins.get(ns).unwrap_or(&0).min(count)))
            .collect();
        let cpu = self.cpu.saturating_sub(earlier.cpu).as_secs_f64();
        Part {
            kilo_iops: writes as f64 / milliseconds as f64,
            p999_us: p999_ns(&bins) / 1e3,
            cpu_ns: cpu * 1e9 / writes.max(1) as f64,
        }
    }
}

/// Returns the latency within which 999 of 1000 writes completed.
fn p999_ns(bins: &[(u64, u64)]) -> f64 {
    let total: u64 = bins.iter().map(|(_, count)| count).sum();
    let mut left = total - total / 1000;
    for (ns, count) in bins {
        left = left.saturating_sub(*count);
        if left == 0 {
            return *ns as f64;
        }
    }
    0.0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_is_the_difference_of_two_totals() {
        let totals = |milliseconds, writes, slow| Totals {
            milliseconds,
            writes,
            cpu: Duration::from_millis(milliseconds),
            bins: BTreeMap::from([(1000, writes - slow), (90_000, slow)]),
        };
        let part = totals(3000, 30_000, 60).since(&totals(1000, 10_000, 0));
        assert!((part.kilo_iops - 10.0).abs() < 1e-9);
        assert!((part.p999_us - 90.0).abs() < 1e-9);
        assert!((part.cpu_ns - 100_000.0).abs() < 1e-3);
        let part = totals(3000, 30_000, 60).since(&totals(1000, 10_000, 60));
        assert!((part.p999_us - 1.0).abs() < 1e-9);
    }
}
