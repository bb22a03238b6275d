//! The data of the charts, which the page's script draws.

use crate::history::Point;
use crate::judge::comparison::Limits;
use crate::judge::{change_points, statistics as stats};
use crate::reports::figures::{Cell, Metric, number};
use serde::Serialize;

/// A chart: lines over one axis.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Chart {
    pub id: String,
    pub title: String,
    pub x_label: String,
    pub y_label: String,
    pub x: Vec<f64>,
    /// Names of the places on the axis, where they are no numbers.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub names: Vec<String>,
    pub lines: Vec<Line>,
    /// Whether the vertical axis is logarithmic.
    pub is_log: bool,
    /// Places of change points.
    pub marks: Vec<f64>,
}

/// One line, with a value or a gap for each place.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Line {
    pub name: String,
    pub values: Vec<Option<f64>>,
}

/// The charts of a page.
#[derive(Debug, Default)]
pub struct Charts {
    pub all: Vec<Chart>,
}

impl Charts {
    /// Adds a chart under a name of its own, and returns its place.
    pub fn add(&mut self, mut chart: Chart) -> usize {
        chart.id = format!("chart-{}", self.all.len() + 1);
        self.all.push(chart);
        self.all.len() - 1
    }
}

/// The metric by the number of its variants, such as the number of jobs; `None` where the variants
/// are not numbers of one thing.
#[allow(clippy::cast_precision_loss, reason = "places on an axis are few")]
pub fn scaling(metric: &Metric<'_>) -> Option<Chart> {
    let numbers: Vec<(&str, f64)> =
        metric.lines.iter().map(|line| number(&line.variant)).collect::<Option<_>>()?;
    let (name, _) = *numbers.first()?;
    if numbers.len() < 2 || numbers.iter().any(|(other, _)| *other != name) {
        return None;
    }
    let values = |column: usize| {
        let cells = metric.lines.iter().map(|line| line.cells[column].as_ref());
        cells.map(|cell| cell.map(|cell| cell.median)).collect()
    };
    let columns = metric.columns.iter().enumerate();
    Some(Chart {
        id: String::new(),
        title: format!("{} by {name}", metric.name),
        x_label: name.to_owned(),
        y_label: unit(metric),
        x: (0..numbers.len()).map(|at| at as f64).collect(),
        names: numbers.iter().map(|(_, number)| number.to_string()).collect(),
        lines: columns.map(|(at, name)| Line { name: name.clone(), values: values(at) }).collect(),
        is_log: false,
        marks: Vec::new(),
    })
}

/// The metric over time, a chart for each variant that has a series. Each target has the line of
/// its median repeat.
pub fn over_time(metric: &Metric<'_>) -> Vec<Chart> {
    let mut charts = Vec::new();
    for line in &metric.lines {
        let mut x: Vec<f64> = Vec::new();
        let mut series = Vec::new();
        for (column, cell) in metric.columns.iter().zip(&line.cells) {
            let Some(middle) = cell.as_ref().map(Cell::middle) else { continue };
            if middle.series.len() > 1 {
                x.extend(middle.series.iter().map(|(second, _)| *second));
                series.push((column.clone(), &middle.series));
            }
        }
        x.sort_by(f64::total_cmp);
        x.dedup();
        let place = |points: &[(f64, f64)]| {
            let mut values = vec![None; x.len()];
            for (second, value) in points {
                values[x.partition_point(|other| other < second)] = Some(*value);
            }
            values
        };
        let lines: Vec<Line> = series
            .iter()
            .map(|(name, points)| Line { name: name.clone(), values: place(points) })
            .collect();
        if !lines.is_empty() {
            charts.push(Chart {
                id: String::new(),
                title: format!("{} over time: {}", metric.name, shown(&line.variant)),
                x_label: "seconds".to_owned(),
                y_label: unit(metric),
                names: Vec::new(),
                lines,
                is_log: false,
                marks: Vec::new(),
                x,
            });
        }
    }
    charts
}

/// Latencies by percentile, a chart for each variant that has them: medians over the repeats, in
/// microseconds.
#[allow(clippy::cast_precision_loss, reason = "places on an axis are few")]
pub fn latency(metric: &Metric<'_>) -> Vec<Chart> {
    let mut charts = Vec::new();
    for line in &metric.lines {
        let mut names: Vec<&String> = line
            .cells
            .iter()
            .flatten()
            .flat_map(|cell| cell.samples.iter().flat_map(|sample| sample.percentiles.keys()))
            .collect();
        names.sort_by(|a, b| percentile(a).total_cmp(&percentile(b)));
        names.dedup();
        if names.is_empty() {
            continue;
        }
        let mut lines = Vec::new();
        for (column, cell) in metric.columns.iter().zip(&line.cells) {
            let Some(cell) = cell else { continue };
            let value = |name: &&String| {
                let all = cell.samples.iter().filter_map(|s| s.percentiles.get(*name).copied());
                stats::median(&all.collect::<Vec<_>>()).map(|ns| ns / 1000.0)
            };
            lines.push(Line { name: column.clone(), values: names.iter().map(value).collect() });
        }
        charts.push(Chart {
            id: String::new(),
            title: format!("latency: {}", shown(&line.variant)),
            x_label: "percentile".to_owned(),
            y_label: "microseconds".to_owned(),
            x: (0..names.len()).map(|at| at as f64).collect(),
            names: names.into_iter().cloned().collect(),
            lines,
            is_log: true,
            marks: Vec::new(),
        });
    }
    charts
}

/// One cell over the runs, with its change points.
#[allow(clippy::cast_precision_loss, reason = "places on an axis are few")]
pub fn track(title: &str, points: &[&Point]) -> Option<Chart> {
    let values: Vec<f64> =
        points.iter().map(|point| stats::median(&point.values)).collect::<Option<_>>()?;
    let last = points.last()?;
    let changes = change_points::notable(&values, Limits::default().effect, 1);
    Some(Chart {
        id: String::new(),
        title: title.to_owned(),
        x_label: "run".to_owned(),
        y_label: last.unit.clone(),
        x: (0..values.len()).map(|at| at as f64).collect(),
        names: points.iter().map(|point| point.run.clone()).collect(),
        lines: vec![Line {
            name: last.target.clone(),
            values: values.into_iter().map(Some).collect(),
        }],
        is_log: false,
        marks: changes.iter().map(|change| change.index as f64).collect(),
    })
}

fn percentile(name: &str) -> f64 {
    name.parse().unwrap_or(f64::INFINITY)
}

fn unit(metric: &Metric<'_>) -> String {
    if metric.unit.is_empty() { metric.name.clone() } else { metric.unit.clone() }
}

fn shown(variant: &str) -> &str {
    if variant.is_empty() { "the row" } else { variant }
}
