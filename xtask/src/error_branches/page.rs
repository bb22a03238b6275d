//! Writes `docs/error-branches.md`.

use super::rules::{Group, Rules};
use super::{Branch, CRATES};
use anyhow::Result;
use std::collections::BTreeMap;
use std::fmt::Write;

const HEAD: &str = "\
# Error branches of the write path

Each `?` in the crates of the write path may return an error. This page counts which of them have
done so while tests injected errors: failed reservations, reads, writes and flushes, one in each
run, at every step of a script that uses every operation. After each error the tests compare what
is visible with what was acknowledged: a call that failed has changed nothing, and the same call
succeeds when the fault is gone (`sim/tests/library_errors`).

`scripts/error-branches` makes this page. It builds the tests of errors with
`-C instrument-coverage`, where each `?` is a region of its own that counts its returns, runs
them, and joins the counts of all binaries and of all instances of generic functions. The reasons
are in `xtask/error-branches.toml`; the script fails if one of them matches nothing.
";

/// Returns the page.
///
/// # Errors
/// A rule matches no branch.
pub fn write(branches: &[Branch], rules: &Rules) -> Result<String> {
    let never: Vec<&Branch> = branches.iter().filter(|branch| !branch.is_reached()).collect();
    let groups = rules.apply(&never)?;
    let mut text = HEAD.to_owned();
    write_sums(&mut text, branches)?;
    write_groups(&mut text, &groups)?;
    write_files(&mut text, branches)?;
    for group in Group::ALL {
        let of_group = never.iter().zip(&groups).filter(|(_, (of, _))| *of == group);
        let of_group: Vec<_> = of_group.map(|(branch, (_, reason))| (*branch, *reason)).collect();
        if !of_group.is_empty() {
            write_never(&mut text, group, &of_group)?;
        }
    }
    Ok(text)
}

fn row(text: &mut String, name: &str, branches: &[&Branch]) -> Result<()> {
    let reached = branches.iter().filter(|branch| branch.is_reached()).count();
    let all = branches.len();
    writeln!(text, "| {name} | {all} | {reached} | {} |", all - reached)?;
    Ok(())
}

fn write_sums(text: &mut String, branches: &[Branch]) -> Result<()> {
    writeln!(text, "\n## By crate\n\n| crate | `?` | reached | never |\n|---|--:|--:|--:|")?;
    for name in CRATES {
        let prefix = format!("crates/{name}/");
        let own: Vec<_> = branches.iter().filter(|b| b.path.starts_with(&prefix)).collect();
        row(text, name, &own)?;
    }
    row(text, "all", &branches.iter().collect::<Vec<_>>())
}

fn write_groups(text: &mut String, groups: &[(Group, &str)]) -> Result<()> {
    writeln!(text, "\n## Those that never returned\n\n| group | `?` | meaning |\n|---|--:|---|")?;
    for group in Group::ALL {
        let count = groups.iter().filter(|(of, _)| *of == group).count();
        let (name, meaning) = group.words();
        writeln!(text, "| {name} | {count} | {meaning} |")?;
    }
    Ok(())
}

fn write_files(text: &mut String, branches: &[Branch]) -> Result<()> {
    writeln!(text, "\n## By file\n\n| file | `?` | reached | never |\n|---|--:|--:|--:|")?;
    let mut files: BTreeMap<&str, Vec<&Branch>> = BTreeMap::new();
    for branch in branches {
        files.entry(&branch.path).or_default().push(branch);
    }
    for (path, branches) in files {
        row(text, short(path), &branches)?;
    }
    Ok(())
}

fn short(path: &str) -> &str {
    path.strip_prefix("crates/").unwrap_or(path)
}

fn write_never(text: &mut String, group: Group, branches: &[(&Branch, &str)]) -> Result<()> {
    let (name, meaning) = group.words();
    writeln!(text, "\n## Never: {name}\n\n{meaning}\n")?;
    writeln!(text, "| file, function | line | reason |\n|---|---|---|")?;
    for (branch, reason) in branches {
        let reason = if branch.returned.is_none() && reason.is_empty() {
            "the compiler made no region for it"
        } else {
            reason
        };
        let code = branch.code.replace('|', "\\|");
        let Branch { path, function, .. } = branch;
        writeln!(text, "| {}, `{function}` | `{code}` | {reason} |", short(path))?;
    }
    Ok(())
}
