//! Adding and removing chunks: a chunk is added when a class of block groups is full, and removed
//! when its group is empty. The commit writes and removes the items.
//!
//! Laws:
//!
//! 1. A chunk is usable as soon as it is added, and its items are part of the transaction that
//!    first writes to it: it is added only by a member of the running transaction, or by the commit
//!    before its last round.
//! 2. A chunk of the system class is in the array of the superblock too, from the commit that
//!    inserts its item to the commit that removes it.
//! 3. The device extents of a removed chunk are not reused before the commit that removed it is
//!    complete.
//! 4. A commit removes an empty group if the others of its class have enough free space without
//!    those that it removed before, and never one whose bytes are reserved, or that the merges of
//!    accepted writes need, or which has extents although it counts as empty. It keeps the last
//!    group of a type and profile, except where a resize or a lack of space for another class
//!    requires its removal. It always keeps the last group that names the profile of the next
//!    chunk, unless that is single.
//! 5. The stripes of a new chunk overlap no stripe of another chunk. The device extents are
//!    compared with the stripes when a volume is opened for writing (`device_extents`).

pub(crate) mod block_groups;
pub(crate) mod changes;
pub(crate) mod device_extents;
pub(crate) mod free_changes;
pub(crate) mod free_space;

use crate::error::TreeError;
use crate::transaction::commit::context::Commit;
use butternut_format::chunk::{BlockGroupFlags, CHUNK_IO_BYTES, Chunk, FIRST_CHUNK_TREE, Stripe};
use butternut_format::device_extent::RawDeviceExtent;
use butternut_format::device_item::{DEV_ITEMS, DeviceItem, RawDeviceItem};
use butternut_format::key::{ItemType, Key, RawKey};
use butternut_format::refused::Refused;
use butternut_format::super_block::{SYS_CHUNK_ARRAY_BYTES, SystemChunks};
use butternut_format::units::{Logical, TreeId, index, length};
use butternut_space::{ChunkPlan, Class, GroupChange, GroupStatus};
use butternut_volume::{IoStripe, Layout};
use std::ops::Range;
use std::sync::Arc;
use zerocopy::IntoBytes;
use zerocopy::little_endian::U32;

impl Commit<'_> {
    /// Writes the items of added chunks, and device items. Returns whether there were any.
    pub(crate) fn write_chunks(&self) -> Result<bool, TreeError> {
        let mut has_changed = false;
        // Inserting the items may add another chunk for new tree blocks.
        loop {
            let (pending, is_resized) = {
                let mut chunks = self.running.chunks();
                (std::mem::take(&mut chunks.pending), std::mem::take(&mut chunks.is_resized))
            };
            if !is_resized && pending.is_empty() {
                return Ok(has_changed);
            }
            has_changed = true;
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
            let uuid = self.running.params.chunk_tree_uuid;
            let extent = RawDeviceExtent::of(chunk.logical, plan.stripe_bytes, uuid);
            let key = Key::new(stripe.devid.0, ItemType::DEV_EXTENT, stripe.offset.0);
            devices.insert(&key, extent.as_bytes())?;
        }
        let group =
            GroupChange { start: chunk.logical, bytes: chunk.bytes, flags: chunk.flags, used: 0 };
        let (key, item) = block_groups::encode(&group);
        self.edit(self.running.params.group_tree())?.insert(&key, &item)?;
        self.add_free_group(&(chunk.logical.0..chunk.end().0))?;
        if chunk.flags.contains(BlockGroupFlags::SYSTEM) {
            self.add_to_sys_chunk_array(chunk)?;
        }
        Ok(())
    }

    /// Removes the items of empty groups (law 4).
    pub(crate) fn remove_empty_chunks(&self) -> Result<(), TreeError> {
        let space = &self.running.space;
        // The handles have returned their reservations. What their changes need of this commit may
        // not be known to `space` since the last of them joined.
        self.running.update_global_reserve();
        let mut removed = Vec::new();
        let mut required = std::mem::take(&mut self.running.chunks().to_remove);
        required.sort_unstable();
        required.dedup();
        for start in required {
            if space.last_of_profile(|other| other == start).is_empty() {
                removed.extend(self.remove_empty_chunk(start)?);
            }
        }
        // Each removal changes what is left without the next group.
        for group in space.empty_groups() {
            if self.has_space_without(&group) {
                removed.extend(self.remove_empty_chunk(group.start)?);
            }
        }
        if !removed.is_empty() {
            self.running.chunks().removed = removed;
            self.write_devices()?;
        }
        Ok(())
    }

    /// Removes the items of a group. Returns its layout, or `None` if the group stays.
    fn remove_empty_chunk(&self, start: Logical) -> Result<Option<Arc<Layout>>, TreeError> {
        let chunks = self.volume().chunks();
        let Some(layout) = chunks.find(start).cloned() else { return Ok(None) };
        if !self.running.space.remove_group(start) {
            return Ok(None);
        }
        self.require_no_extents(&(layout.logical().0..layout.end()))?;
        if !self.running.chunks().cancel(start) {
            self.remove_chunk_items(&layout)?;
        }
        Ok(Some(layout))
    }

    /// Fails if the extent tree has an extent in a group that counts as empty: on a damaged volume,
    /// its removal would lose the data (law 4).
    fn require_no_extents(&self, group: &Range<u64>) -> Result<(), TreeError> {
        let extents = self.edit(TreeId::EXTENT)?;
        let mut items = extents.tree().cursor();
        items.seek(&Key::new(group.start, ItemType(0), 0))?;
        while let Some(key) = items.key().filter(|key| key.objectid < group.end) {
            if [ItemType::EXTENT_ITEM, ItemType::METADATA_ITEM].contains(&key.item_type) {
                let want = format_args!("none in the unused group {}", group.start).to_string();
                let source = Refused::new("extent", key.objectid, want);
                return Err(TreeError::Corrupt { tree: TreeId::EXTENT, source });
            }
            items.advance()?;
        }
        Ok(())
    }

    /// Whether the other groups of its class cover what is reserved, and have at least half its
    /// size free: a chunk that was removed and added again soon would only cost writes.
    fn has_space_without(&self, group: &GroupStatus) -> bool {
        let space = &self.running.space;
        let free = space.totals(Class::of(group.flags)).free;
        free.saturating_sub(group.bytes) >= group.bytes / 2 && space.is_covered_without(group)
    }

    fn remove_chunk_items(&self, layout: &Layout) -> Result<(), TreeError> {
        let whole = layout.logical().0..layout.end();
        let key = Key::new(FIRST_CHUNK_TREE, ItemType::CHUNK_ITEM, whole.start);
        self.edit(TreeId::CHUNK)?.remove(&key)?;
        let devices = self.edit(TreeId::DEVICE)?;
        for place in layout.stripes() {
            let key = Key::new(place.devid.0, ItemType::DEV_EXTENT, place.physical.0);
            devices.remove(&key)?;
        }
        if layout.flags().contains(BlockGroupFlags::SYSTEM) {
            self.remove_from_sys_chunk_array(layout.logical())?;
        }
        let key = Key::new(whole.start, ItemType::BLOCK_GROUP_ITEM, layout.bytes());
        self.edit(self.running.params.group_tree())?.remove(&key)?;
        self.remove_free_group(&whole)
    }

    /// Frees the device extents of removed chunks, after their commit (law 3).
    pub(crate) fn release_chunks(&self) {
        for layout in std::mem::take(&mut self.running.chunks().removed) {
            self.volume().remove_chunk(layout.logical());
            let stripe = |place: &IoStripe| Stripe {
                devid: place.devid,
                offset: place.physical,
                dev_uuid: place.uuid,
            };
            let places: Vec<Stripe> = layout.stripes().iter().map(stripe).collect();
            self.running.space.release_stripes(&places, layout.stripe_bytes());
        }
    }

    /// Adds a chunk to the array of the superblock (law 2).
    fn add_to_sys_chunk_array(&self, chunk: &Chunk) -> Result<(), TreeError> {
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

    /// Removes a chunk from the array of the superblock (law 2).
    fn remove_from_sys_chunk_array(&self, at: Logical) -> Result<(), TreeError> {
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

    /// Updates the items of groups (law 3 of `block_groups`). Returns whether there were changes.
    pub(crate) fn write_groups(&self) -> Result<bool, TreeError> {
        let changes = self.running.space.take_changed_groups();
        let tree = self.edit(self.running.params.group_tree())?;
        for change in &changes {
            let (key, item) = block_groups::encode(change);
            tree.put(&key, &item)?;
        }
        Ok(!changes.is_empty())
    }

    /// Returns the range of the group that holds an address.
    pub(super) fn group_of(&self, at: Logical) -> Option<Range<u64>> {
        let chunks = self.volume().chunks();
        chunks.find(at).map(|layout| layout.logical().0..layout.end())
    }

    /// Updates the device items: used bytes and size.
    pub(crate) fn write_devices(&self) -> Result<(), TreeError> {
        let tree = self.edit(TreeId::CHUNK)?;
        let removed = self.running.chunks().removed.clone();
        for mut usage in self.running.space.devices() {
            for layout in &removed {
                let on_device = layout.stripes().iter().filter(|place| place.devid == usage.devid);
                let bytes = layout.stripe_bytes().saturating_mul(length(on_device.count()));
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
                self.volume().install_device(&item);
            }
        }
        Ok(())
    }
}
