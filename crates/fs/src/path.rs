//! Paths: from names to an inode, and back.
//!
//! Resolution is the kernel's: every component but `.` and `..` is looked up in the directory
//! reached so far; a symlink's text takes the place of its name; `..` goes to where the directory
//! hangs, across subvolumes, never above the root.

use crate::id::TOP_LEVEL;
use crate::root::ROOT_DIRECTORY;
use crate::{Error, FileId, FileKind, Filesystem, Result};
use butternut_format::units::Ino;
use butternut_names::{self as names, Climb};
use std::borrow::Cow;

/// Symlinks followed on one path.
const SYMLINKS_MAX: u32 = 40;

/// Bytes of a path, as the kernel's `PATH_MAX` without its NUL.
const PATH_BYTES_MAX: usize = 4095;

/// Names that an inode can have: the kernel gives it no more.
const LINKS_MAX: usize = 65_535;

/// Directories that one call climbs through, over all paths it gives.
pub(crate) const CLIMB_STEPS_MAX: usize = 1 << 22;

/// What to do with a symlink at the end of a path. Symlinks on the way are always followed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Follow {
    /// `stat`: go on to what it points at.
    Last,
    /// `lstat`: the symlink itself. With a trailing `/` it is followed after all.
    NotLast,
}

impl Filesystem {
    /// The inode at `path`, which starts at [`Filesystem::root`] with or without a leading `/`;
    /// "" is the root too. Absolute symlinks start there as well, and `..` never leaves it.
    ///
    /// # Errors
    /// [`Error::NotFound`], [`Error::NotDirectory`] where the path goes on past something else,
    /// [`Error::SymlinkLoop`] past 40 symlinks, [`Error::NameTooLong`] for a name of more than
    /// 255 bytes or a path of more than 4095.
    pub fn resolve(&self, path: &[u8], follow: Follow) -> Result<FileId> {
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
    /// wherever the root is. A symlink is not followed: users of the volume make them, and would
    /// choose what is mounted.
    ///
    /// # Errors
    /// [`Error::NoSubvolume`] where there is nothing, [`Error::NotSubvolume`] where there is
    /// something else, or a symlink on the way; [`Error::NameTooLong`] as [`Filesystem::resolve`].
    pub fn subvolume_at(&self, path: &[u8]) -> Result<u64> {
        if path.len() > PATH_BYTES_MAX {
            return Err(Error::NameTooLong);
        }
        let top = FileId::new(TOP_LEVEL, ROOT_DIRECTORY);
        // Without symlinks the directories passed are those that `..` leads back to.
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
        if found.ino == ROOT_DIRECTORY && found.placeholder_dir().is_none() {
            return Ok(found.subvolume);
        }
        Err(Error::NotSubvolume { what: path.escape_ascii().to_string(), kind: "a directory" })
    }

    /// The directory of that name in another; `path` is the way to it, for messages.
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

    /// Returns the names of an inode that is no directory, at most `limit` of them, each with the
    /// directory that it is in.
    ///
    /// # Errors
    /// What reading them can return; an inode that does not exist has no names.
    pub fn names_of(&self, id: FileId, limit: usize) -> Result<Vec<(FileId, Vec<u8>)>> {
        let links = names::links(&self.tree_of(id)?, Ino(id.ino), limit)?;
        let parent = |ino: Ino| FileId::new(id.subvolume, ino.0);
        Ok(links.into_iter().map(|link| (parent(link.parent), link.name)).collect())
    }

    /// Every path of an inode (one for each hard link), from the root of its subvolume, without a
    /// leading `/`. The subvolume's root itself has the one path "". An inode that is deleted but
    /// still on disk has none.
    ///
    /// # Errors
    /// [`Error::Stale`] where there is no such inode; [`Error::Names`] where its paths take more
    /// than 64 MiB together.
    pub fn paths_of(&self, id: FileId) -> Result<Vec<Vec<u8>>> {
        self.inode(id)?;
        let mut climb = Climb::new(CLIMB_STEPS_MAX);
        Ok(names::paths(&self.tree_of(id)?, Ino(id.ino), LINKS_MAX, &mut climb)?)
    }

    /// One path of an inode, to name it in a message; `None` where it has none.
    pub(crate) fn path_of(&self, id: FileId) -> Result<Option<Vec<u8>>> {
        let mut climb = Climb::new(CLIMB_STEPS_MAX);
        Ok(names::first_path(&self.tree_of(id)?, Ino(id.ino), &mut climb)?)
    }
}

struct Step<'a> {
    name: &'a [u8],
    /// Where the name ends in the path.
    end: usize,
    /// Nothing follows, not even a `/`.
    is_last: bool,
}

/// The first name at or after `from`.
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
