//! The worker threads of an export, which create files and copy data.
//!
//! 1. Only data is written: what [`source`](super::source) leaves out becomes a hole.
//! 2. The attributes of a file are set when its last range is copied.

use butternut_sys::lock::{Mutex, rank};
use std::fs::File as HostFile;
use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::sync::mpsc::Receiver;

use butternut::{File, FileKind, Stat};
use rustix::fs::{FileType, Mode, OFlags, ftruncate, makedev, mknodat, openat, symlinkat};

use super::super::walk::WalkPath;
use super::attributes;
use super::directory::OutputDirectory;
use super::shared::Export;
use super::source::{READ_BYTES, Sink, Source};

/// Files larger than this are split into ranges, which several workers copy.
pub(super) const RANGE_BYTES: u64 = 64 << 20;
/// Maximum number of ranges of a file: a sparse file can have any size.
const RANGES_MAX: u64 = 1024;

/// A job of a worker.
pub(super) enum Job {
    Create(NewFile),
    CopyRange(Arc<CopyTarget>, Range<u64>),
}

/// A file to be created.
pub(super) struct NewFile {
    pub(super) directory: Arc<OutputDirectory>,
    pub(super) name: Vec<u8>,
    pub(super) path: WalkPath,
    pub(super) stat: Stat,
}

/// A regular file that is being written.
pub(super) struct CopyTarget {
    export: Arc<Export>,
    new: NewFile,
    from: File,
    to: HostFile,
}

/// Runs jobs until the walk has ended and the queue is empty.
pub(super) fn work(export: &Arc<Export>, jobs: &Mutex<Receiver<Job>, rank::CommandJobs>) {
    let mut buffer = vec![0; READ_BYTES];
    loop {
        let job = jobs.lock().recv();
        match job {
            Ok(Job::Create(new)) => {
                if let (Some(target), _) = CopyTarget::make(export, new) {
                    target.copy(0..target.from.len(), &mut buffer);
                }
            }
            Ok(Job::CopyRange(target, range)) => target.copy(range, &mut buffer),
            Err(_) => return,
        }
    }
}

impl CopyTarget {
    /// Creates the file. Returns the target of the data, if it is a regular file, and a descriptor
    /// for hard links. Errors have been reported.
    pub(super) fn make(export: &Arc<Export>, new: NewFile) -> (Option<Arc<Self>>, Option<OwnedFd>) {
        if new.stat.kind == FileKind::File {
            let target = Self::make_file(export, new);
            let made =
                target.as_ref().and_then(|target| target.to.as_fd().try_clone_to_owned().ok());
            return (target, made);
        }
        export.progress.done(new.stat.size);
        match make_special(export, &new) {
            Ok(made) => {
                export.report.file(0);
                (None, made)
            }
            Err(error) => {
                export.report.io(&new.path, &error);
                (None, None)
            }
        }
    }

    fn make_file(export: &Arc<Export>, new: NewFile) -> Option<Arc<Self>> {
        let from = export.filesystem.open_file(new.stat.id);
        let from = from.map_err(|error| export.report.unreadable(&new.path, &error)).ok()?;
        let flags =
            OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let to = openat(&new.directory, new.name.as_slice(), flags, Mode::RUSR | Mode::WUSR)
            .and_then(|fd| ftruncate(&fd, new.stat.size).map(|()| HostFile::from(fd)))
            .map_err(io::Error::from)
            .and_then(|to| new.directory.inherit_nothing(&to).map(|()| to));
        match to {
            Ok(to) => {
                export.report.file(new.stat.size);
                Some(Arc::new(Self { export: Arc::clone(export), new, from, to }))
            }
            Err(error) => {
                export.report.io(&new.path, &error);
                None
            }
        }
    }

    /// Returns the ranges of the file, at least one.
    pub(super) fn ranges(&self) -> Vec<Range<u64>> {
        ranges(self.from.len())
    }

    fn copy(&self, range: Range<u64>, buffer: &mut [u8]) {
        let bytes = range.end - range.start;
        if let Err(error) = self.copy_data(range, buffer) {
            self.export.report.io(&self.new.path, &error);
        }
        self.export.progress.done(bytes);
    }

    fn copy_data(&self, range: Range<u64>, buffer: &mut [u8]) -> io::Result<()> {
        let source = Source { export: &self.export, file: &self.from, path: &self.new.path };
        source.data_ranges(range, |data| source.read(data, buffer, &mut &self.to))
    }
}

impl Sink for &HostFile {
    fn data(&mut self, at: u64, bytes: &[u8]) -> io::Result<()> {
        self.write_all_at(bytes, at)
    }

    /// Leaves a hole.
    fn unreadable(&mut self, _bytes: u64) -> io::Result<()> {
        Ok(())
    }
}

impl Drop for CopyTarget {
    fn drop(&mut self) {
        let NewFile { stat, path, .. } = &self.new;
        attributes::finish(&self.export, self.to.as_fd(), stat, path);
    }
}

/// Splits a size into ranges of [`RANGE_BYTES`], or larger ones, so that there are at most
/// [`RANGES_MAX`].
fn ranges(size: u64) -> Vec<Range<u64>> {
    let bytes = RANGE_BYTES.max(size.div_ceil(RANGES_MAX));
    let starts = (0..size.div_ceil(bytes).max(1)).map(|range| range * bytes);
    starts.map(|start| start..size.min(start.saturating_add(bytes))).collect()
}

/// Creates a symlink, device, FIFO or socket. Returns its descriptor, for hard links.
fn make_special(export: &Export, new: &NewFile) -> io::Result<Option<OwnedFd>> {
    let NewFile { directory, name, path, stat } = new;
    let name = name.as_slice();
    let kind = match stat.kind {
        FileKind::Symlink => {
            let target = match export.filesystem.read_link(stat.id) {
                Ok(target) => target,
                Err(error) => {
                    export.report.unreadable(path, &error);
                    return Ok(None);
                }
            };
            symlinkat(target.as_slice(), directory, name)?;
            FileType::Symlink
        }
        FileKind::CharDevice => FileType::CharacterDevice,
        FileKind::BlockDevice => FileType::BlockDevice,
        FileKind::Fifo => FileType::Fifo,
        FileKind::Socket => FileType::Socket,
        FileKind::File | FileKind::Directory => return Ok(None),
    };
    if kind != FileType::Symlink {
        let device = makedev(stat.rdev.0, stat.rdev.1);
        mknodat(directory, name, kind, Mode::RUSR | Mode::WUSR, device)?;
    }
    let made = directory.open_new(name, kind)?;
    attributes::finish_special(export, made.as_fd(), stat, path);
    Ok(Some(made))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_cover_the_file_and_are_limited() {
        let largest = i64::MAX.unsigned_abs();
        for size in [0, 1, RANGE_BYTES, RANGE_BYTES + 1, RANGE_BYTES * RANGES_MAX + 1, largest] {
            let ranges = ranges(size);
            assert!(ranges.len() as u64 <= RANGES_MAX, "{} ranges", ranges.len());
            assert_eq!(ranges.first().map(|range| range.start), Some(0));
            assert_eq!(ranges.last().map(|range| range.end), Some(size));
            assert!(ranges.windows(2).all(|two| two[0].end == two[1].start));
        }
    }
}
