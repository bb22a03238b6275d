//! Paths: resolves a path to an inode, and returns the paths of an inode.
//!
//! Resolution follows the kernel: every component except `.` and `..` is looked up in the directory
//! reached so far; the target of a symbolic link replaces its name; `..` leads to the parent
//! directory, across subvolumes, never above the root.

use crate::inode::id::TOP_LEVEL;
use crate::{Error, FileId, FileKind, Filesystem, Result};
use butternut_format::units::Ino;
use butternut_names::{self as names, PathBudget};
use std::borrow::Cow;

/// Maximum number of symbolic links on one path.
const SYMLINKS_MAX: u32 = 40;

/// Maximum length of a path in bytes: the kernel's `PATH_MAX` without its NUL.
const PATH_BYTES_MAX: usize = 4095;

/// Maximum number of names of an inode, as in the kernel.
const LINKS_MAX: usize = 65_535;

/// Maximum number of directories that one call ascends through, over all paths that it returns.
pub(crate) const PATH_STEPS_MAX: usize = 1 << 22;

/// What to do with a symbolic link at the end of a path. All others are followed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Follow {
    /// Follow it, as `stat`.
    Last,
    /// Return the symbolic link itself, as `lstat`. With a trailing `/` it is followed.
    NotLast,
}

impl Filesystem {
    /// Returns the inode at `path`, which starts at [`Filesystem::root`] with or without a leading
    /// `/`. The empty path is the root. Absolute symbolic links start at the root too, and `..`
    /// never leaves it.
    ///
    /// # Errors
    /// [`Error::NotFound`]; [`Error::NotDirectory`] if a component that is no directory is not the
    /// last; [`Error::SymlinkLoop`] for more than 40 symbolic links; [`Error::NameTooLong`] for a
    /// name of more than 255 bytes or a path of more than 4095.
    pub fn resolve(&self, path: &[u8], follow: Follow) -> Result<FileId> {
        past_races(|| self.resolve_once(path, follow))
    }

    /// As [`Filesystem::resolve`]; fails with [`Error::Stale`] for a symbolic link or a directory
    /// that another thread removes or replaces meanwhile.
    pub(crate) fn resolve_once(&self, path: &[u8], follow: Follow) -> Result<FileId> {
        if path.len() > PATH_BYTES_MAX {
            return Err(Error::NameTooLong);
        }
        let mut symlinks = 0;
        let mut at = (self.root(), FileKind::Directory);
        let mut rest = Cow::Borrowed(path);
        let mut from = 0;
        while let Some(step) = next_step(&rest, from) {
            if at.1 != FileKind::Directory {
                return Err(Error::NotDirectory);
            }
            let dir = at.0;
            at = match step.name {
                b"." => at,
                b".." => (self.parent(dir)?, FileKind::Directory),
                name => self.entry(dir, name)?,
            };
            from = step.end;
            let is_followed = follow == Follow::Last || !step.is_last;
            if at.1 != FileKind::Symlink || !is_followed {
                continue;
            }
            symlinks += 1;
            if symlinks > SYMLINKS_MAX {
                return Err(Error::SymlinkLoop);
            }
            let mut text = self.read_link(at.0)?;
            let start = if text.first() == Some(&b'/') { self.root() } else { dir };
            text.extend_from_slice(&rest[from..]);
            at = (start, FileKind::Directory);
            (rest, from) = (Cow::Owned(text), 0);
        }
        let must_be_directory = rest.ends_with(b"/");
        if must_be_directory && at.1 != FileKind::Directory {
            return Err(Error::NotDirectory);
        }
        Ok(at.0)
    }

    /// Returns the id of the subvolume at `path`, which starts at the top level of the volume,
    /// wherever the root is. Symbolic links are not followed: users of the volume can create them,
    /// and would choose what is mounted.
    ///
    /// # Errors
    /// [`Error::NoSubvolume`] if there is nothing; [`Error::NotSubvolume`] if there is something
    /// else, or a symbolic link on the path; [`Error::NameTooLong`] as [`Filesystem::resolve`].
    pub fn subvolume_at(&self, path: &[u8]) -> Result<u64> {
        if path.len() > PATH_BYTES_MAX {
            return Err(Error::NameTooLong);
        }
        let top = FileId::root_of(TOP_LEVEL);
        // Without symbolic links, `..` leads back to the directory before.
        let mut passed: Vec<FileId> = Vec::new();
        let mut from = 0;
        while let Some(step) = next_step(path, from) {
            from = step.end;
            match step.name {
                b"." => {}
                b".." => drop(passed.pop()),
                name => {
                    let dir = passed.last().copied().unwrap_or(top);
                    passed.push(self.subdirectory(dir, name, &path[..from])?);
                }
            }
        }
        let found = passed.last().copied().unwrap_or(top);
        if found.is_subvolume_root() {
            return Ok(found.subvolume);
        }
        Err(Error::NotSubvolume { what: path.escape_ascii().to_string(), kind: "a directory" })
    }

    /// Returns the subdirectory of that name; `path` leads to it, for messages.
    fn subdirectory(&self, dir: FileId, name: &[u8], path: &[u8]) -> Result<FileId> {
        let what = || path.escape_ascii().to_string();
        let kind = match self.entry(dir, name) {
            Ok((id, FileKind::Directory)) => return Ok(id),
            Ok((_, FileKind::Symlink)) => "a symbolic link",
            Ok(_) => "a file",
            Err(Error::NotFound) => return Err(Error::NoSubvolume { what: what() }),
            Err(error) => return Err(error),
        };
        Err(Error::NotSubvolume { what: what(), kind })
    }

    /// Returns the names of an inode that is no directory, at most `limit` of them, each with its
    /// directory.
    ///
    /// # Errors
    /// Items that cannot be read. An inode that does not exist has no names.
    pub fn names_of(&self, id: FileId, limit: usize) -> Result<Vec<(FileId, Vec<u8>)>> {
        let links = names::links(&self.tree_of(id)?, Ino(id.ino), limit)?;
        let parent = |ino: Ino| FileId::new(id.subvolume, ino.0);
        Ok(links.into_iter().map(|link| (parent(link.parent), link.name)).collect())
    }

    /// Returns every path of an inode (one for each hard link), from the root of its subvolume,
    /// without a leading `/`. The subvolume's root has the one path "". An orphan has none.
    ///
    /// # Errors
    /// [`Error::Stale`] if there is no such inode; [`Error::Names`] if its paths take more than 64
    /// MiB together.
    pub fn paths_of(&self, id: FileId) -> Result<Vec<Vec<u8>>> {
        self.inode(id)?;
        let mut budget = PathBudget::new(PATH_STEPS_MAX);
        Ok(names::paths(&self.tree_of(id)?, Ino(id.ino), LINKS_MAX, &mut budget)?)
    }

    /// Returns the path of the first name of an inode, from the root of its subvolume, without a
    /// leading `/`; `None` if the inode, or a directory on the path, has no name.
    ///
    /// # Errors
    /// [`Error::Stale`] if there is no such subvolume; [`Error::Names`] if the path takes more than
    /// 64 MiB.
    pub fn first_path(&self, id: FileId) -> Result<Option<Vec<u8>>> {
        let mut budget = PathBudget::new(PATH_STEPS_MAX);
        Ok(names::first_path(&self.tree_of(id)?, Ino(id.ino), &mut budget)?)
    }
}

/// Calls `call`, which looks names up and then uses the inodes. Another thread may replace a name
/// and delete its inode in between, so `call` is repeated until it succeeds or finds the same
/// missing inode again: then an entry of a damaged volume refers to it.
pub(crate) fn past_races<R>(call: impl Fn() -> Result<R>) -> Result<R> {
    let mut missing = None;
    loop {
        match call() {
            Err(Error::Stale { id }) if missing != Some(id) => missing = Some(id),
            done => return done,
        }
    }
}

struct Step<'a> {
    name: &'a [u8],
    /// Offset of the end of the name in the path.
    end: usize,
    /// Nothing follows it, not even a `/`.
    is_last: bool,
}

/// Returns the first name at or after `from`.
fn next_step(path: &[u8], from: usize) -> Option<Step<'_>> {
    let start = from + path[from..].iter().position(|byte| *byte != b'/')?;
    let length = path[start..].iter().position(|byte| *byte == b'/');
    let end = length.map_or(path.len(), |length| start + length);
    Some(Step { name: &path[start..end], end, is_last: end == path.len() })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(path: &[u8]) -> Vec<(String, bool)> {
        let mut from = 0;
        std::iter::from_fn(|| {
            let step = next_step(path, from)?;
            from = step.end;
            Some((String::from_utf8_lossy(step.name).into_owned(), step.is_last))
        })
        .collect()
    }

    #[test]
    fn slashes_separate_names_however_many_they_are() {
        let expected = vec![("a".into(), false), ("b".into(), true)];
        assert_eq!(names(b"a/b"), expected);
        assert_eq!(names(b"//a///b"), expected);
        assert_eq!(names(b""), vec![]);
        assert_eq!(names(b"///"), vec![]);
    }

    #[test]
    fn a_name_before_a_trailing_slash_is_not_the_last() {
        assert_eq!(names(b"a/"), vec![("a".into(), false)]);
    }
}
