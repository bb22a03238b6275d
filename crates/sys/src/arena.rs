//! [`Arena`]: a buddy allocator over one mapped region of fixed size.
//!
//! ```text
//! order 2  |        16 KiB         |
//! order 1  |   8 KiB   |           |     a block splits into two buddies;
//! order 0  | 4K  | 4K  |                 two free buddies merge again
//! ```
//!
//! 1. Every slot is a power of two of at least 4096 bytes, aligned to 4096.
//! 2. The arena is bounded: [`Arena::allocate`] returns `None` when no slot is free, and never maps
//!    more memory.
//! 3. Allocating and freeing a slot uses no other allocator: the free lists are created with the
//!    arena.
//! 4. The region stays mapped until the arena and every buffer from it have been dropped, so that a
//!    ring can register it.
//! 5. [`Arena::with_huge_pages`] requests huge pages, which the kernel may refuse; this affects
//!    speed only. With huge pages a long transfer has fewer segments, so the kernel passes it on as
//!    one request instead of splitting it. Loop devices were measured slower with them (1 MiB reads
//!    at depth 4: median 0.6 to 0.8 of ordinary pages); 4 KiB reads were equal.

use crate::buffer::{BUFFER_ALIGN, Buffer};
use crate::errno::Errno;
use crate::lock::{Mutex, MutexGuard, rank};
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};
use std::fmt;
use std::ptr::NonNull;
use std::sync::Arc;

/// The largest arena: `io_uring` registers at most 1 GiB as one buffer.
pub const ARENA_BYTES_MAX: usize = 1 << 30;

/// One more than the order of the largest slot: 4 KiB << 18 is 1 GiB.
const ORDERS: usize = 19;

/// The end of a list.
const END: u32 = u32::MAX;

/// The order of a block that is not the first of a free slot.
const ALLOCATED: u8 = u8::MAX;

/// A shared handle; clones refer to the same region.
#[derive(Clone)]
pub struct Arena {
    region: Arc<Region>,
}

struct Region {
    start: NonNull<u8>,
    bytes: usize,
    free_lists: Mutex<FreeLists, rank::Arena>,
}

// SAFETY: the region's memory is reached only through slots, each of which has one owner.
unsafe impl Send for Region {}
// SAFETY: as above; the free lists are behind a mutex.
unsafe impl Sync for Region {}

/// An allocated part of the region. Dropping it frees it.
pub(crate) struct Slot {
    region: Arc<Region>,
    block: u32,
    order: u8,
}

/// The free blocks: a doubly linked list for each order, threaded through arrays.
struct FreeLists {
    heads: [u32; ORDERS],
    next: Box<[u32]>,
    previous: Box<[u32]>,
    order: Box<[u8]>,
    free_bytes: usize,
}

impl Arena {
    /// Maps `bytes` rounded up to 2 MiB.
    ///
    /// # Errors
    /// `EINVAL` beyond [`ARENA_BYTES_MAX`]; the error of `mmap(2)`.
    pub fn new(bytes: usize) -> Result<Arena, Errno> {
        const HUGE_PAGE_BYTES: usize = 2 << 20;
        if bytes > ARENA_BYTES_MAX {
            return Err(Errno::INVALID);
        }
        let bytes = bytes.max(1).next_multiple_of(HUGE_PAGE_BYTES);
        let (protection, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE);
        // SAFETY: an anonymous mapping at an address that the kernel chooses affects nothing else.
        let start = unsafe { mmap_anonymous(std::ptr::null_mut(), bytes, protection, flags) }?;
        let start = NonNull::new(start.cast::<u8>()).ok_or(Errno::INVALID)?;
        let free_lists = Mutex::new(FreeLists::new(bytes));
        Ok(Arena { region: Arc::new(Region { start, bytes, free_lists }) })
    }

    /// Maps an arena as [`Arena::new`] does, and requests huge pages for it (law 5).
    ///
    /// # Errors
    /// As of [`Arena::new`]. A refusal of huge pages is not an error.
    pub fn with_huge_pages(bytes: usize) -> Result<Arena, Errno> {
        let arena = Arena::new(bytes)?;
        let start = arena.region.start.as_ptr().cast();
        // SAFETY: the range is the arena's own mapping; the advice changes no content.
        unsafe { madvise(start, arena.region.bytes, Advice::LinuxHugepage) }.ok();
        Ok(arena)
    }

    /// Returns a buffer of `len` bytes, which hold those of its last user, or `None` if no slot is
    /// free that is large enough.
    pub fn allocate(&self, len: usize) -> Option<Buffer> {
        let order = order_of(len)?;
        let block = self.region.free_lists().allocate(order)?;
        let order = u8::try_from(order).expect("orders are below 19");
        Some(Buffer::from_slot(Slot { region: Arc::clone(&self.region), block, order }, len))
    }

    /// Returns the size of the region in bytes.
    pub fn bytes(&self) -> usize {
        self.region.bytes
    }

    /// Returns the number of bytes that are not allocated, in free slots of any size.
    pub fn free_bytes(&self) -> usize {
        self.region.free_lists().free_bytes
    }

    pub(crate) fn start(&self) -> NonNull<u8> {
        self.region.start
    }
}

impl fmt::Debug for Arena {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Arena({} of {} bytes free)", self.free_bytes(), self.bytes())
    }
}

impl Slot {
    pub(crate) fn memory(&self) -> (NonNull<u8>, usize) {
        let offset = usize_of(self.block) * BUFFER_ALIGN;
        let bytes = BUFFER_ALIGN << self.order;
        // SAFETY: an allocated block lies inside the region, which the slot keeps mapped.
        let start = unsafe { self.region.start.add(offset) };
        (start, bytes)
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        self.region.free_lists().free(self.block, usize::from(self.order));
    }
}

impl Region {
    fn free_lists(&self) -> MutexGuard<'_, FreeLists> {
        // The code that changes the free lists cannot panic midway.
        self.free_lists.lock()
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        // SAFETY: the mapping was made in `new`. No slot is left, because each holds an `Arc` of
        // this region. A failure would leak address space, which cannot be handled here.
        unsafe { munmap(self.start.as_ptr().cast(), self.bytes) }.ok();
    }
}

impl FreeLists {
    fn new(bytes: usize) -> FreeLists {
        let blocks = bytes / BUFFER_ALIGN;
        let mut free_lists = FreeLists {
            heads: [END; ORDERS],
            next: vec![END; blocks].into(),
            previous: vec![END; blocks].into(),
            order: vec![ALLOCATED; blocks].into(),
            free_bytes: bytes,
        };
        let mut block = 0;
        while block < blocks {
            let aligned = if block == 0 { ORDERS - 1 } else { block.trailing_zeros() as usize };
            let fits = (blocks - block).ilog2() as usize;
            let order = aligned.min(fits).min(ORDERS - 1);
            free_lists.push(u32::try_from(block).expect("at most 2^18 blocks"), order);
            block += 1 << order;
        }
        free_lists
    }

    fn allocate(&mut self, order: usize) -> Option<u32> {
        let found = (order..ORDERS).find(|order| self.heads[*order] != END)?;
        let block = self.heads[found];
        self.unlink(block);
        for split in (order..found).rev() {
            self.push(block + (1 << split), split);
        }
        self.free_bytes -= BUFFER_ALIGN << order;
        Some(block)
    }

    fn free(&mut self, mut block: u32, mut order: usize) {
        self.free_bytes += BUFFER_ALIGN << order;
        while order + 1 < ORDERS {
            let buddy = block ^ (1 << order);
            if self.order.get(usize_of(buddy)).is_none_or(|free| usize::from(*free) != order) {
                break;
            }
            self.unlink(buddy);
            block = block.min(buddy);
            order += 1;
        }
        self.push(block, order);
    }

    fn push(&mut self, block: u32, order: usize) {
        let old_head = std::mem::replace(&mut self.heads[order], block);
        self.next[usize_of(block)] = old_head;
        self.previous[usize_of(block)] = END;
        self.order[usize_of(block)] = u8::try_from(order).expect("orders are below 19");
        if old_head != END {
            self.previous[usize_of(old_head)] = block;
        }
    }

    fn unlink(&mut self, block: u32) {
        let (next, previous) = (self.next[usize_of(block)], self.previous[usize_of(block)]);
        let order = usize::from(std::mem::replace(&mut self.order[usize_of(block)], ALLOCATED));
        if previous == END {
            self.heads[order] = next;
        } else {
            self.next[usize_of(previous)] = next;
        }
        if next != END {
            self.previous[usize_of(next)] = previous;
        }
    }
}

/// Returns the order of the smallest slot that holds `len` bytes.
fn order_of(len: usize) -> Option<usize> {
    let blocks = len.div_ceil(BUFFER_ALIGN).max(1).checked_next_power_of_two()?;
    Some(blocks.ilog2() as usize).filter(|order| *order < ORDERS)
}

fn usize_of(block: u32) -> usize {
    block as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_exhausted_arena_returns_none_until_buffers_are_dropped() {
        let arena = Arena::new(2 << 20).unwrap();
        let held: Vec<_> = std::iter::from_fn(|| arena.allocate(16384)).collect();
        assert_eq!(held.len(), 128);
        assert_eq!(arena.free_bytes(), 0);
        assert!(arena.allocate(1).is_none());
        drop(held);
        assert_eq!(arena.free_bytes(), 2 << 20);
        assert_eq!(arena.allocate(2 << 20).unwrap().len(), 2 << 20);
        assert!(arena.allocate((2 << 20) + 1).is_none());
    }

    #[test]
    fn buffers_never_overlap_in_any_order_of_allocations_and_frees() {
        let arena = Arena::new(4 << 20).unwrap();
        let mut state = 7u64;
        let mut held: Vec<(u8, Buffer)> = Vec::new();
        for round in 0..20_000u32 {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let random = usize::try_from(state >> 33).unwrap();
            if random.is_multiple_of(3) && !held.is_empty() {
                let (mark, buffer) = held.swap_remove(random % held.len());
                assert!(buffer.iter().all(|byte| *byte == mark));
            } else if let Some(mut buffer) = arena.allocate(random % 70_000) {
                let mark = (round % 251) as u8;
                buffer.fill(mark);
                held.push((mark, buffer));
            }
        }
        assert!(held.len() > 3);
        drop(held);
        assert_eq!(arena.free_bytes(), arena.bytes());
        assert!(arena.allocate(4 << 20).is_some(), "all buddies have merged again");
    }

    #[test]
    fn a_buffer_outlives_the_handle_of_its_arena() {
        let mut buffer = Arena::new(1).unwrap().allocate(5000).unwrap();
        buffer.fill(9);
        assert!(buffer.is_from_arena());
        assert!(buffer.iter().all(|byte| *byte == 9));
    }
}
