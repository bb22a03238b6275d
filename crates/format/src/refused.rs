//! The verdict on bytes that failed a check: where, which field, what it holds, what was wanted.
//!
//! A [`Refused`] starts with the field only; each caller that knows more about the place prepends
//! it with [`Refused::at`], so the text reads from the outside in.

use std::fmt;
use zerocopy::{FromBytes, Immutable, KnownLayout, Unaligned};

/// One field that is not what the format allows.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub struct Refused {
    place: String,
    field: &'static str,
    have: String,
    want: String,
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.place.is_empty() {
            write!(f, "{}: ", self.place)?;
        }
        write!(f, "{}: have {}, want {}", self.field, self.have, self.want)
    }
}

impl Refused {
    pub fn new(field: &'static str, have: impl fmt::Display, want: impl fmt::Display) -> Self {
        Self { place: String::new(), field, have: have.to_string(), want: want.to_string() }
    }

    /// The same verdict, said of a place: `leaf 30408704 slot 3`.
    #[must_use]
    pub fn at(mut self, place: impl fmt::Display) -> Self {
        self.place = if self.place.is_empty() {
            place.to_string()
        } else {
            format!("{place}: {}", self.place)
        };
        self
    }

    /// Where it is, as far as [`Self::at`] was told.
    pub fn place(&self) -> &str {
        &self.place
    }

    pub fn field(&self) -> &'static str {
        self.field
    }

    pub fn have(&self) -> &str {
        &self.have
    }

    pub fn want(&self) -> &str {
        &self.want
    }
}

/// `Ok` when `holds`, else the verdict.
pub fn require(
    holds: bool,
    field: &'static str,
    have: impl fmt::Display,
    want: impl fmt::Display,
) -> Result<(), Refused> {
    if holds { Ok(()) } else { Err(Refused::new(field, have, want)) }
}

/// An item that is exactly one `T`.
pub(crate) fn whole<T>(item: &[u8]) -> Result<&T, Refused>
where
    T: FromBytes + KnownLayout + Immutable + Unaligned,
{
    T::ref_from_bytes(item).map_err(|_| Refused::new("item size", item.len(), size_of::<T>()))
}

/// An item that starts with one `T`, and what follows it.
pub(crate) fn front<T>(item: &[u8]) -> Result<(&T, &[u8]), Refused>
where
    T: FromBytes + KnownLayout + Immutable + Unaligned,
{
    T::ref_from_prefix(item).map_err(|_| {
        Refused::new("item size", item.len(), format_args!("at least {}", size_of::<T>()))
    })
}

/// Bytes in the order they lie in, as a digest or an id is said.
#[derive(Clone, Copy, Debug)]
pub struct Hex<'a>(pub &'a [u8]);

impl fmt::Display for Hex<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

/// A word of flags.
#[derive(Clone, Copy, Debug)]
pub struct Bits(pub u64);

impl fmt::Display for Bits {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#x}", self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_read_from_the_outside_in() {
        let refused = require(false, "level", 9, "at most 7").unwrap_err();
        let refused = refused.at("header").at("node 65536");
        assert_eq!(refused.to_string(), "node 65536: header: level: have 9, want at most 7");
    }
}
