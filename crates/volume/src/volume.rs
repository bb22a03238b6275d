//! [`Volume`]: the devices of one filesystem, opened together, and the chunks on them.
//!
//! A volume is opened in three steps, because its chunk tree is itself stored in chunks:
//!
//! ```text
//! open            reads the superblocks, matches the devices, installs the system chunks
//! install_chunk   \  called by the reader of the chunk tree, which reads it
//! install_device  /  with read_block
//! seal            checks that the chunks fit, and that no device is missing that is needed
//! ```
//!
//! Laws:
//! 1. Device items say which devices the volume has; superblocks say which device each given one
//!    is. They are matched by devid and uuid.
//! 2. Without `degraded`, a missing device is an error that names it. With `degraded`, the volume
//!    opens if every chunk can be read, each by its own profile and from its own devices.
//! 3. A device of another volume that has no device item here is an error. A device of this volume
//!    without a device item, as a copy of one that was removed from it, is accepted for reading
//!    only: the chunks of a valid volume do not name it, so no data is read from it.
//! 4. A device that is shorter than its device item says is refused, as in the kernel: chunks may
//!    be at its end, or be allocated there later.

use crate::chunk_map::{ChunkMap, Chunks};
use crate::error::VolumeError;
use crate::in_place::InPlace;
use crate::members::{DeviceStatus, ErrorCounts, Member, match_devices};
use crate::queue_pool::QueuePool;
use crate::rescue::counts::Rescues;
use crate::stripe::{IoStripe, Layout};
use crate::super_blocks::{self, CopyReport};
use crate::write_guard::WriteGuard;
use arc_swap::ArcSwap;
use butternut_device::Device;
use butternut_format::chunk::{Chunk, Stripe};
use butternut_format::device_item::DeviceItem;
use butternut_format::node::BlockRules;
use butternut_format::super_block::{COPY_OFFSETS, SuperBlock};
use butternut_format::units::{DevId, Logical};
use butternut_sys::lock::{Mutex, MutexGuard, rank};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

/// Options for opening a volume.
#[derive(Clone, Debug, Default)]
pub struct OpenOptions {
    /// Opens with devices missing, if every chunk can still be read.
    pub degraded: bool,
    /// With `degraded`: opens even if chunks are lost. Reads from those fail.
    pub allow_lost_chunks: bool,
    /// Opens with devices that are shorter than their device items. For a checker, which reports
    /// them.
    pub allow_short_devices: bool,
    /// Uses only this superblock copy (0 to 2) of each device.
    pub super_copy: Option<usize>,
}

/// The devices of one filesystem, opened together, and the chunks on them.
#[derive(Debug)]
pub struct Volume {
    pub(crate) members: Box<[Member]>,
    pub(crate) queues: QueuePool,
    pub(crate) chunks: ChunkMap,
    pub(crate) rules: ArcSwap<BlockRules>,
    pub(crate) rescues: Rescues,
    super_block: SuperBlock,
    options: OpenOptions,
    items: Mutex<BTreeMap<(DevId, [u8; 16]), DeviceItem>, rank::DeviceItems>,
    writable_degraded: AtomicBool,
    pub(crate) in_place: InPlace,
    /// Held from the beginning of a flush until its result is recorded (law 10 of
    /// [`crate::barrier`]).
    pub(crate) device_flush: Mutex<(), rank::DeviceFlush>,
    pub(crate) write_guard: WriteGuard,
    /// The devices without which the volume is not complete, and that failed a flush (law 10 of
    /// [`crate::barrier`]).
    pub(crate) lost_writes: OnceLock<Vec<DevId>>,
    unread_first_copy: Option<String>,
}

impl Volume {
    /// Reads the superblocks, matches the devices and installs the system chunks.
    ///
    /// # Errors
    ///
    /// If a device has no usable superblock, or the devices belong to different volumes.
    pub fn open(devices: Vec<Arc<dyn Device>>, options: OpenOptions) -> Result<Self, VolumeError> {
        let mut given = Vec::with_capacity(devices.len());
        let mut unread = None;
        for device in devices {
            let copies = super_blocks::read_copies(device.as_ref());
            if options.super_copy.is_none() && copies.iter().any(CopyReport::is_unread_first) {
                unread = unread.or_else(|| Some(device.name().to_owned()));
            }
            let super_block = super_blocks::choose_of(device.as_ref(), copies, options.super_copy)?;
            given.push((device, super_block));
        }
        let (members, super_block) = match_devices(given)?;
        let is_first_copy = super_block.raw().bytenr.get() == COPY_OFFSETS[0];
        let mut rules = BlockRules::of(&super_block);
        for seed in members.iter().filter(|member| member.is_seed) {
            rules.fsids.push(seed.super_block.metadata_uuid());
        }
        let devices: Arc<[_]> = members.iter().map(|member| Arc::clone(&member.device)).collect();
        let volume = Self {
            members: members.into_boxed_slice(),
            queues: QueuePool::new(devices),
            chunks: ChunkMap::default(),
            rules: ArcSwap::from_pointee(rules),
            rescues: Rescues::default(),
            super_block: super_block.clone(),
            options,
            items: Mutex::default(),
            writable_degraded: AtomicBool::new(false),
            in_place: InPlace::default(),
            device_flush: Mutex::default(),
            write_guard: WriteGuard::default(),
            lost_writes: OnceLock::new(),
            unread_first_copy: unread.filter(|_| !is_first_copy),
        };
        for chunk in super_block.system_chunks() {
            let chunk = chunk.map_err(VolumeError::Chunk)?;
            volume.install_chunk(chunk.logical, &chunk)?;
        }
        volume.chunks.publish().map_err(VolumeError::Chunk)?;
        Ok(volume)
    }

    /// Adds a chunk. A chunk that overlaps another is reported by [`Volume::seal`] or
    /// [`Volume::publish_chunks`].
    pub fn install_chunk(&self, logical: Logical, chunk: &Chunk) -> Result<(), VolumeError> {
        let stripes = chunk.stripes.iter().map(|stripe| self.resolve(stripe)).collect();
        let layout =
            Layout::new(logical, chunk.bytes, chunk.flags, stripes).map_err(VolumeError::Chunk)?;
        self.chunks.stage(layout);
        Ok(())
    }

    /// Makes the installed chunks visible in a volume that is in use.
    ///
    /// # Errors
    ///
    /// If a chunk overlaps another. That chunk is left out.
    pub fn publish_chunks(&self) -> Result<(), VolumeError> {
        self.chunks.publish().map_err(VolumeError::Chunk)
    }

    /// Removes the chunk that begins at an address. Returns whether there was one.
    pub fn remove_chunk(&self, logical: Logical) -> bool {
        self.chunks.remove(logical).is_some()
    }

    /// Adds or replaces a device item of the chunk tree.
    pub fn install_device(&self, item: &DeviceItem) {
        let rules = self.rules.load();
        if !rules.fsids.contains(&item.fsid) {
            let mut wider = BlockRules::clone(&rules);
            wider.fsids.push(item.fsid);
            self.rules.store(Arc::new(wider));
        }
        self.items().insert((item.devid, item.uuid), *item);
    }

    /// Decides whether the volume can be used with the devices that are present (laws 2 to 4).
    pub fn seal(&self) -> Result<(), VolumeError> {
        self.publish_chunks()?;
        let chunks = self.chunks();
        self.refuse_foreign_devices()?;
        self.refuse_short_devices()?;
        let devids = self.missing(&chunks);
        self.writable_degraded
            .store(chunks.iter().all(|chunk| chunk.is_writable()), Ordering::Relaxed);
        if devids.is_empty() {
            return Ok(());
        }
        if !self.options.degraded {
            return Err(VolumeError::MissingDevices { devids });
        }
        let lost: Vec<Logical> = chunks
            .iter()
            .filter(|chunk| !chunk.is_readable())
            .map(|chunk| chunk.logical())
            .collect();
        if lost.is_empty() || self.options.allow_lost_chunks {
            return Ok(());
        }
        Err(VolumeError::ChunksLost { devids, chunks: chunks.len(), lost })
    }

    /// Returns the name of the first device of the volume without a device item (law 3).
    pub fn unlisted_device(&self) -> Option<&str> {
        let items = self.items();
        let is_unlisted = |member: &&Member| {
            !member.is_seed && !items.contains_key(&(member.item().devid, member.item().uuid))
        };
        self.members.iter().find(is_unlisted).map(|member| member.device.name())
    }

    /// Returns the name of a device that could not read its first superblock copy, if no first copy
    /// is in use. Only first copies name a log. `None` if [`OpenOptions::super_copy`] is set.
    pub fn unread_first_copy(&self) -> Option<&str> {
        self.unread_first_copy.as_deref()
    }

    /// Returns the newest superblock of the volume, as it was when the volume was opened.
    pub fn super_block(&self) -> &SuperBlock {
        &self.super_block
    }

    /// Returns the chunks as they are now.
    pub fn chunks(&self) -> Arc<Chunks> {
        Arc::clone(&self.chunks.load())
    }

    /// Returns the rules that every tree block is checked against.
    pub fn block_rules(&self) -> Arc<BlockRules> {
        self.rules.load_full()
    }

    /// Returns whether every chunk could be written with the devices that are present, by the
    /// kernel's rule for degraded mounts. Known after [`Volume::seal`].
    pub fn writable_degraded(&self) -> bool {
        self.writable_degraded.load(Ordering::Relaxed)
    }

    /// Returns every device that the volume lists, and every device that was given, by devid.
    pub fn devices(&self) -> Vec<DeviceStatus> {
        let items = self.items();
        let mut all: Vec<DeviceStatus> = self
            .members
            .iter()
            .map(|member| DeviceStatus {
                devid: member.item().devid,
                uuid: member.item().uuid,
                item: items.get(&(member.item().devid, member.item().uuid)).copied(),
                device: Some(Arc::clone(&member.device)),
                generation: Some(member.super_block.generation()),
                is_stale: member.is_stale,
                is_seed: member.is_seed,
                errors: member.errors.now(),
            })
            .collect();
        let missing = items.values().filter(|item| self.slot(item.devid, &item.uuid).is_none());
        all.extend(missing.map(|item| DeviceStatus {
            devid: item.devid,
            uuid: item.uuid,
            item: Some(*item),
            device: None,
            generation: None,
            is_stale: false,
            is_seed: false,
            errors: ErrorCounts::default(),
        }));
        all.sort_by_key(|status| (status.devid, status.uuid));
        all
    }

    /// Returns whether the chunk of an address is on a seed device, which is never written to.
    pub fn is_on_seed(&self, logical: Logical) -> bool {
        let seeds = |stripe: &IoStripe| {
            stripe.slot.and_then(|slot| self.members.get(slot)).is_some_and(|member| member.is_seed)
        };
        self.members.iter().any(|member| member.is_seed)
            && self.chunks().find(logical).is_some_and(|layout| layout.stripes().iter().any(seeds))
    }

    fn resolve(&self, stripe: &Stripe) -> IoStripe {
        let slot = self.slot(stripe.devid, &stripe.dev_uuid);
        let member = slot.and_then(|slot| self.members.get(slot));
        IoStripe {
            devid: stripe.devid,
            uuid: stripe.dev_uuid,
            physical: stripe.offset,
            slot,
            is_stale: member.is_some_and(|member| member.is_stale),
        }
    }

    fn slot(&self, devid: DevId, uuid: &[u8; 16]) -> Option<usize> {
        self.members.iter().position(|member| member.is(devid, uuid))
    }

    /// Law 3.
    fn refuse_foreign_devices(&self) -> Result<(), VolumeError> {
        let items = self.items();
        let foreign = self.members.iter().find(|member| {
            member.is_seed && !items.contains_key(&(member.item().devid, member.item().uuid))
        });
        let Some(foreign) = foreign else { return Ok(()) };
        let own = self.members.iter().find(|member| !member.is_seed);
        Err(VolumeError::OtherVolume {
            device: foreign.device.name().to_owned(),
            have: foreign.super_block.fsid(),
            want: self.super_block.fsid(),
            other: own.map_or_else(String::new, |member| member.device.name().to_owned()),
        })
    }

    /// Law 4.
    fn refuse_short_devices(&self) -> Result<(), VolumeError> {
        if self.options.allow_short_devices {
            return Ok(());
        }
        let items = self.items();
        for member in &self.members {
            let known = member.item();
            let item = items.get(&(known.devid, known.uuid));
            let want = item.map_or(known.total_bytes, |item| item.total_bytes);
            let have = member.device.bytes();
            if have < want {
                let device = member.device.name().to_owned();
                return Err(VolumeError::Short { device, devid: known.devid, have, want });
            }
        }
        Ok(())
    }

    pub(crate) fn is_degraded(&self) -> bool {
        self.options.degraded
    }

    /// Returns the devices that a device item or a chunk names and that were not given.
    fn missing(&self, chunks: &Chunks) -> Vec<DevId> {
        let items = self.items();
        let listed = items
            .values()
            .filter(|item| self.slot(item.devid, &item.uuid).is_none())
            .map(|item| item.devid);
        let stripes = chunks.iter().flat_map(|chunk| chunk.stripes());
        let used = stripes.filter(|stripe| stripe.slot.is_none()).map(|stripe| stripe.devid);
        let mut devids: Vec<DevId> = listed.chain(used).collect();
        devids.sort_unstable();
        devids.dedup();
        devids
    }

    pub(crate) fn items(&self) -> MutexGuard<'_, BTreeMap<(DevId, [u8; 16]), DeviceItem>> {
        self.items.lock()
    }
}
