//! The one error of the library: what was asked, why it cannot be had.
//!
//! Each text is readable without its cause; the cause, where there is one, is the
//! [`source`](std::error::Error::source). [`Error::errno`] is decided in `errno.rs` alone.

use crate::FileId;

/// Why a call failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A name that its directory does not hold.
    #[error("no such file or directory")]
    NotFound,
    /// A [`FileId`] whose inode does not exist (any more).
    #[error("no inode {} in subvolume {}", id.ino, id.subvolume)]
    Stale { id: FileId },
    /// A directory operation on something else.
    #[error("not a directory")]
    NotDirectory,
    /// A file operation on a directory.
    #[error("is a directory")]
    IsDirectory,
    /// `open_file` on a symlink, device, pipe or socket, or `read_link` on what is no symlink.
    #[error("wrong kind of file: want {want}")]
    WrongKind { want: &'static str },
    /// More than 40 symlinks on one path.
    #[error("too many levels of symbolic links")]
    SymlinkLoop,
    /// A name of more than 255 bytes, or a path of more than 4095.
    #[error("name too long")]
    NameTooLong,
    /// An extended attribute that the inode does not have.
    #[error("no such extended attribute")]
    NoAttribute,
    /// A subvolume that the volume does not have.
    #[error("no subvolume {what}")]
    NoSubvolume { what: String },
    /// A value that no call may pass.
    #[error("{what}")]
    InvalidArgument { what: &'static str },
    /// What this library does not do.
    #[error("not supported: {what}")]
    Unsupported { what: &'static str },
    /// The search went past its limit; the answer would be incomplete.
    #[error("{what}: more than {limit}")]
    LimitExceeded { what: &'static str, limit: u64 },
}
