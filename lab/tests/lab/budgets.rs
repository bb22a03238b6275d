//! `budget`: the counts of this build are the kept ones, and what differs is said.

use super::setting::Setting;
use std::process::{Command, Output};

/// The counts that are kept in the source tree.
const KEPT: &str = include_str!("../../budgets/engine.toml");

fn lab(setting: &Setting, words: &str) -> Output {
    setting.output(&format!("budget {words}"))
}

/// The gate of every change: an operation that costs another number of requests, bytes, flushes or
/// allocations than the file says fails here. `butternut-lab budget --update` writes the file.
#[test]
fn operations_cost_what_is_kept() {
    let output = lab(&Setting::new(), "--exact");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{errors}");
    assert_eq!(errors, "");
    let printed = String::from_utf8_lossy(&output.stdout);
    assert!(printed.contains("\nwrite-4k-direct "), "{printed}");
}

#[test]
fn a_row_that_costs_more_fails_and_one_that_costs_less_only_with_exact() {
    let setting = Setting::new();
    let changed = |want: &str| {
        let at = KEPT.find("[row.create-commit]").unwrap();
        let (head, rest) = KEPT.split_at(at);
        assert!(rest.contains("flushes = 32\n"), "{rest}");
        setting.write("kept.toml", &format!("{head}{}", rest.replacen("flushes = 32", want, 1)));
    };
    changed("flushes = 31");
    let errors = setting.fail("budget --only create-commit --file kept.toml");
    let want = "kept.toml: create-commit: flushes: have 32 in 16, want 31 in 16\n";
    assert!(errors.contains(want), "{errors}");
    changed("flushes = 33");
    let words = "--only create-commit --file kept.toml";
    let output = lab(&setting, words);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && errors.contains("want 33 in 16 (fewer)"), "{errors}");
    setting.fail(&format!("budget {words} --exact"));
}

#[test]
fn an_update_keeps_what_is_counted_and_bad_files_are_refused() {
    let setting = Setting::new();
    setting.write("kept.toml", "[tolerance]\nallocations = 0.01\n[row]\n");
    setting.succeed("budget --update --file kept.toml");
    setting.succeed("budget --file kept.toml");
    setting.write("kept.toml", "[tolerance]\n[row.create]\nwrites = 'x'\n");
    let errors = setting.fail("budget --only create --file kept.toml");
    assert!(errors.contains("kept.toml: ") && errors.contains("writes"), "{errors}");
    let errors = setting.fail("budget --only create --file none.toml");
    assert!(errors.contains("none.toml: cannot be read"), "{errors}");
    let errors = setting.fail("budget --only nothing");
    assert!(errors.contains("no operation"), "{errors}");
}

#[test]
fn instructions_are_left_out_where_valgrind_is_missing() {
    let setting = Setting::new();
    let mut command: Command = setting.command("budget --only mkdir --instructions");
    let output = command.env("PATH", setting.path("tmp")).output().unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    let is_missing = errors.contains("instructions are left out: valgrind is missing");
    assert!(output.status.success() && is_missing, "{errors}");
}
