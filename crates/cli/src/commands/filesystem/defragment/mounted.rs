//! Files of mounted volumes.
//!
//! 1. Only regular files are defragmented, which are found and opened as `walk/live` does it. A
//!    descriptor that is open for reading suffices, as in the kernel.
//! 2. Below a directory, other subvolumes and what is mounted there are left alone.
//! 3. A mount of this project does what is requested and tells what it has done. The kernel's btrfs
//!    breaks sharing, so it is used only where that is requested; the extents are counted then.

use std::ffi::OsString;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;

use butternut::{Compressor, Defragmented};
use butternut_sys::defragment_calls::{self, defragment, defragment_in_kernel};
use butternut_sys::extent_calls::{EXTENT_LAST, EXTENT_UNWRITTEN, extents, is_unsupported};
use butternut_sys::subvolume_calls;
use rustix::fs::{CWD, FileType, Mode, openat};
use rustix::io::Errno;

use super::{NO_FILE, Run};
use crate::commands::export::raise_open_files_limit;
use crate::commands::walk::WalkPath;
use crate::commands::walk::live::{LiveWalk, OPEN, kind_of};
use crate::failure::{Failure, Outcome};
use crate::output::{Output, text};

pub(super) fn run(mut run: Run<'_>, paths: &[OsString], out: &mut Output) -> Outcome {
    raise_open_files_limit();
    for path in paths {
        let shown = WalkPath::new(path.as_bytes().to_vec());
        match openat(CWD, path, OPEN, Mode::empty()).and_then(|fd| Ok((kind_of(&fd)?, fd))) {
            Ok((FileType::RegularFile, fd)) => file(&mut run, &fd, &shown),
            Ok((FileType::Directory, _)) if !run.request.is_recursive => {
                run.failed_directory(path.as_bytes());
            }
            Ok((FileType::Directory, fd)) => below(&mut run, fd, &shown),
            Ok(_) | Err(Errno::LOOP | Errno::NXIO) => {
                run.failed(&Failure::new(text::escaped(path.as_bytes()), NO_FILE));
            }
            Err(errno) => run.failed(&failed(&shown, &errno.into())),
        }
    }
    run.finish(out)
}

fn failed(path: &WalkPath, error: &io::Error) -> Failure {
    Failure::io(text::escaped(&path.bytes()), error)
}

/// Defragments the files below a directory.
fn below(run: &mut Run<'_>, dir: OwnedFd, path: &WalkPath) {
    let mut walk = LiveWalk::default();
    enter(run, &mut walk, dir, path);
    while let Some((path, found)) = walk.next() {
        match found {
            Ok((FileType::RegularFile, fd)) => file(run, &fd, &path),
            // Law 2.
            Ok((FileType::Directory, fd)) if subvolume_calls::is_read_only(fd.as_fd()).is_ok() => {}
            Ok((FileType::Directory, fd)) => enter(run, &mut walk, fd, &path),
            // A file that was removed, or replaced by a symbolic link or a socket.
            Ok(_) | Err(Errno::LOOP | Errno::NXIO | Errno::NOENT) => {}
            Err(errno) => run.failed(&failed(&path, &errno.into())),
        }
    }
}

/// Visits a directory next.
fn enter(run: &mut Run<'_>, walk: &mut LiveWalk, dir: OwnedFd, path: &WalkPath) {
    if let Err(errno) = walk.enter(dir, path) {
        run.failed(&failed(path, &errno.into()));
    }
}

/// Defragments a file.
fn file(run: &mut Run<'_>, fd: &OwnedFd, path: &WalkPath) {
    let range = range(run);
    let done = match defragment(fd.as_fd(), &range) {
        Err(error) if is_unsupported(&error) && run.request.breaks_sharing => {
            run.done.has_unknown = true;
            in_kernel(fd.as_fd(), &range)
        }
        Err(error) if is_unsupported(&error) => {
            let why = "is in no mounted volume of butternut";
            let failure = Failure::new(text::escaped(&path.bytes()), why);
            let hint = "on the kernel's btrfs, --break-sharing is needed, as it breaks sharing";
            run.failed(&failure.hint(hint));
            return;
        }
        done => done.map(|done| {
            let mut sum = Defragmented::default();
            sum.rewritten_bytes = done.rewritten_bytes;
            sum.extents_before = done.extents_before;
            sum.extents_after = done.extents_after;
            sum.shared_bytes_left = done.shared_bytes_left;
            sum.unshared_bytes = done.unshared_bytes;
            sum
        }),
    };
    match done {
        Ok(done) => run.count(&path.bytes(), &done),
        Err(error) => run.failed(&not_done(path, &error)),
    }
}

fn not_done(path: &WalkPath, error: &io::Error) -> Failure {
    let failure = failed(path, error);
    match Errno::from_io_error(error) {
        Some(Errno::NOTTY | Errno::OPNOTSUPP) => {
            Failure::new(text::escaped(&path.bytes()), "is in no mounted btrfs volume")
        }
        Some(Errno::PERM) => failure.hint("the file must be writable by the user"),
        _ => failure,
    }
}

fn range(run: &Run<'_>) -> defragment_calls::Range {
    let request = &run.request;
    defragment_calls::Range {
        start: request.range.start,
        bytes: match request.range.end {
            u64::MAX => u64::MAX,
            end => end - request.range.start,
        },
        threshold: u32::try_from(request.threshold).unwrap_or(u32::MAX),
        compress: request.compressor.map(numbers),
        breaks_sharing: request.breaks_sharing,
    }
}

/// Returns the number of an algorithm, and its level; 0 is the default level.
fn numbers(compressor: Compressor) -> (u8, i8) {
    let number = compressor.compression().to_byte();
    let default = Compressor::new(compressor.compression()).map(Compressor::level);
    let level = if default == Some(compressor.level()) { 0 } else { compressor.level() };
    (number, i8::try_from(level).unwrap_or(0))
}

/// Defragments a file of the kernel's btrfs (law 3).
fn in_kernel(fd: BorrowedFd<'_>, range: &defragment_calls::Range) -> io::Result<Defragmented> {
    let mut done = Defragmented::default();
    done.extents_before = count(fd)?;
    defragment_in_kernel(fd, range)?;
    // The listing of the extents writes the data back.
    rustix::fs::fdatasync(fd)?;
    done.extents_after = count(fd)?;
    Ok(done)
}

/// Counts the extents of a file that are not contiguous.
fn count(fd: BorrowedFd<'_>) -> io::Result<u64> {
    let (mut count, mut from, mut reached) = (0, 0, None);
    loop {
        let found = extents(fd, from)?;
        let Some(last) = found.last().copied() else { return Ok(count) };
        for extent in &found {
            let end = |at: u64| at.saturating_add(extent.bytes);
            let is_data = extent.flags & EXTENT_UNWRITTEN == 0;
            let follows = reached == Some((extent.offset, extent.physical));
            count += u64::from(is_data && !follows);
            reached = is_data.then(|| (end(extent.offset), end(extent.physical)));
        }
        let end = last.offset.saturating_add(last.bytes);
        if last.flags & EXTENT_LAST != 0 || end <= from {
            return Ok(count);
        }
        from = end;
    }
}
