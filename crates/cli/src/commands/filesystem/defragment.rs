//! `filesystem defragment`: writes short extents of files again, as fewer and longer ones.
//!
//! 1. What is written again is decided by the library, or by the process of the mount. Here are the
//!    two places of files: a volume that is not mounted ([`volume`]), and paths of mounted volumes
//!    ([`mounted`]).
//! 2. The first argument decides which: a directory, or a file that holds no volume, is a path of a
//!    mounted volume, and so is one that does not exist below a directory of one.
//! 3. A file that cannot be defragmented is reported, and the run goes on; the exit status is 1
//!    then.

mod mounted;
mod volume;

use std::ffi::OsStr;
use std::io::Write;
use std::ops::Range;
use std::path::Path;

use butternut::{Compressor, Defragmented};

use super::super::dedupe::holds_volume;
use super::super::mounted::is_path;
use crate::args::{DefragmentArgs, GlobalArgs, parse_bytes};
use crate::failure::{Completion, Failure, Outcome};
use crate::output::json::Object;
use crate::output::size::{Units, pretty};
use crate::output::{Output, json, stderr_line, text};

/// What is wrong with an argument of another kind.
const NO_FILE: &str = "is neither a regular file nor a directory; symbolic links are not followed";

pub(crate) fn run(global: &GlobalArgs, args: &DefragmentArgs, out: &mut Output) -> Outcome {
    let start = parse_bytes("--start", &args.start)?;
    let len = args.len.as_deref().map(|len| parse_bytes("--len", len)).transpose()?;
    let request = Request {
        range: start..len.map_or(u64::MAX, |len| start.saturating_add(len)),
        threshold: parse_bytes("--threshold", &args.threshold)?,
        compressor: args.compress,
        breaks_sharing: args.break_sharing,
        is_recursive: args.recursive,
    };
    let run = Run { global, request, done: Done::default(), completion: Completion::Success };
    let Some((first, paths)) = args.paths.split_first() else {
        return Err(Failure::new("defragment", "no file is named"));
    };
    if is_mounted(first, paths.is_empty()) {
        mounted::run(run, &args.paths, out)
    } else if paths.is_empty() {
        crate::volume::check_devices(&crate::volume::parse_arg(std::slice::from_ref(first))?)?;
        let hint = "name files or directories in it: `filesystem defragment -r VOLUME /`";
        Err(Failure::usage(first.display().to_string(), "no path in the volume is named")
            .hint(hint))
    } else {
        volume::run(run, first, paths, out)
    }
}

/// Returns whether an argument is a path of a mounted volume (law 2).
pub(crate) fn is_mounted(argument: &OsStr, is_alone: bool) -> bool {
    let path = Path::new(argument);
    let is_missing = !path.exists() && is_path(argument, is_alone);
    is_missing || path.is_dir() || path.is_file() && !holds_volume(path)
}

/// What is to be done with each file.
struct Request {
    range: Range<u64>,
    threshold: u64,
    compressor: Option<Compressor>,
    breaks_sharing: bool,
    is_recursive: bool,
}

/// What was done.
#[derive(Default)]
struct Done {
    files: u64,
    sum: Defragmented,
    /// Some files are in a volume of the kernel, which does not tell what it has written.
    has_unknown: bool,
}

/// One run over all arguments.
struct Run<'a> {
    global: &'a GlobalArgs,
    request: Request,
    done: Done,
    completion: Completion,
}

impl Run<'_> {
    /// Reports a failure, and goes on (law 3).
    fn failed(&mut self, failure: &Failure) {
        stderr_line(&failure.to_string());
        self.completion = Completion::PartialFailure;
    }

    /// Reports a directory that was named without -r.
    fn failed_directory(&mut self, path: &[u8]) {
        let failure = Failure::new(text::escaped(path), "is a directory");
        self.failed(&failure.hint("-r defragments the files below it"));
    }

    /// Counts a file that was defragmented.
    fn count(&mut self, path: &[u8], done: &Defragmented) {
        self.done.files += 1;
        self.done.sum.add(done);
        if self.global.verbose {
            let Defragmented { extents_before, extents_after, rewritten_bytes, .. } = done;
            let mut line = format!(
                "{}: {} before, {extents_after} after, {} rewritten",
                text::escaped(path),
                text::counted(*extents_before, "extent", "extents"),
                text::counted(*rewritten_bytes, "byte", "bytes"),
            );
            for (bytes, what) in [
                (done.shared_bytes_left, "left alone because they are shared"),
                (done.unshared_bytes, "no longer shared"),
            ] {
                if bytes > 0 {
                    let bytes = text::counted(bytes, "byte", "bytes");
                    line.extend([", ", &bytes, " ", what]);
                }
            }
            stderr_line(&line);
        }
    }

    /// Prints the summary.
    fn finish(self, out: &mut Output) -> Outcome {
        let printed = if self.global.json {
            json::document(out, self.done.as_json()).map_err(Failure::from)
        } else if self.global.quiet {
            Ok(())
        } else {
            self.done.print(out)
        };
        self.completion.after(printed)
    }
}

impl Done {
    fn print(&self, out: &mut Output) -> Result<(), Failure> {
        let bytes = |bytes: u64| format!("{} ({bytes} bytes)", pretty(bytes, Units::Binary));
        let sum = &self.sum;
        writeln!(out, "files: {}", self.files)?;
        writeln!(out, "extents: {} before, {} after", sum.extents_before, sum.extents_after)?;
        if self.has_unknown {
            writeln!(out, "rewritten: unknown, the kernel does not tell")?;
            return Ok(());
        }
        writeln!(out, "rewritten: {}", bytes(sum.rewritten_bytes))?;
        if sum.shared_bytes_left > 0 {
            writeln!(out, "left alone because it is shared: {}", bytes(sum.shared_bytes_left))?;
        }
        if sum.unshared_bytes > 0 {
            writeln!(out, "no longer shared: {}", bytes(sum.unshared_bytes))?;
        }
        Ok(())
    }

    fn as_json(&self) -> Object {
        let known = |bytes: u64| (!self.has_unknown).then_some(bytes);
        let sum = &self.sum;
        Object::new()
            .put("files", self.files)
            .put("extents_before", sum.extents_before)
            .put("extents_after", sum.extents_after)
            .put("rewritten_bytes", known(sum.rewritten_bytes))
            .put("shared_bytes_left", known(sum.shared_bytes_left))
            .put("unshared_bytes", known(sum.unshared_bytes))
    }
}
