//! The report of an export.
//!
//! The first [`REPORTED_MAX`] failures are reported one by one, the others are counted. Attributes
//! that could not be preserved are counted by kind, with one example each.

use butternut_sys::lock::{Mutex, MutexGuard, rank};
use std::collections::BTreeMap;
use std::io;

use butternut::Error;
use serde_json::Value;

use super::super::walk::WalkPath;
use super::preserve::Preserve;
use crate::args::GlobalArgs;
use crate::failure::{Completion, Failure, Outcome, io_text};
use crate::output::size::{Units, pretty};
use crate::output::{Output, json, stderr_line, text};

/// Maximum number of failures that are reported one by one.
const REPORTED_MAX: u64 = 50;

/// A kind of attribute or file that was not preserved.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum NotPreserved {
    Owner,
    Mode,
    Times,
    Link,
    Xattr(&'static str),
    Device,
    Socket,
}

impl NotPreserved {
    fn name(self) -> String {
        match self {
            Self::Owner => "owners".to_owned(),
            Self::Mode => "modes".to_owned(),
            Self::Times => "times".to_owned(),
            Self::Link => "hard links (copied apart)".to_owned(),
            Self::Device => "devices".to_owned(),
            Self::Socket => "sockets".to_owned(),
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
    /// Bytes that could not be read, and the path of the last such file.
    damaged_bytes: u64,
    damaged_last: Vec<u8>,
    lost: BTreeMap<NotPreserved, (u64, Vec<u8>, String)>,
}

#[derive(Default)]
pub(super) struct Report {
    counts: Mutex<Counts, rank::CommandReport>,
}

impl Report {
    fn counts(&self) -> MutexGuard<'_, Counts> {
        self.counts.lock()
    }

    pub(super) fn file(&self, bytes: u64) {
        let mut counts = self.counts();
        counts.files += 1;
        // Sizes of sparse files, whose sum can overflow.
        counts.bytes = counts.bytes.saturating_add(bytes);
    }

    pub(super) fn directory(&self) {
        self.counts().directories += 1;
    }

    pub(super) fn link(&self) {
        self.counts().links += 1;
    }

    /// Adds a failure to read from the volume.
    pub(super) fn unreadable(&self, path: &WalkPath, error: &Error) {
        self.failed(path, &crate::failure::chain(error));
    }

    /// Adds a failed system call on the copy.
    pub(super) fn io(&self, path: &WalkPath, error: &io::Error) {
        let hints = [
            (io::ErrorKind::AlreadyExists, " (remove it, or choose another DEST)"),
            (io::ErrorKind::StorageFull, " (free some space, or choose another DEST)"),
            (io::ErrorKind::PermissionDenied, " (choose a DEST that you can write to)"),
        ];
        let hint = hints.iter().find(|(kind, _)| *kind == error.kind()).map_or("", |(_, c)| *c);
        self.failed(path, &format!("{}{hint}", io_text(error)));
    }

    pub(super) fn failed(&self, path: &WalkPath, why: &str) {
        let mut counts = self.counts();
        if counts.failures.len() as u64 >= REPORTED_MAX {
            counts.failures_more += 1;
        } else {
            counts.failures.push((path.bytes(), why.to_owned()));
        }
    }

    /// Adds a range that became a hole; reported once per file.
    pub(super) fn damaged(&self, path: &WalkPath, offset: u64, bytes: u64, error: &Error) {
        let mut counts = self.counts();
        counts.damaged_bytes = counts.damaged_bytes.saturating_add(bytes);
        let path_bytes = path.bytes();
        if counts.damaged_last != path_bytes {
            counts.damaged_last = path_bytes;
            drop(counts);
            let why = crate::failure::chain(error);
            self.failed(path, &format!("from byte {offset} on, left as a hole: {why}"));
        }
    }

    /// Counts an attribute or file that was not preserved.
    pub(super) fn not_preserved(&self, what: NotPreserved, path: &WalkPath, error: &io::Error) {
        let mut counts = self.counts();
        let first = || (0, path.bytes(), io_text(error));
        counts.lost.entry(what).or_insert_with(first).0 += 1;
    }

    /// Counts an attribute or file that was skipped because it grants privileges (law 4 of
    /// [`super`]). With `--no-owner` the user has requested this, and it is not counted.
    pub(super) fn skipped(&self, what: NotPreserved, path: &WalkPath, preserve: Preserve) {
        if preserve.owners || preserve.owners_need_root {
            let why = if preserve.owners && what == NotPreserved::Device {
                io::Error::other("--devices was not given")
            } else {
                rustix::io::Errno::PERM.into()
            };
            self.not_preserved(what, path, &why);
        }
    }

    /// Prints the report, and returns the result of the command.
    pub(super) fn print(
        &self,
        global: &GlobalArgs,
        preserve: Preserve,
        dest: &str,
        out: &mut Output,
    ) -> Outcome {
        let counts = self.counts();
        for (path, why) in &counts.failures {
            stderr_line(&Failure::new(text::escaped(path), &**why).to_string());
        }
        if counts.failures_more > 0 {
            let more = text::counted(counts.failures_more, "more failure", "more failures");
            stderr_line(&format!("{dest}: {more}"));
        }
        if counts.damaged_bytes > 0 {
            let bytes = pretty(counts.damaged_bytes, Units::Binary);
            stderr_line(&format!("{dest}: {bytes} could not be read and are holes in the copy"));
        }
        for (what, (count, example, why)) in &counts.lost {
            let failure = Failure::new(
                format!("{dest}: {} not kept, {count} in all", what.name()),
                format!("{}: {why}", text::escaped(example)),
            );
            stderr_line(&hint(*what, failure).to_string());
        }
        if preserve.owners_need_root && !global.quiet {
            stderr_line(&format!(
                "{dest}: note: all files belong to you (run as root to preserve owners, or add \
                 --no-owner)"
            ));
        }
        let mut printed = Ok(());
        if global.json {
            printed = json::document(out, as_json(&counts));
        } else if global.verbose {
            stderr_line(&format!(
                "{dest}: {}, {}, {}, {}",
                text::counted(counts.files, "file", "files"),
                text::counted(counts.directories, "directory", "directories"),
                text::counted(counts.links, "link", "links"),
                pretty(counts.bytes, Units::Binary)
            ));
        }
        let whole = counts.failures.is_empty() && counts.lost.is_empty();
        let done = if whole { Completion::Success } else { Completion::PartialFailure };
        done.after(printed.map_err(Failure::from))
    }
}

fn hint(what: NotPreserved, failure: Failure) -> Failure {
    match what {
        NotPreserved::Xattr("user.*") => {
            failure.hint("the target filesystem may not support them; --no-xattrs skips them")
        }
        NotPreserved::Xattr(_) => failure
            .hint("run as root, on a target filesystem that supports them; --no-xattrs skips them"),
        NotPreserved::Owner => failure.hint("--no-owner skips them"),
        NotPreserved::Device => failure.hint("run as root with --devices; --no-owner skips them"),
        NotPreserved::Mode | NotPreserved::Times | NotPreserved::Link | NotPreserved::Socket => {
            failure
        }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_of_the_sizes_in_an_image_do_not_overflow() {
        let (report, path) = (Report::default(), WalkPath::new(b"file".to_vec()));
        for _ in 0..2 {
            report.file(u64::MAX - 1);
            report.damaged(&path, 0, u64::MAX - 1, &Error::EndOfFile);
        }
        let counts = report.counts();
        assert_eq!((counts.bytes, counts.damaged_bytes), (u64::MAX, u64::MAX));
    }
}
