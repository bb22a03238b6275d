//! [`Turn`]: waiting for something that is looked up elsewhere.
//!
//! Who waits notes the turn, looks whether he has to, and waits for the turn to move on from what
//! he noted; who changes something moves it on afterwards. So no change is missed, and nobody holds
//! a lock while he waits.

use crate::sync::{Condvar, Mutex, MutexGuard};
use std::sync::PoisonError;

#[derive(Debug, Default)]
pub(crate) struct Turn {
    number: Mutex<u64>,
    moved: Condvar,
}

impl Turn {
    /// Waits while `must_wait` says so.
    pub(crate) fn wait_while(&self, mut must_wait: impl FnMut() -> bool) {
        loop {
            let noted = *self.number();
            if !must_wait() {
                return;
            }
            let mut number = self.number();
            while *number == noted {
                number = self.moved.wait(number).unwrap_or_else(PoisonError::into_inner);
            }
        }
    }

    /// Something has changed.
    pub(crate) fn advance(&self) {
        let mut number = self.number();
        *number = number.wrapping_add(1);
        drop(number);
        self.moved.notify_all();
    }

    /// After a panic: the number is whole, since one step changes it.
    fn number(&self) -> MutexGuard<'_, u64> {
        self.number.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
