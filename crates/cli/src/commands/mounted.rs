//! Subvolumes of a mounted volume, by the calls that a mount of this project and the kernel's btrfs
//! serve. The commands name their paths as any program does: `subvolume create MOUNT/PATH`.
//!
//! 1. An argument that is a directory, or does not exist below one in a mounted volume, is a path
//!    of that volume. Any other one names a volume that is not mounted, unless it is a file in a
//!    mounted volume and nothing names a path in it. An argument that begins with an existing file
//!    names a volume, too: `DIR/disk.img@5`.
//! 2. A command that reads files takes a directory as one of a mounted volume, and every other
//!    argument as a volume that is not mounted, also if it is in a mounted one. Without a path in a
//!    volume, a file in a mounted volume is one of its files, unless it is an image or a stream.
//! 3. Data that other programs have written is in a snapshot: it is synced first. If some is lost
//!    during the command, the snapshot stays, and the command fails.

pub(crate) mod delete;
pub(crate) mod directory;
pub(crate) mod files;
pub(crate) mod inode_names;
pub(crate) mod losses;
pub(crate) mod root_tree;

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};

use butternut::TOP_LEVEL;
use butternut::format::quota::QgroupId;
use butternut_fuse::is_own_type;
use butternut_sys::{mounts, subvolume_calls};
use rustix::fs::{CWD, Mode, OFlags};
use rustix::io::Errno;

use crate::args::GlobalArgs;
use crate::control::device_number;
use crate::failure::hints::QUOTA_REACHED;
use crate::failure::subvolumes::{not_a_subvolume, received};
use crate::failure::{Completion, Failure, Outcome, USAGE_STATUS};
use crate::output::json::Object;
use crate::output::{Output, json, stderr_line, text};
use crate::volume::{arg, contents};
use losses::LossWatch;

const KERNEL_TYPE: &str = "btrfs";

/// The error of the library.
const TOP_LEVEL_READ_ONLY: &str = "the top level cannot be read-only";

/// Returns whether an argument is a path in a mounted volume (law 1). `is_alone`: no path in it is
/// named.
pub(crate) fn is_path(argument: &OsStr, is_alone: bool) -> bool {
    let path = Path::new(argument);
    match path.metadata() {
        Ok(found) if found.is_dir() => true,
        Ok(_) => is_alone && is_in_mount(&parent(path)),
        Err(_) if arg::begins_with_device(argument) => false,
        // With paths behind it, it is the misspelt name of an image.
        Err(_) if !is_alone && !argument.as_bytes().contains(&b'/') => false,
        Err(_) => {
            let mut above = path.ancestors().skip(1).map(|path| path.join("."));
            above.find(|path| path.is_dir()).is_some_and(|path| is_in_mount(&path))
        }
    }
}

/// Returns whether an argument of a command that reads subvolumes is a path in a mounted volume. A
/// file names a volume that is not mounted, also if it is in a mounted one.
pub(crate) fn is_directory(argument: &OsStr) -> bool {
    Path::new(argument).is_dir()
}

/// Returns whether an argument names a file in a mounted volume that is no volume itself (law 2).
pub(crate) fn is_plain_file(argument: &OsStr) -> bool {
    let path = Path::new(argument);
    let Ok(found) = path.symlink_metadata() else { return false };
    let is_block_device = path.metadata().is_ok_and(|found| found.file_type().is_block_device());
    let is_one = !found.is_dir() && !is_block_device && is_in_mount(&parent(path));
    is_one && !contents::is_volume(path)
}

fn is_in_mount(path: &Path) -> bool {
    let Ok(device) = device_number(path) else { return false };
    // The call below also finds the mount if the table cannot be read.
    let mounts = mounts::read_own_of_device(device).unwrap_or_default();
    let is_volume = |kind: &str| is_own_type(kind) || kind == KERNEL_TYPE;
    // The kernel's btrfs gives each subvolume a device number of its own.
    let is_known = mounts.iter().any(|mount| is_volume(&mount.kind));
    is_known || subvolume_calls::info(open(path).as_ref().map_or(CWD, AsFd::as_fd)).is_ok()
}

fn parent(path: &Path) -> PathBuf {
    match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent.to_path_buf(),
        _ => PathBuf::from("."),
    }
}

/// What a command has done, reported at its end also if it fails midway.
pub(crate) struct Changes<'a> {
    global: &'a GlobalArgs,
    done: Vec<(&'static str, Vec<u8>)>,
}

impl<'a> Changes<'a> {
    pub(crate) fn new(global: &'a GlobalArgs) -> Self {
        Self { global, done: Vec::new() }
    }

    fn record(&mut self, what: &'static str, path: &Path) {
        if self.global.verbose {
            stderr_line(&format!("{}: {what}", text::escaped(path.as_os_str().as_bytes())));
        }
        self.done.push((what, path.as_os_str().as_bytes().to_vec()));
    }

    /// As [`Self::finish`], for a command that may have failed midway: what it has done before is
    /// reported, and the failure returned.
    fn finish_after(self, done: Result<(), Failure>, out: &mut Output) -> Outcome {
        let Err(failure) = done else { return self.finish(out) };
        if !self.done.is_empty() {
            // The first failure is the one to return.
            drop(self.finish(out));
        }
        Err(failure)
    }

    fn finish(self, out: &mut Output) -> Outcome {
        if self.global.json {
            let object = |(what, path): &(&str, Vec<u8>)| {
                serde_json::Value::from(Object::new().put("did", *what).name("path", path))
            };
            let changes: Vec<_> = self.done.iter().map(object).collect();
            json::document(out, Object::new().put("changes", changes))?;
        }
        Ok(Completion::Success)
    }
}

/// Creates empty subvolumes, in these quota groups.
pub(crate) fn create(
    global: &GlobalArgs,
    paths: &[&OsString],
    qgroups: &[QgroupId],
    out: &mut Output,
) -> Outcome {
    let qgroups: Vec<u64> = qgroups.iter().map(|id| id.0).collect();
    let mut changes = Changes::new(global);
    let done = paths.iter().map(Path::new).try_for_each(|path| {
        let (dir, name) = entry(path)?;
        subvolume_calls::create_in_qgroups(dir.as_fd(), name, &qgroups)
            .map_err(|error| not_made(path, &error, false, &qgroups))?;
        changes.record("created", path);
        Ok(())
    });
    changes.finish_after(done, out)
}

/// Creates a snapshot of a subvolume at a path, or in an existing directory.
pub(crate) fn snapshot(
    global: &GlobalArgs,
    (source, destination): (&OsStr, &OsStr),
    (read_only, recursive): (bool, bool),
    qgroups: &[QgroupId],
    out: &mut Output,
) -> Outcome {
    let qgroups: Vec<u64> = qgroups.iter().map(|id| id.0).collect();
    let source_path = Path::new(source);
    let from = open(source_path).map_err(|error| failed(source_path, &error))?;
    // The call below also fails for what the destination is.
    subvolume_calls::is_read_only(from.as_fd()).map_err(|error| not_a_root(source_path, &error))?;
    let mut path = PathBuf::from(destination);
    if path.is_dir() {
        let name = source_path.file_name().ok_or_else(|| {
            Failure::new(text::escaped(destination.as_bytes()), "the directory exists")
                .hint("name the snapshot: the source has no name of its own")
        })?;
        path.push(name);
    }
    let (dir, name) = entry(&path)?;
    let losses =
        if recursive { LossWatch::begin(&from) } else { LossWatch::begin_in_subvolume(&from) };
    rustix::fs::syncfs(&from).map_err(|error| failed(source_path, &error.into()))?;
    let flags = [(read_only, subvolume_calls::READ_ONLY), (recursive, subvolume_calls::RECURSIVE)];
    let flags = flags.iter().filter(|(set, _)| *set).fold(0, |flags, (_, flag)| flags | flag);
    subvolume_calls::snapshot_in_qgroups(dir.as_fd(), name, &from, flags, &qgroups).map_err(
        |error| match Errno::from_io_error(&error) {
            // A directory that the user may not write to is another error.
            Some(Errno::PERM) => failed(source_path, &error)
                .hint("only root and the owner of a subvolume make snapshots of it"),
            _ => not_made(&path, &error, recursive, &qgroups),
        },
    )?;
    let mut changes = Changes::new(global);
    changes.record("created", &path);
    let kept = losses.check(&from).map_err(|error| {
        failed(source_path, &error).hint("the snapshot was made, and may not have them")
    });
    changes.finish_after(kept, out)
}

/// Sets the default subvolume: that of a path, or the one with an id.
pub(crate) fn set_default(
    global: &GlobalArgs,
    path: &OsStr,
    named_id: Option<u64>,
    out: &mut Output,
) -> Outcome {
    let path = Path::new(path);
    let dir = open(path).map_err(|error| failed(path, &error))?;
    let id = if let Some(id) = named_id {
        id
    } else {
        // The call below returns the subvolume that contains any directory.
        subvolume_calls::is_read_only(dir.as_fd()).map_err(|error| not_a_root(path, &error))?;
        subvolume_calls::info(dir.as_fd()).map_err(|error| failed(path, &error))?.id
    };
    subvolume_calls::set_default(dir.as_fd(), id).map_err(|error| {
        let is_missing = Errno::from_io_error(&error) == Some(Errno::NOENT);
        match named_id.filter(|_| is_missing) {
            Some(id) => no_subvolume(path, id),
            None => failed(path, &error),
        }
    })?;
    let mut changes = Changes::new(global);
    changes.record("made the default", path);
    changes.finish(out)
}

/// Waits until the space of deleted subvolumes is freed: of those with an id, or of all that are
/// deleted.
pub(crate) fn wait_until_cleaned(
    global: &GlobalArgs,
    path: &OsStr,
    ids: &[u64],
    out: &mut Output,
) -> Outcome {
    let path = Path::new(path);
    let dir = open(path).map_err(|error| failed(path, &error))?;
    let mut changes = Changes::new(global);
    if ids.is_empty() {
        wait_for(&dir, None).map_err(|error| not_cleaned(path, &error))?;
        changes.record("freed", path);
    }
    for id in ids {
        let name = PathBuf::from(id.to_string());
        wait_for(&dir, Some(*id)).map_err(|error| not_cleaned(&name, &error))?;
        changes.record("freed", &name);
    }
    changes.finish(out)
}

fn wait_for(dir: &File, id: Option<u64>) -> io::Result<()> {
    match subvolume_calls::wait_until_cleaned(dir.as_fd(), id) {
        // There is nothing to wait for any more.
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        waited => waited,
    }
}

fn not_cleaned(path: &Path, error: &io::Error) -> Failure {
    let failure = failed(path, error);
    match Errno::from_io_error(error) {
        Some(Errno::EXIST) => failure.hint("the subvolume is not deleted"),
        Some(Errno::NOTTY) => failure.hint("the kernel's btrfs has this call since Linux 6.13"),
        _ => failure,
    }
}

/// Returns whether the subvolume at a path is read-only.
pub(crate) fn is_read_only(path: &OsStr) -> Result<bool, Failure> {
    let path = Path::new(path);
    let root = open(path).map_err(|error| failed(path, &error))?;
    subvolume_calls::is_read_only(root.as_fd()).map_err(|error| not_a_root(path, &error))
}

/// Makes the subvolume at a path read-only, or writable.
pub(crate) fn set_read_only(
    global: &GlobalArgs,
    path: &OsStr,
    read_only: bool,
    force: bool,
    out: &mut Output,
) -> Outcome {
    let path = Path::new(path);
    let root = open(path).map_err(|error| failed(path, &error))?;
    // The call below returns the subvolume that contains any directory.
    subvolume_calls::is_read_only(root.as_fd()).map_err(|error| not_a_root(path, &error))?;
    let info = subvolume_calls::info(root.as_fd()).map_err(|error| failed(path, &error))?;
    if !read_only && !force && info.is_received {
        return Err(received(path.as_os_str().as_bytes()));
    }
    rustix::fs::syncfs(&root).map_err(|error| failed(path, &error.into()))?;
    subvolume_calls::set_read_only(root.as_fd(), read_only).map_err(|error| {
        let failure = not_a_root(path, &error);
        match Errno::from_io_error(&error) {
            Some(Errno::INVAL) if info.id == TOP_LEVEL => {
                Failure::new(text::escaped(path.as_os_str().as_bytes()), TOP_LEVEL_READ_ONLY)
            }
            Some(Errno::PERM) => failure.hint(
                "only root and its owner change it, and nothing does while a send or a receive \
                reads it",
            ),
            Some(Errno::BUSY) => failure
                .hint("a file in it is open for writing, or a receive makes subvolumes in it"),
            _ => failure,
        }
    })?;
    let mut changes = Changes::new(global);
    changes.record("changed", path);
    changes.finish(out)
}

fn open(path: &Path) -> io::Result<File> {
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::DIRECTORY;
    Ok(File::from(rustix::fs::open(path, flags, Mode::empty())?))
}

/// Opens the parent directory of an entry, and returns the name.
fn entry(path: &Path) -> Result<(File, &[u8]), Failure> {
    let name = entry_name(path)?;
    let above = parent(path);
    let dir = open(&above).map_err(|error| failed(&above, &error))?;
    Ok((dir, name.as_bytes()))
}

/// Returns the last name of a path.
fn entry_name(path: &Path) -> Result<&OsStr, Failure> {
    path.file_name().ok_or_else(|| {
        Failure::new(text::escaped(path.as_os_str().as_bytes()), "does not name a directory entry")
            .hint("name a file or directory, without . or .. at the end")
    })
}

fn not_made(path: &Path, error: &io::Error, recursive: bool, qgroups: &[u64]) -> Failure {
    let failure = failed(path, error);
    match Errno::from_io_error(error) {
        Some(Errno::OPNOTSUPP) if recursive => {
            failure.hint("the kernel's btrfs makes no recursive snapshots")
        }
        Some(Errno::NOENT | Errno::INVAL) if !qgroups.is_empty() => {
            failure.hint("the quota groups of -i must exist, at a level above 0: `qgroup show`")
        }
        _ => failure,
    }
}

/// Describes a call that only the root directory of a subvolume has.
fn not_a_root(path: &Path, error: &io::Error) -> Failure {
    match Errno::from_io_error(error) {
        Some(Errno::INVAL) => not_a_subvolume(path.as_os_str().as_bytes()),
        _ => failed(path, error),
    }
}

/// Describes the id of a subvolume that a volume does not have.
fn no_subvolume(path: &Path, id: u64) -> Failure {
    Failure::new(text::escaped(path.as_os_str().as_bytes()), format!("no subvolume {id}"))
        .hint("`butternut subvolume list` shows what there is")
}

/// Describes a failed call on a path in a mounted volume.
pub(crate) fn failed(path: &Path, error: &io::Error) -> Failure {
    let shown = text::escaped(path.as_os_str().as_bytes());
    let failure = Failure::io(shown.clone(), error);
    match Errno::from_io_error(error) {
        Some(Errno::NOTTY) => Failure::new(shown, "is in no mounted btrfs volume"),
        Some(Errno::DQUOT) => failure.hint(QUOTA_REACHED),
        Some(Errno::XDEV) => failure.hint("source and destination are in two volumes"),
        _ => failure,
    }
}

/// Reports the usage error of a command that was given a directory of a mounted volume, and paths
/// in it, apart. Returns `None` if the argument is no directory in a mounted volume.
pub(crate) fn with_path_apart(directory: &OsStr, paths: &[&OsString]) -> Option<Completion> {
    let directory = Path::new(directory);
    if !directory.is_dir() || !is_in_mount(directory) {
        return None;
    }
    let whole = paths.iter().map(|path| {
        let path = path.as_bytes();
        let start = path.iter().position(|byte| *byte != b'/').unwrap_or(path.len());
        text::escaped(&text::joined(directory.as_os_str().as_bytes(), &path[start..]))
    });
    let whole: Vec<_> = whole.collect();
    let whole = whole.join(" ");
    Some(usage(&format!("in a mounted volume, each path is one argument: {whole}")))
}

/// Reports a usage error that depends on what the arguments are.
pub(crate) fn usage(why: &str) -> Completion {
    stderr_line(&format!("usage: {why} (--help shows both forms of the command)"));
    Completion::Status(USAGE_STATUS)
}
