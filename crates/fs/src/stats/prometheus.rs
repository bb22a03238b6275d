//! [`Stats`] in the text format of Prometheus, version 0.0.4.
//!
//! Counters end in `_total`; metrics that share a name are distinguished by a label. Times are in
//! seconds: a summary for each operation, and a gauge for its longest time. A tunable is a gauge of
//! 1 with its value as a label.

use super::Stats;
use super::metrics::{DEVICE, Kind};
use std::fmt::{self, Write};
use std::time::Duration;

const PREFIX: &str = "butternut_";

impl Stats {
    /// Returns the response to a scrape.
    pub fn to_prometheus(&self) -> String {
        let mut text = String::new();
        // Writing into a String cannot fail.
        self.write_prometheus(&mut text).unwrap_or_default();
        text
    }

    fn write_prometheus(&self, out: &mut String) -> fmt::Result {
        let mut headed = "";
        for metric in self.groups().into_iter().flat_map(|(_, metrics)| metrics) {
            let (suffix, kind) = match metric.kind {
                Kind::Counter => ("_total", "counter"),
                Kind::Gauge => ("", "gauge"),
            };
            let name = format!("{PREFIX}{}{suffix}", metric.name);
            if metric.name != headed {
                head(out, &name, metric.what, kind)?;
            }
            headed = metric.name;
            match metric.label {
                None => writeln!(out, "{name} {}", metric.value)?,
                Some((key, label)) => {
                    writeln!(out, "{name}{{{key}=\"{label}\"}} {}", metric.value)?;
                }
            }
        }
        head(out, "butternut_writable", "Whether the volume can be written.", "gauge")?;
        writeln!(out, "butternut_writable {}", u8::from(self.is_writable))?;
        for metric in &DEVICE {
            let name = format!("{PREFIX}device_{}_total", metric.name);
            head(out, &name, metric.what, "counter")?;
            for device in &self.devices {
                let path = label(device.path.as_deref().unwrap_or_default());
                let value = (metric.of)(device);
                writeln!(out, "{name}{{devid=\"{}\",path=\"{path}\"}} {value}", device.id)?;
            }
        }
        self.write_latency_summary(out)?;
        head(out, "butternut_tunable", "The tunables, each with its value.", "gauge")?;
        for tunable in self.tunables.named() {
            let (key, value) = (tunable.key, tunable.value);
            writeln!(out, "butternut_tunable{{key=\"{key}\",value=\"{value}\"}} 1")?;
        }
        Ok(())
    }

    fn write_latency_summary(&self, out: &mut String) -> fmt::Result {
        let name = "butternut_latency_seconds";
        head(out, name, "Latency of operations.", "summary")?;
        for (operation, times) in &self.latency {
            let of = operation.name();
            let quantiles = [("0.5", times.p50), ("0.99", times.p99), ("0.999", times.p999)];
            for (quantile, time) in quantiles {
                let labels = format!("operation=\"{of}\",quantile=\"{quantile}\"");
                // Without samples there is no quantile.
                let time = if times.count == 0 { "NaN".into() } else { seconds(time) };
                writeln!(out, "{name}{{{labels}}} {time}")?;
            }
            writeln!(out, "{name}_sum{{operation=\"{of}\"}} {}", seconds(times.sum))?;
            writeln!(out, "{name}_count{{operation=\"{of}\"}} {}", times.count)?;
        }
        let name = "butternut_latency_max_seconds";
        head(out, name, "Latency of the longest operation.", "gauge")?;
        for (operation, times) in &self.latency {
            writeln!(out, "{name}{{operation=\"{}\"}} {}", operation.name(), seconds(times.max))?;
        }
        Ok(())
    }
}

fn head(out: &mut String, name: &str, what: &str, kind: &str) -> fmt::Result {
    let what = what.replace('\\', "\\\\").replace('\n', "\\n");
    writeln!(out, "# HELP {name} {what}\n# TYPE {name} {kind}")
}

/// Escapes the value of a label.
fn label(value: &str) -> String {
    value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

fn seconds(time: Duration) -> String {
    format!("{}.{:09}", time.as_secs(), time.subsec_nanos())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::{HashMap, HashSet};

    /// Splits a sample into name, labels and value.
    fn sample(line: &str) -> (&str, Vec<(&str, String)>, &str) {
        let end = line.find(['{', ' ']).unwrap();
        let (name, mut rest) = line.split_at(end);
        let mut labels = Vec::new();
        if let Some(inside) = rest.strip_prefix('{') {
            rest = inside;
            loop {
                let (key, value) = rest.split_once("=\"").unwrap();
                let mut escaped = false;
                let quote = value.char_indices().find(|(_, c)| {
                    let ends = !escaped && *c == '"';
                    escaped = !escaped && *c == '\\';
                    ends
                });
                let quote = quote.unwrap().0;
                let plain = value[..quote].replace("\\\"", "\"").replace("\\\\", "\\");
                labels.push((key, plain));
                rest = &value[quote + 1..];
                match rest.strip_prefix(',') {
                    Some(more) => rest = more,
                    None => break,
                }
            }
            rest = rest.strip_prefix('}').unwrap();
        }
        (name, labels, rest.strip_prefix(' ').unwrap())
    }

    fn is_name(name: &str) -> bool {
        name.starts_with(|c: char| c.is_ascii_lowercase())
            && name.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_')
    }

    #[test]
    fn the_text_conforms_to_the_format() {
        let text = Stats::sample().to_prometheus();
        assert!(text.ends_with('\n') && text.is_ascii());
        let mut kinds = HashMap::new();
        let mut helped = None;
        let mut seen = HashSet::new();
        for line in text.lines() {
            if let Some(rest) = line.strip_prefix("# HELP ") {
                let (name, what) = rest.split_once(' ').unwrap();
                assert!(is_name(name) && what.ends_with('.'), "{line}");
                helped = Some(name);
            } else if let Some(rest) = line.strip_prefix("# TYPE ") {
                let (name, kind) = rest.split_once(' ').unwrap();
                assert_eq!(helped, Some(name), "HELP stands before TYPE");
                assert!(["counter", "gauge", "summary"].contains(&kind), "{line}");
                assert_eq!(name.ends_with("_total"), kind == "counter", "{line}");
                assert!(kinds.insert(name, kind).is_none(), "{name} is there once");
            } else {
                let (name, labels, value) = sample(line);
                let family = helped.unwrap();
                let of_summary = kinds[family] == "summary"
                    && [format!("{family}_sum"), format!("{family}_count")].contains(&name.into());
                assert!(name == family || of_summary, "{line} stands under {family}");
                assert!(labels.iter().all(|(key, _)| is_name(key)), "{line}");
                assert!(value.parse::<f64>().is_ok(), "{line}");
                assert!(seen.insert(line.rsplit_once(' ').unwrap().0), "{line} is there once");
            }
        }
        assert_eq!(kinds["butternut_dio_read_simple_total"], "counter");
        assert_eq!(kinds["butternut_dirty_bytes"], "gauge");
        assert_eq!(kinds["butternut_cached_pages_peak"], "gauge");
        assert!(text.contains("\nbutternut_writeback_pages_total{reason=\"hard_limit\"} 0\n"));
        assert_eq!(kinds["butternut_latency_seconds"], "summary");
        let device = text.lines().find(|line| line.starts_with("butternut_device_reads")).unwrap();
        let (_, labels, _) = sample(device);
        assert_eq!(labels, [("devid", "1".into()), ("path", "a \"b\"\\c.img".into())]);
    }

    #[test]
    fn seconds_keep_their_nanoseconds() {
        assert_eq!(seconds(Duration::from_nanos(1_500)), "0.000001500");
        assert_eq!(seconds(Duration::from_secs(70)), "70.000000000");
    }
}
