//! A slab allocator for [`Buffer`](crate::buffer::Buffer)s of 4 to 64 KiB, the sizes of tree
//! blocks.
//!
//! ```text
//! allocate <--- warm list <---- cold list <---- a new slab of 1 MiB, cut into blocks
//! free -------> warm list, up to WARM_BYTES_MAX of each size; above that the pages are returned to
//!               the system (MADV_DONTNEED) and the block goes to the cold list
//! ```
//!
//! A general-purpose allocator fragments under this load. It cuts a 16 KiB block that is aligned to
//! 4096 out of a longer run, and the hole that the freed block leaves may not fit the next such
//! request. With a cache of such blocks that many threads refill all the time, the holes grew to
//! twice the memory in use.
//!
//! Laws:
//! 1. A block has one owner, or is in one list.
//! 2. Blocks are zero when they are allocated.
//! 3. Resident memory is that of the allocated blocks, and at most `WARM_BYTES_MAX` of each size
//!    besides. Address space is never unmapped: it is that of the largest number of blocks that
//!    were allocated at one time.

use crate::lock::{Mutex, MutexGuard, rank};
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous};
use std::ptr::NonNull;

const BLOCK_BYTES_MIN: usize = 4 << 10;
const BLOCK_BYTES_MAX: usize = 64 << 10;
const SLAB_BYTES: usize = 1 << 20;
/// Free memory of each size that stays resident, in bytes.
const WARM_BYTES_MAX: usize = 4 << 20;

static SIZES: [Mutex<Size, rank::Slabs>; 5] = [const { Mutex::new(Size::new()) }; 5];

/// The free blocks of one size.
#[derive(Debug)]
struct Size {
    /// Resident; the bytes are those of the last owner.
    warm: Vec<Block>,
    /// Not resident; the bytes are zero.
    cold: Vec<Block>,
    /// Number of blocks in all slabs.
    blocks: usize,
}

/// A block that is in one list and that nothing else refers to.
#[derive(Debug)]
struct Block(NonNull<u8>);

// SAFETY: the list owns a block in it alone (law 1).
unsafe impl Send for Block {}

/// Memory of blocks of one size, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SlabBytes {
    /// Allocated.
    pub used: usize,
    /// Free and resident.
    pub warm: usize,
    /// Free and not resident.
    pub cold: usize,
}

/// Returns the memory of buffers of one capacity, or `None` if slabs have no blocks of that size.
pub fn slab_bytes(capacity: usize) -> Option<SlabBytes> {
    let size = lock(size_of_capacity(capacity)?);
    let (warm, cold) = (size.warm.len(), size.cold.len());
    let used = size.blocks - warm - cold;
    Some(SlabBytes { used: used * capacity, warm: warm * capacity, cold: cold * capacity })
}

/// Returns the memory in bytes that is allocated, or free and resident, over all sizes.
pub fn resident_bytes() -> usize {
    let sizes = (0..SIZES.len()).filter_map(|size| slab_bytes(BLOCK_BYTES_MIN << size));
    sizes.map(|bytes| bytes.used + bytes.warm).sum()
}

/// Allocates a block of `capacity` zero bytes, aligned to 4096. Returns `None` if slabs have no
/// blocks of that size, or the system has no memory.
pub(crate) fn allocate(capacity: usize) -> Option<NonNull<u8>> {
    let size = size_of_capacity(capacity)?;
    let mut lists = lock(size);
    if let Some(Block(block)) = lists.warm.pop() {
        drop(lists);
        // SAFETY: the block has that many bytes, and it is in no list any more (law 1).
        unsafe { block.write_bytes(0, capacity) };
        return Some(block);
    }
    if lists.cold.is_empty() {
        lists.grow(capacity)?;
    }
    lists.cold.pop().map(|Block(block)| block)
}

/// Frees a block.
///
/// # Safety
///
/// The block was returned by [`allocate`] with this capacity, and nothing refers to it any more.
pub(crate) unsafe fn free(block: NonNull<u8>, capacity: usize) {
    let Some(size) = size_of_capacity(capacity) else { return };
    let mut lists = lock(size);
    if (lists.warm.len() + 1) * capacity <= WARM_BYTES_MAX {
        return lists.warm.push(Block(block));
    }
    drop(lists);
    // SAFETY: the pages belong to the block, which nothing refers to. Private anonymous pages read
    // as zeroes when they are used again.
    let released = unsafe { madvise(block.as_ptr().cast(), capacity, Advice::LinuxDontNeed) };
    let mut lists = lock(size);
    match released {
        Ok(()) => lists.cold.push(Block(block)),
        Err(_) => lists.warm.push(Block(block)),
    }
}

impl Size {
    const fn new() -> Self {
        Self { warm: Vec::new(), cold: Vec::new(), blocks: 0 }
    }

    /// Maps one more slab and adds its blocks to the cold list.
    fn grow(&mut self, capacity: usize) -> Option<()> {
        let (protection, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE);
        // SAFETY: maps new memory at an address that the kernel chooses.
        let slab =
            unsafe { mmap_anonymous(std::ptr::null_mut(), SLAB_BYTES, protection, flags) }.ok()?;
        let slab = NonNull::new(slab.cast::<u8>())?;
        let blocks = SLAB_BYTES / capacity;
        for block in (0..blocks).rev() {
            // SAFETY: the block lies within the slab.
            self.cold.push(Block(unsafe { slab.add(block * capacity) }));
        }
        self.blocks += blocks;
        Some(())
    }
}

fn size_of_capacity(capacity: usize) -> Option<&'static Mutex<Size, rank::Slabs>> {
    let fits = (BLOCK_BYTES_MIN..=BLOCK_BYTES_MAX).contains(&capacity);
    let index = (capacity / BLOCK_BYTES_MIN).trailing_zeros();
    SIZES.get(index as usize).filter(|_| fits && capacity.is_power_of_two())
}

/// Locks a list, also after a panic: a block that was in no list at that moment stays unused, and
/// no block is in two lists (law 1).
fn lock(size: &Mutex<Size, rank::Slabs>) -> MutexGuard<'_, Size> {
    size.lock()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::buffer::Buffer;

    // One test, because the slabs are global to the process.
    #[test]
    fn freed_blocks_are_reused_and_stay_resident_up_to_a_bound() {
        for capacity in [4 << 10, 16 << 10, 64 << 10] {
            let count = (16 << 20) / capacity;
            for _ in 0..3 {
                let mut buffers: Vec<Buffer> =
                    (0..count).map(|_| Buffer::zeroed(capacity - 1)).collect();
                for buffer in &mut buffers {
                    assert!(buffer.whole_mut().iter().all(|byte| *byte == 0));
                    buffer.whole_mut().fill(7);
                }
                // Frees every other buffer: the remaining ones keep nothing else resident.
                let mut nth = 0;
                buffers.retain(|_| {
                    nth += 1;
                    nth % 2 == 0
                });
                let bytes = slab_bytes(capacity).expect("a size of slabs");
                assert!(bytes.used >= 8 << 20 && bytes.used < 9 << 20, "{bytes:?}");
                assert_eq!(bytes.warm, WARM_BYTES_MAX);
            }
            let bytes = slab_bytes(capacity).expect("a size of slabs");
            assert_eq!(bytes.used + bytes.warm + bytes.cold, 16 << 20, "nothing was mapped twice");
        }
        for other in [0, 1, 2048, 12 << 10, 128 << 10] {
            assert_eq!(slab_bytes(other), None);
        }
    }
}
