//! The borrowed requests of a batch as the ring sees them, with bounces where memory or range do
//! not suit a direct transfer.
//!
//! 1. A read that is not aligned reads the whole blocks around its range into a buffer of the queue
//!    pair, and copies its part out when it is complete.
//! 2. A write whose range is whole blocks but whose memory is not aligned (of a row: that of some
//!    piece, or its length) is copied first. One
//!    whose range is not whole blocks must read before it writes: the device's own call does that.
//! 3. Anything longer than [`BOUNCE_BYTES_MAX`] goes through the device's own call, which bounces
//!    it in pieces.
//! 4. Buffers are kept for the next bounce, a few of them.

use super::{Target, Targets};
use crate::error::{DeviceError, check_range, check_writable};
use crate::file::{is_aligned, is_block_aligned};
use crate::request::{ReadInto, WriteFrom};
use butternut_sys::buffer::Buffer;
use butternut_sys::errno::Errno;
use butternut_sys::ring::{Memory, Scoped, Transfer};
use std::sync::{Mutex, PoisonError};

const BOUNCE_BYTES_MAX: usize = 1 << 20;

/// Spare buffers kept, and so at most as many MiB.
const SPARES_MAX: usize = 16;

/// What all requests of a queue pair share.
#[derive(Debug)]
pub(super) struct Shared {
    pub(super) targets: Targets,
    /// Never contended: one thread at a time uses a queue pair.
    spares: Mutex<Vec<Buffer>>,
}

impl Shared {
    pub(super) fn new(targets: Targets) -> Shared {
        Shared { targets, spares: Mutex::new(Vec::with_capacity(SPARES_MAX)) }
    }

    fn take_buffer(&self, len: usize) -> Buffer {
        let mut spares = self.spares.lock().unwrap_or_else(PoisonError::into_inner);
        let found = spares.iter().position(|spare| spare.capacity() >= len);
        let Some(at) = found else { return Buffer::zeroed(len) };
        let mut buffer = spares.swap_remove(at);
        buffer.set_len(len);
        buffer
    }

    fn give_back(&self, buffer: Buffer) {
        let mut spares = self.spares.lock().unwrap_or_else(PoisonError::into_inner);
        if spares.len() < SPARES_MAX {
            spares.push(buffer);
        }
    }

    /// The target, if the ring reaches it and the request is inside it.
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

impl Scoped<Shared> for ReadInto<'_> {
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
            return Some(Transfer { file, offset, memory, need: len });
        }
        if len > BOUNCE_BYTES_MAX {
            shared.targets.read(self);
            return None;
        }
        target.device.counters().count_read(len);
        let (start, skip, blocks) = blocks_around(target, offset, len);
        let bounce = self.bounce.insert(shared.take_buffer(blocks));
        Some(Transfer { file, offset: start, memory: Memory::ReadInto(bounce), need: skip + len })
    }

    fn finish(&mut self, shared: &Shared, result: Result<(), Errno>) {
        let Some(target) = shared.targets.get(self.device) else { return };
        if let Some(bounce) = self.bounce.take() {
            let (_, skip, _) = blocks_around(target, target.offset + self.offset, self.buf.len());
            if result.is_ok() {
                self.buf.copy_from_slice(&bounce[skip..skip + self.buf.len()]);
            }
            shared.give_back(bounce);
        }
        self.result = result.map_err(|cause| {
            DeviceError::read(&*target.device, self.offset, self.buf.len() as u64, cause)
        });
    }
}

/// What the reads of a batch share whose caller looks at each as it completes.
pub(super) struct Looking<'a> {
    pub(super) shared: &'a Shared,
    pub(super) look: &'a (dyn Fn(&ReadInto<'_>) + Sync),
}

impl Scoped<Looking<'_>> for ReadInto<'_> {
    fn transfer(&mut self, context: &Looking<'_>) -> Option<Transfer<'_>> {
        Scoped::<Shared>::transfer(self, context.shared)
    }

    fn finish(&mut self, context: &Looking<'_>, result: Result<(), Errno>) {
        Scoped::<Shared>::finish(self, context.shared, result);
        if self.result.is_ok() {
            (context.look)(self);
        }
    }
}

impl Scoped<Shared> for WriteFrom<'_> {
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
        let is_fit = |piece: &&[u8]| is_aligned(target.alignment, offset, piece);
        if self.pieces().iter().all(is_fit) {
            target.device.counters().count_write(len);
            let memory = match self.pieces() {
                [one] => Memory::WriteFrom(one),
                row => Memory::WriteRow(row),
            };
            return Some(Transfer { file, offset, memory, need: len });
        }
        if len > BOUNCE_BYTES_MAX || !is_block_aligned(target.alignment, offset, len as u64) {
            shared.targets.write(self);
            return None;
        }
        target.device.counters().count_write(len);
        let mut bounce = shared.take_buffer(len);
        let mut rest = &mut bounce[..];
        for piece in self.pieces() {
            let (now, later) = rest.split_at_mut(piece.len());
            now.copy_from_slice(piece);
            rest = later;
        }
        let bounce = self.bounce.insert(bounce);
        Some(Transfer { file, offset, memory: Memory::WriteFrom(bounce), need: len })
    }

    fn finish(&mut self, shared: &Shared, result: Result<(), Errno>) {
        let Some(target) = shared.targets.get(self.device) else { return };
        if let Some(bounce) = self.bounce.take() {
            shared.give_back(bounce);
        }
        self.result = result.map_err(|cause| {
            DeviceError::write(&*target.device, self.offset, self.bytes() as u64, cause)
        });
    }
}

/// The whole blocks around a range of a file: where they begin, how many of their bytes lie before
/// the range, and how many bytes they are.
fn blocks_around(target: &Target, offset: u64, len: usize) -> (u64, usize, usize) {
    let block = target.alignment.offset_bytes;
    let skip = usize::try_from(offset % u64::from(block)).expect("less than a block");
    (offset - skip as u64, skip, target.blocks(skip + len))
}
