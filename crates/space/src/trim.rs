//! Free space on its way through a discard.
//!
//! What is to be discarded is taken first and released afterwards, in batches, so that nobody
//! writes to it in between and most of the free space stays usable meanwhile.

use crate::error::SpaceError;
use crate::free::Run;
use crate::group::{bytes_of, sectors_of};
use crate::state::Space;
use butternut_format::units::{DevId, Logical};
use std::ops::Range;

impl Space {
    /// Takes free ranges of a group that are `bytes_min` or longer, from address `from` on, up to
    /// `batch_bytes` of them. The caller discards them and calls [`Space::release`] with each; an
    /// empty batch is the end of the group.
    pub fn take_free(
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
        let spare = state.pool_ref(class);
        // A commit beside this allocates without a ticket: the reserve stays, and half in any case.
        let left = spare.kept.max(spare.free / 2).saturating_add(spare.reserved);
        let mut room = batch_bytes.min(spare.free.saturating_sub(left));
        let Some(group) = state.groups.get_mut(index) else { return Vec::new() };
        if group.is_read_only {
            room = batch_bytes;
        }
        let first = sectors_of(from.saturating_sub(group.start));
        let Ok(first) = u32::try_from(first) else { return Vec::new() };
        let long = group.free.from(first);
        let long = long.filter(|run| bytes_of(u64::from(run.sectors)) >= bytes_min);
        let mut runs = Vec::new();
        for run in long {
            let start = run.start.max(first);
            let most = u32::try_from(sectors_of(room)).unwrap_or(u32::MAX);
            let sectors = run.end().saturating_sub(start).min(most);
            if sectors == 0 {
                break;
            }
            room = room.saturating_sub(bytes_of(u64::from(sectors)));
            runs.push(Run { start, sectors });
        }
        let mut ranges = Vec::with_capacity(runs.len());
        let mut taken: u64 = 0;
        for run in runs {
            if group.free.take(run) {
                taken = taken.saturating_add(bytes_of(u64::from(run.sectors)));
                ranges.push(group.range(run));
            }
        }
        let is_read_only = group.is_read_only;
        if !is_read_only {
            let pool = state.pool_mut(class);
            pool.free = pool.free.saturating_sub(taken);
        }
        ranges
    }

    /// Takes a hole of a device that no chunk lies on, the first of `bytes_min` or more that
    /// begins at `from` or behind it, `bytes_max` of it at most. No chunk is placed there until
    /// [`Space::release_hole`].
    pub fn take_hole(
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

    pub fn release_hole(&self, devid: DevId, hole: &Range<u64>) {
        if let Some(map) = self.lock().devices.by_devid.get_mut(&devid) {
            map.remove(hole);
        }
    }
}
