//! Memory that is lent to requests: not stable, and its lender's again as soon as the request is
//! done.

use butternut::Buffer;
use butternut_sys::scribble::Scribble;
use std::sync::{Mutex, PoisonError};

const BYTES_MIN: usize = 256 << 10;

/// Such memory is never freed, so it is kept.
static FREE: Mutex<Vec<Scribble>> = Mutex::new(Vec::new());

/// Memory of one request. When it is dropped, it changes.
#[derive(Debug)]
pub struct Lent(Scribble);

impl Lent {
    pub fn new(bytes: usize) -> Lent {
        let found = {
            let mut free = FREE.lock().unwrap_or_else(PoisonError::into_inner);
            let fits = free.iter().position(|memory| memory.bytes() >= bytes);
            fits.map(|at| free.swap_remove(at))
        };
        let new = || Scribble::new(bytes.next_power_of_two().max(BYTES_MIN));
        Lent(found.unwrap_or_else(new))
    }

    /// The first bytes of it, to be dropped before it is.
    pub fn buffer(&self, bytes: usize) -> Buffer {
        let mut buffer = self.0.lend();
        buffer.set_len(bytes);
        buffer
    }
}

impl Drop for Lent {
    fn drop(&mut self) {
        for at in (0..self.0.bytes()).step_by(500) {
            self.0.scribble(at, 0xa5);
        }
        FREE.lock().unwrap_or_else(PoisonError::into_inner).push(self.0);
    }
}
