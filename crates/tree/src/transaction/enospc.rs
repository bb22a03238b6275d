//! [`EnospcInjector`]: makes reservations fail on a volume that has space, for tests.
//!
//! Every reservation passes the injector first: joining a transaction, allocating data, reserving
//! metadata. An injected failure looks like a full volume. So does every charge of space to a
//! subvolume, with or without quotas; its failure looks like a limit that is reached. A forest
//! without an injector does no extra work.

use crate::error::TreeError;
use butternut_format::quota::QgroupId;
use butternut_format::units::TreeId;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Chooses which reservations fail: none, until a `fail_*` method is called. Clones share one
/// state.
#[derive(Clone, Debug, Default)]
pub struct EnospcInjector(Arc<State>);

#[derive(Debug, Default)]
struct State {
    /// Fail every n-th reservation; 0 fails none, [`GROWTH`] all but deletions.
    every: AtomicU64,
    /// Fail all reservations from the one of this number on; 0 fails none.
    from: AtomicU64,
    seen: AtomicU64,
    failed: AtomicU64,
    /// Fail every handle for more items than this; 0 fails none.
    items_max: AtomicU64,
    /// Fail every n-th charge; 0 fails none.
    charges_every: AtomicU64,
    charges_seen: AtomicU64,
}

/// The purpose of a reservation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Purpose {
    Growth,
    /// Frees space in the end, and may succeed where growth fails.
    Deletion,
}

/// Fails all growth and no deletion.
const GROWTH: u64 = u64::MAX;

impl PartialEq for EnospcInjector {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Eq for EnospcInjector {}

impl EnospcInjector {
    /// Fails every `nth` reservation for any purpose, counted from this call on; 0 fails none.
    pub fn fail_every(&self, nth: u64) {
        self.0.seen.store(0, Ordering::Relaxed);
        self.0.every.store(nth, Ordering::Relaxed);
    }

    /// Fails the `nth` reservation for any purpose, counted from this call on, and all later ones.
    pub fn fail_from(&self, nth: u64) {
        self.0.seen.store(0, Ordering::Relaxed);
        self.0.from.store(nth, Ordering::Relaxed);
    }

    /// Fails every reservation that does not free space in the end.
    pub fn fail_growth(&self) {
        self.0.every.store(GROWTH, Ordering::Relaxed);
    }

    /// Fails every handle that is for more than `items` items; 0 fails none.
    pub fn fail_above(&self, items: u32) {
        self.0.items_max.store(items.into(), Ordering::Relaxed);
    }

    /// Fails every `nth` charge of space to a subvolume with [`TreeError::QuotaExceeded`], counted
    /// from this call on; 0 fails none.
    pub fn fail_charges(&self, nth: u64) {
        self.0.charges_seen.store(0, Ordering::Relaxed);
        self.0.charges_every.store(nth, Ordering::Relaxed);
    }

    /// Fails no reservation and no charge from this call on.
    pub fn fail_none(&self) {
        self.0.from.store(0, Ordering::Relaxed);
        self.0.every.store(0, Ordering::Relaxed);
        self.0.items_max.store(0, Ordering::Relaxed);
        self.0.charges_every.store(0, Ordering::Relaxed);
    }

    /// Returns how many reservations and charges failed so far.
    pub fn failed(&self) -> u64 {
        self.0.failed.load(Ordering::Relaxed)
    }

    pub(crate) fn check(&self, purpose: Purpose) -> Result<(), TreeError> {
        let from = self.0.from.load(Ordering::Relaxed);
        let is_failed = match self.0.every.load(Ordering::Relaxed) {
            0 if from > 0 => self.0.seen.fetch_add(1, Ordering::Relaxed).saturating_add(1) >= from,
            0 => false,
            GROWTH => purpose == Purpose::Growth,
            every => {
                let seen = self.0.seen.fetch_add(1, Ordering::Relaxed).saturating_add(1);
                seen.is_multiple_of(every)
            }
        };
        if !is_failed {
            return Ok(());
        }
        self.0.failed.fetch_add(1, Ordering::Relaxed);
        Err(TreeError::NoSpace { bytes: 0 })
    }

    pub(crate) fn check_items(&self, items: u32) -> Result<(), TreeError> {
        let items_max = self.0.items_max.load(Ordering::Relaxed);
        if items_max == 0 || u64::from(items) <= items_max {
            return Ok(());
        }
        self.0.failed.fetch_add(1, Ordering::Relaxed);
        Err(TreeError::NoSpace { bytes: 0 })
    }

    pub(crate) fn check_charge(&self, tree: TreeId) -> Result<(), TreeError> {
        let every = self.0.charges_every.load(Ordering::Relaxed);
        let seen = || self.0.charges_seen.fetch_add(1, Ordering::Relaxed).saturating_add(1);
        if every == 0 || !seen().is_multiple_of(every) {
            return Ok(());
        }
        self.0.failed.fetch_add(1, Ordering::Relaxed);
        Err(TreeError::QuotaExceeded { group: QgroupId(tree.0) })
    }
}
