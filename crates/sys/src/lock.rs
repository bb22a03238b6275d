//! [`Mutex`], [`RwLock`] and [`Condvar`]: those of the standard library, with a decision about
//! poison and, in debug builds, with an order.
//!
//! ```text
//!   lock()            the lock is free, or poisoned: the data either way
//!   lock_or_else(f)   as lock(); f records that the lock is poisoned
//!
//!   held by the thread     taken next             in debug builds
//!   rank::Tree             rank::NodeCache        a later rank: goes on
//!   rank::NodeCache        rank::Tree             an earlier rank: panics
//!   rank::Tree             rank::Tree             only by a method named `nested`
//! ```
//!
//! Laws:
//!
//! 1. A thread takes locks in the order of their ranks ([`rank`]): each later than all that it
//!    holds. Two locks of one rank are taken only by a method named `nested`, in an order that the
//!    caller documents. Threads that keep this order cannot deadlock.
//! 2. A lock method without `or_else` ignores poison: the code that it guards has no panic that
//!    leaves half a change, or another check ends writing
//!    (docs/decisions/0020-a-panic-ends-writing.md).
//! 3. An attempt (`try_lock`) never waits, so it may be made in any order. What it took counts as
//!    held.
//! 4. In release builds a lock has the size of its counterpart in the standard library, and its
//!    methods do nothing that the counterpart does not do.
//! 5. A thread that notifies a [`Condvar`] holds the lock, or has held it since it changed what the
//!    others wait for.
//!
//! It finds deadlocks of locks only, not those through joined threads, channels or devices.
//! Something else that threads wait for can be given a rank with a [`Mark`].

use std::fmt;
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{self, LockResult, PoisonError, TryLockError, TryLockResult, WaitTimeoutResult};
use std::time::Duration;

mod held;
pub mod rank;

use held::Held;
use rank::Ranked;

/// A lock with one owner at a time. See the module for its rank and for poison.
pub struct Mutex<T: ?Sized, R> {
    rank: PhantomData<fn() -> R>,
    inner: sync::Mutex<T>,
}

/// The owner of a [`Mutex`]. Dropping it releases the lock.
pub struct MutexGuard<'a, T: ?Sized> {
    inner: sync::MutexGuard<'a, T>,
    held: Held,
}

impl<T, R: Ranked> Mutex<T, R> {
    /// Creates a free lock around `value`.
    pub const fn new(value: T) -> Self {
        Self { rank: PhantomData, inner: sync::Mutex::new(value) }
    }

    /// Returns the data, also of a poisoned lock.
    pub fn into_inner(self) -> T {
        self.inner.into_inner().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<T: ?Sized, R: Ranked> Mutex<T, R> {
    /// Waits for the lock and takes it, also if it is poisoned (law 2).
    #[cfg_attr(debug_assertions, track_caller)]
    pub fn lock(&self) -> MutexGuard<'_, T> {
        let held = Held::take(R::RANK);
        MutexGuard { inner: self.inner.lock().unwrap_or_else(PoisonError::into_inner), held }
    }

    /// Waits for the lock as [`Mutex::lock`] does. The thread may hold others of its rank (law 1).
    #[cfg_attr(debug_assertions, track_caller)]
    pub fn lock_nested(&self) -> MutexGuard<'_, T> {
        let held = Held::take_nested(R::RANK);
        MutexGuard { inner: self.inner.lock().unwrap_or_else(PoisonError::into_inner), held }
    }

    /// Waits for the lock and takes it. Calls `record` if it is poisoned, with the lock taken.
    #[cfg_attr(debug_assertions, track_caller)]
    pub fn lock_or_else(&self, record: impl FnOnce(&mut T)) -> MutexGuard<'_, T> {
        let held = Held::take(R::RANK);
        MutexGuard { inner: recovered(self.inner.lock(), |inner| record(inner)), held }
    }

    /// Takes the lock if it is free, also if it is poisoned (law 3).
    #[cfg_attr(debug_assertions, track_caller)]
    pub fn try_lock(&self) -> Option<MutexGuard<'_, T>> {
        let inner = tried(self.inner.try_lock(), |_| {})?;
        Some(MutexGuard { inner, held: Held::taken(R::RANK) })
    }

    /// Whether a thread panicked while it held the lock.
    pub fn is_poisoned(&self) -> bool {
        self.inner.is_poisoned()
    }

    /// Returns the data of a lock that no other thread can take, also if it is poisoned.
    pub fn get_mut(&mut self) -> &mut T {
        self.inner.get_mut().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<T: Default, R: Ranked> Default for Mutex<T, R> {
    fn default() -> Self {
        Self::new(T::default())
    }
}

impl<T: ?Sized + fmt::Debug, R> fmt::Debug for Mutex<T, R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.inner.fmt(f)
    }
}

impl<T: ?Sized> Deref for MutexGuard<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.inner
    }
}

impl<T: ?Sized> DerefMut for MutexGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.inner
    }
}

impl<T: ?Sized + fmt::Debug> fmt::Debug for MutexGuard<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.inner.fmt(f)
    }
}

/// A lock with one owner or many readers at a time. See the module for its rank and for poison.
pub struct RwLock<T: ?Sized, R> {
    rank: PhantomData<fn() -> R>,
    inner: sync::RwLock<T>,
}

/// A reader of a [`RwLock`]. Dropping it releases the lock.
pub struct RwLockReadGuard<'a, T: ?Sized> {
    inner: sync::RwLockReadGuard<'a, T>,
    _held: Held,
}

/// The owner of a [`RwLock`]. Dropping it releases the lock.
pub struct RwLockWriteGuard<'a, T: ?Sized> {
    inner: sync::RwLockWriteGuard<'a, T>,
    held: Held,
}

impl<T, R: Ranked> RwLock<T, R> {
    /// Creates a free lock around `value`.
    pub const fn new(value: T) -> Self {
        Self { rank: PhantomData, inner: sync::RwLock::new(value) }
    }
}

impl<T: ?Sized, R: Ranked> RwLock<T, R> {
    /// Waits until the lock has no owner and shares it, also if it is poisoned (law 2).
    #[cfg_attr(debug_assertions, track_caller)]
    pub fn read(&self) -> RwLockReadGuard<'_, T> {
        let held = Held::take(R::RANK);
        let inner = self.inner.read().unwrap_or_else(PoisonError::into_inner);
        RwLockReadGuard { inner, _held: held }
    }

    /// Shares the lock as [`RwLock::read`] does. The thread may hold others of its rank (law 1).
    #[cfg_attr(debug_assertions, track_caller)]
    pub fn read_nested(&self) -> RwLockReadGuard<'_, T> {
        let held = Held::take_nested(R::RANK);
        RwLockReadGuard {
            inner: self.inner.read().unwrap_or_else(PoisonError::into_inner),
            _held: held,
        }
    }

    /// Shares the lock as [`RwLock::read`] does. Calls `record` if it is poisoned.
    #[cfg_attr(debug_assertions, track_caller)]
    pub fn read_or_else(&self, record: impl FnOnce(&T)) -> RwLockReadGuard<'_, T> {
        let held = Held::take(R::RANK);
        let inner = recovered(self.inner.read(), |inner| record(inner));
        RwLockReadGuard { inner, _held: held }
    }

    /// Shares the lock if that needs no wait (law 3). Calls `record` if it is poisoned.
    #[cfg_attr(debug_assertions, track_caller)]
    pub fn try_read_or_else(&self, record: impl FnOnce(&T)) -> Option<RwLockReadGuard<'_, T>> {
        let inner = tried(self.inner.try_read(), |inner| record(inner))?;
        Some(RwLockReadGuard { inner, _held: Held::taken(R::RANK) })
    }

    /// Waits until the lock is free and takes it, also if it is poisoned (law 2).
    #[cfg_attr(debug_assertions, track_caller)]
    pub fn write(&self) -> RwLockWriteGuard<'_, T> {
        let held = Held::take(R::RANK);
        RwLockWriteGuard { inner: self.inner.write().unwrap_or_else(PoisonError::into_inner), held }
    }

    /// Takes the lock as [`RwLock::write`] does. The thread may hold others of its rank (law 1).
    #[cfg_attr(debug_assertions, track_caller)]
    pub fn write_nested(&self) -> RwLockWriteGuard<'_, T> {
        let held = Held::take_nested(R::RANK);
        RwLockWriteGuard { inner: self.inner.write().unwrap_or_else(PoisonError::into_inner), held }
    }

    /// Takes the lock as [`RwLock::write`] does. Calls `record` if it is poisoned.
    #[cfg_attr(debug_assertions, track_caller)]
    pub fn write_or_else(&self, record: impl FnOnce(&mut T)) -> RwLockWriteGuard<'_, T> {
        self.write_held(Held::take(R::RANK), record)
    }

    /// Takes the lock as [`RwLock::write_or_else`] does. The thread may hold others of its rank
    /// (law 1).
    #[cfg_attr(debug_assertions, track_caller)]
    pub fn write_nested_or_else(&self, record: impl FnOnce(&mut T)) -> RwLockWriteGuard<'_, T> {
        self.write_held(Held::take_nested(R::RANK), record)
    }

    fn write_held(&self, held: Held, record: impl FnOnce(&mut T)) -> RwLockWriteGuard<'_, T> {
        RwLockWriteGuard { inner: recovered(self.inner.write(), |inner| record(inner)), held }
    }

    /// Takes the lock if it is free (law 3). Calls `record` if it is poisoned.
    #[cfg_attr(debug_assertions, track_caller)]
    pub fn try_write_or_else(
        &self,
        record: impl FnOnce(&mut T),
    ) -> Option<RwLockWriteGuard<'_, T>> {
        let inner = tried(self.inner.try_write(), |inner| record(inner))?;
        Some(RwLockWriteGuard { inner, held: Held::taken(R::RANK) })
    }

    /// Whether a thread panicked while it owned the lock.
    pub fn is_poisoned(&self) -> bool {
        self.inner.is_poisoned()
    }
}

impl<T: Default, R: Ranked> Default for RwLock<T, R> {
    fn default() -> Self {
        Self::new(T::default())
    }
}

impl<T: ?Sized + fmt::Debug, R> fmt::Debug for RwLock<T, R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.inner.fmt(f)
    }
}

impl<'a, T: ?Sized> RwLockWriteGuard<'a, T> {
    /// Lets readers share the lock, with no owner between.
    pub fn downgrade(guard: Self) -> RwLockReadGuard<'a, T> {
        let Self { inner, held } = guard;
        RwLockReadGuard { inner: sync::RwLockWriteGuard::downgrade(inner), _held: held }
    }
}

impl<T: ?Sized> Deref for RwLockReadGuard<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.inner
    }
}

impl<T: ?Sized> Deref for RwLockWriteGuard<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.inner
    }
}

impl<T: ?Sized> DerefMut for RwLockWriteGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.inner
    }
}

impl<T: ?Sized + fmt::Debug> fmt::Debug for RwLockReadGuard<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.inner.fmt(f)
    }
}

impl<T: ?Sized + fmt::Debug> fmt::Debug for RwLockWriteGuard<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.inner.fmt(f)
    }
}

/// A place in the order of ranks that a thread holds without a lock. In debug builds it counts as a
/// lock of its rank: the thread takes only later ones while the mark exists. In release builds it
/// is nothing.
///
/// The thread that made it drops it.
pub struct Mark<R> {
    rank: PhantomData<fn() -> R>,
    _held: Held,
}

impl<R: Ranked> Mark<R> {
    /// Counts as taking a lock: in debug builds it panics if the thread holds one of the same or a
    /// later rank.
    #[cfg_attr(debug_assertions, track_caller)]
    #[expect(clippy::new_without_default, reason = "a mark is made on purpose")]
    pub fn new() -> Self {
        Self { rank: PhantomData, _held: Held::take(R::RANK) }
    }

    /// Returns whether the thread holds this rank. Always `false` in release builds.
    pub fn is_held() -> bool {
        Held::is_listed(R::RANK)
    }
}

impl<R: Ranked> fmt::Debug for Mark<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Mark({})", R::RANK)
    }
}

/// Lets threads wait for a change of what a [`Mutex`] guards. A notification while no thread waits
/// costs no system call (law 5).
#[derive(Debug, Default)]
pub struct Condvar {
    inner: sync::Condvar,
    /// Threads that wait. A thread counts itself while it holds the lock.
    waiting: AtomicUsize,
}

/// A thread that waits.
struct Waiting<'a>(&'a AtomicUsize);

impl<'a> Waiting<'a> {
    fn new(count: &'a AtomicUsize) -> Self {
        count.fetch_add(1, Ordering::Relaxed);
        Self(count)
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Condvar {
    pub const fn new() -> Self {
        Self { inner: sync::Condvar::new(), waiting: AtomicUsize::new(0) }
    }

    /// Releases the lock, waits for a notification and takes the lock again. May return without a
    /// notification.
    pub fn wait<'a, T>(&self, guard: MutexGuard<'a, T>) -> MutexGuard<'a, T> {
        let MutexGuard { inner, held } = guard;
        let _waiting = Waiting::new(&self.waiting);
        MutexGuard { inner: self.inner.wait(inner).unwrap_or_else(PoisonError::into_inner), held }
    }

    /// Waits as [`Condvar::wait`] does, at most for `timeout`. Returns also whether it ran out.
    pub fn wait_timeout<'a, T>(
        &self,
        guard: MutexGuard<'a, T>,
        timeout: Duration,
    ) -> (MutexGuard<'a, T>, WaitTimeoutResult) {
        let MutexGuard { inner, held } = guard;
        let _waiting = Waiting::new(&self.waiting);
        let waited = self.inner.wait_timeout(inner, timeout);
        let (inner, result) = waited.unwrap_or_else(PoisonError::into_inner);
        (MutexGuard { inner, held }, result)
    }

    /// Waits while `is_so` holds, at most for `timeout`. Returns also whether the time ran out.
    pub fn wait_timeout_while<'a, T>(
        &self,
        guard: MutexGuard<'a, T>,
        timeout: Duration,
        is_so: impl FnMut(&mut T) -> bool,
    ) -> (MutexGuard<'a, T>, WaitTimeoutResult) {
        let MutexGuard { inner, held } = guard;
        let _waiting = Waiting::new(&self.waiting);
        let waited = self.inner.wait_timeout_while(inner, timeout, is_so);
        let (inner, result) = waited.unwrap_or_else(PoisonError::into_inner);
        (MutexGuard { inner, held }, result)
    }

    /// Wakes one thread that waits.
    pub fn notify_one(&self) {
        if self.has_waiting() {
            self.inner.notify_one();
        }
    }

    /// Wakes all threads that wait.
    pub fn notify_all(&self) {
        if self.has_waiting() {
            self.inner.notify_all();
        }
    }

    /// A thread that took the lock before the notifying one is counted, because the lock orders
    /// them. A thread that takes it later sees the change and does not wait (law 5).
    fn has_waiting(&self) -> bool {
        self.waiting.load(Ordering::Relaxed) > 0
    }
}

/// Returns the guard of a lock that was waited for. Calls `record` if the lock is poisoned.
fn recovered<G>(taken: LockResult<G>, record: impl FnOnce(&mut G)) -> G {
    taken.unwrap_or_else(|poisoned| {
        let mut guard = poisoned.into_inner();
        record(&mut guard);
        guard
    })
}

/// Returns the guard of an attempt that succeeded. Calls `record` if the lock is poisoned.
fn tried<G>(taken: TryLockResult<G>, record: impl FnOnce(&mut G)) -> Option<G> {
    match taken {
        Ok(guard) => Some(guard),
        Err(TryLockError::Poisoned(poisoned)) => Some(recovered(Err(poisoned), record)),
        Err(TryLockError::WouldBlock) => None,
    }
}

#[cfg(not(debug_assertions))]
const _: () = {
    assert!(size_of::<Mutex<u64, rank::Arena>>() == size_of::<sync::Mutex<u64>>());
    assert!(size_of::<MutexGuard<'_, u64>>() == size_of::<sync::MutexGuard<'_, u64>>());
    assert!(size_of::<RwLock<u64, rank::Arena>>() == size_of::<sync::RwLock<u64>>());
    assert!(size_of::<RwLockReadGuard<'_, u64>>() == size_of::<sync::RwLockReadGuard<'_, u64>>());
};

#[cfg(test)]
mod tests;
