//! [`StatFs`]: the free space of the volume, in the kernel's `statfs` terms.
//!
//! The kernel divides the bytes of the devices by the number of copies of the data profile.
//! Available are the free bytes of data chunks, and the bytes that new data chunks could hold.

use crate::space::usage::{GroupUsage, order};
use crate::{Filesystem, Result};
use butternut_format::chunk::BlockGroupFlags;
use butternut_format::units::SECTOR_BYTES;

/// Bytes at the start of every device that no chunk uses.
const DEVICE_RESERVED_BYTES: u64 = 1 << 20;

/// The unit of chunk sizes, in bytes.
const STRIPE_BYTES: u64 = 64 << 10;

const NAME_BYTES_MAX: u32 = 255;

/// The result of `statfs(2)`. Block counts are in units of `block_bytes` bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct StatFs {
    pub block_bytes: u32,
    pub blocks: u64,
    pub blocks_free: u64,
    pub blocks_available: u64,
    /// Always 0, as in the kernel: btrfs has no fixed number of inodes.
    pub files: u64,
    pub files_free: u64,
    pub name_bytes_max: u32,
    /// `f_fsid`, distinct per volume and subvolume.
    pub fsid: u64,
}

/// How a profile uses devices.
struct Shape {
    copies: u64,
    devices_min: usize,
    /// Number of stripes of a new chunk, for the given number of devices.
    stripes: usize,
    stripes_per_device: u64,
}

impl Filesystem {
    /// Returns the free space of the volume now, including uncommitted changes.
    pub fn statfs(&self) -> Result<StatFs> {
        let groups = self.groups()?;
        let devices = self.devices();
        let is_data = |group: &&GroupUsage| kinds(group).contains(BlockGroupFlags::DATA);
        let data: Vec<&GroupUsage> = groups.iter().filter(is_data).collect();
        let in_order = data.iter().map(|group| order(BlockGroupFlags(group.flags)).1);
        let last = data.iter().zip(in_order).max_by_key(|(_, place)| *place);
        let factor = last.map_or(1, |(group, _)| copies(group.flags));
        let used = total(&groups, |g| g.used_bytes.saturating_mul(copies(g.flags)));
        let free_in_data = total(data.iter().copied(), |g| {
            g.total_bytes.saturating_sub(g.used_bytes).saturating_mul(copies(g.flags))
        });
        let free_bytes = devices
            .iter()
            .filter(|device| !device.missing && !device.seed)
            .map(|device| device.total_bytes.saturating_sub(device.allocated_bytes))
            .collect();
        let present: u64 = data.iter().fold(0, |bits, group| bits | group.flags);
        let unallocated = new_chunk_bytes(free_bytes, present);
        let total_bytes = if self.forest().is_writable() {
            devices.iter().fold(0, |sum: u64, device| sum.saturating_add(device.total_bytes))
        } else {
            self.super_block().raw().total_bytes.get()
        };
        let blocks = total_bytes / factor / SECTOR_BYTES;
        let reserve = self.global_reserve_bytes()?;
        Ok(StatFs {
            block_bytes: 4096,
            blocks,
            blocks_free: blocks
                .saturating_sub(used / factor / SECTOR_BYTES)
                .saturating_sub(reserve / SECTOR_BYTES),
            blocks_available: (free_in_data / factor).saturating_add(unallocated / factor)
                / SECTOR_BYTES,
            files: 0,
            files_free: 0,
            name_bytes_max: NAME_BYTES_MAX,
            fsid: fsid(self.super_block().fsid(), self.root().subvolume),
        })
    }
}

impl Filesystem {
    /// As [`FilesystemExt::frees_much`](crate::server::FilesystemExt::frees_much).
    pub(crate) fn frees_much(&self, shown: &StatFs) -> bool {
        let freed = self
            .shared
            .write_state
            .as_ref()
            .map_or(0, |write_state| write_state.signal.freed_bytes());
        freed / SECTOR_BYTES > shown.blocks_available / 8
    }
}

fn total<'a>(
    groups: impl IntoIterator<Item = &'a GroupUsage>,
    bytes: impl Fn(&GroupUsage) -> u64,
) -> u64 {
    groups.into_iter().fold(0, |sum, group| sum.saturating_add(bytes(group)))
}

fn kinds(group: &GroupUsage) -> BlockGroupFlags {
    BlockGroupFlags(group.flags).types()
}

/// Returns the number of copies that a profile keeps of each byte; parity is not counted.
fn copies(flags: u64) -> u64 {
    shape(flags, 1).copies
}

fn shape(flags: u64, devices: usize) -> Shape {
    let plain = Shape { copies: 1, devices_min: 1, stripes: 1, stripes_per_device: 1 };
    match BlockGroupFlags(flags & !BlockGroupFlags::TYPES.0) {
        BlockGroupFlags::RAID0 => Shape { stripes: devices, ..plain },
        BlockGroupFlags::DUP => Shape { copies: 2, stripes_per_device: 2, ..plain },
        BlockGroupFlags::RAID1 => Shape { copies: 2, devices_min: 2, stripes: 2, ..plain },
        BlockGroupFlags::RAID1C3 => Shape { copies: 3, devices_min: 3, stripes: 3, ..plain },
        BlockGroupFlags::RAID1C4 => Shape { copies: 4, devices_min: 4, stripes: 4, ..plain },
        BlockGroupFlags::RAID10 => Shape { copies: 2, devices_min: 2, stripes: 4, ..plain },
        BlockGroupFlags::RAID5 => Shape { devices_min: 2, ..plain },
        BlockGroupFlags::RAID6 => Shape { devices_min: 3, ..plain },
        _ => plain,
    }
}

/// Returns the profile of new data chunks: the most redundant one in use that the number of devices
/// allows.
fn next_profile(present: u64, devices: usize) -> u64 {
    let by_safety = [
        BlockGroupFlags::RAID1C4,
        BlockGroupFlags::RAID6,
        BlockGroupFlags::RAID1C3,
        BlockGroupFlags::RAID5,
        BlockGroupFlags::RAID10,
        BlockGroupFlags::RAID1,
        BlockGroupFlags::DUP,
        BlockGroupFlags::RAID0,
    ];
    let fits = |profile: &BlockGroupFlags| {
        present & profile.0 != 0 && devices >= shape(profile.0, devices).devices_min
    };
    by_safety.into_iter().find(fits).map_or(0, |profile| profile.0)
}

/// Returns the device bytes that new data chunks could use, for the free bytes of each device.
fn new_chunk_bytes(free_bytes: Vec<u64>, present: u64) -> u64 {
    let shape = shape(next_profile(present, free_bytes.len()), free_bytes.len());
    let stripe_bytes_min = STRIPE_BYTES * shape.stripes_per_device;
    let mut free: Vec<u64> = free_bytes
        .into_iter()
        .map(|bytes| bytes - bytes % STRIPE_BYTES)
        .filter(|bytes| *bytes > DEVICE_RESERVED_BYTES + stripe_bytes_min)
        .map(|bytes| bytes - DEVICE_RESERVED_BYTES)
        .collect();
    free.sort_unstable_by(|a, b| b.cmp(a));
    let (mut total, mut stripes) = (0_u64, shape.stripes);
    // Repeatedly allocates on the devices with the least free space, as much as the fullest of them
    // has.
    while free.len() >= shape.devices_min.max(1) {
        stripes = stripes.min(free.len());
        let left = free.len() - stripes;
        let allocated = free[free.len() - 1];
        if allocated >= stripe_bytes_min {
            total = total.saturating_add(allocated.saturating_mul(stripes as u64));
            for bytes in &mut free[left..] {
                *bytes -= allocated;
            }
        }
        free.pop();
    }
    total
}

/// Returns `f_fsid`, which the kernel computes from the ids of the volume and the subvolume.
fn fsid(uuid: [u8; 16], subvolume: u64) -> u64 {
    let word = |at: usize| {
        uuid[at * 4..].iter().take(4).fold(0_u32, |word, byte| word << 8 | u32::from(*byte))
    };
    let low = u64::from(word(0) ^ word(2)) ^ subvolume >> 32;
    let high = u64::from(word(1) ^ word(3)) ^ (subvolume & u64::from(u32::MAX));
    high << 32 | low
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    #[test]
    fn single_data_can_use_all_free_space_except_the_reserved_start() {
        assert_eq!(new_chunk_bytes(vec![100 * MIB, 50 * MIB], 0), 148 * MIB);
    }

    #[test]
    fn mirrors_use_the_same_size_on_two_devices() {
        let raid1 = BlockGroupFlags::RAID1.0;
        assert_eq!(new_chunk_bytes(vec![101 * MIB, 51 * MIB], raid1), 100 * MIB);
        // As in the kernel: the two fullest devices are used together first, which leaves the third
        // alone.
        assert_eq!(new_chunk_bytes(vec![101 * MIB, 51 * MIB, 51 * MIB], raid1), 100 * MIB);
        assert_eq!(new_chunk_bytes(vec![101 * MIB], raid1), 100 * MIB, "one device: single");
    }

    #[test]
    fn a_device_too_small_for_a_stripe_does_not_count() {
        assert_eq!(new_chunk_bytes(vec![MIB + STRIPE_BYTES], 0), 0);
        assert_eq!(new_chunk_bytes(vec![], 0), 0);
    }
}
