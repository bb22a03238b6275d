//! Chores of the repository, as a library so that its tests can run them.

pub mod error_branches;
pub mod surface;
pub mod tidy;
