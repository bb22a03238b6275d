//! [`Stats`] as JSON: an object for each group; times in nanoseconds.

use super::Stats;
use super::metrics::DEVICE;
use crate::stats::histogram::Latency;
use serde_json::{Map, Value, json};
use std::time::Duration;

impl Stats {
    /// Returns one line of JSON. Keys do not change from release to release.
    pub fn to_json(&self) -> String {
        let mut all = Map::new();
        all.insert("is_writable".into(), self.is_writable.into());
        for (group, metrics) in self.groups() {
            let mut values = Map::new();
            for metric in metrics {
                let value = match metric.label {
                    None => metric.value.into(),
                    // Metrics that share a name form one object.
                    Some((_, label)) => {
                        let mut labelled = values.remove(metric.name).unwrap_or_else(|| json!({}));
                        labelled[label] = metric.value.into();
                        labelled
                    }
                };
                values.insert(metric.name.into(), value);
            }
            all.insert(group.into(), Value::Object(values));
        }
        let devices = self.devices.iter().map(|device| {
            let mut row = Map::new();
            row.insert("devid".into(), device.id.into());
            row.insert("path".into(), device.path.clone().into());
            row.extend(DEVICE.iter().map(|of| (of.name.to_owned(), (of.of)(device).into())));
            Value::Object(row)
        });
        all.insert("devices".into(), devices.collect());
        let latency = self.latency.iter();
        let latency =
            latency.map(|(operation, times)| (operation.name().to_owned(), object(times)));
        all.insert("latency".into(), Value::Object(latency.collect()));
        let tunables = self.tunables.named().into_iter();
        let tunables = tunables.map(|tunable| (tunable.key.to_owned(), tunable.value.into()));
        all.insert("tunables".into(), Value::Object(tunables.collect()));
        Value::Object(all).to_string()
    }
}

fn object(times: &Latency) -> Value {
    json!({
        "count": times.count,
        "sum_ns": nanos(times.sum),
        "mean_ns": nanos(times.mean()),
        "p50_ns": nanos(times.p50),
        "p99_ns": nanos(times.p99),
        "p999_ns": nanos(times.p999),
        "max_ns": nanos(times.max),
    })
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

#[test]
fn json_keys_are_stable() {
    let text = Stats::sample().to_json();
    assert!(!text.contains('\n'));
    let value: Value = serde_json::from_str(&text).unwrap();
    let keys = |value: &Value| value.as_object().unwrap().keys().cloned().collect::<Vec<_>>();
    let groups = ["is_writable", "lanes", "syncs", "pages", "memory", "trees", "rescues"];
    assert_eq!(keys(&value), [&groups[..], &["devices", "latency", "tunables"]].concat());
    for (group, key) in [
        ("lanes", "dio_read_simple"),
        ("lanes", "nowait_again"),
        ("pages", "cached_bytes_peak"),
        ("pages", "dropbehind_pages"),
        ("memory", "pending_writes"),
        ("rescues", "lost_sectors"),
        ("trees", "commits"),
        ("syncs", "fsync_fast"),
    ] {
        assert_eq!(value[group][key], 0, "{group}.{key}");
    }
    assert_eq!(value["pages"]["page_cache_bytes_max"], 64 << 20);
    let reasons = ["background", "hard_limit", "sync", "uncached", "pressure"];
    assert_eq!(keys(&value["pages"]["writeback_pages"]), reasons);
    assert_eq!(value["devices"][0]["path"], "a \"b\"\\c.img");
    let times = ["count", "sum_ns", "mean_ns", "p50_ns", "p99_ns", "p999_ns", "max_ns"];
    assert_eq!(keys(&value["latency"]["fsync"]), times);
    assert_eq!(value["tunables"]["dio_stable"], "bounce");
}
