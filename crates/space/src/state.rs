//! [`Space`]: the state behind its one lock, and adding and removing block groups.

use crate::class::Class;
use crate::devices::Devices;
use crate::error::SpaceError;
use crate::free::Run;
use crate::group::{BlockGroup, Group, GroupStatus, sectors_of};
use crate::window::Windows;
use butternut_format::chunk::BlockGroupFlags;
use butternut_format::units::Logical;
use butternut_sys::lock::{Mutex, MutexGuard, rank};
use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::Arc;

/// Properties of the volume that decide how space is allocated.
#[derive(Clone, Copy, Debug)]
pub struct SpaceOptions {
    /// The size of a tree block, in bytes.
    pub node_bytes: u32,
    /// Whether data and metadata share block groups (`MIXED_GROUPS`).
    pub is_mixed: bool,
}

/// The space of a volume: block groups, device extents and reservations.
#[derive(Debug)]
pub struct Space {
    pub(crate) shared: Arc<Mutex<State, rank::Space>>,
    options: SpaceOptions,
}

#[derive(Debug)]
pub(crate) struct State {
    pub(crate) options: SpaceOptions,
    /// Sorted by address.
    pub(crate) groups: Vec<BlockGroup>,
    data: Pool,
    metadata: Pool,
    system: Pool,
    pub(crate) devices: Devices,
    /// Starts of groups that hold pinned bytes.
    pub(crate) pinned_groups: BTreeSet<u64>,
    /// Starts of groups whose `used` changed since the last commit read them.
    pub(crate) changed_groups: BTreeSet<u64>,
    /// The highest end address of all chunks so far.
    pub(crate) logical_end: u64,
    /// How often bytes became available: freed, or no longer reserved.
    pub(crate) returns: u64,
}

/// Sums over all groups of one class, in bytes, and their windows.
#[derive(Debug, Default)]
pub(crate) struct Pool {
    /// The sizes of all groups, read-only ones included.
    pub(crate) bytes: u64,
    pub(crate) used: u64,
    /// Free bytes of groups that are not read-only.
    pub(crate) free: u64,
    pub(crate) pinned: u64,
    /// Held by reservations.
    pub(crate) reserved: u64,
    /// The global reserve: ordinary reservations leave it alone.
    pub(crate) global_reserve: u64,
    /// The bytes that the next commit needs: every reservation leaves them alone.
    pub(crate) commit_reserve: u64,
    pub(crate) windows: Windows,
    /// The index of the group that the last window was found in.
    pub(crate) hint: usize,
    /// The flags of the group that was added last, which the next one gets too.
    pub(crate) flags: Option<BlockGroupFlags>,
}

impl Space {
    /// Creates a space without groups and devices.
    pub fn new(options: SpaceOptions) -> Self {
        let state = State {
            options,
            groups: Vec::new(),
            data: Pool::default(),
            metadata: Pool::default(),
            system: Pool::default(),
            devices: Devices::default(),
            pinned_groups: BTreeSet::new(),
            changed_groups: BTreeSet::new(),
            logical_end: 0,
            returns: 0,
        };
        Self { shared: Arc::new(Mutex::new(state)), options }
    }

    /// Returns the options that it was created with.
    pub fn options(&self) -> SpaceOptions {
        self.options
    }

    /// Adds a group, when the volume is opened or when its chunk has been allocated.
    ///
    /// # Errors
    /// The description of the group contradicts itself, or the group overlaps another one.
    pub fn add_group(&self, group: &Group) -> Result<(), SpaceError> {
        let mut state = self.lock();
        let class = state.pool_class(Class::of(group.flags));
        let group = BlockGroup::check(group, class)?;
        state.insert(group)
    }

    /// Removes a group, and returns whether it did: a group stays while bytes of it are used,
    /// pinned or allocated, or while reservations need its free bytes, with the reserve that is
    /// left alone by those that end them. The rest of the global reserve does not: it depends on
    /// the size of all groups. The device extents of its chunk stay allocated until
    /// [`Space::release_chunk`], which follows the commit.
    pub fn remove_group(&self, start: Logical) -> bool {
        let mut state = self.lock();
        let Some(index) = state.index_at(start.0) else { return false };
        let Some(group) = state.groups.get(index) else { return false };
        let (class, free, is_read_only) = (group.class, group.free_bytes(), group.is_read_only);
        let pool = state.pool_ref(class);
        let left = if is_read_only { pool.free } else { pool.free.saturating_sub(free) };
        let needed = pool.reserved.saturating_add(pool.left_to_prereserved());
        let is_needed = !is_read_only && left < needed;
        if !state.groups.get(index).is_some_and(BlockGroup::is_empty) || is_needed {
            return false;
        }
        state.return_windows_of(class, start.0);
        let removed = state.groups.remove(index);
        state.changed_groups.remove(&start.0);
        let pool = state.pool_mut(class);
        pool.bytes = pool.bytes.saturating_sub(removed.bytes);
        (pool.free, pool.hint) = (left, 0);
        true
    }

    /// Forbids or allows allocations from a group. Returns whether the group exists.
    pub fn set_read_only(&self, start: Logical, is_read_only: bool) -> bool {
        let mut state = self.lock();
        let Some(index) = state.index_at(start.0) else { return false };
        let Some(group) = state.groups.get(index) else { return false };
        let (class, was) = (group.class, group.is_read_only);
        state.return_windows_of(class, start.0);
        let Some(group) = state.groups.get_mut(index) else { return false };
        group.is_read_only = is_read_only;
        let free = group.free_bytes();
        let pool = state.pool_mut(class);
        match (was, is_read_only) {
            (false, true) => pool.free = pool.free.saturating_sub(free),
            (true, false) => pool.free = pool.free.saturating_add(free),
            (true, true) | (false, false) => {}
        }
        state.count_return();
        true
    }

    /// Returns the state of the group at an address.
    pub fn group(&self, start: Logical) -> Option<GroupStatus> {
        let state = self.lock();
        let index = state.index_at(start.0)?;
        Some(state.groups.get(index)?.status())
    }

    /// Returns the state of all groups, sorted by address.
    pub fn groups(&self) -> Vec<GroupStatus> {
        self.lock().groups.iter().map(BlockGroup::status).collect()
    }

    /// Returns the free ranges of a group, windows of clusters included.
    pub fn free_ranges(&self, start: Logical) -> Vec<Range<u64>> {
        let mut state = self.lock();
        let Some(index) = state.index_at(start.0) else { return Vec::new() };
        let class = state.groups.get(index).map_or(Class::Data, |group| group.class);
        state.return_windows_of(class, start.0);
        let Some(group) = state.groups.get(index) else { return Vec::new() };
        group.free.iter().map(|run| group.range(run)).collect()
    }

    /// Returns the empty groups that can be removed, all of them. One group of each kind is left
    /// out, and the last one that names the profile of the next chunk (law 2 of `next_profile`).
    pub fn empty_groups(&self) -> Vec<GroupStatus> {
        let state = self.lock();
        let is_candidate = |group: &&BlockGroup| group.is_empty() && !group.is_read_only;
        let mut empty: Vec<GroupStatus> = Vec::new();
        for group in state.groups.iter().filter(is_candidate) {
            let of_kind = state.groups.iter().filter(|other| other.flags == group.flags).count();
            let chosen = |status: &&GroupStatus| status.flags == group.flags;
            let is_removed = |start: Logical| {
                start.0 == group.start || empty.iter().any(|status| status.start == start)
            };
            if empty.iter().filter(chosen).count().saturating_add(1) < of_kind
                && state.last_of_profile(group.class, is_removed).is_none()
            {
                empty.push(group.status());
            }
        }
        empty
    }

    /// Returns empty groups of other classes than `needy`, which has no space. Without them, the
    /// pools of those classes still cover their reservations and reserves.
    pub fn reclaimable_groups(&self, needy: Class) -> Vec<GroupStatus> {
        let mut reclaimable = self.empty_groups();
        let state = self.lock();
        let needy = state.pool_class(needy);
        for class in Class::ALL {
            let pool = state.pool_ref(class);
            let needed = pool.withheld();
            let mut left = pool.free;
            reclaimable.retain(|group| {
                if state.pool_class(Class::of(group.flags)) != class {
                    return true;
                }
                let without = left.saturating_sub(group.bytes);
                let is_reclaimable = class != needy && without >= needed;
                left = if is_reclaimable { without } else { left };
                is_reclaimable
            });
        }
        reclaimable
    }

    /// Returns whether the pool of a group's class covers its reservations and reserves without the
    /// free bytes of the group.
    pub fn is_covered_without(&self, group: &GroupStatus) -> bool {
        let state = self.lock();
        let pool = state.pool_ref(Class::of(group.flags));
        pool.free.saturating_sub(group.bytes) >= pool.withheld()
    }

    /// Returns whether a thread panicked while it held the lock: the state may hold half a change.
    pub fn is_poisoned(&self) -> bool {
        self.shared.is_poisoned()
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, State> {
        self.shared.lock()
    }
}

impl Pool {
    /// Returns the bytes that reservations hold, or that ordinary reservations leave alone.
    pub(crate) fn withheld(&self) -> u64 {
        self.reserved.saturating_add(self.global_reserve.max(self.commit_reserve))
    }

    /// Returns the bytes that a reservation leaves alone whose changes other reservations cover.
    pub(crate) fn left_to_prereserved(&self) -> u64 {
        (self.global_reserve / 4).min(self.bytes / 16).max(self.commit_reserve)
    }
}

impl State {
    /// Counts bytes that became available.
    pub(crate) fn count_return(&mut self) {
        self.returns = self.returns.wrapping_add(1);
    }

    /// Returns the class whose pool serves a class.
    pub(crate) fn pool_class(&self, class: Class) -> Class {
        if self.options.is_mixed && class == Class::Metadata { Class::Data } else { class }
    }

    pub(crate) fn pool_ref(&self, class: Class) -> &Pool {
        match self.pool_class(class) {
            Class::Data => &self.data,
            Class::Metadata => &self.metadata,
            Class::System => &self.system,
        }
    }

    pub(crate) fn pool_mut(&mut self, class: Class) -> &mut Pool {
        self.with_groups(class).0
    }

    /// Borrows a pool and all groups at the same time.
    pub(crate) fn with_groups(&mut self, class: Class) -> (&mut Pool, &mut [BlockGroup]) {
        let pool = match self.pool_class(class) {
            Class::Data => &mut self.data,
            Class::Metadata => &mut self.metadata,
            Class::System => &mut self.system,
        };
        (pool, &mut self.groups)
    }

    pub(crate) fn index_at(&self, start: u64) -> Option<usize> {
        self.groups.binary_search_by_key(&start, |group| group.start).ok()
    }

    /// Finds the group that holds all of a range: its index, and the sectors of the range in it.
    pub(crate) fn run_of(&self, range: &Range<u64>) -> Result<(usize, Run), SpaceError> {
        let behind = self.groups.partition_point(|group| group.start <= range.start);
        let found = behind.checked_sub(1).and_then(|index| {
            let run = self.groups.get(index)?.run(range)?;
            Some((index, run))
        });
        found.ok_or(SpaceError::Outside {
            start: range.start,
            bytes: range.end.saturating_sub(range.start),
        })
    }

    /// Finds an allocated range like [`Self::run_of`]; fails where a part of it is not allocated.
    pub(crate) fn allocated_run(&self, range: &Range<u64>) -> Result<(usize, Run), SpaceError> {
        let (index, run) = self.run_of(range)?;
        let group = self.groups.get(index);
        let is_allocated = group.is_some_and(|group| {
            let is_in_window = || self.pool_ref(group.class).windows.overlaps(group.start, run);
            let is_other = group.free.overlaps(run)
                || group.pinned.overlaps(run)
                || (group.in_windows > 0 && is_in_window());
            !is_other && u64::from(run.sectors) <= sectors_of(group.allocated_bytes())
        });
        if is_allocated {
            return Ok((index, run));
        }
        let bytes = range.end.saturating_sub(range.start);
        Err(SpaceError::NotAllocated { start: range.start, bytes })
    }

    /// Frees an allocated range.
    pub(crate) fn free(&mut self, range: &Range<u64>) -> Result<(), SpaceError> {
        let (index, run) = self.allocated_run(range)?;
        self.free_allocated(index, run);
        Ok(())
    }

    /// Frees sectors that the caller knows to be allocated.
    pub(crate) fn free_allocated(&mut self, index: usize, run: Run) {
        let Some(group) = self.groups.get_mut(index) else { return };
        let bytes = group.release(run);
        let (class, is_read_only) = (group.class, group.is_read_only);
        if !is_read_only {
            let pool = self.pool_mut(class);
            pool.free = pool.free.saturating_add(bytes);
            self.count_return();
        }
    }

    fn insert(&mut self, group: BlockGroup) -> Result<(), SpaceError> {
        let at = self.groups.partition_point(|other| other.start < group.start);
        let before = at.checked_sub(1).and_then(|index| self.groups.get(index));
        let overlaps = before.is_some_and(|before| before.end() > group.start)
            || self.groups.get(at).is_some_and(|after| after.start < group.end());
        if overlaps {
            let refused = butternut_format::refused::Refused::new(
                "range",
                format_args!("{}..{}", group.start, group.end()),
                "no overlap with another group",
            );
            return Err(SpaceError::Group { start: group.start, refused });
        }
        self.logical_end = self.logical_end.max(group.end());
        let free = if group.is_read_only { 0 } else { group.free_bytes() };
        let (class, flags, bytes, used) = (group.class, group.flags, group.bytes, group.used);
        self.groups.insert(at, group);
        let pool = self.pool_mut(class);
        pool.bytes = pool.bytes.saturating_add(bytes);
        pool.used = pool.used.saturating_add(used);
        pool.free = pool.free.saturating_add(free);
        pool.flags = Some(flags);
        self.count_return();
        Ok(())
    }
}
