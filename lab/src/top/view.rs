//! [`View`]: what is shown of a mount, from its last two answers.
//!
//! Rates are those of the interval between the answers. Quantiles are those since the mount, as in
//! `butternut stats`. The number of operations in flight is the time that all operations of the
//! interval took, divided by the interval.

use crate::progress::figure;
use ratatui::Frame;
use ratatui::layout::{Constraint, Layout};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::Line;
use ratatui::widgets::Paragraph;
use serde_json::{Map, Value};
use std::time::Instant;

/// The last line of the terminal.
pub(super) const KEYS: &str = "q quits, arrows scroll";
/// Width of a bar, in characters.
const BAR: usize = 20;
/// Characters of the path of a device.
const PATH: usize = 24;

/// The state of the view.
#[derive(Debug)]
pub(super) struct View {
    mountpoint: String,
    before: Option<(Instant, Value)>,
    now: Option<(Instant, Value)>,
    failure: Option<String>,
    scrolled: u16,
}

impl View {
    pub(super) fn new(mountpoint: String) -> Self {
        Self { mountpoint, before: None, now: None, failure: None, scrolled: 0 }
    }

    /// Takes an answer of the mount.
    pub(super) fn add(&mut self, at: Instant, stats: Value) {
        self.before = self.now.replace((at, stats));
        self.failure = None;
    }

    /// Shows why there is no answer, above the numbers of the last one.
    pub(super) fn fail(&mut self, why: String) {
        self.failure = Some(why);
    }

    /// Moves by so many lines.
    pub(super) fn scroll(&mut self, lines: i16) {
        self.scrolled = self.scrolled.saturating_add_signed(lines);
    }

    /// Draws a frame of any size.
    pub(super) fn draw(&mut self, frame: &mut Frame<'_>) {
        let [body, foot] =
            Layout::vertical([Constraint::Min(0), Constraint::Length(1)]).areas(frame.area());
        let lines = self.lines();
        let most = u16::try_from(lines.len()).unwrap_or(u16::MAX).saturating_sub(body.height);
        self.scrolled = self.scrolled.min(most);
        frame.render_widget(Paragraph::new(lines).scroll((self.scrolled, 0)), body);
        frame.render_widget(Line::styled(KEYS, Style::new().fg(Color::DarkGray)), foot);
    }

    fn lines(&self) -> Vec<Line<'static>> {
        let Some((at, now)) = &self.now else { return Vec::new() };
        let seconds = self.before.as_ref().map(|(before, _)| (*at - *before).as_secs_f64());
        let before = self.before.as_ref().map_or(&Value::Null, |(_, stats)| stats);
        let pair = Pair { before, now, seconds };
        let access = if now["is_writable"] == true { "writable" } else { "read-only" };
        let mut lines = vec![title(format!(
            "{} ({access}): {} commits, {}",
            self.mountpoint,
            now["trees"]["commits"],
            pair.rate(&["trees", "commits"], "/s"),
        ))];
        if let Some(why) = &self.failure {
            lines.push(Line::styled(why.clone(), Style::new().fg(Color::Red)));
        }
        pair.operations(&mut lines);
        pair.counters("lanes", "lane", &mut lines);
        pair.pages(&mut lines);
        pair.memory(&mut lines);
        pair.counters("syncs", "sync", &mut lines);
        pair.devices(&mut lines);
        lines
    }
}

/// Two answers, and the seconds between them.
struct Pair<'a> {
    before: &'a Value,
    now: &'a Value,
    seconds: Option<f64>,
}

impl Pair<'_> {
    /// Returns the change of a counter per second.
    fn change(&self, path: &[&str]) -> Option<f64> {
        let of = |stats| path.iter().fold(stats, |value: &Value, key| &value[*key]).as_u64();
        let grown = of(self.now)?.saturating_sub(of(self.before)?);
        self.seconds.filter(|seconds| *seconds > 0.0).map(|seconds| grown as f64 / seconds)
    }

    fn rate(&self, path: &[&str], unit: &str) -> String {
        self.change(path).map_or_else(|| "-".to_owned(), |rate| format!("{}{unit}", figure(rate)))
    }

    fn operations(&self, lines: &mut Vec<Line<'static>>) {
        lines.push(title(format!(
            "{:<16}{:>10}{:>10}{:>10}{:>10}{:>10}{:>10}{:>10}",
            "operation", "ops/s", "in flight", "mean", "p50", "p99", "p99.9", "max"
        )));
        for (name, of) in object(&self.now["latency"]) {
            if of["count"] == 0 {
                continue;
            }
            let in_flight = self.change(&["latency", name, "sum_ns"]).map(|rate| rate / 1e9);
            let rate = self.change(&["latency", name, "count"]);
            let mean = in_flight.zip(rate).filter(|(_, rate)| *rate > 0.0);
            let mean = mean.map(|(in_flight, rate)| time(in_flight / rate * 1e9));
            let quantile = |key: &str| time(of[key].as_f64().unwrap_or(0.0));
            let of = ["p50_ns", "p99_ns", "p999_ns", "max_ns"].map(quantile);
            lines.push(Line::raw(format!(
                "  {name:<14}{:>10}{:>10}{:>10}{:>10}{:>10}{:>10}{:>10}",
                rate.map_or("-".to_owned(), figure),
                in_flight.map_or("-".to_owned(), figure),
                mean.unwrap_or_else(|| "-".to_owned()),
                of[0],
                of[1],
                of[2],
                of[3],
            )));
        }
    }

    /// The counters of a group that have counted anything.
    fn counters(&self, group: &str, what: &str, lines: &mut Vec<Line<'static>>) {
        lines.push(title(format!("{what:<30}{:>12}{:>14}", "per second", "since mount")));
        for (name, value) in object(&self.now[group]) {
            if value.as_u64().is_some_and(|count| count > 0) {
                let rate = self.rate(&[group, name], "");
                let value = value.to_string();
                lines.push(Line::raw(format!("  {name:<28}{rate:>12}{value:>14}")));
            }
        }
    }

    /// The page cache: what readers and flushers move, in bytes per second.
    fn pages(&self, lines: &mut Vec<Line<'static>>) {
        lines.push(title(format!("{:<30}{:>12}", "page cache", "bytes/s")));
        let page = |path: &[&str]| self.change(path).map(|pages| pages * 4096.0);
        let mut row = |name: &str, rate: Option<f64>| {
            let rate = rate.map_or("-".to_owned(), bytes);
            lines.push(Line::raw(format!("  {name:<28}{rate:>12}")));
        };
        row("read from memory", page(&["pages", "hit_pages"]));
        row("read from devices", page(&["pages", "filled_pages"]));
        for (reason, _) in object(&self.now["pages"]["writeback_pages"]) {
            let rate = page(&["pages", "writeback_pages", reason]);
            row(&format!("writeback: {reason}"), rate);
        }
        row("dropped behind", page(&["pages", "dropbehind_pages"]));
    }

    fn memory(&self, lines: &mut Vec<Line<'static>>) {
        lines.push(title("memory".to_owned()));
        let (pages, memory) = (&self.now["pages"], &self.now["memory"]);
        let mut row = |name: &str, used: &Value, limit: &Value| {
            let used = used.as_f64().unwrap_or(0.0);
            let of = limit.as_f64().filter(|limit| *limit > 0.0);
            let bar = of.map_or_else(String::new, |limit| {
                format!(" of {:>10} {}", bytes(limit), bar(used / limit))
            });
            lines.push(Line::raw(format!("  {name:<28}{:>12}{bar}", bytes(used))));
        };
        row("cached", &pages["cached_bytes"], &pages["page_cache_bytes_max"]);
        row("dirty", &memory["dirty_bytes"], &pages["dirty_bytes_max"]);
        row("under writeback", &pages["in_writeback_bytes"], &Value::Null);
        row("dirty tree blocks", &memory["dirty_tree_bytes"], &Value::Null);
        row("buffers", &memory["buffer_bytes"], &Value::Null);
    }

    fn devices(&self, lines: &mut Vec<Line<'static>>) {
        lines.push(title(format!(
            "{:<30}{:>10}{:>12}{:>10}{:>12}{:>10}{:>8}",
            "device", "reads/s", "bytes/s", "writes/s", "bytes/s", "flushes/s", "errors"
        )));
        let none = Vec::new();
        let (before, now) = (self.before["devices"].as_array(), self.now["devices"].as_array());
        for (at, device) in now.unwrap_or(&none).iter().enumerate() {
            let earlier = before.and_then(|before| before.get(at)).unwrap_or(&Value::Null);
            let pair = Pair { before: earlier, now: device, seconds: self.seconds };
            let moved = |key| pair.change(&[key]).map_or("-".to_owned(), bytes);
            let errors = object(device).filter(|(key, _)| key.ends_with("_errors"));
            let errors: u64 = errors.filter_map(|(_, count)| count.as_u64()).sum();
            let path = device["path"].as_str().unwrap_or("missing");
            // The end of a path tells devices apart.
            let path = path.char_indices().rev().nth(PATH - 1).map_or(path, |(at, _)| &path[at..]);
            let name = format!("{} {path}", device["devid"]);
            lines.push(Line::raw(format!(
                "  {name:<28}{:>10}{:>12}{:>10}{:>12}{:>10}{errors:>8}",
                pair.rate(&["reads"], ""),
                moved("bytes_read"),
                pair.rate(&["writes"], ""),
                moved("bytes_written"),
                pair.rate(&["flushes"], ""),
            )));
        }
    }
}

fn title(text: String) -> Line<'static> {
    Line::styled(text, Style::new().add_modifier(Modifier::BOLD))
}

fn object(value: &Value) -> impl Iterator<Item = (&str, &Value)> {
    value.as_object().into_iter().flat_map(Map::iter).map(|(key, value)| (key.as_str(), value))
}

/// Returns bytes with a binary suffix.
fn bytes(bytes: f64) -> String {
    let units = [(1_u64 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")];
    let unit = units.into_iter().find(|(unit, _)| bytes >= *unit as f64);
    unit.map_or_else(
        || format!("{bytes:.0} B"),
        |(unit, name)| format!("{:.1} {name}", bytes / unit as f64),
    )
}

/// Returns nanoseconds in a unit with few digits.
fn time(nanos: f64) -> String {
    match nanos {
        _ if nanos >= 1e9 => format!("{:.1} s", nanos / 1e9),
        _ if nanos >= 1e6 => format!("{:.1} ms", nanos / 1e6),
        _ => format!("{:.1} us", nanos / 1e3),
    }
}

/// Returns a bar of a part, of 0 to 1.
fn bar(part: f64) -> String {
    let full = (0..BAR).filter(|at| part * BAR as f64 > *at as f64).count();
    format!("[{}{}]", "#".repeat(full), ".".repeat(BAR - full))
}

#[cfg(test)]
mod tests {
    use super::*;
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;
    use serde_json::json;
    use std::time::Duration;

    fn stats(simple: u64, written: u64) -> Value {
        json!({
            "is_writable": true,
            "lanes": { "dio_read_simple": simple, "nowait_again": 0 },
            "syncs": { "fsync_fast": 0 },
            "pages": {
                "page_cache_bytes_max": 64 << 20, "cached_bytes": 32 << 20,
                "dirty_bytes_max": 8 << 20, "in_writeback_bytes": 0, "hit_pages": 512,
                "filled_pages": 0, "dropbehind_pages": 0,
                "writeback_pages": { "background": written / 4096, "sync": 0 },
            },
            "memory": { "dirty_bytes": 8 << 20, "dirty_tree_bytes": 16384, "buffer_bytes": 0 },
            "trees": { "commits": 3 },
            "devices": [{ "devid": 1, "path": "a.img", "reads": simple, "bytes_read": 0,
                "writes": 0, "bytes_written": written, "flushes": 0, "read_errors": 2 }],
            "latency": { "direct_read": { "count": simple, "sum_ns": simple * 50_000,
                "p50_ns": 40_000, "p99_ns": 90_000, "p999_ns": 1_500_000, "max_ns": 2_000_000_000 },
                "fsync": { "count": 0 } },
        })
    }

    fn view() -> View {
        let mut view = View::new("/mnt".to_owned());
        let at = Instant::now();
        view.add(at, stats(1000, 0));
        view.add(at + Duration::from_secs(2), stats(5000, 4 << 20));
        view
    }

    fn drawn(view: &mut View, width: u16, height: u16) -> String {
        let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
        terminal.draw(|frame| view.draw(frame)).unwrap();
        terminal.backend().to_string()
    }

    fn words(text: &str, of: &str) -> Vec<String> {
        let line = text.lines().find(|line| line.trim_start_matches(['"', ' ']).starts_with(of));
        let line = line.unwrap_or_else(|| panic!("no line {of:?} in {text}"));
        line.trim_matches('"').split_whitespace().map(str::to_owned).collect()
    }

    #[test]
    fn rates_are_differences_and_limits_are_bars() {
        let text = drawn(&mut view(), 100, 50);
        assert!(text.contains("/mnt (writable): 3 commits, 0.00/s"), "{text}");
        let read = words(&text, "direct_read").join(" ");
        assert_eq!(read, "direct_read 2000 0.10 50.0 us 40.0 us 90.0 us 1.5 ms 2.0 s");
        assert_eq!(words(&text, "dio_read_simple"), ["dio_read_simple", "2000", "5000"]);
        assert!(!text.contains("nowait_again") && !text.contains("fsync "), "{text}");
        assert_eq!(words(&text, "writeback: background")[2..], ["2.0", "MiB"]);
        assert!(text.contains("32.0 MiB of   64.0 MiB [##########..........]"), "{text}");
        assert!(text.contains("8.0 MiB of    8.0 MiB [####################]"), "{text}");
        let device = words(&text, "1 a.img").join(" ");
        assert_eq!(device, "1 a.img 2000 0 B 0.00 2.0 MiB 0.00 2");
    }

    #[test]
    fn every_size_of_a_terminal_can_be_drawn_and_scrolled() {
        let mut view = view();
        for (width, height) in [(1, 1), (20, 3), (80, 10), (300, 100), (80, 10)] {
            view.scroll(1000);
            drawn(&mut view, width, height);
        }
        assert!(drawn(&mut view, 100, 10).contains("a.img"), "the end is shown");
        view.scroll(-1000);
        assert!(drawn(&mut view, 100, 10).contains("/mnt (writable)"));
    }

    #[test]
    fn the_first_answer_has_no_rates_and_a_failure_keeps_the_numbers() {
        let mut view = View::new("/mnt".to_owned());
        assert!(drawn(&mut view, 80, 5).contains(KEYS));
        view.add(Instant::now(), stats(7, 0));
        assert_eq!(words(&drawn(&mut view, 100, 50), "dio_read_simple")[1..], ["-", "7"]);
        view.fail("no response within 10 s".to_owned());
        let text = drawn(&mut view, 100, 50);
        assert!(text.contains("no response within 10 s") && text.contains("dio_read_simple"));
        // An answer of another mount at the same place, whose counters are lower.
        view.add(Instant::now() + Duration::from_secs(1), stats(1, 0));
        assert_eq!(words(&drawn(&mut view, 100, 50), "dio_read_simple")[1..], ["0.00", "1"]);
    }
}
