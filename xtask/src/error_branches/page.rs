//! Writes `docs/error-branches.md`.

use super::rules::{Applied, Group, Rule, Rules};
use super::{Branch, CRATES, Reached};
use anyhow::Result;
use std::collections::BTreeMap;
use std::fmt::Write;

const HEAD: &str = "\
# Error branches of the write path

Each `?` in the crates of the write path may return an error. This page counts which of them have
done so while tests ran.

- **injected**: a test that injects failures has reached it. Two scripts use every operation, and a
  volume is opened that has a log, and streams are received, while one reservation, read, write or
  flush fails in each run (`sim/tests/library_errors`). What is visible then is compared with what
  was acknowledged: a call that failed has changed nothing, and it succeeds when the fault is gone.
  Other tests lose devices and requests of batches, and fill volumes.
- **otherwise**: only tests that inject no failures have reached it: those of these crates, and
  crafted volumes and logs (`fuzz/tests`).
- **by rule**: none of these tests has reached it, and it has a rule with a reason
  (`xtask/error-branches.toml`): either it cannot be reached by a failure, or it may be, and either
  nothing has changed then, or one place ends writing.
- **left**: none of these tests has reached it, and it has no rule. They are listed at the end of
  this page.

`make error-branches` makes this page (`scripts/error-branches`). It builds the tests with
`-C instrument-coverage`, where each `?` is a region of its own that counts its returns, runs them,
and joins the counts of all binaries and of all instances of generic functions. Background threads
shift the numbers of requests, so a few counts differ from run to run.
";

const COLUMNS: &str = "`?` | injected | otherwise | by rule | left |\n|---|--:|--:|--:|--:|--:|";

/// Returns the page for sources of which `sources` says which they are.
///
/// # Errors
/// A rule matches no branch.
pub fn write(branches: &[Branch], rules: &Rules, sources: &str) -> Result<String> {
    rules.check_used(branches)?;
    let never: Vec<&Branch> = branches.iter().filter(|branch| branch.reached.is_never()).collect();
    let applied = rules.apply(&never);
    let mut text = HEAD.to_owned();
    writeln!(text, "\nThe counts are those of the sources of {sources}.")?;
    write_crates(&mut text, branches, &applied)?;
    write_groups(&mut text, &applied)?;
    write_files(&mut text, branches, &applied)?;
    for group in Group::ALL {
        write_rules(&mut text, group, &applied)?;
    }
    write_left(&mut text, &applied)?;
    Ok(text)
}

/// Writes the counts of some branches, of which `left` are matched by no rule.
fn row(text: &mut String, name: &str, branches: &[&Branch], left: usize) -> Result<()> {
    let count = |reached| branches.iter().filter(|branch| branch.reached == reached).count();
    let (injected, otherwise) = (count(Reached::Injected), count(Reached::Otherwise));
    let all = branches.len();
    let by_rule = all - injected - otherwise - left;
    writeln!(text, "| {name} | {all} | {injected} | {otherwise} | {by_rule} | {left} |")?;
    Ok(())
}

fn write_crates(text: &mut String, branches: &[Branch], applied: &Applied<'_, '_>) -> Result<()> {
    writeln!(text, "\n## By crate\n\n| crate | {COLUMNS}")?;
    for name in CRATES {
        let prefix = format!("crates/{name}/");
        let own: Vec<_> = branches.iter().filter(|b| b.path.starts_with(&prefix)).collect();
        let left = applied.left.iter().filter(|b| b.path.starts_with(&prefix)).count();
        row(text, name, &own, left)?;
    }
    row(text, "all", &branches.iter().collect::<Vec<_>>(), applied.left.len())
}

fn write_groups(text: &mut String, applied: &Applied<'_, '_>) -> Result<()> {
    writeln!(text, "\n## Those that no test has reached\n\n| rules | `?` | meaning |")?;
    writeln!(text, "|---|--:|---|")?;
    for group in Group::ALL {
        let (name, meaning) = group.words();
        writeln!(text, "| {name} | {} | {meaning} |", applied.count(group))?;
    }
    writeln!(text, "| left | {} | It has no rule. |", applied.left.len())?;
    Ok(())
}

fn write_files(text: &mut String, branches: &[Branch], applied: &Applied<'_, '_>) -> Result<()> {
    writeln!(text, "\n## By file\n\n| file | {COLUMNS}")?;
    let mut files: BTreeMap<&str, Vec<&Branch>> = BTreeMap::new();
    for branch in branches {
        files.entry(&branch.path).or_default().push(branch);
    }
    for (path, branches) in files {
        let left = applied.left.iter().filter(|branch| branch.path == path).count();
        row(text, short(path), &branches, left)?;
    }
    Ok(())
}

fn short(path: &str) -> &str {
    path.strip_prefix("crates/").unwrap_or(path)
}

fn write_rules(text: &mut String, group: Group, applied: &Applied<'_, '_>) -> Result<()> {
    let (name, meaning) = group.words();
    let of_group = applied.rules.iter().filter(|(rule, count)| rule.group == group && *count > 0);
    let of_group: Vec<_> = of_group.collect();
    if of_group.is_empty() {
        return Ok(());
    }
    writeln!(text, "\n## By rule: {name}\n\n{meaning}\n\n| place | `?` | reason |")?;
    writeln!(text, "|---|--:|---|")?;
    for (rule, count) in of_group {
        writeln!(text, "| {} | {count} | {} |", place(rule), rule.reason)?;
    }
    Ok(())
}

fn write_left(text: &mut String, applied: &Applied<'_, '_>) -> Result<()> {
    if applied.left.is_empty() {
        return Ok(());
    }
    writeln!(text, "\n## Left\n\n| file, function | line |\n|---|---|")?;
    for Branch { path, function, code, reached, .. } in &applied.left {
        let code = code.replace('|', "\\|");
        let note = if *reached == Reached::Uncounted { " (no region)" } else { "" };
        writeln!(text, "| {}, `{function}` | `{code}`{note} |", short(path))?;
    }
    Ok(())
}

/// Returns what a rule matches.
fn place(rule: &Rule) -> String {
    let file = if rule.file.is_empty() { "all" } else { &rule.file };
    let code = rule.code.as_ref().map(|code| code.replace('|', "\\|"));
    let parts = rule.function.iter().chain(&code).map(|part| format!(", `{part}`"));
    std::iter::once(file.to_owned()).chain(parts).collect()
}
