//! [`Wait`]: whether a call may block.
//!
//! An operation that can be refused instead of blocking takes a `Wait` and passes it down. The
//! lowest function that would block refuses, with the error `WouldBlock` of its crate, and every
//! function above it undoes what it has done.

/// Whether a call may block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wait {
    /// It may read trees, allocate chunks and commit transactions.
    Block,
    /// It is refused where it would have to wait for a device, a tree or a lock (`RWF_NOWAIT`).
    NoWait,
}
