//! [`Frames`]: pages of memory in slabs; [`Frame`]: one of them, counted, so that it can be shared.
//!
//! ```text
//! slab   | 4K | 4K | 4K | ...  512 pages, mapped when first needed
//! heads  | users, memory, pool | ...      a Frame is a pointer to one of them
//! ```
//!
//! 1. A frame is 4096 bytes on a 4096-byte boundary. It is initialised: zeroed, or what its
//!    previous user left.
//! 2. The number of frames is bounded: a pool with all of them taken answers `None`.
//! 3. Taking, sharing and returning a frame allocates nothing, but for a slab's first time.
//! 4. Bytes of a frame change only while it has one user.
//! 5. A slab stays mapped until the pool's handles and all frames are gone.

use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};
use std::fmt;
use std::ops::Deref;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering, fence};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Bytes of a frame.
pub const FRAME_BYTES: usize = 4096;

/// Frames of a slab: 2 MiB.
const SLAB_FRAMES: usize = 512;

/// A pool of frames. Cheap to clone.
#[derive(Clone)]
pub struct Frames {
    pool: Arc<Pool>,
}

/// A page of memory. A clone is another user of the same bytes.
pub struct Frame(NonNull<Head>);

struct Head {
    users: AtomicU32,
    memory: NonNull<u8>,
    /// The pool; every taken frame holds one count of its `Arc`.
    pool: *const Pool,
}

struct Pool {
    frames_max: usize,
    taken: AtomicUsize,
    books: Mutex<Books>,
}

#[derive(Default)]
struct Books {
    /// Last in, first out: what was used a moment ago is in the processor's cache.
    free: Vec<NonNull<Head>>,
    slabs: Vec<Slab>,
}

struct Slab {
    start: NonNull<u8>,
    /// From a `Box`, to which it is turned back in the end: frames point into it.
    heads: NonNull<[Head]>,
}

// SAFETY: heads and slabs are reached through frames and the books; both are made for threads.
unsafe impl Send for Pool {}
// SAFETY: the books are behind a mutex.
unsafe impl Sync for Pool {}
// SAFETY: a frame is a counted reference to bytes that change only with one user (law 4).
unsafe impl Send for Frame {}
// SAFETY: shared access only reads the bytes and counts atomically.
unsafe impl Sync for Frame {}

impl Frames {
    /// A pool of at most `frames_max` frames. Nothing is mapped yet.
    pub fn new(frames_max: usize) -> Self {
        let (taken, books) = (AtomicUsize::new(0), Mutex::default());
        Self { pool: Arc::new(Pool { frames_max, taken, books }) }
    }

    pub fn frames_max(&self) -> usize {
        self.pool.frames_max
    }

    /// Frames that have users now.
    pub fn taken(&self) -> usize {
        self.pool.taken.load(Ordering::Relaxed)
    }

    /// A frame with one user; `None` when all are taken, or the system has no memory.
    pub fn take(&self) -> Option<Frame> {
        let mut books = self.pool.books();
        if books.free.is_empty() {
            books.grow(&self.pool)?;
        }
        let head = books.free.pop()?;
        self.pool.taken.fetch_add(1, Ordering::Relaxed);
        drop(books);
        // The frame's count, given back when its last user goes.
        std::mem::forget(Arc::clone(&self.pool));
        // SAFETY: a head in the books is in a slab of this pool, which lives on.
        unsafe { head.as_ref() }.users.store(1, Ordering::Relaxed);
        Some(Frame(head))
    }
}

impl fmt::Debug for Frames {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Frames({} of {} taken)", self.taken(), self.frames_max())
    }
}

impl Frame {
    /// The bytes, to be changed; `None` while there are other users (law 4).
    pub fn bytes_mut(&mut self) -> Option<&mut [u8]> {
        if self.is_shared() {
            return None;
        }
        // SAFETY: 4096 initialised bytes; this is their one user, borrowed alone, and nobody can
        // become another without a reference to it.
        Some(unsafe { std::slice::from_raw_parts_mut(self.head().memory.as_ptr(), FRAME_BYTES) })
    }

    /// Whether there are other users.
    pub fn is_shared(&self) -> bool {
        self.head().users.load(Ordering::Acquire) != 1
    }

    /// Whether both are users of the same bytes.
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
        // SAFETY: 4096 initialised bytes, which nobody changes while there is a user who only
        // reads (law 4).
        unsafe { std::slice::from_raw_parts(self.head().memory.as_ptr(), FRAME_BYTES) }
    }
}

impl Clone for Frame {
    fn clone(&self) -> Self {
        let before = self.head().users.fetch_add(1, Ordering::Relaxed);
        assert!(before < u32::MAX / 2, "a frame has fewer users than that");
        Self(self.0)
    }
}

impl Drop for Frame {
    fn drop(&mut self) {
        if self.head().users.fetch_sub(1, Ordering::Release) != 1 {
            return;
        }
        fence(Ordering::Acquire);
        let pool = self.head().pool;
        // SAFETY: this frame's count of the pool keeps it alive.
        unsafe { &*pool }.give_back(self.0);
        // SAFETY: the count that `take` forgot; the pointer is that of the `Arc`.
        unsafe { Arc::decrement_strong_count(pool) };
    }
}

impl fmt::Debug for Frame {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Frame({:p})", self.head().memory)
    }
}

impl Pool {
    fn books(&self) -> MutexGuard<'_, Books> {
        // The books are changed by code that cannot panic half way.
        self.books.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn give_back(&self, head: NonNull<Head>) {
        let mut books = self.books();
        self.taken.fetch_sub(1, Ordering::Relaxed);
        // There is room: `grow` made it.
        books.free.push(head);
    }
}

impl Books {
    fn grow(&mut self, pool: &Arc<Pool>) -> Option<()> {
        let have: usize = self.slabs.iter().map(|slab| slab.heads.len()).sum();
        let frames = SLAB_FRAMES.min(pool.frames_max - have);
        if frames == 0 {
            return None;
        }
        let slab = Slab::new(frames, Arc::as_ptr(pool))?;
        self.free.reserve(have + frames);
        // In reverse, so that the first frame is taken first.
        // SAFETY: the slab's own heads, which are never changed but for their atomics.
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
            Head { users: AtomicU32::new(0), memory, pool }
        };
        let heads: Box<[Head]> = (0..frames).map(head).collect();
        Some(Self { start, heads: NonNull::from(Box::leak(heads)) })
    }
}

impl Drop for Slab {
    fn drop(&mut self) {
        let bytes = self.heads.len() * FRAME_BYTES;
        // SAFETY: the mapping made in `new`; the pool goes only when no frame is left (law 5).
        // Failing would leak address space, which nobody here can mend.
        unsafe { munmap(self.start.as_ptr().cast(), bytes) }.ok();
        // SAFETY: leaked by `new`, and nobody points at them any more (law 5).
        drop(unsafe { Box::from_raw(self.heads.as_ptr()) });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pool_is_bounded_and_gets_its_frames_back() {
        let frames = Frames::new(SLAB_FRAMES + 3);
        let mut held: Vec<Frame> = std::iter::from_fn(|| frames.take()).collect();
        assert_eq!((held.len(), frames.taken()), (SLAB_FRAMES + 3, SLAB_FRAMES + 3));
        for (mark, frame) in held.iter_mut().enumerate() {
            assert!(frame.as_ptr().addr().is_multiple_of(FRAME_BYTES));
            frame.bytes_mut().unwrap().fill(u8::try_from(mark % 251).unwrap());
        }
        let is_whole = |(mark, frame): (usize, &Frame)| {
            frame.iter().all(|byte| usize::from(*byte) == mark % 251)
        };
        assert!(held.iter().enumerate().all(is_whole), "frames do not overlap");
        held.truncate(1);
        assert_eq!(frames.taken(), 1);
        assert!(frames.take().is_some());
    }

    #[test]
    fn shared_bytes_do_not_change() {
        let frames = Frames::new(2);
        let mut one = frames.take().unwrap();
        one.bytes_mut().unwrap().fill(7);
        let mut two = one.clone();
        assert!(one.bytes_mut().is_none() && two.bytes_mut().is_none());
        assert!(one.is_same(&two) && frames.taken() == 1);
        drop(one);
        assert!(two.bytes_mut().is_some_and(|bytes| bytes.iter().all(|byte| *byte == 7)));
    }

    #[test]
    fn a_frame_outlives_the_handles_of_its_pool() {
        let frame = Frames::new(1).take().unwrap();
        let other = frame.clone();
        std::thread::spawn(move || drop(other)).join().unwrap();
        assert!(frame.iter().all(|byte| *byte == 0));
    }

    #[test]
    fn threads_share_and_return_frames() {
        let frames = Frames::new(16);
        std::thread::scope(|scope| {
            for mark in 0..4u8 {
                let frames = &frames;
                scope.spawn(move || {
                    for _ in 0..2000 {
                        let Some(mut frame) = frames.take() else { continue };
                        frame.bytes_mut().unwrap().fill(mark);
                        let copy = frame.clone();
                        drop(frame);
                        assert!(copy.iter().all(|byte| *byte == mark));
                    }
                });
            }
        });
        assert_eq!(frames.taken(), 0);
    }
}
