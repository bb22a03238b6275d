//! The repository as tidy sees it: every text file that is not built or hidden.

use std::fs;
use std::io;
use std::path::Path;

/// Folders that hold what is made, not what is written.
const SKIPPED: &[&str] = &["target", "artifacts", "corpus", "corpus-run", "node_modules"];
/// What tidy reads, by the end of the name.
const TEXT: &[&str] = &["rs", "toml", "md", "sh", "yml", "Makefile", "run", "py"];

/// One file: its path from the root, with `/` between the parts, and its text.
#[derive(Debug, Clone)]
pub struct Source {
    pub path: String,
    pub text: String,
}

impl Source {
    pub fn is_rust(&self) -> bool {
        extension(&self.path) == "rs"
    }

    pub fn is_manifest(&self) -> bool {
        self.path == "Cargo.toml" || self.path.ends_with("/Cargo.toml")
    }

    /// Whether the file is a test, a bench or a fuzz target, where calls are freer.
    pub fn is_test(&self) -> bool {
        self.path.contains("/tests/")
            || self.path.contains("/benches/")
            || self.path.ends_with("/tests.rs")
            || self.path.starts_with("judges/")
            || self.path.starts_with("fuzz/")
            || self.path.starts_with("xtask/")
    }

    /// The lines before the first `#[cfg(test)]`, numbered from 1.
    pub fn shipped_lines(&self) -> impl Iterator<Item = (usize, &str)> {
        let is_test = self.is_test();
        self.lines().take_while(move |(_, line)| !is_test && line.trim() != "#[cfg(test)]")
    }

    pub fn lines(&self) -> impl Iterator<Item = (usize, &str)> {
        self.text.lines().enumerate().map(|(at, line)| (at + 1, line))
    }
}

/// Every file that tidy judges.
#[derive(Debug, Clone, Default)]
pub struct Tree {
    pub sources: Vec<Source>,
}

impl Tree {
    /// Reads the repository at `root`.
    pub fn read(root: &Path) -> io::Result<Self> {
        let mut sources = Vec::new();
        collect(root, "", &mut sources)?;
        sources.sort_by(|a, b| a.path.cmp(&b.path));
        Ok(Self { sources })
    }

    /// A tree out of paths and texts, for tests of the laws themselves.
    pub fn of(files: &[(&str, &str)]) -> Self {
        let source =
            |(path, text): &(&str, &str)| Source { path: (*path).into(), text: (*text).into() };
        Self { sources: files.iter().map(source).collect() }
    }

    pub fn rust(&self) -> impl Iterator<Item = &Source> {
        self.sources.iter().filter(|source| source.is_rust())
    }

    pub fn find(&self, path: &str) -> Option<&Source> {
        self.sources.iter().find(|source| source.path == path)
    }
}

fn extension(path: &str) -> &str {
    let name = path.rsplit('/').next().unwrap_or(path);
    name.rsplit('.').next().unwrap_or(name)
}

fn collect(folder: &Path, prefix: &str, into: &mut Vec<Source>) -> io::Result<()> {
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        let Ok(name) = entry.file_name().into_string() else { continue };
        let hidden = name.starts_with('.') && name != ".ci";
        if hidden || SKIPPED.contains(&name.as_str()) {
            continue;
        }
        let path = format!("{prefix}{name}");
        if entry.file_type()?.is_dir() {
            collect(&entry.path(), &format!("{path}/"), into)?;
        } else if TEXT.contains(&extension(&path))
            && let Ok(text) = fs::read_to_string(entry.path())
        {
            into.push(Source { path, text });
        }
    }
    Ok(())
}
