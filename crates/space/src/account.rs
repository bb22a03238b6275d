//! Block group accounting: the used bytes that block group items must hold at the next commit, and
//! totals of each class.

use crate::class::Class;
use crate::error::SpaceError;
use crate::group::BlockGroup;
use crate::state::Space;
use butternut_format::chunk::BlockGroupFlags;
use butternut_format::units::Logical;
use std::ops::Range;

/// A change of the extent tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExtentChange {
    /// An extent item was inserted: its bytes count as used.
    Inserted,
    /// An extent item was removed.
    Removed,
}

/// A block group whose item must be written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GroupChange {
    pub start: Logical,
    pub bytes: u64,
    pub flags: BlockGroupFlags,
    pub used: u64,
}

/// Sums over all groups of a class, in bytes. On a mixed volume, data and metadata are one class.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// The sizes of all groups.
    pub bytes: u64,
    /// The bytes of all extent items, as the block group items will hold them.
    pub used: u64,
    /// Freed in a transaction that is not committed yet.
    pub pinned: u64,
    /// Held by reservations.
    pub reserved: u64,
    /// Can be allocated now, reserved bytes included.
    pub free: u64,
    /// Free bytes of read-only groups, which cannot be allocated.
    pub free_read_only: u64,
}

impl Space {
    /// Counts the insertion or removal of an extent item for `range`.
    ///
    /// # Errors
    /// The range is not inside one group, or the count would leave the range from 0 to the size of
    /// the group.
    pub fn account(&self, range: &Range<u64>, change: ExtentChange) -> Result<(), SpaceError> {
        let mut state = self.lock();
        let (index, _) = state.run_of(range)?;
        let bytes = range.end.saturating_sub(range.start);
        let Some(group) = state.groups.get_mut(index) else { return Ok(()) };
        let (start, have) = (group.start, group.used);
        let (used, want) = match change {
            ExtentChange::Inserted => (have.checked_add(bytes), "at most the group's length"),
            ExtentChange::Removed => (have.checked_sub(bytes), "at least the bytes to free"),
        };
        let used = used.filter(|&used| used <= group.bytes);
        group.used = used.ok_or(SpaceError::Used { start, have, want })?;
        let class = group.class;
        state.changed_groups.insert(start);
        let pool = state.pool_mut(class);
        pool.used = match change {
            ExtentChange::Inserted => pool.used.saturating_add(bytes),
            ExtentChange::Removed => pool.used.saturating_sub(bytes),
        };
        Ok(())
    }

    /// Returns the groups whose used bytes changed since the last call.
    pub fn take_changed_groups(&self) -> Vec<GroupChange> {
        let mut state = self.lock();
        let changed = std::mem::take(&mut state.changed_groups);
        let group = |start| state.groups.get(state.index_at(start)?);
        let changed = changed.into_iter().filter_map(group);
        changed
            .map(|group| GroupChange {
                start: Logical(group.start),
                bytes: group.bytes,
                flags: group.flags,
                used: group.used,
            })
            .collect()
    }

    /// Returns the totals of a class.
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

    /// Returns the bytes of all extent items: `bytes_used` of the superblock.
    pub fn bytes_used(&self) -> u64 {
        let state = self.lock();
        // On a mixed volume the metadata pool is unused: its bytes are in the data pool.
        let classes = Class::ALL.iter().filter(|class| state.pool_class(**class) == **class);
        classes.map(|class| state.pool_ref(*class).used).sum()
    }
}
