//! The errno of each [`Error`]: the only place that decides it.
//!
//! Failures and damage of devices are `EIO`, as in the kernel for a file whose data or metadata is
//! bad: the rest of the volume stays readable.

use crate::Error;
use butternut_device::DeviceError;
use butternut_file::FileError;
use butternut_names::NamesError;
use butternut_tree::TreeError;
use butternut_volume::VolumeError;

/// Linux errno values that the table uses.
mod code {
    pub(super) const EPERM: i32 = 1;
    pub(super) const ENOENT: i32 = 2;
    pub(super) const EINTR: i32 = 4;
    pub(super) const EIO: i32 = 5;
    pub(super) const E2BIG: i32 = 7;
    pub(super) const EAGAIN: i32 = 11;
    pub(super) const ENOMEM: i32 = 12;
    pub(super) const EACCES: i32 = 13;
    pub(super) const EBUSY: i32 = 16;
    pub(super) const EEXIST: i32 = 17;
    pub(super) const EXDEV: i32 = 18;
    pub(super) const ENOTDIR: i32 = 20;
    pub(super) const EISDIR: i32 = 21;
    pub(super) const EINVAL: i32 = 22;
    pub(super) const ETXTBSY: i32 = 26;
    pub(super) const EFBIG: i32 = 27;
    pub(super) const ENOSPC: i32 = 28;
    pub(super) const EROFS: i32 = 30;
    pub(super) const EMLINK: i32 = 31;
    pub(super) const ENAMETOOLONG: i32 = 36;
    pub(super) const ENOTEMPTY: i32 = 39;
    pub(super) const ELOOP: i32 = 40;
    pub(super) const ENODATA: i32 = 61;
    pub(super) const EOVERFLOW: i32 = 75;
    pub(super) const EMSGSIZE: i32 = 90;
    pub(super) const EOPNOTSUPP: i32 = 95;
    pub(super) const ESTALE: i32 = 116;
    pub(super) const EDQUOT: i32 = 122;
}

impl Error {
    /// Returns whether the volume is full.
    pub(crate) fn is_no_space(&self) -> bool {
        self.errno() == code::ENOSPC
    }

    pub(crate) fn is_quota_exceeded(&self) -> bool {
        self.errno() == code::EDQUOT
    }

    /// Returns the errno of the system call (positive, Linux numbers).
    pub fn errno(&self) -> i32 {
        match self {
            Self::NotFound | Self::NoSubvolume { .. } | Self::NoQuotaGroup { .. } => code::ENOENT,
            Self::Stale { .. } => code::ESTALE,
            Self::NotDirectory => code::ENOTDIR,
            Self::IsDirectory => code::EISDIR,
            Self::WrongKind { .. }
            | Self::InvalidArgument { .. }
            | Self::NotSubvolume { .. }
            | Self::Stream(_)
            | Self::Quota(_) => code::EINVAL,
            Self::Log { source } | Self::Receive { source, .. } => source.errno(),
            Self::SymlinkLoop => code::ELOOP,
            Self::NameTooLong => code::ENAMETOOLONG,
            Self::NoAttribute | Self::NotSealed => code::ENODATA,
            Self::Unsupported { .. } => code::EOPNOTSUPP,
            Self::LimitExceeded { .. } => code::E2BIG,
            Self::Exists | Self::IncompleteReceive { .. } => code::EEXIST,
            Self::NotEmpty => code::ENOTEMPTY,
            Self::CrossesSubvolumes | Self::CrossesFilesystems => code::EXDEV,
            Self::NotPermitted { .. } => code::EPERM,
            Self::Denied { .. } => code::EACCES,
            Self::Busy | Self::SealInProgress => code::EBUSY,
            Self::BeingSealed => code::ETXTBSY,
            Self::ArgumentTooLong { .. } => code::EMSGSIZE,
            Self::Interrupted => code::EINTR,
            Self::ReadOnly { .. } => code::EROFS,
            Self::StreamCommand(_) => code::EOVERFLOW,
            Self::StreamOutput(source) => source.raw_os_error().unwrap_or(code::EIO),
            Self::NoTree { .. }
            | Self::Corrupt { .. }
            | Self::Commit(_)
            | Self::Random(_)
            | Self::StreamInput(_)
            | Self::StreamPath(_)
            | Self::EndOfFile => code::EIO,
            Self::File(source) => file(source),
            Self::Device(source) => device(source),
            Self::Volume(source) => volume(source),
            Self::Tree(source) => tree(source),
            Self::Names(source) => names(source),
            Self::Workers(_) | Self::Committer(_) | Self::WouldBlock => code::EAGAIN,
            Self::NoMemory => code::ENOMEM,
        }
    }
}

/// Errors of opening a device have their own errno; all errors of an open device are `EIO`.
fn device(error: &DeviceError) -> i32 {
    match error {
        DeviceError::Open(_) | DeviceError::Window { .. } => error.errno().0,
        DeviceError::OutOfRange { .. }
        | DeviceError::ReadOnly { .. }
        | DeviceError::Read { .. }
        | DeviceError::Write { .. }
        | DeviceError::Flush { .. }
        | DeviceError::Discard { .. }
        | DeviceError::NoDevice { .. }
        | DeviceError::Claim { .. }
        | DeviceError::NotRun => code::EIO,
    }
}

/// A volume that cannot be assembled is `EINVAL` if the devices are not those of a volume, and
/// `EIO` if they are damaged.
fn volume(error: &VolumeError) -> i32 {
    match error {
        VolumeError::NoDevices
        | VolumeError::NoSuperBlock { .. }
        | VolumeError::Unsupported { .. }
        | VolumeError::OtherVolume { .. }
        | VolumeError::DuplicateDevice { .. }
        | VolumeError::Short { .. }
        | VolumeError::OtherQueue
        | VolumeError::InvalidRange { .. } => code::EINVAL,
        VolumeError::ParityWrite { .. } => code::EOPNOTSUPP,
        VolumeError::MissingDevices { .. }
        | VolumeError::NotFlushed { .. }
        | VolumeError::ChunksLost { .. }
        | VolumeError::InvalidSuper { .. }
        | VolumeError::Chunk(_)
        | VolumeError::Unmapped { .. }
        | VolumeError::Unreadable(_)
        | VolumeError::ForeignSuper { .. }
        | VolumeError::Overlap { .. }
        | VolumeError::MountEnded(_)
        | VolumeError::WritesEnded
        | VolumeError::Device { .. } => code::EIO,
    }
}

fn tree(error: &TreeError) -> i32 {
    match error {
        TreeError::Assemble(source) => volume(source),
        TreeError::Block { .. }
        | TreeError::Corrupt { .. }
        | TreeError::NoTree { .. }
        | TreeError::Panicked
        | TreeError::Ended
        | TreeError::Commit { .. }
        | TreeError::Log { .. }
        | TreeError::Discard(_)
        | TreeError::Space(_) => code::EIO,
        TreeError::Exists { .. } => code::EEXIST,
        TreeError::TooLarge { .. } => code::EOVERFLOW,
        TreeError::Invalid(_) => code::EINVAL,
        TreeError::NoSpace { .. } => code::ENOSPC,
        TreeError::QuotaExceeded { .. } => code::EDQUOT,
        TreeError::QuotaUsage { source } => tree(source),
        TreeError::WouldBlock => code::EAGAIN,
        TreeError::NotWritable | TreeError::Unwritable(_) | TreeError::ReadOnly { .. } => {
            code::EROFS
        }
    }
}

fn file(error: &FileError) -> i32 {
    match error {
        FileError::Tree(source) => tree(source),
        FileError::TooLarge { .. } => code::EFBIG,
        FileError::Stale { .. } => code::ESTALE,
        FileError::ReadOnly { .. } => code::EROFS,
        FileError::NoMemory { .. } => code::ENOMEM,
        FileError::WouldBlock => code::EAGAIN,
        FileError::Extents { .. }
        | FileError::Data { .. }
        | FileError::NoChecksum { .. }
        | FileError::Verity { .. }
        | FileError::Decompress { .. }
        | FileError::Write { .. } => code::EIO,
    }
}

fn names(error: &NamesError) -> i32 {
    match error {
        NamesError::Tree(_) | NamesError::Corrupt { .. } => code::EIO,
        NamesError::TooMany { .. } => code::E2BIG,
        NamesError::Exists | NamesError::AttributeExists => code::EEXIST,
        NamesError::NoEntry => code::ENOENT,
        NamesError::NameTooLong => code::ENAMETOOLONG,
        NamesError::BadName(_) | NamesError::Invalid { .. } => code::EINVAL,
        NamesError::Crowded => code::EOVERFLOW,
        NamesError::TooManyLinks => code::EMLINK,
        NamesError::NumbersUsedUp { .. } | NamesError::AttributeTooLarge { .. } => code::ENOSPC,
        NamesError::NoAttribute => code::ENODATA,
        NamesError::Unsupported { .. } => code::EOPNOTSUPP,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::FileId;
    use butternut_format::quota::QgroupId;
    use butternut_format::refused::Refused;
    use butternut_format::units::{DevId, Ino, TreeId};

    fn refused() -> Refused {
        Refused::new("field", 1, 2)
    }

    /// Returns every variant once; `expected` does not compile when a variant is added.
    fn all() -> Vec<Error> {
        let id = FileId::new(5, 257);
        let place = crate::receive::CommandPlace { number: 1, offset: 17 };
        let corrupt = || TreeError::Corrupt { tree: TreeId::FS, source: refused() };
        let workers = rayon::ThreadPoolBuilder::new()
            .spawn_handler(|_| Err(std::io::Error::other("no thread")))
            .build()
            .unwrap_err();
        vec![
            Error::NotFound,
            Error::Exists,
            Error::IncompleteReceive { is_resumable: true },
            Error::NotEmpty,
            Error::CrossesSubvolumes,
            Error::CrossesFilesystems,
            Error::NotPermitted { what: "immutable" },
            Error::Denied { what: "a default ACL" },
            Error::Busy,
            Error::SealInProgress,
            Error::BeingSealed,
            Error::NotSealed,
            Error::ArgumentTooLong { what: "a salt" },
            Error::Interrupted,
            Error::ReadOnly { what: "the filesystem" },
            Error::Committer(std::io::Error::other("no thread")),
            Error::Stale { id },
            Error::NotDirectory,
            Error::IsDirectory,
            Error::WrongKind { want: "a regular file" },
            Error::SymlinkLoop,
            Error::EndOfFile,
            Error::NameTooLong,
            Error::NoAttribute,
            Error::NoSubvolume { what: "300".into() },
            Error::NotSubvolume { what: "a".into(), kind: "a directory" },
            Error::NoTree { id: TreeId::EXTENT },
            Error::Log { source: Box::new(Error::Tree(corrupt())) },
            Error::InvalidArgument { what: "the address is a tree block's" },
            Error::Unsupported { what: "writing" },
            Error::Quota(refused()),
            Error::NoQuotaGroup { id: QgroupId(1 << 48) },
            Error::LimitExceeded { what: "references", limit: 9 },
            Error::Corrupt { tree: TreeId::FS, source: refused() },
            Error::Device(DeviceError::NotRun),
            Error::Volume(VolumeError::MissingDevices { devids: vec![DevId(2)] }),
            Error::Workers(workers.into()),
            Error::Tree(corrupt()),
            Error::Commit(corrupt()),
            Error::Random(std::io::Error::other("no device")),
            Error::Receive { place, what: "write f".into(), source: Box::new(Error::Exists) },
            Error::Stream(refused()),
            Error::StreamInput(std::io::Error::other("no input")),
            Error::StreamOutput(std::io::Error::from_raw_os_error(32)),
            Error::StreamCommand(refused()),
            Error::StreamPath(refused()),
            Error::Names(NamesError::TooMany { what: "names", limit: 9 }),
            Error::File(FileError::Tree(std::sync::Arc::new(corrupt()))),
        ]
    }

    fn expected(error: &Error) -> i32 {
        match error {
            Error::NotFound | Error::NoSubvolume { .. } | Error::NoQuotaGroup { .. } => 2,
            Error::NoTree { .. }
            | Error::Log { .. }
            | Error::Corrupt { .. }
            | Error::Device(_)
            | Error::Volume(_)
            | Error::Tree(_)
            | Error::Commit(_)
            | Error::Random(_)
            | Error::StreamInput(_)
            | Error::StreamPath(_)
            | Error::EndOfFile
            | Error::File(_) => 5,
            Error::LimitExceeded { .. } | Error::Names(_) => 7,
            Error::NotPermitted { .. } => 1,
            Error::StreamOutput(_) => 32,
            Error::StreamCommand(_) => 75,
            Error::Workers(_) | Error::Committer(_) | Error::WouldBlock => 11,
            Error::NoMemory => 12,
            Error::Denied { .. } => 13,
            Error::Busy | Error::SealInProgress => 16,
            Error::BeingSealed => 26,
            Error::ArgumentTooLong { .. } => 90,
            Error::Interrupted => 4,
            Error::Exists | Error::IncompleteReceive { .. } | Error::Receive { .. } => 17,
            Error::CrossesSubvolumes | Error::CrossesFilesystems => 18,
            Error::ReadOnly { .. } => 30,
            Error::NotEmpty => 39,
            Error::NotDirectory => 20,
            Error::IsDirectory => 21,
            Error::WrongKind { .. }
            | Error::InvalidArgument { .. }
            | Error::Stream(_)
            | Error::Quota(_)
            | Error::NotSubvolume { .. } => 22,
            Error::NameTooLong => 36,
            Error::SymlinkLoop => 40,
            Error::NoAttribute | Error::NotSealed => 61,
            Error::Unsupported { .. } => 95,
            Error::Stale { .. } => 116,
        }
    }

    #[test]
    fn every_error_has_its_errno() {
        let all = all();
        let kinds: std::collections::HashSet<_> = all.iter().map(std::mem::discriminant).collect();
        assert_eq!(kinds.len(), 48, "one of each variant");
        for error in &all {
            assert_eq!(error.errno(), expected(error), "{error:?}");
        }
    }

    #[test]
    fn errors_of_names_have_the_errno_of_the_kernel() {
        let cases = [
            (NamesError::NoEntry, 2),
            (NamesError::Exists, 17),
            (NamesError::AttributeExists, 17),
            (NamesError::BadName(refused()), 22),
            (NamesError::Invalid { what: "an ACL needs a mask" }, 22),
            (NamesError::NumbersUsedUp { tree: TreeId::FS, what: "inode numbers" }, 28),
            (NamesError::AttributeTooLarge { bytes: 2, limit: 1 }, 28),
            (NamesError::TooManyLinks, 31),
            (NamesError::NameTooLong, 36),
            (NamesError::NoAttribute, 61),
            (NamesError::Crowded, 75),
            (NamesError::Unsupported { what: "an ACL of version 1" }, 95),
        ];
        for (error, errno) in cases {
            assert_eq!(Error::from(error).errno(), errno);
        }
    }

    #[test]
    fn devices_without_a_volume_are_an_invalid_argument() {
        assert_eq!(Error::Volume(VolumeError::NoDevices).errno(), 22);
        let boxed = Box::new(VolumeError::NoDevices);
        assert_eq!(Error::Tree(TreeError::Assemble(boxed)).errno(), 22);
    }

    #[test]
    fn the_format_error_is_reachable_as_a_source() {
        let extents = FileError::Extents { tree: TreeId::FS, ino: Ino(257), source: refused() };
        for error in [Error::Corrupt { tree: TreeId::FS, source: refused() }, Error::File(extents)]
        {
            let mut cause: &dyn std::error::Error = &error;
            while let Some(next) = cause.source() {
                cause = next;
            }
            assert_eq!(cause.downcast_ref::<Refused>(), Some(&refused()), "{error}");
        }
    }
}
