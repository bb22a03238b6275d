//! Growing and shrinking a device.
//!
//! Laws:
//! 1. A device is never made shorter than the end of its last extent: [`Space::chunks_beyond`]
//!    names the chunks that the caller must remove first.
//! 2. No chunk is placed behind the end that a device will have, from [`Space::begin_resize`] on.
//!    So the chunks that the caller removes do not come back there. A commit that finds no space
//!    before that end places its chunk behind it, and the resize fails by law 1.

use crate::class::Class;
use crate::devices::RESERVED_BYTES;
use crate::error::SpaceError;
use crate::group::{BlockGroup, GroupStatus};
use crate::state::{Space, State};
use butternut_format::units::{DevId, Logical, SECTOR_BYTES};
use butternut_sys::lock::{Mutex, rank};
use std::fmt;
use std::sync::Arc;

/// The end that a resize in progress will give a device. Until this is dropped, no chunk is placed
/// behind it (law 2).
pub struct NextEnd {
    shared: Arc<Mutex<State, rank::Space>>,
    devid: DevId,
    bytes: u64,
}

impl Drop for NextEnd {
    fn drop(&mut self) {
        let mut state = self.shared.lock();
        if let Some(map) = state.devices.by_devid.get_mut(&self.devid)
            && let Some(at) = map.next_ends.iter().position(|bytes| *bytes == self.bytes)
        {
            map.next_ends.remove(at);
        }
        // If the resize failed, a chunk can be placed there again.
        state.count_return();
    }
}

impl fmt::Debug for NextEnd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NextEnd")
            .field("devid", &self.devid)
            .field("bytes", &self.bytes)
            .finish_non_exhaustive()
    }
}

impl Space {
    /// Begins to resize a device to `bytes` bytes (law 2). Several resizes may be in progress.
    ///
    /// # Errors
    /// There is no such device.
    pub fn begin_resize(&self, devid: DevId, bytes: u64) -> Result<NextEnd, SpaceError> {
        let mut state = self.lock();
        let map = state.devices.by_devid.get_mut(&devid);
        let map = map.ok_or(SpaceError::NoDevice { devid: devid.0 })?;
        map.next_ends.push(bytes);
        Ok(NextEnd { shared: Arc::clone(&self.shared), devid, bytes })
    }

    /// Returns those of these idle groups, sorted by address, that cannot all be removed: the other
    /// groups of their class have too few free bytes for reservations and reserves, and for
    /// `metadata_bytes` more bytes of metadata.
    pub fn needed_groups(&self, idle: &[Logical], metadata_bytes: u64) -> Vec<GroupStatus> {
        let state = self.lock();
        let pools = Class::ALL.into_iter().filter(|class| state.pool_class(*class) == *class);
        let needed = pools.flat_map(|class| {
            let has_metadata = state.pool_class(Class::Metadata) == class;
            let more = if has_metadata { metadata_bytes } else { 0 };
            state.needed_groups(class, idle, more)
        });
        needed.map(BlockGroup::status).collect()
    }

    /// Returns the chunks with device extents that end behind the first `bytes` of a device.
    ///
    /// # Errors
    /// There is no such device.
    pub fn chunks_beyond(&self, devid: DevId, bytes: u64) -> Result<Vec<Logical>, SpaceError> {
        let state = self.lock();
        let map = state.devices.by_devid.get(&devid);
        let map = map.ok_or(SpaceError::NoDevice { devid: devid.0 })?;
        let mut chunks: Vec<Logical> = map.chunks_beyond(bytes).collect();
        chunks.sort_unstable();
        chunks.dedup();
        Ok(chunks)
    }

    /// Whether a thread discards a hole behind the first `bytes` of a device.
    pub fn is_discarding_beyond(&self, devid: DevId, bytes: u64) -> bool {
        let state = self.lock();
        state.devices.by_devid.get(&devid).is_some_and(|map| map.is_discarding_beyond(bytes))
    }

    /// Sets the size of a device, in bytes. Returns the size that it had.
    ///
    /// # Errors
    /// There is no such device, an extent ends behind the new end, or the size is not whole
    /// sectors.
    pub fn resize_device(&self, devid: DevId, bytes: u64) -> Result<u64, SpaceError> {
        let mut state = self.lock();
        let map = state.devices.by_devid.get_mut(&devid);
        let map = map.ok_or(SpaceError::NoDevice { devid: devid.0 })?;
        let is_good = bytes.is_multiple_of(SECTOR_BYTES) && bytes > RESERVED_BYTES;
        if !is_good || map.chunks_beyond(bytes).next().is_some() {
            let rest = map.bytes.saturating_sub(bytes);
            return Err(SpaceError::DeviceExtent { devid: devid.0, start: bytes, bytes: rest });
        }
        Ok(std::mem::replace(&mut map.bytes, bytes))
    }
}

impl State {
    /// Returns the first of these idle groups of a class that together with the busy ones cover
    /// what is withheld, and `more` bytes.
    fn needed_groups(&self, class: Class, idle: &[Logical], more: u64) -> Vec<&BlockGroup> {
        let pool = self.pool_ref(class);
        let wanted = pool.withheld().saturating_add(more);
        let is_idle = |group: &&BlockGroup| idle.binary_search(&Logical(group.start)).is_ok();
        let groups = self.groups.iter().filter(|group| group.class == class);
        let groups: Vec<_> = groups.filter(|group| !group.is_read_only).filter(is_idle).collect();
        let of_idle = groups.iter().map(|group| group.free_bytes()).fold(0, u64::saturating_add);
        let mut free = pool.free.saturating_sub(of_idle);
        let mut needed = Vec::new();
        for group in groups {
            if free >= wanted {
                break;
            }
            free = free.saturating_add(group.free_bytes());
            needed.push(group);
        }
        needed
    }
}
