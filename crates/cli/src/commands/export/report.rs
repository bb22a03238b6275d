//! What was copied, and what was not.
//!
//! Failures of one kind are said one by one up to a limit, then counted; what could not be kept is
//! counted by kind, with one example each.

use std::collections::BTreeMap;
use std::io;
use std::sync::{Mutex, MutexGuard, PoisonError};

use butternut::Error;
use serde_json::Value;

use super::super::walk::WalkPath;
use super::attributes::Keeping;
use crate::failure::{Done, Failure, Outcome, plain};
use crate::flags::GlobalArgs;
use crate::output::size::{Units, pretty};
use crate::output::{Output, json, say, text};

/// Failures that are said one by one.
const SAID_MAX: u64 = 50;

/// Things that a copy may not be able to keep.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Lost {
    Owner,
    Mode,
    Times,
    Link,
    Xattr(&'static str),
    Device,
}

impl Lost {
    fn name(self) -> String {
        match self {
            Self::Owner => "owners".to_owned(),
            Self::Mode => "modes".to_owned(),
            Self::Times => "times".to_owned(),
            Self::Link => "hard links (copied apart)".to_owned(),
            Self::Device => "devices".to_owned(),
            Self::Xattr("ACL") => "ACLs".to_owned(),
            Self::Xattr(names) => format!("{names} attributes"),
        }
    }
}

#[derive(Default)]
struct Counts {
    files: u64,
    directories: u64,
    links: u64,
    bytes: u64,
    failures: Vec<(Vec<u8>, String)>,
    failures_more: u64,
    /// Bytes that could not be read, and in which files.
    damaged_bytes: u64,
    damaged_last: Vec<u8>,
    lost: BTreeMap<Lost, (u64, Vec<u8>, String)>,
}

#[derive(Default)]
pub(super) struct Report {
    counts: Mutex<Counts>,
}

impl Report {
    fn counts(&self) -> MutexGuard<'_, Counts> {
        self.counts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn file(&self, bytes: u64) {
        let mut counts = self.counts();
        counts.files += 1;
        counts.bytes += bytes;
    }

    pub(super) fn directory(&self) {
        self.counts().directories += 1;
    }

    pub(super) fn link(&self) {
        self.counts().links += 1;
    }

    /// Something in the volume that cannot be read.
    pub(super) fn unreadable(&self, path: &WalkPath, error: &Error) {
        self.failed(path, &crate::failure::chain(error));
    }

    /// Something that the system refuses to make.
    pub(super) fn io(&self, path: &WalkPath, error: &io::Error) {
        let cures = [
            (io::ErrorKind::AlreadyExists, " (remove it, or choose another DEST)"),
            (io::ErrorKind::StorageFull, " (make room, or choose another DEST)"),
        ];
        let cure = cures.iter().find(|(kind, _)| *kind == error.kind()).map_or("", |(_, c)| *c);
        self.failed(path, &format!("{}{cure}", plain(error)));
    }

    pub(super) fn failed(&self, path: &WalkPath, why: &str) {
        let mut counts = self.counts();
        if counts.failures.len() as u64 >= SAID_MAX {
            counts.failures_more += 1;
        } else {
            counts.failures.push((path.bytes(), why.to_owned()));
        }
    }

    /// Bytes of a file that are left as a hole; said once per file.
    pub(super) fn damaged(&self, path: &WalkPath, offset: u64, bytes: u64, error: &Error) {
        let mut counts = self.counts();
        counts.damaged_bytes += bytes;
        let path_bytes = path.bytes();
        if counts.damaged_last != path_bytes {
            counts.damaged_last = path_bytes;
            drop(counts);
            let why = crate::failure::chain(error);
            self.failed(path, &format!("from byte {offset} on, left as a hole: {why}"));
        }
    }

    /// Something that the copy does not have.
    pub(super) fn lost(&self, what: Lost, path: &WalkPath, error: &io::Error) {
        let mut counts = self.counts();
        let first = || (0, path.bytes(), plain(error));
        counts.lost.entry(what).or_insert_with(first).0 += 1;
    }

    /// Something that lends rights and is not copied (law 4 of [`super`]). With `--no-owner` that
    /// was asked for.
    pub(super) fn left_out(&self, what: Lost, path: &WalkPath, keeping: Keeping) {
        if keeping.owners || keeping.owners_need_root {
            let why = if keeping.owners && what == Lost::Device {
                io::Error::other("--devices was not given")
            } else {
                rustix::io::Errno::PERM.into()
            };
            self.lost(what, path, &why);
        }
    }

    /// Says it all, and whether it is a success.
    pub(super) fn print(
        &self,
        global: &GlobalArgs,
        keeping: Keeping,
        dest: &str,
        out: &mut Output,
    ) -> Outcome {
        let counts = self.counts();
        for (path, why) in &counts.failures {
            say(&Failure::new(text::escaped(path), &**why).to_string());
        }
        if counts.failures_more > 0 {
            say(&format!("{dest}: {} more failures like these", counts.failures_more));
        }
        if counts.damaged_bytes > 0 {
            let bytes = pretty(counts.damaged_bytes, Units::Binary);
            say(&format!("{dest}: {bytes} could not be read and are holes in the copy"));
        }
        for (what, (count, example, why)) in &counts.lost {
            let failure = Failure::new(
                format!("{dest}: {} not kept, {count} in all", what.name()),
                format!("{}: {why}", text::escaped(example)),
            );
            say(&cure(*what, failure).to_string());
        }
        if keeping.owners_need_root && !global.quiet {
            say(&format!(
                "{dest}: note: everything belongs to you (run as root to keep owners, or say \
                 --no-owner)"
            ));
        }
        if global.json {
            json::document(out, as_json(&counts))?;
        } else if global.verbose {
            say(&format!(
                "{dest}: {} files, {} directories, {} links, {}",
                counts.files,
                counts.directories,
                counts.links,
                pretty(counts.bytes, Units::Binary)
            ));
        }
        let whole = counts.failures.is_empty() && counts.lost.is_empty();
        Ok(if whole { Done::Well } else { Done::WithFailures })
    }
}

fn cure(what: Lost, failure: Failure) -> Failure {
    match what {
        Lost::Xattr("user.*") => {
            failure.cure("the target may not take them; --no-xattrs leaves them")
        }
        Lost::Xattr(_) => {
            failure.cure("root may set them where the target takes them; --no-xattrs leaves them")
        }
        Lost::Owner => failure.cure("--no-owner leaves them"),
        Lost::Device => failure.cure("root may make them with --devices; --no-owner leaves them"),
        Lost::Mode | Lost::Times | Lost::Link => failure,
    }
}

fn as_json(counts: &Counts) -> json::Object {
    let failures = counts
        .failures
        .iter()
        .map(|(path, why)| Value::from(json::Object::new().name("path", path).put("why", &**why)));
    let lost = counts.lost.iter().map(|(what, (count, example, why))| {
        Value::from(
            json::Object::new()
                .put("what", what.name())
                .put("files", *count)
                .name("example", example)
                .put("why", &**why),
        )
    });
    json::Object::new()
        .put("files", counts.files)
        .put("directories", counts.directories)
        .put("links", counts.links)
        .put("bytes", counts.bytes)
        .put("unreadable_bytes", counts.damaged_bytes)
        .put("failures", failures.collect::<Vec<_>>())
        .put("failures_more", counts.failures_more)
        .put("not_kept", lost.collect::<Vec<_>>())
}
