//! Quota groups: how many bytes on disk each subvolume, and each group of subvolumes, uses.
//!
//! ```text
//! extents whose references change --> touched, until the commit
//!                                        | the commit, after the delayed references
//!                                        v
//! last commit  --resolver--> subvolumes before --+
//! this commit  --resolver--> subvolumes after ---+--> usage of groups --> quota tree
//! ```
//!
//! Laws:
//!
//! 1. The usage that a commit writes is exactly that of the trees that it writes, or the status
//!    item says that it is inconsistent. An error of the accounting does not fail the commit: it
//!    makes the usage inconsistent, and the cause is kept.
//! 2. Each commit writes the status item: the kernel takes the usage as inconsistent if the
//!    generation in it is not that of the superblock.
//! 3. Simple quotas have no need of both states: an extent has one owner (`simple`).
//!
//! Left to others: which extents a transaction touches ([`crate::references`]).

pub(crate) mod account;
pub(crate) mod admin;
pub(crate) mod changes;
pub(crate) mod charge;
pub(crate) mod count;
pub(crate) mod groups;
pub(crate) mod items;
pub(crate) mod limits;
pub(crate) mod roots;
pub(crate) mod sets;
pub(crate) mod simple;
pub(crate) mod state;
pub(crate) mod write;
