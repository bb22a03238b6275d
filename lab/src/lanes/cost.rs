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

/// Of all children that were waited for, and theirs.
fn children() -> Result<Duration> {
    let stat = std::fs::read_to_string("/proc/self/stat")?;
    // The program's name, in brackets, may hold anything.
    let (_, rest) = stat.rsplit_once(')').context("no name in /proc/self/stat")?;
    let fields: Vec<&str> = rest.split_whitespace().collect();
    let field =
        |at: usize| -> Result<u64> { Ok(fields.get(at).context("no such field")?.parse()?) };
    // cutime and cstime, 16th and 17th; the name is the 2nd.
    Ok(ticks(field(13)? + field(14)?))
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
