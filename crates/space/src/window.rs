//! Windows: the free run that each cluster is writing into.
//!
//! A window is taken out of its group's free extents, so that no other cluster writes into the
//! middle of it; its bytes still count as free. When space runs out, or somebody wants to see all
//! free extents, windows are put back; their clusters find another.
//!
//! What a cluster took and gave back before anybody else saw it is its spare: the next of that
//! length goes there, so that what lies together stays without holes.
//!
//! Laws:
//! 1. A window is in one group, and overlaps neither free extents nor other windows nor spares.
//! 2. At most [`WINDOWS_MAX`] per pool: of more writers, the one that wrote longest ago loses its.
//! 3. At most [`SPARES_MAX`] per pool; what more is given back is free for everybody.

use crate::class::{Class, Cluster};
use crate::error::SpaceError;
use crate::free::Run;
use crate::group::{BlockGroup, bytes_of};
use crate::state::{Space, State};
use std::collections::HashMap;
use std::ops::Range;

/// Less than this part of its groups in use, a class is gathered in the first of them.
const SPARSE_SHARE: u64 = 4;

const WINDOWS_MAX: usize = 64;
const SPARES_MAX: usize = 256;

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
    spares: Vec<Spare>,
    clock: u64,
}

#[derive(Clone, Copy, Debug)]
struct Spare {
    cluster: Cluster,
    /// The start of the group.
    group: u64,
    run: Run,
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
        let windows = self.by_cluster.values().map(|window| (window.group, window.run));
        let spares = self.spares.iter().map(|spare| (spare.group, spare.run));
        windows.chain(spares).any(|(of, other)| {
            let is_beside = other.start >= run.end() || run.start >= other.end();
            of == group && other.sectors > 0 && !is_beside
        })
    }

    /// Law 3: says whether it was kept.
    pub(crate) fn keep_spare(&mut self, cluster: Cluster, group: u64, run: Run) -> bool {
        let has_room = self.spares.len() < SPARES_MAX;
        if has_room {
            self.spares.push(Spare { cluster, group, run });
        }
        has_room
    }

    /// Where a cluster's last spare is.
    pub(crate) fn spare(&self, cluster: Cluster) -> Option<(usize, u64, Run)> {
        let at = self.spares.iter().rposition(|spare| spare.cluster == cluster)?;
        self.spares.get(at).map(|spare| (at, spare.group, spare.run))
    }

    pub(crate) fn remove_spare(&mut self, at: usize) {
        self.spares.remove(at);
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

    /// Takes out those of one group, or all, with the spares.
    fn drain(&mut self, group: Option<u64>) -> Vec<(u64, Run)> {
        let goes = |_: &Cluster, window: &mut Window| group.is_none_or(|at| at == window.group);
        let windows = self.by_cluster.extract_if(goes).map(|(_, window)| window);
        let mut gone: Vec<_> = windows.map(|window| (window.group, window.run)).collect();
        gone.extend(self.drain_spares(group));
        gone
    }

    fn drain_spares(&mut self, group: Option<u64>) -> impl Iterator<Item = (u64, Run)> + '_ {
        let spares =
            self.spares.extract_if(.., move |spare| group.is_none_or(|at| at == spare.group));
        spares.map(|spare| (spare.group, spare.run))
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

/// Puts a window or spare back into its group's free extents.
pub(crate) fn put_back(groups: &mut [BlockGroup], start: u64, run: Run) {
    let index = groups.binary_search_by_key(&start, |group| group.start);
    let Some(group) = index.ok().and_then(|index| groups.get_mut(index)) else { return };
    group.lent = group.lent.saturating_sub(u64::from(run.sectors));
    let is_back = group.free.insert(run);
    debug_assert!(is_back, "law 1");
}

impl Space {
    /// As [`Space::release`], of what a cluster was handed out and nobody knows of: it gets that
    /// first when it asks for as much again.
    pub fn release_near(&self, range: &Range<u64>, cluster: Cluster) -> Result<(), SpaceError> {
        let mut state = self.lock();
        let (index, run) = state.taken_run(range)?;
        let Some(group) = state.groups.get(index) else { return Ok(()) };
        let (class, start, is_read_only) = (group.class, group.start, group.is_read_only);
        let pool = state.pool_mut(class);
        if is_read_only || !pool.windows.keep_spare(cluster, start, run) {
            state.free_taken(index, run);
            return Ok(());
        }
        pool.free = pool.free.saturating_add(bytes_of(u64::from(run.sectors)));
        if let Some(group) = state.groups.get_mut(index) {
            group.lent = group.lent.saturating_add(u64::from(run.sectors));
        }
        Ok(())
    }

    /// What was given back near is anybody's: what comes now lies elsewhere, in one piece.
    pub fn forget_spares(&self, class: Class) {
        let mut state = self.lock();
        let (pool, groups) = state.with_groups(class);
        for (start, run) in pool.windows.drain_spares(None) {
            put_back(groups, start, run);
        }
    }

    /// Where a class uses less than a quarter of several groups, its clusters begin anew in the
    /// first of them: what is written again moves there, so that the others run empty and can go.
    pub fn gather(&self, class: Class) {
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
            put_back(groups, start, run);
        }
    }

    /// Says whether there were any.
    pub(crate) fn return_windows(&mut self, class: Class) -> bool {
        let (pool, groups) = self.with_groups(class);
        let windows = pool.windows.drain(None);
        for (start, run) in &windows {
            put_back(groups, *start, *run);
        }
        !windows.is_empty()
    }
}
