//! Memory for [`Buffer`](crate::buffer::Buffer)s of 4 to 64 KiB, the sizes of tree blocks.
//!
//! ```text
//! take ---- warm list ----> cold list ----> a new slab of 1 MiB, cut into blocks
//! give ---> warm list, up to WARM_BYTES_MAX a size; then its pages go back to the system, and the
//!           block to the cold list
//! ```
//!
//! A general allocator that is asked for 16 KiB at an address that is a multiple of 4096 cuts it
//! out of a longer piece, and may not fit the next request of that kind into the hole that it
//! leaves when it is freed. With a cache of such blocks that is refilled all the time, by many
//! threads, the holes came to twice the memory in use.
//!
//! Laws:
//! 1. A block is in the hands of one owner, or in one list.
//! 2. Blocks are zero when they are handed out.
//! 3. Resident are the blocks that are handed out, and at most [`WARM_BYTES_MAX`] of each size
//!    besides. Address space is not given back: it is that of the most blocks at one time.

use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous};
use std::ptr::NonNull;
use std::sync::{Mutex, MutexGuard, PoisonError};

const BLOCK_BYTES_MIN: usize = 4 << 10;
const BLOCK_BYTES_MAX: usize = 64 << 10;
const SLAB_BYTES: usize = 1 << 20;
/// Free memory that stays resident, of each size.
const WARM_BYTES_MAX: usize = 4 << 20;

static SIZES: [Mutex<Size>; 5] = [const { Mutex::new(Size::new()) }; 5];

/// The free blocks of one size.
#[derive(Debug)]
struct Size {
    /// Resident, with what their last owner left.
    warm: Vec<Block>,
    /// Not resident, and zero.
    cold: Vec<Block>,
    /// Blocks of all slabs.
    blocks: usize,
}

/// A block that is in no other list and that nothing refers to.
#[derive(Debug)]
struct Block(NonNull<u8>);

// SAFETY: a block in a list is owned by the list alone (law 1).
unsafe impl Send for Block {}

/// Memory of blocks of one size, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SlabBytes {
    /// Handed out.
    pub used: usize,
    /// Free and resident.
    pub warm: usize,
    /// Free and not resident.
    pub cold: usize,
}

/// The memory of buffers of a capacity; `None` where slabs have no blocks of it.
pub fn slab_bytes(capacity: usize) -> Option<SlabBytes> {
    let size = lock(size_of_capacity(capacity)?);
    let (warm, cold) = (size.warm.len(), size.cold.len());
    let used = size.blocks - warm - cold;
    Some(SlabBytes { used: used * capacity, warm: warm * capacity, cold: cold * capacity })
}

/// Memory of all sizes that is handed out, or free and resident.
pub fn resident_bytes() -> usize {
    let sizes = (0..SIZES.len()).filter_map(|size| slab_bytes(BLOCK_BYTES_MIN << size));
    sizes.map(|bytes| bytes.used + bytes.warm).sum()
}

/// A block of `capacity` zero bytes, aligned to 4096. `None` where slabs have none of that size, or
/// the system has no memory.
pub(crate) fn take(capacity: usize) -> Option<NonNull<u8>> {
    let size = size_of_capacity(capacity)?;
    let mut lists = lock(size);
    if let Some(Block(block)) = lists.warm.pop() {
        drop(lists);
        // SAFETY: the block has that many bytes, which are ours alone now (law 1).
        unsafe { block.write_bytes(0, capacity) };
        return Some(block);
    }
    if lists.cold.is_empty() {
        lists.grow(capacity)?;
    }
    lists.cold.pop().map(|Block(block)| block)
}

/// Takes a block back.
///
/// # Safety
///
/// It came from [`take`] with this capacity, and nothing refers to it any more.
pub(crate) unsafe fn give(block: NonNull<u8>, capacity: usize) {
    let Some(size) = size_of_capacity(capacity) else { return };
    let mut lists = lock(size);
    if (lists.warm.len() + 1) * capacity <= WARM_BYTES_MAX {
        return lists.warm.push(Block(block));
    }
    drop(lists);
    // SAFETY: the pages are the block's, which nothing refers to; private anonymous pages are zero
    // when they are used again.
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

    /// Adds the blocks of one more slab.
    fn grow(&mut self, capacity: usize) -> Option<()> {
        let (protection, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE);
        // SAFETY: new memory, at an address that the kernel chooses.
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

fn size_of_capacity(capacity: usize) -> Option<&'static Mutex<Size>> {
    let fits = (BLOCK_BYTES_MIN..=BLOCK_BYTES_MAX).contains(&capacity);
    let index = (capacity / BLOCK_BYTES_MIN).trailing_zeros();
    SIZES.get(index as usize).filter(|_| fits && capacity.is_power_of_two())
}

/// After a panic: a block that a list has lost stays unused, and none is in two (law 1).
fn lock(size: &Mutex<Size>) -> MutexGuard<'_, Size> {
    size.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::buffer::Buffer;

    // One test: the slabs are the process's.
    #[test]
    fn what_is_freed_is_used_again_and_stays_resident_up_to_a_bound() {
        for capacity in [4 << 10, 16 << 10, 64 << 10] {
            let count = (16 << 20) / capacity;
            for _ in 0..3 {
                let mut buffers: Vec<Buffer> =
                    (0..count).map(|_| Buffer::zeroed(capacity - 1)).collect();
                for buffer in &mut buffers {
                    assert!(buffer.whole_mut().iter().all(|byte| *byte == 0));
                    buffer.whole_mut().fill(7);
                }
                // Every other one goes: what stays pins nothing else.
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
