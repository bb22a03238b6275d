//! What the judges share: images that the kernel makes, the kernel's own view of them, and the
//! comparison with Butternut's view.
//!
//! The judges rely on the kernel and btrfs-progs, and not on the crates under test: the code that
//! fills an image, walks it, or finds its sectors on the devices is independent of these crates.
//! The exception is [`library`], the view under test.

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
pub mod stopped;
pub mod subjects;
pub mod tool;
pub mod trial;
pub mod walk;
