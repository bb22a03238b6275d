//! The one table: error -> errno.
//!
//! Whatever is wrong with what a device holds or does is `EIO`, as the kernel has it for a file
//! whose data or metadata is bad: the rest of the volume stays readable.

use crate::Error;
use butternut_device::DeviceError;
use butternut_names::NamesError;
use butternut_tree::TreeError;
use butternut_volume::VolumeError;

/// Linux errno values that the table uses.
mod code {
    pub(super) const ENOENT: i32 = 2;
    pub(super) const EIO: i32 = 5;
    pub(super) const E2BIG: i32 = 7;
    pub(super) const EAGAIN: i32 = 11;
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
            Self::NoTree { .. } | Self::Corrupt { .. } | Self::File(_) => code::EIO,
            Self::Device(source) => device(source),
            Self::Volume(source) => volume(source),
            Self::Tree(TreeError::Assemble(source)) => volume(source),
            Self::Tree(TreeError::Block { .. } | TreeError::Corrupt { .. }) => code::EIO,
            Self::Names(source) => names(source),
            Self::Workers(_) => code::EAGAIN,
        }
    }
}

/// What opening a device failed with; once it is open, whatever goes wrong is `EIO`.
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
        | DeviceError::NotRun => code::EIO,
    }
}

/// A volume that cannot be put together is the caller's mistake where the devices are not what he
/// takes them for, and `EIO` where they are damaged.
fn volume(error: &VolumeError) -> i32 {
    match error {
        VolumeError::NoDevices
        | VolumeError::NoSuperBlock { .. }
        | VolumeError::Unsupported { .. }
        | VolumeError::OtherVolume { .. }
        | VolumeError::DuplicateDevice { .. }
        | VolumeError::Misshapen { .. } => code::EINVAL,
        VolumeError::MissingDevices { .. }
        | VolumeError::ChunksLost { .. }
        | VolumeError::Chunk(_)
        | VolumeError::Unmapped { .. }
        | VolumeError::Unreadable(_)
        | VolumeError::Device { .. } => code::EIO,
    }
}

fn names(error: &NamesError) -> i32 {
    match error {
        NamesError::Tree(_) | NamesError::Corrupt { .. } => code::EIO,
        NamesError::TooMany { .. } => code::E2BIG,
    }
}
