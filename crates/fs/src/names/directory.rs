//! Directories: lookup, listing and parents.
//!
//! A cookie is a position in a listing: [`Filesystem::read_dir`] with the cookie of an entry
//! returns the entries after it. It is the entry's index plus one, so it stays valid across
//! reopening and changes of the directory. 0 starts at `.`, 1 at `..`, 2 at the first real entry.
//!
//! A new name, also by a rename, gets a larger index than every name before it. So a listing
//! without an upper bound never ends while its reader renames the entries that it reads. A caller
//! that changes the directory while it lists it bounds the listing by
//! [`Filesystem::end_of_listing`] at its start.

use crate::subvolume::listings::Listing;
use crate::{Error, FileId, FileKind, Filesystem, Result};
use butternut_format::dir::NAME_BYTES_MAX;
use butternut_format::units::{Ino, TreeId};
use butternut_names::{self as names, Found, List, Target};
use std::fmt;

/// The cookie of the first real entry, after `.` and `..`.
pub const FIRST_ENTRY: u64 = 2;

/// One name in a directory.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct DirEntry {
    pub name: Vec<u8>,
    /// The inode that the name refers to; for a subvolume, its root directory.
    pub id: FileId,
    pub kind: FileKind,
    /// The cookie with which [`Filesystem::read_dir`] continues after this entry.
    pub cookie: u64,
}

/// The entries of a directory, in the order of their index. The iterator ends after its first
/// error.
pub struct ReadDir {
    filesystem: Filesystem,
    dir: FileId,
    cookie: u64,
    /// Entries with this index or a larger one are left out.
    end: Option<u64>,
    /// `None` for a placeholder, which has no entries in a tree.
    list: Option<List>,
    /// Dropped after `list`, which reads the tree.
    _listing: Option<Listing>,
}

impl fmt::Debug for ReadDir {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ReadDir")
            .field("dir", &self.dir)
            .field("cookie", &self.cookie)
            .finish_non_exhaustive()
    }
}

impl ReadDir {
    /// Leaves out the entries from this cookie on, which
    /// [`FilesystemExt::end_of_listing`](crate::server::FilesystemExt::end_of_listing) returned
    /// earlier.
    #[must_use]
    pub fn until(mut self, end: u64) -> Self {
        self.end = Some(end);
        self
    }

    fn dot(&mut self, name: &[u8], id: Result<FileId>) -> Result<DirEntry> {
        self.cookie += 1;
        let cookie = self.cookie;
        Ok(DirEntry { name: name.to_vec(), id: id?, kind: FileKind::Directory, cookie })
    }

    fn entry(&mut self, entry: names::Entry) -> Result<DirEntry> {
        let found = Found { target: entry.target, kind: entry.kind };
        let (id, kind) = self.filesystem.cross(self.dir, &entry.name, found)?;
        self.cookie = entry.index.saturating_add(1);
        Ok(DirEntry { name: entry.name, id, kind, cookie: self.cookie })
    }
}

impl Iterator for ReadDir {
    type Item = Result<DirEntry>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.cookie == 0 {
            return Some(self.dot(b".", Ok(self.dir)));
        }
        if self.cookie == 1 {
            let parent = self.filesystem.parent(self.dir);
            return Some(self.dot(b"..", parent));
        }
        loop {
            let entry = match self.list.as_mut()?.next()? {
                Ok(entry) if self.end.is_some_and(|end| entry.index >= end) => {
                    self.list = None;
                    return None;
                }
                Ok(entry) => match self.entry(entry) {
                    // Its subvolume was deleted after the entry was read.
                    Err(Error::NotFound) => continue,
                    entry => entry,
                },
                Err(error) => Err(error.into()),
            };
            if entry.is_err() {
                self.list = None;
            }
            break Some(entry);
        }
    }
}

impl Filesystem {
    /// Returns the inode that `name` refers to, which may be in another subvolume. `.` and `..` are
    /// names too; `..` of the filesystem's root is the root itself.
    ///
    /// # Errors
    /// [`Error::NotFound`], [`Error::NotDirectory`], [`Error::NameTooLong`] for more than 255
    /// bytes.
    pub fn lookup(&self, dir: FileId, name: &[u8]) -> Result<FileId> {
        match name {
            b"." => self.require_directory(dir).map(|()| dir),
            b".." => self.parent(dir),
            _ => self.entry(dir, name).map(|(id, _)| id),
        }
    }

    /// Returns the parent directory of `dir`. The parent of a subvolume's root is in another
    /// subvolume; the filesystem's [`root`](Filesystem::root) is its own parent.
    pub fn parent(&self, dir: FileId) -> Result<FileId> {
        if dir == self.root() {
            return Ok(dir);
        }
        if let Some(above) = dir.placeholder_dir() {
            return self.directory(above).map(|_| above);
        }
        self.directory(dir)?;
        if dir.is_subvolume_root() {
            let root_tree = self.forest().root_tree();
            let link = names::parent_link(&root_tree, TreeId(dir.subvolume))?;
            return Ok(link.map_or(dir, |link| FileId::new(link.parent.0, link.dir.0)));
        }
        let link = names::first_link(&self.tree_of(dir)?, Ino(dir.ino))?;
        link.map(|link| FileId::new(dir.subvolume, link.parent.0)).ok_or(Error::NotFound)
    }

    /// Lists `dir` from `cookie` on: 0 for everything including `.` and `..`, [`FIRST_ENTRY`] for
    /// everything else, an entry's [`cookie`](DirEntry::cookie) for the entries after it.
    pub fn read_dir(&self, dir: FileId, cookie: u64) -> Result<ReadDir> {
        self.require_directory(dir)?;
        // Before the tree is looked up.
        let write_state = self.shared.write_state.as_ref();
        let listing = write_state.map(|write_state| Listing::begin(write_state, dir.subvolume));
        let list = match dir.placeholder_dir() {
            Some(_) => None,
            None => Some(names::list(&self.tree_of(dir)?, Ino(dir.ino), cookie.max(FIRST_ENTRY))),
        };
        Ok(ReadDir { filesystem: self.clone(), dir, cookie, end: None, list, _listing: listing })
    }

    /// As [`FilesystemExt::end_of_listing`](crate::server::FilesystemExt::end_of_listing).
    pub(crate) fn end_of_listing(&self, dir: FileId) -> Result<u64> {
        if dir.is_placeholder() {
            return self.require_directory(dir).map(|()| FIRST_ENTRY);
        }
        match names::next_index(&self.tree_of(dir)?, Ino(dir.ino)) {
            Err(names::NamesError::NumbersUsedUp { .. }) => Ok(u64::MAX),
            next => Ok(next?),
        }
    }

    /// Returns the inode and the kind of an entry of `dir`, which may not be `.` or `..`.
    pub(crate) fn entry(&self, dir: FileId, name: &[u8]) -> Result<(FileId, FileKind)> {
        if name.len() > NAME_BYTES_MAX {
            return Err(Error::NameTooLong);
        }
        if dir.is_placeholder() {
            return self.require_directory(dir).and(Err(Error::NotFound));
        }
        match self.entry_in_tree(dir, name)? {
            Some(found) => self.cross(dir, name, found),
            None => self.directory(dir).and(Err(Error::NotFound)),
        }
    }

    fn entry_in_tree(&self, dir: FileId, name: &[u8]) -> Result<Option<Found>> {
        self.in_tree_of(dir, |tree| Ok(names::lookup(tree, Ino(dir.ino), name)?))
    }

    /// Returns the id that an entry refers to, and its kind. An entry of a subvolume whose root
    /// reference is elsewhere is a copy in a snapshot: a placeholder.
    ///
    /// A deletion removes the entry and then the reference, in one commit that readers do not wait
    /// for. So an entry without a reference is looked up again: if it is still there, the reference
    /// was never here. During an exchange it is, until both subvolumes have their references, and a
    /// subvolume that is moved away may be moved back; the lookup is repeated then.
    fn cross(&self, dir: FileId, name: &[u8], mut found: Found) -> Result<(FileId, FileKind)> {
        loop {
            let child = match found.target {
                Target::Inode(ino) => {
                    return Ok((FileId::new(dir.subvolume, ino.0), found.kind));
                }
                Target::Subvolume(child) => child,
            };
            let seen = self.shared.exchanges.see();
            let (parent, root_tree) = (TreeId(dir.subvolume), self.forest().root_tree());
            if names::is_referenced_at(&root_tree, parent, child, Ino(dir.ino), name)? {
                return Ok((FileId::root_of(child.0), found.kind));
            }
            let now = self.entry_in_tree(dir, name)?.ok_or(Error::NotFound)?;
            if now == found {
                if self.shared.exchanges.is_unchanged(seen) {
                    return Ok((FileId::placeholder(dir, child.0), found.kind));
                }
                std::thread::yield_now();
            }
            found = now;
        }
    }

    /// Checks that an inode is a directory, or a placeholder.
    fn require_directory(&self, dir: FileId) -> Result<()> {
        self.directory(dir.placeholder_dir().unwrap_or(dir)).map(|_| ())
    }
}
