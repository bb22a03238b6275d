//! Free space that is being discarded.
//!
//! A trim allocates free ranges of a group, discards them and releases them, in batches: no writer
//! can allocate them during the discard, and at least half of the free space stays usable
//! meanwhile. It reserves holes between the device extents of a device in the same way: no chunk is
//! placed in them.
//!
//! Left to others: the discards (`tree`).

use crate::error::SpaceError;
use crate::free::Run;
use crate::group::{bytes_of, sectors_of};
use crate::state::Space;
use butternut_format::units::{DevId, Logical};
use std::ops::Range;

impl Space {
    /// Allocates free ranges of a group that are at least `bytes_min` long, from address `from` on,
    /// up to `batch_bytes` bytes in total. The caller discards each range and passes it to
    /// [`Space::release`]. The batch is empty if no such range is left, or if reservations and
    /// reserves need all free bytes of the class.
    pub fn allocate_for_trim(
        &self,
        group: Logical,
        from: u64,
        bytes_min: u64,
        batch_bytes: u64,
    ) -> Vec<Range<u64>> {
        let mut state = self.lock();
        let Some(index) = state.index_at(group.0) else { return Vec::new() };
        let class = state.groups.get(index).map(|group| group.class);
        let Some(class) = class else { return Vec::new() };
        state.return_windows_of(class, group.0);
        let pool = state.pool_ref(class);
        // Reservations stay covered, and a commit that runs meanwhile allocates without one: leave
        // both of them what they need, and at least half of the free space.
        let left = pool.withheld().max(pool.free / 2);
        let mut budget = batch_bytes.min(pool.free.saturating_sub(left));
        let Some(group) = state.groups.get_mut(index) else { return Vec::new() };
        if group.is_read_only {
            budget = batch_bytes;
        }
        let first = sectors_of(from.saturating_sub(group.start));
        let Ok(first) = u32::try_from(first) else { return Vec::new() };
        let long = group.free.from(first);
        let long = long.filter(|run| bytes_of(u64::from(run.sectors)) >= bytes_min);
        let mut runs = Vec::new();
        for run in long {
            let start = run.start.max(first);
            let most = u32::try_from(sectors_of(budget)).unwrap_or(u32::MAX);
            let sectors = run.end().saturating_sub(start).min(most);
            if sectors == 0 {
                break;
            }
            budget = budget.saturating_sub(bytes_of(u64::from(sectors)));
            runs.push(Run { start, sectors });
        }
        let mut ranges = Vec::with_capacity(runs.len());
        let mut allocated: u64 = 0;
        for run in runs {
            if group.free.take(run) {
                allocated = allocated.saturating_add(bytes_of(u64::from(run.sectors)));
                ranges.push(group.range(run));
            }
        }
        let is_read_only = group.is_read_only;
        if !is_read_only {
            let pool = state.pool_mut(class);
            pool.free = pool.free.saturating_sub(allocated);
        }
        ranges
    }

    /// Reserves a hole between the device extents of a device: the first one that begins at or
    /// behind `from` and has at least `bytes_min` bytes, and at most `bytes_max` bytes of it. No
    /// chunk is placed there until [`Space::release_hole`].
    ///
    /// # Errors
    /// There is no such device.
    pub fn reserve_hole(
        &self,
        devid: DevId,
        from: u64,
        bytes_min: u64,
        bytes_max: u64,
    ) -> Result<Option<Range<u64>>, SpaceError> {
        let mut state = self.lock();
        let map = state.devices.by_devid.get_mut(&devid);
        let map = map.ok_or(SpaceError::NoDevice { devid: devid.0 })?;
        let rest = map.holes().into_iter().map(|hole| hole.start.max(from)..hole.end);
        let is_long = |hole: &Range<u64>| {
            hole.end.checked_sub(hole.start).is_some_and(|bytes| bytes > 0 && bytes >= bytes_min)
        };
        let Some(hole) = rest.into_iter().find(is_long) else { return Ok(None) };
        let end = hole.end.min(hole.start.saturating_add(bytes_max));
        Ok(map.insert(&(hole.start..end), None).then_some(hole.start..end))
    }

    /// Ends the reservation of a hole.
    pub fn release_hole(&self, devid: DevId, hole: &Range<u64>) {
        let mut state = self.lock();
        if let Some(map) = state.devices.by_devid.get_mut(&devid) {
            map.remove(hole);
        }
        // A chunk can be placed there again.
        state.count_return();
    }
}
