//! The worker threads of an export, which create files and copy data.
//!
//! 1. Only data is written: holes and preallocated extents become holes.
//! 2. A range that cannot be read becomes a hole of whole blocks and is reported once per file; the
//!    rest of the file is copied. An extent that is longer than the volume is not read: trying each
//!    of its blocks would take for ever.
//! 3. The attributes of a file are set when its last range is copied.

use butternut_sys::lock::{Mutex, rank};
use std::fs::File as HostFile;
use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::sync::mpsc::Receiver;

use butternut::{Error, ExtentKind, File, FileKind, Stat};
use rustix::fs::{FileType, Mode, OFlags, ftruncate, makedev, mknodat, openat, symlinkat};

use super::super::walk::WalkPath;
use super::attributes;
use super::directory::OutputDirectory;
use super::shared::Export;

/// Files larger than this are split into ranges, which several workers copy.
pub(super) const RANGE_BYTES: u64 = 64 << 20;
/// Maximum number of ranges of a file: a sparse file can have any size.
const RANGES_MAX: u64 = 1024;
/// Bytes per read.
const READ_BYTES: usize = 4 << 20;
/// The smallest unit that is verified, and so of data loss: a block of fs-verity. A checksum is of
/// four of them.
const VERITY_BLOCK_BYTES: u64 = 1024;

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

    /// Copies the data in `range`, with adjacent extents merged.
    fn copy_data(&self, range: Range<u64>, buffer: &mut [u8]) -> io::Result<()> {
        let mut data = range.start..range.start;
        for extent in self.from.extents(range.clone()) {
            let extent = match extent {
                Ok(extent) => extent,
                Err(error) => {
                    self.export.report.unreadable(&self.new.path, &error);
                    break;
                }
            };
            let end = extent.offset.saturating_add(extent.bytes).min(range.end);
            match extent.kind {
                ExtentKind::Regular { .. } if extent.bytes > self.export.extent_bytes_max => {
                    self.copy_bytes(data, buffer)?;
                    data = end..end;
                    let what = "the extent is longer than the volume";
                    let error = Error::InvalidArgument { what };
                    let report = &self.export.report;
                    report.damaged(&self.new.path, extent.offset, extent.bytes, &error);
                }
                ExtentKind::Hole | ExtentKind::Prealloc { .. } => {
                    self.copy_bytes(data, buffer)?;
                    data = end..end;
                    let hole = extent.offset.max(range.start)..end;
                    if let Err(error) = self.from.verify_holes(hole.clone()) {
                        let bytes = hole.end.saturating_sub(hole.start);
                        self.export.report.damaged(&self.new.path, hole.start, bytes, &error);
                    }
                }
                ExtentKind::Inline { .. } | ExtentKind::Regular { .. } | ExtentKind::Buffered => {
                    if data.is_empty() {
                        data.start = extent.offset.max(range.start);
                    }
                    data.end = end;
                }
            }
        }
        self.copy_bytes(data, buffer)
    }

    fn copy_bytes(&self, range: Range<u64>, buffer: &mut [u8]) -> io::Result<()> {
        let mut at = range.start;
        while at < range.end {
            let left = usize::try_from(range.end - at).unwrap_or(READ_BYTES).min(buffer.len());
            match self.from.read_at(at, &mut buffer[..left]) {
                Ok(0) => return Ok(()),
                Ok(read) => {
                    self.to.write_all_at(&buffer[..read], at)?;
                    at += read as u64;
                }
                Err(_) => {
                    let end = at + left as u64;
                    self.copy_blocks(at..end, buffer)?;
                    at = end;
                }
            }
        }
        Ok(())
    }

    /// Copies block by block, and skips blocks that cannot be read. A read ends before the first of
    /// them.
    fn copy_blocks(&self, range: Range<u64>, buffer: &mut [u8]) -> io::Result<()> {
        let mut at = range.start;
        while at < range.end {
            let end = range.end.min((at / VERITY_BLOCK_BYTES + 1) * VERITY_BLOCK_BYTES);
            let left = usize::try_from(end - at).unwrap_or(buffer.len()).min(buffer.len());
            match self.from.read_at(at, &mut buffer[..left]) {
                Ok(read) => self.to.write_all_at(&buffer[..read], at)?,
                Err(error) => self.export.report.damaged(&self.new.path, at, end - at, &error),
            }
            at = end;
        }
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
