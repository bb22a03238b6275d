//! Subvolumes and snapshots.

pub(crate) mod list;
pub(crate) mod show;
