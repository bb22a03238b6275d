//! Tests of the commands as a user calls them, on made histories.

use super::*;
use crate::made::{Made, about};
use clap::Parser;
use std::path::Path;

#[derive(Parser)]
#[command(name = "test")]
struct Program {
    #[command(subcommand)]
    command: Command,
}

/// Runs a command line, and returns whether its exit status was 0, and its output.
fn call(history: &Path, line: &[&str]) -> Result<(bool, String), String> {
    let history = history.to_str().expect("UTF-8");
    let arguments = ["test"].into_iter().chain(line.iter().copied()).chain(["--history", history]);
    let program = Program::try_parse_from(arguments).map_err(|error| error.to_string())?;
    let mut out = Vec::new();
    let suite = "name = 's'\n[[scenario]]\nname = 'x'\n\
                 published = [{ metric = 'iops', what = 'elsewhere', value = 77000 }]\n";
    let is_fine = program.command.run(&[suite], &mut out).map_err(|error| format!("{error:#}"))?;
    let text = String::from_utf8(out).expect("UTF-8");
    Ok((is_fine, text))
}

/// A run on day `day` whose rows x and y have these levels.
fn run(history: &Path, day: u32, levels: (f64, f64)) {
    let (x, y) = (about(levels.0), about(levels.1));
    let (id, started) = (format!("r{day}"), format!("2026-01-{day:02}T00:00:00Z"));
    let cells: &[(&str, &str, &[f64])] =
        &[("s/x/jobs=1", "butternut", &x), ("s/x/jobs=1", "raw", &y), ("s/y", "raw", &y)];
    Made { id: &id, started: &started, cells }.write(history);
}

fn history(levels: &[(f64, f64)]) -> tempfile::TempDir {
    let dir = tempfile::tempdir().expect("a directory");
    for (day, levels) in (1..).zip(levels) {
        run(dir.path(), day, *levels);
    }
    dir
}

#[test]
fn compare_reports_worse_cells_by_its_exit_status_and_in_every_form() {
    let dir = history(&[(100.0, 50.0), (80.0, 50.0)]);
    let (is_fine, text) = call(dir.path(), &["compare", "r1", "r2"]).expect("compared");
    assert!(!is_fine && text.starts_with("1 of 3 cells is worse, 2 within noise"), "{text}");
    assert!(text.contains("worse: 20 % less") && text.contains("would have shown"), "{text}");
    assert!(call(dir.path(), &["compare", "r2", "r1"]).expect("compared").0);
    let line = ["compare", "latest:target=raw,row=s/x", ":target=butternut", "--format=csv"];
    let (_, csv) = call(dir.path(), &line).expect("compared");
    assert!(csv.starts_with("row,metric,") && csv.contains("better"), "{csv}");
    let (_, json) = call(dir.path(), &["compare", "r1", "r2", "--json"]).expect("compared");
    let json: serde_json::Value = serde_json::from_str(&json).expect("JSON");
    assert_eq!(json["cells"][0]["verdict"], "worse");
    let error = call(dir.path(), &["compare", "r1", "r9"]).expect_err("none");
    assert!(error.contains("no run \"r9\""), "{error}");
    let error = call(dir.path(), &["compare", "r1", "r2", "--effect", "2"]).expect_err("refused");
    assert!(error.contains("at least 0 and less than 1"), "{error}");
}

#[test]
fn history_lists_runs_and_shows_where_a_level_changed() {
    let mut levels = vec![(100.0, 50.0); 12];
    levels.extend([(80.0, 50.0); 8]);
    let dir = history(&levels);
    let (_, text) = call(dir.path(), &["history"]).expect("listed");
    assert_eq!(text.lines().count(), 21);
    let line = ["history", "s/x", "--target", "butternut", "--rebuild"];
    let (_, text) = call(dir.path(), &line).expect("shown");
    let changed: Vec<&str> = text.lines().filter(|line| line.ends_with('%')).collect();
    assert!(changed.len() == 1 && changed[0].contains("r13") && changed[0].contains("-20 %"));
    assert!(call(dir.path(), &["history", "none"]).expect_err("none").contains("no complete run"));
}

#[test]
fn a_gate_stays_shut_until_its_finding_is_fixed() {
    let dir = history(&[(100.0, 50.0), (101.0, 50.2), (99.5, 49.9), (100.4, 50.1)]);
    let gate = || call(dir.path(), &["gate"]).expect("judged");
    assert!(gate().0);
    run(dir.path(), 5, (80.0, 50.0));
    let (is_open, text) = gate();
    assert!(!is_open && text.contains("The gate is shut"), "{text}");
    assert!(text.contains("s-x-jobs-1-butternut-iops"), "{text}");
    // The worse level becomes the baseline, and the finding stays.
    for day in 6..16 {
        run(dir.path(), day, (80.0, 50.0));
        assert!(!gate().0, "day {day}");
    }
    assert_eq!(call(dir.path(), &["findings"]).expect("listed").1.lines().count(), 2);
    run(dir.path(), 16, (100.0, 50.0));
    assert!(gate().0);
    let (_, text) = call(dir.path(), &["findings", "list", "--all"]).expect("listed");
    assert!(text.contains("fixed by r16"), "{text}");
}

#[test]
fn a_waiver_needs_owner_and_reason_and_ends_where_the_cell_falls_further() {
    let dir = history(&[(100.0, 50.0), (101.0, 50.2), (99.5, 49.9), (80.0, 50.0)]);
    assert!(!call(dir.path(), &["gate"]).expect("judged").0);
    let name = "s-x-jobs-1-butternut-iops";
    let waive = |owner: &str, reason: &str| {
        call(dir.path(), &["findings", "waive", name, "--owner", owner, "--reason", reason])
    };
    assert!(waive("", "x").expect_err("refused").contains("owner"));
    assert!(waive("io team", " ").expect_err("refused").contains("reason"));
    assert!(call(dir.path(), &["findings", "reopen", "none"]).expect_err("none").contains("none"));
    waive("io team", "costs more, checks more").expect("waived");
    assert!(call(dir.path(), &["gate"]).expect("judged").0);
    run(dir.path(), 5, (60.0, 50.0));
    let baseline = ["gate", "--baseline", "r1,r2,r3"];
    assert!(!call(dir.path(), &baseline).expect("judged").0);
    let (_, text) = call(dir.path(), &["findings"]).expect("listed");
    assert!(text.contains("s-x-jobs-1-butternut-iops-2"), "{text}");
    assert!(call(dir.path(), &["findings", "reopen", name]).is_ok());
}

#[test]
fn a_gate_without_anything_to_judge_is_an_error() {
    let dir = history(&[(100.0, 50.0)]);
    let error = call(dir.path(), &["gate"]).expect_err("refused");
    assert!(error.contains("no earlier complete run"), "{error}");
    Made { id: "open", started: "2026-01-02T00:00:00Z", cells: &[] }.begin(dir.path());
    let error = call(dir.path(), &["gate", "open"]).expect_err("refused");
    assert!(error.contains("is not complete (`butternut-lab run --resume open`)"), "{error}");
    let error = call(dir.path(), &["gate", "r1", "--baseline", "r1"]).expect_err("refused");
    assert!(error.contains("is the run to judge"), "{error}");
    std::fs::write(dir.path().join("findings.toml"), "[[finding]]\nname = 1\n").expect("written");
    run(dir.path(), 2, (100.0, 50.0));
    let error = call(dir.path(), &["gate"]).expect_err("refused");
    assert!(error.contains("findings.toml"), "{error}");
}

#[test]
fn equal_runs_pass_the_self_check_and_unequal_ones_do_not() {
    let dir = history(&[(100.0, 50.0), (80.0, 50.0), (100.2, 50.0), (99.9, 50.0)]);
    let (is_fine, text) =
        call(dir.path(), &["self-check", "r1", "r2", "r3", "r4"]).expect("checked");
    assert!(is_fine && text.contains("worse: 20 % less"), "{text}");
    assert!(!call(dir.path(), &["self-check", "r1", "r3", "r2", "r4"]).expect("checked").0);
    assert!(call(dir.path(), &["self-check", "r1"]).expect("checked").0);
    assert!(call(dir.path(), &["self-check", "r1", "r2"]).expect_err("two").contains("A B A A"));
}

#[test]
fn a_report_has_every_file() {
    let dir = history(&[(100.0, 50.0), (101.0, 50.2), (99.5, 49.9), (80.0, 50.0)]);
    let out = dir.path().join("report");
    let line = ["report", "--out", out.to_str().expect("UTF-8")];
    let (_, text) = call(dir.path(), &line).expect("written");
    assert!(text.trim_end().ends_with("report.html"), "{text}");
    let read = |name: &str| std::fs::read_to_string(out.join(name)).expect(name);
    let page = read("report.html");
    assert!(page.contains("1 of 3 cells is worse") && page.contains("published: elsewhere"));
    assert!(read("report.md").contains("# s: r4") && read("report.txt").contains("s/x"));
    assert_eq!(read("report.csv").lines().count(), 1 + 18 + 1);
    assert_eq!(crate::record::Record::read(&out.join("results.jsonl")).expect("read").run.id, "r4");
    let again = dir.path().join("again");
    write_report(dir.path(), "r4", &again, &[], &mut Vec::new()).expect("written");
    assert!(again.join("report.html").is_file());
}

#[test]
fn the_command_line_is_sound() {
    use clap::CommandFactory;
    Program::command().debug_assert();
}
