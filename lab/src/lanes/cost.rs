//! What a run takes beside time: processor and memory.
//!
//! ```text
//! cpu      user and system, of all threads of the processes that were waited for meanwhile
//! machine  all that was not idle: the kernel's own threads too, and whatever else was running
//! memory   the peak of the kernel's page cache above where it began, without what tmpfs holds
//! ```

use anyhow::{Context, Result};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Of a clock tick of `/proc`, whatever the kernel's own is.
const TICK: Duration = Duration::from_millis(10);
const LOOK_EVERY: Duration = Duration::from_millis(10);

#[derive(Clone, Debug, Default)]
pub(crate) struct Cost {
    pub(crate) cpu: Duration,
    pub(crate) machine: Duration,
    pub(crate) page_cache_bytes: u64,
}

/// Runs it, and says what it took; the page cache is looked at only where that is asked for, as
/// looking takes time too.
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
                std::thread::sleep(LOOK_EVERY);
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

/// Of all children that were waited for, and theirs: cutime and cstime, 16th and 17th.
fn children() -> Result<Duration> {
    stat_fields("self", 16)
}

/// Of a process that has not been waited for: utime and stime, 14th and 15th.
pub(crate) fn of_process(pid: u32) -> Result<Duration> {
    stat_fields(&pid.to_string(), 14)
}

/// The sum of two fields of `/proc/PID/stat`, the first counted from 1.
fn stat_fields(process: &str, first: usize) -> Result<Duration> {
    let stat = std::fs::read_to_string(format!("/proc/{process}/stat"))?;
    // The second is the program's name, in brackets, and may hold anything.
    let (_, rest) = stat.rsplit_once(')').context("no name in /proc/PID/stat")?;
    let pair = rest.split_whitespace().skip(first.saturating_sub(3)).take(2);
    Ok(ticks(pair.map(str::parse::<u64>).sum::<Result<_, _>>()?))
}

fn busy() -> Result<Duration> {
    let stat = std::fs::read_to_string("/proc/stat")?;
    let line = stat.lines().next().context("/proc/stat is empty")?;
    let fields: Vec<u64> = line.split_whitespace().filter_map(|field| field.parse().ok()).collect();
    // user, nice, system, (idle, iowait,) irq, softirq
    Ok(ticks([0, 1, 2, 5, 6].iter().filter_map(|at| fields.get(*at)).sum()))
}

fn page_cache_bytes() -> Result<u64> {
    let text = std::fs::read_to_string("/proc/meminfo")?;
    let of = |key: &str| -> Result<u64> {
        let line = text.lines().find(|line| line.starts_with(key)).context("no such line")?;
        let kib = line.split_whitespace().nth(1).context("no figure")?;
        Ok(kib.parse::<u64>()? << 10)
    };
    Ok(of("Cached:")?.saturating_sub(of("Shmem:")?))
}
