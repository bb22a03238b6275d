//! What the kernel is told when a request cannot be had: a number.
//!
//! The library has the table of its errors. The few numbers here are about the protocol itself, and
//! are in no error of the library's.

use butternut::Error;

/// What every operation answers with.
pub(crate) type Answer<T> = Result<T, Refusal>;

/// An errno, positive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Refusal(pub(crate) i32);

impl Refusal {
    pub(crate) const NOT_PERMITTED: Self = Self(1);
    pub(crate) const IO: Self = Self(5);
    pub(crate) const NO_ADDRESS: Self = Self(6);
    pub(crate) const BAD_HANDLE: Self = Self(9);
    pub(crate) const FAULT: Self = Self(14);
    pub(crate) const INVALID: Self = Self(22);
    pub(crate) const NO_TTY_CALL: Self = Self(25);
    pub(crate) const READ_ONLY: Self = Self(30);
    pub(crate) const RANGE: Self = Self(34);
    /// The kernel does without, and does not ask again.
    pub(crate) const NO_CALL: Self = Self(38);
    pub(crate) const UNSUPPORTED: Self = Self(95);
}

impl From<Error> for Refusal {
    fn from(error: Error) -> Self {
        Self(error.errno())
    }
}
