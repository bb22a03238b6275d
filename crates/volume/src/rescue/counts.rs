//! How often a rescue succeeded, and how often it failed.

use std::sync::atomic::{AtomicU64, Ordering};

/// The counts of a volume.
#[derive(Debug, Default)]
pub(crate) struct Rescues {
    pub(super) blocks: AtomicU64,
    pub(super) sectors: AtomicU64,
    pub(super) blocks_lost: AtomicU64,
    pub(super) sectors_lost: AtomicU64,
}

/// Reads that the first mirror could not serve.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RescueCounts {
    /// Served from another mirror, from parity, or (sectors) by a read of that sector alone.
    pub blocks: u64,
    pub sectors: u64,
    /// Not served: no source was good.
    pub blocks_lost: u64,
    pub sectors_lost: u64,
}

impl Rescues {
    pub(super) fn now(&self) -> RescueCounts {
        let load = |count: &AtomicU64| count.load(Ordering::Relaxed);
        RescueCounts {
            blocks: load(&self.blocks),
            sectors: load(&self.sectors),
            blocks_lost: load(&self.blocks_lost),
            sectors_lost: load(&self.sectors_lost),
        }
    }
}
