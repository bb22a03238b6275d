//! What makes writes last: flushes, and the superblocks that name them.
//!
//! A commit is `flush`, `write_super`, `flush`: what the superblock points at is on the medium
//! before it is, and it is when the commit returns.
//!
//! Laws:
//! 1. All devices of the volume take part. A device that fails is counted and reported; the call
//!    succeeds if the volume is whole without it ([`crate::tolerance`]), and fails otherwise.
//! 2. Each device's superblock has that device's own item: as [`Volume::install_device`] said
//!    last, so who changes a device item installs it before the superblock is written.
//! 3. The first copies are written before the others. When one of them fails the others stay as
//!    they are, and still name the last commit.
//! 4. Data that was written over what the last commit names is not on the medium before a flush
//!    that began after it. No commit may follow it, so the volume counts such writes
//!    ([`Volume::note_in_place`]), and a sync that finds nothing to commit flushes while the medium
//!    is behind ([`Volume::flush_in_place`]).
//! 5. Copies that would not end inside the device do not exist, as the kernel sees it.
//! 6. A device whose last flush failed gets no new superblock: its old one names blocks that the
//!    device has. A device keeps its place when only a later copy of its superblock fails.
//! 7. A device that became shorter than its device item has failed, for as long as the volume is
//!    open, even if later writes make it longer again.
//! 8. [`Volume::check_own`] finds a superblock that another writer has changed: nothing may be
//!    written after that.

use crate::error::VolumeError;
use crate::error::chain;
use crate::members::{LastSuper, Member};
use crate::stripe::Layout;
use crate::super_blocks;
use crate::troubles::TroubleKind;
use crate::volume::Volume;
use butternut_device::WriteFrom;
use butternut_format::super_block::{COPY_OFFSETS, RawSuperBlock, SUPER_BLOCK_BYTES, SuperBlock};
use butternut_format::units::length;
use butternut_sys::buffer::Buffer;
use std::sync::PoisonError;
use std::sync::atomic::{AtomicU64, Ordering};
use zerocopy::{FromBytes, IntoBytes};

/// Copies of superblocks, by slot and offset.
type Copies = Vec<(usize, u64, Buffer)>;

/// Writes in place, counted (law 4).
#[derive(Debug, Default)]
pub(crate) struct InPlace {
    completed: AtomicU64,
    /// How many of them had completed when the last flush that succeeded began.
    flushed: AtomicU64,
}

impl Volume {
    /// Whether everything the volume holds can be written: all devices are there and open for
    /// writing, and none is stale; with `degraded`, those that are stale can be done without.
    pub fn is_writable(&self) -> bool {
        let mut own = self.members.iter().filter(|member| !member.is_seed).peekable();
        let stale = self.members.iter().enumerate().filter(|(_, member)| member.is_stale);
        let stale: Vec<usize> = stale.map(|(slot, _)| slot).collect();
        own.peek().is_some()
            && own.all(|member| member.device.is_writable())
            && (stale.is_empty() || self.is_degraded() && self.tolerates(&stale))
            && self.devices().iter().all(|status| !status.is_missing())
    }

    /// Records that stale devices have missed writes, before the first new one reaches them: from
    /// then on their superblocks do not tell it any more.
    pub fn doubt_stale_devices(&self) {
        let own = self.members.iter().filter(|member| member.is_stale && !member.is_seed);
        for member in own.filter(|member| !member.errors.has_missed_writes()) {
            member.errors.count_write();
        }
    }

    /// Whether all copies of a chunk can be written: none is missing or on a seed.
    pub fn can_write(&self, chunk: &Layout) -> bool {
        let own = |slot: usize| self.members.get(slot).is_some_and(|member| !member.is_seed);
        chunk.is_writable() && chunk.places().iter().all(|place| place.slot.is_some_and(own))
    }

    /// Fails if another writer has changed the first superblock of a device since this process
    /// wrote it, or opened the volume; notes devices that have shrunk (laws 6 and 7).
    ///
    /// # Errors
    /// [`VolumeError::ForeignSuper`], which no number of copies makes good.
    pub fn check_own(&self) -> Result<(), VolumeError> {
        for member in self.members.iter().filter(|member| !member.is_seed) {
            if self.note_length(member) {
                check_own_super(member)?;
            }
        }
        Ok(())
    }

    /// Returns when every write that completed before is on the medium, on every device that the
    /// volume cannot do without.
    pub fn flush(&self) -> Result<(), VolumeError> {
        let completed = self.in_place.completed.load(Ordering::SeqCst);
        let own = self.members.iter().enumerate().filter(|(_, member)| !member.is_seed);
        let slots: Vec<usize> = own.map(|(slot, _)| slot).collect();
        let mut lost = Vec::new();
        for (slot, result) in self.lanes.flush(&slots) {
            let Some(member) = self.members.get(slot) else { continue };
            let device = || member.device.name().to_owned();
            let result = result
                .map_err(|source| VolumeError::Device {
                    device: device(),
                    offset: 0,
                    bytes: 0,
                    source,
                })
                .and_then(|()| self.check_length(member));
            member.is_unflushed.store(result.is_err(), Ordering::Relaxed);
            if let Err(error) = result {
                member.errors.count_flush();
                lost.push((slot, error));
            }
        }
        self.do_without(lost, TroubleKind::Flush)?;
        self.in_place.flushed.fetch_max(completed, Ordering::SeqCst);
        Ok(())
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
        let (mut primaries, mut others) = (Copies::new(), Copies::new());
        let mut lost = Vec::new();
        for (slot, member) in self.members.iter().enumerate().filter(|(_, member)| !member.is_seed)
        {
            if member.is_unflushed.load(Ordering::Relaxed) {
                lost.push(slot);
                continue;
            }
            let own = self.own_super(raw, member);
            let device_bytes = member.device.bytes().min(own.dev_item.total_bytes.get());
            for (copy, &offset) in COPY_OFFSETS.iter().enumerate() {
                let end = offset.saturating_add(length(SUPER_BLOCK_BYTES));
                if copy > 0 && end >= device_bytes {
                    break;
                }
                let copies = if copy == 0 { &mut primaries } else { &mut others };
                copies.push((slot, offset, self.sealed(&own, offset)));
            }
        }
        let failures = self.write_copies(&primaries);
        self.remember_supers(&primaries, &failures);
        lost.extend(failures.iter().map(|(slot, _)| *slot));
        if !lost.is_empty() && !self.tolerates(&lost) {
            return Err(failures.into_iter().next().map_or_else(
                || VolumeError::MissingDevices { devids: self.devids(&lost) },
                |(_, error)| error,
            ));
        }
        self.note_missed_copies(None, &failures);
        others.retain(|(slot, ..)| !lost.contains(slot));
        let failures = self.write_copies(&others);
        self.note_missed_copies(None, &failures);
        Ok(())
    }

    /// Says which copies could not be written.
    fn write_copies(&self, copies: &Copies) -> Vec<(usize, VolumeError)> {
        let mut batch: Vec<WriteFrom<'_>> =
            copies.iter().map(|(slot, at, bytes)| WriteFrom::new(*slot, *at, bytes)).collect();
        self.lanes.run_writes(&mut batch, None);
        let failed = batch.into_iter().filter_map(|write| {
            let (slot, bytes) = (write.device, length(write.bytes()));
            let source = write.result.err()?;
            Some((slot, self.write_failure(slot, write.offset, bytes, source)))
        });
        failed.collect()
    }

    /// Law 1.
    fn do_without(
        &self,
        lost: Vec<(usize, VolumeError)>,
        kind: TroubleKind,
    ) -> Result<(), VolumeError> {
        let slots: Vec<usize> = lost.iter().map(|(slot, _)| *slot).collect();
        if !slots.is_empty() && !self.tolerates(&slots) {
            return lost.into_iter().next().map_or(Ok(()), |(_, error)| Err(error));
        }
        for (slot, error) in lost {
            self.note_trouble(Some(slot), kind, None, || chain(&error));
        }
        Ok(())
    }

    fn devids(&self, slots: &[usize]) -> Vec<butternut_format::units::DevId> {
        let members = slots.iter().filter_map(|slot| self.members.get(*slot));
        members.map(|member| member.item().devid).collect()
    }

    /// What this process wrote last on each device. A write that failed may have left anything.
    fn remember_supers(&self, written: &Copies, failures: &[(usize, VolumeError)]) {
        for (slot, _, bytes) in written {
            let Some(member) = self.members.get(*slot) else { continue };
            let is_known = failures.iter().all(|(failed, _)| failed != slot);
            let raw = RawSuperBlock::read_from_bytes(bytes).ok().filter(|_| is_known);
            let mut last = member.last_super.lock().unwrap_or_else(PoisonError::into_inner);
            *last = raw.map_or(LastSuper::Unknown, |raw| LastSuper::Written(raw.csum));
        }
    }

    /// Whether a device is as long as its item says (law 6).
    pub(crate) fn check_length(&self, member: &Member) -> Result<(), VolumeError> {
        self.note_length(member);
        let Some(have) = member.shrunk_to() else { return Ok(()) };
        Err(VolumeError::Short {
            device: member.device.name().to_owned(),
            devid: member.item().devid,
            have,
            want: self.total_bytes(member),
        })
    }

    /// Notes a device that is too short. `true`: it never was.
    fn note_length(&self, member: &Member) -> bool {
        let bytes = member.device.bytes_now();
        if bytes < self.total_bytes(member) {
            member.set_shrunk_to(bytes);
        }
        member.shrunk_to().is_none()
    }

    fn total_bytes(&self, member: &Member) -> u64 {
        let known = member.item();
        let item = self.items().get(&(known.devid, known.uuid)).copied();
        item.map_or(known.total_bytes, |item| item.total_bytes)
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

/// Law 7. A superblock that cannot be read tells nothing.
fn check_own_super(member: &Member) -> Result<(), VolumeError> {
    let Some(&offset) = COPY_OFFSETS.first() else { return Ok(()) };
    let Ok(bytes) = super_blocks::read_bytes(member.device.as_ref(), offset) else {
        member.errors.count_read();
        return Ok(());
    };
    let Ok(found) = RawSuperBlock::read_from_bytes(&bytes) else { return Ok(()) };
    let last = *member.last_super.lock().unwrap_or_else(PoisonError::into_inner);
    let opened = member.super_block.raw();
    let (is_own, want) = match last {
        LastSuper::Unknown => return Ok(()),
        LastSuper::Written(csum) => (found.csum == csum, "the one written last".to_owned()),
        // What was opened may be another copy than the first; only a newer one is foreign.
        LastSuper::Opened => {
            let is_valid = SuperBlock::check(&bytes, 0).is_ok();
            let is_newer = found.generation.get() > opened.generation.get();
            let is_other = found.fsid != opened.fsid;
            let want = format!("generation {}", opened.generation);
            (!is_valid || !(is_newer || is_other), want)
        }
    };
    if is_own {
        return Ok(());
    }
    let have = format!("generation {}", found.generation);
    Err(VolumeError::ForeignSuper { device: member.device.name().to_owned(), have, want })
}
