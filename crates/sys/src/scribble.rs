//! [`Scribble`]: memory that changes while requests use it. For tests of code that must tolerate
//! this.
//!
//! ```text
//! scribbler    stores bytes atomically      except where a buffer holds them
//! copy_to      loads bytes atomically       unless another buffer holds them exclusively
//! reference    takes a hold first           for reading: shared; for writing: exclusive
//! ```
//!
//! Laws:
//!
//! 1. The scribbler stores a byte only under the lock of the holds, and only where there is no
//!    hold. So a reference never leads to a byte that changes, and the interface is safe.
//! 2. A hold lasts until its buffer is dropped, because the buffer does not know when a reference
//!    to its bytes ends.
//! 3. Overlapping holds are all shared. A test that requests any other combination panics.

use crate::buffer::Buffer;
use crate::lock::{Mutex, MutexGuard, rank};
use std::ops::Range;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU8, Ordering};

/// Memory that any thread may change at any time. It is never freed.
#[derive(Clone, Copy, Debug)]
pub struct Scribble {
    memory: &'static Memory,
}

#[derive(Debug)]
struct Memory {
    bytes: &'static [AtomicU8],
    holds: Mutex<Vec<Hold>, rank::Scribble>,
}

/// A range of addresses that references lead to.
#[derive(Debug)]
struct Hold {
    part: Range<usize>,
    is_exclusive: bool,
}

/// The part of a buffer over a scribble's memory that knows the memory and the hold. The buffer
/// knows the range and passes it to every call.
#[derive(Debug)]
pub(crate) struct Loan {
    memory: &'static Memory,
    /// [`FREE`], [`SHARED`] or [`EXCLUSIVE`]; changed under the lock of the holds.
    state: AtomicU8,
}

const FREE: u8 = 0;
const SHARED: u8 = 1;
const EXCLUSIVE: u8 = 2;

impl Scribble {
    /// Allocates `len` zero bytes, aligned to 4096.
    pub fn new(len: usize) -> Scribble {
        let all: Vec<AtomicU8> = (0..len + 4096).map(|_| AtomicU8::new(0)).collect();
        let all: &'static [AtomicU8] = all.leak();
        let skip = all.as_ptr().align_offset(4096);
        let memory = Memory { bytes: &all[skip..skip + len], holds: Mutex::default() };
        Scribble { memory: Box::leak(Box::new(memory)) }
    }

    /// Returns a buffer over all of the memory, as a caller lends it to a request. It is not
    /// stable.
    pub fn lend(&self) -> Buffer {
        self.lend_part(0..self.bytes())
    }

    /// Returns a buffer over a part of the memory. It is not stable.
    pub fn lend_part(&self, part: Range<usize>) -> Buffer {
        // The bytes may be written through a shared reference, because they are atomics. Non-atomic
        // accesses are made only under an exclusive hold.
        let bytes = &self.memory.bytes[part];
        let loan = Loan { memory: self.memory, state: AtomicU8::new(FREE) };
        Buffer::of_scribble(NonNull::from(bytes).cast(), bytes.len(), loan)
    }

    /// Returns the size of the memory in bytes.
    pub fn bytes(&self) -> usize {
        self.memory.bytes.len()
    }

    /// Changes one byte, unless a buffer holds it.
    pub fn scribble(&self, at: usize, byte: u8) {
        let place = &self.memory.bytes[at % self.bytes()];
        let address = place.as_ptr().addr();
        let holds = self.memory.holds();
        if !holds.iter().any(|hold| hold.part.contains(&address)) {
            place.store(byte, Ordering::Relaxed);
        }
    }
}

impl Memory {
    fn holds(&self) -> MutexGuard<'_, Vec<Hold>> {
        self.holds.lock()
    }
}

impl Loan {
    /// Copies the bytes at the start of `part`.
    pub(crate) fn copy_to(&self, part: &Range<usize>, copy: &mut [u8]) {
        // Locked until the end of the function, so that no other buffer can take an exclusive hold.
        let holds = self.memory.holds();
        let is_own = self.state.load(Ordering::Relaxed) == EXCLUSIVE;
        let is_written = holds.iter().any(|hold| hold.is_exclusive && overlap(hold, part));
        assert!(is_own || !is_written, "a request writes into this memory");
        let start = part.start - self.memory.bytes.as_ptr().addr();
        for (to, from) in copy.iter_mut().zip(&self.memory.bytes[start..]) {
            *to = from.load(Ordering::Relaxed);
        }
    }

    pub(crate) fn hold(&self, part: &Range<usize>) {
        if self.state.load(Ordering::Acquire) != FREE {
            return;
        }
        let mut holds = self.memory.holds();
        if self.state.load(Ordering::Relaxed) == FREE {
            let is_free = !holds.iter().any(|hold| hold.is_exclusive && overlap(hold, part));
            assert!(is_free, "a request writes into this memory");
            holds.push(Hold { part: part.clone(), is_exclusive: false });
            self.state.store(SHARED, Ordering::Release);
        }
    }

    pub(crate) fn hold_alone(&mut self, part: &Range<usize>) {
        if *self.state.get_mut() == EXCLUSIVE {
            return;
        }
        self.release(part);
        let mut holds = self.memory.holds();
        let is_free = !holds.iter().any(|hold| overlap(hold, part));
        assert!(is_free, "another request has this memory");
        holds.push(Hold { part: part.clone(), is_exclusive: true });
        *self.state.get_mut() = EXCLUSIVE;
    }

    /// Releases the hold, if there is one, when the buffer is dropped.
    pub(crate) fn release(&mut self, part: &Range<usize>) {
        let state = std::mem::replace(self.state.get_mut(), FREE);
        if state == FREE {
            return;
        }
        let mut holds = self.memory.holds();
        let own = |hold: &Hold| hold.part == *part && hold.is_exclusive == (state == EXCLUSIVE);
        if let Some(at) = holds.iter().position(own) {
            holds.swap_remove(at);
        }
    }
}

fn overlap(hold: &Hold, part: &Range<usize>) -> bool {
    hold.part.start < part.end && part.start < hold.part.end
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_change_only_while_no_buffer_holds_them() {
        let memory = Scribble::new(8192);
        let mut buffer = memory.lend_part(4096..8192);
        assert!(!buffer.is_stable() && buffer.len() == 4096 && !buffer.is_empty());
        assert!(buffer.as_ptr().addr().is_multiple_of(4096));
        let first = |buffer: &Buffer| {
            let mut copy = [0; 1];
            buffer.copy_to(0, &mut copy);
            copy[0]
        };
        memory.scribble(4096, 1);
        assert_eq!(first(&buffer), 1);
        let clone = buffer.clone();
        memory.scribble(4096, 2);
        assert_eq!((first(&buffer), clone[0]), (2, 1), "a copy takes no hold");
        assert_eq!(buffer[0], 2);
        memory.scribble(4096, 3);
        memory.scribble(0, 4);
        assert_eq!(buffer[0], 2, "a reference leads there");
        let other = memory.lend_part(0..8192);
        assert_eq!((other[0], other[4096]), (4, 2));
        drop(other);
        buffer[0] = 5;
        memory.scribble(4096, 6);
        assert_eq!(first(&buffer), 5);
        drop(buffer);
        memory.scribble(4096, 7);
        assert_eq!(memory.lend_part(4096..4097)[0], 7);
    }

    #[test]
    #[should_panic(expected = "another request has this memory")]
    fn two_buffers_cannot_hold_one_part_exclusively() {
        let memory = Scribble::new(4096);
        let (mut first, mut second) = (memory.lend(), memory.lend());
        first[0] = 1;
        second[0] = 2;
    }
}
