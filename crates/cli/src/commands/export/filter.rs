//! Which files of a tree are exported.
//!
//! A pattern with a slash in it is matched with the path below PATH, one without with the name. An
//! excluded directory is left out with everything in it. `--include` and `--newer` leave out files,
//! and no directories.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use butternut::{FileKind, Stat};

use super::super::glob;
use super::super::walk::WalkPath;
use crate::args::ExportArgs;
use crate::failure::Failure;
use crate::output::{text, time};

/// The conditions for a file below PATH.
pub(super) struct Filter {
    include: Vec<Vec<u8>>,
    exclude: Vec<Vec<u8>>,
    /// In seconds and nanoseconds.
    newer: Option<(i64, u32)>,
}

impl Filter {
    pub(super) fn of(args: &ExportArgs) -> Result<Self, Failure> {
        let globs = |option, typed: &[std::ffi::OsString]| {
            typed.iter().map(|typed| pattern(option, typed)).collect::<Result<_, _>>()
        };
        Ok(Self {
            include: globs("--include", &args.include)?,
            exclude: globs("--exclude", &args.exclude)?,
            newer: args.newer.as_deref().map(newer).transpose()?,
        })
    }

    /// Whether a file or directory below PATH is left out by its name.
    pub(super) fn excludes(&self, path: &WalkPath) -> bool {
        is_any(&self.exclude, path)
    }

    /// Whether a file or directory below PATH is exported.
    pub(super) fn takes(&self, path: &WalkPath, stat: &Stat) -> bool {
        if self.excludes(path) {
            return false;
        }
        if stat.kind == FileKind::Directory {
            return true;
        }
        (self.include.is_empty() || is_any(&self.include, path))
            && self.newer.is_none_or(|time| (stat.mtime.secs, stat.mtime.nanos) > time)
    }
}

/// Returns a pattern, without the slashes at the end that mark a directory.
fn pattern(option: &str, typed: &std::ffi::OsString) -> Result<Vec<u8>, Failure> {
    let mut glob = text::bytes(typed);
    while glob.len() > 1 && glob.ends_with(b"/") {
        glob.pop();
    }
    if !glob::is_closed(&glob) {
        let why = format!("{:?}: no ] closes [", text::escaped(&glob));
        return Err(Failure::usage(option, why).hint("\\[ is a [ in the name"));
    }
    Ok(glob)
}

fn is_any(globs: &[Vec<u8>], path: &WalkPath) -> bool {
    globs.iter().any(|glob| {
        if glob.contains(&b'/') {
            glob::matches(glob.strip_prefix(b"/").unwrap_or(glob), &path.names().join(&b'/'))
        } else {
            glob::matches(glob, path.name())
        }
    })
}

/// Returns a time: that of modification of a file of this machine, or one that is typed.
fn newer(typed: &std::ffi::OsStr) -> Result<(i64, u32), Failure> {
    if let Ok(meta) = std::fs::metadata(typed) {
        let at = meta.modified().map_err(|error| Failure::io("--newer", &error))?;
        return Ok(parts(at));
    }
    let shown = typed.to_string_lossy();
    time::parse(&shown).ok_or_else(|| {
        Failure::usage("--newer", format!("{shown:?} is neither a file nor a time"))
            .hint("a time is 2026-11-21, \"2026-11-21 14:30\" or @SECONDS")
    })
}

fn parts(at: SystemTime) -> (i64, u32) {
    let secs = |since: Duration| i64::try_from(since.as_secs()).unwrap_or(i64::MAX);
    match at.duration_since(UNIX_EPOCH) {
        Ok(since) => (secs(since), since.subsec_nanos()),
        Err(before) => {
            let before = before.duration();
            let nanos = before.subsec_nanos();
            let whole = -secs(before);
            if nanos == 0 { (whole, 0) } else { (whole - 1, 1_000_000_000 - nanos) }
        }
    }
}
