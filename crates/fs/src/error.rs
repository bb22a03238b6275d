//! The one error of the library: what was asked, why it cannot be had.
//!
//! Each text is readable without its cause; the cause, where there is one, is the
//! [`source`](std::error::Error::source). [`Error::errno`] is decided in `errno.rs` alone.

use crate::FileId;
use butternut_device::DeviceError;
use butternut_file::FileError;
use butternut_format::refused::Refused;
use butternut_format::units::TreeId;
use butternut_names::NamesError;
use butternut_tree::TreeError;
use butternut_volume::VolumeError;

/// Why a call failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A name that its directory does not hold, or an address that nothing holds.
    #[error("no such file or directory")]
    NotFound,
    /// A [`FileId`] whose inode does not exist (any more).
    #[error("no inode {} in subvolume {}", id.ino, id.subvolume_id())]
    Stale { id: FileId },
    /// A name that is there already.
    #[error("file exists")]
    Exists,
    /// A directory that cannot go as long as it has entries.
    #[error("directory not empty")]
    NotEmpty,
    /// Links and renames stay within one subvolume.
    #[error("not in the same subvolume")]
    CrossesSubvolumes,
    /// What the flags of an inode forbid to everyone.
    #[error("operation not permitted: {what}")]
    NotPermitted { what: &'static str },
    /// What this inode cannot have.
    #[error("permission denied: {what}")]
    Denied { what: &'static str },
    /// A subvolume's own root directory.
    #[error("the root of a subvolume is in use")]
    Busy,
    /// Open for reading only.
    #[error("{what} is read-only")]
    ReadOnly { what: &'static str },
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
    /// A path that leads to something else, or through a symlink, where a subvolume is wanted.
    #[error("{what} is {kind}, not a subvolume")]
    NotSubvolume { what: String, kind: &'static str },
    /// A tree that every volume must have, and this one has not.
    #[error("the volume has no tree {id}")]
    NoTree { id: TreeId },
    /// A value that no call may pass.
    #[error("{what}")]
    InvalidArgument { what: &'static str },
    /// What this library does not do.
    #[error("not supported: {what}")]
    Unsupported { what: &'static str },
    /// A request that may not wait, and would have to; or one more than a queue takes.
    #[error("the request would have to wait")]
    WouldBlock,
    /// Memory that the system did not give.
    #[error("out of memory")]
    NoMemory,
    /// The search went past its limit; the answer would be incomplete.
    #[error("{what}: more than {limit}")]
    LimitExceeded { what: &'static str, limit: u64 },
    /// An item that is not what the format allows.
    #[error("tree {tree} is corrupt")]
    Corrupt {
        tree: TreeId,
        #[source]
        source: Refused,
    },
    /// A device or image that cannot be opened.
    #[error("the device cannot be opened")]
    Device(#[source] DeviceError),
    /// Devices that do not make up a volume this library can read.
    #[error("the volume cannot be opened")]
    Volume(#[source] VolumeError),
    /// Threads that the system did not give.
    #[error("worker threads cannot be started")]
    Workers(#[source] rayon::ThreadPoolBuildError),
    /// The committing thread, which the system did not give.
    #[error("the committing thread cannot be started")]
    Committer(#[source] std::io::Error),
    /// Changes that were made and can never be written: from now on the volume is read-only.
    #[error("changes cannot be committed")]
    Commit(#[source] TreeError),
    /// A tree that cannot be read or changed.
    #[error("metadata cannot be read or changed")]
    Tree(#[source] TreeError),
    /// Names or attributes that cannot be read or changed.
    #[error("names or attributes cannot be read or changed")]
    Names(#[source] NamesError),
    /// File data that cannot be read or written.
    #[error("file data cannot be read or written")]
    File(#[source] FileError),
}

impl From<DeviceError> for Error {
    fn from(source: DeviceError) -> Self {
        Self::Device(source)
    }
}

impl From<VolumeError> for Error {
    fn from(source: VolumeError) -> Self {
        Self::Volume(source)
    }
}

impl From<TreeError> for Error {
    fn from(source: TreeError) -> Self {
        Self::Tree(source)
    }
}

impl From<NamesError> for Error {
    fn from(source: NamesError) -> Self {
        match source {
            NamesError::Tree(source) => Self::Tree(source),
            NamesError::Corrupt { tree, source } => Self::Corrupt { tree, source },
            NamesError::Exists => Self::Exists,
            NamesError::NoEntry => Self::NotFound,
            NamesError::NameTooLong => Self::NameTooLong,
            NamesError::NoAttribute => Self::NoAttribute,
            source @ (NamesError::TooMany { .. }
            | NamesError::BadName(_)
            | NamesError::Crowded
            | NamesError::TooManyLinks
            | NamesError::NumbersUsedUp { .. }
            | NamesError::AttributeExists
            | NamesError::AttributeTooLarge { .. }
            | NamesError::Invalid { .. }
            | NamesError::Unsupported { .. }) => Self::Names(source),
        }
    }
}

impl From<FileError> for Error {
    fn from(source: FileError) -> Self {
        Self::File(source)
    }
}
