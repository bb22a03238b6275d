//! [`Stats`] as text for people. The alternate form (`{:#}`) says what each number means.

use super::Stats;
use super::metrics::DEVICE;
use std::fmt::{self, Display, Formatter};
use std::time::Duration;

/// Longer times are shown in the next unit.
const UNITS: [(&str, u128); 3] = [("ns", 10_000), ("us", 10_000_000), ("ms", 10_000_000_000)];

impl Display for Stats {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        for (group, metrics) in self.groups() {
            writeln!(f, "{group}")?;
            for metric in metrics {
                let of = metric.label.map_or(String::new(), |(_, label)| format!("_{label}"));
                let name = format!("{}{of}", metric.name);
                write_line(f, &name, &metric.value, metric.what)?;
            }
        }
        for device in &self.devices {
            let path = device.path.as_deref().unwrap_or("missing");
            writeln!(f, "device {} ({})", device.id, path.escape_debug())?;
            for metric in &DEVICE {
                let value = (metric.of)(device);
                // Error counts of 0 are left out, so that other counts stand out.
                if value > 0 || !metric.name.ends_with("_errors") {
                    write_line(f, metric.name, &value, metric.what)?;
                }
            }
        }
        self.write_latency(f)?;
        writeln!(f, "tunables")?;
        for tunable in self.tunables.named() {
            write_line(f, tunable.key, &tunable.value, tunable.what)?;
        }
        Ok(())
    }
}

fn write_line(f: &mut Formatter<'_>, name: &str, value: &dyn Display, what: &str) -> fmt::Result {
    write!(f, "  {name:<26} {value:>14}")?;
    if f.alternate() {
        write!(f, "  {what}")?;
    }
    writeln!(f)
}

impl Stats {
    fn write_latency(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let head = ["count", "mean", "p50", "p99", "p99.9", "max"];
        write!(f, "{:<16}", "latency")?;
        for word in head {
            write!(f, " {word:>10}")?;
        }
        if f.alternate() {
            write!(f, "  Times from the request to its reply.")?;
        }
        writeln!(f)?;
        for (operation, times) in self.latency.iter().filter(|(_, times)| times.count > 0) {
            write!(f, "  {:<14} {:>10}", operation.name(), times.count)?;
            for time in [times.mean(), times.p50, times.p99, times.p999, times.max] {
                write!(f, " {:>10}", shown(time))?;
            }
            writeln!(f)?;
        }
        Ok(())
    }
}

/// Formats a time in the largest unit that does not lose digits that matter.
fn shown(time: Duration) -> String {
    let nanos = time.as_nanos();
    let mut divisor = 1;
    for (unit, limit) in UNITS {
        if nanos < limit {
            return with_tenth(nanos, divisor, unit);
        }
        divisor *= 1000;
    }
    with_tenth(nanos, divisor, "s")
}

fn with_tenth(nanos: u128, divisor: u128, unit: &str) -> String {
    if divisor == 1 {
        return format!("{nanos}{unit}");
    }
    let tenths = (nanos * 10 + divisor / 2) / divisor;
    format!("{}.{}{unit}", tenths / 10, tenths % 10)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stats::Latency;

    #[test]
    fn times_have_few_digits() {
        for (nanos, want) in [
            (0, "0ns"),
            (9_999, "9999ns"),
            (12_340, "12.3us"),
            (9_999_999, "10000.0us"),
            (12_350_000, "12.4ms"),
            (65_000_000_000, "65.0s"),
        ] {
            assert_eq!(shown(Duration::from_nanos(nanos)), want);
        }
    }

    #[test]
    fn operations_without_samples_are_left_out() {
        let mut stats = Stats::sample();
        let is_fsync = |line: &&str| line.split_whitespace().next() == Some("fsync");
        assert!(!stats.to_string().lines().any(|line| is_fsync(&line)));
        let fsync = stats.latency.iter_mut().find(|(op, _)| op.name() == "fsync").unwrap();
        let time = Duration::from_micros(1500);
        fsync.1 = Latency { count: 2, sum: time * 2, max: time, p50: time, p99: time, p999: time };
        let text = stats.to_string();
        let line = text.lines().find(is_fsync).unwrap();
        let words: Vec<&str> = line.split_whitespace().collect();
        assert_eq!(
            words,
            ["fsync", "2", "1500.0us", "1500.0us", "1500.0us", "1500.0us", "1500.0us"]
        );
        assert!(text.contains("  dio_read_simple                         0\n"), "{text}");
        assert!(text.contains("\npages\n  page_cache_bytes_max"), "{text}");
        assert!(text.contains("\n  writeback_pages_hard_limit              0\n"), "{text}");
        assert!(
            text.contains("device 1 (a \\\"b\\\"\\\\c.img)\n") && !text.contains("read_errors")
        );
    }
}
