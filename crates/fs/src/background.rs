//! Background threads of a mount, and merging, which they share with `sync`.
//!
//! | module | content |
//! |---|---|
//! | `cleaner` | frees deleted subvolumes, and the orphans of read-only ones |
//! | `cleaner_signal` | what operations tell the cleaner |
//! | `committer` | commits the running transaction at an interval, and when much has changed |
//! | `flusher` | writes dirty pages back, and throttles writers |
//! | `outstanding` | counts I/O that has not completed |
//! | `signal` | what operations tell the committer |
//! | `merger` | moves the pending extents of files into the trees |

pub(crate) mod cleaner;
pub(crate) mod cleaner_signal;
pub(crate) mod committer;
pub(crate) mod flusher;
pub(crate) mod merger;
pub(crate) mod outstanding;
pub(crate) mod signal;
