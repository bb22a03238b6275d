//! [`Space`]: everything behind its one lock, and the coming and going of groups.

use crate::class::Class;
use crate::devices::Devices;
use crate::error::SpaceError;
use crate::free::Run;
use crate::group::{BlockGroup, Group, GroupStatus, sectors_of};
use crate::window::Windows;
use butternut_format::chunk::BlockGroupFlags;
use butternut_format::units::Logical;
use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

#[derive(Clone, Copy, Debug)]
pub struct SpaceOptions {
    pub node_bytes: u32,
    /// Data and metadata share their groups.
    pub is_mixed: bool,
}

/// Who may have which bytes of a volume.
#[derive(Debug)]
pub struct Space {
    pub(crate) shared: Arc<Mutex<State>>,
    options: SpaceOptions,
}

#[derive(Debug)]
pub(crate) struct State {
    pub(crate) options: SpaceOptions,
    /// In the order of their addresses.
    pub(crate) groups: Vec<BlockGroup>,
    data: Pool,
    metadata: Pool,
    system: Pool,
    pub(crate) devices: Devices,
    /// Starts of groups that hold pinned bytes.
    pub(crate) pinned_groups: BTreeSet<u64>,
    /// Starts of groups whose `used` changed since the ledger was taken.
    pub(crate) dirty: BTreeSet<u64>,
    /// No chunk was ever seen to end behind this.
    pub(crate) logical_end: u64,
}

/// All groups of one class, together.
#[derive(Debug, Default)]
pub(crate) struct Pool {
    /// Of all its groups, read-only or not.
    pub(crate) bytes: u64,
    pub(crate) used: u64,
    /// Of groups that may be written to.
    pub(crate) free: u64,
    pub(crate) pinned: u64,
    /// Promised to tickets.
    pub(crate) reserved: u64,
    /// Left alone by ordinary tickets.
    pub(crate) kept: u64,
    /// Left alone by all tickets: what the next commit needs.
    pub(crate) needed: u64,
    pub(crate) windows: Windows,
    /// Where the last window was found.
    pub(crate) hint: usize,
    /// The flags of the group that came last: what another would be.
    pub(crate) flags: Option<BlockGroupFlags>,
}

impl Space {
    pub fn new(options: SpaceOptions) -> Self {
        let state = State {
            options,
            groups: Vec::new(),
            data: Pool::default(),
            metadata: Pool::default(),
            system: Pool::default(),
            devices: Devices::default(),
            pinned_groups: BTreeSet::new(),
            dirty: BTreeSet::new(),
            logical_end: 0,
        };
        Self { shared: Arc::new(Mutex::new(state)), options }
    }

    pub fn options(&self) -> SpaceOptions {
        self.options
    }

    /// Adds a group: at mount, or after its chunk was allocated.
    pub fn add_group(&self, group: &Group) -> Result<(), SpaceError> {
        let mut state = self.lock();
        let class = state.pool_class(Class::of(group.flags));
        let group = BlockGroup::check(group, class)?;
        state.insert(group)
    }

    /// Takes a group out, if nothing of it is in use, pinned or promised. Its chunk's place on the
    /// devices is given back by [`Space::release_chunk`], when the commit is down.
    pub fn remove_group(&self, start: Logical) -> bool {
        let mut state = self.lock();
        let Some(index) = state.index_at(start.0) else { return false };
        let Some(group) = state.groups.get(index) else { return false };
        let (class, free, is_read_only) = (group.class, group.free_bytes(), group.is_read_only);
        let pool = state.pool_ref(class);
        let left = if is_read_only { pool.free } else { pool.free.saturating_sub(free) };
        let is_promised = left < pool.reserved;
        if !state.groups.get(index).is_some_and(BlockGroup::is_empty) || is_promised {
            return false;
        }
        state.return_windows_of(class, start.0);
        let removed = state.groups.remove(index);
        state.dirty.remove(&start.0);
        let pool = state.pool_mut(class);
        pool.bytes = pool.bytes.saturating_sub(removed.bytes);
        (pool.free, pool.hint) = (left, 0);
        true
    }

    /// From now on nothing is allocated from a group, or again it may be. Says whether it exists.
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
        true
    }

    pub fn group(&self, start: Logical) -> Option<GroupStatus> {
        let state = self.lock();
        let index = state.index_at(start.0)?;
        Some(state.groups.get(index)?.status())
    }

    /// All groups, in the order of their addresses.
    pub fn groups(&self) -> Vec<GroupStatus> {
        self.lock().groups.iter().map(BlockGroup::status).collect()
    }

    /// The free ranges of a group, what clusters hold included.
    pub fn free_ranges(&self, start: Logical) -> Vec<Range<u64>> {
        let mut state = self.lock();
        let Some(index) = state.index_at(start.0) else { return Vec::new() };
        let class = state.groups.get(index).map_or(Class::Data, |group| group.class);
        state.return_windows_of(class, start.0);
        let Some(group) = state.groups.get(index) else { return Vec::new() };
        group.free.iter().map(|run| group.range(run)).collect()
    }

    /// Groups that hold nothing and could go. The last of its kind stays, so that the profile of
    /// the next is known.
    pub fn empty_groups(&self) -> Vec<GroupStatus> {
        let state = self.lock();
        let is_candidate = |group: &&BlockGroup| group.is_empty() && !group.is_read_only;
        let mut empty = Vec::new();
        for group in state.groups.iter().filter(is_candidate) {
            let of_kind = state.groups.iter().filter(|other| other.flags == group.flags).count();
            let chosen = |status: &&GroupStatus| status.flags == group.flags;
            if empty.iter().filter(chosen).count().saturating_add(1) < of_kind {
                empty.push(group.status());
            }
        }
        empty
    }

    /// Empty groups of other classes than `needy`, which has no space: those whose pools keep what
    /// they have promised, and their reserves, without them.
    pub fn spare_groups(&self, needy: Class) -> Vec<GroupStatus> {
        let mut spare = self.empty_groups();
        let state = self.lock();
        let needy = state.pool_class(needy);
        for class in Class::ALL {
            let pool = state.pool_ref(class);
            let wanted = pool.reserved.saturating_add(pool.kept.max(pool.needed));
            let mut left = pool.free;
            spare.retain(|group| {
                if state.pool_class(Class::of(group.flags)) != class {
                    return true;
                }
                let without = left.saturating_sub(group.bytes);
                let goes = class != needy && without >= wanted;
                left = if goes { without } else { left };
                goes
            });
        }
        spare
    }

    /// Whether a thread panicked while it changed the state: it may be half a change.
    pub fn is_poisoned(&self) -> bool {
        self.shared.is_poisoned()
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, State> {
        self.shared.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// The class whose pool serves a class.
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

    /// A pool and all groups, at once.
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

    /// The group that holds all of a range, and which of its sectors they are.
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

    /// As [`Self::run_of`], where all of the range is in use.
    pub(crate) fn taken_run(&self, range: &Range<u64>) -> Result<(usize, Run), SpaceError> {
        let (index, run) = self.run_of(range)?;
        let group = self.groups.get(index);
        let is_taken = group.is_some_and(|group| {
            let is_lent = || self.pool_ref(group.class).windows.overlaps(group.start, run);
            let is_other = group.free.overlaps(run)
                || group.pinned.overlaps(run)
                || (group.lent > 0 && is_lent());
            !is_other && u64::from(run.sectors) <= sectors_of(group.taken_bytes())
        });
        if is_taken {
            return Ok((index, run));
        }
        let bytes = range.end.saturating_sub(range.start);
        Err(SpaceError::NotTaken { start: range.start, bytes })
    }

    /// Makes a range that is in use free.
    pub(crate) fn free(&mut self, range: &Range<u64>) -> Result<(), SpaceError> {
        let (index, run) = self.taken_run(range)?;
        self.free_taken(index, run);
        Ok(())
    }

    /// As [`Self::free`], of sectors that are known to be in use.
    pub(crate) fn free_taken(&mut self, index: usize, run: Run) {
        let Some(group) = self.groups.get_mut(index) else { return };
        let bytes = group.give_back(run);
        let (class, is_read_only) = (group.class, group.is_read_only);
        if !is_read_only {
            let pool = self.pool_mut(class);
            pool.free = pool.free.saturating_add(bytes);
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
        Ok(())
    }
}
