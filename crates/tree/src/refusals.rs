//! [`Refusals`]: room that is refused although there is some, as a test wants it.
//!
//! Every ask for room passes here before it is looked for: to join a transaction, for data, for a
//! promise. What is refused is told as on a full volume. A forest that was opened without refusals
//! pays for none.

use crate::error::TreeError;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Which asks for room are refused: none, until somebody says so. Clones are the same one.
#[derive(Clone, Debug, Default)]
pub struct Refusals(Arc<State>);

#[derive(Debug, Default)]
struct State {
    /// Every so manieth ask is refused; 0: none.
    every: AtomicU64,
    asked: AtomicU64,
    refused: AtomicU64,
}

/// What an ask is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Purpose {
    Growth,
    /// Sets space free in the end, and is granted where growth is not.
    Deletion,
}

/// All growth is refused, and no deletion.
const GROWTH: u64 = u64::MAX;

impl PartialEq for Refusals {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Eq for Refusals {}

impl Refusals {
    /// From now on refuses every so manieth ask, whatever it is for, counted from here.
    pub fn refuse_every(&self, asks: u64) {
        self.0.asked.store(0, Ordering::Relaxed);
        self.0.every.store(asks, Ordering::Relaxed);
    }

    /// From now on refuses whatever does not set space free in the end.
    pub fn refuse_growth(&self) {
        self.0.every.store(GROWTH, Ordering::Relaxed);
    }

    pub fn refuse_none(&self) {
        self.0.every.store(0, Ordering::Relaxed);
    }

    /// How many were refused so far.
    pub fn refused(&self) -> u64 {
        self.0.refused.load(Ordering::Relaxed)
    }

    pub(crate) fn ask(&self, purpose: Purpose) -> Result<(), TreeError> {
        let is_refused = match self.0.every.load(Ordering::Relaxed) {
            0 => false,
            GROWTH => purpose == Purpose::Growth,
            every => {
                let asked = self.0.asked.fetch_add(1, Ordering::Relaxed).saturating_add(1);
                asked.is_multiple_of(every)
            }
        };
        if !is_refused {
            return Ok(());
        }
        self.0.refused.fetch_add(1, Ordering::Relaxed);
        Err(TreeError::NoSpace { wanted: 0 })
    }
}
