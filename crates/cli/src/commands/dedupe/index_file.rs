//! The file that an index is kept in.
//!
//! 1. A file that is no index, or a damaged one, is never replaced: it is read, and refused, before
//!    any file is searched.
//! 2. The index appears under its name when it is complete and durable. Until then it has a
//!    temporary name in the same directory; if it cannot be written, that is removed, and what was
//!    there before stays.
//! 3. The path is resolved once, before the search. The index is written to the same directory, and
//!    replaces the file that was read. Any other file that has the name by then stays.

use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::io::{self, BufReader, BufWriter, ErrorKind, Write};
use std::os::fd::OwnedFd;
use std::path::Path;
use std::process;

use butternut_dedupe::{BlockSize, Index, IndexError, Search};
use rustix::fs::{
    AtFlags, CWD, Mode, OFlags, RenameFlags, fstat, fsync, linkat, openat, renameat, renameat_with,
    statat, unlinkat,
};
use rustix::io::Errno;

use crate::failure::Failure;

/// Bytes that are read or written at once.
const BUFFER_BYTES: usize = 256 << 10;

/// Number of temporary names that are tried.
const NAMES_MAX: u32 = 100;

/// Permissions of a new index: it tells of the contents of files of all users.
const MODE: Mode = Mode::RUSR.union(Mode::WUSR);

/// Where an index was read from, and will be written to (law 3).
pub(super) struct IndexFile {
    /// The path, for messages.
    shown: String,
    dir: OwnedFd,
    name: OsString,
    /// The file that was read. While it is open, no other file gets its inode number.
    found: Option<File>,
}

/// Reads an index. A file that does not exist is an empty one.
///
/// # Errors
/// Fails if the file is no index of the block size, or cannot be read.
pub(super) fn read(path: &Path, block: BlockSize) -> Result<(Index, IndexFile), Failure> {
    let shown = path.display().to_string();
    let resolved = match fs::canonicalize(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => {
            if path.is_symlink() {
                let why = "is a symbolic link to a file that does not exist";
                return Err(Failure::new(shown, why).hint("name another --index"));
            }
            path.to_owned()
        }
        resolved => resolved.map_err(|error| Failure::io(shown.clone(), &error))?,
    };
    let not_regular =
        || Failure::new(shown.clone(), "is not a regular file").hint("name another --index");
    let name = resolved.file_name().ok_or_else(not_regular)?;
    let parent = resolved.parent().filter(|parent| !parent.as_os_str().is_empty());
    let failed = |errno: Errno| Failure::io(shown.clone(), &errno.into());
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let dir = openat(CWD, parent.unwrap_or(Path::new(".")), flags, Mode::empty());
    let dir = dir.map_err(failed)?;
    // A FIFO must not block the command.
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY;
    let found = match openat(&dir, name, flags | OFlags::CLOEXEC, Mode::empty()) {
        Ok(fd) => Some(File::from(fd)),
        Err(Errno::NOENT) => None,
        Err(errno) => return Err(failed(errno)),
    };
    let index = match &found {
        None => Index::default(),
        Some(file) if !file.metadata().is_ok_and(|meta| meta.is_file()) => {
            return Err(not_regular());
        }
        Some(file) => read_from(file, block, &shown)?,
    };
    let name = name.to_owned();
    Ok((index, IndexFile { shown, dir, name, found }))
}

fn read_from(file: &File, block: BlockSize, shown: &str) -> Result<Index, Failure> {
    let input = BufReader::with_capacity(BUFFER_BYTES, file);
    Index::read(input, block).map_err(|error| match error {
        IndexError::Io(error) => Failure::io(shown, &error),
        IndexError::Foreign => {
            Failure::new(shown, error.to_string()).hint("name another --index; it is left as it is")
        }
        IndexError::Version { .. } | IndexError::Damaged { .. } => {
            Failure::new(shown, error.to_string()).hint("remove it, and all files are read again")
        }
        IndexError::BlockSize { have, .. } => Failure::new(shown, error.to_string())
            .hint(format!("use --block {have}, or another --index")),
    })
}

/// A file under a temporary name, which is removed on drop.
struct Temporary<'a> {
    dir: &'a OwnedFd,
    name: OsString,
}

impl Drop for Temporary<'_> {
    fn drop(&mut self) {
        // After the rename there is none; a failure that led here is reported.
        unlinkat(self.dir, &self.name, AtFlags::empty()).unwrap_or_default();
    }
}

impl IndexFile {
    /// Writes the index of the files of a search.
    ///
    /// # Errors
    /// Fails if it cannot be written, made durable or given its name, and if the name is another
    /// file's by now.
    pub(super) fn write<N>(&self, search: &Search<N>) -> Result<(), Failure> {
        match self.replace(search) {
            Err(error) if error.kind() == ErrorKind::AlreadyExists => {
                let why = "was created, replaced or removed during the run";
                Err(Failure::new(self.shown.clone(), why).hint("it is left as it is"))
            }
            done => done.map_err(|error| Failure::io(self.shown.clone(), &error)),
        }
    }

    fn replace<N>(&self, search: &Search<N>) -> io::Result<()> {
        let (file, temporary) = self.create_temporary()?;
        let mut to = BufWriter::with_capacity(BUFFER_BYTES, file);
        search.write_index(&mut to)?;
        to.flush()?;
        let file = to.into_inner().map_err(io::IntoInnerError::into_error)?;
        file.sync_all()?;
        self.take_name(&temporary.name)?;
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        match openat(&self.dir, ".", flags, Mode::empty()).and_then(fsync) {
            // A directory that cannot be listed, or a filesystem that does not sync directories.
            Err(Errno::ACCESS | Errno::PERM | Errno::INVAL) => Ok(()),
            synced => Ok(synced?),
        }
    }

    /// Gives the temporary file the name of the index (law 3). Fails with `EEXIST` if another file
    /// has it.
    fn take_name(&self, temporary: &OsStr) -> rustix::io::Result<()> {
        let (dir, name) = (&self.dir, self.name.as_os_str());
        let Some(found) = &self.found else {
            return match renameat_with(dir, temporary, dir, name, RenameFlags::NOREPLACE) {
                // The filesystem has no such rename, but no link replaces a file either.
                Err(Errno::INVAL | Errno::NOSYS) => {
                    linkat(dir, temporary, dir, name, AtFlags::empty())
                }
                renamed => renamed,
            };
        };
        let (was, is) = (fstat(found)?, statat(dir, name, AtFlags::SYMLINK_NOFOLLOW));
        match is {
            Ok(is) if (is.st_dev, is.st_ino) == (was.st_dev, was.st_ino) => {
                renameat(dir, temporary, dir, name)
            }
            Ok(_) | Err(Errno::NOENT) => Err(Errno::EXIST),
            Err(errno) => Err(errno),
        }
    }

    fn create_temporary(&self) -> io::Result<(File, Temporary<'_>)> {
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
        let mut number = 0;
        loop {
            let name = format!(".butternut-dedupe-{}-{number}", process::id());
            let name = OsString::from(name);
            match openat(&self.dir, &name, flags, MODE) {
                Ok(fd) => return Ok((File::from(fd), Temporary { dir: &self.dir, name })),
                Err(Errno::EXIST) if number < NAMES_MAX => number += 1,
                Err(Errno::EXIST) => return Err(io::Error::other("all temporary names are taken")),
                Err(errno) => return Err(errno.into()),
            }
        }
    }
}
