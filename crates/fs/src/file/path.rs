//! Opens and creates regular files by their paths.

use crate::names::path::past_races;
use crate::{Error, File, FileId, Filesystem, Follow, NewInode, Result};

/// How often [`Filesystem::create_path`] starts over because another thread created or removed the
/// file in between.
const RACES_MAX: usize = 8;

impl Filesystem {
    /// Opens the regular file at `path`, as [`Filesystem::resolve`] finds it with
    /// [`Follow::Last`].
    ///
    /// # Errors
    /// As [`Filesystem::resolve`] and [`Filesystem::open_file`].
    pub fn open_path(&self, path: &[u8]) -> Result<File> {
        past_races(|| self.open_file(self.resolve_once(path, Follow::Last)?))
    }

    /// Opens the regular file at `path` and truncates it to no bytes; creates it if it does not
    /// exist, as [`std::fs::File::create`] does. `new` applies to a file that is created.
    ///
    /// # Errors
    /// As [`Filesystem::open_path`], [`Filesystem::create`] and [`File::truncate`].
    /// [`Error::Exists`] for a symbolic link to a file that does not exist.
    pub fn create_path(&self, path: &[u8], new: &NewInode) -> Result<File> {
        let (parent, name) = split_last(path);
        for _ in 0..RACES_MAX {
            match self.open_path(path) {
                Ok(file) => {
                    file.truncate(0)?;
                    return Ok(file);
                }
                Err(Error::NotFound | Error::Stale { .. }) if !name.is_empty() => {}
                Err(error) => return Err(error),
            }
            match self.create_and_open(parent, name, new) {
                Err(Error::Exists | Error::Stale { .. }) => {}
                done => return done,
            }
        }
        Err(Error::Exists)
    }

    fn create_and_open(&self, parent: &[u8], name: &[u8], new: &NewInode) -> Result<File> {
        let dir: FileId = self.resolve(parent, Follow::Last)?;
        self.open_file(self.create(dir, name, new)?)
    }
}

/// Splits a path into its directory and its last component, which is empty after a trailing `/`.
fn split_last(path: &[u8]) -> (&[u8], &[u8]) {
    match path.iter().rposition(|byte| *byte == b'/') {
        Some(at) => (&path[..=at], &path[at + 1..]),
        None => (b"", path),
    }
}
