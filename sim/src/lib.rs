//! The simulator: one seeded stream of operations, a plain model that says what each must do, and
//! subjects that are held to it, with and without a power cut.
//!
//! | file | what it is |
//! |---|---|
//! | [`operation`] | everything that can be asked of a filesystem, and the answer |
//! | [`generator`] | seeded operations, with names, sizes and offsets that collide on purpose |
//! | [`model`] | the truth: inodes in a map |
//! | [`subject`] | what a filesystem under test has to offer |
//! | [`posix`] | the subject that is a directory of this machine, by system calls |
//! | [`library`] | the subject that is the library itself |
//! | `lane` | files of the library, made and read by one of the lanes |
//! | [`lender`] | memory that is lent to requests |
//! | [`together`] | threads on the same files, by every lane at once |
//! | [`contested`] | threads on the same blocks, held to the rule of the last writer |
//! | [`histories`] | threads that share names, files and blocks, and the crashes of that |
//! | [`tree`] | everything that can be seen of a tree, and what differs between two |
//! | [`run`] | a subject held to the model, operation by operation |
//! | [`shrink`] | a failing run made short |
//! | [`script`] | runs as text files |
//! | [`crash`] | every crash of a recording held to what was promised |
//! | [`volume`] | fresh volumes, and the oracle's word on them |
//!
//! The model says what Linux and its btrfs do, with all capabilities (root): permission bits are
//! kept, never enforced. It believes nobody; where it was wrong, the kernel's btrfs has said so.

#![allow(
    clippy::wildcard_enum_match_arm,
    reason = "an operation goes from function to function until one knows it; a test generates all"
)]

pub mod acl;
pub mod bytes;
pub mod content;
pub mod contested;
pub mod crash;
pub mod errno;
pub mod generator;
pub mod histories;
mod lane;
pub mod lender;
pub mod library;
pub mod model;
pub mod operation;
pub mod posix;
pub mod random;
pub mod run;
pub mod script;
pub mod shrink;
pub mod subject;
pub mod together;
pub mod tree;
pub mod volume;
