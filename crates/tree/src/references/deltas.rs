//! [`Deltas`]: the count changes of one extent, by reference.
//!
//! Laws:
//!
//! 1. No reference is there twice, and none with a change of zero.
//! 2. Most extents have one or two references that change, and take one small allocation. An extent
//!    that very many files share has a map, so that the time of a change does not grow with it.

use super::reference::Ref;
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

/// The number of references from which on they are kept in a map.
const MANY: usize = 32;

#[derive(Clone, Debug)]
pub(crate) struct Deltas {
    kept: Kept,
    sum: i64,
}

#[derive(Clone, Debug)]
enum Kept {
    Few(Vec<(Ref, i64)>),
    Many(BTreeMap<Ref, i64>),
}

impl Deltas {
    pub(crate) fn new() -> Self {
        Self { kept: Kept::Few(Vec::with_capacity(1)), sum: 0 }
    }

    /// Returns the sum of all changes.
    pub(crate) fn sum(&self) -> i64 {
        self.sum
    }

    pub(crate) fn len(&self) -> usize {
        match &self.kept {
            Kept::Few(few) => few.len(),
            Kept::Many(many) => many.len(),
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.len() == 0
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (Ref, i64)> {
        let (few, many) = match &self.kept {
            Kept::Few(few) => (Some(few), None),
            Kept::Many(many) => (None, Some(many)),
        };
        let few = few.into_iter().flatten().copied();
        few.chain(many.into_iter().flatten().map(|(reference, delta)| (*reference, *delta)))
    }

    /// Whether a reference other than `own` changes.
    pub(crate) fn has_other_than(&self, own: Ref) -> bool {
        self.len() > 1 || self.iter().any(|(reference, _)| reference != own)
    }

    pub(crate) fn change(&mut self, reference: Ref, delta: i64) {
        self.sum = self.sum.saturating_add(delta);
        match &mut self.kept {
            Kept::Few(few) => match few.iter().position(|(known, _)| *known == reference) {
                Some(at) => {
                    if let Some((_, sum)) = few.get_mut(at) {
                        *sum = sum.saturating_add(delta);
                    }
                    few.retain(|(_, sum)| *sum != 0);
                }
                None if delta != 0 => few.push((reference, delta)),
                None => {}
            },
            Kept::Many(many) => match many.entry(reference) {
                Entry::Occupied(mut known) => {
                    *known.get_mut() = known.get().saturating_add(delta);
                    if *known.get() == 0 {
                        known.remove();
                    }
                }
                Entry::Vacant(place) => {
                    if delta != 0 {
                        place.insert(delta);
                    }
                }
            },
        }
        if let Kept::Few(few) = &mut self.kept
            && few.len() >= MANY
        {
            self.kept = Kept::Many(std::mem::take(few).into_iter().collect());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Deltas, Kept, MANY};
    use crate::references::Ref;
    use butternut_format::units::{Logical, length};
    use std::collections::BTreeMap;

    #[test]
    fn few_and_many_changes_add_up() {
        let (mut deltas, mut model) = (Deltas::new(), BTreeMap::<u64, i64>::new());
        let many = length(MANY);
        let rounds = [(1, 3 * many), (2, many), (-1, 3 * many), (-2, 9)];
        for (delta, count) in rounds {
            for number in 0..count {
                deltas.change(Ref::Shared(Logical(number)), delta);
                *model.entry(number).or_default() += delta;
                model.retain(|_, sum| *sum != 0);
                assert_eq!(deltas.len(), model.len());
                assert_eq!(deltas.sum(), model.values().sum::<i64>());
            }
        }
        let have: BTreeMap<_, _> = deltas.iter().collect();
        let want = model.iter().map(|(number, sum)| (Ref::Shared(Logical(*number)), *sum));
        assert_eq!(have, want.collect());
        assert!(matches!(deltas.kept, Kept::Many(_)), "a change is found by its key");
    }

    #[test]
    fn a_change_of_nothing_and_back_is_none() {
        let (mut deltas, own) = (Deltas::new(), Ref::Shared(Logical(4096)));
        deltas.change(own, 0);
        assert!(deltas.is_empty() && !deltas.has_other_than(own));
        deltas.change(own, 1);
        assert!(!deltas.has_other_than(own) && deltas.has_other_than(Ref::Shared(Logical(0))));
        deltas.change(own, -1);
        assert!(deltas.is_empty() && deltas.sum() == 0);
    }
}
