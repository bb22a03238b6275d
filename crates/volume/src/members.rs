//! The devices of a volume: which of the given devices belong together, and their error counts.
//!
//! Laws:
//! 1. Devices belong together by the fsid of their superblocks. A device of another volume is
//!    refused by name, unless that volume is a seed. Whether the volume was grown from that seed is
//!    known once its device items are installed.
//! 2. If several volumes are given, the one that is not a seed is opened. If all are seeds, the one
//!    with the newest generation is opened, which is the last one grown.
//! 3. The newest superblock of the volume is authoritative; of equally new ones a first copy, which
//!    alone names a log, and of several that of the lowest devid, as in the kernel, in whatever
//!    order the devices are given. A crash while a log is synced may leave different logs on them,
//!    and the space of one that was not replayed is used again. A device with an older superblock
//!    is stale: its mirrors are read last, because old blocks on it pass their checksums.
//! 4. Two devices with the same devid and uuid are two versions of one device, for example a cloned
//!    image: the newer generation wins, as in the kernel. With equal generations both are refused
//!    by name.
//! 5. One devid with two uuids is two devices. Chunks name the uuid, so each chunk finds its own.

use crate::device_events::DeviceEvents;
use crate::error::VolumeError;
use crate::last_super::LastSuper;
use crate::stale_ranges::StaleRanges;
use butternut_device::Device;
use butternut_format::device_item::{DeviceItem, RawDeviceItem};
use butternut_format::super_block::{COPY_OFFSETS, SuperBlock};
use butternut_format::units::{DevId, Generation};
use butternut_sys::lock::{Mutex, MutexGuard, rank};
use std::cmp::Reverse;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// A device that was given, and its superblock.
#[derive(Debug)]
pub(crate) struct Member {
    pub(crate) device: Arc<dyn Device>,
    pub(crate) super_block: SuperBlock,
    /// It belongs to another volume, from which this one may have been grown.
    pub(crate) is_seed: bool,
    pub(crate) is_stale: bool,
    pub(crate) errors: ErrorCounters,
    pub(crate) stale_ranges: StaleRanges,
    /// The last flush of the device failed.
    pub(crate) is_unflushed: AtomicBool,
    pub(crate) last_super: LastSuper,
    /// The device item in the superblock of the last commit (law 2 of [`crate::barrier`]).
    pub(crate) committed_item: Mutex<RawDeviceItem, rank::LastSuper>,
    /// The length of the device when it was found to be shorter than its item.
    shrunk_to: Mutex<Option<u64>, rank::ShrunkTo>,
    pub(crate) events: DeviceEvents,
}

impl Member {
    fn new(
        device: Arc<dyn Device>,
        super_block: SuperBlock,
        is_seed: bool,
        is_stale: bool,
    ) -> Self {
        let committed_item = Mutex::new(super_block.raw().dev_item);
        Self {
            device,
            super_block,
            is_seed,
            is_stale,
            errors: ErrorCounters::default(),
            stale_ranges: StaleRanges::default(),
            is_unflushed: AtomicBool::new(false),
            last_super: LastSuper::default(),
            committed_item,
            shrunk_to: Mutex::default(),
            events: DeviceEvents::default(),
        }
    }

    /// Returns whether the device has failed a write or a flush since it was opened, or is stale.
    pub(crate) fn has_failed(&self) -> bool {
        self.is_stale || self.errors.session_failed.load(Ordering::Relaxed)
    }

    pub(crate) fn shrunk_to(&self) -> Option<u64> {
        *self.shrunk_to.lock()
    }

    pub(crate) fn set_shrunk_to(&self, bytes: u64) {
        *self.shrunk_to.lock() = Some(bytes);
    }

    pub(crate) fn item(&self) -> &DeviceItem {
        self.super_block.device()
    }

    pub(crate) fn is(&self, devid: DevId, uuid: &[u8; 16]) -> bool {
        self.item().devid == devid && self.item().uuid == *uuid
    }
}

/// Errors of one device by kind: those on record and those of this session together.
#[derive(Debug, Default)]
pub(crate) struct ErrorCounters {
    reads: AtomicU64,
    writes: AtomicU64,
    flushes: AtomicU64,
    corruptions: AtomicU64,
    generations: AtomicU64,
    /// A write or a flush has failed since the volume was opened.
    session_failed: AtomicBool,
    /// A flush has failed, or failed writes were on record when the volume was opened: it is not
    /// known which ranges of the device are stale.
    unknown_stale_ranges: AtomicBool,
    /// The failed flushes that the commit in progress, or the last one, has put on record.
    flushes_in_commit: AtomicU64,
    /// The counts that the volume has on record.
    recorded: Mutex<ErrorCounts, rank::RecordedErrors>,
}

/// The error counts at one moment, with the names of `btrfs device stats`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ErrorCounts {
    /// Failed read requests.
    pub read_errors: u64,
    /// Failed write requests.
    pub write_errors: u64,
    /// Failed flushes.
    pub flush_errors: u64,
    /// Sectors and blocks with a wrong checksum or wrong contents.
    pub corruption_errors: u64,
    /// Blocks with another generation than their parent expects.
    pub generation_errors: u64,
}

impl ErrorCounts {
    /// Returns whether the device may hold old bytes.
    pub(crate) fn has_failed_writes(&self) -> bool {
        self.write_errors > 0 || self.flush_errors > 0
    }
}

impl ErrorCounters {
    pub(crate) fn has_failed_writes(&self) -> bool {
        self.writes.load(Ordering::Relaxed) > 0 || self.flushes.load(Ordering::Relaxed) > 0
    }

    pub(crate) fn add_recorded(&self, counts: &ErrorCounts) {
        self.reads.fetch_add(counts.read_errors, Ordering::Relaxed);
        self.writes.fetch_add(counts.write_errors, Ordering::Relaxed);
        self.flushes.fetch_add(counts.flush_errors, Ordering::Relaxed);
        self.corruptions.fetch_add(counts.corruption_errors, Ordering::Relaxed);
        self.generations.fetch_add(counts.generation_errors, Ordering::Relaxed);
        if counts.has_failed_writes() {
            self.unknown_stale_ranges.store(true, Ordering::Relaxed);
        }
        self.flushes_in_commit.store(counts.flush_errors, Ordering::Release);
        self.set_recorded(counts);
    }

    /// Returns the counts, which a commit now puts on record.
    pub(crate) fn for_commit(&self) -> ErrorCounts {
        let counts = self.now();
        self.flushes_in_commit.store(counts.flush_errors, Ordering::Release);
        counts
    }

    /// Whether a flush has failed that no commit has put on record.
    pub(crate) fn has_flush_errors_after_record(&self) -> bool {
        self.flushes.load(Ordering::Acquire) > self.flushes_in_commit.load(Ordering::Acquire)
    }

    pub(crate) fn recorded(&self) -> ErrorCounts {
        *self.lock_recorded()
    }

    pub(crate) fn set_recorded(&self, counts: &ErrorCounts) {
        *self.lock_recorded() = *counts;
    }

    fn lock_recorded(&self) -> MutexGuard<'_, ErrorCounts> {
        self.recorded.lock()
    }

    pub(crate) fn count_read(&self) {
        self.reads.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn count_write(&self) {
        self.writes.fetch_add(1, Ordering::Relaxed);
        self.session_failed.store(true, Ordering::Relaxed);
    }

    pub(crate) fn count_flush(&self) {
        self.flushes.fetch_add(1, Ordering::Relaxed);
        self.unknown_stale_ranges.store(true, Ordering::Relaxed);
        self.session_failed.store(true, Ordering::Relaxed);
    }

    /// Returns whether ranges may be stale that are not in [`StaleRanges`].
    pub(crate) fn has_unknown_stale_ranges(&self) -> bool {
        self.unknown_stale_ranges.load(Ordering::Relaxed)
    }

    pub(crate) fn count_corruption(&self) {
        self.corruptions.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn count_generation(&self) {
        self.generations.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn now(&self) -> ErrorCounts {
        ErrorCounts {
            read_errors: self.reads.load(Ordering::Relaxed),
            write_errors: self.writes.load(Ordering::Relaxed),
            flush_errors: self.flushes.load(Ordering::Relaxed),
            corruption_errors: self.corruptions.load(Ordering::Relaxed),
            generation_errors: self.generations.load(Ordering::Relaxed),
        }
    }
}

/// One device of the volume, present or missing.
#[derive(Clone, Debug)]
pub struct DeviceStatus {
    pub devid: DevId,
    pub uuid: [u8; 16],
    /// The device item of the chunk tree; `None` for a device that the volume does not list.
    pub item: Option<DeviceItem>,
    /// `None` for a missing device.
    pub device: Option<Arc<dyn Device>>,
    /// The generation of its superblock; `None` for a missing device.
    pub generation: Option<Generation>,
    pub is_stale: bool,
    pub is_seed: bool,
    pub errors: ErrorCounts,
}

impl DeviceStatus {
    pub fn is_missing(&self) -> bool {
        self.device.is_none()
    }
}

/// Matches the given devices (laws 1 to 4). Returns the members and the newest superblock.
pub(crate) fn match_devices(
    given: Vec<(Arc<dyn Device>, SuperBlock)>,
) -> Result<(Vec<Member>, SuperBlock), VolumeError> {
    let primary = primary(&given)?;
    let (fsid, newest) = (primary.fsid(), primary.generation());
    let mut members: Vec<Member> = Vec::with_capacity(given.len());
    for (device, super_block) in given {
        let is_seed = super_block.fsid() != fsid;
        let is_stale = !is_seed && super_block.generation() < newest;
        let member = Member::new(device, super_block, is_seed, is_stale);
        match members.iter_mut().find(|other| other.is(member.item().devid, &member.item().uuid)) {
            Some(other) => keep_newer(other, member)?,
            None => members.push(member),
        }
    }
    Ok((members, primary))
}

/// Returns the superblock of the volume to open.
fn primary(given: &[(Arc<dyn Device>, SuperBlock)]) -> Result<SuperBlock, VolumeError> {
    let all_seeds = given.iter().all(|(_, super_block)| super_block.is_seeding());
    let newness = |super_block: &SuperBlock| {
        let is_first_copy = super_block.raw().bytenr.get() == COPY_OFFSETS[0];
        (super_block.generation(), is_first_copy, Reverse(super_block.device().devid))
    };
    let mut best: Option<&(Arc<dyn Device>, SuperBlock)> = None;
    for candidate in given {
        if candidate.1.is_seeding() && !all_seeds {
            continue;
        }
        match best {
            Some((device, super_block)) if super_block.fsid() != candidate.1.fsid() => {
                if !all_seeds {
                    return Err(other_volume(candidate, device.name(), super_block));
                }
                if candidate.1.generation() > super_block.generation() {
                    best = Some(candidate);
                }
            }
            Some((_, super_block)) if newness(super_block) >= newness(&candidate.1) => {}
            Some(_) | None => best = Some(candidate),
        }
    }
    best.map(|(_, super_block)| super_block.clone()).ok_or(VolumeError::NoDevices)
}

fn other_volume(
    (device, super_block): &(Arc<dyn Device>, SuperBlock),
    other: &str,
    wanted: &SuperBlock,
) -> VolumeError {
    VolumeError::OtherVolume {
        device: device.name().to_owned(),
        have: super_block.fsid(),
        want: wanted.fsid(),
        other: other.to_owned(),
    }
}

fn keep_newer(kept: &mut Member, other: Member) -> Result<(), VolumeError> {
    let (first, second) = (kept.super_block.generation(), other.super_block.generation());
    if first == second {
        return Err(VolumeError::DuplicateDevice {
            first: kept.device.name().to_owned(),
            second: other.device.name().to_owned(),
            devid: kept.item().devid,
            generation: first,
        });
    }
    if second > first {
        *kept = other;
    }
    Ok(())
}
