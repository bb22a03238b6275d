//! How the space of a volume is used.
//!
//! | module | content |
//! |---|---|
//! | `usage`, `statfs` | by block group type, profile and device; in the terms of `statfs(2)` |
//! | `disk_usage` | by file, with shared extents |
//! | `extent_owners`, `backref`, `extent_items` | which files refer to an extent |

pub(crate) mod backref;
pub(crate) mod disk_usage;
pub(crate) mod extent_items;
pub(crate) mod extent_owners;
pub(crate) mod statfs;
pub(crate) mod usage;
