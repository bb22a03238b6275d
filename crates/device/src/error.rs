//! [`DeviceError`]: why a device could not carry out a request. It can be cloned, because the
//! callers of one device request may have several requests that fail with it.

use crate::device::Device;
use butternut_sys::errno::Errno;
use butternut_sys::file::OpenError;
use std::sync::Arc;

/// Why a device could not carry out a request.
#[derive(Clone, Debug, thiserror::Error)]
pub enum DeviceError {
    #[error(transparent)]
    Open(#[from] Arc<OpenError>),
    #[error("{device}: window of {bytes} bytes at {offset} is beyond the end, {file_bytes}")]
    Window { device: Box<str>, offset: u64, bytes: u64, file_bytes: u64 },
    #[error("{device}: {bytes} bytes at {offset} are beyond the end, {device_bytes}")]
    OutOfRange { device: Box<str>, offset: u64, bytes: u64, device_bytes: u64 },
    #[error("{device}: is open for reading only")]
    ReadOnly { device: Box<str> },
    #[error("{device}: cannot read {bytes} bytes at {offset}")]
    Read {
        device: Box<str>,
        offset: u64,
        bytes: u64,
        #[source]
        cause: Errno,
    },
    #[error("{device}: cannot write {bytes} bytes at {offset}")]
    Write {
        device: Box<str>,
        offset: u64,
        bytes: u64,
        #[source]
        cause: Errno,
    },
    #[error("{device}: cannot flush")]
    Flush {
        device: Box<str>,
        #[source]
        cause: Errno,
    },
    #[error("{device}: cannot discard {bytes} bytes at {offset}")]
    Discard {
        device: Box<str>,
        offset: u64,
        bytes: u64,
        #[source]
        cause: Errno,
    },
    /// The mount that held the device has ended.
    #[error("{device}: cannot be claimed after its mount has ended")]
    Claim {
        device: Box<str>,
        #[source]
        cause: Errno,
    },
    #[error("no device has number {index}")]
    NoDevice { index: usize },
    /// The initial result of a [`ReadInto`](crate::ReadInto) or a [`WriteFrom`](crate::WriteFrom),
    /// until its batch has run.
    #[error("the request has not been run")]
    NotRun,
}

impl DeviceError {
    /// Returns the errno of the error.
    pub fn errno(&self) -> Errno {
        match self {
            DeviceError::Open(error) => error.errno(),
            DeviceError::ReadOnly { .. } => Errno::READ_ONLY,
            DeviceError::Window { .. }
            | DeviceError::OutOfRange { .. }
            | DeviceError::NoDevice { .. }
            | DeviceError::NotRun => Errno::INVALID,
            DeviceError::Read { cause, .. }
            | DeviceError::Write { cause, .. }
            | DeviceError::Flush { cause, .. }
            | DeviceError::Claim { cause, .. }
            | DeviceError::Discard { cause, .. } => *cause,
        }
    }

    pub(crate) fn read(device: &dyn Device, offset: u64, bytes: u64, cause: Errno) -> Self {
        DeviceError::Read { device: device.name().into(), offset, bytes, cause }
    }

    pub(crate) fn write(device: &dyn Device, offset: u64, bytes: u64, cause: Errno) -> Self {
        DeviceError::Write { device: device.name().into(), offset, bytes, cause }
    }

    pub(crate) fn flush(device: &dyn Device, cause: Errno) -> Self {
        DeviceError::Flush { device: device.name().into(), cause }
    }

    pub(crate) fn discard(device: &dyn Device, offset: u64, bytes: u64, cause: Errno) -> Self {
        DeviceError::Discard { device: device.name().into(), offset, bytes, cause }
    }
}

/// Checks that `bytes` bytes at `offset` are inside the device.
pub(crate) fn check_range(device: &dyn Device, offset: u64, bytes: u64) -> Result<(), DeviceError> {
    let device_bytes = device.bytes();
    if offset.checked_add(bytes).is_some_and(|end| end <= device_bytes) {
        return Ok(());
    }
    Err(DeviceError::OutOfRange { device: device.name().into(), offset, bytes, device_bytes })
}

pub(crate) fn check_writable(device: &dyn Device) -> Result<(), DeviceError> {
    if device.is_writable() {
        return Ok(());
    }
    Err(DeviceError::ReadOnly { device: device.name().into() })
}
