//! A counting allocator: how many heap allocations the calling thread has made.
//!
//! For tests that hold a path to a number of allocations. A test crate installs it with
//! `#[global_allocator]` and compares [`allocations`] before and after. It is the system's
//! allocator otherwise.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

thread_local! {
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
}

/// The system's allocator, counting.
#[derive(Clone, Copy, Debug, Default)]
pub struct CountingAllocator;

/// Allocations and reallocations of this thread so far; 0 where [`CountingAllocator`] is not
/// installed.
pub fn allocations() -> u64 {
    ALLOCATIONS.with(Cell::get)
}

fn count() {
    // The cell is const-initialised and has no destructor: access neither allocates nor fails,
    // but at the very end of a thread, where nobody counts any more.
    ALLOCATIONS.try_with(|count| count.set(count.get().wrapping_add(1))).ok();
}

// SAFETY: every method hands its arguments to `System` unchanged and returns what it returned;
// counting neither allocates nor unwinds.
unsafe impl GlobalAlloc for CountingAllocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count();
        // SAFETY: the caller keeps `GlobalAlloc::alloc`'s contract, which is `System`'s.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        count();
        // SAFETY: as in `alloc`.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        // SAFETY: the block came from `System` with this layout.
        unsafe { System.dealloc(block, layout) }
    }

    unsafe fn realloc(&self, block: *mut u8, layout: Layout, bytes: usize) -> *mut u8 {
        count();
        // SAFETY: the block came from `System` with this layout; `bytes` is the caller's duty.
        unsafe { System.realloc(block, layout, bytes) }
    }
}
