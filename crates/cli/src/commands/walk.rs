//! A walk over a tree of directories, parents before what is in them.
//!
//! 1. Memory is bounded by the depth, not by the number of files.
//! 2. A directory that holds itself (which only a damaged volume has) is an error, not a loop.
//! 3. An error ends its directory, not the walk.

use butternut::{DirEntry, Error, FIRST_ENTRY, FileId, FileKind, Filesystem, ReadDir};

use crate::output::text;

/// Directories inside one another, at most. Paths of 4096 bytes cannot go deeper.
const DEPTH_MAX: usize = 4096;

/// What the walk has come to.
#[derive(Debug, Clone)]
pub(crate) struct Found {
    /// From where the walk started, which is the first part.
    pub(crate) path: Vec<u8>,
    pub(crate) id: FileId,
    pub(crate) kind: FileKind,
    pub(crate) depth: usize,
}

impl Found {
    pub(crate) fn is_directory(&self) -> bool {
        self.kind == FileKind::Directory
    }

    /// The last part of the path.
    pub(crate) fn name(&self) -> &[u8] {
        let path = self.path.strip_suffix(b"/").unwrap_or(&self.path);
        path.rsplit(|byte| *byte == b'/').next().unwrap_or(path)
    }
}

/// A directory that could not be read, and why.
#[derive(Debug)]
pub(crate) struct Broken {
    pub(crate) path: Vec<u8>,
    pub(crate) error: Box<Error>,
}

struct Level {
    id: FileId,
    path: Vec<u8>,
    entries: ReadDir,
}

/// The walk: an iterator that does not go into a directory until the caller asks it to.
pub(crate) struct Walk<'a> {
    filesystem: &'a Filesystem,
    levels: Vec<Level>,
    one_subvolume: bool,
}

impl<'a> Walk<'a> {
    /// A walk that has nowhere to go until [`Walk::enter`].
    pub(crate) fn new(filesystem: &'a Filesystem, one_subvolume: bool) -> Self {
        Self { filesystem, levels: Vec::new(), one_subvolume }
    }

    /// Goes on with what is in `found`, before anything else.
    pub(crate) fn enter(&mut self, found: &Found) -> Result<(), Broken> {
        let broken = |error| Broken { path: found.path.clone(), error: Box::new(error) };
        if let Some(above) = self.levels.last()
            && self.one_subvolume
            && above.id.subvolume != found.id.subvolume
        {
            return Ok(());
        }
        if self.levels.iter().any(|level| level.id == found.id) {
            return Err(broken(Error::InvalidArgument { what: "the directory is inside itself" }));
        }
        if self.levels.len() >= DEPTH_MAX {
            return Err(broken(Error::NameTooLong));
        }
        let entries = self.filesystem.read_dir(found.id, FIRST_ENTRY).map_err(broken)?;
        self.levels.push(Level { id: found.id, path: found.path.clone(), entries });
        Ok(())
    }
}

impl Iterator for Walk<'_> {
    type Item = Result<Found, Broken>;

    fn next(&mut self) -> Option<Self::Item> {
        while let Some(level) = self.levels.last_mut() {
            match level.entries.next() {
                None => {
                    self.levels.pop();
                }
                Some(Err(error)) => {
                    let path = level.path.clone();
                    self.levels.pop();
                    return Some(Err(Broken { path, error: Box::new(error) }));
                }
                Some(Ok(DirEntry { name, id, kind, .. })) => {
                    let path = text::joined(&level.path, &name);
                    return Some(Ok(Found { path, id, kind, depth: self.levels.len() }));
                }
            }
        }
        None
    }
}
