//! Records made for tests.

use crate::record::{
    Better, End, Environment, FORMAT, Line, RunHeader, Sample, Switches, Writer, path_of,
};
use std::collections::BTreeMap;
use std::path::Path;

/// A run that is to be written: cells of (row, target, values).
pub(crate) struct Made<'a> {
    pub(crate) id: &'a str,
    pub(crate) started: &'a str,
    pub(crate) cells: &'a [(&'a str, &'a str, &'a [f64])],
}

pub(crate) fn header(id: &str, started: &str) -> RunHeader {
    let environment = Environment {
        kernel: "6.18.0-1".to_owned(),
        cpu: "a processor".to_owned(),
        cores: 2,
        commit: format!("{id:0<40}"),
        ..Environment::default()
    };
    RunHeader {
        format: FORMAT,
        id: id.to_owned(),
        started: started.to_owned(),
        suite: "s".to_owned(),
        seed: 1,
        command: vec!["butternut-lab".to_owned(), "run".to_owned(), "--suite=s".to_owned()],
        environment,
    }
}

pub(crate) fn sample(row: &str, target: &str, repeat: u32, value: f64) -> Sample {
    Sample {
        row: row.to_owned(),
        target: target.to_owned(),
        switches: Switches::new(),
        metric: "iops".to_owned(),
        unit: "1/s".to_owned(),
        better: Better::Higher,
        value,
        repeat,
        order: repeat,
        started: "2026-01-02T03:04:05Z".to_owned(),
        seconds: 4.0,
        percentiles: BTreeMap::new(),
        series: Vec::new(),
        cpu_us_per_op: None,
        peak_dirty_bytes: None,
        peak_cached_bytes: None,
        device_read_bytes: None,
        device_write_bytes: None,
    }
}

impl Made<'_> {
    /// Writes the complete record into `history`.
    pub(crate) fn write(&self, history: &Path) {
        let mut writer = self.begin(history);
        writer.append(&end()).expect("appended");
    }

    /// Writes the record without its end.
    pub(crate) fn begin(&self, history: &Path) -> Writer {
        drop(std::fs::remove_file(path_of(history, self.id).expect("an id")));
        let mut writer = Writer::create(history, &header(self.id, self.started)).expect("a record");
        for (row, target, values) in self.cells {
            for (repeat, value) in (0..).zip(*values) {
                let sample = Box::new(sample(row, target, repeat, *value));
                writer.append(&Line::Sample(sample)).expect("appended");
            }
        }
        writer
    }
}

pub(crate) fn end() -> Line {
    Line::End(End { finished: "2026-01-02T04:00:00Z".to_owned(), planned: 1, done: 1 })
}

/// Six values about `level`, within 1 %.
pub(crate) fn about(level: f64) -> Vec<f64> {
    [1.0, 1.008, 0.993, 1.004, 0.997, 1.001]
        .iter()
        .map(|part| (part * level * 100.0).round() / 100.0)
        .collect()
}
