//! [`Error`]: the error type of the library.
//!
//! Each text is readable without its cause; the cause, if there is one, is the
//! [`source`](std::error::Error::source). The errno is decided in `errno.rs` alone
//! ([`Error::errno`]).

use crate::FileId;
use crate::receive::CommandPlace;
use butternut_device::DeviceError;
use butternut_file::FileError;
use butternut_format::quota::QgroupId;
use butternut_format::refused::Refused;
use butternut_format::units::TreeId;
use butternut_names::NamesError;
use butternut_sys::wait::Wait;
use butternut_tree::TreeError;
use butternut_volume::VolumeError;

/// Why a call failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A name that its directory does not have, or an address that is not in use.
    #[error("no such file or directory")]
    NotFound,
    /// A [`FileId`] whose inode does not exist, or no longer exists.
    #[error("no inode {} in subvolume {}", id.ino, id.subvolume_id())]
    Stale { id: FileId },
    /// A name that exists already.
    #[error("file exists")]
    Exists,
    /// A directory that cannot be removed because it has entries.
    #[error("directory not empty")]
    NotEmpty,
    /// A link or rename from one subvolume to another.
    #[error("not in the same subvolume")]
    CrossesSubvolumes,
    /// A clone from a file of another filesystem.
    #[error("not in the same filesystem")]
    CrossesFilesystems,
    /// A change that the flags of an inode forbid to every caller.
    #[error("operation not permitted: {what}")]
    NotPermitted { what: &'static str },
    /// An attribute that this kind of inode cannot have.
    #[error("permission denied: {what}")]
    Denied { what: &'static str },
    /// The root directory of a subvolume, which is in use.
    #[error("the root of a subvolume is in use")]
    Busy,
    /// A change of the bytes of a file on which fs-verity is being enabled.
    #[error("text file busy: fs-verity is being enabled on the file")]
    BeingSealed,
    /// A file on which another caller is enabling fs-verity.
    #[error("fs-verity is being enabled on the file already")]
    SealInProgress,
    /// A file that fs-verity has not sealed, where one is required.
    #[error("the file is not sealed by fs-verity")]
    NotSealed,
    /// An argument that is longer than its limit.
    #[error("{what}")]
    ArgumentTooLong { what: &'static str },
    /// A call that ended early because its caller was interrupted.
    #[error("interrupted")]
    Interrupted,
    /// A change of something that is open for reading only.
    #[error("{what} is read-only")]
    ReadOnly { what: &'static str },
    /// A directory operation on an inode of another kind.
    #[error("not a directory")]
    NotDirectory,
    /// A file operation on a directory.
    #[error("is a directory")]
    IsDirectory,
    /// `open_file` on a symbolic link, device, pipe or socket, or `read_link` on another kind of
    /// inode.
    #[error("wrong kind of file: want {want}")]
    WrongKind { want: &'static str },
    /// More than 40 symbolic links on one path.
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
    /// A path that leads to something else, or through a symbolic link, where a subvolume is
    /// required.
    #[error("{what} is {kind}, not a subvolume")]
    NotSubvolume { what: String, kind: &'static str },
    /// The log tree of a volume that was not unmounted cannot be replayed, so the volume cannot be
    /// opened for writing. Opened for reading, it shows the last commit.
    #[error("the log tree cannot be replayed")]
    Log {
        #[source]
        source: Box<Error>,
    },
    /// A tree that the volume lacks although every volume must have it.
    #[error("the volume has no tree {id}")]
    NoTree { id: TreeId },
    /// A file that ends before a buffer that must be filled is full.
    #[error("the file ends before the buffer is full")]
    EndOfFile,
    /// An invalid argument.
    #[error("{what}")]
    InvalidArgument { what: &'static str },
    /// An operation that this library does not support.
    #[error("not supported: {what}")]
    Unsupported { what: &'static str },
    /// A request that would block and may not (`EAGAIN`), or that exceeds the depth of its queue.
    #[error("the request would have to wait")]
    WouldBlock,
    /// Memory that the system cannot provide.
    #[error("out of memory")]
    NoMemory,
    /// A search that exceeded its limit, so that its result would be incomplete.
    #[error("{what}: more than {limit}")]
    LimitExceeded { what: &'static str, limit: u64 },
    /// An item that violates the on-disk format.
    #[error("tree {tree} is corrupt")]
    Corrupt {
        tree: TreeId,
        #[source]
        source: Refused,
    },
    /// A device or image that cannot be opened.
    #[error(transparent)]
    Device(DeviceError),
    /// Devices that do not make up a volume this library can read.
    #[error("the volume cannot be opened")]
    Volume(#[source] VolumeError),
    /// Threads that the system cannot start.
    #[error("worker threads cannot be started")]
    Workers(#[source] Box<dyn std::error::Error + Send + Sync>),
    /// A committer or flusher thread that the system cannot start.
    #[error("the committing thread cannot be started")]
    Committer(#[source] std::io::Error),
    /// Random numbers, for a UUID, that the system does not provide.
    #[error("random numbers cannot be read")]
    Random(#[source] std::io::Error),
    /// A command of a send stream that cannot be applied, or bytes that are none.
    #[error("{place}: {what}")]
    Receive {
        place: CommandPlace,
        /// The command and its path.
        what: String,
        #[source]
        source: Box<Error>,
    },
    /// The name of a subvolume that is to be received belongs to an incomplete one, which an
    /// interrupted receive of the same source has left.
    #[error("an interrupted receive has left an incomplete subvolume of that name")]
    IncompleteReceive {
        /// A resumable receive goes on with it. Otherwise no snapshot that this version has made is
        /// there to go on from.
        is_resumable: bool,
    },
    /// A send stream that is damaged, or says what is refused.
    #[error("the stream is refused")]
    Stream(#[source] Refused),
    /// A send stream that cannot be read.
    #[error("the stream cannot be read")]
    StreamInput(#[source] std::io::Error),
    /// A stream that cannot be written to its destination.
    #[error("the stream cannot be written")]
    StreamOutput(#[source] std::io::Error),
    /// A command that does not fit into a stream: a path or an attribute is too long for it.
    #[error("a command does not fit into the stream")]
    StreamCommand(#[source] Refused),
    /// A damaged or hostile volume: a path that would lead a receiver out of the subvolume.
    #[error("the volume has a path that must not be sent")]
    StreamPath(#[source] Refused),
    /// Changes that can never be written: the volume is read-only from now on.
    #[error("changes cannot be committed")]
    Commit(#[source] TreeError),
    /// A tree that cannot be read or changed.
    #[error("metadata cannot be read or changed")]
    Tree(#[source] TreeError),
    /// A change of the quotas that their state does not allow.
    #[error("the quotas do not allow this change")]
    Quota(#[source] Refused),
    /// A quota group that a new subvolume should be in.
    #[error("there is no quota group {id}")]
    NoQuotaGroup { id: QgroupId },
    /// Names or attributes that cannot be read or changed.
    #[error("names or attributes cannot be read or changed")]
    Names(#[source] NamesError),
    /// File data that cannot be read or written.
    #[error("file data cannot be read or written")]
    File(#[source] FileError),
}

/// Refuses a call that would block here, if `wait` forbids it.
pub(crate) fn may_block(wait: Wait) -> Result<(), Error> {
    match wait {
        Wait::Block => Ok(()),
        Wait::NoWait => Err(Error::WouldBlock),
    }
}

/// Whether a call was refused because it would have blocked.
pub(crate) fn is_refused<R>(result: &Result<R, Error>) -> bool {
    matches!(result, Err(Error::WouldBlock))
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
        if source.is_would_block() { Self::WouldBlock } else { Self::File(source) }
    }
}

/// The kind is that of the errno, or `UnexpectedEof` for [`Error::EndOfFile`]; the error itself is
/// the inner error.
impl From<Error> for std::io::Error {
    fn from(error: Error) -> Self {
        let kind = if matches!(error, Error::EndOfFile) {
            std::io::ErrorKind::UnexpectedEof
        } else {
            Self::from_raw_os_error(error.errno()).kind()
        };
        Self::new(kind, error)
    }
}
