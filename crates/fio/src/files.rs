//! Files of a volume by the paths that fio gives them: found, made, grown, removed.
//!
//! Paths are plain names from the job's subvolume down; a symbolic link on the way is not followed.

use crate::volumes::Volume;
use crate::{FioError, Result};
use butternut::{Allocate, AttributeFlags, Error, File, FileId, FileKind, NewInode};

const FILE_PERMISSIONS: u32 = 0o644;
const DIRECTORY_PERMISSIONS: u32 = 0o755;

/// What becomes of the space that a file grows by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Grow {
    /// It does not grow yet.
    Nothing,
    Hole,
    Allocated,
    /// Set aside past the end of the file.
    AllocatedKeepSize,
}

impl Volume {
    pub(crate) fn file_bytes(&self, path: &str) -> Result<u64> {
        let found = self.find(path).and_then(|id| self.filesystem().stat(id));
        found.map(|stat| stat.size).map_err(FioError::library(path))
    }

    /// Makes the file, and the directories above it, where it is missing; another job may do the
    /// same at the same time.
    pub(crate) fn make_file(&self, path: &str, in_place: bool) -> Result<()> {
        match self.find(path) {
            Err(Error::NotFound) => {}
            found => return found.map(drop).map_err(FioError::library(path)),
        }
        self.ready_to_write()?;
        let mut names = names(path).peekable();
        let mut dir = self.root;
        while let Some(name) = names.next() {
            let step = || FioError::library(path);
            if names.peek().is_none() {
                let made = self.filesystem().create(dir, name, &NewInode::new(FILE_PERMISSIONS));
                match made {
                    Err(Error::Exists) => {}
                    made => self.mark(made.map_err(step())?, in_place).map_err(step())?,
                }
                return Ok(());
            }
            dir = self.directory(dir, name).map_err(step())?;
        }
        Err(FioError::NoPath)
    }

    pub(crate) fn open_file(&self, path: &str) -> Result<File> {
        let opened = self.find(path).and_then(|id| self.filesystem().open_file(id));
        opened.map_err(FioError::library(path))
    }

    pub(crate) fn unlink_file(&self, path: &str) -> Result<()> {
        self.ready_to_write()?;
        let path = path.trim_end_matches('/');
        let (parent, name) = path.rsplit_once('/').unwrap_or(("", path));
        let unlinked =
            self.find(parent).and_then(|dir| self.filesystem().unlink(dir, name.as_bytes()));
        unlinked.map_err(FioError::library(path))
    }

    /// # Errors
    /// [`FioError::ReadOnly`] where the volume could only be opened for reading.
    fn ready_to_write(&self) -> Result<()> {
        if self.is_writable { Ok(()) } else { Err(FioError::ReadOnly) }
    }

    fn find(&self, path: &str) -> butternut::Result<FileId> {
        names(path).try_fold(self.root, |dir, name| self.filesystem().lookup(dir, name))
    }

    /// The directory `name`, made where it is missing.
    fn directory(&self, dir: FileId, name: &[u8]) -> butternut::Result<FileId> {
        let filesystem = self.filesystem();
        let found = match filesystem.lookup(dir, name) {
            Err(Error::NotFound) => {
                match filesystem.mkdir(dir, name, &NewInode::new(DIRECTORY_PERMISSIONS)) {
                    Err(Error::Exists) => filesystem.lookup(dir, name)?,
                    made => made?,
                }
            }
            found => found?,
        };
        match filesystem.stat(found)?.kind {
            FileKind::Directory => Ok(found),
            FileKind::File
            | FileKind::Symlink
            | FileKind::CharDevice
            | FileKind::BlockDevice
            | FileKind::Fifo
            | FileKind::Socket => Err(Error::NotDirectory),
        }
    }

    fn mark(&self, id: FileId, in_place: bool) -> butternut::Result<()> {
        if in_place {
            self.filesystem().set_attribute_flags(id, AttributeFlags::NOCOW)?;
        }
        Ok(())
    }
}

/// Grows the file to `bytes`; a larger one stays as it is.
pub(crate) fn grow(file: &File, bytes: u64, how: Grow) -> butternut::Result<()> {
    let had = file.size();
    if had >= bytes {
        return Ok(());
    }
    match how {
        Grow::Nothing => Ok(()),
        Grow::Hole => file.truncate(bytes),
        Grow::Allocated => file.allocate(had..bytes, Allocate::Extend),
        Grow::AllocatedKeepSize => file.allocate(had..bytes, Allocate::KeepSize),
    }
}

/// Writes all of `bytes`.
pub(crate) fn write_all(file: &File, offset: u64, mut bytes: &[u8]) -> butternut::Result<()> {
    let mut at = offset;
    while !bytes.is_empty() {
        // Where space runs out, what comes after a short write fails.
        let written = file.write_at(at, bytes)?;
        at = at.saturating_add(u64::try_from(written).unwrap_or(u64::MAX));
        bytes = bytes.get(written..).unwrap_or_default();
    }
    Ok(())
}

/// Gives space back; the range reads as zeroes.
pub(crate) fn punch(file: &File, offset: u64, bytes: u64) -> butternut::Result<()> {
    file.allocate(offset..offset.saturating_add(bytes), Allocate::PunchHole)
}

fn names(path: &str) -> impl Iterator<Item = &[u8]> {
    path.split('/').filter(|name| !name.is_empty() && *name != ".").map(str::as_bytes)
}
