//! Windows: the free run that each cluster allocates from.
//!
//! A window is removed from the free runs of its group, so that no other cluster allocates from the
//! middle of it. Its bytes still count as free. When space runs out, or a caller needs all free
//! runs of a group, windows are returned to their groups, and their clusters find others.
//!
//! A run that a cluster allocated and released in the same transaction is recycled: the next
//! request of that cluster for the same length gets it, so that the blocks of one commit lie
//! together without holes.
//!
//! Laws:
//! 1. A window is in one group, and overlaps neither free runs nor other windows nor recycled runs.
//! 2. A pool has at most [`WINDOWS_MAX`] windows. With more clusters, the one that allocated
//!    longest ago loses its window.
//! 3. A pool has at most [`RECYCLED_MAX`] recycled runs. Further runs become free for all clusters.

use crate::class::{Class, Cluster};
use crate::error::SpaceError;
use crate::free::Run;
use crate::group::{BlockGroup, bytes_of};
use crate::state::{Space, State};
use std::collections::HashMap;
use std::ops::Range;

/// A class that uses less than this fraction of its groups (1/4) is consolidated in the first one.
const SPARSE_SHARE: u64 = 4;

const WINDOWS_MAX: usize = 64;
const RECYCLED_MAX: usize = 256;

/// The first window of a cluster is the shortest, and each further one is this many times longer,
/// so that a cluster that writes little does not hold back much space.
const GROWTH: u32 = 4;

/// The longest window in sectors: 32 MiB for data, 4 MiB for tree blocks.
const DATA_SECTORS_MAX: u32 = 8192;
const NODE_SECTORS_MAX: u32 = 1024;

/// The shortest window in sectors, if such a run is free: 1 MiB for data, 256 KiB for tree blocks.
const DATA_SECTORS_MIN: u32 = 256;
const NODE_SECTORS_MIN: u32 = 64;

#[derive(Debug, Default)]
pub(crate) struct Windows {
    by_cluster: HashMap<Cluster, Window>,
    recycled: Vec<RecycledRun>,
    clock: u64,
}

#[derive(Clone, Copy, Debug)]
struct RecycledRun {
    cluster: Cluster,
    /// The start address of the group.
    group: u64,
    run: Run,
}

/// The rest of the run that a cluster allocates from. An empty one still marks the place.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Window {
    /// The start address of the group.
    pub(crate) group: u64,
    pub(crate) run: Run,
    /// The number of sectors that the window last grew by.
    pub(crate) last_growth: u32,
    used_at: u64,
}

impl Windows {
    pub(crate) fn find(&self, cluster: Cluster) -> Option<Window> {
        self.by_cluster.get(&cluster).copied()
    }

    /// Sets the window of a cluster.
    pub(crate) fn set(&mut self, cluster: Cluster, group: u64, run: Run, last_growth: u32) {
        self.clock = self.clock.saturating_add(1);
        let used_at = self.clock;
        self.by_cluster.insert(cluster, Window { group, run, last_growth, used_at });
    }

    pub(crate) fn remove(&mut self, cluster: Cluster) -> Option<Window> {
        self.by_cluster.remove(&cluster)
    }

    pub(crate) fn overlaps(&self, group: u64, run: Run) -> bool {
        let windows = self.by_cluster.values().map(|window| (window.group, window.run));
        let recycled = self.recycled.iter().map(|recycled| (recycled.group, recycled.run));
        windows.chain(recycled).any(|(of, other)| {
            let is_beside = other.start >= run.end() || run.start >= other.end();
            of == group && other.sectors > 0 && !is_beside
        })
    }

    /// Keeps a run for its cluster. Returns `false` at the limit of law 3.
    pub(crate) fn recycle(&mut self, cluster: Cluster, group: u64, run: Run) -> bool {
        let has_slot = self.recycled.len() < RECYCLED_MAX;
        if has_slot {
            self.recycled.push(RecycledRun { cluster, group, run });
        }
        has_slot
    }

    /// Returns the run that the cluster released last: its index, the start of its group, the run.
    pub(crate) fn recycled(&self, cluster: Cluster) -> Option<(usize, u64, Run)> {
        let at = self.recycled.iter().rposition(|recycled| recycled.cluster == cluster)?;
        self.recycled.get(at).map(|recycled| (at, recycled.group, recycled.run))
    }

    pub(crate) fn remove_recycled(&mut self, at: usize) {
        self.recycled.remove(at);
    }

    /// Removes the least recently used window, if the pool has as many as law 2 allows.
    pub(crate) fn evict(&mut self) -> Option<Window> {
        if self.by_cluster.len() < WINDOWS_MAX {
            return None;
        }
        let oldest = self.by_cluster.iter().min_by_key(|(_, window)| window.used_at);
        let cluster = oldest.map(|(cluster, _)| *cluster)?;
        self.remove(cluster)
    }

    /// Removes the windows and recycled runs of one group, or of all groups.
    fn drain(&mut self, group: Option<u64>) -> Vec<(u64, Run)> {
        let is_chosen =
            |_: &Cluster, window: &mut Window| group.is_none_or(|at| at == window.group);
        let windows = self.by_cluster.extract_if(is_chosen).map(|(_, window)| window);
        let mut runs: Vec<_> = windows.map(|window| (window.group, window.run)).collect();
        runs.extend(self.drain_recycled(group));
        runs
    }

    fn drain_recycled(&mut self, group: Option<u64>) -> impl Iterator<Item = (u64, Run)> + '_ {
        let recycled = self
            .recycled
            .extract_if(.., move |recycled| group.is_none_or(|at| at == recycled.group));
        recycled.map(|recycled| (recycled.group, recycled.run))
    }
}

/// Returns the length of a cluster's next window: longer than its last one, but at most a sixteenth
/// of the free sectors of the group, so that other clusters find space too.
pub(crate) fn window_sectors(group: &BlockGroup, class: Class, last_growth: u32) -> u32 {
    let (sectors_max, sectors_min) = match class {
        Class::Data => (DATA_SECTORS_MAX, DATA_SECTORS_MIN),
        Class::Metadata | Class::System => (NODE_SECTORS_MAX, NODE_SECTORS_MIN),
    };
    let share = u32::try_from(group.free.sectors().div_euclid(16)).unwrap_or(u32::MAX);
    share.min(last_growth.saturating_mul(GROWTH)).clamp(sectors_min, sectors_max)
}

/// Returns a window or a recycled run to the free runs of its group.
pub(crate) fn return_run(groups: &mut [BlockGroup], start: u64, run: Run) {
    let index = groups.binary_search_by_key(&start, |group| group.start);
    let Some(group) = index.ok().and_then(|index| groups.get_mut(index)) else { return };
    group.in_windows = group.in_windows.saturating_sub(u64::from(run.sectors));
    let is_free = group.free.insert(run);
    debug_assert!(is_free, "law 1");
}

impl Space {
    /// Releases a range like [`Space::release`], for a cluster that allocated it in the running
    /// transaction: the next request of that cluster for the same length gets it.
    ///
    /// # Errors
    /// A part of the range is not allocated.
    pub fn release_to_cluster(
        &self,
        range: &Range<u64>,
        cluster: Cluster,
    ) -> Result<(), SpaceError> {
        let mut state = self.lock();
        let (index, run) = state.allocated_run(range)?;
        let Some(group) = state.groups.get(index) else { return Ok(()) };
        let (class, start, is_read_only) = (group.class, group.start, group.is_read_only);
        let pool = state.pool_mut(class);
        if is_read_only || !pool.windows.recycle(cluster, start, run) {
            state.free_allocated(index, run);
            return Ok(());
        }
        pool.free = pool.free.saturating_add(bytes_of(u64::from(run.sectors)));
        state.count_return();
        if let Some(group) = state.groups.get_mut(index) {
            group.in_windows = group.in_windows.saturating_add(u64::from(run.sectors));
        }
        Ok(())
    }

    /// Makes all recycled runs of a class free for all clusters. A commit calls this, so that the
    /// next transaction allocates contiguous runs instead of the holes of the last one.
    pub fn release_recycled(&self, class: Class) {
        let mut state = self.lock();
        let (pool, groups) = state.with_groups(class);
        for (start, run) in pool.windows.drain_recycled(None) {
            return_run(groups, start, run);
        }
    }

    /// Moves the clusters of a class to the first of its groups, if the class uses less than a
    /// quarter of several groups. Blocks that are rewritten move there, so that the other groups
    /// become empty and can be removed.
    pub fn consolidate(&self, class: Class) {
        let mut state = self.lock();
        let class = state.pool_class(class);
        let groups = state.groups.iter().filter(|group| group.class == class).count();
        let pool = state.pool_mut(class);
        if groups > 1 && pool.used < pool.bytes / SPARSE_SHARE {
            pool.hint = 0;
            state.return_windows(class);
        }
    }
}

impl State {
    pub(crate) fn return_windows_of(&mut self, class: Class, start: u64) {
        let (pool, groups) = self.with_groups(class);
        for (start, run) in pool.windows.drain(Some(start)) {
            return_run(groups, start, run);
        }
    }

    /// Returns all windows of a class to their groups. Returns whether there were any.
    pub(crate) fn return_windows(&mut self, class: Class) -> bool {
        let (pool, groups) = self.with_groups(class);
        let windows = pool.windows.drain(None);
        for (start, run) in &windows {
            return_run(groups, *start, *run);
        }
        !windows.is_empty()
    }
}
