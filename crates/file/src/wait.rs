//! [`Wait`]: whether a call may block.

/// Whether a direct write may block before it begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wait {
    /// It may read trees, allocate chunks and commit transactions.
    Block,
    /// It does not begin where it would have to wait for a device, a tree or a lock (`RWF_NOWAIT`).
    NoWait,
}
