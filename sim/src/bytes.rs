//! [`Bytes`]: names, paths and values. The text form escapes every byte that is not plain ASCII as
//! `\xNN`, so a script is a text file.

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::fmt;

#[derive(Clone, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Bytes(pub Vec<u8>);

impl Bytes {
    /// Returns the components of a path.
    pub fn components(&self) -> impl DoubleEndedIterator<Item = &[u8]> {
        self.0.split(|byte| *byte == b'/').filter(|name| !name.is_empty())
    }

    /// Returns the path of `name` in the directory at this path; the root is the empty path.
    #[must_use]
    pub fn join(&self, name: &[u8]) -> Bytes {
        let mut joined = self.0.clone();
        if !joined.is_empty() {
            joined.push(b'/');
        }
        joined.extend_from_slice(name);
        Bytes(joined)
    }
}

impl From<&str> for Bytes {
    fn from(text: &str) -> Bytes {
        Bytes(text.into())
    }
}

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for byte in &self.0 {
            match byte {
                b'\\' => f.write_str("\\\\")?,
                0x20..=0x7e => write!(f, "{}", char::from(*byte))?,
                _ => write!(f, "\\x{byte:02x}")?,
            }
        }
        Ok(())
    }
}

impl fmt::Debug for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "'{self}'")
    }
}

impl Serialize for Bytes {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Bytes {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let text = String::deserialize(from)?;
        parse(&text).ok_or_else(|| serde::de::Error::custom("an escape is \\\\ or \\xNN"))
    }
}

fn parse(text: &str) -> Option<Bytes> {
    let mut bytes = Vec::new();
    let mut rest = text.as_bytes();
    while let Some((first, after)) = rest.split_first() {
        rest = after;
        if *first != b'\\' {
            bytes.push(*first);
            continue;
        }
        match rest.split_first()? {
            (b'\\', after) => {
                bytes.push(b'\\');
                rest = after;
            }
            (b'x', after) => {
                let (digits, after) = after.split_at_checked(2)?;
                bytes.push(u8::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()?);
                rest = after;
            }
            _ => return None,
        }
    }
    Some(Bytes(bytes))
}

#[test]
fn any_byte_survives_the_text_form() {
    let bytes = Bytes((0..=255).collect());
    let text = serde_json::to_string(&bytes).unwrap();
    assert!(text.is_ascii());
    assert_eq!(serde_json::from_str::<Bytes>(&text).unwrap(), bytes);
    assert!(serde_json::from_str::<Bytes>("\"\\\\q\"").is_err());
}
