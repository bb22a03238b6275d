//! Directory entries and extended attributes: one structure for three item types.
//!
//! ```text
//! RawDirItem
//! 0          17        25         27         29           30
//! | location | transid | data_len | name_len | entry_type |
//! then `name_len` bytes of name, then `data_len` bytes of data
//! ```
//!
//! A name in a directory is stored twice: as `DIR_ITEM` keyed by the hash of the name, for lookup,
//! and as `DIR_INDEX` keyed by a number that only grows, for listing in a stable order. An
//! `XATTR_ITEM` is keyed by the hash of the attribute's name, and is the only one with data. Items
//! keyed by a hash have several entries if hashes collide; a `DIR_INDEX` has one.
//!
//! Laws, for each entry of [`DirEntries`]:
//!
//! 1. The entry with its name and data is inside the item.
//! 2. `entry_type` is one of the known types; only attributes have data.
//! 3. A name has 1 to 255 bytes and no NUL; only the name of an attribute may contain `/`.
//!
//! [`DirEntry::append_to`] encodes an entry, and [`without_entry`] removes one from an item.
//!
//! [`crate::check`] checks what depends on the key (hash, type, valid values of `location`).

use crate::inode::FileKind;
use crate::key::{Key, RawKey};
use crate::refused::{Refused, require};
use crate::units::Generation;
use std::fmt;
use zerocopy::little_endian::{U16, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Maximum length in bytes of the name of a file or an attribute.
pub const NAME_BYTES_MAX: usize = 255;

/// An entry in its on-disk form (`struct btrfs_dir_item`).
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct RawDirItem {
    pub location: RawKey,
    pub transid: U64,
    pub data_len: U16,
    pub name_len: U16,
    /// The kernel's `type`.
    pub entry_type: u8,
}
const _: () = assert!(size_of::<RawDirItem>() == 30);

/// What an entry is for: a file of some type, or an attribute.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum EntryKind {
    File(FileKind),
    Xattr,
}

/// An entry that satisfies the laws above.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DirEntry<'a> {
    /// The key of the inode item or root item that the name refers to; zero for attributes.
    pub location: Key,
    pub transid: Generation,
    pub kind: EntryKind,
    pub name: &'a [u8],
    /// The value of an attribute; empty for names in directories.
    pub data: &'a [u8],
}

/// The entries of one item. Ends after the first invalid entry.
#[derive(Clone, Debug)]
pub struct DirEntries<'a> {
    rest: &'a [u8],
}

impl DirEntry<'_> {
    /// Returns the size of the entry in bytes.
    pub fn item_bytes(&self) -> usize {
        size_of::<RawDirItem>().saturating_add(self.name.len()).saturating_add(self.data.len())
    }

    /// Appends the bytes of the entry to an item. Name and data must be within their limits:
    /// [`NAME_BYTES_MAX`], and what fits into a leaf.
    pub fn append_to(&self, item: &mut Vec<u8>) {
        let raw = RawDirItem {
            location: RawKey::from(self.location),
            transid: U64::new(self.transid.0),
            data_len: short_length(self.data),
            name_len: short_length(self.name),
            entry_type: self.kind.entry_type(),
        };
        item.reserve(self.item_bytes());
        item.extend_from_slice(raw.as_bytes());
        item.extend_from_slice(self.name);
        item.extend_from_slice(self.data);
    }

    pub fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        self.append_to(&mut bytes);
        bytes
    }
}

impl EntryKind {
    /// Returns the kind of an `entry_type`, or `None` for an unknown one.
    pub fn from_entry_type(entry_type: u8) -> Option<Self> {
        Some(match entry_type {
            1 => Self::File(FileKind::File),
            2 => Self::File(FileKind::Directory),
            3 => Self::File(FileKind::CharDevice),
            4 => Self::File(FileKind::BlockDevice),
            5 => Self::File(FileKind::Fifo),
            6 => Self::File(FileKind::Socket),
            7 => Self::File(FileKind::Symlink),
            8 => Self::Xattr,
            _ => return None,
        })
    }

    pub fn entry_type(self) -> u8 {
        match self {
            Self::File(FileKind::File) => 1,
            Self::File(FileKind::Directory) => 2,
            Self::File(FileKind::CharDevice) => 3,
            Self::File(FileKind::BlockDevice) => 4,
            Self::File(FileKind::Fifo) => 5,
            Self::File(FileKind::Socket) => 6,
            Self::File(FileKind::Symlink) => 7,
            Self::Xattr => 8,
        }
    }
}

impl<'a> DirEntries<'a> {
    pub fn new(item: &'a [u8]) -> Self {
        Self { rest: item }
    }

    fn split(&mut self) -> Result<DirEntry<'a>, Refused> {
        let (raw, rest) = RawDirItem::ref_from_prefix(self.rest).map_err(|_| {
            let want = format_args!("at least {}", size_of::<RawDirItem>());
            Refused::new("bytes left in item", self.rest.len(), want)
        })?;
        let kind = EntryKind::from_entry_type(raw.entry_type)
            .ok_or_else(|| Refused::new("type", raw.entry_type, "1 to 8"))?;
        let (name, rest) = split(rest, raw.name_len, "name_len")?;
        let (data, rest) = split(rest, raw.data_len, "data_len")?;
        match kind {
            EntryKind::File(_) => {
                check_entry_name(name)?;
                require(data.is_empty(), "data_len", data.len(), "0 outside attributes")?;
            }
            EntryKind::Xattr => check_xattr_name(name)?,
        }
        self.rest = rest;
        let location = Key::from(&raw.location);
        Ok(DirEntry { location, transid: Generation(raw.transid.get()), kind, name, data })
    }
}

impl<'a> Iterator for DirEntries<'a> {
    type Item = Result<DirEntry<'a>, Refused>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.rest.is_empty() {
            return None;
        }
        Some(self.split().inspect_err(|_| self.rest = &[]))
    }
}

/// Returns the item without its entry of this name, which is empty if that was the only one.
/// Returns `None` if the item has no such entry.
pub fn without_entry(item: &[u8], name: &[u8]) -> Result<Option<Vec<u8>>, Refused> {
    let mut entries = DirEntries::new(item);
    let mut before = item.len();
    while let Some(entry) = entries.next() {
        let entry = entry?;
        let after = entries.rest.len();
        if entry.name == name {
            return Ok(Some(cut(item, before, after)));
        }
        before = after;
    }
    Ok(None)
}

/// Removes the bytes from `before` to `after` bytes in front of the end of an item.
pub(crate) fn cut(item: &[u8], before: usize, after: usize) -> Vec<u8> {
    let front = item.len().saturating_sub(before);
    let back = item.len().saturating_sub(after);
    let parts = [item.get(..front), item.get(back..)];
    parts.map(Option::unwrap_or_default).concat()
}

/// Returns the length of a name or a value that is known to be within its limit.
pub(crate) fn short_length(bytes: &[u8]) -> U16 {
    U16::new(u16::try_from(bytes.len()).unwrap_or(u16::MAX))
}

/// Checks the name of a directory entry. `.` and `..` are refused: a path through such an entry
/// would lead elsewhere.
pub fn check_entry_name(name: &[u8]) -> Result<(), Refused> {
    check_name(name)?;
    require(!matches!(name, b"." | b".."), "name", ShownName(name), "neither '.' nor '..'")
}

/// Checks the name of an inode reference. The root directory of a subvolume has one of name `..`.
pub fn check_name(name: &[u8]) -> Result<(), Refused> {
    check_xattr_name(name)?;
    require(!name.contains(&b'/'), "name", ShownName(name), "no '/'")
}

/// Checks the name of an extended attribute.
pub fn check_xattr_name(name: &[u8]) -> Result<(), Refused> {
    let want = format_args!("1 to {NAME_BYTES_MAX}");
    require((1..=NAME_BYTES_MAX).contains(&name.len()), "name_len", name.len(), want)?;
    require(!name.contains(&0), "name", ShownName(name), "no NUL")
}

fn split<'a>(
    bytes: &'a [u8],
    len: U16,
    field: &'static str,
) -> Result<(&'a [u8], &'a [u8]), Refused> {
    let len = usize::from(len.get());
    bytes
        .split_at_checked(len)
        .ok_or_else(|| Refused::new(field, len, format_args!("at most the {} left", bytes.len())))
}

/// Displays a name in an error, with unprintable bytes escaped.
struct ShownName<'a>(&'a [u8]);

impl fmt::Display for ShownName<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "\"{}\"", self.0.escape_ascii())
    }
}
