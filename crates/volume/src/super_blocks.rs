//! The copies of one device's superblock: reads all of them, and selects the one to use.
//!
//! Laws:
//! 1. Every copy that fits on the device is read and checked. Nothing of a refused copy is used.
//! 2. The newest good copy is used; of equally new copies the first. A log sync writes only the
//!    first copy, without a new generation, so the first may be newer than its equals. A good first
//!    copy that names a log is used in any case, as the kernel does: a commit after a log writes
//!    the other copies before it, and another system that mounted the first copy in between may
//!    have overwritten what the others name.
//! 3. A copy of another volume is never used while the first copy is good: mkfs leaves old copies
//!    behind if the previous filesystem was larger.
//! 4. Where the device cannot read the first copy, another one is used, which does not name the log
//!    that the first one may name. Such a volume is not opened for writing
//!    ([`Volume::unread_first_copy`](crate::Volume::unread_first_copy)): a commit would end the
//!    log, and lose what was synced.
//! 5. A copy with an unknown incompat feature refuses the device, unless a copy before it is good.
//!    An older copy must not bypass the feature check.

use crate::error::VolumeError;
use butternut_device::{Device, DeviceError};
use butternut_format::refused::Refused;
use butternut_format::super_block::{COPY_OFFSETS, SUPER_BLOCK_BYTES, SuperBlock};
use butternut_sys::buffer::Buffer;
use std::fmt;

/// The result of checking one copy.
#[derive(Debug)]
pub struct CopyReport {
    /// The number of the copy, 0 to 2.
    pub copy: usize,
    pub offset: u64,
    pub verdict: Result<SuperBlock, CopyRefused>,
}

#[derive(Debug, thiserror::Error)]
pub enum CopyRefused {
    #[error(transparent)]
    Device(DeviceError),
    #[error(transparent)]
    Refused(Refused),
}

impl fmt::Display for CopyReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let copy = self.copy;
        match &self.verdict {
            Ok(good) => write!(f, "superblock copy {copy}: good, generation {}", good.generation()),
            Err(CopyRefused::Device(error)) => write!(f, "superblock copy {copy}: {error}"),
            // The error names the copy already.
            Err(CopyRefused::Refused(refused)) => refused.fmt(f),
        }
    }
}

impl CopyReport {
    /// Whether this is the first copy, and the device could not read it.
    pub(crate) fn is_unread_first(&self) -> bool {
        self.copy == 0 && matches!(self.verdict, Err(CopyRefused::Device(_)))
    }
}

/// Reads and checks every copy that fits on the device (law 1). [`read_bytes`] reads the bytes of a
/// copy, good or not.
pub fn read_copies(device: &dyn Device) -> Vec<CopyReport> {
    let mut reports = Vec::new();
    for (copy, &offset) in COPY_OFFSETS.iter().enumerate() {
        let end = offset.saturating_add(butternut_format::units::length(SUPER_BLOCK_BYTES));
        if copy > 0 && device.bytes() < end {
            break;
        }
        let verdict = read_bytes(device, offset)
            .map_err(CopyRefused::Device)
            .and_then(|bytes| SuperBlock::check(&bytes, copy).map_err(CopyRefused::Refused));
        reports.push(CopyReport { copy, offset, verdict });
    }
    reports
}

/// Reads the bytes of the copy at `offset`, without checking them.
pub fn read_bytes(device: &dyn Device, offset: u64) -> Result<Buffer, DeviceError> {
    let mut bytes = Buffer::zeroed(SUPER_BLOCK_BYTES);
    device.read_at(offset, &mut bytes)?;
    Ok(bytes)
}

/// Returns the superblock of a device to use. If `only` is set, uses that copy and no other.
///
/// # Errors
///
/// If no copy is good, or by law 5.
pub fn choose(device: &dyn Device, only: Option<usize>) -> Result<SuperBlock, VolumeError> {
    choose_of(device, read_copies(device), only)
}

/// As [`choose`], of copies that have been read.
pub(crate) fn choose_of(
    device: &dyn Device,
    mut copies: Vec<CopyReport>,
    only: Option<usize>,
) -> Result<SuperBlock, VolumeError> {
    if let Some(only) = only {
        copies.retain(|report| report.copy == only);
    }
    let name = || device.name().to_owned();
    let until_good = copies.iter().take_while(|report| report.verdict.is_err());
    if let Some(refused) = until_good.into_iter().find_map(unsupported) {
        return Err(VolumeError::Unsupported { device: name(), refused: refused.clone() });
    }
    let first = copies.iter().find(|report| report.copy == 0);
    let first = first.and_then(|report| report.verdict.as_ref().ok());
    if let Some(first) = first.filter(|first| first.log_root().is_some()) {
        return Ok(first.clone());
    }
    let fsid = first.map(SuperBlock::fsid);
    let best = copies
        .iter()
        .filter_map(|report| Some((report.copy, report.verdict.as_ref().ok()?)))
        .filter(|(_, good)| fsid.is_none_or(|fsid| good.fsid() == fsid))
        // `max_by_key` returns the last of equals; the copies are ordered in reverse (law 2).
        .max_by_key(|(copy, good)| (good.generation(), std::cmp::Reverse(*copy)))
        .map(|(_, good)| good.clone());
    best.ok_or_else(|| VolumeError::NoSuperBlock { device: name(), copies })
}

fn unsupported(report: &CopyReport) -> Option<&Refused> {
    match &report.verdict {
        Err(CopyRefused::Refused(refused)) if refused.field() == "incompat_flags" => Some(refused),
        Ok(_) | Err(_) => None,
    }
}
