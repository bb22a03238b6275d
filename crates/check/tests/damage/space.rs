//! Damage to superblocks, devices, chunks, block groups, free space and checksums.

use crate::test_image::TestImage;
use crate::{Case, case, old};
use butternut_check::Kind;
use butternut_format::block_group::RawBlockGroup;
use butternut_format::checksum::EXTENT_CSUM_OBJECTID;
use butternut_format::chunk::{BlockGroupFlags, RawChunk, RawStripe};
use butternut_format::device_extent::RawDeviceExtent;
use butternut_format::device_item::RawDeviceItem;
use butternut_format::file_extent::{ExtentBody, FileExtent};
use butternut_format::free_space::RawFreeSpaceInfo;
use butternut_format::key::{ItemType, Key};
use butternut_format::super_block::RawRootBackup;
use butternut_format::units::{Logical, TreeId};
use zerocopy::little_endian::{U32, U64};

pub(crate) fn cases() -> Vec<Case> {
    let mut cases = supers();
    cases.extend(devices());
    cases.extend(groups());
    cases.extend(free_space());
    cases.extend(sums());
    cases
}

fn supers() -> Vec<Case> {
    vec![
        case(
            "super first copy torn",
            |p| p.edit_super_copy(0, false, |raw| raw.label[0] ^= 1),
            &[Kind::SuperCopy],
        ),
        case(
            "super mirror torn",
            |p| p.edit_super_copy(1, false, |raw| raw.label[0] ^= 1),
            &[Kind::SuperMirror],
        ),
        case(
            "super mirror older",
            |p| p.edit_super_copy(1, true, |raw| raw.generation = U64::new(2)),
            &[Kind::SuperMirror],
        ),
        case(
            "super bytes used",
            |p| p.edit_super(|raw| raw.bytes_used = U64::new(raw.bytes_used.get() + 4096)),
            &[Kind::SuperField, Kind::SuperBackup],
        ),
        case(
            "super total bytes",
            |p| p.edit_super(|raw| raw.total_bytes = U64::new(raw.total_bytes.get() - 4096)),
            &[Kind::SuperField, Kind::SuperBackup],
        ),
        case(
            "super number of devices",
            |p| p.edit_super(|raw| raw.num_devices = U64::new(2)),
            &[Kind::SuperField, Kind::SuperBackup],
        ),
        case(
            "super device item",
            |p| p.edit_super(|raw| raw.dev_item.bytes_used = U64::new(4096)),
            &[Kind::SuperField],
        ),
        case("super backup of other roots", backup, &[Kind::SuperBackup]),
        case("super backup of other roots beside the right one", one_more_backup, &[]),
        case(
            "super system chunk elsewhere",
            system_chunk,
            &[Kind::BlockCopy, Kind::ChunkLayout, Kind::SystemChunks],
        ),
    ]
}

fn backup(p: &TestImage) {
    p.edit_super(|raw| {
        let generation = raw.generation;
        let newest = raw.super_roots.iter_mut().find(|backup| backup.tree_root_gen == generation);
        let newest = newest.expect("the kernel wrote one at the last commit");
        newest.fs_root = U64::new(newest.fs_root.get() + 4096);
    });
}

/// As the kernel leaves them where a transaction began while the commit before wrote its backup.
fn one_more_backup(p: &TestImage) {
    p.edit_super(|raw| {
        let generation = raw.generation;
        let newest = raw.super_roots.iter().position(|backup| backup.tree_root_gen == generation);
        let newest = newest.expect("the kernel wrote one at the last commit");
        let right = raw.super_roots[newest];
        raw.super_roots[3] = right;
        raw.super_roots[0] = RawRootBackup { extent_root: U64::new(4096), ..right };
    });
}

/// The second stripe of the first system chunk, 64 KiB further.
fn system_chunk(p: &TestImage) {
    p.edit_super(|raw| {
        let at = 17 + size_of::<RawChunk>() + size_of::<RawStripe>() + 8;
        let bytes = &mut raw.sys_chunk_array[at..at + 8];
        let offset = u64::from_le_bytes(bytes.try_into().unwrap());
        bytes.copy_from_slice(&(offset + 65536).to_le_bytes());
    });
}

fn device_extent(p: &TestImage) -> Key {
    p.first(TreeId::DEVICE, ItemType::DEV_EXTENT).0
}

fn devices() -> Vec<Case> {
    vec![
        case(
            "device extent missing",
            |p| p.remove(TreeId::DEVICE, &device_extent(p)),
            &[Kind::DeviceExtentMissing, Kind::DeviceUsage],
        ),
        case(
            "device extent extra",
            extra_device_extent,
            &[Kind::DeviceExtentExtra, Kind::DeviceUsage],
        ),
        case(
            "device extent too short",
            |p| {
                p.alter(TreeId::DEVICE, &device_extent(p), |raw: &mut RawDeviceExtent| {
                    raw.length = U64::new(raw.length.get() - 65536);
                });
            },
            &[Kind::DeviceExtentExtra, Kind::DeviceExtentMissing, Kind::DeviceUsage],
        ),
        case(
            "device extent of another chunk",
            |p| {
                p.alter(TreeId::DEVICE, &device_extent(p), |raw: &mut RawDeviceExtent| {
                    raw.chunk_offset = U64::new(raw.chunk_offset.get() + 4096);
                });
            },
            &[Kind::DeviceExtentExtra, Kind::DeviceExtentMissing],
        ),
        case(
            "device item bytes used",
            |p| device_item(p, |raw| raw.bytes_used = U64::new(raw.bytes_used.get() - 4096)),
            &[Kind::DeviceUsage, Kind::SuperField],
        ),
        case(
            "device item too small for its extents",
            |p| device_item(p, |raw| raw.total_bytes = raw.bytes_used),
            &[Kind::DeviceExtentOverlap, Kind::SuperField],
        ),
        case(
            "device item larger than the device",
            |p| {
                let grow = |raw: &mut U64| *raw = U64::new(raw.get() + (1 << 30));
                device_item(p, |raw| grow(&mut raw.total_bytes));
                p.edit_super(|raw| {
                    grow(&mut raw.total_bytes);
                    grow(&mut raw.dev_item.total_bytes);
                });
            },
            &[Kind::DeviceUsage, Kind::SuperBackup],
        ),
        case(
            "device item of another volume",
            |p| device_item(p, |raw| raw.fsid[0] ^= 1),
            &[Kind::DeviceUsage],
        ),
        case("device errors counted", count_errors, &[Kind::DeviceErrors]),
        case(
            "chunks overlap",
            |p| {
                let (key, _) = p.first(TreeId::CHUNK, ItemType::CHUNK_ITEM);
                p.alter(TreeId::CHUNK, &key, |raw: &mut RawChunk| {
                    raw.length = U64::new(raw.length.get() + (1 << 30));
                });
            },
            &[Kind::BlockBad],
        ),
    ]
}

fn extra_device_extent(p: &TestImage) {
    let (key, data) = p.first(TreeId::DEVICE, ItemType::DEV_EXTENT);
    let far = p.device().bytes() - (1 << 20);
    p.insert(TreeId::DEVICE, Key { offset: far, ..key }, &data);
    p.alter(TreeId::DEVICE, &Key { offset: far, ..key }, |raw: &mut RawDeviceExtent| {
        raw.length = U64::new(1 << 20);
    });
}

fn device_item(p: &TestImage, alter: impl FnOnce(&mut RawDeviceItem)) {
    let (key, _) = p.first(TreeId::CHUNK, ItemType::DEV_ITEM);
    p.alter(TreeId::CHUNK, &key, alter);
}

fn count_errors(p: &TestImage) {
    let key = Key::new(0, ItemType::PERSISTENT_ITEM, 1);
    p.change(TreeId::DEVICE, &key, |data| data[32] = 7);
}

const GROUPS: TreeId = TreeId::BLOCK_GROUP;

/// The block group of data.
fn data_group(p: &TestImage) -> Key {
    let is_data = |data: &[u8]| u64::from(data[16]) & BlockGroupFlags::DATA.0 != 0;
    p.find(GROUPS, |key, data| key.item_type == ItemType::BLOCK_GROUP_ITEM && is_data(data)).0
}

fn groups() -> Vec<Case> {
    vec![
        case(
            "group used",
            |p| {
                p.alter(GROUPS, &data_group(p), |raw: &mut RawBlockGroup| {
                    raw.used = U64::new(raw.used.get() + 4096);
                });
            },
            &[Kind::GroupUsed],
        ),
        old(
            "group used in the extent tree",
            |p| {
                let (key, _) = p.first(TreeId::EXTENT, ItemType::BLOCK_GROUP_ITEM);
                p.alter(TreeId::EXTENT, &key, |raw: &mut RawBlockGroup| {
                    raw.used = U64::new(raw.used.get() + 4096);
                });
            },
            &[Kind::GroupUsed],
        ),
        case(
            "group of another type than its chunk",
            |p| {
                p.alter(GROUPS, &data_group(p), |raw: &mut RawBlockGroup| {
                    raw.flags = U64::new(BlockGroupFlags::METADATA.0);
                });
            },
            &[Kind::GroupChunk],
        ),
        case(
            "group missing",
            |p| p.remove(GROUPS, &data_group(p)),
            &[Kind::ChunkGroup, Kind::FreeSpaceNoGroup],
        ),
        case(
            "group without a chunk",
            |p| {
                let key = data_group(p);
                let data = p.find(GROUPS, |found, _| *found == key).1;
                let far = Key { objectid: 1 << 40, ..key };
                p.insert(GROUPS, far, &data);
                p.alter(GROUPS, &far, |raw: &mut RawBlockGroup| raw.used = U64::new(0));
            },
            &[Kind::GroupChunk, Kind::FreeSpaceGroup],
        ),
        case(
            "group shorter than its chunk",
            |p| {
                let key = data_group(p);
                p.rekey(GROUPS, &key, Key { offset: key.offset - 65536, ..key });
            },
            &[Kind::GroupChunk, Kind::FreeSpaceNoGroup],
        ),
    ]
}

const FREE: TreeId = TreeId::FREE_SPACE;

/// A free range of the group of data, and the next one.
fn free_pair(p: &TestImage) -> (Key, Key) {
    let group = data_group(p);
    let inside =
        |key: &Key| (group.objectid..group.objectid + group.offset).contains(&key.objectid);
    let free: Vec<Key> = p
        .items(FREE)
        .into_iter()
        .map(|(key, _)| key)
        .filter(|key| key.item_type == ItemType::FREE_SPACE_EXTENT && inside(key))
        .collect();
    (free[0], free[1])
}

fn info(p: &TestImage) -> Key {
    let group = data_group(p);
    p.find(FREE, |key, _| {
        key.item_type == ItemType::FREE_SPACE_INFO && key.objectid == group.objectid
    })
    .0
}

#[expect(clippy::too_many_lines, reason = "a table")]
fn free_space() -> Vec<Case> {
    vec![
        case(
            "free extent missing",
            |p| p.remove(FREE, &free_pair(p).0),
            &[Kind::FreeSpaceMissing, Kind::FreeSpaceCount],
        ),
        case(
            "free extent over an extent",
            |p| {
                let (first, second) = free_pair(p);
                let taken = first.objectid + first.offset;
                assert!(taken < second.objectid);
                let key = Key::new(taken, ItemType::FREE_SPACE_EXTENT, 4096);
                p.insert(FREE, key, &[]);
            },
            &[Kind::FreeSpaceAllocated, Kind::FreeSpaceCount],
        ),
        case(
            "free extent too short",
            |p| {
                let (first, _) = free_pair(p);
                p.rekey(FREE, &first, Key { offset: first.offset - 4096, ..first });
            },
            &[Kind::FreeSpaceMissing],
        ),
        case(
            "free extent too long",
            |p| {
                let (first, _) = free_pair(p);
                p.rekey(FREE, &first, Key { offset: first.offset + 4096, ..first });
            },
            &[Kind::FreeSpaceAllocated],
        ),
        case(
            "free extent in two parts",
            |p| {
                let (first, _) = free_pair(p);
                p.rekey(FREE, &first, Key { offset: 4096, ..first });
                let rest =
                    Key { objectid: first.objectid + 4096, offset: first.offset - 4096, ..first };
                p.insert(FREE, rest, &[]);
            },
            &[Kind::FreeSpaceCount],
        ),
        case(
            "free extent count",
            |p| {
                p.alter(FREE, &info(p), |raw: &mut RawFreeSpaceInfo| {
                    raw.extent_count = U32::new(raw.extent_count.get() + 1);
                });
            },
            &[Kind::FreeSpaceCount],
        ),
        case(
            "free extents called bitmaps",
            |p| {
                p.alter(FREE, &info(p), |raw: &mut RawFreeSpaceInfo| raw.flags = U32::new(1));
            },
            &[Kind::FreeSpaceCount],
        ),
        case("free extents as a bitmap", as_bitmap, &[]),
        case(
            "free bitmap with a bit too many",
            |p| {
                as_bitmap(p);
                flip(p, false);
            },
            &[Kind::FreeSpaceAllocated, Kind::FreeSpaceCount],
        ),
        case(
            "free bitmap with a bit too few",
            |p| {
                as_bitmap(p);
                flip(p, true);
            },
            &[Kind::FreeSpaceMissing, Kind::FreeSpaceCount],
        ),
        case("free space info missing", |p| p.remove(FREE, &info(p)), &[Kind::FreeSpaceGroup]),
    ]
}

/// Converts the group's free extents to one bitmap, as the kernel does with many small ones.
fn as_bitmap(p: &TestImage) {
    let group = data_group(p);
    let range = group.objectid..group.objectid + group.offset;
    let mut bits = vec![0_u8; (group.offset / 4096 / 8) as usize];
    let is_ours =
        |key: &Key| key.item_type == ItemType::FREE_SPACE_EXTENT && range.contains(&key.objectid);
    assert!(bits.len() <= 256, "one bitmap is enough");
    p.edit(FREE, &info(p), |items| {
        for (key, _) in items.iter().filter(|(key, _)| is_ours(key)) {
            let first = (key.objectid - group.objectid) / 4096;
            for sector in first..first + key.offset / 4096 {
                bits[sector as usize / 8] |= 1 << (sector % 8);
            }
        }
        items.retain(|(key, _)| !is_ours(key));
        items.push((Key { item_type: ItemType::FREE_SPACE_BITMAP, ..group }, bits));
    });
    p.alter(FREE, &info(p), |raw: &mut RawFreeSpaceInfo| raw.flags = U32::new(1));
}

/// Flips one bit in a byte of eight equal bits.
fn flip(p: &TestImage, is_free: bool) {
    let key = Key { item_type: ItemType::FREE_SPACE_BITMAP, ..data_group(p) };
    p.change(FREE, &key, |bits| {
        let alike = if is_free { 0xff } else { 0 };
        let byte = bits.iter_mut().find(|byte| **byte == alike);
        *byte.expect("eight sectors alike") ^= 0x10;
    });
}

const CSUM: TreeId = TreeId::CHECKSUM;

/// The first extent of a file.
fn extent_of(p: &TestImage, path: &str) -> u64 {
    let ino = p.ino(TreeId::FS, path);
    let (key, data) =
        p.find(TreeId::FS, |key, _| key.objectid == ino && key.item_type == ItemType::EXTENT_DATA);
    let extent = FileExtent::check(&data, key.offset).unwrap();
    assert!(!matches!(extent.body, ExtentBody::Inline(_)));
    extent.disk().unwrap().logical.0
}

/// The checksum item that holds an address.
fn sums_at(p: &TestImage, logical: u64) -> Key {
    let holds = |key: &Key, data: &[u8]| {
        let end = key.offset + data.len() as u64 / 4 * 4096;
        (key.offset..end).contains(&logical)
    };
    p.find(CSUM, holds).0
}

fn sums() -> Vec<Case> {
    vec![
        case(
            "checksums missing",
            |p| p.remove(CSUM, &sums_at(p, extent_of(p, "d/plain"))),
            &[Kind::ChecksumsMissing],
        ),
        case(
            "checksums too few",
            |p| {
                let key = sums_at(p, extent_of(p, "d/plain"));
                p.change(CSUM, &key, |data| data.truncate(data.len() - 4));
            },
            &[Kind::ChecksumsMissing],
        ),
        case(
            "checksums of free space",
            |p| {
                let (free, _) = free_pair(p);
                let start = free.objectid + free.offset - 4096;
                p.insert(
                    CSUM,
                    Key::new(EXTENT_CSUM_OBJECTID, ItemType::EXTENT_CSUM, start),
                    &[1; 4],
                );
            },
            &[Kind::ChecksumsUnallocated, Kind::DataCorrupt],
        ),
        case(
            "checksums twice",
            |p| {
                let key = sums_at(p, extent_of(p, "d/plain"));
                p.insert(CSUM, Key { offset: key.offset + 4096, ..key }, &[1; 4]);
            },
            &[Kind::BlockBad],
        ),
        case(
            "checksums of what is nodatasum",
            |p| {
                let key =
                    Key::new(EXTENT_CSUM_OBJECTID, ItemType::EXTENT_CSUM, extent_of(p, "d/bare"));
                p.insert(CSUM, key, &[1; 4]);
            },
            &[Kind::ChecksumsUnexpected, Kind::DataCorrupt],
        ),
        case(
            "checksums of what is preallocated",
            |p| {
                let key = Key::new(
                    EXTENT_CSUM_OBJECTID,
                    ItemType::EXTENT_CSUM,
                    extent_of(p, "d/reserved"),
                );
                p.insert(CSUM, key, &[1; 4]);
            },
            &[Kind::ChecksumsUnexpected, Kind::DataCorrupt],
        ),
        case(
            "checksum of another sector",
            |p| {
                let key = sums_at(p, extent_of(p, "d/plain"));
                p.change(CSUM, &key, |data| data[0] ^= 1);
            },
            &[Kind::DataCorrupt],
        ),
        case(
            "data corrupt",
            |p| p.write(Logical(extent_of(p, "d/plain")), &[0x55; 512], 1),
            &[Kind::DataCorrupt],
        ),
    ]
}
