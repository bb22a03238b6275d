//! Drivers: what produces the load of a row, and the figures that come back.

pub(crate) mod fio;
pub(crate) mod fio_result;
pub(crate) mod metadata;

use std::collections::BTreeMap;

/// The figures of one job, or of all jobs of a measurement together.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Figures {
    /// Completed operations.
    pub(crate) operations: f64,
    /// Values by the name of the metric.
    pub(crate) values: BTreeMap<String, f64>,
    /// Latencies in nanoseconds, by percentile.
    pub(crate) percentiles: BTreeMap<String, f64>,
    /// Bandwidth in MB/s of each second.
    pub(crate) series: Vec<(f64, f64)>,
}

/// What a driver measured.
#[derive(Clone, Debug, Default)]
pub(crate) struct Measured {
    /// Duration in seconds, without the layout of files.
    pub(crate) seconds: f64,
    pub(crate) all: Figures,
    /// By the name of the job.
    pub(crate) jobs: BTreeMap<String, Figures>,
}
