//! Access lists: from the text that an archive has to the value of the extended attribute.
//!
//! An id is a number, or a number behind the name as star writes it, or else the name of a user or
//! group of this machine, as GNU tar takes it.

use super::super::super::chown::owner::{group_id, user_id};

const VERSION: u32 = 2;
/// The id of an entry that names nothing.
const NO_ID: u32 = u32::MAX;

/// Returns the value of the extended attribute for the text of an access list, or the entry that is
/// not understood.
pub(super) fn value_of(text: &[u8]) -> Result<Vec<u8>, String> {
    let text = String::from_utf8_lossy(text);
    let mut entries = Vec::new();
    for entry in text.split([',', '\n']) {
        let entry = entry.split('#').next().unwrap_or_default().trim();
        if !entry.is_empty() {
            entries.push(parse(entry).ok_or_else(|| entry.to_owned())?);
        }
    }
    // The kernel wants them in this order.
    entries.sort_unstable();
    let mut value = VERSION.to_le_bytes().to_vec();
    for (tag, id, bits) in entries {
        value.extend_from_slice(&tag.to_le_bytes());
        value.extend_from_slice(&bits.to_le_bytes());
        value.extend_from_slice(&id.to_le_bytes());
    }
    Ok(value)
}

/// Parses `KIND:NAME:BITS`, perhaps with `:ID`. Returns tag, id and permissions.
fn parse(entry: &str) -> Option<(u16, u32, u16)> {
    let mut fields = entry.split(':');
    let (kind, name, bits) = (fields.next()?, fields.next()?, fields.next()?);
    let number = fields.next();
    if fields.next().is_some() {
        return None;
    }
    let bits = bits.trim().chars().try_fold(0, |bits: u16, letter| match letter {
        'r' => Some(bits | 4),
        'w' => Some(bits | 2),
        'x' => Some(bits | 1),
        '-' => Some(bits),
        _ => None,
    })?;
    let id = |find: fn(&str) -> Option<u32>| {
        let id = match number {
            Some(number) => number.parse().ok(),
            None => name.parse().ok().or_else(|| find(name)),
        };
        id.filter(|id| *id != NO_ID)
    };
    let (tag, id) = match (kind, name.is_empty()) {
        ("user" | "u", true) => (0x01, NO_ID),
        ("user" | "u", false) => (0x02, id(user_id)?),
        ("group" | "g", true) => (0x04, NO_ID),
        ("group" | "g", false) => (0x08, id(group_id)?),
        ("mask" | "m", true) => (0x10, NO_ID),
        ("other" | "o", true) => (0x20, NO_ID),
        _ => return None,
    };
    Some((tag, id, bits))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_become_values() {
        let text = "user::rw-,other::--x,mask::rwx,user:1000:r--,group::r-x,user:no one:-w-:7";
        let entry =
            |tag: u8, bits: u8, id: u32| [&[tag, 0, bits, 0][..], &id.to_le_bytes()].concat();
        let want = [
            vec![2, 0, 0, 0],
            entry(1, 6, NO_ID),
            entry(2, 2, 7),
            entry(2, 4, 1000),
            entry(4, 5, NO_ID),
            entry(16, 7, NO_ID),
            entry(32, 1, NO_ID),
        ];
        assert_eq!(value_of(text.as_bytes()), Ok(want.concat()));
        assert_eq!(value_of(b"user:root:r--\n").map(|value| value[8..].to_vec()), Ok(vec![0; 4]));
        for wrong in ["user", "user::rwz", "user:no such user:r--", "what::r--", "mask:5:rwx"] {
            assert_eq!(value_of(wrong.as_bytes()), Err(wrong.to_owned()));
        }
    }
}
