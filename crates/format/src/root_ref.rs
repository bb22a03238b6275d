//! Root references: the directory entry of a subvolume in its parent subvolume.
//!
//! ```text
//! RawRootRef
//! 0       8          16         18
//! | dirid | sequence | name_len |    then `name_len` bytes of name
//! ```
//!
//! The root tree stores the same bytes twice: forward under (parent, `ROOT_REF`, child) and back
//! under (child, `ROOT_BACKREF`, parent).
//!
//! 1. The item is exactly the struct and its name.
//! 2. A name has 1 to 255 bytes, none of them `/` or NUL.

use crate::dir::{check_entry_name, short_length};
use crate::refused::{Refused, require};
use crate::units::Ino;
use zerocopy::little_endian::{U16, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// A root reference in its on-disk form (`struct btrfs_root_ref`), without its name.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct RawRootRef {
    pub dirid: U64,
    pub sequence: U64,
    pub name_len: U16,
}
const _: () = assert!(size_of::<RawRootRef>() == 18);

/// The directory entry of a subvolume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RootRef<'a> {
    /// The directory, in the parent subvolume.
    pub dir: Ino,
    /// The key offset of the name's `DIR_INDEX` item.
    pub index: u64,
    pub name: &'a [u8],
}

impl<'a> RootRef<'a> {
    pub fn check(data: &'a [u8]) -> Result<Self, Refused> {
        let (raw, name) = RawRootRef::ref_from_prefix(data)
            .map_err(|_| Refused::new("item size", data.len(), "at least 18"))?;
        let named = usize::from(raw.name_len.get());
        require(name.len() == named, "name_len", named, name.len())?;
        check_entry_name(name)?;
        Ok(Self { dir: Ino(raw.dirid.get()), index: raw.sequence.get(), name })
    }

    /// Returns the bytes of the item. The name must be valid ([`check_entry_name`]).
    pub fn to_bytes(&self) -> Vec<u8> {
        let raw = RawRootRef {
            dirid: U64::new(self.dir.0),
            sequence: U64::new(self.index),
            name_len: short_length(self.name),
        };
        [raw.as_bytes(), self.name].concat()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_of_another_length_than_the_item_is_refused() {
        let mut bytes =
            RawRootRef { dirid: U64::new(256), sequence: U64::new(2), name_len: U16::new(3) }
                .as_bytes()
                .to_vec();
        bytes.extend_from_slice(b"snap");
        let refused = RootRef::check(&bytes).unwrap_err();
        assert_eq!(refused.to_string(), "name_len: have 3, want 4");
        bytes[16] = 4;
        let reference = RootRef::check(&bytes).unwrap();
        assert_eq!(reference.name, b"snap");
        assert_eq!(reference.to_bytes(), bytes);
    }
}
