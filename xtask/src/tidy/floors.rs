//! Floors: which crate may import which, read from the manifests.
//!
//! 1. Every crate says its floor: `floor = N` under `[package.metadata]`.
//! 2. A crate imports only crates of lower floors, so crates on one floor never import one another.
//!    Crates beside the floors (floor 9) may import any crate. Dependencies of tests are not
//!    checked.
//! 3. A door (floor 7) imports only crates of floor 6 and of the ground (floor 0). One door may
//!    import another one only as a pair of [`DOOR_PAIRS`].
//! 4. Every crate has the workspace's lints; only those of [`OWN_LINTS`] have a table of their own.

use super::finding::{Finding, Rule};
use super::tree::{Source, Tree};

const DOORS: u32 = 7;
/// What doors open onto: the library, and the tools that work on volumes that are not open.
const BEHIND_DOORS: u32 = 6;
/// Crates beside the floors: they may import any crate, and no crate of a floor imports them.
const OUTSIDE: u32 = 9;
/// Doors that may import one another: the command line starts the mount.
const DOOR_PAIRS: &[(&str, &str)] = &[("butternut-cli", "butternut-fuse")];

/// Crates with `unsafe`, which the workspace's lints forbid: the ground, and the door that C calls.
const OWN_LINTS: &[&str] = &["butternut-sys", "butternut-fio"];

/// A manifest, as much as the law needs.
struct Package<'a> {
    path: &'a str,
    name: String,
    floor: Option<u32>,
    keeps_lints: bool,
    imports: Vec<(usize, String)>,
}

pub fn check(tree: &Tree) -> Vec<Finding> {
    let packages: Vec<Package<'_>> = tree
        .sources
        .iter()
        .filter(|source| source.is_manifest() && source.text.contains("[package]"))
        .map(read)
        .collect();
    let mut found = Vec::new();
    for package in &packages {
        found.extend(lints(package));
        let Some(floor) = package.floor else {
            found.push(finding(
                package,
                1,
                Rule::Floor,
                "no floor",
                "write `floor = N` under [package.metadata]",
            ));
            continue;
        };
        for (line, import) in &package.imports {
            let Some(other) = packages.iter().find(|r| r.name == *import) else { continue };
            if let Some(refusal) = refusal(package, floor, other) {
                found.push(finding(package, *line, Rule::Floor, &refusal, "import a lower floor"));
            }
        }
    }
    found
}

fn refusal(package: &Package<'_>, floor: u32, other: &Package<'_>) -> Option<String> {
    let below = other.floor?;
    if DOOR_PAIRS.contains(&(package.name.as_str(), other.name.as_str())) {
        return None;
    }
    if below >= floor && floor != OUTSIDE {
        return Some(format!("floor {floor} imports {} on floor {below}", other.name));
    }
    if floor == DOORS && below != 0 && below != BEHIND_DOORS {
        return Some(format!("a door imports {}, beneath floor {BEHIND_DOORS}", other.name));
    }
    None
}

fn lints(package: &Package<'_>) -> Option<Finding> {
    let has_own = OWN_LINTS.contains(&package.name.as_str());
    let free = package.keeps_lints || has_own || package.path.starts_with("fuzz/");
    (!free).then(|| {
        finding(
            package,
            1,
            Rule::Lints,
            "own lints",
            "write `workspace = true` under [lints]; crates with `unsafe` have tables of their own",
        )
    })
}

fn finding(package: &Package<'_>, line: usize, rule: Rule, what: &str, cure: &str) -> Finding {
    Finding { path: package.path.into(), line, rule, what: what.into(), cure: cure.into() }
}

/// Reads the few keys that matter; manifests here are one key per line.
fn read(source: &Source) -> Package<'_> {
    let mut package = Package {
        path: &source.path,
        name: String::new(),
        floor: None,
        keeps_lints: false,
        imports: Vec::new(),
    };
    let mut section = "";
    for (line, text) in source.lines() {
        let text = text.trim();
        if let Some(name) = text.strip_prefix('[') {
            section = name.trim_matches(|c| c == '[' || c == ']');
            continue;
        }
        let Some((key, value)) = text.split_once('=') else { continue };
        let (key, value) = (key.trim(), value.trim());
        match section {
            "package" if key == "name" => value.trim_matches('"').clone_into(&mut package.name),
            "package.metadata" if key == "floor" => package.floor = value.parse().ok(),
            "lints" if key == "workspace" => package.keeps_lints = value == "true",
            _ if section == "dependencies" || section.ends_with(".dependencies") => {
                let import = key.split('.').next().unwrap_or(key).to_owned();
                package.imports.push((line, import));
            }
            _ => {}
        }
    }
    if package.path.starts_with("fuzz/") && package.floor.is_none() {
        package.floor = Some(OUTSIDE);
    }
    package
}
