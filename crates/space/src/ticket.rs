//! Tickets: bytes promised before they are allocated, so that nothing runs out of space halfway.
//!
//! ```text
//! reserve -> Ticket -- spend --> the bytes were allocated: the promise is kept
//!               |----- split --> two tickets
//!               '----- drop ---> what was not spent is free for others
//! ```
//!
//! Laws:
//! 1. All tickets of a pool together never promise more than was free when the last was granted;
//!    ordinary ones leave the pool's reserve alone too.
//! 2. Spending more than a ticket holds spends what it holds.
//! 3. No ticket, whatever it is for, takes what the commit of what has been changed so far needs.

use crate::class::Class;
use crate::error::NoSpace;
use crate::state::{Space, State};
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// A promise of so many bytes of one class.
pub struct Ticket {
    shared: Arc<Mutex<State>>,
    class: Class,
    bytes: u64,
}

impl Space {
    /// Promises bytes, or says why not. Never waits for any to become free.
    pub fn reserve(&self, class: Class, bytes: u64) -> Result<Ticket, NoSpace> {
        self.promise(class, bytes, |kept| kept)
    }

    /// As [`Space::reserve`], but may use half of the reserve: for what sets space free. The other
    /// half is what the commit needs, without which nothing gets free.
    pub fn reserve_urgent(&self, class: Class, bytes: u64) -> Result<Ticket, NoSpace> {
        self.promise(class, bytes, |kept| kept / 2)
    }

    /// As [`Space::reserve_urgent`], but leaves a quarter only: for what space was promised for by
    /// other tickets, which it sets free, and which others may have used the other half before.
    pub fn reserve_promised(&self, class: Class, bytes: u64) -> Result<Ticket, NoSpace> {
        self.promise(class, bytes, |kept| kept / 4)
    }

    /// How much ordinary tickets of a class leave alone; and how much of that every ticket does
    /// (law 3).
    pub fn set_reserve(&self, class: Class, bytes: u64, needed: u64) {
        let mut state = self.lock();
        let pool = state.pool_mut(class);
        (pool.kept, pool.needed) = (bytes, needed);
    }

    fn promise(
        &self,
        class: Class,
        bytes: u64,
        left_alone: impl FnOnce(u64) -> u64,
    ) -> Result<Ticket, NoSpace> {
        let mut state = self.lock();
        let pool = state.pool_mut(class);
        let kept = left_alone(pool.kept).max(pool.needed);
        let promised = pool.reserved.checked_add(bytes);
        let needed = promised.and_then(|promised| promised.checked_add(kept));
        if needed.is_some_and(|needed| needed <= pool.free) || bytes == 0 {
            pool.reserved = pool.reserved.saturating_add(bytes);
            return Ok(Ticket { shared: Arc::clone(&self.shared), class, bytes });
        }
        let pinned_bytes = pool.pinned;
        let unallocated = state.could_grow(class);
        Err(NoSpace { class, wanted: bytes, pinned_bytes, unallocated })
    }
}

impl Ticket {
    pub fn class(&self) -> Class {
        self.class
    }

    /// What is still promised.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// So many bytes were allocated. Returns how many of them the ticket covered.
    pub fn spend(&mut self, bytes: u64) -> u64 {
        let spent = bytes.min(self.bytes);
        self.bytes = self.bytes.saturating_sub(spent);
        self.give_back(spent);
        spent
    }

    /// Moves a part of the promise to a ticket of its own; `None` if there is not so much.
    pub fn split(&mut self, bytes: u64) -> Option<Self> {
        self.bytes = self.bytes.checked_sub(bytes)?;
        Some(Self { shared: Arc::clone(&self.shared), class: self.class, bytes })
    }

    /// Adds another ticket's promise of the same class to this one.
    pub fn join(&mut self, mut other: Self) {
        debug_assert_eq!(self.class, other.class);
        self.bytes = self.bytes.saturating_add(std::mem::take(&mut other.bytes));
    }

    fn give_back(&self, bytes: u64) {
        if bytes > 0 {
            let mut state = self.lock();
            let pool = state.pool_mut(self.class);
            pool.reserved = pool.reserved.saturating_sub(bytes);
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.shared.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        self.give_back(self.bytes);
    }
}

impl fmt::Debug for Ticket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Ticket")
            .field("class", &self.class)
            .field("bytes", &self.bytes)
            .finish_non_exhaustive()
    }
}
