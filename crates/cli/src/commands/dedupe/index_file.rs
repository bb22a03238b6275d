//! The file that an index is kept in.
//!
//! 1. A file that is no index, or a damaged one, is never replaced: it is read, and refused, before
//!    any file is searched.
//! 2. The index appears under its name when it is complete and durable. Until then it has a
//!    temporary name in the same directory; if it cannot be written, that is removed, and what was
//!    there before stays.

use std::ffi::OsString;
use std::fs::{self, File, OpenOptions};
use std::io::{self, BufReader, BufWriter, ErrorKind, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process;

use butternut_dedupe::{BlockSize, Index, IndexError, Search};
use rustix::fs::OFlags;

use crate::failure::Failure;

/// Bytes that are read or written at once.
const BUFFER_BYTES: usize = 256 << 10;

/// Number of temporary names that are tried.
const NAMES_MAX: u32 = 100;

/// Permissions of a new index: it tells of the contents of files of all users.
const MODE: u32 = 0o600;

/// Reads an index. A file that does not exist is an empty one.
///
/// # Errors
/// Fails if the file is no index of the block size, or cannot be read.
pub(super) fn read(path: &Path, block: BlockSize) -> Result<Index, Failure> {
    let shown = path.display().to_string();
    // A FIFO must not block the command.
    let flags = OFlags::NONBLOCK.bits().cast_signed();
    let file = match OpenOptions::new().read(true).custom_flags(flags).open(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Index::default()),
        opened => opened.map_err(|error| Failure::io(shown.clone(), &error))?,
    };
    let is_file = file.metadata().is_ok_and(|meta| meta.is_file());
    if !is_file {
        return Err(Failure::new(shown, "is not a regular file").hint("name another --index"));
    }
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

/// Writes the index of the files of a search.
///
/// # Errors
/// Fails if it cannot be written, made durable or given its name.
pub(super) fn write<N>(path: &Path, search: &Search<N>) -> Result<(), Failure> {
    replace(path, search).map_err(|error| Failure::io(path.display().to_string(), &error))
}

/// A file under a temporary name, which is removed on drop.
struct Temporary(PathBuf);

impl Drop for Temporary {
    fn drop(&mut self) {
        // After the rename there is none; a failure that led here is reported.
        fs::remove_file(&self.0).unwrap_or_default();
    }
}

fn replace<N>(path: &Path, search: &Search<N>) -> io::Result<()> {
    // A symbolic link stays, and its target is replaced.
    let target = fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
    let (file, temporary) = create_temporary(&target)?;
    let mut to = BufWriter::with_capacity(BUFFER_BYTES, file);
    search.write_index(&mut to)?;
    to.flush()?;
    let file = to.into_inner().map_err(io::IntoInnerError::into_error)?;
    file.sync_all()?;
    fs::rename(&temporary.0, &target)?;
    let directory = target.parent().filter(|parent| !parent.as_os_str().is_empty());
    match File::open(directory.unwrap_or(Path::new("."))).and_then(|dir| dir.sync_all()) {
        // A directory that cannot be listed, or a filesystem that does not sync directories.
        Err(error)
            if matches!(error.kind(), ErrorKind::PermissionDenied | ErrorKind::InvalidInput) =>
        {
            Ok(())
        }
        synced => synced,
    }
}

fn create_temporary(target: &Path) -> io::Result<(File, Temporary)> {
    let mut number = 0;
    loop {
        let name = format!(".butternut-dedupe-{}-{number}", process::id());
        let path = target.with_file_name(OsString::from(name));
        match OpenOptions::new().write(true).create_new(true).mode(MODE).open(&path) {
            Ok(file) => return Ok((file, Temporary(path))),
            Err(error) if error.kind() == ErrorKind::AlreadyExists && number < NAMES_MAX => {
                number += 1;
            }
            Err(error) => return Err(error),
        }
    }
}
