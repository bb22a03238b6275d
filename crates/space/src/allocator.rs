//! Choosing a range: from the cluster's window, or from a run that becomes its window.
//!
//! What the cluster gave back first. Then the window, longer where the sectors behind it are free:
//! a writer goes on where it stopped. Then the shortest run that is long enough for a whole window,
//! then the shortest that is long enough for the request, then the longest there is; last, what
//! other clusters hold.

use crate::class::{Class, Want};
use crate::error::SpaceError;
use crate::free::Run;
use crate::group::{BlockGroup, bytes_of, sectors_of};
use crate::state::{Pool, Space, State};
use crate::window::{put_back, sectors_wanted};
use butternut_format::units::SECTOR_BYTES;
use std::ops::Range;

/// A request in sectors.
#[derive(Clone, Copy, Debug)]
struct Ask {
    class: Class,
    least: u32,
    most: u32,
    want: Want,
}

impl Space {
    /// The longest run that can be had, from `bytes_min` to `bytes_max`; `None` if there is none.
    /// It is the caller's until [`Space::release`] or [`Space::pin`].
    pub fn allocate(&self, class: Class, want: Want) -> Option<Range<u64>> {
        self.lock().allocate_any(class, want)
    }

    /// As [`Space::allocate`], without a promise: leaves alone what others were promised, and the
    /// reserve. In mixed groups data would take it from the trees otherwise.
    pub fn allocate_spare(&self, class: Class, want: Want) -> Option<Range<u64>> {
        let mut state = self.lock();
        let pool = state.pool_ref(class);
        let left = pool.free.saturating_sub(pool.reserved).saturating_sub(pool.kept);
        let bytes_max = want.bytes_max.min(left);
        if bytes_max < want.bytes_min {
            return None;
        }
        state.allocate_any(class, Want { bytes_max, ..want })
    }

    /// Takes exactly this range, as who replays a log must. `false` if it is not all free.
    pub fn claim(&self, range: &Range<u64>) -> Result<bool, SpaceError> {
        let mut state = self.lock();
        let (index, run) = state.run_of(range)?;
        let Some(group) = state.groups.get(index) else { return Ok(false) };
        let (class, start, is_read_only) = (group.class, group.start, group.is_read_only);
        state.return_windows_of(class, start);
        let is_taken = state.groups.get_mut(index).is_some_and(|group| group.free.take(run));
        if is_taken && !is_read_only {
            let pool = state.pool_mut(class);
            pool.free = pool.free.saturating_sub(bytes_of(u64::from(run.sectors)));
        }
        Ok(is_taken)
    }

    /// Gives back a range, or a part of one, that never came into a committed state.
    pub fn release(&self, range: Range<u64>) -> Result<(), SpaceError> {
        self.lock().free(&range)
    }
}

impl Ask {
    /// Lengths as multiples of the alignment; `None` for what cannot be asked for.
    fn of(class: Class, want: Want) -> Option<Self> {
        let is_good = want.align.is_power_of_two() && want.align >= SECTOR_BYTES;
        let least = want.bytes_min.max(1).checked_next_multiple_of(want.align)?;
        let most = want.bytes_max.checked_div(want.align)?.checked_mul(want.align)?.max(least);
        let sectors = |bytes: u64| u32::try_from(sectors_of(bytes)).ok();
        let most = sectors(most).unwrap_or(u32::MAX >> 1);
        Some(Self { class, least: sectors(least)?, most, want }).filter(|_| is_good)
    }
}

impl State {
    /// From free space, or else from what other clusters hold.
    fn allocate_any(&mut self, class: Class, want: Want) -> Option<Range<u64>> {
        let ask = Ask::of(class, want)?;
        self.allocate(ask).or_else(|| {
            let more = self.return_windows(class);
            more.then(|| self.allocate(ask)).flatten()
        })
    }

    fn allocate(&mut self, ask: Ask) -> Option<Range<u64>> {
        let ask = Ask { class: self.pool_class(ask.class), ..ask };
        let (pool, groups) = self.with_groups(ask.class);
        if let Some(range) = take_spare(pool, groups, ask) {
            return Some(range);
        }
        let left = grow_window(pool, groups, ask).unwrap_or(0);
        if left < ask.most {
            move_window(pool, groups, ask, left);
        }
        let range = take_from_window(pool, groups, ask)?;
        pool.free = pool.free.saturating_sub(range.end.saturating_sub(range.start));
        Some(range)
    }
}

fn group_at(groups: &mut [BlockGroup], start: u64) -> Option<&mut BlockGroup> {
    let index = groups.binary_search_by_key(&start, |group| group.start).ok()?;
    groups.get_mut(index)
}

/// What the cluster gave back last, if that is just what is asked for.
fn take_spare(pool: &mut Pool, groups: &mut [BlockGroup], ask: Ask) -> Option<Range<u64>> {
    let (at, start, run) = pool.windows.spare(ask.want.cluster)?;
    let group = group_at(groups, start)?;
    let usable = group.alignment(ask.want.align).inside(run);
    let fits = |part: &Run| *part == run && ask.least == ask.most && part.sectors == ask.most;
    usable.filter(fits)?;
    pool.windows.remove_spare(at);
    group.lent = group.lent.saturating_sub(u64::from(run.sectors));
    pool.free = pool.free.saturating_sub(bytes_of(u64::from(run.sectors)));
    Some(group.range(run))
}

/// Lengthens a window that is too short by what is free behind it; says what it could give now.
fn grow_window(pool: &mut Pool, groups: &mut [BlockGroup], ask: Ask) -> Option<u32> {
    let window = pool.windows.find(ask.want.cluster)?;
    let group = group_at(groups, window.group)?;
    let alignment = group.alignment(ask.want.align);
    let usable = |run: Run| alignment.inside(run).map_or(0, |part| part.sectors);
    let have = usable(window.run);
    if have >= ask.most {
        return Some(have);
    }
    let Some(behind) = group.free.at(window.run.end()) else { return Some(have) };
    let missing = ask.most.saturating_sub(have).saturating_add(alignment.unit);
    let more = behind.sectors.min(missing.max(sectors_wanted(group, ask.class, window.given)));
    let part = Run { start: behind.start, sectors: more };
    if !group.free.take(part) {
        return Some(have);
    }
    group.lent = group.lent.saturating_add(u64::from(more));
    let sectors = window.run.sectors.saturating_add(more);
    let run = Run { start: window.run.start, sectors };
    pool.windows.set(ask.want.cluster, window.group, run, more);
    Some(usable(run))
}

/// Gives the cluster another window, if that has more than the `left` of the one it has.
fn move_window(pool: &mut Pool, groups: &mut [BlockGroup], ask: Ask, left: u32) {
    let Some((index, run)) = find_run(pool, groups, ask) else { return };
    if run.sectors < ask.least || run.sectors.min(ask.most) <= left {
        return;
    }
    let Some(group) = groups.get_mut(index) else { return };
    let given = pool.windows.find(ask.want.cluster).map_or(0, |window| window.given);
    let sectors = run.sectors.min(sectors_wanted(group, ask.class, given).max(ask.most));
    let run = Run { start: run.start, sectors };
    if !group.free.take(run) {
        return;
    }
    group.lent = group.lent.saturating_add(u64::from(run.sectors));
    let start = group.start;
    pool.hint = index;
    let gone = pool.windows.remove(ask.want.cluster).or_else(|| pool.windows.evict());
    if let Some(gone) = gone {
        put_back(groups, gone.group, gone.run);
    }
    pool.windows.set(ask.want.cluster, start, run, run.sectors);
}

/// A run for a new window: its aligned part, and the index of its group.
fn find_run(pool: &Pool, groups: &[BlockGroup], ask: Ask) -> Option<(usize, Run)> {
    let given = pool.windows.find(ask.want.cluster).map_or(0, |window| window.given);
    let usable = || {
        let after = groups.iter().enumerate().skip(pool.hint);
        let all = after.chain(groups.iter().enumerate().take(pool.hint));
        all.filter(|(_, group)| group.class == ask.class && !group.is_read_only)
    };
    let fit = |group: &BlockGroup, sectors: u32| {
        let is_long = group.free.longest() >= sectors;
        is_long.then(|| group.free.best_fit(sectors, group.alignment(ask.want.align))).flatten()
    };
    let for_window = usable().find_map(|(index, group)| {
        let run = fit(group, ask.most.max(sectors_wanted(group, ask.class, given)))?;
        Some((index, run))
    });
    for_window
        .or_else(|| usable().find_map(|(index, group)| Some((index, fit(group, ask.most)?))))
        .or_else(|| longest(usable(), ask))
}

fn longest<'g>(
    groups: impl Iterator<Item = (usize, &'g BlockGroup)>,
    ask: Ask,
) -> Option<(usize, Run)> {
    let mut best: Option<(usize, Run)> = None;
    for (index, group) in groups {
        let beats = best.map_or(ask.least, |(_, run)| run.sectors.saturating_add(1));
        if group.free.longest() < beats {
            continue;
        }
        let part = group.free.longest_part(group.alignment(ask.want.align));
        if let Some(run) = part.filter(|run| run.sectors >= beats) {
            best = Some((index, run));
        }
    }
    best
}

/// Takes from the front of the cluster's window what the request can have.
fn take_from_window(pool: &mut Pool, groups: &mut [BlockGroup], ask: Ask) -> Option<Range<u64>> {
    let window = pool.windows.find(ask.want.cluster)?;
    let group = group_at(groups, window.group)?;
    let part = group.alignment(ask.want.align).inside(window.run)?;
    if part.sectors < ask.least {
        return None;
    }
    let taken = Run { start: part.start, sectors: part.sectors.min(ask.most) };
    // What the alignment skips goes back: no other request of this cluster may want it.
    let skipped =
        Run { start: window.run.start, sectors: taken.start.saturating_sub(window.run.start) };
    let is_back = group.free.insert(skipped);
    debug_assert!(is_back, "a window overlaps nothing free");
    let rest = Run { start: taken.end(), sectors: window.run.end().saturating_sub(taken.end()) };
    let gone = u64::from(taken.sectors).saturating_add(u64::from(skipped.sectors));
    group.lent = group.lent.saturating_sub(gone);
    pool.windows.set(ask.want.cluster, window.group, rest, window.given);
    debug_assert!(bytes_of(u64::from(taken.sectors)) >= ask.want.bytes_min);
    Some(group.range(taken))
}
