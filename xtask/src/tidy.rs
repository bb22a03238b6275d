//! Style as a test: what no compiler lint checks about the repository.
//!
//! Laws, each in its own file:
//!
//! 1. [`floors`]: a crate imports lower floors only, and a door only floor 6 and the ground (floor
//!    0); every crate has the workspace's lints.
//! 2. [`shape`]: files open with a header, stay short, narrow and ASCII; `unsafe` only in `sys` and
//!    in the file of the fio engine that C calls.
//! 3. [`words`]: no marks of unfinished work or of plans, no call where a better one exists.
//! 4. [`language`]: no personal pronouns for threads and callers, no retired words.
//! 5. [`reach`]: every source file is part of a crate.
//! 6. [`decisions`]: each decision record has a number of its own.
//! 7. [`circles`]: at most three files of a crate import one another.
//! 8. An exception is a line of [`EXCEPTIONS`] with a reason. One that is not needed is a finding.
//!
//! It leaves to clippy what clippy does: function length, `unwrap`, missing SAFETY comments.

pub mod circles;
pub mod decisions;
pub mod finding;
pub mod floors;
pub mod language;
pub mod reach;
pub mod shape;
pub mod tree;
pub mod words;

use std::io;
use std::path::{Path, PathBuf};

pub use finding::{Finding, Rule};
use tree::Tree;

/// A file that may break one rule, and why.
pub struct Exception {
    pub path: &'static str,
    pub rule: Rule,
    pub reason: &'static str,
}

/// Every exception of the repository.
pub const EXCEPTIONS: &[Exception] = &[
    Exception {
        path: "crates/cli/src/commands/mount.rs",
        rule: Rule::Call,
        reason: "after an abort no thread is joined: any may be blocked on a device",
    },
    Exception {
        path: "crates/cli/src/commands/mount/signals.rs",
        rule: Rule::Call,
        reason: "the third signal ends the process, whatever its threads are blocked on",
    },
    Exception {
        path: "judges/tests/mount_calls.rs",
        rule: Rule::Language,
        reason: "its scripts call a function of Perl that has a retired name",
    },
];

/// The root of the repository that this crate was built from.
pub fn repository() -> PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.parent().unwrap_or(here).to_path_buf()
}

/// Checks every law in the repository at `root`, and returns the breaches.
pub fn tidy(root: &Path) -> io::Result<Vec<Finding>> {
    let tree = Tree::read(root)?;
    Ok(excepted(&findings(&tree), EXCEPTIONS))
}

/// Every finding, exceptions not yet applied.
pub fn findings(tree: &Tree) -> Vec<Finding> {
    let mut all = Vec::new();
    all.extend(floors::check(tree));
    all.extend(shape::check(tree));
    all.extend(words::check(tree));
    all.extend(language::check(tree));
    all.extend(reach::check(tree));
    all.extend(decisions::check(tree));
    all.extend(circles::check(tree));
    all.sort_by(|a, b| (&a.path, a.line).cmp(&(&b.path, b.line)));
    all
}

/// Takes excepted findings out, and adds one for each exception that nothing needed.
pub fn excepted(found: &[Finding], exceptions: &[Exception]) -> Vec<Finding> {
    let covers =
        |e: &Exception, f: &Finding| e.path == f.path && e.rule == f.rule && !e.reason.is_empty();
    let mut left: Vec<Finding> =
        found.iter().filter(|f| !exceptions.iter().any(|e| covers(e, f))).cloned().collect();
    for e in exceptions.iter().filter(|e| !found.iter().any(|f| covers(e, f))) {
        left.push(Finding {
            path: e.path.to_owned(),
            line: 1,
            rule: Rule::Exception,
            what: format!("exception from {:?} that is not needed or has no reason", e.rule),
            cure: "remove it from EXCEPTIONS in xtask/src/tidy.rs, or give its reason".to_owned(),
        });
    }
    left
}
