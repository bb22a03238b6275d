//! [`Scribble`]: memory that changes under its readers. For tests of what must hold even so.

use crate::buffer::Buffer;
use std::ops::Range;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU8, Ordering};

/// Memory that any thread may change at any time. It is never freed.
#[derive(Clone, Copy, Debug)]
pub struct Scribble {
    bytes: &'static [AtomicU8],
}

impl Scribble {
    /// Zeroes, so many, from a 4096-byte boundary on.
    pub fn new(len: usize) -> Scribble {
        let all: Vec<AtomicU8> = (0..len + 4096).map(|_| AtomicU8::new(0)).collect();
        let all: &'static [AtomicU8] = all.leak();
        let skip = all.as_ptr().align_offset(4096);
        Scribble { bytes: &all[skip..skip + len] }
    }

    /// The memory as its user lends it to a request: not stable.
    pub fn lend(&self) -> Buffer {
        self.lend_part(0..self.bytes.len())
    }

    /// Some of its bytes as their user lends them to a request: not stable.
    pub fn lend_part(&self, part: Range<usize>) -> Buffer {
        let part = &self.bytes[part];
        let start = NonNull::from(part).cast::<u8>();
        // SAFETY: the memory is initialised and never freed, and may be written through shared
        // references; others than atomic ones are made from buffers alone.
        unsafe { Buffer::borrowed(start, part.len()) }
    }

    /// How many.
    pub fn bytes(&self) -> usize {
        self.bytes.len()
    }

    /// Changes one byte.
    pub fn scribble(&self, at: usize, byte: u8) {
        self.bytes[at % self.bytes.len()].store(byte, Ordering::Relaxed);
    }
}
