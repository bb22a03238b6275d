//! [`OutputFile`]: the file that a stream is written to.
//!
//! 1. FILE is not storage of the volume: a stream would overwrite what it is made from.
//! 2. A regular file appears under its name when the stream is complete and durable
//!    ([`temporary`](super::temporary)). If the stream fails, or a signal ends it, nothing is left
//!    of it, and a FILE that existed is unchanged.
//! 3. A device, FIFO or socket is written directly. So is a file that can be written, but not
//!    replaced, because its directory cannot be changed. The opened file is checked again for law
//!    1, since the path may name another file by then.
//! 4. A new file can be read by its owner only: a stream has the contents of files that only their
//!    owners may read. A FILE that existed keeps its owner and mode.

use std::fs::{self, File, Metadata, OpenOptions};
use std::io::{self, BufWriter, ErrorKind, Write};
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt, fchown};
use std::path::{Path, PathBuf};

use super::temporary::{SignalGuard, TemporaryFile, directory};
use crate::failure::Failure;

/// Bytes of a stream that are written to a file at once.
const BUFFER_BYTES: usize = 256 << 10;

/// Mode of a new file (law 4).
const MODE: u32 = 0o600;

/// An open file, whose stream is not complete yet.
pub(super) struct OutputFile {
    shown: String,
    to: BufWriter<File>,
    /// `None` if the file is written directly.
    temporary: Option<TemporaryFile>,
}

impl OutputFile {
    /// Opens the file at a path. `is_storage` returns whether a file or block device is storage of
    /// the volume (law 1).
    ///
    /// # Errors
    /// Fails if the file is storage of the volume, or cannot be written.
    pub(super) fn create(
        path: &Path,
        is_storage: &dyn Fn(&Metadata) -> bool,
        guard: &SignalGuard,
    ) -> Result<Self, Failure> {
        let shown = path.display().to_string();
        let found = match fs::metadata(path) {
            Ok(meta) => Some(meta),
            Err(error) if error.kind() == ErrorKind::NotFound => None,
            Err(error) => return Err(Failure::io(shown, &error)),
        };
        if let Some(found) = &found {
            check_storage(&shown, found, is_storage)?;
        }
        let failed = |error: io::Error| Failure::io(shown.clone(), &error);
        let (file, temporary) = open(path, found.as_ref(), guard).map_err(failed)?;
        if temporary.is_none() {
            // Law 3.
            let opened = file.metadata().map_err(failed)?;
            check_storage(&shown, &opened, is_storage)?;
            if opened.is_file() {
                file.set_len(0).map_err(failed)?;
            }
        }
        Ok(Self { shown, to: BufWriter::with_capacity(BUFFER_BYTES, file), temporary })
    }

    /// Makes the stream durable, and gives it its name.
    ///
    /// # Errors
    /// Fails if the stream cannot be written or made durable, or the name cannot be replaced.
    pub(super) fn finish(self) -> Result<(), Failure> {
        let Self { shown, to, temporary } = self;
        complete(to, temporary).map_err(|error| Failure::io(shown, &error))
    }
}

impl Write for OutputFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.to.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.to.flush()
    }
}

/// Law 1.
fn check_storage(
    shown: &str,
    found: &Metadata,
    is_storage: &dyn Fn(&Metadata) -> bool,
) -> Result<(), Failure> {
    if !found.is_file() && !found.file_type().is_block_device() {
        return Ok(());
    }
    if is_storage(found) {
        let why = "is a device of the volume, which the stream would overwrite";
        return Err(Failure::new(shown, why).hint("name another file"));
    }
    Ok(())
}

/// Opens the file that a stream is written to: a temporary one, or that of the path (law 3).
fn open(
    path: &Path,
    found: Option<&Metadata>,
    guard: &SignalGuard,
) -> io::Result<(File, Option<TemporaryFile>)> {
    let mut options = OpenOptions::new();
    options.write(true).create(found.is_none()).mode(MODE);
    let directly = || options.open(path);
    let Some(target) = replaceable(path, found)? else { return Ok((directly()?, None)) };
    let (file, temporary) = match TemporaryFile::create(target, MODE, guard) {
        Ok(made) => made,
        Err(error) => {
            let is_read_only =
                matches!(error.kind(), ErrorKind::PermissionDenied | ErrorKind::ReadOnlyFilesystem);
            if found.is_none() || !is_read_only {
                return Err(error);
            }
            return Ok((directly()?, None));
        }
    };
    if let Some(found) = found {
        // Only root can give files away.
        fchown(&file, Some(found.uid()), Some(found.gid())).unwrap_or_default();
        file.set_permissions(found.permissions())?;
    }
    Ok((file, Some(temporary)))
}

/// Returns the path of the file to replace, without symbolic links. Returns `None` if it is no
/// regular file, or has no name: `/dev/stdout` may lead to a file that was removed.
fn replaceable(path: &Path, found: Option<&Metadata>) -> io::Result<Option<PathBuf>> {
    let Some(found) = found else {
        // The target of a symbolic link that leads nowhere is created.
        let is_link = fs::symlink_metadata(path).is_ok();
        return Ok((!is_link && path.file_name().is_some()).then(|| path.to_owned()));
    };
    if found.is_dir() {
        return Err(ErrorKind::IsADirectory.into());
    }
    let Some(target) = fs::canonicalize(path).ok().filter(|_| found.is_file()) else {
        return Ok(None);
    };
    let is_same = |other: &Metadata| (other.dev(), other.ino()) == (found.dev(), found.ino());
    Ok(fs::symlink_metadata(&target).is_ok_and(|other| is_same(&other)).then_some(target))
}

fn complete(to: BufWriter<File>, temporary: Option<TemporaryFile>) -> io::Result<()> {
    let file = to.into_inner().map_err(io::IntoInnerError::into_error)?;
    let kind = file.metadata()?.file_type();
    // Others have nothing to sync.
    if kind.is_file() || kind.is_block_device() {
        file.sync_all()?;
    }
    let Some(temporary) = temporary else { return Ok(()) };
    let target = temporary.target().to_owned();
    temporary.publish(&file)?;
    // Its new number of links.
    file.sync_all()?;
    match File::open(directory(&target)).and_then(|directory| directory.sync_all()) {
        // A directory that cannot be listed, or a filesystem that does not sync directories.
        Err(error)
            if matches!(error.kind(), ErrorKind::PermissionDenied | ErrorKind::InvalidInput) =>
        {
            Ok(())
        }
        synced => synced,
    }
}
