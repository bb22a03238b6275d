//! Changes of names: each changes the entry of the directory together with the reference of the
//! inode.
//!
//! | function | entry | reference |
//! |---|---|---|
//! | [`create`] | added, and the inode with it | added |
//! | [`link`] | added | added |
//! | [`unlink`] | removed | removed |
//! | [`unlink_last`] | removed | removed, and the inode with it |
//! | [`rename`] | removed from one directory, added to or replaced in another | moved |
//! | [`exchange`] | both are replaced, each with the target of the other | both are moved |
//! | [`replace`] | replaced | that of the old target is removed, that of the new one added |
//!
//! Laws:
//!
//! 1. A change that is refused has changed nothing; see [`NamesError`].
//! 2. After the first item that a change has changed, every error ends the transaction, except for
//!    a refusal that the change undoes. So that few errors remain, a change reads nothing on its
//!    own: the caller reads how inodes refer back to the old names before it ([`OldTarget`]).
//! 3. An entry that moves gets a new index, so that a listing that runs meanwhile returns it at
//!    most twice, and never misses an entry that did not move.
//!
//! Left to others: the sizes, link counts and times of inodes (`inode`), the references
//! of subvolumes in the root tree (`root_ref`), permissions and loops in the directory tree (`fs`).

use crate::entry::{self, NewName, check_new};
use crate::error::{NamesError, midway};
use crate::inode::{insert_inode, remove_inode};
use crate::items::EditItems;
use crate::lookup::{Found, Target};
use crate::old_name::{OldName, OldTarget};
use crate::reference;
use butternut_format::inode::{FileKind, Inode};
use butternut_format::inode_ref::InodeRef;
use butternut_format::key::Key;
use butternut_format::units::{Generation, Ino};

/// A rename.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Move<'a> {
    pub from: OldName<'a>,
    pub to: NewName<'a>,
    /// The target of `to` before the rename. It loses that name.
    pub replaces: Option<OldTarget>,
}

/// Inserts a new inode with its first name.
pub fn create(
    edit: &impl EditItems,
    new: &NewName<'_>,
    ino: Ino,
    inode: &Inode,
) -> Result<(), NamesError> {
    check_new(new.name)?;
    insert_inode(edit, ino, inode)?;
    link(edit, new).or_else(|refused| {
        remove_inode(edit, ino, inode.kind, &mut |_, _| {})?;
        Err(refused)
    })
}

/// Adds a name to an inode or a subvolume.
pub fn link(edit: &impl EditItems, new: &NewName<'_>) -> Result<(), NamesError> {
    check_new(new.name)?;
    add_reference(edit, new)?;
    entry::add(edit, new).or_else(|refused| {
        undo_add_reference(edit, new)?;
        Err(refused)
    })
}

/// Removes a name. Returns the index that it had.
pub fn unlink(edit: &impl EditItems, old: &OldName<'_>) -> Result<u64, NamesError> {
    let index = remove_reference(edit, old)?;
    entry::remove(edit, old.dir, old.name, index)?;
    Ok(index)
}

/// Removes the only name of an inode, and all items of the inode as
/// [`remove_inode`](crate::remove_inode) does, in one pass. The caller has looked the name up.
pub fn unlink_last(
    edit: &impl EditItems,
    old: &OldName<'_>,
    (ino, kind): (Ino, FileKind),
    visit: &mut dyn FnMut(Key, &[u8]),
) -> Result<(), NamesError> {
    let OldName { dir, name, target } = *old;
    let mut index = match target {
        OldTarget::Inode(_) => None,
        OldTarget::WrongIndex { index, .. } | OldTarget::Unreferenced { index } => Some(index),
    };
    remove_inode(edit, ino, kind, &mut |key, item| {
        index = index.or_else(|| reference::index_of(key, item, dir, name));
        visit(key, item);
    })?;
    let Some(index) = index else {
        return Err(midway(edit, NamesError::NoEntry));
    };
    entry::remove(edit, dir, name, index)
}

/// Moves a name, and replaces the name at its new place if `replaces` is set.
///
/// The two names must not have the same inode: the caller returns before such a rename, which
/// changes nothing.
pub fn rename(edit: &impl EditItems, change: &Move<'_>) -> Result<(), NamesError> {
    let Move { from, to, replaces } = change;
    check_new(to.name)?;
    let old_index = match replaces {
        None => {
            entry::add(edit, to)?;
            move_reference(edit, from, to).or_else(|refused| {
                entry::remove(edit, to.dir, to.name, to.index)?;
                Err(refused)
            })?
        }
        Some(target) => {
            let old_index = move_reference(edit, from, to)?;
            let victim = OldName { dir: to.dir, name: to.name, target: *target };
            let index = remove_known_reference(edit, &victim)?;
            entry::replace(edit, to, index)?;
            old_index
        }
    };
    entry::remove(edit, from.dir, from.name, old_index)
}

/// Changes the reference of the inode from the old name to the new one. Returns the index of the
/// old name.
fn move_reference(
    edit: &impl EditItems,
    from: &OldName<'_>,
    to: &NewName<'_>,
) -> Result<u64, NamesError> {
    let renamed = match from.target {
        OldTarget::Inode(ino) if from.dir == to.dir => {
            let new = InodeRef { index: to.index, name: to.name };
            reference::rename(edit, ino, to.dir, from.name, &new)?
        }
        OldTarget::Inode(_) | OldTarget::WrongIndex { .. } | OldTarget::Unreferenced { .. } => None,
    };
    if let Some(index) = renamed {
        return Ok(index);
    }
    add_reference(edit, to)?;
    remove_known_reference(edit, from)
}

/// Exchanges the targets of two names. Each name gets a new index in its directory.
pub fn exchange(
    edit: &impl EditItems,
    one: &Exchanged<'_>,
    other: &Exchanged<'_>,
    generation: Generation,
) -> Result<(), NamesError> {
    let to_one = one.entry_for(other.found, generation);
    let to_other = other.entry_for(one.found, generation);
    add_reference(edit, &to_one)?;
    add_reference(edit, &to_other).or_else(|refused| {
        undo_add_reference(edit, &to_one)?;
        Err(refused)
    })?;
    let one_index = remove_known_reference(edit, &one.old())?;
    let other_index = remove_known_reference(edit, &other.old())?;
    entry::replace(edit, &to_other, other_index)?;
    entry::replace(edit, &to_one, one_index)
}

/// Makes an existing name refer to another target, under a new index. `old` is how its target so
/// far refers back to it.
pub fn replace(edit: &impl EditItems, new: &NewName<'_>, old: OldTarget) -> Result<(), NamesError> {
    add_reference(edit, new)?;
    let old = OldName { dir: new.dir, name: new.name, target: old };
    let index = remove_known_reference(edit, &old)?;
    entry::replace(edit, new, index)
}

/// One side of an exchange.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Exchanged<'a> {
    pub dir: Ino,
    pub name: &'a [u8],
    /// The target of the name before the exchange.
    pub found: Found,
    /// How the target refers back to the name, as in [`OldName`].
    pub old_target: OldTarget,
    /// The index of the name after the exchange.
    pub index: u64,
}

impl<'a> Exchanged<'a> {
    fn old(&self) -> OldName<'a> {
        OldName { dir: self.dir, name: self.name, target: self.old_target }
    }

    fn entry_for(&self, found: Found, generation: Generation) -> NewName<'a> {
        NewName { dir: self.dir, name: self.name, index: self.index, found, generation }
    }
}

fn add_reference(edit: &impl EditItems, new: &NewName<'_>) -> Result<(), NamesError> {
    match new.found.target {
        Target::Inode(ino) => {
            let reference = InodeRef { index: new.index, name: new.name };
            reference::add(edit, ino, new.dir, &reference)
        }
        Target::Subvolume(_) => Ok(()),
    }
}

/// Removes a reference like [`remove_reference`], after the first change of an operation: an error
/// ends the transaction.
fn remove_known_reference(edit: &impl EditItems, old: &OldName<'_>) -> Result<u64, NamesError> {
    remove_reference(edit, old).map_err(|error| midway(edit, error))
}

/// Removes the reference that [`add_reference`] added.
fn undo_add_reference(edit: &impl EditItems, new: &NewName<'_>) -> Result<(), NamesError> {
    match new.found.target {
        Target::Inode(ino) => {
            let target = OldTarget::Inode(ino);
            remove_known_reference(edit, &OldName { dir: new.dir, name: new.name, target })
                .map(drop)
        }
        Target::Subvolume(_) => Ok(()),
    }
}

/// Removes the reference to a name. Returns the index of the name.
fn remove_reference(edit: &impl EditItems, old: &OldName<'_>) -> Result<u64, NamesError> {
    match old.target {
        OldTarget::Inode(ino) => reference::remove(edit, ino, old.dir, old.name),
        OldTarget::WrongIndex { ino, index } => {
            reference::remove(edit, ino, old.dir, old.name).map(|_| index)
        }
        OldTarget::Unreferenced { index } => Ok(index),
    }
}

#[cfg(test)]
mod tests;
