//! Files of mounted volumes.
//!
//! 1. Every file is opened without following symbolic links and without waiting, and only regular
//!    files are defragmented: a directory that another user changes meanwhile leads to no device
//!    and nowhere else. A descriptor that is open for reading suffices, as in the kernel.
//! 2. Below a directory, other subvolumes and what is mounted there are left alone.
//! 3. A mount of this project does what is requested and tells what it has done. The kernel's btrfs
//!    breaks sharing, so it is used only where that is requested; the extents are counted then.

use std::ffi::{OsStr, OsString};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;

use butternut::format::file_extent::Compression;
use butternut::{Compressor, Defragmented};
use butternut_sys::defragment_calls::{self, defragment, defragment_in_kernel};
use butternut_sys::extent_calls::{EXTENT_LAST, EXTENT_UNWRITTEN, extents, is_unsupported};
use butternut_sys::subvolume_calls;
use rustix::fs::{CWD, Dir, FileType, Mode, OFlags, ResolveFlags, fstat, openat, openat2};
use rustix::io::Errno;

use super::{NO_FILE, Run};
use crate::commands::export::raise_open_files_limit;
use crate::commands::walk::WalkPath;
use crate::failure::{Failure, Outcome};
use crate::output::{Output, text};

/// Maximum depth of nested directories. Each holds a descriptor.
const DEPTH_MAX: usize = 500;

/// How files and directories are opened (law 1).
const OPEN: OFlags = OFlags::RDONLY
    .union(OFlags::NOFOLLOW)
    .union(OFlags::NONBLOCK)
    .union(OFlags::NOCTTY)
    .union(OFlags::CLOEXEC);

/// How names below a directory are resolved (law 2).
const BELOW: ResolveFlags =
    ResolveFlags::BENEATH.union(ResolveFlags::NO_SYMLINKS).union(ResolveFlags::NO_XDEV);

/// A directory whose entries are being visited.
struct Level {
    dir: OwnedFd,
    path: WalkPath,
    entries: std::vec::IntoIter<Vec<u8>>,
}

pub(super) fn run(mut run: Run<'_>, paths: &[OsString], out: &mut Output) -> Outcome {
    raise_open_files_limit();
    for path in paths {
        let shown = WalkPath::new(path.as_bytes().to_vec());
        match openat(CWD, path, OPEN, Mode::empty()).and_then(|fd| Ok((kind(&fd)?, fd))) {
            Ok((FileType::RegularFile, fd)) => file(&mut run, &fd, &shown),
            Ok((FileType::Directory, _)) if !run.request.is_recursive => {
                run.failed_directory(path.as_bytes());
            }
            Ok((FileType::Directory, fd)) => below(&mut run, fd, shown),
            Ok(_) | Err(Errno::LOOP | Errno::NXIO) => {
                run.failed(&Failure::new(text::escaped(path.as_bytes()), NO_FILE));
            }
            Err(errno) => run.failed(&failed(&shown, &errno.into())),
        }
    }
    run.finish(out)
}

fn kind(fd: &OwnedFd) -> Result<FileType, Errno> {
    Ok(FileType::from_raw_mode(fstat(fd)?.st_mode))
}

fn failed(path: &WalkPath, error: &io::Error) -> Failure {
    Failure::io(text::escaped(&path.bytes()), error)
}

/// Defragments the files below a directory.
fn below(run: &mut Run<'_>, dir: OwnedFd, path: WalkPath) {
    let mut levels = Vec::new();
    enter(run, &mut levels, dir, path);
    while let Some(level) = levels.last_mut() {
        let Some(name) = level.entries.next() else {
            levels.pop();
            continue;
        };
        let path = level.path.child(name.clone());
        let opened = openat2(&level.dir, OsStr::from_bytes(&name), OPEN, Mode::empty(), BELOW);
        match opened.and_then(|fd| Ok((kind(&fd)?, fd))) {
            Ok((FileType::RegularFile, fd)) => file(run, &fd, &path),
            // Law 2.
            Ok((FileType::Directory, fd)) if subvolume_calls::is_read_only(fd.as_fd()).is_ok() => {}
            Ok((FileType::Directory, fd)) => enter(run, &mut levels, fd, path),
            // A symbolic link, a socket, a mount point, or a file that was removed.
            Ok(_) | Err(Errno::LOOP | Errno::NXIO | Errno::XDEV | Errno::NOENT) => {}
            Err(errno) => run.failed(&failed(&path, &errno.into())),
        }
    }
}

/// Visits a directory next.
fn enter(run: &mut Run<'_>, levels: &mut Vec<Level>, dir: OwnedFd, path: WalkPath) {
    let read = if levels.len() >= DEPTH_MAX { Err(Errno::NAMETOOLONG) } else { entries(&dir) };
    match read {
        Ok(entries) => levels.push(Level { dir, path, entries: entries.into_iter() }),
        Err(errno) => run.failed(&failed(&path, &errno.into())),
    }
}

/// Returns the names in a directory that may be files or directories.
fn entries(dir: &OwnedFd) -> Result<Vec<Vec<u8>>, Errno> {
    let mut all = Vec::new();
    for entry in Dir::read_from(dir)? {
        let entry = entry?;
        let name = entry.file_name().to_bytes();
        let is_wanted = matches!(
            entry.file_type(),
            FileType::RegularFile | FileType::Directory | FileType::Unknown
        );
        if is_wanted && !matches!(name, b"." | b"..") {
            all.push(name.to_vec());
        }
    }
    Ok(all)
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
        Some(Errno::NOTTY | Errno::OPNOTSUPP) => failure.hint("it is in no mounted btrfs volume"),
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
    let number = match compressor.compression() {
        Compression::None => 0,
        Compression::Zlib => 1,
        Compression::Lzo => 2,
        Compression::Zstd => 3,
    };
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
