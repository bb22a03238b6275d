//! [`Device`]: the interface of all devices.

use crate::counters::Counters;
use crate::error::DeviceError;
use butternut_sys::file::{Alignment, DiskFile, WriteCache};
use std::fmt::Debug;
use std::time::Duration;

/// A block device. All calls block. Any thread may call them, also concurrently; two concurrent
/// calls on the same bytes, at least one of them a write, run in an unspecified order.
pub trait Device: Debug + Send + Sync {
    /// Returns the name for messages, usually a path.
    fn name(&self) -> &str;

    /// Returns the size in bytes at the time of the open, or of the last [`Device::take_growth`].
    fn bytes(&self) -> u64;

    /// Returns the current size in bytes: less than [`Device::bytes`] if the device was truncated
    /// since it was opened, 0 if the size cannot be determined.
    fn bytes_now(&self) -> u64 {
        self.bytes()
    }

    /// Lets the device have its current size, where it has grown since it was opened, and returns
    /// its size in bytes. A device that was truncated keeps the size that it had.
    fn take_growth(&self) -> u64 {
        self.bytes()
    }

    /// Returns whether the device was opened for writing.
    fn is_writable(&self) -> bool;

    /// Returns the alignment of transfers that need no copy. Other transfers work too.
    fn alignment(&self) -> Alignment {
        Alignment::BYTE
    }

    /// Returns the properties of the write cache, which determine whether flushes are needed.
    fn write_cache(&self) -> WriteCache {
        WriteCache::UNKNOWN
    }

    /// Fills all of `memory` from `offset`.
    ///
    /// # Errors
    /// The read fails, or the range is beyond the end. The contents of `memory` are then undefined.
    fn read_at(&self, offset: u64, memory: &mut [u8]) -> Result<(), DeviceError>;

    /// Writes all of `memory` at `offset`.
    ///
    /// # Errors
    /// The write fails, the range is beyond the end, or the device is read-only.
    fn write_at(&self, offset: u64, memory: &[u8]) -> Result<(), DeviceError>;

    /// Writes several slices contiguously. They count as one write.
    ///
    /// # Errors
    /// The same as those of [`Device::write_at`]. Any of the slices may have been written then.
    fn write_vectored_at(&self, offset: u64, slices: &[&[u8]]) -> Result<(), DeviceError> {
        match slices {
            [one] => self.write_at(offset, one),
            slices => self.write_at(offset, &slices.concat()),
        }
    }

    /// Returns when all writes that completed before the call are on the medium.
    ///
    /// # Errors
    /// The device reports a failed flush.
    fn flush(&self) -> Result<(), DeviceError>;

    /// Claims a block device exclusively that the caller's mount has held until now, and waits for
    /// at most `wait` for it. Returns whether other programs could write to the device meanwhile.
    ///
    /// # Errors
    /// Another program holds the device. It may have written to it.
    fn claim(&self, _wait: Duration) -> Result<bool, DeviceError> {
        Ok(true)
    }

    /// Declares a range unused (TRIM). Succeeds without effect on devices that do not support it.
    ///
    /// # Errors
    /// The device fails, the range is beyond the end, or the device is read-only.
    fn discard(&self, offset: u64, bytes: u64) -> Result<(), DeviceError>;

    /// Returns the file behind the device, so that a ring can bypass these calls. Returns `None` if
    /// the device has none.
    fn ring_target(&self) -> Option<RingTarget<'_>> {
        None
    }

    /// Returns the counters of requests to this device.
    fn counters(&self) -> &Counters;
}

/// The file behind a device, and the offset in the file where the device begins, in bytes.
#[derive(Clone, Copy, Debug)]
pub struct RingTarget<'a> {
    pub file: &'a DiskFile,
    pub offset: u64,
}
