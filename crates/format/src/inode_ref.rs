//! Inode references: the names of an inode, stored next to the inode item, in two forms.
//!
//! ```text
//! RawInodeRef
//! 0       8          10
//! | index | name_len |    then `name_len` bytes of name
//!
//! RawInodeExtref
//! 0                 8       16         18
//! | parent_objectid | index | name_len |    then `name_len` bytes of name
//! ```
//!
//! An `INODE_REF` item has the key (ino, 12, parent) and lists the names of the inode in one parent
//! directory. When it is full, further names go to `INODE_EXTREF` items, with the key (ino, 13,
//! hash of parent and name). Entries whose hashes collide share an item.
//!
//! Laws, for each entry of [`InodeRefs`] and [`InodeExtrefs`]:
//!
//! 1. The entry with its name is inside the item.
//! 2. A name has 1 to 255 bytes, none of them `/` or NUL.
//!
//! [`crate::check`] checks what depends on the key (the hash), and that no item is empty.
//!
//! `append_to` encodes an entry; [`without_ref`] and [`without_extref`] remove one from an item.

use crate::dir::{check_name, cut, short_length};
use crate::refused::Refused;
use crate::units::Ino;
use zerocopy::little_endian::{U16, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// One name of an `INODE_REF` item in its on-disk form (`struct btrfs_inode_ref`).
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct RawInodeRef {
    pub index: U64,
    pub name_len: U16,
}
const _: () = assert!(size_of::<RawInodeRef>() == 10);

/// One name of an `INODE_EXTREF` item in its on-disk form (`struct btrfs_inode_extref`).
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct RawInodeExtref {
    pub parent_objectid: U64,
    pub index: U64,
    pub name_len: U16,
}
const _: () = assert!(size_of::<RawInodeExtref>() == 18);

/// A name of an inode in the directory of the item's key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InodeRef<'a> {
    /// The key offset of the name's `DIR_INDEX` item.
    pub index: u64,
    pub name: &'a [u8],
}

/// A name of an inode in the directory `parent`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InodeExtref<'a> {
    pub parent: Ino,
    /// The key offset of the name's `DIR_INDEX` item.
    pub index: u64,
    pub name: &'a [u8],
}

/// The names of an `INODE_REF` item. Ends after the first invalid entry.
#[derive(Clone, Debug)]
pub struct InodeRefs<'a> {
    rest: &'a [u8],
}

/// The names of an `INODE_EXTREF` item. Ends after the first invalid entry.
#[derive(Clone, Debug)]
pub struct InodeExtrefs<'a> {
    rest: &'a [u8],
}

/// An item without one of its entries, and the index of that entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shortened {
    /// The remaining item; empty if the entry was the only one.
    pub item: Vec<u8>,
    pub index: u64,
}

impl InodeRef<'_> {
    /// Returns the size of the entry in bytes.
    pub fn item_bytes(&self) -> usize {
        size_of::<RawInodeRef>().saturating_add(self.name.len())
    }

    /// Appends the bytes of the entry. The name must be valid ([`check_name`]).
    pub fn append_to(&self, item: &mut Vec<u8>) {
        let raw = RawInodeRef { index: U64::new(self.index), name_len: short_length(self.name) };
        item.reserve(self.item_bytes());
        item.extend_from_slice(raw.as_bytes());
        item.extend_from_slice(self.name);
    }
}

impl InodeExtref<'_> {
    /// Returns the size of the entry in bytes.
    pub fn item_bytes(&self) -> usize {
        size_of::<RawInodeExtref>().saturating_add(self.name.len())
    }

    /// Appends the bytes of the entry. The name must be valid ([`check_name`]).
    pub fn append_to(&self, item: &mut Vec<u8>) {
        let raw = RawInodeExtref {
            parent_objectid: U64::new(self.parent.0),
            index: U64::new(self.index),
            name_len: short_length(self.name),
        };
        item.reserve(self.item_bytes());
        item.extend_from_slice(raw.as_bytes());
        item.extend_from_slice(self.name);
    }
}

/// Removes the entry with this name from an `INODE_REF` item. Returns `None` if there is none.
pub fn without_ref(item: &[u8], name: &[u8]) -> Result<Option<Shortened>, Refused> {
    let mut entries = InodeRefs::new(item);
    let mut before = item.len();
    while let Some(entry) = entries.next() {
        let entry = entry?;
        let after = entries.rest.len();
        if entry.name == name {
            return Ok(Some(Shortened { item: cut(item, before, after), index: entry.index }));
        }
        before = after;
    }
    Ok(None)
}

/// Removes the entry with this name in this directory from an `INODE_EXTREF` item. Returns `None`
/// if there is none.
pub fn without_extref(item: &[u8], parent: Ino, name: &[u8]) -> Result<Option<Shortened>, Refused> {
    let mut entries = InodeExtrefs::new(item);
    let mut before = item.len();
    while let Some(entry) = entries.next() {
        let entry = entry?;
        let after = entries.rest.len();
        if entry.parent == parent && entry.name == name {
            return Ok(Some(Shortened { item: cut(item, before, after), index: entry.index }));
        }
        before = after;
    }
    Ok(None)
}

impl<'a> InodeRefs<'a> {
    pub fn new(item: &'a [u8]) -> Self {
        Self { rest: item }
    }

    fn split(&mut self) -> Result<InodeRef<'a>, Refused> {
        let (raw, rest) = RawInodeRef::ref_from_prefix(self.rest)
            .map_err(|_| truncated(self.rest.len(), size_of::<RawInodeRef>()))?;
        let (name, rest) = split_name(rest, raw.name_len)?;
        self.rest = rest;
        Ok(InodeRef { index: raw.index.get(), name })
    }
}

impl<'a> InodeExtrefs<'a> {
    pub fn new(item: &'a [u8]) -> Self {
        Self { rest: item }
    }

    fn split(&mut self) -> Result<InodeExtref<'a>, Refused> {
        let (raw, rest) = RawInodeExtref::ref_from_prefix(self.rest)
            .map_err(|_| truncated(self.rest.len(), size_of::<RawInodeExtref>()))?;
        let (name, rest) = split_name(rest, raw.name_len)?;
        self.rest = rest;
        Ok(InodeExtref { parent: Ino(raw.parent_objectid.get()), index: raw.index.get(), name })
    }
}

impl<'a> Iterator for InodeRefs<'a> {
    type Item = Result<InodeRef<'a>, Refused>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.rest.is_empty() {
            return None;
        }
        Some(self.split().inspect_err(|_| self.rest = &[]))
    }
}

impl<'a> Iterator for InodeExtrefs<'a> {
    type Item = Result<InodeExtref<'a>, Refused>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.rest.is_empty() {
            return None;
        }
        Some(self.split().inspect_err(|_| self.rest = &[]))
    }
}

fn truncated(have: usize, want: usize) -> Refused {
    Refused::new("bytes left in item", have, format_args!("at least {want}"))
}

fn split_name(bytes: &[u8], name_len: U16) -> Result<(&[u8], &[u8]), Refused> {
    let name_bytes = usize::from(name_len.get());
    let (name, rest) = bytes.split_at_checked(name_bytes).ok_or_else(|| {
        Refused::new("name_len", name_bytes, format_args!("at most the {} left", bytes.len()))
    })?;
    check_name(name)?;
    Ok((name, rest))
}
