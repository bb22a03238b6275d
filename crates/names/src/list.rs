//! The entries of a directory, in the order of their index.
//!
//! An index is given to a name once and never again in its directory, so it is a cookie that stays
//! true however the directory changes. `.` and `..` have no entry; the first index is 2.
//!
//! An index of 2^63 - 1 or more is refused: the cookie after it is no file offset, and after the
//! largest index there is no cookie at all, so a listing that goes on from it would never end.

use crate::error::{NamesError, corrupt};
use crate::lookup::{Target, found};
use butternut_format::dir::DirEntries;
use butternut_format::inode::FileKind;
use butternut_format::key::{ItemType, Key};
use butternut_format::refused::{Refused, require};
use butternut_format::units::Ino;
use butternut_tree::{Cursor, Tree};

/// Where indices end: an entry's cookie is its index and one.
pub(crate) const INDEX_END: u64 = i64::MAX.unsigned_abs();

/// One entry of a directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    pub name: Vec<u8>,
    pub index: u64,
    pub target: Target,
    pub kind: FileKind,
}

/// The entries of a directory from an index on. Ends after the first error.
#[derive(Debug)]
pub struct List {
    cursor: Cursor,
    dir: Ino,
    /// The index to start at, until the cursor is placed.
    from: Option<u64>,
    ended: bool,
}

/// Lists `dir` from `index` on. A directory that does not exist has no entries.
pub fn list(tree: &Tree, dir: Ino, index: u64) -> List {
    List { cursor: tree.scan(), dir, from: Some(index), ended: false }
}

impl List {
    fn step(&mut self) -> Result<Option<Entry>, NamesError> {
        match self.from.take() {
            Some(from) => {
                self.cursor.seek(&Key::new(self.dir.0, ItemType::DIR_INDEX, from))?;
            }
            None => self.cursor.advance()?,
        }
        let Some((key, data)) = self.cursor.item_parts() else { return Ok(None) };
        if key.objectid != self.dir.0 || key.item_type != ItemType::DIR_INDEX {
            return Ok(None);
        }
        let refuse = |refused| corrupt(self.cursor.tree().id(), key, refused);
        let want = "at most 2^63 - 2";
        require(key.offset < INDEX_END, "dir index", key.offset, want).map_err(refuse)?;
        let entry = DirEntries::new(data)
            .next()
            .ok_or_else(|| refuse(Refused::new("entries", 0, 1)))?
            .map_err(refuse)?;
        let found = found(&entry).map_err(refuse)?;
        Ok(Some(Entry {
            name: entry.name.to_vec(),
            index: key.offset,
            target: found.target,
            kind: found.kind,
        }))
    }
}

impl Iterator for List {
    type Item = Result<Entry, NamesError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.ended {
            return None;
        }
        let step = self.step().transpose();
        self.ended = !matches!(step, Some(Ok(_)));
        step
    }
}
