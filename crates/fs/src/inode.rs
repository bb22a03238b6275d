//! Inodes in memory: the inode table with its locks and pins, attributes, flags and new inodes.
//!
//! | module | content |
//! |---|---|
//! | `id` | which inode of which subvolume |
//! | `table` | one entry for each inode in use, on a volume that is open for writing |
//! | `cache` | attributes of inodes, on a volume that is open for reading |
//! | `pin`, `orphans` | inodes in use, and the deletion of orphans |
//! | `privileges` | what a change strips from a file |
//! | `no_unpin` | when a thread must not drop pins |
//! | `inheritance` | what new inodes inherit from their directory's attributes |
//! | `dirty`, `idle` | inodes with unwritten changes; closed files whose state is kept |
//! | `stat`, `flags`, `set_attributes`, `new_inode` | the operations on attributes |

pub(crate) mod cache;
pub(crate) mod dirty;
pub(crate) mod flags;
pub(crate) mod id;
pub(crate) mod idle;
pub(crate) mod inheritance;
pub(crate) mod new_inode;
pub(crate) mod no_unpin;
pub(crate) mod orphans;
pub(crate) mod pin;
pub(crate) mod privileges;
pub(crate) mod set_attributes;
pub(crate) mod stat;
pub(crate) mod table;
