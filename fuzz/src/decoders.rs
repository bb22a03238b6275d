//! Targets for the decoders. Where an item needs a key, it is the first 17 bytes of the input.

use crate::block::rules;
use butternut_file::compress::{Origin, decompress};
use butternut_format::block_group::BlockGroup;
use butternut_format::chunk::Chunk;
use butternut_format::device_extent::DeviceExtent;
use butternut_format::device_item::DeviceItem;
use butternut_format::dir::DirEntries;
use butternut_format::extent::{
    Extent, check_data_ref, check_shared_block_ref, check_shared_data_ref, check_tree_block_ref,
};
use butternut_format::file_extent::{Compression, FileExtent};
use butternut_format::free_space::{FreeBitmap, FreeSpaceInfo, check_extent};
use butternut_format::inode::Inode;
use butternut_format::inode_ref::{InodeExtrefs, InodeRefs};
use butternut_format::key::{Key, RawKey};
use butternut_format::log_item::check_dir_log;
use butternut_format::quota::{QgroupStatus, check_info, check_limit, check_relation};
use butternut_format::root::RootItem;
use butternut_format::root_ref::RootRef;
use butternut_format::units::Generation;
use butternut_format::uuid::subvolume_ids;
use std::hint::black_box;
use zerocopy::FromBytes;

/// Maximum decompressed length of a compressed extent, in bytes.
const DECOMPRESSED_MAX: usize = 128 << 10;

fn keyed(input: &[u8]) -> Option<(Key, &[u8])> {
    let (raw, rest) = RawKey::ref_from_prefix(input).ok()?;
    Some((Key::from(raw), rest))
}

pub(crate) fn dir_entries(input: &[u8]) {
    assert!(DirEntries::new(input).count() <= input.len() / 30 + 1);
}

pub(crate) fn inode_refs(input: &[u8]) {
    assert!(InodeRefs::new(input).count() <= input.len() / 10 + 1);
    assert!(InodeExtrefs::new(input).count() <= input.len() / 18 + 1);
}

pub(crate) fn file_extent(input: &[u8]) {
    if let Some((key, data)) = keyed(input)
        && let Ok(extent) = FileExtent::check(data, key.offset)
    {
        assert!(key.offset.checked_add(extent.file_bytes()).is_some());
        black_box(extent.disk());
    }
}

pub(crate) fn inode(input: &[u8]) {
    black_box(Inode::check(input).is_ok());
}

pub(crate) fn chunk(input: &[u8]) {
    let Some((key, data)) = keyed(input) else { return };
    if let Ok(chunk) = Chunk::check(key, data, u64::MAX) {
        assert!(chunk.stripes.len() <= data.len() / 32);
        assert!(chunk.end() > chunk.logical);
    }
    black_box(DeviceItem::check(key, data).is_ok());
    black_box(DeviceExtent::check(key, data).is_ok());
}

pub(crate) fn extent_item(input: &[u8]) {
    let Some((key, data)) = keyed(input) else { return };
    if let Ok(item) = Extent::check(key, data, Generation(u64::MAX), &rules()) {
        assert!(item.inline_refs().count() <= data.len() / 9 + 1);
        black_box(item.end());
    }
    black_box(check_data_ref(key, data).is_ok());
    black_box(check_shared_data_ref(key, data).is_ok());
    black_box(check_shared_block_ref(key, data).is_ok());
    black_box(check_tree_block_ref(key, data).is_ok());
}

pub(crate) fn free_space(input: &[u8]) {
    let Some((key, data)) = keyed(input) else { return };
    black_box(FreeSpaceInfo::check(key, data).is_ok());
    black_box(check_extent(key, data).is_ok());
    if let Ok(bitmap) = FreeBitmap::check(key, data) {
        assert!(bitmap.ranges().count() <= data.len() * 8);
    }
    black_box(BlockGroup::check(key, data, u64::MAX).is_ok());
}

pub(crate) fn root(input: &[u8]) {
    let Some((key, data)) = keyed(input) else { return };
    if let Ok(root) = RootItem::check(key, data) {
        black_box(root.history());
    }
    black_box(RootRef::check(data).is_ok());
}

pub(crate) fn small_items(input: &[u8]) {
    let Some((key, data)) = keyed(input) else { return };
    black_box(QgroupStatus::check(key, data).is_ok());
    black_box(check_info(key, data).is_ok());
    black_box(check_limit(key, data).is_ok());
    black_box(check_relation(key, data).is_ok());
    black_box(check_dir_log(data).is_ok());
    if let Ok(ids) = subvolume_ids(data) {
        assert!(ids.count() <= data.len() / 8);
    }
}

/// Decompresses the input. Its first three bytes choose the decompressed length and the framing.
fn check_decompress(compression: Compression, input: &[u8]) {
    let [low, middle, high, packed @ ..] = input else { return };
    let wanted = u32::from_le_bytes([*low, *middle, *high & 1, 0]);
    let wanted = usize::try_from(wanted).map_or(0, |wanted| wanted.min(DECOMPRESSED_MAX));
    let origin = if high & 2 == 0 { Origin::Disk } else { Origin::Inline };
    let mut out = vec![0; wanted];
    black_box(decompress(compression, origin, packed, &mut out).is_ok());
}

pub(crate) fn zlib(input: &[u8]) {
    check_decompress(Compression::Zlib, input);
}

pub(crate) fn lzo(input: &[u8]) {
    check_decompress(Compression::Lzo, input);
}

pub(crate) fn zstd(input: &[u8]) {
    check_decompress(Compression::Zstd, input);
}
