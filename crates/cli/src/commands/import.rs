//! `import`: copies a file or directory tree into the volume, with its metadata.
//!
//! 1. Nothing that exists is overwritten.
//! 2. If a file cannot be copied completely, the import fails, and the volume is unchanged. Changes
//!    are kept only if the library had to commit early, because 256 MiB of metadata were dirty.
//! 3. The same directory tree gives the same volume, whatever the number of threads.
//!
//! `scan` walks the source and queues reads, `entry` reads files, `apply` creates them in the
//! volume. `tar` reads an archive instead.

mod apply;
mod create;
pub(super) mod demand;
mod entry;
mod scan;
mod tar;

use butternut_sys::lock::Mutex;
use std::fs::File;
use std::num::NonZero;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::mpsc::{channel, sync_channel};
use std::thread;

use butternut::{DevicePath, Error, FileId, FileKind, Filesystem, Follow};
use rustix::fs::{Mode, OFlags, openat};

pub(super) use apply::Counts;
pub(super) use create::Rules;
pub(super) use entry::xattrs_of_handle;

use super::export::raise_open_files_limit;
use super::progress::Progress;
use super::transaction::{Transaction, failed};
use crate::args::{GlobalArgs, ImportArgs, ImportOptions};
use crate::failure::{Failure, Outcome};
use crate::output::size::{Units, pretty};
use crate::output::{Output, stderr_line, text};
use apply::{Apply, Top};
use demand::Demand;
use entry::ReadOptions;
use scan::{STEPS_MAX, Walker, work};

/// Size of a checksum of the default algorithm, in bytes.
const CSUM_BYTES: u64 = 4;

/// Maximum number of reader threads.
const THREADS_MAX: usize = 64;

/// The opened source.
enum Source {
    Directory {
        dir: File,
        path: Vec<u8>,
    },
    /// Any other file: its parent directory and its name.
    File {
        dir: File,
        path: Vec<u8>,
        name: Vec<u8>,
        is_file: bool,
    },
}

pub(crate) fn run(global: &GlobalArgs, args: &ImportArgs, out: &mut Output) -> Outcome {
    if args.tar {
        return tar::run(global, args, out);
    }
    let typed = args.src.as_os_str().as_encoded_bytes();
    let source = Source::open(&args.src, false)?;
    let mut transaction = Transaction::open(global, &args.volume)?;
    let dest = text::bytes(&args.dest);
    let (top, copy_path) = top_of(&transaction, &source, name_of(typed), &dest)?;
    let free_bytes = transaction
        .filesystem()
        .statfs()
        .map_or(0, |found| found.blocks_available.saturating_mul(found.block_bytes.into()));
    let volume_files = files_of(transaction.devices());
    let rules = Rules { no_owner: args.import_options.no_owner, epoch: None };
    let progress = Progress::new(global);
    let mut is_full = false;
    let copied = copy(
        (transaction.filesystem(), &mut is_full),
        source,
        (top, (typed.to_vec(), copy_path)),
        &args.import_options,
        rules,
        &progress,
        &volume_files,
    );
    progress.finish();
    let counts = match copied {
        Err(failure) if is_full => return Err(with_demand(failure, args, free_bytes)),
        copied => copied?,
    };
    transaction.record("made", &dest);
    if global.verbose && !global.json {
        stderr_line(&described(&dest, counts));
    }
    transaction.finish(global, out, |object| counts.put_into(object))
}

/// Adds how much space the source needs to the failure of an import into a full volume.
fn with_demand(failure: Failure, args: &ImportArgs, free_bytes: u64) -> Failure {
    let one_file_system = args.import_options.one_file_system;
    let Ok(demand) = Demand::of(&args.src, CSUM_BYTES, one_file_system) else { return failure };
    let needed = pretty(demand.device_bytes(1, 2), Units::Binary);
    let free = pretty(free_bytes, Units::Binary);
    failure.hint(format!(
        "the copy needs about {needed}, and {free} were free; remove files, or extend the volume \
         with `butternut filesystem resize`"
    ))
}

fn described(dest: &[u8], counts: Counts) -> String {
    format!(
        "{}: {}, {}, {}, {}",
        text::escaped(dest),
        text::counted(counts.files, "file", "files"),
        text::counted(counts.directories, "directory", "directories"),
        text::counted(counts.links, "link", "links"),
        pretty(counts.bytes, Units::Binary)
    )
}

/// Copies the contents and attributes of `dir` to the root of a volume.
pub(super) fn into_root(
    filesystem: &Filesystem,
    dir: &Path,
    import_options: &ImportOptions,
    rules: Rules,
    progress: &Progress,
    volume_files: &[(u64, u64)],
) -> Result<Counts, Failure> {
    let source = Source::open(dir, true)?;
    let tops = (dir.as_os_str().as_encoded_bytes().to_vec(), b"/".to_vec());
    let top = (Top::Itself(filesystem.root()), tops);
    let mut is_full = false;
    copy((filesystem, &mut is_full), source, top, import_options, rules, progress, volume_files)
}

/// Returns device and inode number of the image files of a volume.
pub(super) fn files_of(devices: &[DevicePath]) -> Vec<(u64, u64)> {
    let metas = devices.iter().filter_map(|device| std::fs::metadata(&device.path).ok());
    metas.filter(std::fs::Metadata::is_file).map(|meta| (meta.dev(), meta.ino())).collect()
}

/// Returns the last component of a source, or `None` if only its contents are to be copied.
fn name_of(typed: &[u8]) -> Option<&[u8]> {
    let name = super::transaction::split(typed).1;
    (!matches!(name, b"" | b"." | b"..")).then_some(name)
}

/// Determines the destination: a new name, or an existing directory itself. Also returns its path.
fn top_of(
    transaction: &Transaction,
    source: &Source,
    name: Option<&[u8]>,
    dest: &[u8],
) -> Result<(Top, Vec<u8>), Failure> {
    let there = match transaction.filesystem().resolve(dest, Follow::Last) {
        Ok(id) => Some(id),
        Err(Error::NotFound) => None,
        Err(error) => return Err(failed(dest, &error)),
    };
    let named = |dir: FileId, name: &[u8]| Top::Named { dir, name: name.to_vec() };
    match (there, name) {
        (Some(id), _) if transaction.stat(id, dest)?.kind != FileKind::Directory => {
            Err(failed(dest, &Error::Exists))
        }
        (Some(id), Some(name)) => Ok((named(id, name), text::joined(dest, name))),
        (Some(id), None) => Ok((Top::Itself(id), dest.to_vec())),
        (None, _) => {
            let location = transaction.locate(dest)?;
            if matches!(source, Source::File { .. }) {
                location.refuse_slash()?;
            }
            Ok((named(location.dir, &location.name), location.path))
        }
    }
}

impl Source {
    /// Opens the source. A symlink is followed only if a directory is expected.
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
            // What was looked at may have been replaced: by a symlink that is not followed, or by a
            // FIFO.
            let mut flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
            if !(is_directory || shown.ends_with(b"/")) {
                flags |= OFlags::NOFOLLOW;
            }
            let dir = openat(rustix::fs::CWD, path, flags, Mode::empty());
            let dir = File::from(dir.map_err(|error| failed(error.into()))?);
            return Ok(Self::Directory { dir, path: shown });
        }
        if is_directory {
            return Err(Failure::new(text::escaped(&shown), "not a directory")
                .hint("name the directory to copy"));
        }
        let (parent, name) = super::transaction::split(&shown);
        let flags = OFlags::DIRECTORY | OFlags::PATH | OFlags::CLOEXEC;
        let dir = openat(rustix::fs::CWD, parent, flags, Mode::empty());
        let dir = File::from(dir.map_err(|error| failed(error.into()))?);
        let (name, parent) = (name.to_vec(), parent.to_vec());
        Ok(Self::File { dir, path: parent, name, is_file: meta.is_file() })
    }
}

/// Copies: several threads read, one thread walks, and this thread creates everything. Sets
/// `is_full` if the volume has no space left. `top` has the paths of the source and of its copy.
fn copy(
    (filesystem, is_full): (&Filesystem, &mut bool),
    source: Source,
    top: (Top, (Vec<u8>, Vec<u8>)),
    import_options: &ImportOptions,
    rules: Rules,
    progress: &Progress,
    volume_files: &[(u64, u64)],
) -> Result<Counts, Failure> {
    raise_open_files_limit();
    let options = ReadOptions { xattrs: !import_options.no_xattrs };
    let cores = thread::available_parallelism().map_or(2, NonZero::get);
    let threads = import_options.threads.unwrap_or(cores).clamp(1, THREADS_MAX);
    let (jobs, waiting) = channel();
    let waiting = Mutex::new(waiting);
    let (steps, found) = sync_channel(STEPS_MAX);
    let one_file_system = import_options.one_file_system;
    let walker = Walker { steps, jobs: jobs.clone(), options, one_file_system };
    let mut apply = Apply::new(filesystem, rules, progress, jobs, top, volume_files);
    thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| work(&waiting, options));
        }
        scope.spawn(move || match source {
            Source::Directory { dir, path } => walker.directory(dir, Vec::new(), path),
            Source::File { dir, path, name, is_file } => walker.file(dir, path, name, is_file),
        });
        // The walker ends when the step channel is closed, the readers when the job channel is
        // closed.
        let run = apply.run(&found);
        drop(found);
        let counts = apply.counts;
        *is_full = apply.is_full.get();
        drop(apply);
        run.map(|()| counts)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_source_ending_in_a_dot_has_no_name() {
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
