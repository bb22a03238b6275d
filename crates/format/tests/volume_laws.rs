//! Laws of the items that describe the volume: chunks, devices, block groups, extents, checksums.

#![allow(clippy::unwrap_used, reason = "a test that panics has failed")]

use butternut_format::block_group::RawBlockGroup;
use butternut_format::check::{LeafContext, LeafItem, leaf_item};
use butternut_format::checksum::{ChecksumKind, data_ref_hash};
use butternut_format::chunk::{BlockGroupFlags, Chunk, RawChunk, RawStripe};
use butternut_format::device_extent::{DeviceStats, RawDeviceExtent, RawDeviceReplace};
use butternut_format::device_item::RawDeviceItem;
use butternut_format::extent::{
    Extent, ExtentKind, InlineRef, RawExtentDataRef, RawExtentItem, RawInlineRef, RawSharedDataRef,
};
use butternut_format::feature::{MIXED_GROUPS, SKINNY_METADATA};
use butternut_format::free_space::RawFreeSpaceInfo;
use butternut_format::key::{ItemType, Key};
use butternut_format::node::BlockRules;
use butternut_format::quota::{QgroupId, QgroupStatus, RawQgroupStatus};
use butternut_format::root::RawRootItem;
use butternut_format::units::{Generation, Logical, TreeId};
use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromZeros, IntoBytes};

const MIB: u64 = 1 << 20;
const LEAF: Generation = Generation(10);

fn rules() -> BlockRules {
    BlockRules {
        csum: ChecksumKind::Xxhash64,
        node_bytes: 16384,
        fsids: vec![[1; 16]],
        incompat: SKINNY_METADATA.mask(),
        compat_ro: 0,
    }
}

/// Returns the error of an item behind a previous one; empty if it is valid.
fn check_after(previous: Option<(Key, &[u8])>, key: Key, data: &[u8]) -> String {
    let previous = previous.map(|(key, data)| LeafItem { key, data });
    let rules = rules();
    let context = LeafContext { previous, owner: TreeId::EXTENT, generation: LEAF, rules: &rules };
    let verdict = leaf_item(&LeafItem { key, data }, &context);
    verdict.map_or_else(|refused| refused.to_string(), |()| String::new())
}

fn check_alone(key: Key, data: &[u8]) -> String {
    check_after(None, key, data)
}

fn chunk(flags: u64, stripes: u16) -> Vec<u8> {
    let mut raw = RawChunk::new_zeroed();
    raw.length.set(8 * MIB);
    raw.owner.set(2);
    raw.stripe_len.set(65536);
    raw.r#type.set(flags);
    raw.sector_size.set(4096);
    raw.num_stripes.set(stripes);
    raw.sub_stripes.set(if flags & BlockGroupFlags::RAID10.0 == 0 { 1 } else { 2 });
    let mut stripe = RawStripe::new_zeroed();
    stripe.devid.set(1);
    stripe.offset.set(MIB);
    let stripes = stripe.as_bytes().repeat(stripes.into());
    [raw.as_bytes(), &stripes].concat()
}

const CHUNK: Key = Key::new(256, ItemType::CHUNK_ITEM, 16 * MIB);

#[test]
fn each_profile_has_its_number_of_stripes() {
    let cases: [(BlockGroupFlags, &[u16], &[u16]); 9] = [
        (BlockGroupFlags(0), &[1], &[0, 2]),
        (BlockGroupFlags::DUP, &[2], &[0, 1, 3]),
        (BlockGroupFlags::RAID0, &[1, 2, 9], &[0]),
        (BlockGroupFlags::RAID1, &[2], &[0, 1, 3]),
        (BlockGroupFlags::RAID1C3, &[3], &[2, 4]),
        (BlockGroupFlags::RAID1C4, &[4], &[3, 5]),
        (BlockGroupFlags::RAID10, &[2, 4, 6], &[0, 1, 3]),
        (BlockGroupFlags::RAID5, &[2, 3, 8], &[0, 1]),
        (BlockGroupFlags::RAID6, &[3, 4, 8], &[0, 1, 2]),
    ];
    for (profile, right, wrong) in cases {
        let flags = BlockGroupFlags::DATA.0 | profile.0;
        for stripes in right {
            assert_eq!(check_alone(CHUNK, &chunk(flags, *stripes)), "", "{profile:?} of {stripes}");
        }
        for stripes in wrong {
            let verdict = check_alone(CHUNK, &chunk(flags, *stripes));
            assert!(verdict.starts_with("num_stripes: have"), "{profile:?} {stripes}: {verdict}");
        }
    }
}

#[test]
fn an_invalid_chunk_is_refused_by_field() {
    let refused = |change: &dyn Fn(&mut RawChunk)| {
        let mut bytes = chunk(BlockGroupFlags::DATA.0, 1);
        change(RawChunk::mut_from_prefix(&mut bytes));
        check_alone(CHUNK, &bytes)
    };
    assert_eq!(refused(&|raw| raw.length.set(0)), "length: have 0, want not 0");
    assert_eq!(refused(&|raw| raw.length.set(77)), "length: have 77, want sector aligned");
    let long = refused(&|raw| raw.length.set(1 << 48));
    assert_eq!(long, "length: have 281474976710656, want below 281474976645120");
    assert_eq!(refused(&|raw| raw.stripe_len.set(4096)), "stripe_len: have 4096, want 65536");
    assert_eq!(refused(&|raw| raw.sector_size.set(512)), "sector_size: have 512, want 4096");
    assert_eq!(
        refused(&|raw| raw.r#type.set(0x18 | 1)),
        "type: have 0x19, want one profile at most"
    );
    assert_eq!(
        refused(&|raw| raw.r#type.set(5)),
        "type: have 0x5, want data, system or metadata, mixed where allowed"
    );
    assert_eq!(
        refused(&|raw| raw.r#type.set(1 << 20)),
        "type: have 0x100000, want no bits but 0x7ff"
    );
    assert_eq!(
        refused(&|raw| raw.num_stripes.set(9)),
        "item size: have 80, want a chunk and its stripes"
    );
    let far = Key::new(256, ItemType::CHUNK_ITEM, u64::MAX - 4095);
    let verdict = check_alone(far, &chunk(1, 1));
    assert_eq!(verdict, "length: have 8388608, want an end inside the address space");
    let mut behind = chunk(1, 1);
    let offset = size_of::<RawChunk>() + 8;
    behind[offset..offset + 8].copy_from_slice(&(u64::MAX - 8 * MIB + 1).to_le_bytes());
    let verdict = check_alone(CHUNK, &behind);
    let want = "stripe offset: have 18446744073701163008, want an end inside the address space";
    assert_eq!(verdict, want);
    let trailing = [chunk(1, 1), vec![0]].concat();
    assert_eq!(check_alone(CHUNK, &trailing), "item size: have 81, want 80");
}

/// Casts the front of an item, to change it.
trait Front: Sized {
    fn mut_from_prefix(bytes: &mut [u8]) -> &mut Self;
}

impl<T: zerocopy::FromBytes + zerocopy::IntoBytes + zerocopy::KnownLayout> Front for T {
    fn mut_from_prefix(bytes: &mut [u8]) -> &mut Self {
        <T as zerocopy::FromBytes>::mut_from_prefix(bytes).ok().unwrap().0
    }
}

#[test]
fn mixed_groups_need_the_feature() {
    let mixed = chunk(5, 1);
    assert!(Chunk::check(CHUNK, &mixed, 0).is_err());
    let chunk = Chunk::check(CHUNK, &mixed, MIXED_GROUPS.mask()).unwrap();
    assert_eq!((chunk.logical, chunk.end()), (Logical(16 * MIB), Logical(24 * MIB)));
}

#[test]
fn ranges_may_touch_but_not_overlap() {
    let first = chunk(1, 1);
    let next = |offset| {
        let key = Key::new(256, ItemType::CHUNK_ITEM, offset);
        check_after(Some((CHUNK, &first)), key, &first)
    };
    assert_eq!(next(24 * MIB), "");
    let want = "start: have 25161728, want at least 25165824, where the item before ends";
    assert_eq!(next(24 * MIB - 4096), want);

    let extent = Key::new(16 * MIB, ItemType::METADATA_ITEM, 0);
    let bytes = tree_block();
    let next =
        |at| check_after(Some((extent, &bytes)), Key::new(at, ItemType::METADATA_ITEM, 1), &bytes);
    assert_eq!(next(16 * MIB + 16384), "");
    assert!(next(16 * MIB + 4096).starts_with("start: have 16781312, want at least 16793600"));

    let checksums = Key::new(u64::MAX - 9, ItemType::EXTENT_CSUM, MIB);
    let next = |at| {
        check_after(
            Some((checksums, &[0; 80])),
            Key::new(u64::MAX - 9, ItemType::EXTENT_CSUM, at),
            &[0; 8],
        )
    };
    assert_eq!(next(MIB + 40960), "");
    assert!(next(MIB + 36864).starts_with("start: have 1085440, want at least 1089536"));

    let free = Key::new(MIB, ItemType::FREE_SPACE_EXTENT, 8192);
    let next =
        |at| check_after(Some((free, &[])), Key::new(at, ItemType::FREE_SPACE_EXTENT, 4096), &[]);
    assert_eq!(next(MIB + 8192), "");
    assert!(next(MIB + 4096).starts_with("start:"));
}

#[test]
fn checksum_items_have_whole_checksums_of_aligned_sectors() {
    let at = |objectid, offset, bytes: &[u8]| {
        check_alone(Key::new(objectid, ItemType::EXTENT_CSUM, offset), bytes)
    };
    assert_eq!(at(u64::MAX - 9, MIB, &[0; 16]), "");
    assert_eq!(at(u64::MAX - 9, MIB, &[0; 12]), "item size: have 12, want a multiple of 8, not 0");
    assert_eq!(at(u64::MAX - 9, MIB, &[]), "item size: have 0, want a multiple of 8, not 0");
    assert_eq!(at(u64::MAX - 9, 512, &[0; 8]), "key offset: have 512, want sector aligned");
    assert!(at(5, MIB, &[0; 8]).starts_with("key objectid: have 5"));
    let end = at(u64::MAX - 9, u64::MAX - 4095, &[0; 8]);
    assert_eq!(end, "item size: have 8, want an end inside the address space");
}

#[test]
fn devices_and_their_extents_match_their_keys() {
    let mut device = RawDeviceItem::new_zeroed();
    device.devid.set(3);
    device.total_bytes.set(MIB);
    let item = |objectid, devid, raw: &RawDeviceItem| {
        check_alone(Key::new(objectid, ItemType::DEV_ITEM, devid), raw.as_bytes())
    };
    assert_eq!(item(1, 3, &device), "");
    assert_eq!(item(1, 4, &device), "devid: have 3, want 4");
    assert_eq!(item(2, 3, &device), "key objectid: have 2, want 1");
    device.bytes_used.set(MIB + 1);
    assert_eq!(item(1, 3, &device), "bytes_used: have 1048577, want at most total_bytes 1048576");

    let mut extent = RawDeviceExtent::new_zeroed();
    extent.chunk_tree.set(3);
    extent.chunk_objectid.set(256);
    extent.length.set(MIB);
    let key = |devid, offset| Key::new(devid, ItemType::DEV_EXTENT, offset);
    assert_eq!(check_alone(key(1, MIB), extent.as_bytes()), "");
    assert!(check_alone(key(1, 5), extent.as_bytes()).starts_with("key offset: have 5"));
    let before = Some((key(1, MIB), extent.as_bytes()));
    assert!(check_after(before, key(1, MIB + 4096), extent.as_bytes()).starts_with("start:"));
    assert_eq!(check_after(before, key(2, MIB), extent.as_bytes()), "");

    let mut replace = RawDeviceReplace::new_zeroed();
    let key = Key::new(0, ItemType::DEV_REPLACE, 0);
    assert_eq!(check_alone(key, replace.as_bytes()), "");
    replace.replace_state.set(5);
    assert_eq!(check_alone(key, replace.as_bytes()), "replace_state: have 5, want 0 to 4");
}

#[test]
fn device_counts_of_any_length_are_read() {
    let counts = [U64::new(1), U64::new(2), U64::new(3), U64::new(4), U64::new(5), U64::new(6)];
    let want = DeviceStats { write_errors: 1, read_errors: 2, ..DeviceStats::default() };
    assert_eq!(DeviceStats::check(counts[..2].as_bytes()).unwrap(), want);
    assert_eq!(DeviceStats::check(counts.as_bytes()).unwrap().generation_errors, 5);
    assert!(DeviceStats::check(&[0; 9]).is_err());
}

#[test]
fn a_block_group_uses_at_most_its_length() {
    let mut raw = RawBlockGroup::new_zeroed();
    raw.used.set(MIB);
    raw.chunk_objectid.set(256);
    raw.flags.set(1);
    let key = Key::new(MIB, ItemType::BLOCK_GROUP_ITEM, MIB);
    assert_eq!(check_alone(key, raw.as_bytes()), "");
    raw.used.set(MIB + 1);
    assert_eq!(check_alone(key, raw.as_bytes()), "used: have 1048577, want at most 1048576");
    raw.used.set(0);
    raw.chunk_objectid.set(1);
    assert_eq!(check_alone(key, raw.as_bytes()), "chunk_objectid: have 1, want 256");
    raw.chunk_objectid.set(256);
    raw.flags.set(0);
    assert!(check_alone(key, raw.as_bytes()).starts_with("type: have 0x0, want data, system"));
}

#[test]
fn free_space_is_inside_its_group() {
    let info = RawFreeSpaceInfo { extent_count: U32::new(1), flags: U32::new(0) };
    let group = Key::new(MIB, ItemType::FREE_SPACE_INFO, MIB);
    assert_eq!(check_alone(group, info.as_bytes()), "");
    let free = |at, bytes| {
        let key = Key::new(at, ItemType::FREE_SPACE_EXTENT, bytes);
        check_after(Some((group, info.as_bytes())), key, &[])
    };
    assert_eq!(free(MIB, MIB), "");
    assert_eq!(free(MIB + 4096, MIB), "end: have 2101248, want at most 2097152, the group's");
    let odd = RawFreeSpaceInfo { extent_count: U32::new(1), flags: U32::new(2) };
    assert_eq!(check_alone(group, odd.as_bytes()), "flags: have 0x2, want no bits but 0x1");
}

fn extent_item(refs: u64, generation: u64, flags: u64) -> Vec<u8> {
    let [refs, generation, flags] = [refs, generation, flags].map(U64::new);
    RawExtentItem { refs, generation, flags }.as_bytes().to_vec()
}

fn inline(item_type: ItemType, offset: u64) -> Vec<u8> {
    RawInlineRef { r#type: item_type.0, offset: U64::new(offset) }.as_bytes().to_vec()
}

fn data_ref(root: u64, objectid: u64, offset: u64, count: u32) -> RawExtentDataRef {
    let [root, objectid, offset] = [root, objectid, offset].map(U64::new);
    RawExtentDataRef { root, objectid, offset, count: U32::new(count) }
}

fn inline_data(reference: &RawExtentDataRef) -> Vec<u8> {
    [&[ItemType::EXTENT_DATA_REF.0], reference.as_bytes()].concat()
}

fn tree_block() -> Vec<u8> {
    [extent_item(1, 9, 2), inline(ItemType::TREE_BLOCK_REF, 5)].concat()
}

const BLOCK: Key = Key::new(MIB, ItemType::METADATA_ITEM, 0);
const DATA: Key = Key::new(MIB, ItemType::EXTENT_ITEM, 8192);

#[test]
fn inline_references_of_every_kind_are_listed() {
    let mut files = [data_ref(5, 257, 0, 1), data_ref(5, 258, 4096, 2)];
    files.sort_by_key(|file| {
        std::cmp::Reverse(data_ref_hash(file.root.get(), file.objectid.get(), file.offset.get()))
    });
    let shared = [inline(ItemType::SHARED_DATA_REF, 65536), vec![3, 0, 0, 0]].concat();
    let bytes = [
        extent_item(6, 9, 1),
        inline(ItemType::EXTENT_OWNER_REF, 256),
        inline_data(&files[0]),
        inline_data(&files[1]),
        shared,
    ]
    .concat();
    assert_eq!(check_alone(DATA, &bytes), "");
    let extent = Extent::check(DATA, &bytes, LEAF, &rules()).unwrap();
    assert_eq!((extent.kind, extent.end()), (ExtentKind::Data, Logical(MIB + 8192)));
    let references: Vec<_> = extent.inline_refs().map(Result::unwrap).collect();
    assert_eq!(references[0], InlineRef::Owner(TreeId(256)));
    assert!(
        matches!(references[1], InlineRef::Data(data) if data.ino.0 == files[0].objectid.get())
    );
    assert_eq!(references[3], InlineRef::SharedData { parent: Logical(65536), count: 3 });
    assert_eq!(references.iter().map(|reference| reference.count()).sum::<u32>(), 6);

    let unsorted = [extent_item(6, 9, 1), inline_data(&files[1]), inline_data(&files[0])].concat();
    assert!(check_alone(DATA, &unsorted).starts_with("inline reference 1: offset or hash: have"));
}

#[test]
fn an_invalid_extent_is_refused_by_field() {
    let block = |refs, generation, flags, rest: &[u8]| {
        check_alone(BLOCK, &[extent_item(refs, generation, flags), rest.to_vec()].concat())
    };
    assert_eq!(check_alone(BLOCK, &tree_block()), "");
    assert_eq!(block(1, 11, 2, &[]), "generation: have 11, want at most 10");
    assert_eq!(block(1, 9, 1, &[]), "flags: have 0x1, want a tree block, matching the key type");
    assert_eq!(block(1, 9, 3, &[]), "flags: have 0x3, want either data or tree block");
    assert_eq!(block(1, 9, 0x1002, &[]), "flags: have 0x1002, want no bits but 0x103");
    let two = [inline(ItemType::TREE_BLOCK_REF, 5), inline(ItemType::SHARED_BLOCK_REF, 4096)];
    assert_eq!(block(1, 9, 2, &two.concat()), "refs: have 1, want at least 2");
    assert_eq!(
        block(2, 9, 2, &[two[1].clone(), two[0].clone()].concat()),
        "inline reference 1: type: have 176, want at least 182"
    );
    let cut = block(2, 9, 2, &two.concat()[..17]);
    assert_eq!(cut, "inline reference 1: item size: have 8, want at least 9");
    let odd = block(1, 9, 2, &inline(ItemType::SHARED_BLOCK_REF, 77));
    assert_eq!(odd, "inline reference 0: parent: have 77, want sector aligned and not 0");
    let file = block(1, 9, 2, &inline_data(&data_ref(5, 257, 0, 1)));
    assert_eq!(
        file,
        "inline reference 0: type: have 178, want a reference type that matches flags"
    );
    assert_eq!(
        block(1, 9, 2, &inline(ItemType(99), 0)),
        "inline reference 0: type: have 99, want the type of a reference"
    );
    let high = Key::new(MIB, ItemType::METADATA_ITEM, 8);
    assert_eq!(check_alone(high, &tree_block()), "key offset: have 8, want below 8");
    let old = Key::new(MIB, ItemType::EXTENT_ITEM, 4096);
    assert_eq!(check_alone(old, &tree_block()), "key offset: have 4096, want 16384");

    let data =
        |reference| check_alone(DATA, &[extent_item(1, 9, 1), inline_data(&reference)].concat());
    assert_eq!(data(data_ref(5, 257, 0, 1)), "");
    let refused = |reference| data(reference).replace("inline reference 0: data ref: ", "");
    assert_eq!(refused(data_ref(2, 257, 0, 1)), "root: have 2, want a tree with files");
    assert_eq!(refused(data_ref(5, 6, 0, 1)), "objectid: have 6, want an inode number");
    assert_eq!(refused(data_ref(5, 257, 5, 1)), "offset: have 5, want sector aligned");
    assert_eq!(refused(data_ref(5, 257, 0, 0)), "count: have 0, want not 0");
}

#[test]
fn keyed_references_match_their_keys() {
    let reference = data_ref(5, 257, 0, 1);
    let hash = data_ref_hash(5, 257, 0);
    let at = |offset| {
        check_alone(Key::new(MIB, ItemType::EXTENT_DATA_REF, offset), reference.as_bytes())
    };
    assert_eq!((at(hash), at(hash + 1)), (String::new(), String::new()));
    assert!(at(hash - 1).starts_with("key offset: have"));
    let key = |item_type, offset| Key::new(MIB, item_type, offset);
    assert_eq!(check_alone(key(ItemType::TREE_BLOCK_REF, 5), &[]), "");
    assert_eq!(check_alone(key(ItemType::TREE_BLOCK_REF, 5), &[0]), "item size: have 1, want 0");
    assert_eq!(check_alone(key(ItemType::SHARED_BLOCK_REF, 65536), &[]), "");
    assert!(check_alone(key(ItemType::SHARED_BLOCK_REF, 5), &[]).starts_with("parent: have 5"));
    let shared = RawSharedDataRef { count: U32::new(0) };
    let verdict = check_alone(key(ItemType::SHARED_DATA_REF, 65536), shared.as_bytes());
    assert_eq!(verdict, "count: have 0, want not 0");
}

#[test]
fn a_root_item_is_not_newer_than_its_leaf() {
    let mut raw = RawRootItem::new_zeroed();
    raw.bytenr.set(MIB);
    raw.generation.set(10);
    let key = Key::new(256, ItemType::ROOT_ITEM, 0);
    assert_eq!(check_alone(key, raw.as_bytes()), "");
    raw.generation.set(11);
    assert_eq!(check_alone(key, raw.as_bytes()), "generation: have 11, want at most 10");
    raw.generation.set(10);
    raw.drop_progress.objectid.set(300);
    let want = "drop_level: have 0, want above 0 where drop_progress is (300 0 0)";
    assert_eq!(check_alone(key, raw.as_bytes()), want);
}

#[test]
fn quota_status_of_either_length_is_read() {
    let mut raw = RawQgroupStatus::new_zeroed();
    raw.version.set(1);
    raw.enable_gen.set(7);
    let key = Key::new(0, ItemType::QGROUP_STATUS, 0);
    let simple = QgroupStatus::check(key, raw.as_bytes()).unwrap();
    assert_eq!(simple.enable_generation, Some(Generation(7)));
    let full = QgroupStatus::check(key, &raw.as_bytes()[..32]).unwrap();
    assert_eq!(full.enable_generation, None);
    assert_eq!(check_alone(key, &raw.as_bytes()[..36]), "item size: have 36, want 40");
    raw.version.set(2);
    assert_eq!(check_alone(key, raw.as_bytes()), "version: have 2, want 1");
    assert_eq!(QgroupId(1 << 48 | 9).to_string(), "1/9");
    let relation = Key::new(256, ItemType::QGROUP_RELATION, 257);
    assert_eq!(check_alone(relation, &[]), "key offset: have 0/257, want a group of another level");
}

#[test]
fn raid_stripe_items_are_refused() {
    let verdict = check_alone(Key::new(MIB, ItemType::RAID_STRIPE, 4096), &[0; 16]);
    assert_eq!(verdict, "key type: have 230, want none of raid-stripe-tree");
}
