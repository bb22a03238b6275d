//! btrfs in user space: one mounted filesystem, the only stable interface.
