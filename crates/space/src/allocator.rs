//! The allocator: chooses a range from the cluster's window, or from a free run that becomes the
//! window.
//!
//! It tries, in this order:
//!
//! 1. the recycled run that the cluster released last, if it has exactly the requested length;
//! 2. the cluster's window, extended into the free sectors behind it, so that a writer goes on
//!    where it stopped;
//! 3. the shortest free run that is long enough for a whole window;
//! 4. the shortest free run that is long enough for the request;
//! 5. the longest free run;
//! 6. the windows and recycled runs of all clusters, returned to their groups first.
//!
//! Steps 3 and 4 search the groups one after the other, from the one of the last window on, and use
//! the first group that has such a run. Step 5 compares the groups.

use crate::class::{AllocationRequest, Class};
use crate::error::{NoSpace, SpaceError};
use crate::free::Run;
use crate::group::{BlockGroup, bytes_of, sectors_of};
use crate::state::{Pool, Space, State};
use crate::window::{return_run, window_sectors};
use butternut_format::units::SECTOR_BYTES;
use std::ops::Range;

/// A request in sectors.
#[derive(Clone, Copy, Debug)]
struct SectorRequest {
    class: Class,
    sectors_min: u32,
    sectors_max: u32,
    original: AllocationRequest,
}

impl Space {
    /// Allocates one range of `bytes_min` to `bytes_max` bytes, as long as possible; `None` if no
    /// run is long enough. The range stays allocated until [`Space::release`] or [`Space::pin`].
    pub fn allocate(&self, class: Class, request: AllocationRequest) -> Option<Range<u64>> {
        self.lock().allocate_any(class, request)
    }

    /// Allocates like [`Space::allocate`], for a caller without a reservation: leaves reserved
    /// bytes, the global reserve and the commit reserve alone. In mixed groups data would take them
    /// from the trees otherwise.
    pub fn try_allocate_unreserved(
        &self,
        class: Class,
        request: AllocationRequest,
    ) -> Option<Range<u64>> {
        self.lock().allocate_unreserved(class, request)
    }

    /// Allocates like [`Space::try_allocate_unreserved`].
    ///
    /// # Errors
    /// Too few bytes are free, or not in one run; the error says what could free more.
    pub fn allocate_unreserved(
        &self,
        class: Class,
        request: AllocationRequest,
    ) -> Result<Range<u64>, NoSpace> {
        let mut state = self.lock();
        if let Some(range) = state.allocate_unreserved(class, request) {
            return Ok(range);
        }
        // Pinned bytes of another class may make one of its groups empty.
        let (pinned_bytes, own_pinned_bytes) = (state.pinned_bytes(), state.pool_ref(class).pinned);
        let (bytes, can_add_chunk) = (request.bytes_min, state.can_add_chunk(class));
        let returns = state.returns;
        Err(NoSpace { class, bytes, pinned_bytes, own_pinned_bytes, can_add_chunk, returns })
    }

    /// Allocates exactly this range, as a log replay must. `false` if a part of it is not free, or
    /// it is in a group of another class.
    ///
    /// # Errors
    /// The range is not whole sectors of one block group.
    pub fn allocate_exact(&self, class: Class, range: &Range<u64>) -> Result<bool, SpaceError> {
        let mut state = self.lock();
        let (index, run) = state.run_of(range)?;
        let class = state.pool_class(class);
        let Some(group) = state.groups.get(index).filter(|group| group.class == class) else {
            return Ok(false);
        };
        let (start, is_read_only) = (group.start, group.is_read_only);
        state.return_windows_of(class, start);
        let is_allocated = state.groups.get_mut(index).is_some_and(|group| group.free.take(run));
        if is_allocated && !is_read_only {
            let pool = state.pool_mut(class);
            let bytes = bytes_of(u64::from(run.sectors));
            debug_assert!(pool.free >= bytes, "law 3 of the crate: free bytes are counted");
            pool.free = pool.free.saturating_sub(bytes);
        }
        Ok(is_allocated)
    }

    /// Frees an allocated range, or a part of one, that no committed state refers to.
    ///
    /// # Errors
    /// A part of the range is not allocated.
    pub fn release(&self, range: Range<u64>) -> Result<(), SpaceError> {
        self.lock().free(&range)
    }
}

impl SectorRequest {
    /// Converts a request to whole units of its alignment; `None` for an impossible request.
    fn of(class: Class, request: AllocationRequest) -> Option<Self> {
        let is_good = request.align.is_power_of_two() && request.align >= SECTOR_BYTES;
        let bytes_min = request.bytes_min.max(1).checked_next_multiple_of(request.align)?;
        let bytes_max = request
            .bytes_max
            .checked_div(request.align)?
            .checked_mul(request.align)?
            .max(bytes_min);
        let sectors = |bytes: u64| u32::try_from(sectors_of(bytes)).ok();
        let sectors_max = sectors(bytes_max).unwrap_or(u32::MAX >> 1);
        Some(Self { class, sectors_min: sectors(bytes_min)?, sectors_max, original: request })
            .filter(|_| is_good)
    }
}

impl State {
    fn allocate_unreserved(
        &mut self,
        class: Class,
        request: AllocationRequest,
    ) -> Option<Range<u64>> {
        let pool = self.pool_ref(class);
        let bytes_max = request.bytes_max.min(pool.free.saturating_sub(pool.withheld()));
        let request = AllocationRequest { bytes_max, ..request };
        (bytes_max >= request.bytes_min).then(|| self.allocate_any(class, request)).flatten()
    }

    /// Allocates from free space, or else from the windows of other clusters.
    fn allocate_any(&mut self, class: Class, request: AllocationRequest) -> Option<Range<u64>> {
        let request = SectorRequest::of(class, request)?;
        let range = self.allocate(request).or_else(|| {
            let returned = self.return_windows(class);
            returned.then(|| self.allocate(request)).flatten()
        })?;
        // Whatever is written there would overwrite other data.
        assert!(self.allocated_run(&range).is_ok(), "laws 1, 2 and 5 of the crate: {range:?}");
        debug_assert!(range.start.is_multiple_of(request.original.align), "law 5 of the crate");
        Some(range)
    }

    fn allocate(&mut self, request: SectorRequest) -> Option<Range<u64>> {
        let request = SectorRequest { class: self.pool_class(request.class), ..request };
        let (pool, groups) = self.with_groups(request.class);
        if let Some(range) = take_recycled(pool, groups, request) {
            return Some(range);
        }
        let left = grow_window(pool, groups, request).unwrap_or(0);
        if left < request.sectors_max {
            move_window(pool, groups, request, left);
        }
        let range = take_from_window(pool, groups, request)?;
        pool.free = pool.free.saturating_sub(range.end.saturating_sub(range.start));
        Some(range)
    }
}

fn group_at(groups: &mut [BlockGroup], start: u64) -> Option<&mut BlockGroup> {
    let index = groups.binary_search_by_key(&start, |group| group.start).ok()?;
    groups.get_mut(index)
}

/// Allocates the run that the cluster released last, if it has exactly the requested length.
fn take_recycled(
    pool: &mut Pool,
    groups: &mut [BlockGroup],
    request: SectorRequest,
) -> Option<Range<u64>> {
    let (at, start, run) = pool.windows.recycled(request.original.cluster)?;
    let group = group_at(groups, start)?;
    let usable = group.alignment(request.original.align).inside(run);
    let fits = |part: &Run| {
        *part == run
            && request.sectors_min == request.sectors_max
            && part.sectors == request.sectors_max
    };
    usable.filter(fits)?;
    pool.windows.remove_recycled(at);
    group.in_windows = group.in_windows.saturating_sub(u64::from(run.sectors));
    pool.free = pool.free.saturating_sub(bytes_of(u64::from(run.sectors)));
    Some(group.range(run))
}

/// Extends a window that is too short into the free sectors behind it. Returns how many aligned
/// sectors the window holds now.
fn grow_window(pool: &mut Pool, groups: &mut [BlockGroup], request: SectorRequest) -> Option<u32> {
    let window = pool.windows.find(request.original.cluster)?;
    let group = group_at(groups, window.group)?;
    let alignment = group.alignment(request.original.align);
    let usable = |run: Run| alignment.inside(run).map_or(0, |part| part.sectors);
    let have = usable(window.run);
    if have >= request.sectors_max {
        return Some(have);
    }
    let Some(behind) = group.free.at(window.run.end()) else { return Some(have) };
    let missing = request.sectors_max.saturating_sub(have).saturating_add(alignment.unit);
    let more =
        behind.sectors.min(missing.max(window_sectors(group, request.class, window.last_growth)));
    let part = Run { start: behind.start, sectors: more };
    if !group.free.take(part) {
        return Some(have);
    }
    group.in_windows = group.in_windows.saturating_add(u64::from(more));
    let sectors = window.run.sectors.saturating_add(more);
    let run = Run { start: window.run.start, sectors };
    pool.windows.set(request.original.cluster, window.group, run, more);
    Some(usable(run))
}

/// Replaces the window of the cluster, if another run has more sectors than the `left` ones of the
/// window.
fn move_window(pool: &mut Pool, groups: &mut [BlockGroup], request: SectorRequest, left: u32) {
    let Some((index, run)) = find_run(pool, groups, request) else { return };
    if run.sectors < request.sectors_min || run.sectors.min(request.sectors_max) <= left {
        return;
    }
    let Some(group) = groups.get_mut(index) else { return };
    let last_growth =
        pool.windows.find(request.original.cluster).map_or(0, |window| window.last_growth);
    let sectors =
        run.sectors.min(window_sectors(group, request.class, last_growth).max(request.sectors_max));
    let run = Run { start: run.start, sectors };
    if !group.free.take(run) {
        return;
    }
    group.in_windows = group.in_windows.saturating_add(u64::from(run.sectors));
    let start = group.start;
    pool.hint = index;
    let replaced = pool.windows.remove(request.original.cluster).or_else(|| pool.windows.evict());
    if let Some(replaced) = replaced {
        return_run(groups, replaced.group, replaced.run);
    }
    pool.windows.set(request.original.cluster, start, run, run.sectors);
}

/// Finds a run for a new window: the index of its group, and the aligned part of the run.
fn find_run(pool: &Pool, groups: &[BlockGroup], request: SectorRequest) -> Option<(usize, Run)> {
    let last_growth =
        pool.windows.find(request.original.cluster).map_or(0, |window| window.last_growth);
    let usable = || {
        let after = groups.iter().enumerate().skip(pool.hint);
        let all = after.chain(groups.iter().enumerate().take(pool.hint));
        all.filter(|(_, group)| group.class == request.class && !group.is_read_only)
    };
    let fit = |group: &BlockGroup, sectors: u32| {
        let is_long = group.free.longest() >= sectors;
        is_long
            .then(|| group.free.best_fit(sectors, group.alignment(request.original.align)))
            .flatten()
    };
    let for_window = usable().find_map(|(index, group)| {
        let run =
            fit(group, request.sectors_max.max(window_sectors(group, request.class, last_growth)))?;
        Some((index, run))
    });
    for_window
        .or_else(|| {
            usable().find_map(|(index, group)| Some((index, fit(group, request.sectors_max)?)))
        })
        .or_else(|| longest(usable(), request))
}

fn longest<'g>(
    groups: impl Iterator<Item = (usize, &'g BlockGroup)>,
    request: SectorRequest,
) -> Option<(usize, Run)> {
    let mut best: Option<(usize, Run)> = None;
    for (index, group) in groups {
        let beats = best.map_or(request.sectors_min, |(_, run)| run.sectors.saturating_add(1));
        if group.free.longest() < beats {
            continue;
        }
        let part = group.free.longest_part(group.alignment(request.original.align));
        if let Some(run) = part.filter(|run| run.sectors >= beats) {
            best = Some((index, run));
        }
    }
    best
}

/// Allocates from the front of the cluster's window.
fn take_from_window(
    pool: &mut Pool,
    groups: &mut [BlockGroup],
    request: SectorRequest,
) -> Option<Range<u64>> {
    let window = pool.windows.find(request.original.cluster)?;
    let group = group_at(groups, window.group)?;
    let part = group.alignment(request.original.align).inside(window.run)?;
    if part.sectors < request.sectors_min {
        return None;
    }
    let allocated = Run { start: part.start, sectors: part.sectors.min(request.sectors_max) };
    // The sectors that the alignment skips are freed: this cluster may never request such a short
    // run.
    let skipped =
        Run { start: window.run.start, sectors: allocated.start.saturating_sub(window.run.start) };
    let is_free = group.free.insert(skipped);
    debug_assert!(is_free, "a window overlaps no free run");
    let rest =
        Run { start: allocated.end(), sectors: window.run.end().saturating_sub(allocated.end()) };
    let removed = u64::from(allocated.sectors).saturating_add(u64::from(skipped.sectors));
    group.in_windows = group.in_windows.saturating_sub(removed);
    pool.windows.set(request.original.cluster, window.group, rest, window.last_growth);
    debug_assert!(bytes_of(u64::from(allocated.sectors)) >= request.original.bytes_min);
    Some(group.range(allocated))
}
