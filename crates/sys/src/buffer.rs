//! [`Buffer`]: owned bytes that a device can read and write directly.
//!
//! 1. The first byte lies on a 4096-byte boundary, and the capacity is a multiple of 4096, so that
//!    a direct read may always be rounded up to whole blocks inside the buffer's own memory. A
//!    borrowed buffer lies where its lender says, and its capacity is its length.
//! 2. The memory is initialised from the start: zeroed, or (from an arena) what the slot's previous
//!    user left, or what the lender wrote.
//! 3. A buffer has one owner. It moves into a request and comes back with its completion.
//! 4. A buffer cut from an [`Arena`](crate::arena::Arena) returns its slot when it is dropped, and
//!    keeps the arena alive until then.
//! 5. The bytes of a [borrowed](Buffer::borrowed) buffer are not taken for stable: its lender is
//!    another program's code, whose promise to leave them alone nothing enforces. Code that needs
//!    one value of them, to sum and then to write it, takes it out once ([`Buffer::copy_to`]) and
//!    works on the copy. All other buffers are stable.
//! 6. A reference to the bytes is made only while nothing changes them: by the contract of
//!    [`Buffer::borrowed`], or, for memory of a [`Scribble`](crate::scribble::Scribble), by a hold
//!    on it that keeps the scribbler away until the buffer is dropped. The length, the address and
//!    [`Buffer::copy_to`] need no reference, and take no hold.

use crate::arena::Slot;
use crate::scribble::Loan;
use crate::slabs;
use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::fmt;
use std::ops::{Deref, DerefMut, Range};
use std::ptr::NonNull;

/// The alignment of every buffer, and the unit of its capacity.
pub const BUFFER_ALIGN: usize = 4096;

/// The longest buffer; one more bound between a hostile length and the allocator.
pub const BUFFER_BYTES_MAX: usize = 1 << 30;

pub struct Buffer {
    start: NonNull<u8>,
    len: usize,
    capacity: usize,
    home: Home,
}

/// Where the memory goes back to.
enum Home {
    /// Capacity zero: no memory at all.
    Nowhere,
    /// The lender's.
    Lender,
    /// A [`Scribble`](crate::scribble::Scribble)'s, with the hold on it (law 6).
    Scribble(Loan),
    Heap,
    /// A slab's block.
    Slab,
    /// Held for its drop, which frees the slot.
    Arena {
        _slot: Slot,
    },
}

// SAFETY: the buffer owns its memory alone, like a `Box<[u8]>`; its slot, if any, is `Send`. Who
// lends memory promises that it may be used from any thread; a scribble's is atomic or held.
unsafe impl Send for Buffer {}
// SAFETY: shared access only reads the bytes; a hold is taken under a lock.
unsafe impl Sync for Buffer {}

impl Buffer {
    /// `len` zero bytes. Panics beyond [`BUFFER_BYTES_MAX`]: lengths from a disk are checked by
    /// their reader, long before.
    pub fn zeroed(len: usize) -> Buffer {
        assert!(len <= BUFFER_BYTES_MAX, "a buffer is at most {BUFFER_BYTES_MAX} bytes");
        let capacity = len.next_multiple_of(BUFFER_ALIGN);
        if capacity == 0 {
            return Buffer::default();
        }
        if let Some(start) = slabs::take(capacity) {
            return Buffer { start, len, capacity, home: Home::Slab };
        }
        let layout = layout(capacity);
        // SAFETY: the layout's size is not zero.
        let start = unsafe { alloc_zeroed(layout) };
        let Some(start) = NonNull::new(start) else { handle_alloc_error(layout) };
        Buffer { start, len, capacity, home: Home::Heap }
    }

    /// A buffer that holds a copy of `bytes`.
    pub fn copy_of(bytes: &[u8]) -> Buffer {
        let mut buffer = Buffer::zeroed(bytes.len());
        buffer.copy_from_slice(bytes);
        buffer
    }

    pub(crate) fn from_slot(slot: Slot, len: usize) -> Buffer {
        let (start, capacity) = slot.memory();
        assert!(len <= capacity && capacity.is_multiple_of(BUFFER_ALIGN), "law 1");
        Buffer { start, len, capacity, home: Home::Arena { _slot: slot } }
    }

    /// A buffer over lent memory (laws 1 and 5).
    ///
    /// # Safety
    ///
    /// Until the buffer is dropped, `len` bytes from `start` are initialised memory that any thread
    /// may read and write, and that is reached through this buffer only: no reference leads there
    /// but those made from it, and nothing else changes the bytes.
    pub unsafe fn borrowed(start: NonNull<u8>, len: usize) -> Buffer {
        assert!(len <= BUFFER_BYTES_MAX, "a buffer is at most {BUFFER_BYTES_MAX} bytes");
        Buffer { start, len, capacity: len, home: Home::Lender }
    }

    /// A buffer over a part of a scribble's memory (law 6).
    pub(crate) fn of_scribble(start: NonNull<u8>, len: usize, loan: Loan) -> Buffer {
        Buffer { start, len, capacity: len, home: Home::Scribble(loan) }
    }

    /// The number of bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The address of the first byte.
    pub fn as_ptr(&self) -> *const u8 {
        self.start.as_ptr()
    }

    /// The bytes that [`Buffer::set_len`] may grow to without moving.
    pub fn capacity(&self) -> usize {
        self.capacity
    }

    /// Changes the length within the capacity; bytes that appear hold whatever was there (law 2).
    pub fn set_len(&mut self, len: usize) {
        assert!(len <= self.capacity, "length {len} beyond capacity {}", self.capacity);
        self.len = len;
    }

    /// Whether the memory belongs to an arena.
    pub fn is_from_arena(&self) -> bool {
        matches!(self.home, Home::Arena { .. })
    }

    /// Whether nothing else can change the bytes (law 5).
    pub fn is_stable(&self) -> bool {
        !matches!(self.home, Home::Lender | Home::Scribble(_))
    }

    /// Copies the bytes from `at` on, as they are at this moment, and reads each only once.
    pub fn copy_to(&self, at: usize, copy: &mut [u8]) {
        let fits = at.checked_add(copy.len()).is_some_and(|end| end <= self.len);
        assert!(fits, "{} bytes at {at} are not in {} bytes", copy.len(), self.len);
        if let Home::Scribble(loan) = &self.home {
            let part = self.addresses();
            return loan.copy_to(&(part.start + at..part.end), copy);
        }
        // SAFETY: `at` lies within the memory.
        let from = unsafe { self.start.add(at) };
        // SAFETY: as many bytes as `copy` has are there from `from` on; `copy` is exclusive, so it
        // is other memory. No reference to bytes that may change is made.
        unsafe { std::ptr::copy_nonoverlapping(from.as_ptr(), copy.as_mut_ptr(), copy.len()) }
    }

    /// The whole memory, beyond the length too.
    pub fn whole_mut(&mut self) -> &mut [u8] {
        self.hold_alone();
        // SAFETY: `capacity` bytes from `start` are ours, initialised, and borrowed with `self`;
        // nothing else changes them (law 6).
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.capacity) }
    }

    pub(crate) fn start(&self) -> NonNull<u8> {
        self.start
    }

    /// Of the whole memory.
    fn addresses(&self) -> Range<usize> {
        let start = self.start.addr().get();
        start..start + self.capacity
    }

    /// Law 6, before a shared reference.
    fn hold(&self) {
        if let Home::Scribble(loan) = &self.home {
            loan.hold(&self.addresses());
        }
    }

    /// Law 6, before an exclusive reference.
    fn hold_alone(&mut self) {
        let part = self.addresses();
        if let Home::Scribble(loan) = &mut self.home {
            loan.hold_alone(&part);
        }
    }
}

/// A copy has memory of its own, wherever the original lies.
impl Clone for Buffer {
    fn clone(&self) -> Buffer {
        let mut copy = Buffer::zeroed(self.len);
        self.copy_to(0, &mut copy);
        copy
    }
}

impl Default for Buffer {
    fn default() -> Buffer {
        let nowhere = std::ptr::without_provenance_mut(BUFFER_ALIGN);
        let start = NonNull::new(nowhere).expect("the alignment is not zero");
        Buffer { start, len: 0, capacity: 0, home: Home::Nowhere }
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        let part = self.addresses();
        if let Home::Scribble(loan) = &mut self.home {
            loan.release(&part);
        }
        match self.home {
            // SAFETY: allocated by `zeroed` with this very layout, and freed once.
            Home::Heap => unsafe { dealloc(self.start.as_ptr(), layout(self.capacity)) },
            // SAFETY: taken by `zeroed` with this very capacity, and given back once.
            Home::Slab => unsafe { slabs::give(self.start, self.capacity) },
            Home::Nowhere | Home::Lender | Home::Scribble(_) | Home::Arena { .. } => {}
        }
    }
}

impl Deref for Buffer {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        self.hold();
        // SAFETY: `len <= capacity` initialised bytes that we own (laws 1 and 2), and that nothing
        // changes while they are borrowed (law 6).
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.len) }
    }
}

impl DerefMut for Buffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        self.hold_alone();
        // SAFETY: as in `deref`, and `&mut self` makes the access exclusive.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.len) }
    }
}

impl AsRef<[u8]> for Buffer {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl AsMut<[u8]> for Buffer {
    fn as_mut(&mut self) -> &mut [u8] {
        self
    }
}

impl fmt::Debug for Buffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Buffer({} of {} bytes)", self.len, self.capacity)
    }
}

fn layout(capacity: usize) -> Layout {
    Layout::from_size_align(capacity, BUFFER_ALIGN)
        .expect("capacity is bounded, the alignment 4096")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_buffer_is_aligned_zeroed_and_as_long_as_asked() {
        for len in [0, 1, 511, 4096, 4097, 16384, 1 << 20] {
            let mut buffer = Buffer::zeroed(len);
            assert_eq!(buffer.len(), len);
            assert_eq!(buffer.as_ptr().addr() % BUFFER_ALIGN, 0);
            assert!(buffer.capacity().is_multiple_of(BUFFER_ALIGN) && buffer.capacity() >= len);
            assert!(buffer.iter().all(|byte| *byte == 0));
            buffer.fill(7);
            assert!(buffer.iter().all(|byte| *byte == 7));
        }
    }

    #[test]
    fn growing_within_the_capacity_keeps_the_bytes() {
        let mut buffer = Buffer::copy_of(b"abc");
        buffer.set_len(5);
        assert_eq!(&buffer[..], b"abc\0\0");
        assert_eq!(buffer.whole_mut().len(), 4096);
    }

    #[test]
    fn a_borrowed_buffer_is_the_lenders_memory_and_not_stable() {
        let mut memory = vec![3u8; 5000];
        let start = NonNull::new(memory.as_mut_ptr().wrapping_add(1)).unwrap();
        // SAFETY: the bytes are there, and the test leaves them alone while the buffer is.
        let mut buffer = unsafe { Buffer::borrowed(start, 4998) };
        assert!(!buffer.is_stable() && Buffer::zeroed(1).is_stable() && !buffer.is_from_arena());
        assert_eq!((buffer.len(), buffer.capacity()), (4998, 4998));
        buffer.fill(4);
        let mut copy = [0; 9];
        buffer.copy_to(4989, &mut copy);
        assert_eq!(copy, [4; 9]);
        assert!(buffer.clone().is_stable());
        drop(buffer);
        assert_eq!((memory[0], memory[1], memory[4998], memory[4999]), (3, 4, 4, 3));
    }

    #[test]
    #[should_panic(expected = "are not in")]
    fn no_byte_behind_the_end_is_copied_out() {
        Buffer::zeroed(10).copy_to(5, &mut [0; 6]);
    }

    #[test]
    #[should_panic(expected = "beyond capacity")]
    fn growing_beyond_the_capacity_is_refused() {
        Buffer::zeroed(10).set_len(4097);
    }
}
