//! The import graph of one crate: which file imports a name that which file defines.

use super::scan::{self, Module, Path};
use crate::tidy::tree::Tree;
use std::collections::{BTreeMap, BTreeSet};

/// How many re-exports a name may pass on the way to its file.
const HOPS_MAX: usize = 16;

/// An import: the first place where a file names something of another.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Edge {
    pub from: String,
    pub to: String,
    pub line: usize,
    pub name: String,
}

/// The edges of a crate, one for each pair of files.
#[derive(Debug, Default)]
pub struct Graph {
    pub edges: Vec<Edge>,
}

/// The path of a module from the root of its crate.
type ModulePath = Vec<String>;

/// The modules of a crate, with the file of each.
#[derive(Default)]
struct Modules {
    by_path: BTreeMap<ModulePath, (String, Module)>,
}

impl Graph {
    /// Reads the crate whose root file is `root`. Without that file the graph is empty.
    pub fn read(tree: &Tree, root: &str) -> Self {
        let modules = Modules::read(tree, root);
        let mut first: BTreeMap<(String, String), (usize, String)> = BTreeMap::new();
        for (at, (file, module)) in &modules.by_path {
            for path in imports(module) {
                let Some(to) = modules.file_of(at, &path.parts, HOPS_MAX) else { continue };
                if to == *file {
                    continue;
                }
                let place = (path.line, path.parts.join("::"));
                let known = first.entry((file.clone(), to)).or_insert_with(|| place.clone());
                if place < *known {
                    *known = place;
                }
            }
        }
        let edge = |((from, to), (line, name))| Edge { from, to, line, name };
        Self { edges: first.into_iter().map(edge).collect() }
    }
}

/// Returns the paths of a module that are imports: all but re-exports that its code does not use.
fn imports(module: &Module) -> Vec<&Path> {
    let words: BTreeSet<&str> = module.words.iter().map(String::as_str).collect();
    let counts = |one: &&scan::Use| !one.is_public || words.contains(one.name.as_str());
    let uses = module.uses.iter().filter(counts).map(|one| &one.path);
    uses.chain(&module.paths).collect()
}

impl Modules {
    fn read(tree: &Tree, root: &str) -> Self {
        let mut all = Self::default();
        let mut waiting: Vec<(ModulePath, String)> = vec![(Vec::new(), root.to_owned())];
        while let Some((path, file)) = waiting.pop() {
            let Some(source) = tree.find(&file) else { continue };
            for module in scan::modules(&source.text) {
                let mut at = path.clone();
                at.extend(module.inside.iter().cloned());
                for child in &module.children {
                    let mut below = at.clone();
                    below.push(child.clone());
                    waiting.extend(files(root, &below).map(|file| (below.clone(), file)));
                }
                all.by_path.insert(at, (file.clone(), module));
            }
        }
        all
    }

    /// Returns the file that defines what a path names in the module `at`; `None` for a module, and
    /// for a name of another crate.
    fn file_of(&self, at: &[String], parts: &[String], hops: usize) -> Option<String> {
        let (first, mut rest) = parts.split_first()?;
        let mut module: ModulePath = match first.as_str() {
            "crate" => Vec::new(),
            "self" => at.to_vec(),
            "super" => at.split_last()?.1.to_vec(),
            _ => {
                let (_, here) = self.by_path.get(at)?;
                return self.in_module(at, here, parts, hops);
            }
        };
        while let Some(after) = rest.strip_prefix(&["super".to_owned()]) {
            module.pop();
            rest = after;
        }
        let (file, inside) = self.by_path.get(&module)?;
        let is_named = rest.first().is_some_and(|name| name != "*");
        let found = self.in_module(&module, inside, rest, hops);
        // A name that a macro makes is unknown, but its module is not.
        found.or_else(|| (is_named && !self.is_module(&module, rest)).then(|| file.clone()))
    }

    /// As [`Self::file_of`], for a path whose first part is a name in `module`.
    fn in_module(
        &self,
        at: &[String],
        module: &Module,
        parts: &[String],
        hops: usize,
    ) -> Option<String> {
        let (first, rest) = parts.split_first()?;
        let mut child = at.to_vec();
        child.push(first.clone());
        if let Some((file, below)) = self.by_path.get(&child) {
            let found = self.in_module(&child, below, rest, hops);
            let is_item = !rest.is_empty() && !self.is_module(&child, rest);
            return found.or_else(|| is_item.then(|| file.clone()));
        }
        if module.items.contains(first) {
            return self.by_path.get(at).map(|(file, _)| file.clone());
        }
        let hops = hops.checked_sub(1)?;
        let bound = module.uses.iter().filter(|one| one.name == *first || one.name == "*");
        bound.into_iter().find_map(|one| {
            let mut path = one.path.parts.clone();
            if one.name == "*" {
                path.pop();
                path.push(first.clone());
            }
            // A name of another crate that has the name of a module here.
            if path.first() == Some(first) && path.len() == 1 {
                return None;
            }
            path.extend(rest.iter().cloned());
            self.file_of(at, &path, hops)
        })
    }

    fn is_module(&self, at: &[String], rest: &[String]) -> bool {
        let mut path = at.to_vec();
        path.extend(rest.iter().cloned());
        self.by_path.contains_key(&path)
    }
}

/// The files that may hold a module.
fn files(root: &str, path: &[String]) -> impl Iterator<Item = String> {
    let folder = root.rsplit_once('/').map_or("", |(folder, _)| folder);
    let place = format!("{folder}/{}", path.join("/"));
    [format!("{place}.rs"), format!("{place}/mod.rs")].into_iter()
}
