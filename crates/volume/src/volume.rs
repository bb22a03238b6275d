//! [`Volume`]: devices that were opened together, and the chunks that lie on them.
//!
//! A volume is opened in three steps, because its chunk tree lies in chunks itself:
//!
//! ```text
//! open            superblocks read, devices matched, system chunks installed
//! install_chunk   \  fed by who reads the chunk tree, through
//! install_device  /  read_block
//! seal            the chunks fit, no device is missing, or what is missing can be done without
//! ```
//!
//! Laws:
//! 1. What a device must be is said by the device items; what it is, by its superblock. They meet
//!    by devid and uuid.
//! 2. Without `degraded` a missing device is an error that names it. With it, the volume opens if
//!    every chunk can be read, each by its own profile and its own devices.
//! 3. A device that the volume does not list is not read from. If it is of another volume, giving
//!    it was a mistake, and is refused.
//! 4. A device that ends before its device item says is refused, as the kernel refuses it: chunks
//!    may lie, or be made, behind its end.

use crate::barrier::InPlace;
use crate::chunk_map::{ChunkMap, Chunks};
use crate::error::VolumeError;
use crate::lanes::Lanes;
use crate::members::{DeviceStatus, ErrorCounts, Member, gather};
use crate::rescue::Rescues;
use crate::stripe::{Layout, Place};
use crate::super_blocks;
use arc_swap::ArcSwap;
use butternut_device::Device;
use butternut_format::chunk::{Chunk, Stripe};
use butternut_format::device_item::DeviceItem;
use butternut_format::node::BlockRules;
use butternut_format::super_block::SuperBlock;
use butternut_format::units::{DevId, Logical};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// How to open a volume.
#[derive(Clone, Debug, Default)]
pub struct OpenOptions {
    /// Open with devices missing, if every chunk can still be read.
    pub degraded: bool,
    /// With `degraded`: open even if chunks are lost; reads from those fail.
    pub allow_lost_chunks: bool,
    /// Open with devices that are shorter than their device items: for a checker, which reports
    /// them.
    pub allow_short_devices: bool,
    /// Believe this superblock copy (0 to 2) of each device, and no other.
    pub super_copy: Option<usize>,
}

/// Devices that were opened together, and the chunks that lie on them.
#[derive(Debug)]
pub struct Volume {
    pub(crate) members: Box<[Member]>,
    pub(crate) lanes: Lanes,
    pub(crate) chunks: ChunkMap,
    pub(crate) rules: ArcSwap<BlockRules>,
    pub(crate) rescues: Rescues,
    super_block: SuperBlock,
    options: OpenOptions,
    items: Mutex<BTreeMap<(DevId, [u8; 16]), DeviceItem>>,
    writable_degraded: AtomicBool,
    pub(crate) in_place: InPlace,
}

impl Volume {
    /// Reads the superblocks, matches the devices, and installs the system chunks.
    pub fn open(devices: Vec<Arc<dyn Device>>, options: OpenOptions) -> Result<Self, VolumeError> {
        let mut given = Vec::with_capacity(devices.len());
        for device in devices {
            let super_block = super_blocks::choose(device.as_ref(), options.super_copy)?;
            given.push((device, super_block));
        }
        let (members, super_block) = gather(given)?;
        let mut rules = BlockRules::of(&super_block);
        for seed in members.iter().filter(|member| member.is_seed) {
            rules.fsids.push(seed.super_block.metadata_uuid());
        }
        let devices: Arc<[_]> = members.iter().map(|member| Arc::clone(&member.device)).collect();
        let volume = Self {
            members: members.into_boxed_slice(),
            lanes: Lanes::new(devices),
            chunks: ChunkMap::default(),
            rules: ArcSwap::from_pointee(rules),
            rescues: Rescues::default(),
            super_block: super_block.clone(),
            options,
            items: Mutex::default(),
            writable_degraded: AtomicBool::new(false),
            in_place: InPlace::default(),
        };
        for chunk in super_block.system_chunks() {
            let chunk = chunk.map_err(VolumeError::Chunk)?;
            volume.install_chunk(chunk.logical, &chunk)?;
        }
        volume.chunks.settle().map_err(VolumeError::Chunk)?;
        Ok(volume)
    }

    /// Adds a chunk. One that overlaps another is refused when the volume is sealed.
    pub fn install_chunk(&self, logical: Logical, chunk: &Chunk) -> Result<(), VolumeError> {
        let places = chunk.stripes.iter().map(|stripe| self.place(stripe)).collect();
        let layout =
            Layout::new(logical, chunk.bytes, chunk.flags, places).map_err(VolumeError::Chunk)?;
        self.chunks.stage(layout);
        Ok(())
    }

    /// Says whether all chunks that were installed fit, for who installs them in a volume that is
    /// in use; one that overlaps another is refused, and left out.
    pub fn settle_chunks(&self) -> Result<(), VolumeError> {
        self.chunks.settle().map_err(VolumeError::Chunk)
    }

    /// Takes out the chunk that begins at an address. Says whether there was one.
    pub fn remove_chunk(&self, logical: Logical) -> bool {
        self.chunks.remove(logical).is_some()
    }

    /// Adds what the chunk tree says of a device, or what it says now.
    pub fn install_device(&self, item: &DeviceItem) {
        let rules = self.rules.load();
        if !rules.fsids.contains(&item.fsid) {
            let mut wider = BlockRules::clone(&rules);
            wider.fsids.push(item.fsid);
            self.rules.store(Arc::new(wider));
        }
        self.items().insert((item.devid, item.uuid), *item);
    }

    /// Decides whether the volume can be used with the devices that are there (laws 2 and 3).
    pub fn seal(&self) -> Result<(), VolumeError> {
        self.settle_chunks()?;
        let chunks = self.chunks();
        self.refuse_strangers()?;
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

    /// The newest superblock of the volume, as it was when the volume was opened.
    pub fn super_block(&self) -> &SuperBlock {
        &self.super_block
    }

    /// The chunks as they are now.
    pub fn chunks(&self) -> Arc<Chunks> {
        Arc::clone(&self.chunks.load())
    }

    /// What every block is held to.
    pub fn block_rules(&self) -> Arc<BlockRules> {
        self.rules.load_full()
    }

    /// Whether every chunk could be written with the devices that are there, by the rule the
    /// kernel mounts by. Known once sealed.
    pub fn writable_degraded(&self) -> bool {
        self.writable_degraded.load(Ordering::Relaxed)
    }

    /// Every device that the volume lists, and every one that was given, by devid.
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

    fn place(&self, stripe: &Stripe) -> Place {
        let slot = self.slot(stripe.devid, &stripe.dev_uuid);
        let member = slot.and_then(|slot| self.members.get(slot));
        Place {
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
    fn refuse_strangers(&self) -> Result<(), VolumeError> {
        let items = self.items();
        let stranger = self.members.iter().find(|member| {
            member.is_seed && !items.contains_key(&(member.item().devid, member.item().uuid))
        });
        let Some(stranger) = stranger else { return Ok(()) };
        let own = self.members.iter().find(|member| !member.is_seed);
        Err(VolumeError::OtherVolume {
            device: stranger.device.name().to_owned(),
            have: stranger.super_block.fsid(),
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

    /// Devices that an item or a chunk names, and that were not given.
    fn missing(&self, chunks: &Chunks) -> Vec<DevId> {
        let items = self.items();
        let listed = items
            .values()
            .filter(|item| self.slot(item.devid, &item.uuid).is_none())
            .map(|item| item.devid);
        let places = chunks.iter().flat_map(|chunk| chunk.places());
        let used = places.filter(|place| place.slot.is_none()).map(|place| place.devid);
        let mut devids: Vec<DevId> = listed.chain(used).collect();
        devids.sort_unstable();
        devids.dedup();
        devids
    }

    pub(crate) fn items(&self) -> MutexGuard<'_, BTreeMap<(DevId, [u8; 16]), DeviceItem>> {
        self.items.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
