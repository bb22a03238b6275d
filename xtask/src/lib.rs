//! Chores of the repository, as a library so that its tests can run them.

pub mod surface;
pub mod tidy;
