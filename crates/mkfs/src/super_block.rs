//! Writes the superblocks of a new volume.

use crate::compose::Composed;
use crate::error::MkfsError;
use crate::options::Plan;
use crate::trees::{chunk_item, device_item};
use butternut_device::Device;
use butternut_format::chunk::BlockGroupFlags;
use butternut_format::key::RawKey;
use butternut_format::node::CSUM_BYTES;
use butternut_format::super_block::{
    COPY_OFFSETS, FLAG_WRITTEN, MAGIC, RawRootBackup, RawSuperBlock, SUPER_BLOCK_BYTES,
};
use butternut_format::units::{TreeId, length};
use butternut_sys::buffer::Buffer;
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromZeros, IntoBytes};

/// Writes every copy inside the volume, the first copy last.
pub(crate) fn write(
    device: &dyn Device,
    plan: &Plan,
    composed: &Composed,
) -> Result<(), MkfsError> {
    let mut raw = super_block(plan, composed);
    let mut memory = Buffer::zeroed(SUPER_BLOCK_BYTES);
    let is_inside = |offset: u64| offset + length(SUPER_BLOCK_BYTES) < plan.bytes;
    for offset in COPY_OFFSETS.into_iter().rev().filter(|offset| is_inside(*offset)) {
        raw.bytenr = U64::new(offset);
        raw.csum = plan.csum.compute(&raw.as_bytes()[CSUM_BYTES..]);
        memory.copy_from_slice(raw.as_bytes());
        device.write_at(offset, &memory)?;
    }
    Ok(())
}

/// Returns the superblock, without the fields that differ between copies.
fn super_block(plan: &Plan, composed: &Composed) -> RawSuperBlock {
    let generation = U64::new(Plan::GENERATION.0);
    let root = composed.arrangement.root(TreeId::ROOT);
    let chunk_root = composed.arrangement.root(TreeId::CHUNK);
    let has_free_space_tree = plan.features.has_free_space_tree();
    let mut raw = RawSuperBlock {
        fsid: plan.identity.fsid.0,
        flags: U64::new(FLAG_WRITTEN),
        magic: U64::new(MAGIC),
        generation,
        root: U64::new(root.logical.0),
        chunk_root: U64::new(chunk_root.logical.0),
        total_bytes: U64::new(plan.bytes),
        bytes_used: U64::new(composed.bytes_used),
        root_dir_objectid: U64::new(TreeId::ROOT_DIR.0),
        num_devices: U64::new(1),
        sectorsize: U32::new(4096),
        nodesize: U32::new(plan.node_bytes),
        unused_leafsize: U32::new(plan.node_bytes),
        stripesize: U32::new(4096),
        chunk_root_generation: generation,
        compat_ro_flags: U64::new(plan.features.compat_ro_flags()),
        incompat_flags: U64::new(plan.features.incompat_flags(plan.node_bytes)),
        csum_type: U16::new(plan.csum.csum_type()),
        root_level: root.level,
        chunk_root_level: chunk_root.level,
        dev_item: device_item(plan),
        // Without a free space tree, the v1 cache is marked as never written.
        cache_generation: U64::new(if has_free_space_tree { 0 } else { u64::MAX }),
        uuid_tree_generation: generation,
        ..RawSuperBlock::new_zeroed()
    };
    raw.label[..plan.label.len()].copy_from_slice(&plan.label);
    put_system_chunks(plan, &mut raw);
    raw.super_roots[0] = backup(plan, composed);
    raw
}

fn put_system_chunks(plan: &Plan, raw: &mut RawSuperBlock) {
    let mut at = 0;
    for group in plan.groups.iter().filter(|group| group.holds(BlockGroupFlags::SYSTEM)) {
        let item = chunk_item(plan, group);
        for part in [RawKey::from(item.key).as_bytes(), &item.data] {
            raw.sys_chunk_array[at..at + part.len()].copy_from_slice(part);
            at += part.len();
        }
    }
    raw.sys_chunk_array_size = U32::new(u32::try_from(at).expect("one chunk"));
}

fn backup(plan: &Plan, composed: &Composed) -> RawRootBackup {
    let generation = U64::new(Plan::GENERATION.0);
    let root = |tree| {
        let root = composed.arrangement.root(tree);
        (U64::new(root.logical.0), root.level)
    };
    let (tree_root, tree_root_level) = root(TreeId::ROOT);
    let (chunk_root, chunk_root_level) = root(TreeId::CHUNK);
    let (extent_root, extent_root_level) = root(TreeId::EXTENT);
    let (fs_root, fs_root_level) = root(TreeId::FS);
    let (dev_root, dev_root_level) = root(TreeId::DEVICE);
    let (csum_root, csum_root_level) = root(TreeId::CHECKSUM);
    RawRootBackup {
        tree_root,
        tree_root_gen: generation,
        chunk_root,
        chunk_root_gen: generation,
        extent_root,
        extent_root_gen: generation,
        fs_root,
        fs_root_gen: generation,
        dev_root,
        dev_root_gen: generation,
        csum_root,
        csum_root_gen: generation,
        total_bytes: U64::new(plan.bytes),
        bytes_used: U64::new(composed.bytes_used),
        num_devices: U64::new(1),
        tree_root_level,
        chunk_root_level,
        extent_root_level,
        fs_root_level,
        dev_root_level,
        csum_root_level,
        ..RawRootBackup::new_zeroed()
    }
}
