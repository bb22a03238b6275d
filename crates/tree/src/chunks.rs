//! Chunks that come and go: space is taken from devices when a class of groups is full, and given
//! back when a group is empty. The items that say so are written by the commit.
//!
//! Laws:
//!
//! 1. A chunk is usable at once, and its items are in the transaction of its first block: it is
//!    made only while a handle is open, or by the commit itself before its last round.
//! 2. A chunk of the system class is in the superblock's array too, from the commit that writes its
//!    item until the one that removes it.
//! 3. The place of a chunk that goes is not used before the commit that says so is down.
//! 4. The last group of a kind stays, and so does one whose room has been promised.

use crate::block_groups;
use crate::commit::Step;
use crate::error::TreeError;
use crate::forest::Forest;
use crate::running::Running;
use butternut_format::chunk::{BlockGroupFlags, CHUNK_IO_BYTES, Chunk, FIRST_CHUNK_TREE, Stripe};
use butternut_format::device_extent::{DeviceExtent as ExtentItem, RawDeviceExtent};
use butternut_format::device_item::{DEV_ITEMS, DeviceItem, RawDeviceItem};
use butternut_format::key::{ItemType, Key, RawKey};
use butternut_format::refused::Refused;
use butternut_format::super_block::{SYS_CHUNK_ARRAY_BYTES, SystemChunks};
use butternut_format::units::{DevId, Logical, TreeId, index, length};
use butternut_space::{
    ChunkPlan, Class, DeviceExtent, Group, GroupChange, GroupStatus, Space, excluded_ranges,
};
use butternut_volume::{DeviceStatus, Layout, Place};
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;
use zerocopy::IntoBytes;
use zerocopy::little_endian::U32;

/// Chunks that were made in the running transaction, and chunks whose items are gone.
#[derive(Debug, Default)]
pub(crate) struct Chunks {
    pending: Vec<ChunkPlan>,
    leaving: Vec<Arc<Layout>>,
    /// Groups that go though they are the last of their kind.
    evicted: Vec<Logical>,
    /// A device became longer or shorter.
    is_resized: bool,
}

impl Chunks {
    /// Empty groups that the next commit takes away, whatever room is left without them.
    pub(crate) fn evict(&mut self, groups: Vec<Logical>) {
        self.evicted.extend(groups);
    }

    /// A chunk goes in the transaction that made it. `false`: it is older, and has items.
    fn forget(&mut self, start: Logical) -> bool {
        let before = self.pending.len();
        self.pending.retain(|plan| plan.chunk.logical != start);
        self.pending.len() < before
    }

    /// Whether a chunk was made that has no items yet.
    pub(crate) fn has_pending(&self) -> bool {
        !self.pending.is_empty()
    }

    pub(crate) fn set_resized(&mut self) {
        self.is_resized = true;
    }

    /// Tells `space` of the devices and what is on them.
    pub(crate) fn load(forest: &Arc<Forest>, space: &Space) -> Result<(), TreeError> {
        let mut extents = device_extents(forest)?;
        let devices = forest.volume().devices();
        let mut cursor = forest.committed_chunk_tree().scan();
        cursor.seek(&Key::new(DEV_ITEMS, ItemType::DEV_ITEM, 0))?;
        while let Some((key, data)) = cursor.item_parts() {
            if key.objectid != DEV_ITEMS || key.item_type != ItemType::DEV_ITEM {
                break;
            }
            let device = DeviceItem::check(key, data).map_err(|refused| TreeError::Corrupt {
                tree: TreeId::CHUNK,
                source: refused.at(format_args!("item {key}")),
            })?;
            let extents = extents.remove(&device.devid).unwrap_or_default();
            space
                .add_device(device.devid, device.uuid, device.total_bytes, extents)
                .map_err(|error| TreeError::Space(Box::new(error)))?;
            let is_it =
                |status: &&DeviceStatus| (status.devid, status.uuid) == (device.devid, device.uuid);
            if devices.iter().find(is_it).is_some_and(|status| status.is_seed) {
                space.set_seed(device.devid);
            }
            cursor.advance()?;
        }
        Ok(())
    }
}

fn device_extents(forest: &Arc<Forest>) -> Result<BTreeMap<DevId, Vec<DeviceExtent>>, TreeError> {
    let mut extents: BTreeMap<DevId, Vec<DeviceExtent>> = BTreeMap::new();
    let tree = forest.committed_tree(TreeId::DEVICE)?;
    let tree = tree.ok_or(TreeError::NoTree { tree: TreeId::DEVICE })?;
    let mut cursor = tree.scan();
    cursor.seek(&Key::MIN)?;
    while let Some((key, data)) = cursor.item_parts() {
        if key.item_type == ItemType::DEV_EXTENT {
            let item = ExtentItem::check(key, data).map_err(|refused| TreeError::Corrupt {
                tree: TreeId::DEVICE,
                source: refused.at(format_args!("item {key}")),
            })?;
            let range = item.offset.0..item.end().0;
            let list = extents.entry(DevId(key.objectid)).or_default();
            list.push(DeviceExtent { range, chunk: item.chunk });
        }
        cursor.advance()?;
    }
    Ok(extents)
}

impl Running {
    /// Makes one more chunk of a class; `false` where there is no room for one. The caller holds
    /// the gate open.
    pub(crate) fn add_chunk(&self, forest: &Forest, class: Class) -> bool {
        let mut chunks = self.chunks();
        let Some(plan) = self.space.plan_chunk(class, self.group_flags(class), 0) else {
            return false;
        };
        match self.install(forest, &plan) {
            Ok(()) => {
                chunks.pending.push(plan);
                self.gate.mark_changed();
                true
            }
            Err(error) => {
                self.gate.poison(error);
                false
            }
        }
    }

    fn install(&self, forest: &Forest, plan: &ChunkPlan) -> Result<(), TreeError> {
        let volume = forest.volume();
        let chunk = &plan.chunk;
        volume
            .install_chunk(chunk.logical, chunk)
            .and_then(|()| volume.settle_chunks())
            .map_err(|source| TreeError::Assemble(Box::new(source)))?;
        let Fresh { whole, free, excluded } = fresh(forest, chunk.logical)?;
        let group = Group {
            start: chunk.logical,
            bytes: whole.end.saturating_sub(whole.start),
            flags: chunk.flags,
            used: 0,
            free,
            excluded,
            is_read_only: false,
        };
        self.space.add_group(&group).map_err(|error| TreeError::Space(Box::new(error)))
    }
}

/// A fresh chunk's range, and what of it can be used.
struct Fresh {
    whole: Range<u64>,
    free: Vec<Range<u64>>,
    excluded: Vec<Range<u64>>,
}

fn fresh(forest: &Forest, at: Logical) -> Result<Fresh, TreeError> {
    let chunks = forest.volume().chunks();
    let layout: &Arc<Layout> = chunks.find(at).ok_or_else(|| TreeError::Corrupt {
        tree: TreeId::CHUNK,
        source: Refused::new("chunk", at, "one that was just installed"),
    })?;
    let whole = layout.logical().0..layout.end();
    let excluded = excluded_ranges(layout);
    let free = block_groups::complement(whole.clone(), &excluded);
    Ok(Fresh { whole, free, excluded })
}

impl Step<'_> {
    /// Writes the items of chunks that were made. `false`: there are none.
    pub(crate) fn write_chunks(&self) -> Result<bool, TreeError> {
        let mut is_busy = false;
        // The items of a chunk may need blocks for which another chunk is made.
        loop {
            let (pending, is_resized) = {
                let mut chunks = self.running.chunks();
                (std::mem::take(&mut chunks.pending), std::mem::take(&mut chunks.is_resized))
            };
            if !is_resized && pending.is_empty() {
                return Ok(is_busy);
            }
            is_busy = true;
            for plan in &pending {
                self.write_chunk(plan)?;
            }
            self.write_devices()?;
        }
    }

    fn write_chunk(&self, plan: &ChunkPlan) -> Result<(), TreeError> {
        let chunk = &plan.chunk;
        self.edit(TreeId::CHUNK)?.insert(&chunk.key(), &chunk.to_bytes(CHUNK_IO_BYTES))?;
        let devices = self.edit(TreeId::DEVICE)?;
        for stripe in &chunk.stripes {
            let uuid = self.running.facts.chunk_tree_uuid;
            let extent = RawDeviceExtent::of(chunk.logical, plan.stripe_bytes, uuid);
            let key = Key::new(stripe.devid.0, ItemType::DEV_EXTENT, stripe.offset.0);
            devices.insert(&key, extent.as_bytes())?;
        }
        let group =
            GroupChange { start: chunk.logical, bytes: chunk.bytes, flags: chunk.flags, used: 0 };
        let (key, item) = block_groups::encode(&group);
        self.edit(self.running.facts.group_tree())?.insert(&key, &item)?;
        self.add_free_group(&(chunk.logical.0..chunk.end().0))?;
        if chunk.flags.contains(BlockGroupFlags::SYSTEM) {
            self.list_system_chunk(chunk)?;
        }
        Ok(())
    }

    /// Takes away the items of groups that are empty (law 4).
    pub(crate) fn remove_empty_chunks(&self) -> Result<(), TreeError> {
        let mut leaving = Vec::new();
        let idle = self.running.space.empty_groups();
        let idle = idle.into_iter().filter(|group| self.has_room_without(group));
        let mut starts = std::mem::take(&mut self.running.chunks().evicted);
        starts.extend(idle.map(|group| group.start));
        starts.sort_unstable();
        starts.dedup();
        for start in starts {
            let chunks = self.forest.volume().chunks();
            let Some(layout) = chunks.find(start).cloned() else { continue };
            if self.running.space.remove_group(start) {
                if !self.running.chunks().forget(start) {
                    self.remove_chunk_items(&layout)?;
                }
                leaving.push(layout);
            }
        }
        if !leaving.is_empty() {
            self.running.chunks().leaving = leaving;
            self.write_devices()?;
        }
        Ok(())
    }

    /// Whether the other groups of its kind have as much free space again: a chunk that is taken
    /// away now and made anew a moment later helps nobody.
    fn has_room_without(&self, group: &GroupStatus) -> bool {
        let free = self.running.space.totals(Class::of(group.flags)).free;
        free.saturating_sub(group.bytes) >= group.bytes / 2
    }

    fn remove_chunk_items(&self, layout: &Layout) -> Result<(), TreeError> {
        let whole = layout.logical().0..layout.end();
        let key = Key::new(FIRST_CHUNK_TREE, ItemType::CHUNK_ITEM, whole.start);
        self.edit(TreeId::CHUNK)?.remove(&key)?;
        let devices = self.edit(TreeId::DEVICE)?;
        for place in layout.places() {
            let key = Key::new(place.devid.0, ItemType::DEV_EXTENT, place.physical.0);
            devices.remove(&key)?;
        }
        if layout.flags().contains(BlockGroupFlags::SYSTEM) {
            self.unlist_system_chunk(layout.logical())?;
        }
        let key = Key::new(whole.start, ItemType::BLOCK_GROUP_ITEM, layout.bytes());
        self.edit(self.running.facts.group_tree())?.remove(&key)?;
        self.remove_free_group(&whole)
    }

    /// The commit that took the items away is down (law 3).
    pub(crate) fn release_chunks(&self) {
        for layout in std::mem::take(&mut self.running.chunks().leaving) {
            self.forest.volume().remove_chunk(layout.logical());
            let stripe = |place: &Place| Stripe {
                devid: place.devid,
                offset: place.physical,
                dev_uuid: place.uuid,
            };
            let places: Vec<Stripe> = layout.places().iter().map(stripe).collect();
            self.running.space.release_places(&places, layout.place_bytes());
        }
    }

    /// Law 2.
    fn list_system_chunk(&self, chunk: &Chunk) -> Result<(), TreeError> {
        let mut raw = self.running.super_block();
        let mut entry = RawKey::from(chunk.key()).as_bytes().to_vec();
        entry.extend_from_slice(&chunk.to_bytes(CHUNK_IO_BYTES));
        let used = index(raw.sys_chunk_array_size.get());
        let end = used.saturating_add(entry.len());
        let place = raw.sys_chunk_array.get_mut(used..end).ok_or_else(|| TreeError::Corrupt {
            tree: TreeId::CHUNK,
            source: Refused::new("sys_chunk_array", end, SYS_CHUNK_ARRAY_BYTES),
        })?;
        place.copy_from_slice(&entry);
        raw.sys_chunk_array_size = U32::new(u32::try_from(end).unwrap_or(u32::MAX));
        Ok(())
    }

    /// Law 2, the other way.
    fn unlist_system_chunk(&self, at: Logical) -> Result<(), TreeError> {
        let corrupt = |source| TreeError::Corrupt { tree: TreeId::CHUNK, source };
        let mut raw = self.running.super_block();
        let used = index(raw.sys_chunk_array_size.get());
        let mut listed = SystemChunks::of(&raw);
        let mut start = 0;
        let entry = loop {
            let chunk = listed.next().transpose().map_err(corrupt)?;
            let chunk =
                chunk.ok_or_else(|| corrupt(Refused::new("sys_chunk_array", "no entry", at)))?;
            let end = used.saturating_sub(listed.bytes_left());
            if chunk.logical == at {
                break start..end;
            }
            start = end;
        };
        let left = used.saturating_sub(entry.len());
        let array = raw.sys_chunk_array.get_mut(..used);
        if let Some(array) = array.filter(|array| entry.end <= array.len()) {
            array.copy_within(entry.end.., entry.start);
            array.get_mut(left..).unwrap_or_default().fill(0);
        }
        raw.sys_chunk_array_size = U32::new(u32::try_from(left).unwrap_or(0));
        Ok(())
    }

    /// Brings the device items up to date.
    pub(crate) fn write_devices(&self) -> Result<(), TreeError> {
        let tree = self.edit(TreeId::CHUNK)?;
        let leaving = self.running.chunks().leaving.clone();
        for mut usage in self.running.space.devices() {
            for layout in &leaving {
                let here = layout.places().iter().filter(|place| place.devid == usage.devid);
                let bytes = layout.place_bytes().saturating_mul(length(here.count()));
                usage.bytes_used = usage.bytes_used.saturating_sub(bytes);
            }
            let key = Key::new(DEV_ITEMS, ItemType::DEV_ITEM, usage.devid.0);
            tree.update(&key, &mut |data| {
                let raw = zerocopy::FromBytes::mut_from_bytes(data);
                if let Ok::<&mut RawDeviceItem, _>(raw) = raw {
                    raw.bytes_used.set(usage.bytes_used);
                    raw.total_bytes.set(usage.bytes);
                }
            })?;
            if let Some(found) = tree.tree().find(&key)? {
                let item = DeviceItem::check(key, found.data()).map_err(|refused| {
                    let source = refused.at(format_args!("item {key}"));
                    TreeError::Corrupt { tree: TreeId::CHUNK, source }
                })?;
                self.forest.volume().install_device(&item);
            }
        }
        Ok(())
    }
}
