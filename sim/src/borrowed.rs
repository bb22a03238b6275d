//! Memory for borrowed buffers. Its content changes as soon as the request has completed, as a
//! program may change its own memory.

use butternut::Buffer;
use butternut_sys::scribble::Scribble;
use std::sync::{Mutex, PoisonError};

const BYTES_MIN: usize = 256 << 10;

/// Such memory is never freed, so it is reused.
static FREE: Mutex<Vec<Scribble>> = Mutex::new(Vec::new());

/// The memory of one request. Dropping it overwrites it.
#[derive(Debug)]
pub struct BorrowedMemory(Scribble);

impl BorrowedMemory {
    pub fn new(bytes: usize) -> BorrowedMemory {
        let found = {
            let mut free = FREE.lock().unwrap_or_else(PoisonError::into_inner);
            let fits = free.iter().position(|memory| memory.bytes() >= bytes);
            fits.map(|at| free.swap_remove(at))
        };
        let new = || Scribble::new(bytes.next_power_of_two().max(BYTES_MIN));
        BorrowedMemory(found.unwrap_or_else(new))
    }

    /// Returns a borrowed buffer over the first bytes. It must be dropped before the memory is.
    pub fn buffer(&self, bytes: usize) -> Buffer {
        let mut buffer = self.0.lend();
        buffer.set_len(bytes);
        buffer
    }
}

impl Drop for BorrowedMemory {
    fn drop(&mut self) {
        for at in (0..self.0.bytes()).step_by(500) {
            self.0.scribble(at, 0xa5);
        }
        FREE.lock().unwrap_or_else(PoisonError::into_inner).push(self.0);
    }
}
