//! The error branches of the write path: which `?` have returned an error while the tests ran.
//!
//! The compiler counts how often each `?` returns: with `-C instrument-coverage` the operator is a
//! region of its own. `scripts/error-branches` builds and runs the tests, and calls this with the
//! export of `llvm-cov`.
//!
//! Laws:
//!
//! 1. Only operators of shipped code count: none in a test, a comment, a string, a bound (`?Sized`)
//!    or the body of a macro.
//! 2. An operator for which the compiler made no region is never counted as reached.
//! 3. Each operator that never returned has the group and the reason of the first rule of
//!    [`rules::Rule`] that matches it, or is open. A rule that matches none is an error.

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
    /// The line that it is in, trimmed.
    pub code: String,
    /// How often it has returned; `None` if the compiler made no region for it (law 2).
    pub returned: Option<u64>,
}

impl Branch {
    pub fn is_reached(&self) -> bool {
        self.returned.is_some_and(|returned| returned > 0)
    }
}

/// Where the page is kept.
pub fn kept(repository: &Path) -> PathBuf {
    repository.join("docs/error-branches.md")
}

/// Returns the page for an export of `llvm-cov`.
///
/// # Errors
/// A file cannot be read; the export or the rules have another form; a rule matches nothing.
pub fn page(repository: &Path, export: &Path) -> Result<String> {
    let branches = branches(repository, &Counts::read(export)?)?;
    let rules = fs::read_to_string(repository.join("xtask/error-branches.toml"))?;
    let rules = Rules::parse(&rules).context("xtask/error-branches.toml")?;
    page::write(&branches, &rules)
}

fn branches(repository: &Path, counts: &Counts) -> Result<Vec<Branch>> {
    let mut all = Vec::new();
    for name in CRATES {
        let mut files = Vec::new();
        collect(&repository.join("crates").join(name).join("src"), &mut files)?;
        files.sort();
        for file in files {
            let text = fs::read_to_string(&file)?;
            let path = file.strip_prefix(repository)?.to_string_lossy().into_owned();
            for operator in source::operators(&text) {
                let returned = counts.of(&file, operator.line, operator.column);
                let source::Operator { function, code, .. } = operator;
                all.push(Branch { path: path.clone(), function, code, returned });
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
