//! Replaces the library's `sync`: the methods of the ranked locks that the table uses, over the
//! locks of the scheduler. It finds deadlocks itself, so the ranks are ignored. A poisoned lock
//! fails the test.

pub(crate) use butternut_sys::lock::rank;
pub(crate) use shuttle::sync::atomic;
pub(crate) use shuttle::sync::{MutexGuard, RwLockReadGuard, RwLockWriteGuard};
use std::marker::PhantomData;

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

    pub(crate) fn try_lock(&self) -> Option<MutexGuard<'_, T>> {
        self.0.try_lock().ok()
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
