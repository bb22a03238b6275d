//! Reservations: bytes held for an operation before it allocates them, so that the operation
//! does not run out of space half-way.
//!
//! ```text
//! reserve -> Reservation -- spend --> the bytes were allocated
//!                 |-------- split --> two reservations
//!                 '-------- drop ---> unspent bytes can be reserved again
//! ```
//!
//! Laws:
//! 1. The reservations of a pool together never exceed the bytes that were free when the last of
//!    them was granted. Ordinary ones leave the global reserve of the pool alone too.
//! 2. Spending more than a reservation holds spends what it holds.
//! 3. No reservation reaches into the commit reserve: the bytes that the commit of the changes made
//!    so far needs.

use crate::class::Class;
use crate::error::NoSpace;
use crate::state::{Pool, Space, State};
use butternut_sys::lock::{Mutex, MutexGuard, rank};
use std::fmt;
use std::sync::Arc;

/// Reserved bytes of one class. Dropping it returns the bytes that were not spent.
pub struct Reservation {
    shared: Arc<Mutex<State, rank::Space>>,
    class: Class,
    bytes: u64,
}

impl Space {
    /// Reserves `bytes` bytes, and leaves the global reserve alone. Never waits for space.
    ///
    /// # Errors
    /// Too few bytes are free; the error says what could free more.
    pub fn reserve(&self, class: Class, bytes: u64) -> Result<Reservation, NoSpace> {
        self.reserve_above(class, bytes, |pool| pool.global_reserve)
    }

    /// Reserves bytes for a deletion, which frees space in the end: it may use half of the global
    /// reserve, and all of it but an eighth of the class. The rest is left for the commit, without
    /// which nothing is freed.
    ///
    /// # Errors
    /// Too few bytes are free; the error says what could free more.
    pub fn reserve_for_deletion(&self, class: Class, bytes: u64) -> Result<Reservation, NoSpace> {
        self.reserve_above(class, bytes, |pool| (pool.global_reserve / 2).min(pool.bytes / 8))
    }

    /// Reserves bytes for changes that other reservations already cover, which end with these
    /// changes: it leaves only a quarter of the global reserve, since deletions may have used half
    /// of it before.
    ///
    /// # Errors
    /// Too few bytes are free; the error says what could free more.
    pub fn reserve_prereserved(&self, class: Class, bytes: u64) -> Result<Reservation, NoSpace> {
        self.reserve_above(class, bytes, Pool::left_to_prereserved)
    }

    /// Sets the global reserve of a class, which ordinary reservations leave alone, and the commit
    /// reserve, which every reservation leaves alone (law 3). Both are in bytes.
    pub fn set_global_reserve(&self, class: Class, bytes: u64, commit_reserve: u64) {
        let mut state = self.lock();
        let pool = state.pool_mut(class);
        (pool.global_reserve, pool.commit_reserve) = (bytes, commit_reserve);
        state.count_return();
    }

    /// Whether a class has the free bytes that its reservations and its commit reserve stand for. A
    /// commit reserve that was raised after they were granted may lack some.
    pub fn covers_commit_reserve(&self, class: Class) -> bool {
        let state = self.lock();
        let pool = state.pool_ref(class);
        pool.free >= pool.reserved.saturating_add(pool.commit_reserve)
    }

    fn reserve_above(
        &self,
        class: Class,
        bytes: u64,
        left_alone: impl FnOnce(&Pool) -> u64,
    ) -> Result<Reservation, NoSpace> {
        let mut state = self.lock();
        let pool = state.pool_mut(class);
        let left_alone = left_alone(pool).max(pool.commit_reserve);
        let reserved = pool.reserved.checked_add(bytes);
        let needed = reserved.and_then(|reserved| reserved.checked_add(left_alone));
        if needed.is_some_and(|needed| needed <= pool.free) || bytes == 0 {
            pool.reserved = pool.reserved.saturating_add(bytes);
            return Ok(Reservation { shared: Arc::clone(&self.shared), class, bytes });
        }
        let pinned_bytes = pool.pinned;
        let (can_add_chunk, returns) = (state.can_add_chunk(class), state.returns);
        Err(NoSpace {
            class,
            bytes,
            pinned_bytes,
            own_pinned_bytes: pinned_bytes,
            can_add_chunk,
            returns,
        })
    }

    /// Returns whether bytes of any class became available after a request had failed. The same
    /// request may succeed then.
    pub fn has_returned(&self, no_space: &NoSpace) -> bool {
        self.lock().returns != no_space.returns
    }
}

impl Reservation {
    /// Returns the class of the reserved bytes.
    pub fn class(&self) -> Class {
        self.class
    }

    /// Returns how many bytes are reserved and not spent.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Spends up to `bytes` bytes, which the caller has allocated. Returns how many of them the
    /// reservation covered.
    pub fn spend(&mut self, bytes: u64) -> u64 {
        let spent = bytes.min(self.bytes);
        self.bytes = self.bytes.saturating_sub(spent);
        self.unreserve(spent);
        spent
    }

    /// Moves `bytes` bytes to a reservation of their own; `None` if fewer are left.
    pub fn split(&mut self, bytes: u64) -> Option<Self> {
        self.bytes = self.bytes.checked_sub(bytes)?;
        Some(Self { shared: Arc::clone(&self.shared), class: self.class, bytes })
    }

    /// Returns all bytes that were not spent.
    pub fn release(&mut self) {
        let bytes = std::mem::take(&mut self.bytes);
        self.unreserve(bytes);
    }

    /// Adds another reservation of the same class to this one.
    pub fn join(&mut self, mut other: Self) {
        debug_assert_eq!(self.class, other.class);
        self.bytes = self.bytes.saturating_add(std::mem::take(&mut other.bytes));
    }

    fn unreserve(&self, bytes: u64) {
        if bytes > 0 {
            let mut state = self.lock();
            let pool = state.pool_mut(self.class);
            debug_assert!(pool.reserved >= bytes, "law 1: every reserved byte is counted");
            pool.reserved = pool.reserved.saturating_sub(bytes);
            state.count_return();
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.shared.lock()
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        self.release();
    }
}

impl fmt::Debug for Reservation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Reservation")
            .field("class", &self.class)
            .field("bytes", &self.bytes)
            .finish_non_exhaustive()
    }
}
