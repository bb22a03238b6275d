//! [`Lookup`]: a search of the caches that may, or may not, go on in the trees.

use crate::error::FileError;
use butternut_sys::wait::Wait;

/// A search of the caches, and of the trees for what the caches do not have.
#[derive(Debug)]
pub(crate) struct Lookup {
    wait: Wait,
    is_cached: bool,
}

impl Lookup {
    pub(crate) fn new(wait: Wait) -> Self {
        Self { wait, is_cached: true }
    }

    /// Records that a cache does not have what is needed. Returns whether the tree may be read.
    pub(crate) fn miss(&mut self) -> bool {
        self.is_cached = false;
        self.wait == Wait::Block
    }

    /// Whether the caches had everything.
    pub(crate) fn is_cached(&self) -> bool {
        self.is_cached
    }

    /// Whether the search ended because the tree must not be read.
    pub(crate) fn would_block(&self) -> bool {
        !self.is_cached && self.wait == Wait::NoWait
    }
}

/// Refuses a call that would block here, if `wait` forbids it.
pub(crate) fn may_block(wait: Wait) -> Result<(), FileError> {
    match wait {
        Wait::Block => Ok(()),
        Wait::NoWait => Err(FileError::WouldBlock),
    }
}
