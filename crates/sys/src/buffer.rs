//! [`Buffer`]: owned bytes that a device can read and write directly.
//!
//! 1. The first byte lies on a 4096-byte boundary, and the capacity is a multiple of 4096. So a
//!    direct read can always be rounded up to whole blocks inside the buffer's own memory. A
//!    borrowed buffer has the address that its lender gives, and its capacity is its length.
//! 2. The memory is always initialised: zeroed, or (from an arena) with the bytes of the slot's
//!    previous user, or with the bytes of the lender.
//! 3. A buffer has one owner. It moves into a request and comes back with its completion.
//! 4. A buffer from an [`Arena`](crate::arena::Arena) frees its slot when it is dropped, and keeps
//!    the arena mapped until then.
//! 5. The bytes of a [borrowed](Buffer::borrowed) buffer are not stable: the lender is another
//!    program's code, and nothing prevents it from changing them. Code that needs one value of
//!    them, to checksum and then write it, copies them once ([`Buffer::copy_to`]) and works on the
//!    copy. All other buffers are stable.
//! 6. A reference to the bytes is created only while nothing changes them. For borrowed memory the
//!    contract of [`Buffer::borrowed`] ensures this. For memory of a
//!    [`Scribble`](crate::scribble::Scribble) the buffer takes a hold first, which excludes the
//!    scribbler until the buffer is dropped. The length, the address and [`Buffer::copy_to`] need
//!    no reference, and take no hold.

use crate::arena::Slot;
use crate::scribble::Loan;
use crate::slabs;
use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::fmt;
use std::ops::{Deref, DerefMut, Range};
use std::ptr::NonNull;

/// The alignment of every buffer, and the unit of its capacity.
pub const BUFFER_ALIGN: usize = 4096;

/// The longest buffer, in bytes: a last bound between a hostile length and the allocator.
pub const BUFFER_BYTES_MAX: usize = 1 << 30;

/// Owned bytes, aligned to [`BUFFER_ALIGN`]; see the laws of [this module](self).
pub struct Buffer {
    start: NonNull<u8>,
    len: usize,
    capacity: usize,
    home: Home,
}

/// The owner of the memory, which decides what `drop` does.
enum Home {
    /// Capacity zero: there is no memory.
    Nowhere,
    /// Memory of the lender; not freed.
    Lender,
    /// Memory of a [`Scribble`](crate::scribble::Scribble), with the hold on it (law 6).
    Scribble(Loan),
    /// The global allocator.
    Heap,
    /// A block of [`slabs`].
    Slab,
    /// Dropping the slot frees it.
    Arena { _slot: Slot },
}

// SAFETY: the buffer owns its memory alone, like a `Box<[u8]>`; its slot, if any, is `Send`. The
// lender of borrowed memory guarantees that any thread may use it; memory of a scribble is accessed
// atomically or under a hold.
unsafe impl Send for Buffer {}
// SAFETY: shared access only reads the bytes; a hold is taken under a lock.
unsafe impl Sync for Buffer {}

impl Buffer {
    /// Allocates `len` zero bytes.
    ///
    /// # Panics
    /// If `len` exceeds [`BUFFER_BYTES_MAX`]. Readers check lengths that come from a disk long
    /// before.
    pub fn zeroed(len: usize) -> Buffer {
        assert!(len <= BUFFER_BYTES_MAX, "a buffer is at most {BUFFER_BYTES_MAX} bytes");
        let capacity = len.next_multiple_of(BUFFER_ALIGN);
        if capacity == 0 {
            return Buffer::default();
        }
        if let Some(start) = slabs::allocate(capacity) {
            return Buffer { start, len, capacity, home: Home::Slab };
        }
        let layout = layout(capacity);
        // SAFETY: the layout's size is not zero.
        let start = unsafe { alloc_zeroed(layout) };
        let Some(start) = NonNull::new(start) else { handle_alloc_error(layout) };
        Buffer { start, len, capacity, home: Home::Heap }
    }

    /// Allocates a copy of `bytes`.
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

    /// Makes a buffer over memory of the caller (laws 1 and 5).
    ///
    /// # Safety
    ///
    /// Until the buffer is dropped, the `len` bytes from `start` are initialised memory that any
    /// thread may read and write, and only this buffer accesses them: no references to them exist
    /// except those made from it, and nothing else changes the bytes.
    pub unsafe fn borrowed(start: NonNull<u8>, len: usize) -> Buffer {
        assert!(len <= BUFFER_BYTES_MAX, "a buffer is at most {BUFFER_BYTES_MAX} bytes");
        Buffer { start, len, capacity: len, home: Home::Lender }
    }

    /// Makes a buffer over a part of a scribble's memory (law 6).
    pub(crate) fn of_scribble(start: NonNull<u8>, len: usize, loan: Loan) -> Buffer {
        Buffer { start, len, capacity: len, home: Home::Scribble(loan) }
    }

    /// Returns the length in bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns the address of the first byte.
    pub fn as_ptr(&self) -> *const u8 {
        self.start.as_ptr()
    }

    /// Returns the length in bytes that [`Buffer::set_len`] can grow the buffer to without moving
    /// it.
    pub fn capacity(&self) -> usize {
        self.capacity
    }

    /// Changes the length within the capacity. Added bytes hold what the memory held before (law
    /// 2).
    pub fn set_len(&mut self, len: usize) {
        assert!(len <= self.capacity, "length {len} beyond capacity {}", self.capacity);
        self.len = len;
    }

    /// Returns whether the memory belongs to an arena.
    pub fn is_from_arena(&self) -> bool {
        matches!(self.home, Home::Arena { .. })
    }

    /// Returns whether nothing else can change the bytes (law 5).
    pub fn is_stable(&self) -> bool {
        !matches!(self.home, Home::Lender | Home::Scribble(_))
    }

    /// Copies the current bytes from index `at` on into `copy`, reading each byte only once.
    pub fn copy_to(&self, at: usize, copy: &mut [u8]) {
        let fits = at.checked_add(copy.len()).is_some_and(|end| end <= self.len);
        assert!(fits, "{} bytes at {at} are not in {} bytes", copy.len(), self.len);
        if let Home::Scribble(loan) = &self.home {
            let part = self.addresses();
            return loan.copy_to(&(part.start + at..part.end), copy);
        }
        // SAFETY: `at` lies within the memory.
        let from = unsafe { self.start.add(at) };
        // SAFETY: `from` is followed by as many bytes as `copy` has. `copy` is exclusive, so it is
        // other memory. No reference to bytes that may change is created.
        unsafe { std::ptr::copy_nonoverlapping(from.as_ptr(), copy.as_mut_ptr(), copy.len()) }
    }

    /// Returns the whole capacity, including the bytes behind the length.
    pub fn whole_mut(&mut self) -> &mut [u8] {
        self.hold_alone();
        // SAFETY: `capacity` bytes from `start` belong to the buffer, are initialised, and are
        // borrowed with `self`; nothing else changes them (law 6).
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.capacity) }
    }

    pub(crate) fn start(&self) -> NonNull<u8> {
        self.start
    }

    /// Returns the addresses of the whole capacity.
    fn addresses(&self) -> Range<usize> {
        let start = self.start.addr().get();
        start..start + self.capacity
    }

    /// Takes a shared hold before a shared reference is created (law 6).
    fn hold(&self) {
        if let Home::Scribble(loan) = &self.home {
            loan.hold(&self.addresses());
        }
    }

    /// Takes an exclusive hold before an exclusive reference is created (law 6).
    fn hold_alone(&mut self) {
        let part = self.addresses();
        if let Home::Scribble(loan) = &mut self.home {
            loan.hold_alone(&part);
        }
    }
}

/// Copies into newly allocated memory, whatever memory the original has.
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
            // SAFETY: allocated by `zeroed` with this layout, and freed once.
            Home::Heap => unsafe { dealloc(self.start.as_ptr(), layout(self.capacity)) },
            // SAFETY: allocated by `zeroed` with this capacity, and freed once.
            Home::Slab => unsafe { slabs::free(self.start, self.capacity) },
            Home::Nowhere | Home::Lender | Home::Scribble(_) | Home::Arena { .. } => {}
        }
    }
}

impl Deref for Buffer {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        self.hold();
        // SAFETY: `len <= capacity` initialised bytes that the buffer owns (laws 1 and 2), and that
        // nothing changes while they are borrowed (law 6).
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
        .expect("the capacity is bounded and the alignment is 4096")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_buffer_is_aligned_zeroed_and_has_the_requested_length() {
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
    fn a_borrowed_buffer_uses_the_lenders_memory_and_is_not_stable() {
        let mut memory = vec![3u8; 5000];
        let start = NonNull::new(memory.as_mut_ptr().wrapping_add(1)).unwrap();
        // SAFETY: the bytes exist, and the test does not touch them while the buffer exists.
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
    fn copy_to_panics_behind_the_end() {
        Buffer::zeroed(10).copy_to(5, &mut [0; 6]);
    }

    #[test]
    #[should_panic(expected = "beyond capacity")]
    fn set_len_panics_beyond_the_capacity() {
        Buffer::zeroed(10).set_len(4097);
    }
}
