//! Runs the borrowed requests of a batch over the ring, with a bounce buffer where the memory or
//! the range does not suit a direct transfer.
//!
//! 1. A read that is not aligned reads the whole blocks around its range into a bounce buffer of
//!    the queue pair, and copies its part out on completion.
//! 2. A write whose range consists of whole blocks, but whose slices are not all aligned in address
//!    and length, is copied to a bounce buffer first. A write whose range is not whole blocks must
//!    read before it writes, which the device's own call does.
//! 3. Unaligned transfers longer than [`BOUNCE_BYTES_MAX`] use the device's own call, which splits
//!    them.
//! 4. At most [`SPARES_MAX`] bounce buffers are kept for later use.

use super::{Target, Targets};
use crate::error::{DeviceError, check_range, check_writable};
use crate::file::{is_aligned, is_block_aligned};
use crate::request::{ReadInto, WriteFrom};
use butternut_sys::buffer::Buffer;
use butternut_sys::errno::Errno;
use butternut_sys::lock::{Mutex, rank};
use butternut_sys::ring::{BorrowedRequest, Memory, Transfer};

/// Maximum size of a bounce buffer in bytes.
const BOUNCE_BYTES_MAX: usize = 1 << 20;

/// Maximum number of unused bounce buffers that are kept, so at most as many MiB.
const SPARES_MAX: usize = 16;

/// State shared by all requests of a queue pair.
#[derive(Debug)]
pub(super) struct Shared {
    pub(super) targets: Targets,
    /// Unused bounce buffers. The lock is never contended: one thread at a time uses a queue pair.
    spares: Mutex<Vec<Buffer>, rank::BounceBuffers>,
}

impl Shared {
    pub(super) fn new(targets: Targets) -> Shared {
        Shared { targets, spares: Mutex::new(Vec::with_capacity(SPARES_MAX)) }
    }

    fn allocate_bounce(&self, len: usize) -> Buffer {
        let mut spares = self.spares.lock();
        let found = spares.iter().position(|spare| spare.capacity() >= len);
        let Some(at) = found else { return Buffer::zeroed(len) };
        let mut buffer = spares.swap_remove(at);
        buffer.set_len(len);
        buffer
    }

    fn free_bounce(&self, buffer: Buffer) {
        let mut spares = self.spares.lock();
        if spares.len() < SPARES_MAX {
            spares.push(buffer);
        }
    }

    /// Returns the target and the index of its file in the ring. Returns `None` if the device has
    /// no file.
    fn in_ring(
        &self,
        device: usize,
        offset: u64,
        len: usize,
    ) -> Result<Option<(&Target, u32)>, DeviceError> {
        let target = self.targets.get(device).ok_or(DeviceError::NoDevice { index: device })?;
        let Some(file) = target.file else { return Ok(None) };
        check_range(&*target.device, offset, len as u64)?;
        Ok(Some((target, file)))
    }
}

impl BorrowedRequest<Shared> for ReadInto<'_> {
    fn transfer(&mut self, shared: &Shared) -> Option<Transfer<'_>> {
        let len = self.buf.len();
        let (target, file) = match shared.in_ring(self.device, self.offset, len) {
            Ok(Some(found)) => found,
            Ok(None) => {
                shared.targets.read(self);
                return None;
            }
            Err(error) => {
                self.result = Err(error);
                return None;
            }
        };
        let offset = target.offset + self.offset;
        if is_aligned(target.alignment, offset, self.buf) {
            target.device.counters().count_read(len);
            let memory = Memory::ReadInto(self.buf);
            return Some(Transfer { file, offset, memory, need: len, is_durable: false });
        }
        if len > BOUNCE_BYTES_MAX {
            shared.targets.read(self);
            return None;
        }
        target.device.counters().count_read(len);
        let (start, skip, blocks) = blocks_around(target, offset, len);
        let bounce = self.bounce.insert(shared.allocate_bounce(blocks));
        let (memory, need) = (Memory::ReadInto(bounce), skip + len);
        Some(Transfer { file, offset: start, memory, need, is_durable: false })
    }

    fn finish(&mut self, shared: &Shared, result: Result<(), Errno>) {
        let Some(target) = shared.targets.get(self.device) else { return };
        if let Some(bounce) = self.bounce.take() {
            let (_, skip, _) = blocks_around(target, target.offset + self.offset, self.buf.len());
            if result.is_ok() {
                self.buf.copy_from_slice(&bounce[skip..skip + self.buf.len()]);
            }
            shared.free_bounce(bounce);
        }
        self.result = result.map_err(|cause| {
            DeviceError::read(&*target.device, self.offset, self.buf.len() as u64, cause)
        });
    }
}

/// State shared by the reads of a batch whose caller inspects each one on completion.
pub(super) struct Inspected<'a> {
    pub(super) shared: &'a Shared,
    pub(super) inspect: &'a (dyn Fn(&ReadInto<'_>) + Sync),
}

impl BorrowedRequest<Inspected<'_>> for ReadInto<'_> {
    fn transfer(&mut self, context: &Inspected<'_>) -> Option<Transfer<'_>> {
        BorrowedRequest::<Shared>::transfer(self, context.shared)
    }

    fn finish(&mut self, context: &Inspected<'_>, result: Result<(), Errno>) {
        BorrowedRequest::<Shared>::finish(self, context.shared, result);
        if self.result.is_ok() {
            (context.inspect)(self);
        }
    }
}

impl BorrowedRequest<Shared> for WriteFrom<'_> {
    fn transfer(&mut self, shared: &Shared) -> Option<Transfer<'_>> {
        let len = self.bytes();
        let found = shared.in_ring(self.device, self.offset, len).and_then(|found| {
            found
                .map(|(target, file)| check_writable(&*target.device).map(|()| (target, file)))
                .transpose()
        });
        let (target, file) = match found {
            Ok(Some(found)) => found,
            Ok(None) => {
                shared.targets.write(self);
                return None;
            }
            Err(error) => {
                self.result = Err(error);
                return None;
            }
        };
        let offset = target.offset + self.offset;
        let is_fit = |slice: &&[u8]| is_aligned(target.alignment, offset, slice);
        if self.slices().iter().all(is_fit) {
            target.device.counters().count_write(len);
            let memory = match self.slices() {
                [one] => Memory::WriteFrom(one),
                slices => Memory::WriteVectored(slices),
            };
            return Some(Transfer { file, offset, memory, need: len, is_durable: self.is_durable });
        }
        if len > BOUNCE_BYTES_MAX || !is_block_aligned(target.alignment, offset, len as u64) {
            shared.targets.write(self);
            return None;
        }
        target.device.counters().count_write(len);
        let mut bounce = shared.allocate_bounce(len);
        let mut rest = &mut bounce[..];
        for slice in self.slices() {
            let (now, later) = rest.split_at_mut(slice.len());
            now.copy_from_slice(slice);
            rest = later;
        }
        let is_durable = self.is_durable;
        let memory = Memory::WriteFrom(self.bounce.insert(bounce));
        Some(Transfer { file, offset, memory, need: len, is_durable })
    }

    fn finish(&mut self, shared: &Shared, result: Result<(), Errno>) {
        let Some(target) = shared.targets.get(self.device) else { return };
        if let Some(bounce) = self.bounce.take() {
            shared.free_bounce(bounce);
        }
        self.result = result.map_err(|cause| {
            DeviceError::write(&*target.device, self.offset, self.bytes() as u64, cause)
        });
    }
}

/// Returns the whole blocks around a range of a file: their offset, the number of their bytes
/// before the range, and their length.
fn blocks_around(target: &Target, offset: u64, len: usize) -> (u64, usize, usize) {
    let block = target.alignment.offset_bytes;
    let skip = usize::try_from(offset % u64::from(block)).expect("less than a block");
    (offset - skip as u64, skip, target.blocks(skip + len))
}
