//! [`Records`]: the pax records of one member, `LENGTH KEY=VALUE` and a newline.
//!
//! Names and values are as in the volume, and need not be UTF-8: GNU tar writes such names in this
//! way, too. In the name of an attribute, it encodes `=` and `%`.

use std::fmt::Write as _;

/// The versions of access lists that exist; and the length of their header, and of an entry.
const ACL_VERSION: u32 = 2;
const ACL_HEADER_BYTES: usize = 4;
const ACL_ENTRY_BYTES: usize = 8;

/// The records of one member.
#[derive(Default)]
pub(super) struct Records {
    bytes: Vec<u8>,
}

impl Records {
    pub(super) fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    pub(super) fn add(&mut self, key: &[u8], value: &[u8]) {
        // A space, "=" and a newline. The length counts its own digits.
        let rest = key.len() + value.len() + 3;
        let mut bytes = rest;
        while bytes != rest + digits(bytes) {
            bytes = rest + digits(bytes);
        }
        self.bytes.extend_from_slice(format!("{bytes} ").as_bytes());
        self.bytes.extend_from_slice(key);
        self.bytes.push(b'=');
        self.bytes.extend_from_slice(value);
        self.bytes.push(b'\n');
    }

    /// Adds an extended attribute. An access list is written in its text form, which tar programs
    /// read.
    pub(super) fn add_xattr(&mut self, name: &[u8], value: &[u8]) {
        let acl = match name {
            b"system.posix_acl_access" => acl_text(value).map(|text| ("SCHILY.acl.access", text)),
            b"system.posix_acl_default" => acl_text(value).map(|text| ("SCHILY.acl.default", text)),
            _ => None,
        };
        match acl {
            Some((key, text)) => self.add(key.as_bytes(), text.as_bytes()),
            None => self.add(&[b"SCHILY.xattr.", &*keyword(name)].concat(), value),
        }
    }
}

/// Returns the name of an attribute in the form of a key, which ends at the first `=`: GNU tar
/// encodes that, and `%`.
fn keyword(name: &[u8]) -> Vec<u8> {
    let encoded = name.iter().flat_map(|byte| match byte {
        b'%' => &b"%25"[..],
        b'=' => &b"%3D"[..],
        other => std::slice::from_ref(other),
    });
    encoded.copied().collect()
}

fn digits(number: usize) -> usize {
    number.to_string().len()
}

/// Returns an access list as text with numeric ids: `user::rw-,user:1000:r--,...`; `None` if it is
/// not one that this code knows.
fn acl_text(value: &[u8]) -> Option<String> {
    let (version, entries) = value.split_at_checked(ACL_HEADER_BYTES)?;
    if u32::from_le_bytes(version.try_into().ok()?) != ACL_VERSION {
        return None;
    }
    let (entries, rest) = entries.as_chunks::<ACL_ENTRY_BYTES>();
    let mut text = String::new();
    for entry in entries {
        let [tag, tag_high, bits, bits_high, id @ ..] = *entry;
        let (tag, bits) =
            (u16::from_le_bytes([tag, tag_high]), u16::from_le_bytes([bits, bits_high]));
        let id = u32::from_le_bytes(id);
        let (kind, named) = match tag {
            0x01 => ("user", false),
            0x02 => ("user", true),
            0x04 => ("group", false),
            0x08 => ("group", true),
            0x10 => ("mask", false),
            0x20 => ("other", false),
            _ => return None,
        };
        let letter = |bit: u16, letter: char| if bits & bit > 0 { letter } else { '-' };
        let mode = [letter(4, 'r'), letter(2, 'w'), letter(1, 'x')];
        let (comma, id) = (
            if text.is_empty() { "" } else { "," },
            if named { id.to_string() } else { String::new() },
        );
        write!(text, "{comma}{kind}:{id}:{}", String::from_iter(mode)).ok()?;
    }
    (rest.is_empty() && !text.is_empty()).then_some(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_length_of_a_record_counts_its_own_digits() {
        let mut records = Records::default();
        records.add(b"path", b"x");
        assert_eq!(records.bytes(), b"9 path=x\n");
        for bytes in [85, 90, 91, 92, 990, 995] {
            let mut records = Records::default();
            records.add(b"path", &vec![b'n'; bytes]);
            let text = String::from_utf8(records.bytes().to_vec()).unwrap();
            let length: usize = text.split(' ').next().unwrap().parse().unwrap();
            assert_eq!(length, text.len(), "{bytes}");
        }
    }

    #[test]
    fn the_name_of_an_attribute_does_not_end_its_key() {
        let mut records = Records::default();
        records.add_xattr(b"user.a=b%3D", b"=v");
        assert_eq!(records.bytes(), b"35 SCHILY.xattr.user.a%3Db%253D==v\n");
    }

    #[test]
    fn access_lists_become_text() {
        let entry = |tag: u16, bits: u16, id: u32| {
            [&tag.to_le_bytes()[..], &bits.to_le_bytes(), &id.to_le_bytes()].concat()
        };
        let none = u32::MAX;
        let entries = [
            entry(1, 6, none),
            entry(2, 4, 1000),
            entry(4, 5, none),
            entry(8, 0, 5),
            entry(16, 7, none),
            entry(32, 1, none),
        ];
        let value = [&2_u32.to_le_bytes()[..], &entries.concat()].concat();
        let want = "user::rw-,user:1000:r--,group::r-x,group:5:---,mask::rwx,other::--x";
        assert_eq!(acl_text(&value).as_deref(), Some(want));
        for damaged in [&value[..3], &value[..7], &[&value[..], &[1]].concat(), &[3, 0, 0, 0]] {
            assert_eq!(acl_text(damaged), None);
        }
    }
}
