//! [`Refused`]: the error of a check: which field is invalid, where, its value, and what is valid.
//!
//! An error starts with the field only. Each caller that knows more about the location prepends it
//! with [`Refused::at`], so the text reads from the outermost structure to the innermost.

use std::fmt;
use zerocopy::{FromBytes, Immutable, KnownLayout, Unaligned};

/// An invalid field of an on-disk structure.
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
    /// Makes an error for a field with its value and a description of valid values.
    pub fn new(field: &'static str, have: impl fmt::Display, want: impl fmt::Display) -> Self {
        Self { place: String::new(), field, have: have.to_string(), want: want.to_string() }
    }

    /// Prepends a location to the error, for example `leaf 30408704 slot 3`.
    #[must_use]
    pub fn at(mut self, place: impl fmt::Display) -> Self {
        self.place = if self.place.is_empty() {
            place.to_string()
        } else {
            format!("{place}: {}", self.place)
        };
        self
    }

    /// Returns the location, as far as it is known.
    pub fn place(&self) -> &str {
        &self.place
    }

    /// Returns the name of the field.
    pub fn field(&self) -> &'static str {
        self.field
    }

    /// Returns the value of the field.
    pub fn have(&self) -> &str {
        &self.have
    }

    /// Returns the description of valid values.
    pub fn want(&self) -> &str {
        &self.want
    }
}

/// Checks a condition on a field.
///
/// # Errors
/// `holds` is false.
pub fn require(
    holds: bool,
    field: &'static str,
    have: impl fmt::Display,
    want: impl fmt::Display,
) -> Result<(), Refused> {
    if holds { Ok(()) } else { Err(Refused::new(field, have, want)) }
}

/// Casts an item that is exactly one `T`.
pub(crate) fn whole<T>(item: &[u8]) -> Result<&T, Refused>
where
    T: FromBytes + KnownLayout + Immutable + Unaligned,
{
    T::ref_from_bytes(item).map_err(|_| Refused::new("item size", item.len(), size_of::<T>()))
}

/// Casts the front of an item to a `T`, and returns it with the rest.
pub(crate) fn front<T>(item: &[u8]) -> Result<(&T, &[u8]), Refused>
where
    T: FromBytes + KnownLayout + Immutable + Unaligned,
{
    T::ref_from_prefix(item).map_err(|_| {
        Refused::new("item size", item.len(), format_args!("at least {}", size_of::<T>()))
    })
}

/// Displays bytes in hexadecimal, in their order in memory.
#[derive(Clone, Copy, Debug)]
pub struct Hex<'a>(pub &'a [u8]);

impl fmt::Display for Hex<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

/// Displays a word of flags in hexadecimal.
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
    fn locations_read_from_the_outermost_in() {
        let refused = require(false, "level", 9, "at most 7").unwrap_err();
        let refused = refused.at("header").at("node 65536");
        assert_eq!(refused.to_string(), "node 65536: header: level: have 9, want at most 7");
    }
}
