//! Measures the CPU time and the memory of a run.
//!
//! ```text
//! cpu      user and system time of all child processes that ended during the run
//! machine  time that all CPUs were not idle; includes kernel threads and unrelated processes
//! memory   peak of the kernel's page cache, without tmpfs, above its size at the start
//! ```

use anyhow::{Context, Result};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// `USER_HZ` of `/proc` is 100, also where the kernel's `HZ` differs.
const TICK: Duration = Duration::from_millis(10);
const SAMPLE_INTERVAL: Duration = Duration::from_millis(10);

#[derive(Clone, Debug, Default)]
pub(crate) struct Cost {
    pub(crate) cpu: Duration,
    pub(crate) machine: Duration,
    pub(crate) page_cache_bytes: u64,
}

/// Calls `call` and returns its result and its cost. Samples the page cache only with
/// `watches_memory`, since sampling takes CPU time.
pub(crate) fn measured<T>(
    watches_memory: bool,
    call: impl FnOnce() -> Result<T>,
) -> Result<(T, Cost)> {
    let (cpu, machine, cached) = (children()?, busy()?, page_cache_bytes()?);
    let is_over = AtomicBool::new(false);
    let (result, peak) = std::thread::scope(|scope| {
        let watcher = scope.spawn(|| {
            let mut peak = cached;
            while watches_memory && !is_over.load(Ordering::Acquire) {
                peak = peak.max(page_cache_bytes().unwrap_or(0));
                std::thread::sleep(SAMPLE_INTERVAL);
            }
            peak
        });
        let result = call();
        is_over.store(true, Ordering::Release);
        (result, watcher.join().unwrap_or(cached))
    });
    let cost = Cost {
        cpu: children()?.saturating_sub(cpu),
        machine: busy()?.saturating_sub(machine),
        page_cache_bytes: peak.saturating_sub(cached),
    };
    Ok((result?, cost))
}

fn ticks(count: u64) -> Duration {
    TICK.saturating_mul(u32::try_from(count).unwrap_or(u32::MAX))
}

/// Returns the CPU time of all children that were waited for, and of theirs: `cutime` and `cstime`,
/// fields 16 and 17.
fn children() -> Result<Duration> {
    stat_fields("self", 16)
}

/// Returns the CPU time of a process that was not waited for yet: `utime` and `stime`, fields 14
/// and 15.
pub(crate) fn of_process(pid: u32) -> Result<Duration> {
    stat_fields(&pid.to_string(), 14)
}

/// Returns the sum of two adjacent fields of `/proc/PID/stat`. `first` counts from 1.
fn stat_fields(process: &str, first: usize) -> Result<Duration> {
    let stat = std::fs::read_to_string(format!("/proc/{process}/stat"))?;
    // Field 2 is the program's name in parentheses and may contain spaces and parentheses.
    let (_, rest) = stat.rsplit_once(')').context("no name in /proc/PID/stat")?;
    let pair = rest.split_whitespace().skip(first.saturating_sub(3)).take(2);
    Ok(ticks(pair.map(str::parse::<u64>).sum::<Result<_, _>>()?))
}

fn busy() -> Result<Duration> {
    let stat = std::fs::read_to_string("/proc/stat")?;
    let line = stat.lines().next().context("/proc/stat is empty")?;
    let fields: Vec<u64> = line.split_whitespace().filter_map(|field| field.parse().ok()).collect();
    // user, nice, system, irq and softirq; fields 3 and 4 are idle and iowait.
    Ok(ticks([0, 1, 2, 5, 6].iter().filter_map(|at| fields.get(*at)).sum()))
}

fn page_cache_bytes() -> Result<u64> {
    let text = std::fs::read_to_string("/proc/meminfo")?;
    let of = |key: &str| -> Result<u64> {
        let line = text
            .lines()
            .find(|line| line.starts_with(key))
            .context("/proc/meminfo lacks a line")?;
        let kib =
            line.split_whitespace().nth(1).context("a line of /proc/meminfo has no number")?;
        Ok(kib.parse::<u64>()? << 10)
    };
    Ok(of("Cached:")?.saturating_sub(of("Shmem:")?))
}
