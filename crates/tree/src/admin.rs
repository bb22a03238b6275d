//! Administration of a volume that is open for writing: space usage, label, resize and trim.
//!
//! Laws:
//!
//! 1. A device shrinks only to an end that no chunk lies behind. Empty chunks behind it are removed
//!    first; others refuse the change. Where the last chunk goes that names the profile of its
//!    class, or one whose free space the reservations and reserves of its class need, one is added
//!    before the end first; without space for it, the change is refused, and no chunk is removed.
//!    No chunk is added behind the new end meanwhile, unless a commit would fail without it; the
//!    change is refused then. While that space is hidden, reservations that lack space wait. A
//!    change that chunks in use refuse hides none.
//! 2. Free space is allocated while it is discarded, so that no writer uses it meanwhile. A
//!    reservation that finds no space waits for the discard.
//! 3. Nothing is discarded that another writer may use: not on a volume that an error has made
//!    read-only, not with a superblock of another writer, and not on a seed.

use crate::chunks::device_extents;
use crate::error::TreeError;
use crate::forest::Forest;
use crate::transaction::Need;
use crate::transaction::discards::Waited;
use crate::transaction::running::Running;
use butternut_format::chunk::Profile;
use butternut_format::refused::require;
use butternut_format::super_block::LABEL_BYTES;
use butternut_format::units::{DevId, Logical, Physical, SECTOR_BYTES};
use butternut_space::{Class, DeviceUsage, GroupStatus, Space, Totals};
use butternut_volume::DeviceStatus;
use std::ops::Range;
use std::sync::Arc;

/// Free bytes that are allocated for one discard batch.
const TRIM_BATCH_BYTES: u64 = 256 << 20;

/// Items that a change of one device may change in the chunk tree.
const ITEMS_PER_DEVICE_CHANGE: u32 = 4;

impl Forest {
    /// Returns the space usage of a class of block groups.
    ///
    /// # Errors
    /// The volume was opened for reading.
    pub fn space(&self, class: Class) -> Result<Totals, TreeError> {
        self.running().map(|running| running.space.totals(class))
    }

    /// Returns the state of all block groups.
    ///
    /// # Errors
    /// The volume was opened for reading.
    pub fn groups(&self) -> Result<Vec<GroupStatus>, TreeError> {
        self.running().map(|running| running.space.groups())
    }

    /// Returns the state of the block groups that a resize does not remove without a replacement
    /// (law 1): those in use, those whose free space is needed, and the last one that names the
    /// profile of its class.
    ///
    /// # Errors
    /// The volume was opened for reading.
    pub fn groups_to_keep(&self) -> Result<Vec<GroupStatus>, TreeError> {
        let running = self.running()?;
        let space = &running.space;
        let is_busy = |group: &GroupStatus| group.used > 0 || group.allocated > 0;
        let (mut kept, idle): (Vec<_>, Vec<_>) = space.groups().into_iter().partition(is_busy);
        let mut idle: Vec<Logical> = idle.iter().map(|group| group.start).collect();
        // Twice what a resize reserves: the trees may grow before it is made.
        running.update_global_reserve();
        let bytes = running.items_bytes(Need::items(2 * ITEMS_PER_DEVICE_CHANGE));
        let needed = space.needed_groups(&idle, bytes);
        idle.retain(|start| !needed.iter().any(|group| group.start == *start));
        kept.extend(needed);
        kept.extend(space.last_of_profile(|start| idle.binary_search(&start).is_ok()));
        Ok(kept)
    }

    /// Returns the bytes of all devices that no chunk uses.
    ///
    /// # Errors
    /// The volume was opened for reading.
    pub fn unallocated_bytes(&self) -> Result<u64, TreeError> {
        self.running().map(|running| running.space.unallocated_bytes())
    }

    /// Returns the bytes that no extent has, inside chunks and outside of them: more than can be
    /// allocated, because some are reserved, pinned or for metadata.
    ///
    /// # Errors
    /// The volume was opened for reading.
    pub fn unused_bytes(&self) -> Result<u64, TreeError> {
        let space = &self.running()?.space;
        let unused = [Class::Data, Class::Metadata].into_iter().map(|class| {
            let totals = space.totals(class);
            totals.bytes.saturating_sub(totals.used)
        });
        Ok(unused.fold(space.unallocated_bytes(), u64::saturating_add))
    }

    /// Returns the memory of the running transaction in bytes: dirty blocks, delayed references and
    /// pending checksums.
    ///
    /// # Errors
    /// The volume was opened for reading.
    pub fn dirty_bytes(&self) -> Result<u64, TreeError> {
        self.running().map(Running::dirty_bytes)
    }

    /// Returns the label of the volume in the running transaction.
    ///
    /// # Errors
    /// The volume was opened for reading.
    pub fn label(&self) -> Result<Vec<u8>, TreeError> {
        let raw = self.running()?.super_block();
        Ok(raw.label.iter().copied().take_while(|byte| *byte != 0).collect())
    }

    /// Returns the size of each device, and the bytes that chunks use on it.
    ///
    /// # Errors
    /// The volume was opened for reading.
    pub fn device_usage(&self) -> Result<Vec<DeviceUsage>, TreeError> {
        self.running().map(|running| running.space.devices())
    }

    /// Sets the label of the volume. The next commit writes it.
    ///
    /// # Errors
    /// The label is too long or contains a zero or a line break, or the volume is read-only.
    pub fn set_label(self: &Arc<Self>, label: &[u8]) -> Result<(), TreeError> {
        let want = format_args!("at most {}", LABEL_BYTES - 1).to_string();
        require(label.len() < LABEL_BYTES, "label: bytes", label.len(), want)
            .map_err(TreeError::Invalid)?;
        let is_plain = !label.iter().any(|byte| matches!(byte, 0 | b'\n'));
        require(is_plain, "label", "a zero or a line break", "neither")
            .map_err(TreeError::Invalid)?;
        let handle = self.join(Need::items(1))?;
        let mut raw = handle.running().super_block();
        raw.label = [0; LABEL_BYTES];
        for (to, from) in raw.label.iter_mut().zip(label) {
            *to = *from;
        }
        drop(raw);
        handle.mark_changed();
        Ok(())
    }

    /// Sets the size of the volume on one device, in bytes. The next commit writes it (law 1).
    ///
    /// # Errors
    /// The device is smaller than that or a seed, chunks in use lie behind the new end, or there is
    /// no space before it for a chunk that replaces the last one of a profile.
    pub fn resize(self: &Arc<Self>, devid: DevId, bytes: u64) -> Result<(), TreeError> {
        let is_it = |status: &DeviceStatus| status.devid == devid && !status.is_seed;
        let device = self.volume().devices().into_iter().find(is_it);
        // It may have grown since the volume was opened, or been truncated since that shrank.
        let device = device.and_then(|status| status.device);
        let have = device.map_or(0, |device| device.take_growth().min(device.bytes_now()));
        require(have > 0, "devid", devid, "a device of the volume").map_err(TreeError::Invalid)?;
        require(bytes <= have, "size", bytes, format_args!("at most {have}, the device's"))
            .map_err(TreeError::Invalid)?;
        self.require_idle_beyond(devid, bytes)?;
        // Dropped last: until then, threads wait for the space that the resize hides.
        let _resizing = self.running()?.resizes.begin();
        let next_end = self.running()?.space.begin_resize(devid, bytes);
        let _next_end = next_end.map_err(|error| TreeError::Space(Box::new(error)))?;
        self.empty_beyond(devid, bytes)?;
        let handle = self.join(Need::items(ITEMS_PER_DEVICE_CHANGE))?;
        let running = handle.running();
        // The lock covers both sizes: another thread may resize the device, too.
        let mut raw = running.super_block();
        let old = running.space.resize_device(devid, bytes);
        let old = old.map_err(|error| TreeError::Space(Box::new(error)))?;
        let total = raw.total_bytes.get().saturating_sub(old).saturating_add(bytes);
        raw.total_bytes.set(total);
        drop(raw);
        running.chunks().set_resized();
        handle.mark_changed();
        drop(handle);
        // What lies behind the end may be another partition's when this returns. No batch of a trim
        // begins there any more.
        let running = self.running()?;
        while running.space.is_discarding_beyond(devid, bytes)
            && running.discards.wait_for_one().is_some()
        {}
        Ok(())
    }

    /// Fails if chunks in use end behind the first `bytes` bytes of a device. Commits first, if
    /// they seem to be in use: bytes that were freed recently are pinned until a commit.
    fn require_idle_beyond(self: &Arc<Self>, devid: DevId, bytes: u64) -> Result<(), TreeError> {
        let space = &self.running()?.space;
        let beyond = || {
            let beyond = space.chunks_beyond(devid, bytes);
            beyond.map_err(|error| TreeError::Space(Box::new(error)))
        };
        if require_idle(space, &beyond()?, bytes).is_ok() {
            return Ok(());
        }
        self.commit()?;
        let beyond = beyond()?;
        let _waited = self.wait_for_discards(&beyond)?;
        require_idle(space, &beyond, bytes)
    }

    /// Removes the chunks that end behind the first `bytes` bytes of a device (law 1).
    fn empty_beyond(self: &Arc<Self>, devid: DevId, bytes: u64) -> Result<(), TreeError> {
        let refused = |error| TreeError::Space(Box::new(error));
        let beyond = self.running()?.space.chunks_beyond(devid, bytes).map_err(refused)?;
        if beyond.is_empty() {
            return Ok(());
        }
        // Bytes that were freed recently are pinned until a commit.
        self.commit()?;
        // No batch of a trim begins until the chunks are removed.
        let _waited = self.wait_for_discards(&beyond)?;
        let handle = self.join(Need::items(ITEMS_PER_DEVICE_CHANGE))?;
        require_idle(&handle.running().space, &beyond, bytes)?;
        replace_needed(handle.running(), &beyond, bytes)?;
        handle.running().chunks().remove_next_commit(beyond);
        handle.mark_changed();
        drop(handle);
        self.commit().map(|_| ())
    }

    /// Waits while threads discard free space of chunks, which counts as allocated meanwhile.
    fn wait_for_discards(&self, chunks: &[Logical]) -> Result<Option<Waited<'_>>, TreeError> {
        let running = self.running()?;
        let allocated = |chunk: &Logical| {
            running.space.group(*chunk).is_some_and(|group| group.allocated > group.used)
        };
        let mut waited = None;
        while chunks.iter().any(allocated) {
            let Some(one) = running.discards.wait_for_one() else { break };
            waited = Some(one);
        }
        Ok(waited)
    }

    /// Discards free space inside a range of logical addresses, and the space of all devices that
    /// no chunk uses, in runs of at least `bytes_min` bytes. Returns the number of bytes (law 2).
    /// Free space is left out while reservations and the global reserve need all of it, and on seed
    /// devices.
    ///
    /// # Errors
    /// A device failed to discard, or the volume is read-only (law 3).
    pub fn trim(self: &Arc<Self>, range: &Range<u64>, bytes_min: u64) -> Result<u64, TreeError> {
        let running = self.running()?;
        self.check_own_supers()?;
        let mut trimmed: u64 = 0;
        let groups = running.space.groups();
        for group in groups.iter().filter(|group| !self.volume().is_on_seed(group.start)) {
            let bytes = self.trim_group(group.start, range, bytes_min)?;
            trimmed = trimmed.saturating_add(bytes);
        }
        // A chunk that is needed waits for one batch, not for the whole device.
        let bytes_max = TRIM_BATCH_BYTES.max(bytes_min);
        for device in running.space.devices() {
            let mut from = 0;
            loop {
                running.gate.check()?;
                let _discarding = running.discards.begin_batch();
                let hole = running.space.reserve_hole(device.devid, from, bytes_min, bytes_max);
                let hole = hole.map_err(|error| TreeError::Space(Box::new(error)))?;
                let Some(hole) = hole else { break };
                let result = self.discard_hole(device.devid, &hole);
                running.space.release_hole(device.devid, &hole);
                trimmed = trimmed.saturating_add(result?);
                from = hole.end;
            }
        }
        Ok(trimmed)
    }

    /// Makes the volume read-only if another writer has changed a superblock (law 3).
    fn check_own_supers(&self) -> Result<(), TreeError> {
        let running = self.running()?;
        // A commit or a batch of the log that runs meanwhile changes them too.
        let _written = self.log()?.io.lock();
        let failed = |source| running.gate.poison(TreeError::Discard(Box::new(source)));
        self.volume().check_own_supers().map_err(failed)
    }

    fn discard_hole(&self, devid: DevId, hole: &Range<u64>) -> Result<u64, TreeError> {
        let bytes = hole.end.saturating_sub(hole.start);
        device_extents::check_unused(&self.volume().chunks(), devid, hole)?;
        self.volume()
            .discard_device(devid, Physical(hole.start), bytes)
            .map_err(|source| TreeError::Discard(Box::new(source)))?;
        Ok(bytes)
    }

    fn trim_group(
        &self,
        group: Logical,
        within: &Range<u64>,
        bytes_min: u64,
    ) -> Result<u64, TreeError> {
        let running = self.running()?;
        let first = within.start.checked_next_multiple_of(SECTOR_BYTES).unwrap_or(u64::MAX);
        let mut from = group.0.max(first);
        let mut trimmed: u64 = 0;
        loop {
            if from >= within.end {
                return Ok(trimmed);
            }
            running.gate.check()?;
            let _discarding = running.discards.begin_batch();
            let batch = running.space.allocate_for_trim(group, from, bytes_min, TRIM_BATCH_BYTES);
            let Some(last) = batch.last() else { return Ok(trimmed) };
            from = last.end;
            let mut failed = None;
            for range in batch {
                let end = range.end.min(within.end / SECTOR_BYTES * SECTOR_BYTES);
                let bytes = end.saturating_sub(range.start);
                if failed.is_none() && bytes > 0 {
                    failed = self.volume().discard(Logical(range.start), bytes).err();
                    trimmed = trimmed.saturating_add(bytes);
                }
                running.check(running.space.release(range));
            }
            if let Some(source) = failed {
                return Err(TreeError::Discard(Box::new(source)));
            }
        }
    }
}

/// Fails if one of the chunks that end behind the first `bytes` bytes of a device is in use.
fn require_idle(space: &Space, beyond: &[Logical], bytes: u64) -> Result<(), TreeError> {
    for group in beyond {
        let busy =
            space.group(*group).map_or(0, |group| group.used.saturating_add(group.allocated));
        let want = format_args!("none in use behind {bytes}").to_string();
        require(busy == 0, "chunk", group, want).map_err(TreeError::Invalid)?;
    }
    Ok(())
}

/// Adds chunks for each class that would lose its profile, or free space that it needs, with these
/// chunks, all of them empty (law 1). `bytes` is the new size of the device. The caller holds a
/// handle, whose reservation stands for the one of the resize.
fn replace_needed(running: &Running, removed: &[Logical], bytes: u64) -> Result<(), TreeError> {
    let add_like = |group: &GroupStatus| {
        let is_added = running.add_chunk(Class::of(group.flags));
        let profile = group.flags.profile().map_or("unknown", Profile::name);
        let want = format_args!("space for a chunk of profile {profile} before it").to_string();
        require(is_added, "size", bytes, want).map_err(TreeError::Invalid)
    };
    running.update_global_reserve();
    // Ends: each chunk takes space of the devices.
    while let Some(group) = running.space.needed_groups(removed, 0).first() {
        add_like(group)?;
    }
    let last = running.space.last_of_profile(|start| removed.binary_search(&start).is_ok());
    last.iter().try_for_each(add_like)
}
