//! Workers: they make files and copy bytes.
//!
//! 1. Only what is stored is written: holes and preallocated space stay holes.
//! 2. What cannot be read is said once per file, and left as a hole of whole sectors; the rest of
//!    the file is copied.
//! 3. A file gets its attributes when its last piece is done.

use std::fs::File as HostFile;
use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::sync::mpsc::Receiver;
use std::sync::{Arc, Mutex, PoisonError};

use butternut::{ExtentKind, File, FileKind, Stat};
use rustix::fs::{FileType, Mode, OFlags, ftruncate, makedev, mknodat, openat, symlinkat};

use super::super::walk::WalkPath;
use super::folder::Folder;
use super::{Export, attributes};

/// Files above this are copied by several workers.
pub(super) const PIECE_BYTES: u64 = 64 << 20;
/// Pieces of one file, at most: sparse files may have any size.
const PIECES_MAX: u64 = 1024;
/// Bytes per read.
const READ_BYTES: usize = 4 << 20;
/// The unit in which data is checked, and so in which it is lost.
const SECTOR_BYTES: u64 = 4096;

/// Something for a worker to do.
pub(super) enum Job {
    Make(Wanted),
    Piece(Arc<Target>, Range<u64>),
}

/// A file to be made.
pub(super) struct Wanted {
    pub(super) folder: Arc<Folder>,
    pub(super) name: Vec<u8>,
    pub(super) path: WalkPath,
    pub(super) stat: Stat,
}

/// A regular file that is being written.
pub(super) struct Target {
    export: Arc<Export>,
    wanted: Wanted,
    from: File,
    to: HostFile,
}

/// Runs jobs until the walk has ended and none is left.
pub(super) fn work(export: &Arc<Export>, jobs: &Mutex<Receiver<Job>>) {
    let mut buffer = vec![0; READ_BYTES];
    loop {
        let job = jobs.lock().unwrap_or_else(PoisonError::into_inner).recv();
        match job {
            Ok(Job::Make(wanted)) => {
                if let (Some(target), _) = Target::make(export, wanted) {
                    target.copy(0..target.from.size(), &mut buffer);
                }
            }
            Ok(Job::Piece(target, range)) => target.copy(range, &mut buffer),
            Err(_) => return,
        }
    }
}

impl Target {
    /// Makes the file. Gives what bytes are to be copied to, if there are some, and what was made,
    /// if it could be, to be linked to; what could not be made has been said.
    pub(super) fn make(
        export: &Arc<Export>,
        wanted: Wanted,
    ) -> (Option<Arc<Self>>, Option<OwnedFd>) {
        if wanted.stat.kind == FileKind::File {
            let target = Self::make_file(export, wanted);
            let made =
                target.as_ref().and_then(|target| target.to.as_fd().try_clone_to_owned().ok());
            return (target, made);
        }
        export.progress.done(wanted.stat.size);
        match make_special(export, &wanted) {
            Ok(made) => {
                export.report.file(0);
                (None, made)
            }
            Err(error) => {
                export.report.io(&wanted.path, &error);
                (None, None)
            }
        }
    }

    fn make_file(export: &Arc<Export>, wanted: Wanted) -> Option<Arc<Self>> {
        let from = export.filesystem.open_file(wanted.stat.id);
        let from = from.map_err(|error| export.report.unreadable(&wanted.path, &error)).ok()?;
        let flags =
            OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let to = openat(&wanted.folder, wanted.name.as_slice(), flags, Mode::RUSR | Mode::WUSR)
            .and_then(|fd| ftruncate(&fd, wanted.stat.size).map(|()| HostFile::from(fd)));
        match to {
            Ok(to) => {
                export.report.file(wanted.stat.size);
                Some(Arc::new(Self { export: Arc::clone(export), wanted, from, to }))
            }
            Err(error) => {
                export.report.io(&wanted.path, &error.into());
                None
            }
        }
    }

    /// The file in ranges for one worker each; at least one.
    pub(super) fn pieces(&self) -> Vec<Range<u64>> {
        pieces(self.from.size())
    }

    fn copy(&self, range: Range<u64>, buffer: &mut [u8]) {
        let bytes = range.end - range.start;
        if let Err(error) = self.copy_data(range, buffer) {
            self.export.report.io(&self.wanted.path, &error);
        }
        self.export.progress.done(bytes);
    }

    /// Copies the parts of `range` that hold data, adjacent ones together.
    fn copy_data(&self, range: Range<u64>, buffer: &mut [u8]) -> io::Result<()> {
        let mut data = range.start..range.start;
        for extent in self.from.extents(range.clone()) {
            let extent = match extent {
                Ok(extent) => extent,
                Err(error) => {
                    self.export.report.unreadable(&self.wanted.path, &error);
                    break;
                }
            };
            let end = extent.offset.saturating_add(extent.bytes).min(range.end);
            match extent.kind {
                ExtentKind::Hole | ExtentKind::Prealloc { .. } => {
                    self.copy_bytes(data, buffer)?;
                    data = end..end;
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
                    self.copy_sectors(at..end, buffer)?;
                    at = end;
                }
            }
        }
        Ok(())
    }

    /// Copies sector by sector around what cannot be read.
    fn copy_sectors(&self, range: Range<u64>, buffer: &mut [u8]) -> io::Result<()> {
        let mut at = range.start;
        while at < range.end {
            let end = range.end.min((at / SECTOR_BYTES + 1) * SECTOR_BYTES);
            let left = usize::try_from(end - at).unwrap_or(buffer.len()).min(buffer.len());
            match self.from.read_at(at, &mut buffer[..left]) {
                Ok(read) => self.to.write_all_at(&buffer[..read], at)?,
                Err(error) => self.export.report.damaged(&self.wanted.path, at, end - at, &error),
            }
            at = end;
        }
        Ok(())
    }
}

impl Drop for Target {
    fn drop(&mut self) {
        let Wanted { stat, path, .. } = &self.wanted;
        attributes::finish(&self.export, self.to.as_fd(), stat, path);
    }
}

/// Ranges of [`PIECE_BYTES`], or longer ones where a file, most of it a hole, has too many.
fn pieces(size: u64) -> Vec<Range<u64>> {
    let bytes = PIECE_BYTES.max(size.div_ceil(PIECES_MAX));
    let starts = (0..size.div_ceil(bytes).max(1)).map(|piece| piece * bytes);
    starts.map(|start| start..size.min(start.saturating_add(bytes))).collect()
}

/// Makes a symlink, device, pipe or socket.
fn make_special(export: &Export, wanted: &Wanted) -> io::Result<Option<OwnedFd>> {
    let Wanted { folder, name, path, stat } = wanted;
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
            symlinkat(target.as_slice(), folder, name)?;
            attributes::finish_symlink(export, folder, name, stat, path);
            return made(folder, name).map(Some);
        }
        FileKind::CharDevice => FileType::CharacterDevice,
        FileKind::BlockDevice => FileType::BlockDevice,
        FileKind::Fifo => FileType::Fifo,
        FileKind::Socket => FileType::Socket,
        FileKind::File | FileKind::Directory => return Ok(None),
    };
    let device = makedev(stat.rdev.0, stat.rdev.1);
    mknodat(folder, name, kind, Mode::RUSR | Mode::WUSR, device)?;
    attributes::finish_special(export, folder, name, stat, path);
    made(folder, name).map(Some)
}

/// What was just made, to be linked to.
fn made(folder: &Folder, name: &[u8]) -> io::Result<OwnedFd> {
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    Ok(openat(folder, name, flags, Mode::empty())?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_cover_a_file_of_any_size_and_are_not_too_many() {
        let largest = i64::MAX.unsigned_abs();
        for size in [0, 1, PIECE_BYTES, PIECE_BYTES + 1, PIECE_BYTES * PIECES_MAX + 1, largest] {
            let pieces = pieces(size);
            assert!(pieces.len() as u64 <= PIECES_MAX, "{} pieces", pieces.len());
            assert_eq!(pieces.first().map(|piece| piece.start), Some(0));
            assert_eq!(pieces.last().map(|piece| piece.end), Some(size));
            assert!(pieces.windows(2).all(|two| two[0].end == two[1].start));
        }
    }
}
