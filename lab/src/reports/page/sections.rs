//! The sections of the report, as HTML.

use super::charts::{self, Chart, Charts};
use super::{Contents, escaped};
use crate::history::Point;
use crate::judge::comparison::{Comparison, Judgement, Verdict};
use crate::record::{Better, Record};
use crate::reports::figures::{Cell, Line, Metric, Scenario, scenarios};
use crate::reports::words;
use std::collections::BTreeMap;

/// Fewest runs that are drawn as a history.
const RUNS_MIN: usize = 3;

/// Most charts of one kind in a scenario, and of the history. The tables have all values.
const CHARTS_MAX: usize = 60;

/// Adds the links to the sections.
pub(super) fn contents(html: &mut String, contents: &Contents<'_>) {
    let mut links = Vec::new();
    for scenario in scenarios(contents.record, contents.published) {
        links.push((id(&scenario.name), scenario.name));
    }
    links.push(("history".to_owned(), "History".to_owned()));
    links.push(("environment".to_owned(), "Environment and commands".to_owned()));
    html.push_str("<nav aria-label=\"Sections\"><ul>");
    for (id, name) in links {
        html.push_str(&format!("<li><a href=\"#{id}\">{}</a></li>", escaped(&name)));
    }
    html.push_str("</ul></nav>\n");
}

/// Adds the cells that changed, and the whole comparison.
pub(super) fn comparison(html: &mut String, comparison: &Comparison) {
    let has_changed = |cell: &&Judgement| matches!(cell.verdict, Verdict::Worse | Verdict::Better);
    let changed: Vec<&Judgement> = comparison.cells.iter().filter(has_changed).collect();
    if !changed.is_empty() {
        html.push_str(
            "<section aria-labelledby=\"changed\"><h2 id=\"changed\">What changed</h2>\n",
        );
        judged(html, "What changed", &changed, comparison);
        html.push_str("</section>\n");
    }
    let all: Vec<&Judgement> = comparison.cells.iter().collect();
    html.push_str(&format!("<details><summary>All {} compared cells</summary>\n", all.len()));
    judged(html, "All compared cells", &all, comparison);
    html.push_str("</details>\n");
    if !comparison.notes.is_empty() {
        html.push_str("<ul class=\"notes\">");
        for note in &comparison.notes {
            html.push_str(&format!("<li>{}</li>", escaped(note)));
        }
        html.push_str("</ul>\n");
    }
}

fn judged(html: &mut String, name: &str, cells: &[&Judgement], comparison: &Comparison) {
    open_table(html, name, &["row", "verdict", "target", "metric", "before", "now", "ratio"]);
    for cell in cells {
        let class = match cell.verdict {
            Verdict::Worse => "worse",
            Verdict::Better => "better",
            Verdict::Small | Verdict::WithinNoise | Verdict::NotJudged => "same",
        };
        html.push_str(&format!(
            "<tr><th scope=\"row\">{}</th><td class=\"{class}\">{}</td><td>{}</td><td>{} ({})</td>\
             <td class=\"n\">{}</td><td class=\"n\">{}</td><td class=\"n\">{}</td></tr>\n",
            escaped(&cell.row),
            escaped(&words::verdict(cell, comparison.limits.effect)),
            escaped(&cell.second.label),
            escaped(&cell.metric),
            escaped(&cell.unit),
            words::number(cell.first.median),
            words::number(cell.second.median),
            words::ratio(cell),
        ));
    }
    close_table(html);
}

/// Adds what failed.
pub(super) fn failures(html: &mut String, record: &Record) {
    if record.failures.is_empty() {
        return;
    }
    html.push_str("<section aria-labelledby=\"failed\"><h2 id=\"failed\">Failed</h2>\n");
    open_table(html, "Failed", &["row", "target", "repeat", "message"]);
    for failure in &record.failures {
        html.push_str(&format!(
            "<tr><th scope=\"row\">{}</th><td>{}</td><td class=\"n\">{}</td><td>{}</td></tr>\n",
            escaped(&failure.row),
            escaped(&failure.target),
            failure.repeat,
            escaped(&failure.message)
        ));
    }
    close_table(html);
    html.push_str("</section>\n");
}

/// Adds a scenario: its tables, then its charts.
pub(super) fn scenario(
    html: &mut String,
    scenario: &Scenario<'_>,
    reference: &str,
    charts: &mut Charts,
) {
    let id = id(&scenario.name);
    let name = escaped(&scenario.name);
    html.push_str(&format!("<section aria-labelledby=\"{id}\"><h2 id=\"{id}\">{name}</h2>\n"));
    for metric in &scenario.metrics {
        figures(html, metric, reference);
    }
    memory(html, scenario);
    let first = scenario.metrics.first();
    let scaling: Vec<Chart> = scenario.metrics.iter().filter_map(charts::scaling).collect();
    let time = first.map(charts::over_time).unwrap_or_default();
    let latency = first.map(charts::latency).unwrap_or_default();
    for (title, found, is_open) in [
        ("Scaling", scaling, true),
        ("Throughput over time", time, false),
        ("Latency percentiles", latency, false),
    ] {
        drawn(html, title, found, is_open, charts);
    }
    html.push_str("</section>\n");
}

/// Adds the history of each cell with enough runs.
pub(super) fn history(html: &mut String, points: &[Point], charts: &mut Charts) {
    html.push_str("<section aria-labelledby=\"history\"><h2 id=\"history\">History</h2>\n");
    let mut tracks: BTreeMap<String, Vec<&Point>> = BTreeMap::new();
    for point in points {
        let mut title = format!("{}, {}", point.row, point.target);
        for (name, value) in &point.switches {
            title.push_str(&format!(" {name}={value}"));
        }
        tracks.entry(format!("{title}: {}", point.metric)).or_default().push(point);
    }
    tracks.retain(|_, track| track.len() >= RUNS_MIN);
    let mut found: Vec<Chart> =
        tracks.iter().filter_map(|(title, track)| charts::track(title, track)).collect();
    if found.is_empty() {
        html.push_str(&format!(
            "<p>Fewer than {RUNS_MIN} complete runs of this suite on this machine.</p>\n"
        ));
    }
    let changed = found.iter().filter(|chart| !chart.marks.is_empty()).count();
    if !found.is_empty() {
        html.push_str(&format!(
            "<p>{changed} of {} cells have a change point, drawn as a vertical line at the first \
             run of the new level.</p>\n",
            found.len()
        ));
    }
    // Those that changed come first.
    found.sort_by_key(|chart| chart.marks.is_empty());
    drawn(html, "Cells over the runs", found, true, charts);
    html.push_str("</section>\n");
}

/// Adds the environment and the commands.
pub(super) fn environment(html: &mut String, record: &Record) {
    let run = &record.run;
    let e = &run.environment;
    let mib = |bytes: u64| {
        format!("{} MiB", words::number((bytes >> 20).to_string().parse().unwrap_or(0.0)))
    };
    let device = &e.device;
    let dirty = if e.dirty { " with changes" } else { "" };
    let load: Vec<String> = e.load_before.iter().map(|load| format!("{load:.2}")).collect();
    let mut lines = vec![
        ("Run", run.id.clone()),
        ("Started", run.started.clone()),
        ("Finished", record.end.as_ref().map_or("not complete".to_owned(), |e| e.finished.clone())),
        ("Kernel", e.kernel.clone()),
        ("Processor", format!("{}, {} cores", e.cpu, e.cores)),
        ("Governor", e.governor.clone()),
        ("Mitigations", e.mitigations.clone()),
        ("Memory", mib(e.memory_bytes)),
        (
            "Device",
            format!(
                "{} ({} {}), {}",
                device.path,
                device.kind,
                device.model,
                mib(device.size_bytes)
            ),
        ),
        ("I/O scheduler", device.scheduler.clone()),
        ("Commit", format!("{}{dirty}", e.commit)),
        ("Build", format!("{} {}", e.build_profile, e.rustflags)),
        ("Load before", load.join(", ")),
        ("Seed", run.seed.to_string()),
    ];
    for (name, version) in &e.versions {
        lines.push((name, version.clone()));
    }
    html.push_str(
        "<section aria-labelledby=\"environment\">\
         <h2 id=\"environment\">Environment and commands</h2>\n",
    );
    open_table(html, "Environment", &["what", "value"]);
    for (name, value) in lines.iter().filter(|(_, value)| !value.trim().is_empty()) {
        html.push_str(&format!(
            "<tr><th scope=\"row\">{}</th><td>{}</td></tr>\n",
            escaped(name),
            escaped(value)
        ));
    }
    close_table(html);
    let repeat = format!("{} --seed {}", shell(&run.command), run.seed);
    let again = if run.command.iter().any(|a| a == "--seed" || a.starts_with("--seed=")) {
        shell(&run.command)
    } else {
        repeat
    };
    let report = format!("butternut-lab report {} --out DIR", run.id);
    let text = format!(
        "# measured by\n{}\n\n# the same order again\n{again}\n\n# this page\n{report}",
        shell(&run.command)
    );
    html.push_str(&format!(
        "<pre tabindex=\"0\" aria-label=\"Commands\">{}</pre>\n</section>\n",
        escaped(&text)
    ));
}

fn figures(html: &mut String, metric: &Metric<'_>, reference: &str) {
    let better = match metric.better {
        Better::Higher => "higher is better",
        Better::Lower => "lower is better",
    };
    let title = format!("{} ({}, {better})", metric.name, metric.unit);
    let base = metric.columns.iter().position(|column| column.starts_with(reference));
    let ratios = base.map_or_else(String::new, |_| format!("; ratios are to {reference}"));
    html.push_str(&format!("<h3>{}<small>{}</small></h3>\n", escaped(&title), escaped(&ratios)));
    let mut published: Vec<&str> = Vec::new();
    for figure in metric.lines.iter().flat_map(|line| &line.published) {
        if !published.contains(&figure.what.as_str()) {
            published.push(&figure.what);
        }
    }
    let mut head = vec!["variant".to_owned()];
    head.extend(metric.columns.iter().cloned());
    head.extend(published.iter().map(|what| format!("published: {what}")));
    let names: Vec<&str> = head.iter().map(String::as_str).collect();
    open_table(html, &title, &names);
    for line in &metric.lines {
        figures_line(html, line, base, &published);
    }
    close_table(html);
}

fn figures_line(html: &mut String, line: &Line<'_>, base: Option<usize>, published: &[&str]) {
    let variant = if line.variant.is_empty() { "-" } else { &line.variant };
    html.push_str(&format!("<tr><th scope=\"row\">{}</th>", escaped(variant)));
    let reference = base.and_then(|base| line.cells[base].as_ref()).map(|cell| cell.median);
    for (at, cell) in line.cells.iter().enumerate() {
        let Some(cell) = cell else {
            html.push_str("<td class=\"n\">-</td>");
            continue;
        };
        let ratio = match reference {
            Some(reference) if reference > 0.0 && base != Some(at) => {
                format!(" <b>{:.2}x</b>", cell.median / reference)
            }
            _ => String::new(),
        };
        html.push_str(&format!(
            "<td class=\"n\">{}{ratio}<small>{}</small></td>",
            words::number(cell.median),
            escaped(&range(cell))
        ));
    }
    for what in published {
        let figure = line.published.iter().find(|figure| figure.what == *what);
        let text = figure.map_or("-".to_owned(), |figure| words::number(figure.value));
        html.push_str(&format!("<td class=\"n published\">{text}</td>"));
    }
    html.push_str("</tr>\n");
}

fn range(cell: &Cell<'_>) -> String {
    let (low, high) = (words::number(cell.low), words::number(cell.high));
    format!("{low} to {high}, n {}", cell.samples.len())
}

/// Adds peak dirty and cached memory, and bytes of the device, where samples have them.
fn memory(html: &mut String, scenario: &Scenario<'_>) {
    type Get = fn(&crate::record::Sample) -> Option<u64>;
    const COLUMNS: [(&str, Get); 4] = [
        ("peak dirty", |s| s.peak_dirty_bytes),
        ("peak cached", |s| s.peak_cached_bytes),
        ("device reads", |s| s.device_read_bytes),
        ("device writes", |s| s.device_write_bytes),
    ];
    let Some(metric) = scenario.metrics.first() else { return };
    let mut lines = Vec::new();
    for line in &metric.lines {
        for (column, cell) in metric.columns.iter().zip(&line.cells) {
            let Some(cell) = cell else { continue };
            let most = |get: Get| cell.samples.iter().filter_map(|sample| get(sample)).max();
            let values = COLUMNS.map(|(_, get)| most(get));
            if values.iter().any(Option::is_some) {
                lines.push((line.variant.as_str(), column, values));
            }
        }
    }
    if lines.is_empty() {
        return;
    }
    html.push_str(
        "<details><summary>Memory and device (MiB, the largest of all repeats)</summary>\n",
    );
    let names: Vec<&str> =
        ["variant", "target"].into_iter().chain(COLUMNS.iter().map(|(name, _)| *name)).collect();
    open_table(html, "Memory and device", &names);
    let largest = |at: usize| lines.iter().filter_map(|(.., v)| v[at]).max().unwrap_or(0).max(1);
    for (variant, column, values) in &lines {
        html.push_str(&format!(
            "<tr><th scope=\"row\">{}</th><td>{}</td>",
            escaped(variant),
            escaped(column)
        ));
        for (at, value) in values.iter().enumerate() {
            let Some(value) = value else {
                html.push_str("<td class=\"n\">-</td>");
                continue;
            };
            let part = u128::from(*value) * 100 / u128::from(largest(at));
            let tenths = (value * 10) >> 20;
            html.push_str(&format!(
                "<td class=\"n bar\"><span style=\"width:{part}%\"></span>{}.{}</td>",
                tenths / 10,
                tenths % 10
            ));
        }
        html.push_str("</tr>\n");
    }
    close_table(html);
    html.push_str("</details>\n");
}

/// Adds charts in a fold, each with its values as a table.
fn drawn(html: &mut String, title: &str, found: Vec<Chart>, is_open: bool, charts: &mut Charts) {
    if found.is_empty() {
        return;
    }
    let open = if is_open { " open" } else { "" };
    let count = found.len();
    html.push_str(&format!(
        "<details class=\"charts\"{open}><summary>{title} ({count})</summary>\n"
    ));
    if count > CHARTS_MAX {
        html.push_str(&format!("<p>The first {CHARTS_MAX} are drawn.</p>\n"));
    }
    html.push_str("<div class=\"grid\">\n");
    for chart in found.into_iter().take(CHARTS_MAX) {
        let at = charts.add(chart);
        figure(html, &charts.all[at]);
    }
    html.push_str("</div></details>\n");
}

fn figure(html: &mut String, chart: &Chart) {
    let title = escaped(&chart.title);
    html.push_str(&format!(
        "<figure><figcaption>{title}</figcaption>\
         <div class=\"chart\" id=\"{}\" role=\"group\" aria-label=\"{title}; the values are in the \
         table below it\"></div>\n<details><summary>Values</summary>\n",
        chart.id
    ));
    let mut head = vec![chart.x_label.as_str()];
    head.extend(chart.lines.iter().map(|line| line.name.as_str()));
    open_table(html, &chart.title, &head);
    for (at, x) in chart.x.iter().enumerate() {
        let name = chart.names.get(at).cloned().unwrap_or_else(|| words::number(*x));
        let is_change = chart.marks.iter().any(|mark| (mark - x).abs() < 0.5);
        let change = if is_change { " (change point)" } else { "" };
        html.push_str(&format!("<tr><th scope=\"row\">{}{change}</th>", escaped(&name)));
        for line in &chart.lines {
            let value = line.values[at].map_or("-".to_owned(), words::number);
            html.push_str(&format!("<td class=\"n\">{value}</td>"));
        }
        html.push_str("</tr>\n");
    }
    close_table(html);
    html.push_str("</details></figure>\n");
}

fn open_table(html: &mut String, name: &str, head: &[&str]) {
    let name = escaped(name);
    html.push_str(&format!(
        "<div class=\"scroll\" role=\"region\" tabindex=\"0\" aria-label=\"{name}\">\
         <table>\n<thead><tr>"
    ));
    for column in head {
        html.push_str(&format!("<th scope=\"col\">{}</th>", broken(column)));
    }
    html.push_str("</tr></thead><tbody>\n");
}

/// A text that may be broken behind the marks inside a target's name.
fn broken(text: &str) -> String {
    let escaped = escaped(text).replace(':', ":<wbr>").replace('/', "/<wbr>");
    let escaped = escaped.replace(":<wbr> ", ": ");
    escaped.replace("&#64;", "<wbr>&#64;")
}

fn close_table(html: &mut String) {
    html.push_str("</tbody></table></div>\n");
}

/// The name of a section's anchor.
fn id(name: &str) -> String {
    let plain = name.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '-' });
    format!("s-{}", plain.collect::<String>())
}

/// A command line as the shell reads it.
fn shell(command: &[String]) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_./=:,@+%".contains(c);
    let quoted = |argument: &String| {
        if !argument.is_empty() && argument.chars().all(is_plain) {
            argument.clone()
        } else {
            format!("'{}'", argument.replace('\'', "'\\''"))
        }
    };
    command.iter().map(quoted).collect::<Vec<_>>().join(" ")
}
