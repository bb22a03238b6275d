//! Dropped references: references of data extents that a crash brings back.
//!
//! ```text
//! dropped with a handle --> running --(the commit freezes)--> committing --(it is durable)--> gone
//! ```
//!
//! A reference that a transaction drops is still in the last commit, or in the log. If a file wrote
//! in place to an extent that another file had just dropped, a crash would show the new bytes in
//! the other file. So the extent counts as shared until the commit of the drop is durable
//! ([`Forest::is_shared`](crate::Forest::is_shared)).
//!
//! Laws:
//!
//! 1. Every drop is recorded in the same critical section that changes the delayed references. A
//!    drop that cancels an addition of the same transaction is recorded, too: the log may have the
//!    addition.
//! 2. A drop belongs to the transaction that it was made in. One that is made while a commit is
//!    being written belongs to the next transaction, and stays when that commit is durable.
//! 3. An extent whose creation is cancelled is not recorded: no file refers to it any more, and its
//!    space is not reused before the commit.
//! 4. At most [`EXTENTS_MAX`] extents of a transaction are recorded each. Of further ones only the
//!    lowest and the highest address are kept, and every extent between them counts as dropped by
//!    several files. A write in place that was accepted without space of its own might then find
//!    none, so the limit is one that no transaction reaches: the next thread that would join one
//!    with so many records commits first
//!    ([`References::are_many`](super::References::are_many)).

use super::reference::{RECORDS_MAX, Ref};
use butternut_format::units::Logical;
use std::collections::HashMap;
use std::ops::RangeInclusive;

/// Maximum number of extents that are recorded each, for one transaction.
const EXTENTS_MAX: usize = 2 * RECORDS_MAX;

/// The references of one extent that were dropped.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Dropped {
    #[default]
    None,
    One(Ref),
    Several,
}

impl Dropped {
    fn and(self, other: Self) -> Self {
        match (self, other) {
            (Self::None, dropped) | (dropped, Self::None) => dropped,
            (Self::One(one), Self::One(other)) if one == other => self,
            (Self::One(_) | Self::Several, Self::One(_) | Self::Several) => Self::Several,
        }
    }

    /// Whether a reference other than `own` was dropped.
    pub(crate) fn has_other_than(self, own: Ref) -> bool {
        match self {
            Self::None => false,
            Self::One(reference) => reference != own,
            Self::Several => true,
        }
    }
}

/// The references that one transaction has dropped.
#[derive(Debug, Default)]
pub(crate) struct DroppedRefs {
    extents: HashMap<Logical, Dropped>,
    /// The addresses between which further extents lie (law 4).
    further: Option<RangeInclusive<Logical>>,
}

impl DroppedRefs {
    fn add(&mut self, at: Logical, reference: Ref) {
        if self.extents.len() < EXTENTS_MAX || self.extents.contains_key(&at) {
            let dropped = self.extents.entry(at).or_default();
            *dropped = dropped.and(Dropped::One(reference));
            return;
        }
        let (low, high) = match &self.further {
            Some(further) => (at.min(*further.start()), at.max(*further.end())),
            None => (at, at),
        };
        self.further = Some(low..=high);
    }

    fn of(&self, at: Logical) -> Dropped {
        if self.further.as_ref().is_some_and(|further| further.contains(&at)) {
            return Dropped::Several;
        }
        self.extents.get(&at).copied().unwrap_or_default()
    }
}

/// The dropped references whose drops are not durable.
#[derive(Debug, Default)]
pub(crate) struct UncommittedDrops {
    running: DroppedRefs,
    committing: DroppedRefs,
}

impl UncommittedDrops {
    /// Records a drop of the running transaction.
    pub(crate) fn add(&mut self, at: Logical, reference: Ref) {
        self.running.add(at, reference);
    }

    /// Returns the dropped references of an extent.
    pub(crate) fn of(&self, at: Logical) -> Dropped {
        self.running.of(at).and(self.committing.of(at))
    }

    /// Returns the number of extents that are recorded each.
    pub(crate) fn len(&self) -> usize {
        self.running.extents.len().saturating_add(self.committing.extents.len())
    }

    /// Assigns the drops so far to the commit that is about to be written. The next transaction has
    /// not begun (law 2).
    pub(crate) fn freeze(&mut self) {
        debug_assert!(self.committing.extents.is_empty(), "one commit is written at a time");
        std::mem::swap(&mut self.running, &mut self.committing);
    }

    /// Removes and returns the drops of the commit, which is durable.
    #[must_use = "dropping them takes time, which no lock should be held for"]
    pub(crate) fn take_durable(&mut self) -> DroppedRefs {
        std::mem::take(&mut self.committing)
    }
}

#[cfg(test)]
mod tests {
    use super::{Dropped, EXTENTS_MAX, Ref, UncommittedDrops};
    use butternut_format::extent::DataRef;
    use butternut_format::units::{Ino, Logical, TreeId};

    fn of(ino: u64) -> Ref {
        Ref::data(DataRef { tree: TreeId::FS, ino: Ino(ino), offset: 0, count: 1 })
    }

    #[test]
    fn a_drop_stays_until_its_own_commit_is_durable() {
        let mut drops = UncommittedDrops::default();
        let (early, late) = (Logical(4096), Logical(8192));
        drops.add(early, of(300));
        assert!(drops.of(early).has_other_than(of(301)));
        assert!(!drops.of(early).has_other_than(of(300)), "its own drop");
        drops.freeze();
        drops.add(late, of(300));
        drops.add(early, of(301));
        assert!(drops.of(early).has_other_than(of(300)) && drops.of(early).has_other_than(of(301)));
        drop(drops.take_durable());
        assert!(drops.of(late).has_other_than(of(301)), "of the next transaction");
        assert_eq!(drops.of(early), Dropped::One(of(301)));
        drops.freeze();
        drop(drops.take_durable());
        assert_eq!((drops.of(early), drops.of(late)), (Dropped::None, Dropped::None));
    }

    #[test]
    fn past_the_bound_all_extents_in_between_count() {
        let mut drops = UncommittedDrops::default();
        let at = |number: usize| Logical(u64::try_from(number).unwrap_or(u64::MAX) * 4096);
        for number in 0..EXTENTS_MAX {
            drops.add(at(number), of(300));
        }
        for number in [EXTENTS_MAX + 9, EXTENTS_MAX + 2, EXTENTS_MAX + 5] {
            drops.add(at(number), of(300));
        }
        drops.add(at(7), of(301));
        assert_eq!(drops.len(), EXTENTS_MAX);
        assert_eq!(drops.of(at(6)), Dropped::One(of(300)));
        assert_eq!(drops.of(at(7)), Dropped::Several);
        for number in EXTENTS_MAX + 2..=EXTENTS_MAX + 9 {
            assert_eq!(drops.of(at(number)), Dropped::Several);
        }
        assert_eq!(drops.of(at(EXTENTS_MAX + 1)), Dropped::None);
        assert_eq!(drops.of(at(EXTENTS_MAX + 10)), Dropped::None);
    }
}
