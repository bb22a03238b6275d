//! `--long`: random overwrites for ten minutes, commits going on: whether throughput and latency
//! stay what they were.
//!
//! fio tells now and then what it has counted so far; a minute is the difference of two accounts.

use super::rows::{Setting, Who};
use super::stage::Stage;
use super::{Plan, cost};
use anyhow::{Context, Result, ensure};
use serde_json::{Deserializer, Value};
use std::collections::BTreeMap;
use std::io::{BufReader, Write};
use std::process::Stdio;
use std::time::Duration;

const JOB: &str = "stable";
/// Parts of the run that are told apart: minutes, of the usual ten.
const PARTS: u32 = 10;

/// What fio has counted since the run began.
#[derive(Clone, Default)]
struct Account {
    milliseconds: u64,
    writes: u64,
    /// User and system, of all its threads.
    cpu: Duration,
    /// Completion time in nanoseconds -> writes.
    bins: BTreeMap<u64, u64>,
}

struct Part {
    kilo_iops: f64,
    p999_us: f64,
    cpu_ns: f64,
}

pub(crate) fn run(stage: &Stage, plan: &Plan) -> Result<()> {
    let set: [Setting; 1] = [("BS", "4k")];
    let turn = stage.turn(Who::Ours)?;
    turn.lay_out(plan, JOB, &set)?;
    let interval = (plan.seconds / PARTS).max(1);
    let options = ["--output-format=json+", &format!("--status-interval={interval}")];
    let mut child =
        turn.command(plan, JOB, &set, &options).stdout(Stdio::piped()).spawn().context("fio")?;
    let told = child.stdout.take().context("fio's output is not ours")?;
    let mut out = std::io::stdout().lock();
    writeln!(out, "overwrite 4K, at random, {} s, in parts of {interval} s", plan.seconds)?;
    let (mut last, mut parts) = (Account::default(), Vec::new());
    for account in Deserializer::from_reader(BufReader::new(told)).into_iter::<Value>() {
        let account = Account::of(&account?, cost::of_process(child.id())?)?;
        // The last account of all may follow that of the last part at once.
        if account.milliseconds < last.milliseconds + u64::from(interval) * 500 {
            continue;
        }
        let part = account.since(&last);
        last = account;
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
    let (first, last) = first.zip(last).context("fio told of no part")?;
    let counted = turn.stats()?;
    writeln!(
        out,
        "the last part beside the first: {:.2} of its throughput, {:.2} of its p99.9, {:.2} of its \
         CPU time; {} commits, and one at the end",
        last.kilo_iops / first.kilo_iops,
        last.p999_us / first.p999_us,
        last.cpu_ns / first.cpu_ns,
        counted["stats"]["trees"]["commits"]
    )?;
    Ok(())
}

impl Account {
    fn of(account: &Value, cpu: Duration) -> Result<Self> {
        let write = &account["jobs"][0]["write"];
        let count = |key: &str| write[key].as_u64().with_context(|| format!("fio gave no {key}"));
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

/// The time within which 999 of 1000 were complete.
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
    fn a_part_is_what_came_since_the_one_before() {
        let account = |milliseconds, writes, slow| Account {
            milliseconds,
            writes,
            cpu: Duration::from_millis(milliseconds),
            bins: BTreeMap::from([(1000, writes - slow), (90_000, slow)]),
        };
        let part = account(3000, 30_000, 60).since(&account(1000, 10_000, 0));
        assert!((part.kilo_iops - 10.0).abs() < 1e-9);
        assert!((part.p999_us - 90.0).abs() < 1e-9);
        assert!((part.cpu_ns - 100_000.0).abs() < 1e-3);
        let part = account(3000, 30_000, 60).since(&account(1000, 10_000, 60));
        assert!((part.p999_us - 1.0).abs() < 1e-9);
    }
}
