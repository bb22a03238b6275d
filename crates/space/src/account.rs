//! The ledger: what block group items must say at the next commit; and totals for who asks.

use crate::class::Class;
use crate::error::SpaceError;
use crate::group::BlockGroup;
use crate::state::Space;
use butternut_format::chunk::BlockGroupFlags;
use butternut_format::units::Logical;
use std::ops::Range;

/// What happened to an extent item.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Delta {
    /// It was inserted: its bytes count as used.
    Used,
    /// It was removed.
    Freed,
}

/// A group whose item must be written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GroupChange {
    pub start: Logical,
    pub bytes: u64,
    pub flags: BlockGroupFlags,
    pub used: u64,
}

/// All groups of a class (on a mixed volume: of data and metadata together).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// Of all its groups.
    pub bytes: u64,
    /// As the block group items will say.
    pub used: u64,
    /// Freed, not yet to be used again.
    pub pinned: u64,
    /// Promised to tickets.
    pub reserved: u64,
    /// Allocatable now, what is promised included.
    pub free: u64,
    /// Free in groups that are read-only.
    pub free_read_only: u64,
}

impl Space {
    /// An extent item for this range was inserted or removed.
    pub fn account(&self, range: &Range<u64>, delta: Delta) -> Result<(), SpaceError> {
        let mut state = self.lock();
        let (index, _) = state.run_of(range)?;
        let bytes = range.end.saturating_sub(range.start);
        let Some(group) = state.groups.get_mut(index) else { return Ok(()) };
        let (start, have) = (group.start, group.used);
        let (used, want) = match delta {
            Delta::Used => (have.checked_add(bytes), "at most the group's length"),
            Delta::Freed => (have.checked_sub(bytes), "at least what is freed"),
        };
        let used = used.filter(|&used| used <= group.bytes);
        group.used = used.ok_or(SpaceError::Used { start, have, want })?;
        let class = group.class;
        state.dirty.insert(start);
        let pool = state.pool_mut(class);
        pool.used = match delta {
            Delta::Used => pool.used.saturating_add(bytes),
            Delta::Freed => pool.used.saturating_sub(bytes),
        };
        Ok(())
    }

    /// The groups whose use changed since the last call.
    pub fn take_ledger(&self) -> Vec<GroupChange> {
        let mut state = self.lock();
        let dirty = std::mem::take(&mut state.dirty);
        let group = |start| state.groups.get(state.index_at(start)?);
        let changed = dirty.into_iter().filter_map(group);
        changed
            .map(|group| GroupChange {
                start: Logical(group.start),
                bytes: group.bytes,
                flags: group.flags,
                used: group.used,
            })
            .collect()
    }

    pub fn totals(&self, class: Class) -> Totals {
        let state = self.lock();
        let (pool, class) = (state.pool_ref(class), state.pool_class(class));
        let is_read_only = |group: &&BlockGroup| group.class == class && group.is_read_only;
        let read_only = state.groups.iter().filter(is_read_only);
        Totals {
            bytes: pool.bytes,
            used: pool.used,
            pinned: pool.pinned,
            reserved: pool.reserved,
            free: pool.free,
            free_read_only: read_only.map(BlockGroup::free_bytes).sum(),
        }
    }

    /// Bytes that the extent items of all groups name: `bytes_used` of the superblock.
    pub fn bytes_used(&self) -> u64 {
        let state = self.lock();
        // Of a mixed volume the pool of metadata is empty: its class is data.
        let classes = Class::ALL.iter().filter(|class| state.pool_class(**class) == **class);
        classes.map(|class| state.pool_ref(*class).used).sum()
    }
}
