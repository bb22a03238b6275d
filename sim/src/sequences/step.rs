//! [`Step`]: one operation on a path, or one sync; [`Sequence`]: an initial state and steps, which
//! can be printed and parsed.

use anyhow::{Context, Result, bail, ensure};
use std::fmt;
use std::str::FromStr;

/// A path of the small set of names.
pub type Path = &'static str;

/// The directories, which a sequence may also make, rename or remove.
pub const DIRECTORIES: [Path; 3] = ["A", "B", "A/C"];
/// The names of files and symbolic links.
pub const FILES: [Path; 7] = ["foo", "bar", "A/foo", "A/bar", "B/foo", "B/bar", "A/C/foo"];

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Verb {
    Create,
    /// Creates a file with some blocks of data.
    Write,
    /// Creates a file that is small enough to be inline.
    WriteSmall,
    Append,
    Overwrite,
    Shrink,
    Grow,
    Punch,
    /// Preallocates past the end, and keeps the size.
    Preallocate,
    Link,
    Rename,
    Exchange,
    Unlink,
    Mkdir,
    Rmdir,
    Symlink,
    SetXattr,
    RemoveXattr,
    Chmod,
    Fsync,
    Fdatasync,
    FsyncDirectory,
}

/// All verbs and their printed forms.
pub const VERBS: [(Verb, &str); 22] = [
    (Verb::Create, "create"),
    (Verb::Write, "write"),
    (Verb::WriteSmall, "write-small"),
    (Verb::Append, "append"),
    (Verb::Overwrite, "overwrite"),
    (Verb::Shrink, "shrink"),
    (Verb::Grow, "grow"),
    (Verb::Punch, "punch"),
    (Verb::Preallocate, "preallocate"),
    (Verb::Link, "link"),
    (Verb::Rename, "rename"),
    (Verb::Exchange, "exchange"),
    (Verb::Unlink, "unlink"),
    (Verb::Mkdir, "mkdir"),
    (Verb::Rmdir, "rmdir"),
    (Verb::Symlink, "symlink"),
    (Verb::SetXattr, "set-xattr"),
    (Verb::RemoveXattr, "remove-xattr"),
    (Verb::Chmod, "chmod"),
    (Verb::Fsync, "fsync"),
    (Verb::Fdatasync, "fdatasync"),
    (Verb::FsyncDirectory, "fsync-directory"),
];

/// One step of a sequence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Step {
    pub verb: Verb,
    pub path: Path,
    /// The second path of a link, a rename or an exchange.
    pub to: Option<Path>,
}

/// A committed state in which sequences begin: its name and the steps that make it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Initial {
    pub name: &'static str,
    pub steps: &'static str,
}

/// The initial states.
pub const INITIALS: [Initial; 3] = [
    Initial { name: "empty", steps: "" },
    Initial {
        name: "plain",
        steps: "mkdir A; mkdir B; write foo; set-xattr foo; write-small A/foo; write B/bar",
    },
    Initial {
        name: "linked",
        steps: "mkdir A; mkdir B; mkdir A/C; write A/foo; link A/foo A/bar; link A/foo B/foo; \
                write-small bar; symlink A/C/foo",
    },
];

/// An initial state and the steps from there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sequence {
    pub initial: Initial,
    pub steps: Vec<Step>,
}

impl Verb {
    pub fn has_two_paths(self) -> bool {
        matches!(self, Verb::Link | Verb::Rename | Verb::Exchange)
    }

    pub fn is_sync(self) -> bool {
        matches!(self, Verb::Fsync | Verb::Fdatasync | Verb::FsyncDirectory)
    }

    /// Whether it changes the data of a file.
    pub fn is_about_data(self) -> bool {
        use Verb::{Append, Grow, Overwrite, Preallocate, Punch, Shrink, Write, WriteSmall};
        matches!(
            self,
            Write | WriteSmall | Append | Overwrite | Shrink | Grow | Punch | Preallocate
        )
    }
}

impl Step {
    pub fn new(verb: Verb, path: Path) -> Self {
        Self { verb, path, to: None }
    }
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let word = VERBS.iter().find(|(verb, _)| *verb == self.verb).map_or("", |known| known.1);
        write!(f, "{word} {}", self.path)?;
        self.to.map_or(Ok(()), |to| write!(f, " {to}"))
    }
}

impl fmt::Display for Sequence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:", self.initial.name)?;
        for (at, step) in self.steps.iter().enumerate() {
            write!(f, "{} {step}", if at > 0 { ";" } else { "" })?;
        }
        Ok(())
    }
}

fn path_of(word: &str) -> Result<Path> {
    let all = DIRECTORIES.iter().chain(&FILES).chain(&["/"]);
    let known = all.copied().find(|path| *path == word);
    known.with_context(|| format!("{word}: no path of the set"))
}

impl FromStr for Step {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> Result<Self> {
        let words: Vec<&str> = text.split_whitespace().collect();
        let (word, paths) = words.split_first().context("an empty step")?;
        let verb = VERBS.iter().find(|(_, known)| known == word);
        let verb = verb.with_context(|| format!("{word}: no verb"))?.0;
        let (path, to) = match paths {
            [path] => (path_of(path)?, None),
            [path, to] => (path_of(path)?, Some(path_of(to)?)),
            _ => bail!("{text}: one or two paths are needed"),
        };
        ensure!(verb.has_two_paths() == to.is_some(), "{text}: the wrong number of paths");
        Ok(Self { verb, path, to })
    }
}

/// Parses steps that are separated by semicolons.
pub fn parse_steps(text: &str) -> Result<Vec<Step>> {
    text.split(';').filter(|step| !step.trim().is_empty()).map(str::parse).collect()
}

impl FromStr for Sequence {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> Result<Self> {
        let (name, steps) = text.split_once(':').context("no initial state before a colon")?;
        let initial = INITIALS.into_iter().find(|initial| initial.name == name.trim());
        let initial = initial.with_context(|| format!("{name}: no initial state"))?;
        Ok(Self { initial, steps: parse_steps(steps)? })
    }
}
