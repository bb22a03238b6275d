//! [`CountingAllocator`]: the system's allocator with a count per thread. For tests that bound the
//! allocations of a hot path:
//!
//! ```
//! #[global_allocator]
//! static ALLOCATOR: butternut_sys::allocations::CountingAllocator = CountingAllocator;
//! use butternut_sys::allocations::{CountingAllocator, allocations_of};
//!
//! assert_eq!(allocations_of(|| drop(Box::new([1u8; 100]))).0, 1);
//! ```

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

/// A global allocator that counts the allocations of each thread.
#[derive(Debug)]
pub struct CountingAllocator;

thread_local! {
    // Const-initialised and without a destructor, so that accessing it allocates nothing.
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
}

/// Calls `call` and returns how often this thread allocated or reallocated meanwhile, and the
/// result of the call. The count is always 0 unless the global allocator of the program is
/// [`CountingAllocator`].
pub fn allocations_of<R>(call: impl FnOnce() -> R) -> (u64, R) {
    let before = ALLOCATIONS.get();
    let result = call();
    (ALLOCATIONS.get() - before, result)
}

fn count() {
    ALLOCATIONS.set(ALLOCATIONS.get() + 1);
}

// SAFETY: every call is passed on unchanged to the system's allocator.
unsafe impl GlobalAlloc for CountingAllocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count();
        // SAFETY: the caller keeps `GlobalAlloc`'s contract.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        count();
        // SAFETY: as above.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, start: *mut u8, layout: Layout) {
        // SAFETY: as above.
        unsafe { System.dealloc(start, layout) }
    }

    unsafe fn realloc(&self, start: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        count();
        // SAFETY: as above.
        unsafe { System.realloc(start, layout, new_size) }
    }
}
