//! [`Usage`]: allocated and used space, by block group type and profile, and by device.
//!
//! Block groups are found by their chunks, with one search each, so the cost does not depend on the
//! number of files.

use crate::{Error, Filesystem, Result};
use butternut_format::block_group::BlockGroup;
use butternut_format::chunk::BlockGroupFlags;
use butternut_format::feature::{BLOCK_GROUP_TREE, FREE_SPACE_TREE};
use butternut_format::key::{ItemType, Key};
use butternut_format::units::TreeId;
use butternut_tree::Tree;
use butternut_volume::{DeviceStatus, Layout};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Maximum size of the kernel's global reserve, in bytes.
const RESERVE_BYTES_MAX: u64 = 512 << 20;

/// Blocks that the kernel reserves for one change of a tree: every level twice.
const BLOCKS_PER_CHANGE: u64 = 16;

/// Changes that the reserve must cover besides one per tree: those of unlinking a file, and of its
/// delayed references.
const UNLINK_CHANGES: u64 = 6;

/// Space by type and by device.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Usage {
    /// One entry for each combination of type and profile: data, system, metadata, mixed.
    pub groups: Vec<GroupUsage>,
    pub devices: Vec<DeviceInfo>,
    /// Size of the kernel's global reserve for this volume (`GlobalReserve`), in bytes.
    pub global_reserve_bytes: u64,
}

/// All block groups of one type and profile.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct GroupUsage {
    /// `BTRFS_BLOCK_GROUP_*` bits: data 1, system 2, metadata 4, raid0 8, raid1 16, dup 32,
    /// raid10 64, raid5 128, raid6 256, raid1c3 512, raid1c4 1024; no profile bit is single.
    pub flags: u64,
    /// Logical bytes, without copies and parity.
    pub total_bytes: u64,
    pub used_bytes: u64,
    /// Bytes on devices of `total_bytes`, with copies and parity.
    pub raw_bytes: u64,
    /// Number of block groups.
    pub count: u64,
}

/// One device of the volume.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct DeviceInfo {
    pub id: u64,
    pub uuid: [u8; 16],
    /// The path it was opened with; `None` if it is missing.
    pub path: Option<String>,
    pub missing: bool,
    /// Has older data than the others, or belongs to the seed volume.
    pub stale: bool,
    pub seed: bool,
    /// Size of the device; 0 if it is missing.
    pub device_bytes: u64,
    /// Bytes of the device that btrfs uses.
    pub total_bytes: u64,
    /// Bytes in chunks, from the device item.
    pub allocated_bytes: u64,
    /// Bytes in chunks by block group flags.
    pub allocated: Vec<(u64, u64)>,
    /// Counts since the volume was opened: reads that failed, reads whose bytes failed their check,
    /// and tree blocks with another generation than expected.
    pub read_errors: u64,
    pub corruption_errors: u64,
    pub generation_errors: u64,
}

impl Filesystem {
    /// Returns space by type and profile, and by device. Reads one block group item per chunk.
    pub fn usage(&self) -> Result<Usage> {
        Ok(Usage {
            groups: self.groups()?,
            devices: self.devices(),
            global_reserve_bytes: self.global_reserve_bytes()?,
        })
    }

    /// Returns the volume's devices by id, including missing ones. Reads nothing.
    pub fn devices(&self) -> Vec<DeviceInfo> {
        let volume = self.volume();
        let mut allocated: BTreeMap<(u64, [u8; 16]), BTreeMap<u64, u64>> = BTreeMap::new();
        for chunk in volume.chunks().iter() {
            for place in chunk.stripes() {
                let device = allocated.entry((place.devid.0, place.uuid)).or_default();
                let bytes = device.entry(chunk.flags().0).or_default();
                *bytes = bytes.saturating_add(chunk.stripe_bytes());
            }
        }
        let statuses = volume.devices();
        let running = self.forest().device_usage().unwrap_or_default();
        let info = |status: DeviceStatus| {
            let by_flags = allocated.remove(&(status.devid.0, status.uuid)).unwrap_or_default();
            let mut info = device_info(&status, by_flags.into_iter().collect());
            if let Some(now) = running.iter().find(|usage| usage.devid == status.devid) {
                (info.total_bytes, info.allocated_bytes) = (now.bytes, now.bytes_used);
            }
            info
        };
        statuses.into_iter().map(info).collect()
    }

    /// Returns the sums by type and profile, in the order of `order`. On a volume that is open for
    /// writing, they include uncommitted changes.
    pub(crate) fn groups(&self) -> Result<Vec<GroupUsage>> {
        let running: Option<BTreeMap<u64, u64>> = self.forest().groups().ok().map(|groups| {
            groups.into_iter().map(|group| (group.start.0, group.allocated)).collect()
        });
        let tree = self.block_group_tree()?;
        let mut groups: BTreeMap<(u32, u32), GroupUsage> = BTreeMap::new();
        for chunk in self.volume().chunks().iter() {
            let flags = chunk.flags();
            let group = groups.entry(order(flags)).or_default();
            group.flags = flags.0;
            group.count += 1;
            group.total_bytes = group.total_bytes.saturating_add(chunk.bytes());
            let used_bytes = match &running {
                Some(used) => used.get(&chunk.logical().0).copied().unwrap_or_default(),
                None => used_bytes(&tree, chunk)?,
            };
            group.used_bytes = group.used_bytes.saturating_add(used_bytes);
            let places = u64::try_from(chunk.stripes().len()).unwrap_or(u64::MAX);
            let raw_bytes = chunk.stripe_bytes().saturating_mul(places);
            group.raw_bytes = group.raw_bytes.saturating_add(raw_bytes);
        }
        Ok(groups.into_values().collect())
    }

    fn block_group_tree(&self) -> Result<Tree> {
        if self.super_block().has_compat_ro(BLOCK_GROUP_TREE) {
            return self.tree(TreeId::BLOCK_GROUP);
        }
        self.extent_tree()
    }

    pub(crate) fn extent_tree(&self) -> Result<Tree> {
        self.tree(TreeId::EXTENT)
    }

    fn tree(&self, id: TreeId) -> Result<Tree> {
        self.forest().tree(id)?.ok_or(Error::NoTree { id })
    }

    /// Returns the size of the reserve that the kernel keeps for its own trees when it mounts the
    /// volume: the size of the trees that every change modifies, within bounds.
    pub(crate) fn global_reserve_bytes(&self) -> Result<u64> {
        let super_block = self.super_block();
        let mut trees = vec![TreeId::EXTENT, TreeId::CHECKSUM];
        let has_free_space_tree = super_block.has_compat_ro(FREE_SPACE_TREE);
        if has_free_space_tree {
            trees.push(TreeId::FREE_SPACE);
        }
        if super_block.has_compat_ro(BLOCK_GROUP_TREE) {
            trees.push(TreeId::BLOCK_GROUP);
        }
        let (mut used_bytes, mut changes) = (0_u64, 1 + UNLINK_CHANGES);
        for tree in trees {
            let Some((_, root)) = self.forest().root_item(tree)? else { continue };
            used_bytes = used_bytes.saturating_add(root.raw().bytes_used.get());
            changes += 1;
        }
        // With a free space tree, every delayed reference changes that tree too.
        changes += UNLINK_CHANGES * if has_free_space_tree { 2 } else { 1 };
        let change_bytes = u64::from(super_block.node_bytes()) * BLOCKS_PER_CHANGE;
        Ok(used_bytes.max(changes * change_bytes).min(RESERVE_BYTES_MAX))
    }
}

/// Returns the used bytes of a chunk's block group. A chunk without a block group is not in use
/// yet.
fn used_bytes(tree: &Tree, chunk: &Arc<Layout>) -> Result<u64> {
    let key = Key::new(chunk.logical().0, ItemType::BLOCK_GROUP_ITEM, chunk.bytes());
    let Some(item) = tree.find(&key)? else { return Ok(0) };
    let incompat = tree.volume().super_block().raw().incompat_flags.get();
    let group = BlockGroup::check(key, item.data(), incompat).map_err(|refused| {
        Error::Corrupt { tree: tree.id(), source: refused.at(format_args!("item {key}")) }
    })?;
    Ok(group.bytes_used)
}

fn device_info(status: &DeviceStatus, allocated: Vec<(u64, u64)>) -> DeviceInfo {
    DeviceInfo {
        id: status.devid.0,
        uuid: status.uuid,
        path: status.device.as_ref().map(|device| device.name().to_owned()),
        missing: status.is_missing(),
        stale: status.is_stale,
        seed: status.is_seed,
        device_bytes: status.device.as_ref().map_or(0, |device| device.bytes()),
        total_bytes: status.item.map_or(0, |item| item.total_bytes),
        allocated_bytes: status.item.map_or(0, |item| item.bytes_used),
        allocated,
        read_errors: status.errors.read_errors,
        corruption_errors: status.errors.corruption_errors,
        generation_errors: status.errors.generation_errors,
    }
}

/// Returns the position of a type and profile in reports, as in btrfs-progs.
pub(crate) fn order(flags: BlockGroupFlags) -> (u32, u32) {
    let types = match flags.types() {
        BlockGroupFlags::DATA => 0,
        BlockGroupFlags::SYSTEM => 1,
        BlockGroupFlags::METADATA => 2,
        _ => 3,
    };
    let profiles = [
        BlockGroupFlags::RAID10,
        BlockGroupFlags::RAID1,
        BlockGroupFlags::DUP,
        BlockGroupFlags::RAID0,
        BlockGroupFlags(0),
        BlockGroupFlags::RAID5,
        BlockGroupFlags::RAID6,
        BlockGroupFlags::RAID1C3,
        BlockGroupFlags::RAID1C4,
    ];
    let profile_bits = flags.0 & !BlockGroupFlags::TYPES.0;
    let place = (0..).zip(profiles).find(|(_, profile)| profile.0 == profile_bits);
    (types, place.map_or(u32::MAX, |(place, _)| place))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn data_is_reported_before_system_and_metadata() {
        let (data, dup) = (BlockGroupFlags(1), BlockGroupFlags(4 | 32));
        assert!(order(data) < order(BlockGroupFlags(2)));
        assert!(order(BlockGroupFlags(2)) < order(dup));
        assert!(order(dup) < order(BlockGroupFlags(4)), "dup is before single");
        assert!(order(dup) < order(BlockGroupFlags(5)), "mixed is last");
    }
}
