//! Commands that list and show subvolumes and snapshots.

pub(crate) mod list;
pub(crate) mod show;
