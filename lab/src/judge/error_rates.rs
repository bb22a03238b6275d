//! How often the judge is wrong: seeded simulations of runs, with and without an injected slowdown.
//!
//! ```text
//! noise model -> runs of ROWS rows -> comparison    -> misses and false alarms by row
//!             -> histories         -> change_points -> the same by series
//! ```
//!
//! Laws:
//!
//! 1. The simulated runs are judged by the code that judges real ones.
//! 2. A miss is an injected slowdown that is not reported as one. A false alarm is a row without
//!    one that is.
//! 3. The same seed gives the same table.

#![allow(clippy::format_push_string, reason = "reports are not built where speed matters")]

use super::change_points;
use super::comparison::{Limits, Verdict, compare};
use super::selection::{Cells, Key, Values};
use crate::record::Better;

/// Rows of a simulated run.
pub const ROWS: usize = 20;

/// Rows of a simulated run that an injected slowdown hits.
pub const SLOWED: usize = 4;

/// The injected slowdowns, as parts.
pub const SLOWDOWNS: [f64; 5] = [0.0, 0.02, 0.05, 0.10, 0.30];

/// Runs of a history that the change points are searched in, and the run that the level changes at.
const HISTORY: (usize, usize) = (40, 28);

/// How measured values vary.
#[derive(Debug, Clone, Copy)]
pub struct Noise {
    pub name: &'static str,
    /// Standard deviation of the logarithm from repeat to repeat.
    repeats: f64,
    /// Standard deviation of the logarithm from run to run.
    runs: f64,
    /// Largest drift of a row's speed over a run, up or down, as a part; its targets share it.
    drift: f64,
    /// Part of the repeats that are outliers, 20 to 50 % worse.
    outliers: f64,
}

const QUIET: Noise =
    Noise { name: "lognormal, 1 %", repeats: 0.01, runs: 0.0, drift: 0.0, outliers: 0.0 };

/// The simulated kinds of noise.
pub const NOISES: [Noise; 5] = [
    QUIET,
    Noise { name: "lognormal, 3 %", repeats: 0.03, ..QUIET },
    Noise { name: "1 %, and a drift of 10 % over the run", drift: 0.10, ..QUIET },
    Noise { name: "1 %, and 5 % outliers", outliers: 0.05, ..QUIET },
    Noise { name: "1 %, and 2 % between runs", runs: 0.02, ..QUIET },
];

/// How a simulated comparison is made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Setup {
    /// Two targets of one run, measured in turns.
    OneRun { repeats: usize },
    /// One run against another.
    TwoRuns { repeats: usize },
    /// One run against a history of runs, as `gate` does.
    History { runs: usize, repeats: usize },
}

/// The simulated comparisons.
pub const SETUPS: [Setup; 5] = [
    Setup::OneRun { repeats: 5 },
    Setup::OneRun { repeats: 10 },
    Setup::TwoRuns { repeats: 5 },
    Setup::TwoRuns { repeats: 10 },
    Setup::History { runs: 8, repeats: 5 },
];

/// Errors counted over all trials of one combination.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Rates {
    /// Cells (or series) with a slowdown, and those of them where it was not reported.
    pub slowed: usize,
    pub missed: usize,
    /// Cells (or series) without, and those of them that were reported as slower.
    pub equal: usize,
    pub alarms: usize,
    /// Comparisons, and those of them with a false alarm.
    pub trials: usize,
    pub spoiled: usize,
}

/// Judges `trials` simulated comparisons.
pub fn comparisons(noise: Noise, setup: Setup, slowdown: f64, trials: usize, seed: u64) -> Rates {
    let mut rng = fastrand::Rng::with_seed(seed);
    let mut rates = Rates::default();
    for _ in 0..trials {
        let (first, second) = setup.sides(noise, slowdown, &mut rng);
        let same_run = matches!(setup, Setup::OneRun { .. });
        let result = compare(&first, &second, same_run, Limits::default());
        let alarms_before = rates.alarms;
        for cell in &result.cells {
            let is_worse = cell.verdict == Verdict::Worse;
            if slowdown > 0.0 && is_slowed(&cell.row) {
                rates.slowed += 1;
                rates.missed += usize::from(!is_worse);
            } else {
                rates.equal += 1;
                rates.alarms += usize::from(is_worse);
            }
        }
        rates.trials += 1;
        rates.spoiled += usize::from(rates.alarms > alarms_before);
    }
    rates
}

/// Searches the change points of `trials` simulated histories of one cell. A change point within
/// two runs of the injected one finds it; any other is a false alarm.
pub fn histories(noise: Noise, slowdown: f64, trials: usize, seed: u64) -> Rates {
    let mut rng = fastrand::Rng::with_seed(seed);
    let mut rates = Rates::default();
    let (length, change) = HISTORY;
    for trial in 0..trials {
        let value = |at: usize, rng: &mut fastrand::Rng| {
            let level = if at >= change { (1.0 - slowdown).ln() } else { 0.0 };
            let logs: Vec<f64> = Machine::start(noise, rng).repeats(5, rng);
            (level + super::statistics::location(&logs).unwrap_or(0.0)).exp()
        };
        let series: Vec<f64> = (0..length).map(|at| value(at, &mut rng)).collect();
        let points = change_points::notable(&series, Limits::default().effect, trial as u64);
        let near = points.iter().filter(|point| point.index.abs_diff(change) <= 2).count();
        let others = points.len() - if slowdown > 0.0 { near } else { 0 };
        if slowdown > 0.0 {
            rates.slowed += 1;
            rates.missed += usize::from(near == 0);
        }
        rates.equal += 1;
        rates.alarms += usize::from(others > 0);
        rates.trials += 1;
        rates.spoiled += usize::from(others > 0);
    }
    rates
}

/// Returns the page of error rates as Markdown, from `trials` trials of each combination.
pub fn page(trials: usize, seed: u64, command: &str) -> String {
    let mut page = format!(
        "# Error rates of the lab's judge\n\nMade by `{command}`.\n\nThe runs are simulated: \
         {trials} comparisons of {ROWS} rows for each figure, of which a slowdown hits \
         {SLOWED}.\nThe judge is the one that judges real runs, with its defaults: false \
         discoveries {} %, nothing\nbelow {} %.\n\nA *miss* is a slowed row that is not reported \
         as slower. A *false alarm* is a row without a slowdown\nthat is; the last column is the \
         part of the comparisons of equal runs (A/A) in which any of the {ROWS}\nrows is one.\n",
        percent(Limits::default().discoveries),
        percent(Limits::default().effect),
    );
    for setup in SETUPS {
        page.push_str(&format!("\n## {}\n\n", setup.title()));
        page.push_str(&head(&["rows in A/A", "beside slowed rows", "A/A runs with any"]));
        for noise in NOISES {
            let rates = SLOWDOWNS.map(|slow| comparisons(noise, setup, slow, trials, seed));
            page.push_str(&line(noise, &rates, 3));
        }
    }
    page.push_str(&format!(
        "\n## Change points of a history of {} runs, changed at run {}\n\nFound means: within two \
         runs. A false alarm is any other change point. Changes below {} %\n\
         are not reported.\n\n",
        HISTORY.0,
        HISTORY.1 + 1,
        percent(Limits::default().effect),
    ));
    page.push_str(&head(&["A/A series", "beside a change"]));
    for noise in NOISES {
        let rates = SLOWDOWNS.map(|slow| histories(noise, slow, trials, seed));
        page.push_str(&line(noise, &rates, 2));
    }
    page.push_str(ADVICE);
    page
}

const ADVICE: &str = "
## What follows

- Where runs differ from one another, two runs cannot tell a slowdown from that difference: their
  repeats do not show it. `compare` of single runs says so. `gate` against a history of at least
  three runs takes it into account, and then misses what is smaller than the difference.
- A drift hits both targets of one run alike, and pairs of repeats take it out (from 6 repeats on).
- What a comparison cannot see is printed beside each row, as the smallest slowdown that would have
  been reported four times out of five.
";

fn head(alarms: &[&str]) -> String {
    let mut head = "| noise |".to_owned();
    for slowdown in &SLOWDOWNS[1..] {
        head.push_str(&format!(" missed of {} % |", percent(*slowdown)));
    }
    for what in alarms {
        head.push_str(&format!(" false alarms: {what} |"));
    }
    head.push_str("\n|---|");
    head.push_str(&"---:|".repeat(SLOWDOWNS.len() - 1 + alarms.len()));
    head.push('\n');
    head
}

/// A line of a table with `alarms` columns of false alarms.
fn line(noise: Noise, rates: &[Rates; SLOWDOWNS.len()], alarms: usize) -> String {
    let beside = rates[1..].iter().fold((0, 0), |(a, b), r| (a + r.alarms, b + r.equal));
    let equal = rates[0];
    let mut cells: Vec<String> = rates[1..].iter().map(|r| part(r.missed, r.slowed)).collect();
    let false_ones = [
        part(equal.alarms, equal.equal),
        part(beside.0, beside.1),
        part(equal.spoiled, equal.trials),
    ];
    cells.extend(false_ones.into_iter().take(alarms));
    format!("| {} | {} |\n", noise.name, cells.join(" | "))
}

#[allow(clippy::cast_precision_loss, reason = "counts of trials are small")]
fn part(of: usize, all: usize) -> String {
    if all == 0 { "-".to_owned() } else { format!("{:.1} %", 100.0 * of as f64 / all as f64) }
}

fn percent(part: f64) -> String {
    format!("{:.0}", part * 100.0)
}

/// One run of a row: its level, and the drift that its targets share.
struct Machine {
    noise: Noise,
    level: f64,
    /// Change of the logarithm over the whole run.
    drift: f64,
}

impl Machine {
    fn start(noise: Noise, rng: &mut fastrand::Rng) -> Self {
        Self {
            noise,
            level: noise.runs * normal(rng),
            drift: noise.drift * (2.0 * rng.f64() - 1.0),
        }
    }

    /// The logarithms of the repeats of one cell. Its values have a place of their own in each
    /// turn.
    #[allow(clippy::cast_precision_loss, reason = "counts of repeats are small")]
    fn repeats(&self, count: usize, rng: &mut fastrand::Rng) -> Vec<f64> {
        let mut logs = Vec::with_capacity(count);
        for repeat in 0..count {
            let time = (repeat as f64 + rng.f64()) / count as f64;
            let mut log = self.level + self.drift * time + self.noise.repeats * normal(rng);
            if rng.f64() < self.noise.outliers {
                log += (0.5 + 0.3 * rng.f64()).ln();
            }
            logs.push(log);
        }
        logs
    }
}

impl Setup {
    fn title(self) -> String {
        match self {
            Self::OneRun { repeats } => format!("Two targets of one run, {repeats} repeats"),
            Self::TwoRuns { repeats } => format!("One run against one run, {repeats} repeats"),
            Self::History { runs, repeats } => {
                format!("One run against {runs} runs (as `gate`), {repeats} repeats")
            }
        }
    }

    fn sides(self, noise: Noise, slowdown: f64, rng: &mut fastrand::Rng) -> (Cells, Cells) {
        let (runs, repeats) = match self {
            Self::OneRun { repeats } | Self::TwoRuns { repeats } => (1, repeats),
            Self::History { runs, repeats } => (runs, repeats),
        };
        let mut sides = (Cells::new(), Cells::new());
        for row in 0..ROWS {
            let key = Key { row: format!("row/{row}"), ..Key::default() };
            // Each row of a run has a difference of its own: where its blocks are, for instance.
            let first: Vec<Machine> = (0..runs).map(|_| Machine::start(noise, rng)).collect();
            let second = Machine::start(noise, rng);
            let second = if matches!(self, Self::OneRun { .. }) { &first[0] } else { &second };
            let slow = if is_slowed(&key.row) { (1.0 - slowdown).ln() } else { 0.0 };
            let theirs = first.iter().map(|run| values(&run.repeats(repeats, rng), 0.0)).collect();
            let ours = vec![values(&second.repeats(repeats, rng), slow)];
            sides.0.insert(key.clone(), cell(theirs));
            sides.1.insert(key, cell(ours));
        }
        sides
    }
}

fn is_slowed(row: &str) -> bool {
    row.strip_prefix("row/").and_then(|n| n.parse().ok()).is_some_and(|n: usize| n < SLOWED)
}

fn values(logs: &[f64], slow: f64) -> Vec<(u32, f64)> {
    (0..).zip(logs.iter().map(|log| 1000.0 * (log + slow).exp())).collect()
}

fn cell(runs: Vec<Vec<(u32, f64)>>) -> Values {
    Values { unit: "1/s".to_owned(), better: Better::Higher, label: String::new(), runs }
}

/// A value of the standard normal distribution (Box and Muller).
fn normal(rng: &mut fastrand::Rng) -> f64 {
    let (u, v) = (1.0 - rng.f64(), rng.f64());
    (-2.0 * u.ln()).sqrt() * (std::f64::consts::TAU * v).cos()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn large_slowdowns_are_found_and_equal_runs_are_not_reported() {
        for setup in [Setup::OneRun { repeats: 10 }, Setup::History { runs: 8, repeats: 5 }] {
            let slow = comparisons(NOISES[0], setup, 0.30, 5, 3);
            assert_eq!((slow.slowed, slow.missed), (5 * SLOWED, 0), "{setup:?}");
            let equal = comparisons(NOISES[0], setup, 0.0, 10, 3);
            assert_eq!(equal.equal, 10 * ROWS);
            assert!(equal.alarms <= 1, "{setup:?}: {equal:?}");
        }
    }

    #[test]
    fn two_runs_alone_mistake_differences_between_runs_and_a_history_does_not() {
        let between = NOISES[4];
        let two = comparisons(between, Setup::TwoRuns { repeats: 10 }, 0.0, 10, 5);
        let history = comparisons(between, Setup::History { runs: 8, repeats: 5 }, 0.0, 10, 5);
        assert!(two.alarms >= 10, "{two:?}");
        assert!(history.alarms <= 2, "{history:?}");
    }

    #[test]
    fn a_change_of_a_history_is_found() {
        let rates = histories(NOISES[0], 0.10, 5, 1);
        assert_eq!((rates.slowed, rates.missed), (5, 0));
    }

    #[test]
    fn the_same_seed_gives_the_same_rates() {
        let rates = |seed| comparisons(NOISES[1], SETUPS[0], 0.05, 3, seed);
        assert_eq!(rates(1), rates(1));
        assert_ne!(rates(1), rates(2));
    }

    #[test]
    fn the_page_in_the_documentation_is_of_this_form() {
        let documented = include_str!("../../../docs/lab/error-rates.md");
        let page = page(0, 1, "butternut-lab selftest --trials 100 --seed 1");
        let page = page.replace(" 0 comparisons", " 100 comparisons");
        // Only the figures differ, because the page of this test has no trials.
        let form = |line: &str| match line.strip_prefix("| ").and_then(|line| line.split_once('|'))
        {
            Some((first, _)) => first.to_owned(),
            None => line.to_owned(),
        };
        let have: Vec<String> = documented.lines().map(form).collect();
        assert_eq!(have, page.lines().map(form).collect::<Vec<_>>());
    }

    #[test]
    fn the_page_has_a_line_for_each_noise_in_each_table() {
        let page = page(0, 1, "butternut-lab selftest");
        for noise in NOISES {
            assert_eq!(page.matches(&format!("| {} |", noise.name)).count(), SETUPS.len() + 1);
        }
        assert!(page.contains("Made by `butternut-lab selftest`"));
        let columns = |line: &str| line.matches('|').count();
        let lines = page.lines().filter(|line| line.starts_with('|'));
        assert!(lines.map(columns).all(|count| count == 9 || count == 8));
    }
}
