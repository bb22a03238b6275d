//! The entries of a directory, in the order of their index.
//!
//! A directory uses each index once, so an index is a cookie that stays valid while the directory
//! changes. `.` and `..` have no entry; the first index is 2.
//!
//! An index of 2^63 - 1 or more is refused: the cookie after it is not a file offset, and there is
//! no cookie after the largest index, so a listing that continues from there would never end.

use crate::error::{NamesError, corrupt};
use crate::lookup::{Target, found};
use butternut_format::dir::DirEntries;
use butternut_format::inode::FileKind;
use butternut_format::key::{ItemType, Key};
use butternut_format::refused::{Refused, require};
use butternut_format::units::Ino;
use butternut_tree::{Cursor, Tree};

/// The end of valid indices. The cookie after an entry is its index plus one.
pub(crate) const INDEX_END: u64 = i64::MAX.unsigned_abs();

/// One entry of a directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    pub name: Vec<u8>,
    pub index: u64,
    pub target: Target,
    pub kind: FileKind,
}

/// Iterates over the entries of a directory from an index on. Ends after the first error.
#[derive(Debug)]
pub struct List {
    cursor: Cursor,
    dir: Ino,
    /// The index to start at; `None` after the cursor was positioned.
    from: Option<u64>,
    is_ended: bool,
}

/// Lists `dir` from `index` on. A directory that does not exist has no entries.
pub fn list(tree: &Tree, dir: Ino, index: u64) -> List {
    List { cursor: tree.scan(), dir, from: Some(index), is_ended: false }
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
        if self.is_ended {
            return None;
        }
        let step = self.step().transpose();
        self.is_ended = !matches!(step, Some(Ok(_)));
        step
    }
}
