//! What makes writes last: flushes, and the superblocks that name them.
//!
//! A commit is `flush`, `write_super`, `flush`: what the superblock points at is on the medium
//! before it is, and it is when the commit returns.
//!
//! Laws:
//! 1. All writable devices of the volume take part, or the call fails.
//! 2. Each device's superblock has that device's own item: as [`Volume::install_device`] said
//!    last, so who changes a device item installs it before the superblock is written.
//! 3. The first copies are written before the others. When one of them fails the others stay as
//!    they are, and still name the last commit.
//! 4. Data that was written over what the last commit names is not on the medium before a flush
//!    that began after it. No commit may follow it, so the volume counts such writes
//!    ([`Volume::note_in_place`]), and a sync that finds nothing to commit flushes while the medium
//!    is behind ([`Volume::flush_in_place`]).
//! 5. Copies that would not end inside the device do not exist, as the kernel sees it.

use crate::error::VolumeError;
use crate::members::Member;
use crate::stripe::Layout;
use crate::volume::Volume;
use butternut_device::WriteFrom;
use butternut_format::super_block::{COPY_OFFSETS, RawSuperBlock, SUPER_BLOCK_BYTES};
use butternut_format::units::length;
use butternut_sys::buffer::Buffer;
use std::sync::atomic::{AtomicU64, Ordering};
use zerocopy::IntoBytes;

/// Writes in place, counted (law 4).
#[derive(Debug, Default)]
pub(crate) struct InPlace {
    completed: AtomicU64,
    /// How many of them had completed when the last flush that succeeded began.
    flushed: AtomicU64,
}

impl Volume {
    /// Whether everything the volume holds can be written: all devices are there, up to date, and
    /// open for writing, and no chunk lies where it cannot be.
    pub fn is_writable(&self) -> bool {
        let mut own = self.members.iter().filter(|member| !member.is_seed).peekable();
        own.peek().is_some()
            && own.all(|member| member.device.is_writable() && !member.is_stale)
            && self.devices().iter().all(|status| !status.is_missing())
    }

    /// Whether all copies of a chunk can be written: none is missing, stale or on a seed.
    pub fn can_write(&self, chunk: &Layout) -> bool {
        let own = |slot: usize| self.members.get(slot).is_some_and(|member| !member.is_seed);
        chunk.is_writable() && chunk.places().iter().all(|place| place.slot.is_some_and(own))
    }

    /// Returns when every write that completed before is on the medium, on every device.
    pub fn flush(&self) -> Result<(), VolumeError> {
        let completed = self.in_place.completed.load(Ordering::SeqCst);
        let own = self.members.iter().enumerate().filter(|(_, member)| !member.is_seed);
        let slots: Vec<usize> = own.map(|(slot, _)| slot).collect();
        let mut first = None;
        for (slot, result) in self.lanes.flush(&slots) {
            let Err(source) = result else { continue };
            let Some(member) = self.members.get(slot) else { continue };
            member.errors.count_flush();
            let device = member.device.name().to_owned();
            first.get_or_insert(VolumeError::Device { device, offset: 0, bytes: 0, source });
        }
        if first.is_none() {
            self.in_place.flushed.fetch_max(completed, Ordering::SeqCst);
        }
        first.map_or(Ok(()), Err)
    }

    /// Counts a write over what the last commit names. The caller calls it when the write is
    /// complete on every copy, before it tells anything that it is (law 4).
    pub fn note_in_place(&self) {
        self.in_place.completed.fetch_add(1, Ordering::SeqCst);
    }

    /// Flushes all devices if a write in place completed since the last flush began. Says whether
    /// it did.
    ///
    /// # Errors
    /// As [`Volume::flush`].
    pub fn flush_in_place(&self) -> Result<bool, VolumeError> {
        let is_behind = self.in_place.completed.load(Ordering::SeqCst)
            > self.in_place.flushed.load(Ordering::SeqCst);
        if is_behind {
            self.flush()?;
        }
        Ok(is_behind)
    }

    /// Writes every copy of the superblock on every device; `raw` says everything but what differs
    /// from copy to copy: device item, address and checksum.
    pub fn write_super(&self, raw: &RawSuperBlock) -> Result<(), VolumeError> {
        let mut primaries = Vec::new();
        let mut others = Vec::new();
        for (slot, member) in self.members.iter().enumerate().filter(|(_, member)| !member.is_seed)
        {
            let own = self.own_super(raw, member);
            let device_bytes = member.device.bytes().min(own.dev_item.total_bytes.get());
            for (copy, &offset) in COPY_OFFSETS.iter().enumerate() {
                let end = offset.saturating_add(length(SUPER_BLOCK_BYTES));
                if copy > 0 && end >= device_bytes {
                    break;
                }
                let list = if copy == 0 { &mut primaries } else { &mut others };
                list.push((slot, offset, self.sealed(&own, offset)));
            }
        }
        self.write_copies(&primaries)?;
        self.write_copies(&others)
    }

    fn write_copies(&self, copies: &[(usize, u64, Buffer)]) -> Result<(), VolumeError> {
        let mut batch: Vec<WriteFrom<'_>> =
            copies.iter().map(|(slot, at, bytes)| WriteFrom::new(*slot, *at, bytes)).collect();
        self.lanes.run_writes(&mut batch, None);
        let mut first = None;
        for write in batch {
            let bytes = length(write.bytes());
            let Err(source) = write.result else { continue };
            let failure = self.write_failure(write.device, write.offset, bytes, source);
            first.get_or_insert(failure);
        }
        first.map_or(Ok(()), Err)
    }

    /// Law 2.
    fn own_super(&self, raw: &RawSuperBlock, member: &Member) -> RawSuperBlock {
        let mut own = *raw;
        own.dev_item = member.super_block.raw().dev_item;
        let known = member.item();
        if let Some(item) = self.items().get(&(known.devid, known.uuid)) {
            own.dev_item.total_bytes.set(item.total_bytes);
            own.dev_item.bytes_used.set(item.bytes_used);
            own.dev_item.generation.set(item.generation);
            own.dev_item.fsid = item.fsid;
        }
        own
    }

    /// The copy for one address, with its checksum.
    fn sealed(&self, own: &RawSuperBlock, offset: u64) -> Buffer {
        let mut copy = *own;
        copy.bytenr.set(offset);
        let csum = self.super_block().csum();
        let digest = csum.digest(copy.as_bytes().get(copy.csum.len()..).unwrap_or_default());
        copy.csum = digest;
        Buffer::copy_of(copy.as_bytes())
    }
}
