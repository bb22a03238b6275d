//! The devices of a volume: which of those given belong together, and what each has done wrong.
//!
//! Laws:
//! 1. Devices belong together by the fsid of their superblocks. A device of another volume is
//!    refused by name, unless that volume is a seed; whether the seed is ours is known once the
//!    device items are.
//! 2. Of the volumes given, the one that is no seed is the one to open; of a chain of seeds the
//!    one with the newest generation, which is the last grown.
//! 3. The newest superblock of the volume speaks for it. A device with an older one is stale: its
//!    copies are asked last, because what they hold passes its checksum and is out of date.
//! 4. Two devices with one devid and one uuid are the same device at two times, as after cloning
//!    an image: the newer generation wins, as in the kernel. At equal generations nobody can tell
//!    them apart, and both are refused by name.
//! 5. One devid with two uuids is two devices. Chunks name the uuid, so each finds its own.

use crate::error::VolumeError;
use crate::missed::MissedRanges;
use crate::troubles::Troubles;
use butternut_device::Device;
use butternut_format::device_item::DeviceItem;
use butternut_format::super_block::SuperBlock;
use butternut_format::units::{DevId, Generation};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// A device that was given, and its superblock.
#[derive(Debug)]
pub(crate) struct Member {
    pub(crate) device: Arc<dyn Device>,
    pub(crate) super_block: SuperBlock,
    /// Of another volume, which this one may have grown from.
    pub(crate) is_seed: bool,
    pub(crate) is_stale: bool,
    pub(crate) errors: ErrorCounters,
    pub(crate) missed: MissedRanges,
    /// The last flush of the device failed.
    pub(crate) is_unflushed: AtomicBool,
    pub(crate) last_super: Mutex<LastSuper>,
    /// How long the device was when it was found to be shorter than its item.
    shrunk_to: Mutex<Option<u64>>,
    pub(crate) troubles: Troubles,
}

/// What this process knows of the first superblock on a device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum LastSuper {
    /// Nothing was written yet.
    #[default]
    Opened,
    /// The one with this checksum was written.
    Written([u8; 32]),
    /// A write failed, and may have left anything.
    Unknown,
}

impl Member {
    fn new(
        device: Arc<dyn Device>,
        super_block: SuperBlock,
        is_seed: bool,
        is_stale: bool,
    ) -> Self {
        Self {
            device,
            super_block,
            is_seed,
            is_stale,
            errors: ErrorCounters::default(),
            missed: MissedRanges::default(),
            is_unflushed: AtomicBool::new(false),
            last_super: Mutex::default(),
            shrunk_to: Mutex::default(),
            troubles: Troubles::default(),
        }
    }

    /// Whether the device has missed a write or a flush since it was opened, or before.
    pub(crate) fn has_failed(&self) -> bool {
        self.is_stale || self.errors.session_failed.load(Ordering::Relaxed)
    }

    pub(crate) fn shrunk_to(&self) -> Option<u64> {
        *self.shrunk_to.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn set_shrunk_to(&self, bytes: u64) {
        *self.shrunk_to.lock().unwrap_or_else(PoisonError::into_inner) = Some(bytes);
    }

    pub(crate) fn item(&self) -> &DeviceItem {
        self.super_block.device()
    }

    pub(crate) fn is(&self, devid: DevId, uuid: &[u8; 16]) -> bool {
        self.item().devid == devid && self.item().uuid == *uuid
    }
}

/// Copies of a device that were no good, by what was wrong with them: those on record and those
/// of this session together.
#[derive(Debug, Default)]
pub(crate) struct ErrorCounters {
    reads: AtomicU64,
    writes: AtomicU64,
    flushes: AtomicU64,
    corruptions: AtomicU64,
    generations: AtomicU64,
    /// A write or a flush failed since the volume was opened.
    session_failed: AtomicBool,
    /// A flush failed, or the record had missed writes when the volume was opened: which ranges
    /// the device has missed is not known.
    missed_unknown: AtomicBool,
    /// The counts as the volume has them on record.
    recorded: Mutex<ErrorCounts>,
}

/// The error counters at one moment, named as `btrfs device stats` names them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ErrorCounts {
    /// Read requests that failed.
    pub read_errors: u64,
    /// Write requests that failed.
    pub write_errors: u64,
    /// Flushes that failed.
    pub flush_errors: u64,
    /// Sectors and blocks with a wrong checksum or wrong contents.
    pub corruption_errors: u64,
    /// Blocks of another generation than their parent promised.
    pub generation_errors: u64,
}

impl ErrorCounts {
    /// Whether the device may hold old bytes where newer ones were written.
    pub(crate) fn has_missed_writes(&self) -> bool {
        self.write_errors > 0 || self.flush_errors > 0
    }
}

impl ErrorCounters {
    pub(crate) fn has_missed_writes(&self) -> bool {
        self.writes.load(Ordering::Relaxed) > 0 || self.flushes.load(Ordering::Relaxed) > 0
    }

    pub(crate) fn add_recorded(&self, counts: &ErrorCounts) {
        self.reads.fetch_add(counts.read_errors, Ordering::Relaxed);
        self.writes.fetch_add(counts.write_errors, Ordering::Relaxed);
        self.flushes.fetch_add(counts.flush_errors, Ordering::Relaxed);
        self.corruptions.fetch_add(counts.corruption_errors, Ordering::Relaxed);
        self.generations.fetch_add(counts.generation_errors, Ordering::Relaxed);
        if counts.has_missed_writes() {
            self.missed_unknown.store(true, Ordering::Relaxed);
        }
        self.set_recorded(counts);
    }

    pub(crate) fn recorded(&self) -> ErrorCounts {
        *self.lock_recorded()
    }

    pub(crate) fn set_recorded(&self, counts: &ErrorCounts) {
        *self.lock_recorded() = *counts;
    }

    fn lock_recorded(&self) -> MutexGuard<'_, ErrorCounts> {
        self.recorded.lock().unwrap_or_else(PoisonError::into_inner)
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
        self.missed_unknown.store(true, Ordering::Relaxed);
        self.session_failed.store(true, Ordering::Relaxed);
    }

    /// Whether the device has missed what no [`MissedRanges`] names.
    pub(crate) fn has_missed_unknown(&self) -> bool {
        self.missed_unknown.load(Ordering::Relaxed)
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

/// One device of the volume, there or missing.
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

/// Sorts out the devices given (laws 1 to 4): the members, and the newest superblock.
pub(crate) fn gather(
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

/// The superblock that speaks for the volume to open.
fn primary(given: &[(Arc<dyn Device>, SuperBlock)]) -> Result<SuperBlock, VolumeError> {
    let all_seeds = given.iter().all(|(_, super_block)| super_block.is_seeding());
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
            Some((_, super_block)) if super_block.generation() >= candidate.1.generation() => {}
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
