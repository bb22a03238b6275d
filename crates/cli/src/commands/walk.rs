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

use butternut::{Error, FileId, FileKind, Filesystem};

use super::files::{FileEntries, FileEntry, Files};

pub(crate) use path::WalkPath;

/// Maximum depth of nested directories.
pub(crate) const DEPTH_MAX: usize = 4096;

/// A file or directory that the walk has found.
#[derive(Debug, Clone)]
pub(crate) struct WalkEntry<I = FileId> {
    /// The path from the starting point, which is its first part.
    pub(crate) path: WalkPath,
    pub(crate) id: I,
    pub(crate) kind: FileKind,
    pub(crate) depth: usize,
}

impl<I> WalkEntry<I> {
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
pub(crate) struct WalkError<E = Error> {
    pub(crate) path: Vec<u8>,
    pub(crate) error: Box<E>,
}

struct Level<F: Files> {
    id: F::Id,
    path: WalkPath,
    entries: FileEntries<F::Id, F::Error>,
}

/// The walk: an iterator that enters a directory only when the caller calls [`Walk::enter`].
pub(crate) struct Walk<'a, F: Files = Filesystem> {
    files: &'a F,
    levels: Vec<Level<F>>,
    entered: HashSet<F::Identity>,
    one_subvolume: bool,
}

impl<'a, F: Files> Walk<'a, F> {
    /// Creates a walk without a starting point; [`Walk::enter`] sets it.
    pub(crate) fn new(files: &'a F, one_subvolume: bool) -> Self {
        Self { files, levels: Vec::new(), entered: HashSet::new(), one_subvolume }
    }

    /// Continues the walk with the entries of `found`.
    ///
    /// # Errors
    /// Fails if the directory cannot be read, is too deep, or was entered before (law 2).
    pub(crate) fn enter(&mut self, found: &WalkEntry<F::Id>) -> Result<(), WalkError<F::Error>> {
        let broken = |error| WalkError { path: found.path.bytes(), error: Box::new(error) };
        if let Some(parent) = self.levels.last()
            && self.one_subvolume
            && !self.files.share_subvolume(&parent.id, &found.id).map_err(broken)?
        {
            return Ok(());
        }
        if self.levels.len() >= DEPTH_MAX {
            return Err(broken(F::too_deep()));
        }
        if !self.entered.insert(self.files.identity(&found.id).map_err(broken)?) {
            return Err(broken(F::cycle()));
        }
        let entries = self.files.entries(&found.id, false).map_err(broken)?;
        self.levels.push(Level { id: found.id.clone(), path: found.path.clone(), entries });
        Ok(())
    }

    /// Returns the directory of the entry that was returned last, until it is entered.
    pub(crate) fn parent(&self) -> Option<&F::Id> {
        self.levels.last().map(|level| &level.id)
    }
}

impl<F: Files> Iterator for Walk<'_, F> {
    type Item = Result<WalkEntry<F::Id>, WalkError<F::Error>>;

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
                Some(Ok(FileEntry { name, id, kind })) => {
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
