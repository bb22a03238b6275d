//! Looking after a writable volume: what is in use, its label, its size, and telling its devices
//! what is free.
//!
//! Laws:
//!
//! 1. A device shrinks only to where no chunk lies: chunks beyond are given back if they are empty
//!    and refuse the change if they are not.
//! 2. What is discarded is taken out of the free space first and given back afterwards, so nobody
//!    writes there meanwhile.

use crate::error::TreeError;
use crate::forest::Forest;
use crate::transaction::Need;
use butternut_format::refused::require;
use butternut_format::super_block::LABEL_BYTES;
use butternut_format::units::{DevId, Logical, Physical, SECTOR_BYTES};
use butternut_space::{Class, DeviceUsage, GroupStatus, Totals};
use std::ops::Range;
use std::sync::Arc;

/// Free bytes that are taken out at once while they are discarded.
const TRIM_BATCH_BYTES: u64 = 256 << 20;

/// Blocks that one small change of the chunk tree may copy.
const ITEMS_OF_A_DEVICE: u32 = 4;

impl Forest {
    /// What is in use of a class of groups, as of this moment.
    ///
    /// # Errors
    /// The volume was opened for reading.
    pub fn space(&self, class: Class) -> Result<Totals, TreeError> {
        self.running().map(|running| running.space.totals(class))
    }

    /// Every block group, as of this moment.
    ///
    /// # Errors
    /// The volume was opened for reading.
    pub fn groups(&self) -> Result<Vec<GroupStatus>, TreeError> {
        self.running().map(|running| running.space.groups())
    }

    /// Bytes of all devices that no chunk takes.
    ///
    /// # Errors
    /// The volume was opened for reading.
    pub fn unallocated_bytes(&self) -> Result<u64, TreeError> {
        self.running().map(|running| running.space.unallocated_bytes())
    }

    /// Memory that the running transaction holds until it is committed, in bytes: blocks, and
    /// references that wait.
    ///
    /// # Errors
    /// The volume was opened for reading.
    pub fn dirty_bytes(&self) -> Result<u64, TreeError> {
        self.running().map(crate::running::Running::dirty_bytes)
    }

    /// The name of the volume, as the next commit writes it.
    ///
    /// # Errors
    /// The volume was opened for reading.
    pub fn label(&self) -> Result<Vec<u8>, TreeError> {
        let raw = self.running()?.super_block();
        Ok(raw.label.iter().copied().take_while(|byte| *byte != 0).collect())
    }

    /// Bytes of each device, and how many of them chunks take, as of this moment.
    ///
    /// # Errors
    /// The volume was opened for reading.
    pub fn device_usage(&self) -> Result<Vec<DeviceUsage>, TreeError> {
        self.running().map(|running| running.space.devices())
    }

    /// Names the volume; the next commit writes it.
    ///
    /// # Errors
    /// The label is too long, or holds a zero or a line break.
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
        handle.touch();
        Ok(())
    }

    /// Makes the volume larger or smaller on one device; the next commit writes it (law 1).
    ///
    /// # Errors
    /// The device does not reach that far, or chunks that are in use do.
    pub fn resize(self: &Arc<Self>, devid: DevId, bytes: u64) -> Result<(), TreeError> {
        let device = self.volume().devices().into_iter().find(|status| status.devid == devid);
        let have = device.and_then(|status| status.device).map_or(0, |device| device.bytes());
        require(have > 0, "devid", devid, "a device of the volume").map_err(TreeError::Invalid)?;
        require(bytes <= have, "size", bytes, format_args!("at most {have}, the device's"))
            .map_err(TreeError::Invalid)?;
        self.empty_beyond(devid, bytes)?;
        let handle = self.join(Need::items(ITEMS_OF_A_DEVICE))?;
        let running = handle.running();
        let old = running.space.devices().into_iter().find(|device| device.devid == devid);
        let old = old.map_or(0, |device| device.bytes);
        running
            .space
            .resize_device(devid, bytes)
            .map_err(|error| TreeError::Space(Box::new(error)))?;
        let mut raw = running.super_block();
        let total = raw.total_bytes.get().saturating_sub(old).saturating_add(bytes);
        raw.total_bytes.set(total);
        drop(raw);
        running.chunks().set_resized();
        handle.touch();
        Ok(())
    }

    /// Law 1: gives back the chunks that end behind the first `bytes` of a device.
    fn empty_beyond(self: &Arc<Self>, devid: DevId, bytes: u64) -> Result<(), TreeError> {
        let refused = |error| TreeError::Space(Box::new(error));
        let beyond = self.running()?.space.chunks_beyond(devid, bytes).map_err(refused)?;
        if beyond.is_empty() {
            return Ok(());
        }
        // What was freed a moment ago is pinned until a commit.
        self.commit()?;
        let handle = self.join(Need::items(ITEMS_OF_A_DEVICE))?;
        let space = &handle.running().space;
        for group in &beyond {
            let busy =
                space.group(*group).map_or(0, |group| group.used.saturating_add(group.taken));
            let want = format_args!("none in use behind {bytes}").to_string();
            require(busy == 0, "chunk", group, want).map_err(TreeError::Invalid)?;
        }
        handle.running().chunks().evict(beyond);
        handle.touch();
        drop(handle);
        self.commit().map(|_| ())
    }

    /// Tells the devices of free space within a range of logical addresses, and of what no chunk
    /// takes, in runs of at least `bytes_min`; returns how many bytes (law 2).
    ///
    /// # Errors
    /// A device refused.
    pub fn trim(self: &Arc<Self>, range: &Range<u64>, bytes_min: u64) -> Result<u64, TreeError> {
        let running = self.running()?;
        let mut trimmed: u64 = 0;
        for group in running.space.groups() {
            let bytes = self.trim_group(group.start, range, bytes_min)?;
            trimmed = trimmed.saturating_add(bytes);
        }
        for device in running.space.devices() {
            let mut from = 0;
            loop {
                let hole = running.space.take_hole(device.devid, from, bytes_min, u64::MAX);
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

    fn discard_hole(&self, devid: DevId, hole: &Range<u64>) -> Result<u64, TreeError> {
        let bytes = hole.end.saturating_sub(hole.start);
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
            let batch = running.space.take_free(group, from, bytes_min, TRIM_BATCH_BYTES);
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
