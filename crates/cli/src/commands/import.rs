//! `import`: copies a file or tree into the volume, with everything that belongs to it.
//!
//! 1. Nothing that exists is overwritten.
//! 2. What cannot be copied whole makes the import fail, and nothing of it is there then.
//! 3. The same tree gives the same volume, however many threads read it.
//!
//! `scan` walks the source and has it read, `entry` reads, `apply` makes it in the volume.

mod apply;
mod entry;
mod scan;

use std::fs::File;
use std::num::NonZero;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Mutex;
use std::sync::mpsc::{channel, sync_channel};
use std::thread;

use butternut::{DevicePath, Error, FileId, FileKind, Filesystem, Follow};
use rustix::fs::{Mode, OFlags, openat};

pub(super) use apply::{Counts, Rules};

use super::change::{Change, failed};
use super::export::raise_open_files_limit;
use super::progress::Progress;
use crate::failure::{Failure, Outcome};
use crate::flags::{GlobalArgs, ImportArgs, ImportHow};
use crate::output::size::{Units, pretty};
use crate::output::{Output, say, text};
use apply::{Apply, Top};
use entry::Wanted;
use scan::{STEPS_MAX, Walker, work};

/// Readers, at most.
const THREADS_MAX: usize = 64;

/// What is to be copied, opened.
enum Source {
    Directory {
        dir: File,
        path: Vec<u8>,
    },
    /// Anything else: the directory that it is in, and its name there.
    File {
        dir: File,
        path: Vec<u8>,
        name: Vec<u8>,
        is_file: bool,
    },
}

pub(crate) fn run(global: &GlobalArgs, args: &ImportArgs, out: &mut Output) -> Outcome {
    let typed = args.src.as_os_str().as_encoded_bytes();
    let source = Source::open(&args.src, false)?;
    let mut change = Change::open(global, &args.volume)?;
    let dest = text::bytes(&args.dest);
    let top = top_of(&change, name_of(typed), &dest)?;
    let volume_files = files_of(change.devices());
    let rules = Rules { no_owner: args.how.no_owner, epoch: None };
    let progress = Progress::new(global);
    let copied = copy(change.filesystem(), source, top, &args.how, rules, &progress, &volume_files);
    progress.finish();
    let counts = copied?;
    change.did("made", &dest);
    if global.verbose && !global.json {
        say(&described(&dest, counts));
    }
    change.finish(global, out, |object| counts.put_into(object))
}

fn described(dest: &[u8], counts: Counts) -> String {
    format!(
        "{}: {} files, {} directories, {} links, {}",
        text::escaped(dest),
        counts.files,
        counts.directories,
        counts.links,
        pretty(counts.bytes, Units::Binary)
    )
}

/// Copies what is in `dir` into the root of a volume, which gets its attributes.
pub(super) fn into_root(
    filesystem: &Filesystem,
    dir: &Path,
    how: &ImportHow,
    rules: Rules,
    progress: &Progress,
    volume_files: &[(u64, u64)],
) -> Result<Counts, Failure> {
    let source = Source::open(dir, true)?;
    let top = Top::Itself(filesystem.root());
    copy(filesystem, source, top, how, rules, progress, volume_files)
}

/// Files that a volume lies in, by device and inode number.
pub(super) fn files_of(devices: &[DevicePath]) -> Vec<(u64, u64)> {
    let metas = devices.iter().filter_map(|device| std::fs::metadata(&device.path).ok());
    metas.filter(std::fs::Metadata::is_file).map(|meta| (meta.dev(), meta.ino())).collect()
}

/// The name that a source has of its own; none where only what is in it is meant.
fn name_of(typed: &[u8]) -> Option<&[u8]> {
    let name = super::change::split(typed).1;
    (!matches!(name, b"" | b"." | b"..")).then_some(name)
}

/// Where the top goes: under its name, under a new one, or into a directory itself.
fn top_of(change: &Change, name: Option<&[u8]>, dest: &[u8]) -> Result<Top, Failure> {
    let there = match change.filesystem().resolve(dest, Follow::Last) {
        Ok(id) => Some(id),
        Err(Error::NotFound) => None,
        Err(error) => return Err(failed(dest, &error)),
    };
    let named = |dir: FileId, name: &[u8]| Top::Named { dir, name: name.to_vec() };
    match (there, name) {
        (Some(id), _) if change.stat(id, dest)?.kind != FileKind::Directory => {
            Err(failed(dest, &Error::Exists))
        }
        (Some(id), Some(name)) => Ok(named(id, name)),
        (Some(id), None) => Ok(Top::Itself(id)),
        (None, _) => {
            let place = change.place(dest)?;
            Ok(named(place.dir, &place.name))
        }
    }
}

impl Source {
    /// Opens what is to be copied; a symlink is followed only where a directory is wanted.
    fn open(path: &Path, is_directory: bool) -> Result<Self, Failure> {
        let shown = path.as_os_str().as_encoded_bytes().to_vec();
        let failed = |error: std::io::Error| Failure::io(text::escaped(&shown), &error);
        let meta = if is_directory || shown.ends_with(b"/") {
            std::fs::metadata(path)
        } else {
            std::fs::symlink_metadata(path)
        };
        let meta = meta.map_err(failed)?;
        if meta.is_dir() {
            let dir = File::open(path).map_err(failed)?;
            return Ok(Self::Directory { dir, path: shown });
        }
        if is_directory {
            return Err(Failure::new(text::escaped(&shown), "not a directory")
                .cure("name the directory to copy"));
        }
        let (above, name) = super::change::split(&shown);
        let flags = OFlags::DIRECTORY | OFlags::PATH | OFlags::CLOEXEC;
        let dir = openat(rustix::fs::CWD, above, flags, Mode::empty());
        let dir = File::from(dir.map_err(|error| failed(error.into()))?);
        let (name, above) = (name.to_vec(), above.to_vec());
        Ok(Self::File { dir, path: above, name, is_file: meta.is_file() })
    }
}

/// Reads on many threads, walks on one, and makes everything on this one.
fn copy(
    filesystem: &Filesystem,
    source: Source,
    top: Top,
    how: &ImportHow,
    rules: Rules,
    progress: &Progress,
    volume_files: &[(u64, u64)],
) -> Result<Counts, Failure> {
    raise_open_files_limit();
    let wanted = Wanted { xattrs: !how.no_xattrs };
    let cores = thread::available_parallelism().map_or(2, NonZero::get);
    let threads = how.threads.unwrap_or(cores).clamp(1, THREADS_MAX);
    let (jobs, waiting) = channel();
    let waiting = Mutex::new(waiting);
    let (steps, found) = sync_channel(STEPS_MAX);
    let one_file_system = how.one_file_system;
    let walker = Walker { steps, jobs: jobs.clone(), wanted, one_file_system };
    let mut apply = Apply::new(filesystem, rules, progress, jobs, top, volume_files);
    thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| work(&waiting, wanted));
        }
        scope.spawn(move || match source {
            Source::Directory { dir, path } => walker.directory(dir, Vec::new(), path),
            Source::File { dir, path, name, is_file } => walker.file(dir, path, name, is_file),
        });
        // The walker stops where nobody listens, the readers where nobody hands out work.
        let run = apply.run(&found);
        drop(found);
        let counts = apply.counts;
        drop(apply);
        run.map(|()| counts)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_source_has_a_name_unless_only_what_is_in_it_is_meant() {
        for (typed, want) in [
            ("a/b", Some("b")),
            ("a/b/", Some("b")),
            ("a/b/.", None),
            (".", None),
            ("..", None),
            ("/", None),
        ] {
            let want = want.map(str::as_bytes);
            assert_eq!(name_of(typed.as_bytes()), want, "{typed}");
        }
    }
}
