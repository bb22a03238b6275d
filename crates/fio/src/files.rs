//! Looks up, creates, grows and removes files by the paths that fio gives them.
//!
//! Paths are relative to the root of the job's subvolume. Symbolic links are not followed.

use crate::volumes::Volume;
use crate::{FioError, Result};
use butternut::{Allocate, AttributeFlags, Error, File, FileId, FileKind, NewInode};

const FILE_PERMISSIONS: u32 = 0o644;
const DIRECTORY_PERMISSIONS: u32 = 0o755;

/// How a file grows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Grow {
    /// It keeps its size.
    Nothing,
    /// With a hole.
    Hole,
    /// With preallocated space.
    Allocated,
    /// With preallocated space behind the end of the file, whose size does not change.
    AllocatedKeepSize,
}

impl Volume {
    pub(crate) fn file_bytes(&self, path: &str) -> Result<u64> {
        let found = self.find(path).and_then(|id| self.filesystem().stat(id));
        found.map(|stat| stat.size).map_err(FioError::library(path))
    }

    /// Creates the file and its parent directories where they are missing. Another job may create
    /// the same ones concurrently.
    pub(crate) fn make_file(&self, path: &str, in_place: bool) -> Result<()> {
        match self.find(path) {
            Err(Error::NotFound) => {}
            found => return found.map(drop).map_err(FioError::library(path)),
        }
        self.ensure_writable()?;
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
        self.ensure_writable()?;
        let path = path.trim_end_matches('/');
        let (parent, name) = path.rsplit_once('/').unwrap_or(("", path));
        let unlinked =
            self.find(parent).and_then(|dir| self.filesystem().unlink(dir, name.as_bytes()));
        unlinked.map_err(FioError::library(path))
    }

    /// # Errors
    /// [`FioError::ReadOnly`] if the volume could only be opened read-only.
    fn ensure_writable(&self) -> Result<()> {
        if self.is_writable { Ok(()) } else { Err(FioError::ReadOnly) }
    }

    fn find(&self, path: &str) -> butternut::Result<FileId> {
        names(path).try_fold(self.root, |dir, name| self.filesystem().lookup(dir, name))
    }

    /// Returns the directory `name`, which is created if it is missing.
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

/// Grows the file to `bytes`, unless it is at least as large.
pub(crate) fn grow(file: &File, bytes: u64, how: Grow) -> butternut::Result<()> {
    let had = file.len();
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
        // A write that runs out of space may be short; the next one then fails.
        let written = file.write_at(at, bytes)?;
        at = at.saturating_add(u64::try_from(written).unwrap_or(u64::MAX));
        bytes = bytes.get(written..).unwrap_or_default();
    }
    Ok(())
}

/// Punches a hole: frees the space of the range, which then reads as zeroes.
pub(crate) fn punch(file: &File, offset: u64, bytes: u64) -> butternut::Result<()> {
    file.allocate(offset..offset.saturating_add(bytes), Allocate::PunchHole)
}

fn names(path: &str) -> impl Iterator<Item = &[u8]> {
    path.split('/').filter(|name| !name.is_empty() && *name != ".").map(str::as_bytes)
}
