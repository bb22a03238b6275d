//! [`NoUnpin`]: a time in which a thread must not drop pins.

use std::marker::PhantomData;

/// While this exists, no [`Pin`](super::pin::Pin) may be dropped on the thread (law 2 of `pin`).
/// Builds with debug assertions check that.
pub(crate) struct NoUnpin(PhantomData<*const ()>);

#[cfg(debug_assertions)]
thread_local! {
    static NO_UNPIN_GUARDS: std::cell::Cell<u32> = const { std::cell::Cell::new(0) };
}

impl NoUnpin {
    pub(crate) fn begin() -> Self {
        #[cfg(debug_assertions)]
        NO_UNPIN_GUARDS.with(|count| count.set(count.get() + 1));
        Self(PhantomData)
    }

    pub(super) fn assert_unpin_allowed() {
        #[cfg(debug_assertions)]
        NO_UNPIN_GUARDS.with(|count| {
            let is_allowed = count.get() == 0 || std::thread::panicking();
            assert!(is_allowed, "a pin is dropped under a lock");
        });
    }
}

impl Drop for NoUnpin {
    fn drop(&mut self) {
        #[cfg(debug_assertions)]
        NO_UNPIN_GUARDS.with(|count| count.set(count.get() - 1));
    }
}
