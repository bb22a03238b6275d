//! A walk over a tree of directories, parents before what is in them.
//!
//! 1. Memory is bounded by the depth and the number of directories, not by the number of files:
//!    each directory that was entered is remembered, and costs some 20 bytes.
//! 2. A directory is entered once. One that holds itself, or that has a second name (which only a
//!    damaged or prepared volume has), is an error there, not a loop and not a second tree.
//! 3. An error ends its directory, not the walk.
//! 4. A path is kept as a chain of names, which neighbours share, and joined where it is printed:
//!    the paths of 4,096 directories inside one another take the memory of 4,096 names.

use std::collections::HashSet;

use butternut::{DirEntry, Error, FIRST_ENTRY, FileId, FileKind, Filesystem, ReadDir};

pub(crate) use super::walk_path::WalkPath;

/// Directories inside one another, at most. Paths of 4096 bytes cannot go deeper.
const DEPTH_MAX: usize = 4096;

/// What the walk has come to.
#[derive(Debug, Clone)]
pub(crate) struct Found {
    /// From where the walk started, which is the first part.
    pub(crate) path: WalkPath,
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
        self.path.name()
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
    path: WalkPath,
    entries: ReadDir,
}

/// The walk: an iterator that does not go into a directory until the caller asks it to.
pub(crate) struct Walk<'a> {
    filesystem: &'a Filesystem,
    levels: Vec<Level>,
    entered: HashSet<FileId>,
    one_subvolume: bool,
}

impl<'a> Walk<'a> {
    /// A walk that has nowhere to go until [`Walk::enter`].
    pub(crate) fn new(filesystem: &'a Filesystem, one_subvolume: bool) -> Self {
        Self { filesystem, levels: Vec::new(), entered: HashSet::new(), one_subvolume }
    }

    /// Goes on with what is in `found`, before anything else.
    pub(crate) fn enter(&mut self, found: &Found) -> Result<(), Broken> {
        let broken = |error| Broken { path: found.path.bytes(), error: Box::new(error) };
        if let Some(above) = self.levels.last()
            && self.one_subvolume
            && above.id.subvolume != found.id.subvolume
        {
            return Ok(());
        }
        if self.levels.len() >= DEPTH_MAX {
            return Err(broken(Error::NameTooLong));
        }
        if !self.entered.insert(found.id) {
            return Err(broken(entered_before()));
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
                    let path = level.path.bytes();
                    self.levels.pop();
                    return Some(Err(Broken { path, error: Box::new(error) }));
                }
                Some(Ok(DirEntry { name, id, kind, .. })) => {
                    let path = level.path.child(name);
                    return Some(Ok(Found { path, id, kind, depth: self.levels.len() }));
                }
            }
        }
        None
    }
}

/// Law 2.
pub(crate) fn entered_before() -> Error {
    Error::InvalidArgument { what: "the directory is inside itself, or has two names" }
}
