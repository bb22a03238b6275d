//! Preorder traversal of a directory tree.
//!
//! 1. Memory is bounded by the depth and the number of directories, not by the number of files: the
//!    walk remembers each directory that it has entered, in about 20 bytes.
//! 2. A directory is entered once. A directory that contains itself or has a second name, which
//!    exists only on a damaged or malicious volume, is reported as an error.
//! 3. An error in a directory ends that directory, not the walk.
//! 4. A path is a chain of names that shares its parents, and is joined when it is printed: the
//!    paths of 4,096 nested directories take the memory of 4,096 names.

pub(crate) mod live;
mod path;

use std::collections::HashSet;

use butternut::{DirEntry, Error, FIRST_ENTRY, FileId, FileKind, Filesystem, ReadDir};

pub(crate) use path::WalkPath;

/// Maximum depth of nested directories.
pub(crate) const DEPTH_MAX: usize = 4096;

/// A file or directory that the walk has found.
#[derive(Debug, Clone)]
pub(crate) struct WalkEntry {
    /// The path from the starting point, which is its first part.
    pub(crate) path: WalkPath,
    pub(crate) id: FileId,
    pub(crate) kind: FileKind,
    pub(crate) depth: usize,
}

impl WalkEntry {
    pub(crate) fn is_directory(&self) -> bool {
        self.kind == FileKind::Directory
    }

    /// Returns the last component of the path.
    pub(crate) fn name(&self) -> &[u8] {
        self.path.name()
    }
}

/// An error in a directory.
#[derive(Debug)]
pub(crate) struct WalkError {
    pub(crate) path: Vec<u8>,
    pub(crate) error: Box<Error>,
}

struct Level {
    id: FileId,
    path: WalkPath,
    entries: ReadDir,
}

/// The walk: an iterator that enters a directory only when the caller calls [`Walk::enter`].
pub(crate) struct Walk<'a> {
    filesystem: &'a Filesystem,
    levels: Vec<Level>,
    entered: HashSet<FileId>,
    one_subvolume: bool,
}

impl<'a> Walk<'a> {
    /// Creates a walk without a starting point; [`Walk::enter`] sets it.
    pub(crate) fn new(filesystem: &'a Filesystem, one_subvolume: bool) -> Self {
        Self { filesystem, levels: Vec::new(), entered: HashSet::new(), one_subvolume }
    }

    /// Continues the walk with the entries of `found`.
    ///
    /// # Errors
    /// Fails if the directory cannot be read, is too deep, or was entered before (law 2).
    pub(crate) fn enter(&mut self, found: &WalkEntry) -> Result<(), WalkError> {
        let broken = |error| WalkError { path: found.path.bytes(), error: Box::new(error) };
        if let Some(parent) = self.levels.last()
            && self.one_subvolume
            && parent.id.subvolume != found.id.subvolume
        {
            return Ok(());
        }
        if self.levels.len() >= DEPTH_MAX {
            return Err(broken(Error::NameTooLong));
        }
        if !self.entered.insert(found.id) {
            return Err(broken(directory_cycle()));
        }
        let entries = self.filesystem.read_dir(found.id, FIRST_ENTRY).map_err(broken)?;
        self.levels.push(Level { id: found.id, path: found.path.clone(), entries });
        Ok(())
    }
}

impl Iterator for Walk<'_> {
    type Item = Result<WalkEntry, WalkError>;

    fn next(&mut self) -> Option<Self::Item> {
        while let Some(level) = self.levels.last_mut() {
            match level.entries.next() {
                None => {
                    self.levels.pop();
                }
                Some(Err(error)) => {
                    let path = level.path.bytes();
                    self.levels.pop();
                    return Some(Err(WalkError { path, error: Box::new(error) }));
                }
                Some(Ok(DirEntry { name, id, kind, .. })) => {
                    let path = level.path.child(name);
                    return Some(Ok(WalkEntry { path, id, kind, depth: self.levels.len() }));
                }
            }
        }
        None
    }
}

/// Returns the error of law 2.
pub(crate) fn directory_cycle() -> Error {
    Error::InvalidArgument { what: "the directory is inside itself, or has two names" }
}
