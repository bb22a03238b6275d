//! Paths of mounted volumes: those of this project, and of the kernel's btrfs.
//!
//! 1. Files and directories are found and opened as `walk/live` does it, with the permissions of
//!    the user. Only a path that is named may be a symbolic link. What is mounted below a path is
//!    left out; subvolumes are entered.
//! 2. The descriptor that was opened tells which file it is, and its extents.
//! 3. Extents come from another process: they are counted without overflow, and each answer must
//!    come closer to the end of the file.

use std::collections::HashSet;
use std::ffi::OsString;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;

use butternut::DiskUsage;
use butternut_sys::extent_calls::{
    EXTENT_DELALLOC, EXTENT_ENCODED, EXTENT_INLINE, EXTENT_LAST, EXTENT_SHARED, FileExtent,
    extents_with_sharing, is_unsupported,
};
use rustix::fs::{CWD, FileType, Mode, OFlags, fstat, openat};
use rustix::io::Errno;

use super::Lines;
use crate::commands::export::raise_open_files_limit;
use crate::commands::walk::WalkPath;
use crate::commands::walk::live::{LiveWalk, OPEN, kind_of};
use crate::failure::{Completion, Failure, Outcome};
use crate::output::{Output, stderr_line, text};

struct Counter<'a> {
    lines: Lines,
    out: &'a mut Output,
    done: Completion,
    /// Files with several names that have been counted, by device and inode.
    linked: HashSet<(u64, u64)>,
    /// Directories whose sum is not complete yet, outermost first.
    open: Vec<(WalkPath, DiskUsage)>,
}

pub(super) fn run(lines: Lines, paths: &[&OsString], out: &mut Output) -> Outcome {
    raise_open_files_limit();
    let (done, linked, open) = (Completion::Success, HashSet::new(), Vec::new());
    let mut counter = Counter { lines, out, done, linked, open };
    let printed = counter.all(paths);
    counter.done.after(printed)
}

impl Counter<'_> {
    fn all(&mut self, paths: &[&OsString]) -> Result<(), Failure> {
        self.lines.begin(self.out)?;
        for path in paths {
            let shown = WalkPath::new(path.as_bytes().to_vec());
            match openat(CWD, path.as_os_str(), OPEN - OFlags::NOFOLLOW, Mode::empty()) {
                Ok(fd) => self.tree(&shown, fd)?,
                // A socket.
                Err(Errno::NXIO) => {}
                Err(errno) => self.failed(&shown, &errno.into()),
            }
        }
        self.lines.end(self.out)
    }

    fn tree(&mut self, top: &WalkPath, fd: OwnedFd) -> Result<(), Failure> {
        let mut walk = LiveWalk::default();
        let kind = kind_of(&fd);
        let mut next = Some((top.clone(), kind.map(|kind| (kind, fd))));
        while let Some((path, found)) = next {
            self.close(path.names().len())?;
            match found {
                Ok((FileType::Directory, fd)) => {
                    if let Err(errno) = walk.enter(fd, &path) {
                        self.failed(&path, &errno.into());
                    }
                    self.open.push((path, DiskUsage::default()));
                }
                Ok((FileType::RegularFile, fd)) => self.file(&path, &fd)?,
                // A file that was removed, or replaced by a symbolic link or a socket.
                Ok(_) | Err(Errno::LOOP | Errno::NXIO | Errno::NOENT) => {}
                Err(errno) => self.failed(&path, &errno.into()),
            }
            next = walk.next();
        }
        self.close(0)
    }

    fn file(&mut self, path: &WalkPath, fd: &OwnedFd) -> Result<(), Failure> {
        let counted = fstat(fd).map_err(io::Error::from).and_then(|stat| {
            let identity = (stat.st_dev, stat.st_ino);
            let is_first = stat.st_nlink <= 1 || self.linked.insert(identity);
            is_first.then(|| usage(fd)).transpose()
        });
        match counted {
            Ok(None) => {}
            Ok(Some(usage)) => {
                self.lines.print(path, &usage, self.open.is_empty(), self.out)?;
                if let Some((_, sum)) = self.open.last_mut() {
                    sum.add(&usage);
                }
            }
            Err(error) => self.failed(path, &error),
        }
        Ok(())
    }

    /// Prints the sums of the directories at `depth` and deeper.
    fn close(&mut self, depth: usize) -> Result<(), Failure> {
        while self.open.len() > depth {
            let Some((path, sum)) = self.open.pop() else { break };
            self.lines.print(&path, &sum, self.open.is_empty(), self.out)?;
            if let Some((_, parent)) = self.open.last_mut() {
                parent.add(&sum);
            }
        }
        Ok(())
    }

    fn failed(&mut self, path: &WalkPath, error: &io::Error) {
        let shown = text::escaped(&path.bytes());
        let failure = if is_unsupported(error) {
            Failure::new(shown, "is in no mounted btrfs volume")
        } else {
            Failure::io(shown, error)
        };
        stderr_line(&failure.to_string());
        self.done = Completion::PartialFailure;
    }
}

/// Counts the extents of a file.
fn usage(fd: &OwnedFd) -> io::Result<DiskUsage> {
    let (mut usage, mut from) = (DiskUsage::default(), 0);
    loop {
        let found = extents_with_sharing(fd.as_fd(), from)?;
        let Some(last) = found.last().copied() else { return Ok(usage) };
        let on_disk = |extent: &&FileExtent| extent.flags & (EXTENT_INLINE | EXTENT_DELALLOC) == 0;
        for extent in found.iter().filter(on_disk) {
            let compressed = (extent.flags & EXTENT_ENCODED != 0).then_some(extent.skip);
            let is_shared = extent.flags & EXTENT_SHARED != 0;
            usage.add_extent(extent.physical, compressed, extent.bytes, is_shared);
        }
        let end = last.offset.saturating_add(last.bytes);
        if last.flags & EXTENT_LAST != 0 || end <= from {
            return Ok(usage);
        }
        from = end;
    }
}
