//! The one table: error -> errno.

use crate::Error;

/// Linux errno values that the table uses.
mod code {
    pub(super) const ENOENT: i32 = 2;
    pub(super) const E2BIG: i32 = 7;
    pub(super) const ENOTDIR: i32 = 20;
    pub(super) const EISDIR: i32 = 21;
    pub(super) const EINVAL: i32 = 22;
    pub(super) const ENAMETOOLONG: i32 = 36;
    pub(super) const ELOOP: i32 = 40;
    pub(super) const ENODATA: i32 = 61;
    pub(super) const EOPNOTSUPP: i32 = 95;
    pub(super) const ESTALE: i32 = 116;
}

impl Error {
    /// The errno that a system call would fail with (positive, Linux numbers).
    pub fn errno(&self) -> i32 {
        match self {
            Self::NotFound | Self::NoSubvolume { .. } => code::ENOENT,
            Self::Stale { .. } => code::ESTALE,
            Self::NotDirectory => code::ENOTDIR,
            Self::IsDirectory => code::EISDIR,
            Self::WrongKind { .. } | Self::InvalidArgument { .. } => code::EINVAL,
            Self::SymlinkLoop => code::ELOOP,
            Self::NameTooLong => code::ENAMETOOLONG,
            Self::NoAttribute => code::ENODATA,
            Self::Unsupported { .. } => code::EOPNOTSUPP,
            Self::LimitExceeded { .. } => code::E2BIG,
        }
    }
}
