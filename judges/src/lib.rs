//! What the judges share: images made by the kernel, the kernel's own view of them, and comparing
//! that with what Butternut shows.
//!
//! The judges believe the kernel and btrfs-progs, never the crates under test: what fills an
//! image, what walks it and what finds its sectors on the devices is written here anew. The
//! exception is [`library`], the view that is judged.

pub mod command;
pub mod compare;
pub mod crash_image;
pub mod fio;
pub mod fuse_mount;
pub mod image;
pub mod kept;
pub mod kernel_log;
pub mod kernel_mount;
pub mod kernel_volume;
pub mod library;
pub mod maker;
pub mod manifest;
pub mod our_volume;
pub mod permissions;
pub mod populate;
pub mod recipe;
pub mod recipes;
pub mod rot;
pub mod scratch;
pub mod subjects;
pub mod tool;
pub mod trial;
pub mod walk;
