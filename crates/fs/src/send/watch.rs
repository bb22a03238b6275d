//! [`Watch`]: whether the caller of a stream still wants it, while nothing is written.

use crate::{Error, Result};
use std::cell::Cell;
use std::io;

/// The number of the error of a stream that is not wanted any more.
const ECANCELED: i32 = 125;

/// The caller's function is called once in this number of steps. A step examines an item or an
/// inode, which reads a few tree blocks at most.
const STEPS: u32 = 64;

/// Counts the steps of a stream, and calls the caller's function.
pub(crate) struct Watch<'a> {
    goes_on: &'a dyn Fn() -> bool,
    steps: Cell<u32>,
}

impl<'a> Watch<'a> {
    pub(crate) fn new(goes_on: &'a dyn Fn() -> bool) -> Self {
        Self { goes_on, steps: Cell::new(0) }
    }

    /// Called before each step.
    ///
    /// # Errors
    /// [`Error::StreamOutput`] with `ECANCELED`: the caller does not want the stream any more.
    pub(crate) fn check(&self) -> Result<()> {
        let step = self.steps.get();
        self.steps.set((step + 1) % STEPS);
        if step == 0 && !(self.goes_on)() {
            return Err(Error::StreamOutput(io::Error::from_raw_os_error(ECANCELED)));
        }
        Ok(())
    }
}
