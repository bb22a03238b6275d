//! The shape of a source file: header, length, width, alphabet, name, and where `unsafe` may be.

use super::finding::{Finding, Rule};
use super::tree::{Source, Tree};

const LINES_MAX: usize = 799;
const COLUMNS_MAX: usize = 100;
/// Where `unsafe` may be: the ground, and the one file that C calls.
const UNSAFE: &[&str] = &["crates/sys/", "crates/fio/src/abi.rs"];
/// Drawers for things without a home.
const JUNK: &[&str] = &["utils", "util", "common", "helpers", "helper", "prelude", "misc"];

pub fn check(tree: &Tree) -> Vec<Finding> {
    tree.rust().flat_map(file).collect()
}

fn file(source: &Source) -> Vec<Finding> {
    let mut found = Vec::new();
    let mut add = |line: usize, rule: Rule, what: String, cure: &str| {
        found.push(Finding { path: source.path.clone(), line, rule, what, cure: cure.into() });
    };
    if !source.text.starts_with("//!") {
        let cure = "open the file with //!: what it owns, its laws, what it leaves to others";
        add(1, Rule::Header, "no header".into(), cure);
    }
    let lines = source.text.lines().count();
    if lines > LINES_MAX {
        add(lines, Rule::Length, format!("{lines} lines"), "split it: one subject per file");
    }
    if source.path.split(['/', '.']).any(|part| JUNK.contains(&part)) {
        let cure = "name the subject; each helper belongs to a floor";
        add(1, Rule::FileName, "a junk drawer".into(), cure);
    }
    for (at, line) in source.lines() {
        if line.chars().count() > COLUMNS_MAX {
            add(at, Rule::Width, format!("over {COLUMNS_MAX} columns"), "break the line");
        }
        if let Some(strange) = line.chars().find(|c| !c.is_ascii()) {
            add(at, Rule::Ascii, format!("{strange:?} is not ASCII"), "spell it, or escape it");
        }
        let may_be_unsafe = UNSAFE.iter().any(|place| source.path.starts_with(place));
        if !may_be_unsafe && has_unsafe(line) {
            let cure = "put a small safe function into crates/sys";
            add(at, Rule::Unsafe, "unsafe outside sys".into(), cure);
        }
    }
    found
}

/// `unsafe` as a keyword of code: comments and strings may talk about it.
fn has_unsafe(line: &str) -> bool {
    let code = line.split("//").next().unwrap_or(line);
    code.split('"').step_by(2).any(|part| {
        part.split(|c: char| !c.is_alphanumeric() && c != '_').any(|word| word == "unsafe")
    })
}
