//! [`Device`]: the contract.

use crate::counters::Counters;
use crate::error::DeviceError;
use butternut_sys::file::{Alignment, DiskFile, WriteCache};
use std::fmt::Debug;

/// A row of bytes. All calls block, may come from any thread, and may run at the same time; two
/// that touch the same bytes, one of them writing, run in an unknown order.
pub trait Device: Debug + Send + Sync {
    /// What a person calls it: a path, usually.
    fn name(&self) -> &str;

    fn bytes(&self) -> u64;

    /// How many bytes the device has now: fewer than [`Device::bytes`] if it has been cut short
    /// since it was opened. 0 if that cannot be found out.
    fn bytes_now(&self) -> u64 {
        self.bytes()
    }

    fn is_writable(&self) -> bool;

    /// Transfers that are multiples of this cost no copy; all others work too.
    fn alignment(&self) -> Alignment {
        Alignment::BYTE
    }

    /// What a flush is needed for.
    fn write_cache(&self) -> WriteCache {
        WriteCache { is_volatile: true, has_fua: false }
    }

    /// Fills all of `memory`, or fails; what `memory` holds after a failure is not known.
    fn read_at(&self, offset: u64, memory: &mut [u8]) -> Result<(), DeviceError>;

    fn write_at(&self, offset: u64, memory: &[u8]) -> Result<(), DeviceError>;

    /// Writes pieces of memory in a row, as one write.
    fn write_row_at(&self, offset: u64, row: &[&[u8]]) -> Result<(), DeviceError> {
        match row {
            [one] => self.write_at(offset, one),
            row => self.write_at(offset, &row.concat()),
        }
    }

    /// Returns when all writes that completed before are on the medium.
    fn flush(&self) -> Result<(), DeviceError>;

    /// The range holds nothing of value any more. Devices that cannot do it succeed silently.
    fn discard(&self, offset: u64, bytes: u64) -> Result<(), DeviceError>;

    /// How a ring reaches the same bytes without these calls; `None` if it cannot.
    fn ring_target(&self) -> Option<RingTarget<'_>> {
        None
    }

    fn counters(&self) -> &Counters;
}

/// The file under a device, and where in the file the device's first byte lies.
#[derive(Clone, Copy, Debug)]
pub struct RingTarget<'a> {
    pub file: &'a DiskFile,
    pub offset: u64,
}
