//! Words that do not belong in the repository, and calls that have a better replacement.

use super::finding::{Finding, Rule};
use super::tree::{Source, Tree};

/// Marks of unfinished work: finish it, or open a ticket outside the code.
const MARKS: &[&str] =
    &[concat!("TO", "DO"), concat!("FIX", "ME"), concat!("XX", "X"), concat!("HA", "CK")];
/// Words for parts of a plan, if a number or a single capital letter follows.
const PLAN: &[&str] = &["stage", "phase", "milestone", "sprint", "ticket"];

/// A call that is refused in the shipped code of some crates, and what to write instead.
struct Banned {
    call: &'static str,
    instead: &'static str,
    within: &'static [&'static str],
}

const ENGINE: &[&str] = &[
    "crates/format/",
    "crates/device/",
    "crates/volume/",
    "crates/space/",
    "crates/tree/",
    "crates/file/",
    "crates/names/",
    "crates/fs/",
];
const DISKLESS: &[&str] = &[
    "crates/format/",
    "crates/volume/",
    "crates/space/",
    "crates/tree/",
    "crates/file/",
    "crates/names/",
];
const EVERYWHERE: &[&str] = &["crates/"];
/// Crates whose locks are those of `sys::lock`.
const RANKED: &[&str] = &[
    "crates/device/",
    "crates/volume/",
    "crates/space/",
    "crates/tree/",
    "crates/pages/",
    "crates/file/",
    "crates/fs/",
    "crates/check/",
    "crates/fuse/",
    "crates/cli/",
    "crates/fio/",
];

const BANNED: &[Banned] = &[
    Banned { call: "process::exit(", instead: "return ExitCode from main", within: EVERYWHERE },
    Banned { call: "mem::transmute", instead: "zerocopy", within: EVERYWHERE },
    Banned { call: "unimplemented!(", instead: "a typed error", within: EVERYWHERE },
    Banned { call: "env::var", instead: "an option given by the caller", within: ENGINE },
    Banned { call: "SystemTime::now(", instead: "a time given by the caller", within: ENGINE },
    Banned { call: "std::fs::", instead: "a Device", within: DISKLESS },
    Banned { call: "std::net::", instead: "a Device", within: DISKLESS },
    Banned {
        call: "PoisonError",
        instead: "a lock of sys::lock, with a rank: its methods recover from poison",
        within: RANKED,
    },
    Banned {
        call: "from_utf8_lossy(",
        instead: "bytes: names are not UTF-8",
        within: &["crates/names/"],
    },
];

pub fn check(tree: &Tree) -> Vec<Finding> {
    let mut found: Vec<Finding> = tree.sources.iter().flat_map(talk).collect();
    found.extend(tree.rust().flat_map(calls));
    found
}

fn talk(source: &Source) -> Vec<Finding> {
    let mut found = Vec::new();
    for (line, text) in source.lines() {
        let words: Vec<&str> =
            text.split(|c: char| !c.is_alphanumeric()).filter(|w| !w.is_empty()).collect();
        let mark = words.iter().find(|word| MARKS.contains(word)).map(|w| (*w).to_owned());
        let plan = words.windows(2).find(|w| is_plan(w[0], w[1])).map(|w| w.join(" "));
        for what in mark.into_iter().chain(plan) {
            found.push(Finding {
                path: source.path.clone(),
                line,
                rule: Rule::Word,
                what: format!("{what:?}"),
                cure: "say what is true now; plans live in the tracker".to_owned(),
            });
        }
    }
    found
}

/// A plan word and a number or one capital.
fn is_plan(word: &str, next: &str) -> bool {
    let numbered = next.chars().all(|c| c.is_ascii_digit());
    let lettered = next.len() == 1 && next.chars().all(|c| c.is_ascii_uppercase());
    PLAN.contains(&word.to_ascii_lowercase().as_str()) && (numbered || lettered)
}

fn calls(source: &Source) -> Vec<Finding> {
    let mut found = Vec::new();
    for (line, text) in source.shipped_lines() {
        let code = text.split("//").next().unwrap_or(text);
        for banned in BANNED {
            let here = banned.within.iter().any(|folder| source.path.starts_with(folder));
            if here && code.contains(banned.call) {
                found.push(Finding {
                    path: source.path.clone(),
                    line,
                    rule: Rule::Call,
                    what: format!("{} is banned here", banned.call.trim_end_matches('(')),
                    cure: format!("use {}", banned.instead),
                });
            }
        }
    }
    found
}
