//! Windows: the free run that each cluster is writing into.
//!
//! A window is taken out of its group's free extents, so that no other cluster writes into the
//! middle of it; its bytes still count as free. When space runs out, or somebody wants to see all
//! free extents, windows are put back; their clusters find another.
//!
//! Laws:
//! 1. A window is in one group, and overlaps neither free extents nor other windows.
//! 2. At most [`WINDOWS_MAX`] per pool: of more writers, the one that wrote longest ago loses its.

use crate::class::{Class, Cluster};
use crate::free::Run;
use crate::group::BlockGroup;
use crate::state::State;
use std::collections::HashMap;

const WINDOWS_MAX: usize = 64;

/// A cluster's first window is the shortest, each further one so many times longer: who writes
/// little does not keep others off.
const GROWTH: u32 = 4;

/// The longest window, in sectors: data 32 MiB, tree blocks 4 MiB.
const DATA_SECTORS_MAX: u32 = 8192;
const NODE_SECTORS_MAX: u32 = 1024;

/// The shortest that is looked for before anything at all is taken: 1 MiB and 256 KiB.
const DATA_SECTORS_MIN: u32 = 256;
const NODE_SECTORS_MIN: u32 = 64;

#[derive(Debug, Default)]
pub(crate) struct Windows {
    by_cluster: HashMap<Cluster, Window>,
    clock: u64,
}

/// What is left of the run that a cluster writes into; maybe nothing but its place.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Window {
    /// The start of the group.
    pub(crate) group: u64,
    pub(crate) run: Run,
    /// The sectors it was given last.
    pub(crate) given: u32,
    used_at: u64,
}

impl Windows {
    pub(crate) fn find(&self, cluster: Cluster) -> Option<Window> {
        self.by_cluster.get(&cluster).copied()
    }

    /// Sets what a cluster has.
    pub(crate) fn set(&mut self, cluster: Cluster, group: u64, run: Run, given: u32) {
        self.clock = self.clock.saturating_add(1);
        let used_at = self.clock;
        self.by_cluster.insert(cluster, Window { group, run, given, used_at });
    }

    pub(crate) fn remove(&mut self, cluster: Cluster) -> Option<Window> {
        self.by_cluster.remove(&cluster)
    }

    pub(crate) fn overlaps(&self, group: u64, run: Run) -> bool {
        self.by_cluster.values().any(|window| {
            let is_beside = window.run.start >= run.end() || run.start >= window.run.end();
            window.group == group && window.run.sectors > 0 && !is_beside
        })
    }

    /// Law 2: takes out the one that has to go before another comes.
    pub(crate) fn evict(&mut self) -> Option<Window> {
        if self.by_cluster.len() < WINDOWS_MAX {
            return None;
        }
        let oldest = self.by_cluster.iter().min_by_key(|(_, window)| window.used_at);
        let cluster = oldest.map(|(cluster, _)| *cluster)?;
        self.remove(cluster)
    }

    /// Takes out those of one group, or all.
    fn drain(&mut self, group: Option<u64>) -> Vec<Window> {
        let goes = |_: &Cluster, window: &mut Window| group.is_none_or(|at| at == window.group);
        self.by_cluster.extract_if(goes).map(|(_, window)| window).collect()
    }
}

/// How long a cluster's next window should be: longer than the one it was given last, shorter
/// where little is left, so that there is something for everybody.
pub(crate) fn sectors_wanted(group: &BlockGroup, class: Class, given: u32) -> u32 {
    let (most, least) = match class {
        Class::Data => (DATA_SECTORS_MAX, DATA_SECTORS_MIN),
        Class::Metadata | Class::System => (NODE_SECTORS_MAX, NODE_SECTORS_MIN),
    };
    let share = u32::try_from(group.free.sectors().div_euclid(16)).unwrap_or(u32::MAX);
    share.min(given.saturating_mul(GROWTH)).clamp(least, most)
}

/// Puts a window back into its group's free extents.
pub(crate) fn put_back(groups: &mut [BlockGroup], window: Window) {
    let index = groups.binary_search_by_key(&window.group, |group| group.start);
    let Some(group) = index.ok().and_then(|index| groups.get_mut(index)) else { return };
    group.lent = group.lent.saturating_sub(u64::from(window.run.sectors));
    let is_back = group.free.insert(window.run);
    debug_assert!(is_back, "law 1");
}

impl State {
    pub(crate) fn return_windows_of(&mut self, class: Class, start: u64) {
        let (pool, groups) = self.with_groups(class);
        for window in pool.windows.drain(Some(start)) {
            put_back(groups, window);
        }
    }

    /// Says whether there were any.
    pub(crate) fn return_windows(&mut self, class: Class) -> bool {
        let (pool, groups) = self.with_groups(class);
        let windows = pool.windows.drain(None);
        for window in &windows {
            put_back(groups, *window);
        }
        !windows.is_empty()
    }
}
