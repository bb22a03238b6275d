//! Durability: flushes, and the superblocks that commit a transaction.
//!
//! A commit is `flush`, `write_super`, `flush`: everything that the superblock refers to is durable
//! before the superblock is written, and the superblock is durable when the commit returns.
//!
//! Laws:
//! 1. All devices of the volume take part, except seeds. A device that fails is counted and
//!    reported. The call succeeds if the volume is complete without it ([`crate::tolerance`]), and
//!    fails otherwise.
//! 2. Each device's superblock contains that device's own item, with the sizes that
//!    [`Volume::install_device`] last installed. So a caller that changes a device item installs it
//!    before the superblock is written. The superblock of a log contains the item of the last
//!    commit: what was installed since is part of a transaction that may never be complete.
//! 3. The first copies are written before the others. If one of them fails, the other copies of
//!    that device are not written and still name the last commit; if the failure is not tolerated,
//!    no other copy is written. Where only the first copies name a log, they are written last, when
//!    the others are durable: at any time, a copy that is not being written has everything that was
//!    synced ([`Volume::write_super_after_log`]).
//! 4. A write over data that the last commit refers to (in place, as for `nodatacow` files) is
//!    durable only after a flush that began after it. No commit may follow such a write, so the
//!    volume counts them ([`Volume::note_in_place`]), and a sync that finds nothing to commit
//!    flushes if there was one since the last flush ([`Volume::flush_in_place`]).
//! 5. The second and third superblock copy exist only if they end before the end of the device, as
//!    in the kernel.
//! 6. A device whose last flush failed gets no new superblock: its old one names blocks that the
//!    device has. Nor does one with a failed flush that is not on record in the trees of the
//!    superblock ([`Volume::stats_for_commit`]): it may have lost what they refer to, and nothing
//!    would tell. A device whose second or third superblock copy fails is not lost.
//! 7. A device that became shorter than its device item has failed for as long as the volume is
//!    open, even if later writes make it longer again.
//! 8. [`Volume::check_own_supers`] finds a superblock that another writer has changed. From then on
//!    every write, superblock and discard is refused: the other writer may use the space.
//! 9. No superblock is written that this volume could not be opened with.
//! 10. A device reports once that it has lost writes, to one of the flushes that run or follow. So
//!     one flush begins when the result of the one before is recorded; and when the volume is not
//!     complete without the devices that failed a flush, every later flush and superblock fails. A
//!     durable write that fails may have failed its flush.
//! 11. A power failure between the superblocks of one commit leaves some devices one generation
//!     behind, with everything that the commit wrote: all of it was durable before the first
//!     superblock. So a device that is one generation behind does not prevent writing. It may have
//!     missed that commit all the same, so it is stale, and on record as such.

use crate::device_events::DeviceEventKind;
use crate::error::{VolumeError, chain};
use crate::members::Member;
use crate::stripe::Layout;
use crate::volume::Volume;
use butternut_device::{WriteCache, WriteFrom};
use butternut_format::super_block::{COPY_OFFSETS, RawSuperBlock, SUPER_BLOCK_BYTES, SuperBlock};
use butternut_format::units::{Logical, length};
use butternut_sys::buffer::Buffer;
use std::sync::atomic::Ordering;
use zerocopy::IntoBytes;

/// Why blocks are not durable.
#[derive(Debug)]
pub enum NotDurable {
    /// They were not written.
    Write(Box<VolumeError>),
    /// The flush failed: nothing that completed before is known to be durable.
    Flush(Box<VolumeError>),
}

/// Copies of superblocks, each with its slot and offset.
pub(crate) type Copies = Vec<(usize, u64, Buffer)>;

/// What a superblock is written for.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Purpose {
    Commit,
    /// A log between two commits.
    Log,
}

/// The copies of one superblock.
struct SuperCopies {
    primaries: Copies,
    others: Copies,
    /// The slots of the devices that get none (law 6).
    lost: Vec<usize>,
}

impl Volume {
    /// Returns whether every chunk can be written: all devices are present and open for writing,
    /// and none has missed a commit (law 11). With `degraded`, such devices are allowed if the
    /// volume is complete without them.
    pub fn is_writable(&self) -> bool {
        let mut own = self.members.iter().filter(|member| !member.is_seed).peekable();
        let newest = self.super_block().generation();
        let has_missed = |member: &Member| {
            member.is_stale && member.super_block.generation().0.saturating_add(1) < newest.0
        };
        let stale = self.members.iter().enumerate().filter(|(_, member)| has_missed(member));
        let stale: Vec<usize> = stale.map(|(slot, _)| slot).collect();
        own.peek().is_some()
            && own.all(|member| member.device.is_writable())
            && (stale.is_empty() || self.is_degraded() && self.tolerates(&stale))
            && self.devices().iter().all(|status| !status.is_missing())
    }

    /// Counts a failed write on each stale device, before the first new write reaches it. The next
    /// superblock makes the device look current, so from then on only this count tells that it is
    /// stale.
    pub fn record_stale_devices(&self) {
        let own = self.members.iter().filter(|member| member.is_stale && !member.is_seed);
        for member in own.filter(|member| !member.errors.has_failed_writes()) {
            member.errors.count_write();
        }
    }

    /// Returns whether all mirrors of a chunk can be written: none is on a missing device or on a
    /// seed.
    pub fn can_write(&self, chunk: &Layout) -> bool {
        let own = |slot: usize| self.members.get(slot).is_some_and(|member| !member.is_seed);
        chunk.is_writable() && chunk.stripes().iter().all(|stripe| stripe.slot.is_some_and(own))
    }

    /// Makes every write that has completed durable, on every device that the volume needs.
    ///
    /// # Errors
    ///
    /// The first failed flush, if the volume is not complete without the failed devices;
    /// [`VolumeError::NotFlushed`] if that was so of another flush (law 10).
    pub fn flush(&self) -> Result<(), VolumeError> {
        let flushing = self.device_flush.lock();
        let flushed = self.flush_locked();
        drop(flushing);
        flushed
    }

    /// Flushes, for a caller that holds `device_flush`.
    fn flush_locked(&self) -> Result<(), VolumeError> {
        self.check_none_lost()?;
        let completed = self.in_place.completed();
        let own = self.members.iter().enumerate().filter(|(_, member)| !member.is_seed);
        let slots: Vec<usize> = own.map(|(slot, _)| slot).collect();
        let mut lost = Vec::new();
        for member in slots.iter().filter_map(|slot| self.members.get(*slot)) {
            member.last_super.begin_flush();
        }
        for (slot, result) in self.queues.flush(&slots) {
            let Some(member) = self.members.get(slot) else { continue };
            member.last_super.end_flush(result.is_ok());
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
        self.tolerate_failures(lost, DeviceEventKind::Flush)?;
        self.in_place.note_flush(completed);
        Ok(())
    }

    /// Counts a write over data that the last commit refers to. The caller calls it when the write
    /// has completed on every mirror, before it reports the completion (law 4).
    pub fn note_in_place(&self) {
        self.in_place.note();
    }

    /// Flushes all devices if a write in place has completed since the last flush began. Returns
    /// whether there was one.
    ///
    /// # Errors
    ///
    /// As [`Volume::flush`].
    pub fn flush_in_place(&self) -> Result<bool, VolumeError> {
        let completed = self.in_place.completed();
        if self.in_place.is_flushed(completed) {
            return Ok(false);
        }
        let flushing = self.device_flush.lock();
        // Another thread's flush may have begun since.
        let is_flushed = self.in_place.is_flushed(completed);
        let flushed = if is_flushed { Ok(()) } else { self.flush_locked() };
        drop(flushing);
        flushed.map(|()| true)
    }

    /// Writes every copy of the superblock on every device. `raw` holds everything except what
    /// differs between copies: device item, address and checksum.
    ///
    /// # Errors
    ///
    /// [`VolumeError::InvalidSuper`] (law 9) and [`VolumeError::ForeignSuper`], and then nothing
    /// was written; the first failed write of a first copy, or [`VolumeError::NotFlushed`] if none
    /// failed but the last flush of some devices did, if the volume is not complete without the
    /// failed devices; the same after any such flush (law 10), and then nothing was written.
    pub fn write_super(&self, raw: &RawSuperBlock) -> Result<(), VolumeError> {
        self.write_super_copies(raw, COPY_OFFSETS.len(), Purpose::Commit, false)
    }

    /// Writes every copy of the superblock as [`Volume::write_super`], the first copies last, when
    /// the other copies are durable: only the first copies name the log that a commit ends, so a
    /// torn first copy would lose what the log has.
    ///
    /// # Errors
    ///
    /// As [`Volume::write_super`], and as [`Volume::flush`].
    pub fn write_super_after_log(&self, raw: &RawSuperBlock) -> Result<(), VolumeError> {
        self.check_may_write()?;
        self.check_none_lost()?;
        let SuperCopies { others, .. } =
            self.super_copies(raw, COPY_OFFSETS.len(), Purpose::Commit)?;
        let failures = self.write_copies(&others, false);
        self.record_failed_mirrors(None, &failures);
        self.flush()?;
        self.write_super_copies(raw, 1, Purpose::Commit, false)
    }

    /// Writes the first copy of the superblock on every device, for the log between two commits:
    /// the other copies still name the last commit without a log. Makes the superblocks durable.
    ///
    /// # Errors
    ///
    /// As [`Volume::write_super`], and as [`Volume::flush`].
    pub fn write_first_supers_durably(&self, raw: &RawSuperBlock) -> Result<(), VolumeError> {
        let Some(member) = self.only_durable_member() else {
            self.write_super_copies(raw, 1, Purpose::Log, false)?;
            return self.flush();
        };
        let flushes = member.device.write_cache().durable_write_flushes;
        let flushing = flushes.then(|| self.device_flush.lock());
        let completed = self.in_place.completed();
        let written = self.write_super_copies(raw, 1, Purpose::Log, true);
        if written.is_err() && flushes {
            // The write failed, or the flush.
            self.note_lost(member);
        }
        drop(flushing);
        written?;
        self.check_length(member)?;
        self.check_none_lost()?;
        if flushes {
            self.in_place.note_flush(completed);
        }
        Ok(())
    }

    /// Writes tree blocks, and makes them durable with everything that completed before: by one
    /// device write, where a durable write flushes the device.
    ///
    /// # Errors
    ///
    /// Either the blocks were not written, as of [`Volume::write_blocks`], or nothing is known to
    /// be durable, as of [`Volume::flush`]: so also if a write failed that was to flush (law 10).
    pub fn write_blocks_durably(&self, blocks: &[(Logical, &[u8])]) -> Result<(), NotDurable> {
        let completed = self.in_place.completed();
        let chunks = self.chunks.load();
        let flush_failed = |error| NotDurable::Flush(Box::new(error));
        self.check_none_lost().map_err(flush_failed)?;
        let write_failed = |error| NotDurable::Write(Box::new(error));
        let mut batch = self.block_batch(&chunks, blocks).map_err(write_failed)?;
        let Some(member) = self.only_durable_member().filter(|_| batch.can_flush()) else {
            let failed = batch.run(None).into_iter().next();
            failed.map_or(Ok(()), |(_, error)| Err(write_failed(error)))?;
            return self.flush().map_err(flush_failed);
        };
        self.check_may_write().map_err(|refused| write_failed(refused.into()))?;
        let flushing = self.device_flush.lock();
        // Another flush may have lost writes by now.
        let written = self.check_none_lost().and_then(|()| {
            member.last_super.begin_flush();
            let written = batch.run_durably();
            member.last_super.end_flush(written.is_ok());
            member.is_unflushed.store(written.is_err(), Ordering::Relaxed);
            if written.is_err() {
                self.note_lost(member);
            }
            written
        });
        drop(flushing);
        written.map_err(flush_failed)?;
        self.check_none_lost().map_err(flush_failed)?;
        self.check_length(member).map_err(flush_failed)?;
        self.in_place.note_flush(completed);
        Ok(())
    }

    /// Returns the device of a volume on one device, if a durable write of it saves a flush.
    fn only_durable_member(&self) -> Option<&Member> {
        let mut own = self.members.iter().filter(|member| !member.is_seed);
        let (member, others) = (own.next()?, own.next());
        let WriteCache { is_volatile, has_fua, durable_write_flushes } =
            member.device.write_cache();
        let saves_flush = is_volatile && (has_fua || durable_write_flushes);
        let is_only = others.is_none() && member.device.ring_target().is_some();
        (is_only && saves_flush).then_some(member)
    }

    /// Whether a durable write makes everything durable that completed before.
    pub(crate) fn durable_write_flushes(&self) -> bool {
        self.only_durable_member()
            .is_some_and(|member| member.device.write_cache().durable_write_flushes)
    }

    /// Writes at most `copies_max` copies of the superblock on each device, the first ones. With
    /// `is_durable`, each is durable once it is written.
    fn write_super_copies(
        &self,
        raw: &RawSuperBlock,
        copies_max: usize,
        purpose: Purpose,
        is_durable: bool,
    ) -> Result<(), VolumeError> {
        self.check_may_write()?;
        self.check_none_lost()?;
        let SuperCopies { primaries, mut others, mut lost } =
            self.super_copies(raw, copies_max, purpose)?;
        let in_flight = self.begin_supers(&primaries);
        let failures = self.write_copies(&primaries, is_durable);
        in_flight.end(&failures);
        lost.extend(failures.iter().map(|(slot, _)| *slot));
        if !lost.is_empty() && !self.tolerates(&lost) {
            return Err(failures.into_iter().next().map_or_else(
                || VolumeError::NotFlushed { devids: self.devids(&lost) },
                |(_, error)| error,
            ));
        }
        self.record_failed_mirrors(None, &failures);
        others.retain(|(slot, ..)| !lost.contains(slot));
        if others.is_empty() {
            return Ok(());
        }
        // The writes of the first copies took a while.
        self.check_may_write()?;
        let failures = self.write_copies(&others, is_durable);
        self.record_failed_mirrors(None, &failures);
        Ok(())
    }

    /// Composes at most `copies_max` copies of the superblock for every device that gets one
    /// (law 6).
    fn super_copies(
        &self,
        raw: &RawSuperBlock,
        copies_max: usize,
        purpose: Purpose,
    ) -> Result<SuperCopies, VolumeError> {
        let (mut primaries, mut others) = (Copies::new(), Copies::new());
        let mut lost = Vec::new();
        for (slot, member) in self.members.iter().enumerate().filter(|(_, member)| !member.is_seed)
        {
            let is_unflushed = member.is_unflushed.load(Ordering::Relaxed);
            if is_unflushed || member.errors.has_flush_errors_after_record() {
                lost.push(slot);
                continue;
            }
            let own = match purpose {
                Purpose::Commit => self.own_super(raw, member),
                Purpose::Log => RawSuperBlock { dev_item: *member.committed_item.lock(), ..*raw },
            };
            let device_bytes = member.device.bytes().min(own.dev_item.total_bytes.get());
            for (copy, &offset) in COPY_OFFSETS.iter().enumerate().take(copies_max) {
                let end = offset.saturating_add(length(SUPER_BLOCK_BYTES));
                if copy > 0 && end >= device_bytes {
                    break;
                }
                let copies = if copy == 0 { &mut primaries } else { &mut others };
                let bytes = self.with_checksum(&own, offset);
                SuperBlock::check(&bytes, copy).map_err(|refused| {
                    let device = member.device.name().to_owned();
                    VolumeError::InvalidSuper { device, refused }
                })?;
                copies.push((slot, offset, bytes));
            }
        }
        Ok(SuperCopies { primaries, others, lost })
    }

    /// Writes superblock copies. Returns those that failed.
    fn write_copies(&self, copies: &Copies, is_durable: bool) -> Vec<(usize, VolumeError)> {
        let mut batch: Vec<WriteFrom<'_>> =
            copies.iter().map(|(slot, at, bytes)| WriteFrom::new(*slot, *at, bytes)).collect();
        for write in &mut batch {
            write.is_durable = is_durable;
        }
        self.queues.run_writes(&mut batch, None);
        let failed = batch.into_iter().filter_map(|write| {
            let (slot, bytes) = (write.device, length(write.bytes()));
            let source = write.result.err()?;
            Some((slot, self.write_failure(slot, write.offset, bytes, source)))
        });
        failed.collect()
    }

    /// Records that a flush of a device has failed, or may have, without which the volume is not
    /// complete (law 10).
    fn note_lost(&self, member: &Member) {
        self.lost_writes.get_or_init(|| vec![member.item().devid]);
    }

    /// Law 10.
    fn check_none_lost(&self) -> Result<(), VolumeError> {
        let lost = self.lost_writes.get();
        lost.map_or(Ok(()), |devids| Err(VolumeError::NotFlushed { devids: devids.clone() }))
    }

    /// Law 1.
    fn tolerate_failures(
        &self,
        lost: Vec<(usize, VolumeError)>,
        kind: DeviceEventKind,
    ) -> Result<(), VolumeError> {
        let slots: Vec<usize> = lost.iter().map(|(slot, _)| *slot).collect();
        if !slots.is_empty() && !self.tolerates(&slots) {
            if kind == DeviceEventKind::Flush {
                self.lost_writes.get_or_init(|| self.devids(&slots));
            }
            return lost.into_iter().next().map_or(Ok(()), |(_, error)| Err(error));
        }
        for (slot, error) in lost {
            self.record_event(Some(slot), kind, None, || chain(&error));
        }
        Ok(())
    }

    fn devids(&self, slots: &[usize]) -> Vec<butternut_format::units::DevId> {
        let members = slots.iter().filter_map(|slot| self.members.get(*slot));
        members.map(|member| member.item().devid).collect()
    }

    /// Checks that a device is as long as its item says (law 7).
    pub(crate) fn check_length(&self, member: &Member) -> Result<(), VolumeError> {
        self.record_length(member);
        let Some(have) = member.shrunk_to() else { return Ok(()) };
        Err(VolumeError::Short {
            device: member.device.name().to_owned(),
            devid: member.item().devid,
            have,
            want: self.total_bytes(member),
        })
    }

    /// Records a device that is too short. Returns whether the device never was.
    pub(crate) fn record_length(&self, member: &Member) -> bool {
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
        }
        own
    }

    /// Returns the superblock copy for one address, with its checksum.
    fn with_checksum(&self, own: &RawSuperBlock, offset: u64) -> Buffer {
        let mut copy = *own;
        copy.bytenr.set(offset);
        let csum = self.super_block().csum();
        let checksum = csum.compute(copy.as_bytes().get(copy.csum.len()..).unwrap_or_default());
        copy.csum = checksum;
        Buffer::copy_of(copy.as_bytes())
    }
}
