//! UUIDs, and the items of the UUID tree, which maps them to subvolumes.
//!
//! The key is the UUID itself: its first 8 bytes, little-endian, are the object id, and its last 8
//! bytes the offset. The type is `UUID_SUBVOL` for a subvolume's own UUID and
//! `UUID_RECEIVED_SUBVOL` for the UUID of the subvolume that it was received from. The item is a
//! list of 8-byte subvolume ids, at least one: several subvolumes may have been received from one.

use crate::key::{ItemType, Key};
use crate::refused::{Refused, require};
use crate::units::TreeId;
use std::fmt;
use zerocopy::FromBytes;
use zerocopy::little_endian::U64;

/// A UUID. `Display` shows the usual 8-4-4-4-12 form.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Uuid(pub [u8; 16]);

impl Uuid {
    pub const NIL: Self = Self([0; 16]);

    pub fn is_nil(self) -> bool {
        self == Self::NIL
    }

    /// Makes a version 4 UUID (RFC 9562) of random bytes.
    pub fn version_4(mut random: [u8; 16]) -> Self {
        random[6] = random[6] & 0x0f | 0x40;
        random[8] = random[8] & 0x3f | 0x80;
        Self(random)
    }

    /// Parses the 8-4-4-4-12 form, in upper or lower case.
    pub fn parse(text: &str) -> Option<Self> {
        let bytes = text.as_bytes();
        let dashes = [8, 13, 18, 23];
        let is_placed = |(at, byte): (usize, &u8)| (*byte == b'-') == dashes.contains(&at);
        if bytes.len() != 36 || !bytes.iter().enumerate().all(is_placed) {
            return None;
        }
        let digit = |byte: &u8| char::from(*byte).to_digit(16).and_then(|d| u8::try_from(d).ok());
        let mut digits = bytes.iter().filter(|byte| **byte != b'-').map(digit);
        let mut uuid = [0; 16];
        for byte in &mut uuid {
            *byte = digits.next()?? << 4 | digits.next()??;
        }
        Some(Self(uuid))
    }

    /// Returns the key of this UUID in the UUID tree; `item_type` is one of the two types.
    pub fn key(self, item_type: ItemType) -> Key {
        let halves: [U64; 2] = zerocopy::transmute!(self.0);
        let [objectid, offset] = halves.map(U64::get);
        Key::new(objectid, item_type, offset)
    }

    /// Returns the UUID of a key of the UUID tree.
    pub fn from_key(key: &Key) -> Self {
        let halves = [U64::new(key.objectid), U64::new(key.offset)];
        Self(zerocopy::transmute!(halves))
    }
}

impl fmt::Display for Uuid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, byte) in self.0.iter().enumerate() {
            if matches!(at, 4 | 6 | 8 | 10) {
                f.write_str("-")?;
            }
            write!(f, "{byte:02x}")?;
        }
        Ok(())
    }
}

/// Checks an item of the UUID tree and returns the subvolumes that it lists.
pub fn subvolume_ids(item: &[u8]) -> Result<impl Iterator<Item = TreeId> + '_, Refused> {
    let ids = <[U64]>::ref_from_bytes(item)
        .map_err(|_| Refused::new("item size", item.len(), "a multiple of 8"))?;
    require(!ids.is_empty(), "item size", 0, "at least 8")?;
    Ok(ids.iter().map(|id| TreeId(id.get())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_displayed_form_is_parsed() {
        let uuid = Uuid(*b"0123456789\xab\xcd\xef\x00\x7f\xff");
        assert_eq!(Uuid::parse(&uuid.to_string()), Some(uuid));
        assert_eq!(Uuid::parse(&uuid.to_string().to_uppercase()), Some(uuid));
        let wrong = [
            "",
            "30313233-3435-3637-3839-abcdef007ff",
            "30313233-3435-3637-3839-abcdef007fffa",
            "303132333435-3637-3839-abcd-ef007fff-",
            "30313233-3435-3637-3839-abcdef007ffg",
            "30313233-3435-3637-3839--abcdef007ff",
        ];
        assert!(wrong.iter().all(|text| Uuid::parse(text).is_none()));
    }
}
