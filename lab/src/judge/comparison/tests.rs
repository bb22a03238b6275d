//! Tests of verdicts on made samples.

use super::*;
use crate::judge::selection::{Selection, gather};
use crate::made::sample;
use crate::record::{FORMAT, Record, RunHeader};

/// A run in which each cell of `cells` (row, target, values) was measured.
fn run(id: &str, cells: &[(&str, &str, &[f64])]) -> Record {
    let header = RunHeader {
        format: FORMAT,
        id: id.to_owned(),
        started: "2026-01-02T03:04:05Z".to_owned(),
        suite: "s".to_owned(),
        seed: 0,
        command: Vec::new(),
        environment: Environment::default(),
    };
    let mut samples = Vec::new();
    for (row, target, values) in cells {
        for (repeat, value) in (0..).zip(*values) {
            samples.push(sample(row, target, repeat, *value));
        }
    }
    Record { run: header, samples, failures: Vec::new(), end: None, notes: Vec::new() }
}

fn judged(first: &str, second: &str, runs: &[Record]) -> Comparison {
    let (a, b) = (Selection::parse(first).expect("a"), Selection::parse(second).expect("b"));
    let of = |side: &Selection| -> Vec<Record> {
        let named = |name: &String| runs.iter().find(|run| run.run.id == *name).cloned();
        side.runs.iter().filter_map(named).collect()
    };
    let cells = (gather(&a, &b, &of(&a)).expect("a"), gather(&b, &a, &of(&b)).expect("b"));
    compare(&cells.0, &cells.1, a.runs == b.runs && a.runs.len() == 1, Limits::default())
}

const STEADY: [f64; 6] = [100.0, 101.0, 99.0, 100.5, 99.5, 100.2];

fn times(factor: f64) -> Vec<f64> {
    STEADY.iter().map(|value| value * factor).collect()
}

#[test]
fn a_slowdown_is_reported_and_an_equal_row_is_within_noise() {
    let slow = times(0.9);
    let a = run("a", &[("slow", "t", &STEADY), ("same", "t", &STEADY)]);
    let b = run("b", &[("slow", "t", &slow), ("same", "t", &STEADY)]);
    let result = judged("a", "b", &[a, b]);
    let verdicts: Vec<_> = result.cells.iter().map(|c| (c.row.as_str(), c.verdict)).collect();
    assert_eq!(verdicts, [("slow", Verdict::Worse), ("same", Verdict::WithinNoise)]);
    let ratio = result.cells[0].ratio.expect("a ratio");
    let (low, high) = result.cells[0].interval.expect("an interval");
    assert!((ratio - 0.9).abs() < 1e-9 && low < 0.9 && 0.9 < high && high < 1.0);
    assert!((result.cells[0].effect + 1.0).abs() < 1e-9);
    let visible = result.cells[1].visible.expect("a visible effect");
    assert!((0.02..0.05).contains(&visible), "{visible}");
    assert!(result.notes.iter().any(|note| note.contains("Fewer than 3 runs")));
    assert_eq!(result.cells[0].method, Method::Repeats);
}

#[test]
fn a_gain_is_no_regression_and_lower_may_be_better() {
    let fast = times(1.2);
    let mut a = run("a", &[("r", "t", &STEADY)]);
    let mut b = run("b", &[("r", "t", &fast)]);
    assert_eq!(judged("a", "b", &[a.clone(), b.clone()]).cells[0].verdict, Verdict::Better);
    for sample in a.samples.iter_mut().chain(&mut b.samples) {
        sample.better = Better::Lower;
    }
    assert_eq!(judged("a", "b", &[a, b]).cells[0].verdict, Verdict::Worse);
}

#[test]
fn targets_of_one_run_are_compared_by_pairs_of_repeats() {
    // Both targets slow down by half over the run, so only the pairs show the difference of 5 %.
    let drift: Vec<f64> = (0..8).map(|i| 100.0 * 0.9_f64.powi(i)).collect();
    let slower: Vec<f64> = drift
        .iter()
        .zip([0.95, 0.951, 0.949, 0.95, 0.952, 0.95, 0.948, 0.95])
        .map(|(a, b)| a * b)
        .collect();
    let one = run("a", &[("r", "kernel:btrfs@/dev/x", &drift), ("r", "raw:/dev/x", &slower)]);
    let result = judged("a:target=kernel:btrfs", "a:target=raw", &[one]);
    assert_eq!((result.cells[0].method, result.cells[0].verdict), (Method::Pairs, Verdict::Worse));
}

#[test]
fn runs_that_differ_more_than_their_repeats_do_not_become_regressions() {
    let mut runs: Vec<Record> = Vec::new();
    let levels = [1.0, 0.93, 1.05, 0.97, 1.04, 0.95];
    for (id, level) in ["a", "b", "c", "d", "e", "f"].iter().zip(levels) {
        runs.push(run(id, &[("r", "t", &times(level))]));
    }
    assert_eq!(judged("e", "f", &runs).cells[0].verdict, Verdict::Worse, "repeats alone mislead");
    let result = judged("a,b,c,d,e", "f", &runs);
    assert_eq!(result.cells[0].method, Method::History);
    assert_eq!(result.cells[0].verdict, Verdict::WithinNoise);
    assert!(result.cells[0].visible.expect("visible") > 0.1);
    assert_eq!(judged("a,b,c", "d,e,f", &runs).cells[0].method, Method::Runs);
    let reversed = judged("f", "a,b,c,d,e", &runs);
    let product = reversed.cells[0].ratio.expect("ratio") * result.cells[0].ratio.expect("ratio");
    assert!((product - 1.0).abs() < 1e-9);
}

#[test]
fn what_cannot_be_judged_says_why() {
    let a = run("a", &[("few", "t", &[1.0, 1.0]), ("zero", "t", &[0.0, 1.0, 1.0])]);
    let result = judged("a", "a", &[a]);
    let reasons: Vec<_> = result.cells.iter().filter_map(|c| c.reason.as_deref()).collect();
    assert_eq!(reasons, ["too few repeats: have 2, want at least 3", "a value has no ratio: 0"]);
    assert_eq!(result.count(Verdict::NotJudged), 2);
}

#[test]
fn a_side_with_several_targets_is_refused_by_name() {
    let a = run("a", &[("r", "raw", &STEADY), ("r", "dir", &STEADY)]);
    let (whole, part) =
        (Selection::parse("a").expect("ok"), Selection::parse("a:target=raw").expect("ok"));
    let error = gather(&whole, &part, std::slice::from_ref(&a)).expect_err("several").to_string();
    assert!(error.contains("raw; dir"), "{error}");
}

#[test]
fn cells_of_one_side_only_are_counted_in_a_note() {
    let a = run("a", &[("x", "t", &STEADY), ("r", "t", &STEADY)]);
    let b = run("b", &[("r", "t", &STEADY)]);
    let result = judged("a", "b", &[a, b]);
    assert!(result.notes.contains(&"1 cells are on the first side only.".to_owned()));
    assert_eq!(result.cells.len(), 1);
}

#[test]
fn environments_are_compared_field_by_field() {
    let first = Environment { kernel: "6.1".to_owned(), ..Environment::default() };
    let second = Environment { kernel: "6.2".to_owned(), ..Environment::default() };
    assert_eq!(differences(&first, &second), ["The kernel differs: \"6.1\" and \"6.2\"."]);
    assert!(differences(&first, &first).is_empty());
}
