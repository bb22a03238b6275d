//! The ranked locks of `sys::lock` over the locks of a scheduler that controls the order of all
//! threads. The interleaving tests of other crates compile their sources with this module in place
//! of their module `sync`. The scheduler finds deadlocks itself, so the ranks are ignored. A
//! poisoned lock fails the test.

pub(crate) use butternut_sys::lock::rank;
use shuttle::sync::WaitTimeoutResult;
pub(crate) use shuttle::sync::atomic;
pub(crate) use shuttle::sync::{MutexGuard, RwLockReadGuard, RwLockWriteGuard};
use std::marker::PhantomData;
use std::time::Duration;

#[derive(Debug)]
pub(crate) struct Mutex<T, R>(shuttle::sync::Mutex<T>, PhantomData<fn() -> R>);

impl<T: Default, R> Default for Mutex<T, R> {
    fn default() -> Self {
        Self::new(T::default())
    }
}

impl<T, R> Mutex<T, R> {
    pub(crate) fn new(value: T) -> Self {
        Self(shuttle::sync::Mutex::new(value), PhantomData)
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, T> {
        self.0.lock().unwrap()
    }

    pub(crate) fn lock_or_else(&self, _: impl FnOnce(&mut T)) -> MutexGuard<'_, T> {
        self.lock()
    }

    pub(crate) fn try_lock(&self) -> Option<MutexGuard<'_, T>> {
        self.0.try_lock().ok()
    }
}

#[derive(Debug, Default)]
pub(crate) struct Condvar(shuttle::sync::Condvar);

impl Condvar {
    pub(crate) fn wait<'a, T>(&self, guard: MutexGuard<'a, T>) -> MutexGuard<'a, T> {
        self.0.wait(guard).unwrap()
    }

    pub(crate) fn wait_timeout<'a, T>(
        &self,
        guard: MutexGuard<'a, T>,
        timeout: Duration,
    ) -> (MutexGuard<'a, T>, WaitTimeoutResult) {
        self.0.wait_timeout(guard, timeout).unwrap()
    }

    pub(crate) fn wait_timeout_while<'a, T>(
        &self,
        guard: MutexGuard<'a, T>,
        timeout: Duration,
        is_so: impl FnMut(&mut T) -> bool,
    ) -> (MutexGuard<'a, T>, WaitTimeoutResult) {
        self.0.wait_timeout_while(guard, timeout, is_so).unwrap()
    }

    pub(crate) fn notify_one(&self) {
        self.0.notify_one();
    }

    pub(crate) fn notify_all(&self) {
        self.0.notify_all();
    }
}

#[derive(Debug)]
pub(crate) struct RwLock<T, R>(shuttle::sync::RwLock<T>, PhantomData<fn() -> R>);

impl<T: Default, R> Default for RwLock<T, R> {
    fn default() -> Self {
        Self::new(T::default())
    }
}

impl<T, R> RwLock<T, R> {
    pub(crate) fn new(value: T) -> Self {
        Self(shuttle::sync::RwLock::new(value), PhantomData)
    }

    pub(crate) fn read(&self) -> RwLockReadGuard<'_, T> {
        self.0.read().unwrap()
    }

    pub(crate) fn write(&self) -> RwLockWriteGuard<'_, T> {
        self.0.write().unwrap()
    }

    pub(crate) fn read_or_else(&self, _: impl FnOnce(&T)) -> RwLockReadGuard<'_, T> {
        self.read()
    }

    pub(crate) fn write_or_else(&self, _: impl FnOnce(&mut T)) -> RwLockWriteGuard<'_, T> {
        self.write()
    }

    pub(crate) fn write_nested_or_else(&self, _: impl FnOnce(&mut T)) -> RwLockWriteGuard<'_, T> {
        self.write()
    }

    pub(crate) fn try_read_or_else(&self, _: impl FnOnce(&T)) -> Option<RwLockReadGuard<'_, T>> {
        self.0.try_read().ok()
    }

    pub(crate) fn try_write_or_else(
        &self,
        _: impl FnOnce(&mut T),
    ) -> Option<RwLockWriteGuard<'_, T>> {
        self.0.try_write().ok()
    }
}

pub(crate) fn run(test: fn()) {
    shuttle::check_random(test, 1);
}
