//! Floors: which crate may import which, read from the manifests.
//!
//! 1. Every crate says its floor: `floor = N` under `[package.metadata]`.
//! 2. A crate imports only crates of lower floors; rooms on one floor never meet.
//! 3. A door (floor 7) sees the rooms of floor 6 and the ground (floor 0), nothing between; the one
//!    pair of doors that meets is in [`DOOR_PAIRS`].
//! 4. Every crate keeps the workspace's lints; only those of [`OWN_LINTS`] write a table.

use super::finding::{Finding, Rule};
use super::tree::{Source, Tree};

const DOORS: u32 = 7;
/// What doors open onto: the library, and the tools that work on volumes that are not open.
const BEHIND_DOORS: u32 = 6;
/// Crates above every floor: they see everything and nothing sees them.
const OUTSIDE: u32 = 9;
/// Doors that may import one another: the command line starts the mount.
const DOOR_PAIRS: &[(&str, &str)] = &[("butternut-cli", "butternut-fuse")];

/// Crates with `unsafe`, which the workspace's lints forbid: the ground, and the door that C calls.
const OWN_LINTS: &[&str] = &["butternut-sys", "butternut-fio"];

/// A manifest, as much as the law needs.
struct Room<'a> {
    path: &'a str,
    name: String,
    floor: Option<u32>,
    keeps_lints: bool,
    imports: Vec<(usize, String)>,
}

pub fn check(tree: &Tree) -> Vec<Finding> {
    let rooms: Vec<Room<'_>> = tree
        .sources
        .iter()
        .filter(|source| source.is_manifest() && source.text.contains("[package]"))
        .map(read)
        .collect();
    let mut found = Vec::new();
    for room in &rooms {
        found.extend(lints(room));
        let Some(floor) = room.floor else {
            found.push(finding(
                room,
                1,
                Rule::Floor,
                "no floor",
                "write `floor = N` under [package.metadata]",
            ));
            continue;
        };
        for (line, import) in &room.imports {
            let Some(other) = rooms.iter().find(|r| r.name == *import) else { continue };
            if let Some(refusal) = refusal(room, floor, other) {
                found.push(finding(room, *line, Rule::Floor, &refusal, "import a lower floor"));
            }
        }
    }
    found
}

fn refusal(room: &Room<'_>, floor: u32, other: &Room<'_>) -> Option<String> {
    let below = other.floor?;
    if DOOR_PAIRS.contains(&(room.name.as_str(), other.name.as_str())) {
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

fn lints(room: &Room<'_>) -> Option<Finding> {
    let has_own = OWN_LINTS.contains(&room.name.as_str());
    let free = room.keeps_lints || has_own || room.path.starts_with("fuzz/");
    (!free).then(|| {
        finding(
            room,
            1,
            Rule::Lints,
            "own lints",
            "write `workspace = true` under [lints]; crates with `unsafe` have tables of their own",
        )
    })
}

fn finding(room: &Room<'_>, line: usize, rule: Rule, what: &str, cure: &str) -> Finding {
    Finding { path: room.path.into(), line, rule, what: what.into(), cure: cure.into() }
}

/// Reads the few keys that matter; manifests here are one key per line.
fn read(source: &Source) -> Room<'_> {
    let mut room = Room {
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
            "package" if key == "name" => value.trim_matches('"').clone_into(&mut room.name),
            "package.metadata" if key == "floor" => room.floor = value.parse().ok(),
            "lints" if key == "workspace" => room.keeps_lints = value == "true",
            _ if section == "dependencies" || section.ends_with(".dependencies") => {
                let import = key.split('.').next().unwrap_or(key).to_owned();
                room.imports.push((line, import));
            }
            _ => {}
        }
    }
    if room.path.starts_with("fuzz/") && room.floor.is_none() {
        room.floor = Some(OUTSIDE);
    }
    room
}
