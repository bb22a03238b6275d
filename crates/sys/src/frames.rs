//! [`Frames`]: a pool of 4096-byte frames; [`Frame`]: a reference-counted handle to one of them.
//!
//! ```text
//! slab   | 4K | 4K | 4K | ...  512 frames, mapped on first use
//! heads  | refs, memory, pool | ...      a Frame is a pointer to one of them
//! ```
//!
//! 1. A frame is 4096 bytes on a 4096-byte boundary. Its bytes are initialised: zeroed, or those of
//!    its previous user.
//! 2. The number of frames is bounded: [`Frames::allocate`] returns `None` when all are allocated.
//! 3. Allocating, sharing and freeing a frame uses no other allocator, except when a slab is mapped
//!    for the first time.
//! 4. The bytes of a frame change only while exactly one handle to it exists.
//! 5. A slab stays mapped until all handles of the pool and all frames have been dropped.

use crate::lock::{Mutex, MutexGuard, rank};
use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};
use std::fmt;
use std::ops::Deref;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering, fence};

/// Size of a frame in bytes.
pub const FRAME_BYTES: usize = 4096;

/// Number of frames in a slab, which is 2 MiB.
const SLAB_FRAMES: usize = 512;

/// A pool of frames. Cheap to clone.
#[derive(Clone)]
pub struct Frames {
    pool: Arc<Pool>,
}

/// A page of memory. A clone is another handle to the same bytes.
pub struct Frame(NonNull<Head>);

struct Head {
    refs: AtomicU32,
    memory: NonNull<u8>,
    /// The pool. Every allocated frame holds one count of its `Arc`.
    pool: *const Pool,
}

struct Pool {
    frames_max: usize,
    allocated: AtomicUsize,
    free_list: Mutex<FreeList, rank::Frames>,
}

#[derive(Default)]
struct FreeList {
    /// Last in, first out: a frame that was freed recently is likely still in the CPU cache.
    free: Vec<NonNull<Head>>,
    slabs: Vec<Slab>,
}

struct Slab {
    start: NonNull<u8>,
    /// A leaked `Box`, because frames point into it. `drop` turns it back into the `Box`.
    heads: NonNull<[Head]>,
}

// SAFETY: heads and slabs are reached only through frames and the free list, which are thread-safe.
unsafe impl Send for Pool {}
// SAFETY: the free list is behind a mutex.
unsafe impl Sync for Pool {}
// SAFETY: a frame is a counted reference to bytes that change only while one handle exists (law 4).
unsafe impl Send for Frame {}
// SAFETY: shared access only reads the bytes and counts atomically.
unsafe impl Sync for Frame {}

impl Frames {
    /// Creates a pool of at most `frames_max` frames. No memory is mapped yet.
    pub fn new(frames_max: usize) -> Self {
        let (allocated, free_list) = (AtomicUsize::new(0), Mutex::default());
        Self { pool: Arc::new(Pool { frames_max, allocated, free_list }) }
    }

    /// Returns the maximum number of frames.
    pub fn frames_max(&self) -> usize {
        self.pool.frames_max
    }

    /// Returns the number of frames that are allocated now.
    pub fn allocated(&self) -> usize {
        self.pool.allocated.load(Ordering::Relaxed)
    }

    /// Returns a frame with one handle, or `None` if all are allocated or the system has no memory.
    pub fn allocate(&self) -> Option<Frame> {
        let mut free_list = self.pool.free_list();
        if free_list.free.is_empty() {
            free_list.grow(&self.pool)?;
        }
        let head = free_list.free.pop()?;
        self.pool.allocated.fetch_add(1, Ordering::Relaxed);
        drop(free_list);
        // The frame's count of the pool; dropped when the last handle of the frame is dropped.
        std::mem::forget(Arc::clone(&self.pool));
        // SAFETY: a head in the free list is in a slab of this pool, which is still mapped.
        unsafe { head.as_ref() }.refs.store(1, Ordering::Relaxed);
        Some(Frame(head))
    }
}

impl fmt::Debug for Frames {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Frames({} of {} allocated)", self.allocated(), self.frames_max())
    }
}

impl Frame {
    /// Returns the bytes for writing, or `None` while there are other handles (law 4).
    pub fn bytes_mut(&mut self) -> Option<&mut [u8]> {
        if self.is_shared() {
            return None;
        }
        // SAFETY: 4096 initialised bytes. This is their only handle and it is borrowed exclusively,
        // so it cannot be cloned meanwhile.
        Some(unsafe { std::slice::from_raw_parts_mut(self.head().memory.as_ptr(), FRAME_BYTES) })
    }

    /// Returns whether there are other handles to this frame.
    pub fn is_shared(&self) -> bool {
        self.head().refs.load(Ordering::Acquire) != 1
    }

    /// Returns whether both are handles to the same frame.
    pub fn is_same(&self, other: &Self) -> bool {
        self.0 == other.0
    }

    fn head(&self) -> &Head {
        // SAFETY: the head's slab lives as long as its pool, of which this frame holds a count.
        unsafe { self.0.as_ref() }
    }
}

impl Deref for Frame {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: 4096 initialised bytes, which do not change while a shared reference exists (law
        // 4).
        unsafe { std::slice::from_raw_parts(self.head().memory.as_ptr(), FRAME_BYTES) }
    }
}

impl Clone for Frame {
    fn clone(&self) -> Self {
        let before = self.head().refs.fetch_add(1, Ordering::Relaxed);
        assert!(before < u32::MAX / 2, "a frame has fewer than 2^31 handles");
        Self(self.0)
    }
}

impl Drop for Frame {
    fn drop(&mut self) {
        if self.head().refs.fetch_sub(1, Ordering::Release) != 1 {
            return;
        }
        fence(Ordering::Acquire);
        let pool = self.head().pool;
        // SAFETY: this frame's count of the pool keeps it alive.
        unsafe { &*pool }.free(self.0);
        // SAFETY: drops the count that `allocate` forgot; the pointer is that of the `Arc`.
        unsafe { Arc::decrement_strong_count(pool) };
    }
}

impl fmt::Debug for Frame {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Frame({:p})", self.head().memory)
    }
}

impl Pool {
    fn free_list(&self) -> MutexGuard<'_, FreeList> {
        // The code that changes the free list cannot panic midway.
        self.free_list.lock()
    }

    fn free(&self, head: NonNull<Head>) {
        let mut free_list = self.free_list();
        self.allocated.fetch_sub(1, Ordering::Relaxed);
        // Does not allocate: `grow` has reserved the capacity.
        free_list.free.push(head);
    }
}

impl FreeList {
    fn grow(&mut self, pool: &Arc<Pool>) -> Option<()> {
        let have: usize = self.slabs.iter().map(|slab| slab.heads.len()).sum();
        let frames = SLAB_FRAMES.min(pool.frames_max - have);
        if frames == 0 {
            return None;
        }
        let slab = Slab::new(frames, Arc::as_ptr(pool))?;
        self.free.reserve(have + frames);
        // In reverse order, so that the first frame is allocated first.
        // SAFETY: the heads belong to this slab, and only their atomics ever change.
        self.free.extend(unsafe { slab.heads.as_ref() }.iter().rev().map(NonNull::from));
        self.slabs.push(slab);
        Some(())
    }
}

impl Slab {
    fn new(frames: usize, pool: *const Pool) -> Option<Self> {
        let (protection, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE);
        let bytes = frames * FRAME_BYTES;
        // SAFETY: an anonymous mapping at an address of the kernel's choice touches nothing else.
        let start = unsafe { mmap_anonymous(std::ptr::null_mut(), bytes, protection, flags) };
        let start = NonNull::new(start.ok()?.cast::<u8>())?;
        let head = |number: usize| {
            // SAFETY: the frame lies inside the mapping.
            let memory = unsafe { start.add(number * FRAME_BYTES) };
            Head { refs: AtomicU32::new(0), memory, pool }
        };
        let heads: Box<[Head]> = (0..frames).map(head).collect();
        Some(Self { start, heads: NonNull::from(Box::leak(heads)) })
    }
}

impl Drop for Slab {
    fn drop(&mut self) {
        let bytes = self.heads.len() * FRAME_BYTES;
        // SAFETY: the mapping was made in `new`, and the pool is dropped only when no frame is left
        // (law 5). A failure would leak address space, which cannot be handled here.
        unsafe { munmap(self.start.as_ptr().cast(), bytes) }.ok();
        // SAFETY: leaked by `new`, and no frame points into it any more (law 5).
        drop(unsafe { Box::from_raw(self.heads.as_ptr()) });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pool_is_bounded_and_reuses_freed_frames() {
        let frames = Frames::new(SLAB_FRAMES + 3);
        let mut held: Vec<Frame> = std::iter::from_fn(|| frames.allocate()).collect();
        assert_eq!((held.len(), frames.allocated()), (SLAB_FRAMES + 3, SLAB_FRAMES + 3));
        for (mark, frame) in held.iter_mut().enumerate() {
            assert!(frame.as_ptr().addr().is_multiple_of(FRAME_BYTES));
            frame.bytes_mut().unwrap().fill(u8::try_from(mark % 251).unwrap());
        }
        let is_whole = |(mark, frame): (usize, &Frame)| {
            frame.iter().all(|byte| usize::from(*byte) == mark % 251)
        };
        assert!(held.iter().enumerate().all(is_whole), "frames do not overlap");
        held.truncate(1);
        assert_eq!(frames.allocated(), 1);
        assert!(frames.allocate().is_some());
    }

    #[test]
    fn a_shared_frame_cannot_be_written() {
        let frames = Frames::new(2);
        let mut one = frames.allocate().unwrap();
        one.bytes_mut().unwrap().fill(7);
        let mut two = one.clone();
        assert!(one.bytes_mut().is_none() && two.bytes_mut().is_none());
        assert!(one.is_same(&two) && frames.allocated() == 1);
        drop(one);
        assert!(two.bytes_mut().is_some_and(|bytes| bytes.iter().all(|byte| *byte == 7)));
    }

    #[test]
    fn a_frame_outlives_the_handles_of_its_pool() {
        let frame = Frames::new(1).allocate().unwrap();
        let other = frame.clone();
        std::thread::spawn(move || drop(other)).join().unwrap();
        assert!(frame.iter().all(|byte| *byte == 0));
    }

    #[test]
    fn threads_share_and_free_frames() {
        let frames = Frames::new(16);
        std::thread::scope(|scope| {
            for mark in 0..4u8 {
                let frames = &frames;
                scope.spawn(move || {
                    for _ in 0..2000 {
                        let Some(mut frame) = frames.allocate() else { continue };
                        frame.bytes_mut().unwrap().fill(mark);
                        let copy = frame.clone();
                        drop(frame);
                        assert!(copy.iter().all(|byte| *byte == mark));
                    }
                });
            }
        });
        assert_eq!(frames.allocated(), 0);
    }
}
