//! [`UsageChanges`]: bytes of extents, by the subvolumes that referred to them and those that do.
//! Many extents have the same two sets, so the groups of a set are looked up once.
//!
//! Left to others: which subvolumes refer to an extent (`roots`), the arithmetic (`groups`).

use super::groups::{Groups, UsageDeltas};
use super::items::corrupt;
use super::sets::{RootSets, SetId};
use crate::error::TreeError;
use std::collections::HashMap;

/// Bytes of extents, by the subvolumes before and after.
#[derive(Debug, Default)]
pub(crate) struct UsageChanges {
    bytes: HashMap<(SetId, SetId), u64>,
}

impl UsageChanges {
    /// Adds the bytes of an extent that the set `before` referred to, and the set `after` does.
    pub(crate) fn add(&mut self, before: SetId, after: SetId, bytes: u64) {
        let sum = self.bytes.entry((before, after)).or_default();
        *sum = sum.saturating_add(bytes);
    }

    /// Changes the usage of the groups: of all, or of none if an error is returned.
    ///
    /// # Errors
    /// The usage of a group contradicts the changes, or the groups are too many to visit.
    pub(crate) fn apply(&self, sets: &RootSets, groups: &mut Groups) -> Result<(), TreeError> {
        if self.bytes.is_empty() {
            return Ok(());
        }
        let mut deltas = UsageDeltas::default();
        for ((before, after), bytes) in &self.bytes {
            let (before, after) = (sets.get(*before), sets.get(*after));
            groups.collect(*bytes, (&before, &after), &mut deltas).map_err(corrupt)?;
        }
        let mut changed = groups.clone();
        changed.apply(&deltas).map_err(corrupt)?;
        *groups = changed;
        Ok(())
    }
}
