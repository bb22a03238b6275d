//! The items of all trees of an empty volume.

use crate::compose::Arrangement;
use crate::features::Quotas;
use crate::item::Item;
use crate::layout::Group;
use crate::options::Plan;
use butternut_format::block_group::RawBlockGroup;
use butternut_format::checksum::name_hash;
use butternut_format::chunk::{BlockGroupFlags, CHUNK_IO_BYTES, Chunk, Profile, Stripe};
use butternut_format::device_extent::{DEV_STATS, RawDeviceExtent, RawDeviceStats};
use butternut_format::device_item::{DEV_ITEMS, RawDeviceItem};
use butternut_format::dir::{EntryKind, RawDirItem};
use butternut_format::extent::{
    EXTENT_FLAG_TREE_BLOCK, RawExtentItem, RawInlineRef, RawTreeBlockInfo,
};
use butternut_format::free_space::RawFreeSpaceInfo;
use butternut_format::inode::{FileKind, InodeFlags, RawInodeItem, RawTimespec, Time};
use butternut_format::inode_ref::RawInodeRef;
use butternut_format::key::{ItemType, Key, RawKey};
use butternut_format::quota::{
    RawQgroupInfo, RawQgroupLimit, RawQgroupStatus, STATUS_BYTES_SHORT, STATUS_ON,
    STATUS_SIMPLE_MODE, STATUS_VERSION,
};
use butternut_format::root::RawRootItem;
use butternut_format::units::{DevId, Physical, TreeId};
use zerocopy::little_endian::{I64, U16, U32, U64};
use zerocopy::{FromZeros, IntoBytes};

/// Devid of the only device.
pub(crate) const DEVICE_ID: u64 = 1;

/// The first object id: the root directory of a subvolume, and the first chunk.
const FIRST_INO: u64 = 256;

/// Name of the directory entry of the default subvolume in the root tree.
const DEFAULT: &[u8] = b"default";

const GENERATION: U64 = U64::new(Plan::GENERATION.0);

/// Returns the trees of a volume with these features, in the order of their blocks.
pub(crate) fn ids(plan: &Plan) -> Vec<TreeId> {
    let mut ids = vec![
        TreeId::CHUNK,
        TreeId::ROOT,
        TreeId::EXTENT,
        TreeId::DEVICE,
        TreeId::FS,
        TreeId::CHECKSUM,
        TreeId::UUID,
    ];
    if plan.features.has_free_space_tree() {
        ids.push(TreeId::FREE_SPACE);
    }
    if plan.features.has_block_group_tree() {
        ids.push(TreeId::BLOCK_GROUP);
    }
    if plan.features.quotas().is_some() {
        ids.push(TreeId::QUOTA);
    }
    ids.push(TreeId::DATA_RELOCATION);
    ids
}

/// Returns the sorted items of every tree, for blocks at the addresses of `arrangement`.
pub(crate) fn items(plan: &Plan, arrangement: &Arrangement) -> Vec<(TreeId, Vec<Item>)> {
    let mut all = Vec::new();
    for tree in ids(plan) {
        let mut items = match tree {
            TreeId::CHUNK => chunk_items(plan),
            TreeId::ROOT => root_items(plan, arrangement),
            TreeId::EXTENT => extent_items(plan, arrangement),
            TreeId::DEVICE => device_items(plan),
            TreeId::UUID => vec![
                Item { key: plan.identity.subvolume.key(ItemType::UUID_SUBVOL), data: Vec::new() }
                    .with(&U64::new(TreeId::FS.0)),
            ],
            TreeId::FREE_SPACE => free_space_items(plan, arrangement),
            TreeId::BLOCK_GROUP => block_group_items(plan, arrangement),
            TreeId::QUOTA => quota_items(plan, arrangement),
            TreeId::FS | TreeId::DATA_RELOCATION => first_directory(plan, FIRST_INO, FIRST_INO),
            _ => Vec::new(),
        };
        items.sort_by_key(|item| item.key);
        all.push((tree, items));
    }
    all
}

/// Returns the chunk item of a group.
pub(crate) fn chunk_item(plan: &Plan, group: &Group) -> Item {
    // The system chunk is read from the superblock before the device item, so its I/O sizes are
    // the sector size.
    let is_first = group.profile() == Profile::Single && group.holds(BlockGroupFlags::SYSTEM);
    let io_bytes = if is_first { 4096 } else { CHUNK_IO_BYTES };
    let stripe = |copy: &Physical| Stripe {
        devid: DevId(DEVICE_ID),
        offset: *copy,
        dev_uuid: plan.identity.device.0,
    };
    let chunk = Chunk {
        logical: group.logical,
        bytes: group.bytes,
        flags: group.flags,
        profile: group.profile(),
        sub_stripes: u16::from(!is_first),
        stripes: group.copies.iter().map(stripe).collect(),
    };
    Item { key: chunk.key(), data: chunk.to_bytes(io_bytes) }
}

pub(crate) fn device_item(plan: &Plan) -> RawDeviceItem {
    let copies = |group: &Group| group.copies.iter().map(|_| group.bytes).sum::<u64>();
    RawDeviceItem {
        devid: U64::new(DEVICE_ID),
        total_bytes: U64::new(plan.bytes),
        bytes_used: U64::new(plan.groups.iter().map(copies).sum()),
        io_align: U32::new(4096),
        io_width: U32::new(4096),
        sector_size: U32::new(4096),
        uuid: plan.identity.device.0,
        fsid: plan.identity.fsid.0,
        ..RawDeviceItem::new_zeroed()
    }
}

fn chunk_items(plan: &Plan) -> Vec<Item> {
    let device = Item::new(DEV_ITEMS, ItemType::DEV_ITEM, DEVICE_ID).with(&device_item(plan));
    let chunks = plan.groups.iter().map(|group| chunk_item(plan, group));
    std::iter::once(device).chain(chunks).collect()
}

fn device_items(plan: &Plan) -> Vec<Item> {
    let stats = Item::new(DEV_STATS, ItemType::PERSISTENT_ITEM, DEVICE_ID)
        .with(&RawDeviceStats::new_zeroed());
    let mut items = vec![stats];
    for group in &plan.groups {
        for copy in &group.copies {
            let uuid = plan.identity.chunk_tree.0;
            let extent = RawDeviceExtent::of(group.logical, group.bytes, uuid);
            items.push(Item::new(DEVICE_ID, ItemType::DEV_EXTENT, copy.0).with(&extent));
        }
    }
    items
}

fn root_items(plan: &Plan, arrangement: &Arrangement) -> Vec<Item> {
    let root_dir = TreeId::ROOT_DIR.0;
    let mut items = first_directory(plan, root_dir, root_dir);
    items.push(name_of(TreeId::FS.0, root_dir, DEFAULT));
    let entry = RawDirItem {
        location: RawKey::from(Key::new(TreeId::FS.0, ItemType::ROOT_ITEM, u64::MAX)),
        transid: GENERATION,
        data_len: U16::ZERO,
        name_len: U16::new(u16::try_from(DEFAULT.len()).expect("a short name")),
        entry_type: EntryKind::File(FileKind::Directory).entry_type(),
    };
    let entry = Item::new(root_dir, ItemType::DIR_ITEM, name_hash(DEFAULT)).with(&entry);
    items.push(entry.with(DEFAULT));
    for tree in ids(plan) {
        if !matches!(tree, TreeId::ROOT | TreeId::CHUNK) {
            let root = root_item(plan, arrangement, tree);
            items.push(Item::new(tree.0, ItemType::ROOT_ITEM, 0).with(&root));
        }
    }
    items
}

fn root_item(plan: &Plan, arrangement: &Arrangement, tree: TreeId) -> RawRootItem {
    let root = arrangement.root(tree);
    let blocks = arrangement.of(tree).map(|_| u64::from(plan.node_bytes));
    let mut inode = directory(plan);
    (inode.generation, inode.size) = (U64::new(1), U64::new(3));
    let mut item = RawRootItem {
        inode,
        generation: GENERATION,
        bytenr: U64::new(root.logical.0),
        bytes_used: U64::new(blocks.sum()),
        refs: U32::new(1),
        level: root.level,
        generation_v2: GENERATION,
        ..RawRootItem::new_zeroed()
    };
    if matches!(tree, TreeId::FS | TreeId::DATA_RELOCATION) {
        item.root_dirid = U64::new(FIRST_INO);
        item.inode.flags = U64::new(InodeFlags::ROOT_ITEM_INIT.0);
    }
    if tree == TreeId::FS {
        item.uuid = plan.identity.subvolume.0;
        (item.ctime, item.otime) = (timespec(plan.time), timespec(plan.time));
    }
    item
}

/// Returns the items of an empty directory.
fn first_directory(plan: &Plan, ino: u64, parent: u64) -> Vec<Item> {
    let time = timespec(plan.time);
    let inode = RawInodeItem {
        generation: GENERATION,
        atime: time,
        ctime: time,
        mtime: time,
        otime: time,
        ..directory(plan)
    };
    let inode = Item::new(ino, ItemType::INODE_ITEM, 0).with(&inode);
    vec![inode, name_of(ino, parent, b"..")]
}

/// Returns the inode item of a directory.
fn directory(plan: &Plan) -> RawInodeItem {
    RawInodeItem {
        nbytes: U64::new(u64::from(plan.node_bytes)),
        nlink: U32::new(1),
        mode: U32::new(FileKind::Directory.mode_bits() | 0o755),
        ..RawInodeItem::new_zeroed()
    }
}

/// Returns the `INODE_REF` item of a name.
fn name_of(objectid: u64, parent: u64, name: &[u8]) -> Item {
    let name_len = U16::new(u16::try_from(name.len()).expect("a short name"));
    let reference = RawInodeRef { index: U64::ZERO, name_len };
    Item::new(objectid, ItemType::INODE_REF, parent).with(&reference).with(name)
}

fn extent_items(plan: &Plan, arrangement: &Arrangement) -> Vec<Item> {
    let mut items = if plan.features.has_block_group_tree() {
        Vec::new()
    } else {
        block_group_items(plan, arrangement)
    };
    let extent = RawExtentItem {
        refs: U64::new(1),
        generation: GENERATION,
        flags: U64::new(EXTENT_FLAG_TREE_BLOCK),
    };
    for block in &arrangement.blocks {
        let (at, level) = (block.logical.0, block.level);
        let item = if plan.features.is_skinny() {
            Item::new(at, ItemType::METADATA_ITEM, u64::from(level)).with(&extent)
        } else {
            let info = RawTreeBlockInfo { key: RawKey::from(block.first_key), level };
            let node_bytes = u64::from(plan.node_bytes);
            Item::new(at, ItemType::EXTENT_ITEM, node_bytes).with(&extent).with(&info)
        };
        let owner = U64::new(block.tree.0);
        items.push(item.with(&RawInlineRef { r#type: ItemType::TREE_BLOCK_REF.0, offset: owner }));
    }
    items
}

fn block_group_items(plan: &Plan, arrangement: &Arrangement) -> Vec<Item> {
    let item = |group: &Group| {
        let bytes_used = arrangement.bytes_used(group, plan.node_bytes);
        let raw = RawBlockGroup::of(bytes_used, group.flags);
        Item::new(group.logical.0, ItemType::BLOCK_GROUP_ITEM, group.bytes).with(&raw)
    };
    plan.groups.iter().map(item).collect()
}

/// Returns the free space items. Blocks are at the start of their group, so each group has one free
/// range.
fn free_space_items(plan: &Plan, arrangement: &Arrangement) -> Vec<Item> {
    let items = |group: &Group| {
        let used = arrangement.bytes_used(group, plan.node_bytes);
        let info = Item::new(group.logical.0, ItemType::FREE_SPACE_INFO, group.bytes)
            .with(&RawFreeSpaceInfo::of(1, false));
        let (start, bytes) = (group.logical.0 + used, group.bytes - used);
        [info, Item::new(start, ItemType::FREE_SPACE_EXTENT, bytes)]
    };
    plan.groups.iter().flat_map(items).collect()
}

/// Returns the status of the quotas, and the group of the only subvolume: it alone refers to its
/// blocks, and has allocated them.
fn quota_items(plan: &Plan, arrangement: &Arrangement) -> Vec<Item> {
    let is_simple = plan.features.quotas() == Some(Quotas::Simple);
    let status = RawQgroupStatus {
        version: U64::new(STATUS_VERSION),
        generation: GENERATION,
        flags: U64::new(STATUS_ON | if is_simple { STATUS_SIMPLE_MODE } else { 0 }),
        rescan: U64::ZERO,
        // All extents of the volume count.
        enable_gen: GENERATION,
    };
    let bytes_used = arrangement.of(TreeId::FS).map(|_| u64::from(plan.node_bytes)).sum();
    let bytes_used = U64::new(bytes_used);
    let info = RawQgroupInfo {
        generation: GENERATION,
        rfer: bytes_used,
        rfer_cmpr: bytes_used,
        excl: bytes_used,
        excl_cmpr: bytes_used,
    };
    let group = TreeId::FS.0;
    let bytes = if is_simple { size_of::<RawQgroupStatus>() } else { STATUS_BYTES_SHORT };
    vec![
        Item::new(0, ItemType::QGROUP_STATUS, 0).with(&status.as_bytes()[..bytes]),
        Item::new(0, ItemType::QGROUP_INFO, group).with(&info),
        Item::new(0, ItemType::QGROUP_LIMIT, group).with(&RawQgroupLimit::new_zeroed()),
    ]
}

fn timespec(time: Time) -> RawTimespec {
    RawTimespec { sec: I64::new(time.secs), nsec: U32::new(time.nanos) }
}
