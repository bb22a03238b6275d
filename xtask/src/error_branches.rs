//! The error branches of the write path: which `?` have returned an error while the tests ran.
//!
//! The compiler counts how often each `?` returns: with `-C instrument-coverage` the operator is a
//! region of its own. `scripts/error-branches` builds and runs the tests, and calls this with two
//! exports of `llvm-cov`: of the tests that inject failures, and of all tests.
//!
//! Laws:
//!
//! 1. Only operators of shipped code count: none in a test, a comment, a string, a bound (`?Sized`)
//!    or the body of a macro.
//! 2. An operator for which the compiler made no region is never counted as reached.
//! 3. Each operator that never returned has the group and the reason of the first rule of
//!    [`rules::Rule`] that matches it, or is left. A rule that matches no operator at all is an
//!    error.

pub mod export;
pub mod page;
pub mod rules;
pub mod source;

use anyhow::{Context, Result};
use export::Counts;
use rules::Rules;
use std::fs;
use std::path::{Path, PathBuf};

/// The crates of the write path, from below.
pub const CRATES: [&str; 6] = ["volume", "space", "tree", "file", "names", "fs"];

/// One `?` of shipped code.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Branch {
    /// The path of its file from the root of the repository.
    pub path: String,
    pub function: String,
    /// The line that it is in, as of [`source::Operator`].
    pub code: String,
    /// What it is applied to.
    pub operand: String,
    pub reached: Reached,
}

/// Which tests have made an operator return an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reached {
    /// A test that injects failures.
    Injected,
    /// Only tests that inject none.
    Otherwise,
    Never,
    /// The compiler made no region for it (law 2).
    Uncounted,
}

impl Reached {
    fn new(injected: Option<u64>, all: Option<u64>) -> Self {
        match (injected, all) {
            (Some(1..), _) => Self::Injected,
            (_, Some(1..)) => Self::Otherwise,
            (None, None) => Self::Uncounted,
            _ => Self::Never,
        }
    }

    pub fn is_never(self) -> bool {
        matches!(self, Self::Never | Self::Uncounted)
    }
}

/// The exports of `llvm-cov`.
struct Exports {
    injected: Counts,
    all: Counts,
}

/// Where the page is kept.
pub fn kept(repository: &Path) -> PathBuf {
    repository.join("docs/error-branches.md")
}

/// Returns the page for an export of `llvm-cov` of the tests that inject failures, and one of all
/// tests; `sources` says which sources were built.
///
/// # Errors
/// A file cannot be read; an export or the rules have another form; a rule matches nothing.
pub fn page(repository: &Path, injected: &Path, all: &Path, sources: &str) -> Result<String> {
    let exports = Exports { injected: Counts::read(injected)?, all: Counts::read(all)? };
    let branches = branches(repository, Some(&exports))?;
    page::write(&branches, &rules(repository)?, sources)
}

/// Fails if a rule matches no operator of the sources.
///
/// # Errors
/// A file cannot be read; the rules have another form; a rule matches nothing.
pub fn check_rules(repository: &Path) -> Result<()> {
    rules(repository)?.check_used(&branches(repository, None)?)
}

fn rules(repository: &Path) -> Result<Rules> {
    let rules = fs::read_to_string(repository.join("xtask/error-branches.toml"))?;
    Rules::parse(&rules).context("xtask/error-branches.toml")
}

fn branches(repository: &Path, exports: Option<&Exports>) -> Result<Vec<Branch>> {
    let mut all = Vec::new();
    for name in CRATES {
        let mut files = Vec::new();
        collect(&repository.join("crates").join(name).join("src"), &mut files)?;
        files.sort();
        for file in files {
            let text = fs::read_to_string(&file)?;
            let path = file.strip_prefix(repository)?.to_string_lossy().into_owned();
            for operator in source::operators(&text) {
                let source::Operator { line, column, function, code, operand } = operator;
                let count = |counts: &Counts| counts.of(&file, line, column);
                let reached = exports.map_or(Reached::Uncounted, |exports| {
                    Reached::new(count(&exports.injected), count(&exports.all))
                });
                all.push(Branch { path: path.clone(), function, code, operand, reached });
            }
        }
    }
    Ok(all)
}

fn collect(folder: &Path, into: &mut Vec<PathBuf>) -> Result<()> {
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        let is_test = path.file_stem().is_some_and(|stem| {
            let stem = stem.to_string_lossy();
            stem == "tests" || stem.ends_with("_tests") || stem.starts_with("test_")
        });
        if is_test {
            continue;
        }
        if path.is_dir() {
            collect(&path, into)?;
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            into.push(path);
        }
    }
    Ok(())
}
