//! Names given, taken, moved and exchanged: the entry in its directory together with the reference
//! at its inode.
//!
//! | function | entry | reference |
//! |---|---|---|
//! | [`create`] | added, and the inode with it | added |
//! | [`link`] | added | added |
//! | [`unlink`] | taken out | taken out |
//! | [`unlink_last`] | taken out | taken out, and the inode with it |
//! | [`rename`] | taken out at one place, added or replaced at another | moved |
//! | [`exchange`] | each at its place, leading to the other's target | moved, both |
//!
//! Laws:
//!
//! 1. A change that is refused has changed nothing; see [`NamesError`].
//! 2. An entry that moves gets a new index, so that a listing under way sees it at most twice and
//!    never misses one that stood still.
//!
//! Left to others: the inodes themselves, their sizes, counts and times (`inode`), the references
//! of subvolumes in the root tree (`root_ref`), permissions and loops in the directory tree (`fs`).

use crate::entry::{self, NewName, check_new};
use crate::error::{NamesError, corrupt_midway};
use crate::inode::{insert_inode, remove_inode};
use crate::items::Edit;
use crate::lookup::{Found, Target};
use crate::reference;
use butternut_format::checksum::name_hash;
use butternut_format::inode::{FileKind, Inode};
use butternut_format::inode_ref::InodeRef;
use butternut_format::key::{ItemType, Key};
use butternut_format::refused::Refused;
use butternut_format::units::{Generation, Ino};

/// A name that is there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OldName<'a> {
    pub dir: Ino,
    pub name: &'a [u8],
    pub leads: Leads,
}

/// What an old name leads to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Leads {
    /// An inode, which knows the index of its name.
    Inode(Ino),
    /// A subvolume: its reference in the root tree knows the index, or
    /// [`find_index`](crate::find_index) does.
    Subvolume { index: u64 },
}

/// Where a name is moved to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Move<'a> {
    pub from: OldName<'a>,
    pub to: NewName<'a>,
    /// What `to` leads to so far. It loses that name.
    pub replaces: Option<Leads>,
}

/// Writes a new inode and gives it its first name.
pub fn create(
    edit: &impl Edit,
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

/// Gives an inode or a subvolume a name.
pub fn link(edit: &impl Edit, new: &NewName<'_>) -> Result<(), NamesError> {
    check_new(new.name)?;
    add_reference(edit, new)?;
    entry::add(edit, new).or_else(|refused| {
        take_back(edit, new)?;
        Err(refused)
    })
}

/// Takes a name away; the index that it had.
pub fn unlink(edit: &impl Edit, old: &OldName<'_>) -> Result<u64, NamesError> {
    let index = take_reference(edit, old)?;
    entry::remove(edit, old.dir, old.name, index)?;
    Ok(index)
}

/// Takes the only name of an inode away, and all items of the inode as
/// [`remove_inode`](crate::remove_inode) does: one walk over what lies together. The entry must
/// have been looked up.
pub fn unlink_last(
    edit: &impl Edit,
    (dir, name): (Ino, &[u8]),
    (ino, kind): (Ino, FileKind),
    see: &mut dyn FnMut(Key, &[u8]),
) -> Result<(), NamesError> {
    let mut index = None;
    remove_inode(edit, ino, kind, &mut |key, item| {
        index = index.or_else(|| reference::index_of(key, item, dir, name));
        see(key, item);
    })?;
    let Some(index) = index else {
        let key = Key::new(ino.0, ItemType::INODE_REF, dir.0);
        return Err(corrupt_midway(edit, key, no_reference()));
    };
    entry::remove(edit, dir, name, index)
}

fn no_reference() -> Refused {
    Refused::new("reference", "none", "one to the name")
}

/// Moves a name that is there, over the one at its new place where `replaces` says so.
///
/// Both names must not lead to the same inode: that rename changes nothing and is the caller's to
/// see.
pub fn rename(edit: &impl Edit, change: &Move<'_>) -> Result<(), NamesError> {
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
        Some(leads) => {
            let old_index = move_reference(edit, from, to)?;
            let victim = OldName { dir: to.dir, name: to.name, leads: *leads };
            let index = take_known_reference(edit, &victim)?;
            entry::replace(edit, to, index)?;
            old_index
        }
    };
    entry::remove(edit, from.dir, from.name, old_index)
}

/// Lets the reference to a name lead to another; the index that the old name had.
fn move_reference(
    edit: &impl Edit,
    from: &OldName<'_>,
    to: &NewName<'_>,
) -> Result<u64, NamesError> {
    let at_once = match from.leads {
        Leads::Inode(ino) if from.dir == to.dir => {
            let new = InodeRef { index: to.index, name: to.name };
            reference::rename(edit, ino, to.dir, from.name, &new)?
        }
        Leads::Inode(_) | Leads::Subvolume { .. } => None,
    };
    if let Some(index) = at_once {
        return Ok(index);
    }
    add_reference(edit, to)?;
    take_known_reference(edit, from)
}

/// Lets two names change places. Each gets an index of its own in its directory.
pub fn exchange(
    edit: &impl Edit,
    one: &Exchanged<'_>,
    other: &Exchanged<'_>,
    generation: Generation,
) -> Result<(), NamesError> {
    let to_one = one.leading_to(other.found, generation);
    let to_other = other.leading_to(one.found, generation);
    add_reference(edit, &to_one)?;
    add_reference(edit, &to_other).or_else(|refused| {
        take_back(edit, &to_one)?;
        Err(refused)
    })?;
    let one_index = take_known_reference(edit, &one.old())?;
    let other_index = take_known_reference(edit, &other.old())?;
    entry::replace(edit, &to_other, other_index)?;
    entry::replace(edit, &to_one, one_index)
}

/// One side of an exchange.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Exchanged<'a> {
    pub dir: Ino,
    pub name: &'a [u8],
    /// What the name leads to before the exchange.
    pub found: Found,
    /// The index before the exchange: of subvolumes only, inodes know theirs.
    pub subvolume_index: u64,
    /// The index that the name shall have.
    pub index: u64,
}

impl<'a> Exchanged<'a> {
    fn old(&self) -> OldName<'a> {
        let leads = match self.found.target {
            Target::Inode(ino) => Leads::Inode(ino),
            Target::Subvolume(_) => Leads::Subvolume { index: self.subvolume_index },
        };
        OldName { dir: self.dir, name: self.name, leads }
    }

    fn leading_to(&self, leads: Found, generation: Generation) -> NewName<'a> {
        NewName { dir: self.dir, name: self.name, index: self.index, leads, generation }
    }
}

fn add_reference(edit: &impl Edit, new: &NewName<'_>) -> Result<(), NamesError> {
    match new.leads.target {
        Target::Inode(ino) => {
            let reference = InodeRef { index: new.index, name: new.name };
            reference::add(edit, ino, new.dir, &reference)
        }
        Target::Subvolume(_) => Ok(()),
    }
}

/// As [`take_reference`], in the midst of a change: the name was looked up before.
fn take_known_reference(edit: &impl Edit, old: &OldName<'_>) -> Result<u64, NamesError> {
    take_reference(edit, old).map_err(|error| {
        if !matches!(error, NamesError::NoEntry) {
            return error;
        }
        let key = Key::new(old.dir.0, ItemType::DIR_ITEM, name_hash(old.name));
        corrupt_midway(edit, key, no_reference())
    })
}

/// Undoes [`add_reference`].
fn take_back(edit: &impl Edit, new: &NewName<'_>) -> Result<(), NamesError> {
    match new.leads.target {
        Target::Inode(ino) => reference::remove(edit, ino, new.dir, new.name).map(drop),
        Target::Subvolume(_) => Ok(()),
    }
}

fn take_reference(edit: &impl Edit, old: &OldName<'_>) -> Result<u64, NamesError> {
    match old.leads {
        Leads::Inode(ino) => reference::remove(edit, ino, old.dir, old.name),
        Leads::Subvolume { index } => Ok(index),
    }
}

#[cfg(test)]
mod tests;
