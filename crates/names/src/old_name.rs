//! Existing names, and how the inode of a name refers back to it.
//!
//! | reference | the inode | a change of the name |
//! |---|---|---|
//! | present | has a reference to the name | moves or removes the reference too |
//! | wrong index | has one with another index than the listing | as present; searches the listing |
//! | lost | has fewer references than links | counts it as a link; a move adds a reference |
//! | stale | has all its references, and none to the name | see law 2 |
//!
//! Only a damaged volume has entries of the last three kinds.
//!
//! Laws:
//!
//! 1. The kind of a reference is read before the first change of an operation: an error of a read
//!    in the midst would leave a part of the change. Changes read nothing but the items that they
//!    alter.
//! 2. A stale name is no link of its inode. Removing or replacing it removes the entry alone, and
//!    leaves the inode, its link count and its references. The caller refuses to rename or exchange
//!    it, because the name at the new place would be stale too.

use crate::entry;
use crate::error::NamesError;
use crate::items::ReadItems;
use crate::reference;
use butternut_format::units::Ino;

/// An existing name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OldName<'a> {
    pub dir: Ino,
    pub name: &'a [u8],
    pub target: OldTarget,
}

/// The target of an existing name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OldTarget {
    /// An inode with a reference to the name. The reference holds the index of the name.
    Inode(Ino),
    /// An inode with a reference to the name, whose index is wrong; and the index of the entry.
    WrongIndex { ino: Ino, index: u64 },
    /// A target without a reference to the name, with the index of the entry. For a subvolume, the
    /// index is in its reference in the root tree, or comes from
    /// [`find_index`](crate::find_index); for an inode, it comes from [`backref`].
    Unreferenced { index: u64 },
}

/// How the inode of a name refers back to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Backref {
    Present,
    /// The directory lists the name under this index, and not under that of the reference.
    WrongIndex {
        index: u64,
    },
    /// The index is 0, which no entry has, if the listing of the directory has lost the name too.
    Lost {
        index: u64,
    },
    /// The index as for `Lost`.
    Stale {
        index: u64,
    },
}

impl Backref {
    /// Returns the target of a name of `ino`.
    pub fn target(self, ino: Ino) -> OldTarget {
        match self {
            Self::Present => OldTarget::Inode(ino),
            Self::WrongIndex { index } => OldTarget::WrongIndex { ino, index },
            Self::Lost { index } | Self::Stale { index } => OldTarget::Unreferenced { index },
        }
    }

    pub fn is_stale(self) -> bool {
        matches!(self, Self::Stale { .. })
    }
}

/// Returns how an inode with `nlink` links refers back to the name of an existing entry.
///
/// # Errors
/// A block cannot be read, or an item is corrupt.
pub fn backref(
    tree: &impl ReadItems,
    (dir, name): (Ino, &[u8]),
    (ino, nlink): (Ino, u32),
) -> Result<Backref, NamesError> {
    const UNUSED_INDEX: u64 = 0;
    if let Some(index) = reference::index(tree, ino, dir, name)? {
        if entry::is_listed_at(tree, dir, name, index)? {
            return Ok(Backref::Present);
        }
        let found = entry::find_index(tree, dir, name)?;
        return Ok(found.map_or(Backref::Present, |index| Backref::WrongIndex { index }));
    }
    let index = entry::find_index(tree, dir, name)?.unwrap_or(UNUSED_INDEX);
    let is_complete = reference::count(tree, ino, nlink)? >= nlink;
    Ok(if is_complete { Backref::Stale { index } } else { Backref::Lost { index } })
}
