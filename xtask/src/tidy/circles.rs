//! Import cycles: files of one crate that import one another.
//!
//! Law: no strongly connected component of the import graph of a crate has more than
//! [`FILES_MAX`] files.
//!
//! What an import is:
//!
//! 1. A `use` of the crate's own names, and a path in code, is an import of the file that defines
//!    the name. Re-exports are followed to that file ([`graph`]).
//! 2. A `mod` line is no import. A re-export is none either, unless its file uses the name in its
//!    own code: a parent that only declares and re-exports its children is a table of contents, and
//!    no member of a cycle through that alone.
//! 3. Code that is compiled for tests only is left out: the code after `#[cfg(test)]` and
//!    `#[test]`, and the files below such a `mod`.
//!
//! The graph is read from the text ([`scan`]). A call of a method names no file, so it is no edge:
//! a type whose methods are in several files is seen only where its name is written.

pub mod graph;
pub mod scan;

use super::finding::{Finding, Rule};
use super::tree::Tree;
use graph::{Edge, Graph};
use std::collections::{BTreeMap, BTreeSet};

/// The most files of a component: a parent and its parts may import one another.
const FILES_MAX: usize = 3;

pub fn check(tree: &Tree) -> Vec<Finding> {
    let mut found = Vec::new();
    for manifest in tree.sources.iter().filter(|source| source.is_manifest()) {
        let folder = manifest.path.trim_end_matches("Cargo.toml");
        for root in ["src/lib.rs", "src/main.rs"] {
            let graph = Graph::read(tree, &format!("{folder}{root}"));
            found.extend(components(&graph).iter().filter_map(|files| refusal(&graph, files)));
        }
    }
    found
}

fn refusal(graph: &Graph, files: &BTreeSet<&str>) -> Option<Finding> {
    if files.len() <= FILES_MAX {
        return None;
    }
    let inside =
        |edge: &&Edge| files.contains(edge.from.as_str()) && files.contains(edge.to.as_str());
    let edges: Vec<&Edge> = graph.edges.iter().filter(inside).collect();
    let first = edges.first()?;
    let names: Vec<&str> = files.iter().copied().collect();
    let shown: Vec<String> = edges
        .iter()
        .map(|edge| format!("\n  {}:{} -> {}: {}", edge.from, edge.line, edge.to, edge.name))
        .collect();
    let (count, names) = (files.len(), names.join(", "));
    let what = format!("an import circle of {count} files: {names}{}", shown.concat());
    Some(Finding {
        path: first.from.clone(),
        line: first.line,
        rule: Rule::Circle,
        what,
        cure: format!("pass down what a file needs: at most {FILES_MAX} may import one another"),
    })
}

/// Returns the strongly connected components with more than one file.
fn components(graph: &Graph) -> Vec<BTreeSet<&str>> {
    let mut imports: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for edge in &graph.edges {
        imports.entry(&edge.from).or_default().push(&edge.to);
    }
    let reach: BTreeMap<&str, BTreeSet<&str>> =
        imports.keys().map(|file| (*file, reachable(&imports, file))).collect();
    let mut found: Vec<BTreeSet<&str>> = Vec::new();
    for (file, from_here) in &reach {
        if found.iter().any(|component| component.contains(file)) {
            continue;
        }
        let is_mutual = |other: &&&str| reach.get(**other).is_some_and(|back| back.contains(file));
        let component: BTreeSet<&str> = from_here.iter().filter(is_mutual).copied().collect();
        if component.len() > 1 {
            found.push(component);
        }
    }
    found
}

/// Returns the files that a file imports, directly or through others.
fn reachable<'a>(imports: &BTreeMap<&'a str, Vec<&'a str>>, file: &str) -> BTreeSet<&'a str> {
    let mut seen = BTreeSet::new();
    let mut next: Vec<&str> = imports.get(file).cloned().unwrap_or_default();
    while let Some(file) = next.pop() {
        if seen.insert(file) {
            next.extend(imports.get(file).into_iter().flatten());
        }
    }
    seen
}
