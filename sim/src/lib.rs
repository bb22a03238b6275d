//! The simulator: a seeded stream of operations, a model that defines the outcome of each
//! operation, and filesystems that are compared with the model, with and without a power cut.
//!
//! | file | what it is |
//! |---|---|
//! | [`operation`] | every operation on a filesystem, and its outcome |
//! | [`generator`] | seeded operations whose names, sizes and offsets often collide |
//! | [`model`] | the expected behaviour: inodes in a map; subvolumes and snapshots |
//! | [`subject`] | the interface of a filesystem under test |
//! | [`posix`] | a directory of this machine as a subject, through system calls |
//! | [`library`] | the library as a subject |
//! | `lane` | reads and writes of library files by a given lane |
//! | [`borrowed`] | memory for borrowed buffers |
//! | [`together`] | threads on the same files, by every lane; each region has one owner |
//! | [`contested`] | threads on the same blocks, checked by the order of their writes |
//! | [`histories`] | threads that share names, files and blocks, and the crashes of such runs |
//! | [`sequences`] | all short sequences of operations and syncs, and what a crash leaves of them |
//! | [`synced`] | files that are synced one by one, and what a crash leaves of them |
//! | [`tree`] | everything that is visible of a tree, and the difference of two trees |
//! | [`run`] | runs a subject beside the model, operation by operation |
//! | [`shrink`] | shortens the script of a failing run |
//! | [`script`] | scripts as text files |
//! | [`crash`] | checks every crash of a recording against what was durable |
//! | [`volume`] | new volumes, and the checker's verdict on them |
//!
//! The model does what Linux and its btrfs do for a caller with all capabilities (root): permission
//! bits are stored and never enforced. Where the model and the kernel's btrfs differ, the kernel is
//! right.

#![allow(
    clippy::wildcard_enum_match_arm,
    reason = "each function handles a part of the operations; a test generates all of them"
)]

pub mod acl;
pub mod borrowed;
pub mod bytes;
pub mod content;
pub mod contested;
pub mod crash;
pub mod errno;
pub mod generator;
pub mod histories;
mod lane;
pub mod library;
pub mod model;
pub mod operation;
pub mod posix;
pub mod random;
pub mod run;
pub mod script;
pub mod sequences;
pub mod shrink;
pub mod subject;
pub mod synced;
pub mod together;
pub mod tree;
pub mod volume;
