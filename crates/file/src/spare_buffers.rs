//! [`SpareBuffers`]: memory for reads that fill the page cache.

use butternut_sys::buffer::Buffer;
use butternut_sys::lock::{Mutex, rank};

/// Number of buffers that are kept for the next reads, and their size in bytes.
const SPARES_MAX: usize = 8;
const SPARE_BYTES: usize = 512 << 10;

/// Buffers for reads that fill the page cache.
#[derive(Debug, Default)]
/// After a panic: each buffer in the list is whole, and its contents are not used again.
pub(crate) struct SpareBuffers(Mutex<Vec<Buffer>, rank::SpareBuffers>);

impl SpareBuffers {
    pub(crate) fn take(&self, bytes: usize) -> Buffer {
        let spare = if bytes <= SPARE_BYTES { self.0.lock().pop() } else { None };
        let mut memory = spare.unwrap_or_else(|| Buffer::zeroed(bytes.max(SPARE_BYTES)));
        memory.set_len(bytes);
        memory
    }

    pub(crate) fn put_back(&self, memory: Buffer) {
        let mut spares = self.0.lock();
        if spares.len() < SPARES_MAX && memory.capacity() == SPARE_BYTES {
            spares.push(memory);
        }
    }
}
