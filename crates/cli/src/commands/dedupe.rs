//! `dedupe`: lets files with equal data share it.
//!
//! 1. The search, the order of files and the counting are in `butternut-dedupe`. Here are its two
//!    places: a volume that is not mounted ([`volume`]), and paths of mounted filesystems
//!    ([`live`]).
//! 2. The first argument decides which: a directory is a path of a mounted filesystem. So are
//!    regular files, if there are several and the first one holds no volume, and a name that does
//!    not exist below a directory of a mounted volume.
//! 3. A file that cannot be read is reported, and the run goes on; the exit status is 1 then.

mod index_file;
mod live;
mod volume;

use std::collections::HashSet;
use std::ffi::OsString;
use std::fs::File;
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::Path;

use butternut_dedupe::{
    BlockSize, Event, Facts, Identity, Place, Problem, Report, Search, Sharing, Skip,
};
use butternut_format::super_block::{COPY_OFFSETS, MAGIC};

use self::index_file::IndexFile;
use super::mounted::is_path;
use super::progress::Progress;
use crate::args::{DedupeArgs, GlobalArgs, parse_bytes};
use crate::failure::{Completion, Failure, Outcome};
use crate::output::json::Object;
use crate::output::size::{Units, pretty};
use crate::output::{Output, json, stderr_line, text};

pub(crate) fn run(global: &GlobalArgs, args: &DedupeArgs, out: &mut Output) -> Outcome {
    let block = parse_bytes("--block", &args.block)?;
    let block = BlockSize::new(block).ok_or_else(|| {
        let why = format!("{} is not a power of two from 4K to 16M", args.block);
        Failure::usage("--block", why)
    })?;
    let options = Options {
        global,
        block,
        bytes_min: parse_bytes("--min-size", &args.min_size)?,
        is_dry: args.dry_run,
        index: args.index.as_deref(),
    };
    if is_live(&args.paths) {
        live::run(&options, &args.paths, out)
    } else {
        let Some((volume, paths)) = args.paths.split_first() else {
            return Err(Failure::new("dedupe", "no volume is named"));
        };
        volume::run(&options, volume, paths, out)
    }
}

/// Returns whether the arguments are paths of mounted filesystems (law 2).
fn is_live(paths: &[OsString]) -> bool {
    let Some(first) = paths.first() else { return false };
    let is_missing = !Path::new(first).exists() && is_path(first, paths.len() == 1);
    if is_missing || Path::new(first).is_dir() {
        return true;
    }
    let are_files = paths.iter().all(|path| Path::new(path).is_file());
    are_files && paths.len() > 1 && !holds_volume(Path::new(first))
}

/// Returns whether a file begins as a volume does.
pub(super) fn holds_volume(path: &Path) -> bool {
    let mut magic = [0; 8];
    let read = |file: File| file.read_exact_at(&mut magic, COPY_OFFSETS[0] + MAGIC_AT);
    File::open(path).and_then(read).is_ok() && u64::from_le_bytes(magic) == MAGIC
}

/// Where the magic is in a superblock.
const MAGIC_AT: u64 = 64;

/// The options of one run.
struct Options<'a> {
    global: &'a GlobalArgs,
    block: BlockSize,
    bytes_min: u64,
    is_dry: bool,
    index: Option<&'a Path>,
}

impl Options<'_> {
    /// Whether a file is left out.
    fn is_small(&self, facts: &Facts) -> bool {
        facts.size < self.bytes_min || facts.size == 0
    }
}

/// What is wrong with an argument of another kind.
const NO_FILE: &str = "is neither a regular file nor a directory; symbolic links are not followed";

/// A name that can be shown.
trait Shown {
    fn path(&self) -> Vec<u8>;
}

/// One run: the files are added, and then deduplicated.
struct Run<'a, N> {
    options: &'a Options<'a>,
    search: Search<N>,
    index: Option<IndexFile>,
    progress: Progress,
    /// Files that have several names, or may be found below several arguments.
    known: HashSet<(u64, Identity)>,
    done: Completion,
}

impl<'a, N: Shown> Run<'a, N> {
    /// Begins a run, and reads the index.
    ///
    /// # Errors
    /// Fails if the index is refused.
    fn begin(options: &'a Options<'a>) -> Result<Self, Failure> {
        let read = options.index.map(|path| index_file::read(path, options.block)).transpose()?;
        let (earlier, index) =
            read.map_or_else(Default::default, |(earlier, index)| (earlier, Some(index)));
        Ok(Self {
            options,
            search: Search::new(options.block, earlier),
            index,
            progress: Progress::new(options.global),
            known: HashSet::new(),
            done: Completion::Success,
        })
    }

    /// Reports a failure, and goes on (law 3).
    fn failed(&mut self, failure: &Failure) {
        self.progress.hide_while(|| stderr_line(&failure.to_string()));
        self.done = Completion::PartialFailure;
    }

    /// Adds an open file. `may_recur`: it may be found again under another name.
    ///
    /// # Errors
    /// Fails if the run cannot go on.
    fn add<P>(
        &mut self,
        place: &P,
        file: &P::File,
        name: N,
        facts: Facts,
        may_recur: bool,
    ) -> Result<(), Failure>
    where
        P: Place<Name = N, Error = Failure>,
    {
        let mut is_known = || !self.known.insert((facts.filesystem, facts.identity));
        if self.options.is_small(&facts) || may_recur && is_known() {
            return Ok(());
        }
        self.progress.found(facts.size);
        let path = name.path();
        let added = self.search.add(place, file, name, facts).map_err(|error| {
            Failure::new(text::escaped(&path), error.to_string()).hint("choose a larger --block")
        })?;
        self.progress.done(facts.size);
        match added {
            Ok(()) => Ok(()),
            Err(Problem::Skip(skip)) => {
                self.skipped(&path, skip);
                Ok(())
            }
            Err(Problem::Failed(failure)) => {
                self.failed(&failure);
                Ok(())
            }
            Err(Problem::Ends(failure)) => Err(failure),
        }
    }

    /// Counts a file that could not be opened because it was changed.
    fn skip(&mut self, path: &[u8], skip: Skip) {
        self.search.skip(skip);
        self.skipped(path, skip);
    }

    fn skipped(&self, path: &[u8], skip: Skip) {
        if self.options.global.verbose {
            let line = format!("{}: skipped: {}", text::escaped(path), skip.reason());
            self.progress.hide_while(|| stderr_line(&line));
        }
    }

    /// Writes the index, and deduplicates what was added.
    ///
    /// # Errors
    /// Fails if the index cannot be written, before anything is changed. The report is also
    /// returned if the run ended early.
    fn share<P>(self, place: &P) -> Result<Done, Failure>
    where
        P: Place<Name = N, Error = Failure>,
    {
        let Self { options, search, index, progress, mut done, .. } = self;
        progress.finish();
        if let Some(index) = index {
            index.write(&search)?;
        }
        let is_verbose = options.global.verbose;
        let mut tell = |event: Event<'_, N, Failure>| match event {
            Event::Deduped { name, bytes } if is_verbose => {
                let path = name.path();
                stderr_line(&format!("{}: {bytes} bytes deduplicated", text::escaped(&path)));
            }
            Event::Skipped { name, skip } if is_verbose => {
                let path = name.path();
                stderr_line(&format!("{}: skipped: {}", text::escaped(&path), skip.reason()));
            }
            Event::Deduped { .. } | Event::Skipped { .. } => {}
            Event::Failed { error, .. } => {
                stderr_line(&error.to_string());
                done = Completion::PartialFailure;
            }
        };
        let (report, ended) = Sharing::new(place, search, options.is_dry).run(&mut tell);
        Ok(Done { report, ended, completion: done })
    }
}

/// What a run has done.
struct Done {
    report: Report,
    /// Why it ended early.
    ended: Result<(), Failure>,
    completion: Completion,
}

impl Done {
    /// Prints the summary.
    ///
    /// # Errors
    /// Returns the failure that ended the run early, after the summary.
    fn print(self, options: &Options<'_>, out: &mut Output) -> Outcome {
        let printed = if options.global.json {
            json::document(out, as_json(&self.report, options.is_dry)).map_err(Failure::from)
        } else if options.global.quiet {
            Ok(())
        } else {
            summary(&self.report, options.is_dry, out)
        };
        self.ended?;
        self.completion.after(printed)
    }
}

fn summary(report: &Report, is_dry: bool, out: &mut Output) -> Result<(), Failure> {
    let bytes = |bytes: u64| format!("{} ({bytes} bytes)", pretty(bytes, Units::Binary));
    writeln!(out, "files: {}, of which {} were read", report.files, report.files_read)?;
    writeln!(out, "hashed: {}", bytes(report.read_bytes))?;
    writeln!(out, "shared before: {}", bytes(report.shared_bytes))?;
    let what = if is_dry { "would be deduplicated" } else { "deduplicated" };
    writeln!(out, "{what}: {}", bytes(report.deduped_bytes))?;
    for (skip, count) in &report.skipped {
        writeln!(out, "files skipped: {count} {}", skip.reason())?;
    }
    Ok(())
}

fn as_json(report: &Report, is_dry: bool) -> Object {
    let skipped = report.skipped.iter();
    let skipped =
        skipped.fold(Object::new(), |object, (skip, count)| object.put(skip.word(), *count));
    Object::new()
        .put("dry_run", is_dry)
        .put("files", report.files)
        .put("files_read", report.files_read)
        .put("hashed_bytes", report.read_bytes)
        .put("shared_before_bytes", report.shared_bytes)
        .put("deduplicated_bytes", report.deduped_bytes)
        .put("skipped", skipped)
}
