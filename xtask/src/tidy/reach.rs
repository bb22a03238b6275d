//! Dead files: a `.rs` file that no crate root reaches through `mod`.
//!
//! Roots are `src/lib.rs`, `src/main.rs`, `build.rs`, every file directly in `src/bin`, `tests`,
//! `benches` and `examples`, every `main.rs` one folder further down, and every `path = "..."` of a
//! manifest.

use std::collections::BTreeSet;

use super::finding::{Finding, Rule};
use super::tree::Tree;

pub fn check(tree: &Tree) -> Vec<Finding> {
    let mut alive = BTreeSet::new();
    let mut waiting: Vec<String> = roots(tree);
    while let Some(path) = waiting.pop() {
        let Some(source) = tree.find(&path) else { continue };
        if alive.insert(path.clone()) {
            waiting.extend(children(&path, &source.text));
        }
    }
    tree.rust()
        .filter(|source| !alive.contains(&source.path))
        .map(|source| Finding {
            path: source.path.clone(),
            line: 1,
            rule: Rule::Dead,
            what: "no `mod` reaches this file".to_owned(),
            cure: "add it to its parent module, or remove it".to_owned(),
        })
        .collect()
}

fn roots(tree: &Tree) -> Vec<String> {
    let mut roots = Vec::new();
    for manifest in tree.sources.iter().filter(|source| source.is_manifest()) {
        let folder = manifest.path.trim_end_matches("Cargo.toml");
        for name in ["src/lib.rs", "src/main.rs", "build.rs"] {
            roots.push(format!("{folder}{name}"));
        }
        for place in ["src/bin/", "tests/", "benches/", "examples/"] {
            let place = format!("{folder}{place}");
            let inside = |path: &str| path.strip_prefix(&place).is_some_and(is_target);
            roots.extend(tree.rust().map(|s| s.path.clone()).filter(|path| inside(path)));
        }
        for (_, line) in manifest.lines() {
            if let Some((key, value)) = line.split_once('=')
                && key.trim() == "path"
            {
                roots.push(format!("{folder}{}", value.trim().trim_matches('"')));
            }
        }
    }
    roots
}

/// Whether Cargo makes a target of a file at this path below `tests` and the like.
fn is_target(path: &str) -> bool {
    match path.split_once('/') {
        None => true,
        Some((_, file)) => file == "main.rs",
    }
}

/// The path of a file that is named relative to a folder, without `..`.
fn joined(folder: &str, relative: &str) -> String {
    let mut parts: Vec<&str> = folder.split('/').collect();
    for part in relative.split('/') {
        match part {
            ".." => drop(parts.pop()),
            part => parts.push(part),
        }
    }
    parts.join("/")
}

/// The files that `mod name;` lines of the file at `path` may mean.
fn children(path: &str, text: &str) -> Vec<String> {
    let (folder, name) = path.rsplit_once('/').unwrap_or(("", path));
    let stem = name.trim_end_matches(".rs");
    let mut found = Vec::new();
    let mut renamed = None;
    for line in text.lines().map(str::trim) {
        if let Some(rest) = line.strip_prefix("#[path = \"") {
            renamed = rest.split('"').next();
            continue;
        }
        let Some(child) = line
            .strip_suffix(';')
            .and_then(|line| line.rsplit_once("mod "))
            .filter(|(before, _)| before.is_empty() || before.starts_with("pub"))
            .map(|(_, child)| child)
        else {
            continue;
        };
        if let Some(renamed) = renamed.take() {
            found.push(joined(folder, renamed));
        }
        for place in [folder.to_owned(), format!("{folder}/{stem}")] {
            found.push(format!("{place}/{child}.rs"));
            found.push(format!("{place}/{child}/mod.rs"));
        }
    }
    found
}
