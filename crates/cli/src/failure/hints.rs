//! What the user can do about an error of the library, by the type of the error.
//!
//! 1. No hint depends on the text of an error: texts change, and a hint would silently disappear.

use std::path::PathBuf;
use std::{fs, io};

use butternut::device::{DeviceError, Holder, OpenError};
use butternut::{CopyRefused, CopyReport, Error, NamesError, TreeError, VolumeError};
use butternut_sys::errno::Errno;
use butternut_sys::mounts;

pub(crate) const BUSY: &str = "unmount it, or wait until it is free";
pub(crate) const NOT_BTRFS: &str =
    "check that this is a btrfs volume; if it starts inside a larger image, add ?offset=N";

/// `ENOSPC`.
const NO_SPACE: i32 = 28;

/// `EDQUOT`.
const QUOTA: i32 = 122;

/// What the user can do when the limit of a quota group is reached.
pub(crate) const QUOTA_REACHED: &str =
    "remove files, or change the limit with `butternut qgroup limit`; `qgroup show -re` shows all";

/// Returns where a volume is mounted that the process of a mount has open.
pub(crate) fn of_mounted(error: &DeviceError) -> Option<String> {
    let DeviceError::Open(error) = error else { return None };
    let OpenError::Busy { holder: Holder::Process { id, .. }, .. } = &**error else { return None };
    let mountpoint = mountpoint_of(*id)?.display().to_string();
    Some(format!("it is mounted on {mountpoint}; `butternut umount {mountpoint}` releases it"))
}

/// Returns a mount point that a process serves through FUSE.
fn mountpoint_of(process: u32) -> Option<PathBuf> {
    let open_files = fs::read_dir(format!("/proc/{process}/fdinfo")).ok()?;
    let texts = open_files.filter_map(|file| fs::read_to_string(file.ok()?.path()).ok());
    let numbers: Vec<(u32, u32)> = texts.filter_map(|text| fuse_device(&text)).collect();
    let mounts = mounts::read().ok()?;
    mounts.into_iter().find(|mount| numbers.contains(&mount.device)).map(|mount| mount.mountpoint)
}

/// Returns the device number of a FUSE mount, from what /proc says of a descriptor of its
/// connection.
fn fuse_device(fdinfo: &str) -> Option<(u32, u32)> {
    const MINOR_BITS: u32 = 20;
    let number = fdinfo.lines().find_map(|line| line.strip_prefix("fuse_connection:"))?;
    let number: u32 = number.trim().parse().ok()?;
    Some((number >> MINOR_BITS, number & ((1 << MINOR_BITS) - 1)))
}

/// Returns what the user can do about an error of the library.
#[expect(clippy::wildcard_enum_match_arm, reason = "most errors have no hint")]
pub(super) fn of_library(error: &Error) -> Option<&'static str> {
    match error {
        Error::Device(error) => of_device(error),
        Error::Volume(error) => of_volume(error),
        Error::Tree(TreeError::Assemble(error)) => of_volume(error),
        Error::Receive { source, .. } => of_receive(source),
        Error::NotFound => Some("`butternut ls` shows what is there"),
        Error::NotDirectory | Error::WrongKind { .. } => Some("`butternut stat` shows what it is"),
        Error::NoSubvolume { .. } | Error::NotSubvolume { .. } => {
            Some("`butternut subvolume list` shows what there is")
        }
        Error::IsDirectory => Some("name a file in it; `butternut ls` shows them"),
        Error::Exists => Some("remove it, or choose another name"),
        Error::IncompleteReceive { is_resumable: true } => Some(
            "`butternut receive --resume` goes on with it; `butternut subvolume delete` removes it",
        ),
        Error::IncompleteReceive { is_resumable: false } => Some(
            "this version cannot go on with it: remove it by `butternut subvolume delete`, and \
             repeat the command",
        ),
        Error::NotEmpty => Some("`butternut rm -r` removes it and its contents"),
        Error::Quota(_) | Error::NoQuotaGroup { .. } => {
            Some("`quota status` and `qgroup show` show what there is")
        }
        Error::NoAttribute => Some("`butternut getfattr` shows what there is"),
        Error::CrossesSubvolumes => {
            Some("copy a file with `butternut cp`, a directory with `export` and `import`")
        }
        // Not for lack of space.
        Error::Names(NamesError::AttributeTooLarge { .. }) => None,
        other if other.errno() == NO_SPACE => {
            Some("remove files, or extend the volume with `butternut filesystem resize`")
        }
        other if other.errno() == QUOTA => Some(QUOTA_REACHED),
        _ => None,
    }
}

/// Returns what the user can do about a command of a send stream that cannot be applied.
fn of_receive(error: &Error) -> Option<&'static str> {
    if matches!(error, Error::NotFound) {
        return Some("the stream does not fit its parent");
    }
    if matches!(error, Error::Stream(refused) if refused.field() == "CLONE_UUID") {
        return Some("receive the stream of that subvolume first");
    }
    of_library(error)
}

/// Returns what the user can do about devices that are not a volume that can be opened.
pub(crate) fn of_volume(error: &VolumeError) -> Option<&'static str> {
    match error {
        VolumeError::MissingDevices { .. } => {
            Some("name all its devices, separated by commas, or add --degraded")
        }
        VolumeError::ChunksLost { .. } => Some("name more of its devices, separated by commas"),
        VolumeError::NoSuperBlock { copies, .. } => of_super_blocks(copies),
        VolumeError::OtherVolume { .. } => Some("name only devices of one volume"),
        VolumeError::DuplicateDevice { .. } => {
            Some("name one of them; the other is a copy, or the same device")
        }
        VolumeError::Unsupported { .. } => Some("use the kernel's btrfs for this volume"),
        VolumeError::Short { .. } => Some(
            "if it was truncated, restore its size, or name the other devices and add --degraded",
        ),
        VolumeError::Device { source, .. } => of_device(source),
        VolumeError::NoDevices
        | VolumeError::Chunk(_)
        | VolumeError::Unmapped { .. }
        | VolumeError::InvalidRange { .. }
        | VolumeError::ParityWrite { .. }
        | VolumeError::ForeignSuper { .. }
        | VolumeError::InvalidSuper { .. }
        | VolumeError::NotFlushed { .. }
        | VolumeError::OtherQueue
        | VolumeError::Overlap { .. }
        | VolumeError::MountEnded(_)
        | VolumeError::WritesEnded
        | VolumeError::Unreadable(_) => None,
    }
}

/// Returns whether a device is not of btrfs: no superblock has its magic number.
pub(crate) fn is_not_btrfs(error: &VolumeError) -> bool {
    matches!(error, VolumeError::NoSuperBlock { copies, .. } if copies.iter().all(is_other))
}

/// Returns whether a copy of the superblock is outside of the device, or has another magic number.
fn is_other(copy: &CopyReport) -> bool {
    match &copy.verdict {
        Err(CopyRefused::Refused(refused)) => refused.field() == "magic",
        Err(CopyRefused::Device(error)) => matches!(error, DeviceError::OutOfRange { .. }),
        Ok(_) => false,
    }
}

/// Returns a hint for a device without a good superblock: it is not of btrfs, or damaged.
fn of_super_blocks(copies: &[CopyReport]) -> Option<&'static str> {
    if copies.iter().all(is_other) {
        return Some(NOT_BTRFS);
    }
    let unreadable = copies.iter().find_map(|copy| match &copy.verdict {
        Err(CopyRefused::Device(error)) => of_device(error),
        _ => None,
    });
    unreadable.or(Some("`butternut inspect dump-super --all` shows what the superblocks contain"))
}

/// Returns what the user can do about a device that cannot be opened.
pub(crate) fn of_device(error: &DeviceError) -> Option<&'static str> {
    match error {
        DeviceError::Open(error) => of_open(error),
        DeviceError::Window { .. } => Some("check the number after ?offset="),
        DeviceError::Read { .. } | DeviceError::Write { .. } | DeviceError::Flush { .. } => {
            Some("dmesg(1) shows errors of the device")
        }
        DeviceError::OutOfRange { .. }
        | DeviceError::ReadOnly { .. }
        | DeviceError::Discard { .. }
        | DeviceError::NoDevice { .. }
        | DeviceError::Claim { .. }
        | DeviceError::NotRun => None,
    }
}

fn of_open(error: &OpenError) -> Option<&'static str> {
    match error {
        OpenError::Busy { .. } => Some(BUSY),
        OpenError::NotADisk { .. } => Some("name an image file or a block device"),
        OpenError::ReadOnly { .. } => {
            Some("make it writable with `blockdev --setrw`, or use a copy")
        }
        OpenError::MountedOnly { .. } => {
            Some("boot with `bdev_allow_write_mounted=1`, or mount without -o blkdev")
        }
        OpenError::CannotLock { .. } => Some("copy it to a filesystem that supports flock(2)"),
        OpenError::Refused { cause, .. } => of_errno(*cause),
    }
}

/// Returns what the user can do about a system call on a device or an image file.
#[expect(clippy::wildcard_enum_match_arm, reason = "most errors have no hint")]
fn of_errno(cause: Errno) -> Option<&'static str> {
    match io::Error::from(cause).kind() {
        io::ErrorKind::NotFound => Some("check the path"),
        io::ErrorKind::PermissionDenied => {
            Some("run as its owner or as root, or use a copy that you own")
        }
        io::ErrorKind::ReadOnlyFilesystem => {
            Some("use a copy on a filesystem that is mounted for writing")
        }
        _ => None,
    }
}

/// Returns whether another process or the kernel uses the device.
pub(crate) fn is_busy(error: &DeviceError) -> bool {
    matches!(error, DeviceError::Open(error) if matches!(**error, OpenError::Busy { .. }))
}

/// Returns whether the device refused to be opened for writing, so that it may be opened for
/// reading.
pub(crate) fn is_write_refused(error: &Error) -> bool {
    let Error::Device(DeviceError::Open(error)) = error else { return false };
    match &**error {
        OpenError::ReadOnly { .. } => true,
        OpenError::Refused { cause, .. } => matches!(
            io::Error::from(*cause).kind(),
            io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem
        ),
        OpenError::NotADisk { .. }
        | OpenError::Busy { .. }
        | OpenError::MountedOnly { .. }
        | OpenError::CannotLock { .. } => false,
    }
}
