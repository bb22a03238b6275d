//! [`Wait`]: whether a call may block, and [`Lookup`]: what a call that must not block has missed.

/// Whether a call may block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wait {
    /// It may read trees, allocate chunks and commit transactions.
    Block,
    /// It does not begin where it would have to wait for a device, a tree or a lock (`RWF_NOWAIT`).
    NoWait,
}

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
