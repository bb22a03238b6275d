//! [`VolumeParams`]: what the running transaction needs of the superblock.

use butternut_format::checksum::ChecksumKind;
use butternut_format::feature;
use butternut_format::node::HEADER_BYTES;
use butternut_format::super_block::SuperBlock;
use butternut_format::units::{TreeId, index};

/// Properties of the volume that do not change while it is open.
#[derive(Clone, Debug)]
#[expect(clippy::struct_excessive_bools, reason = "each is a feature bit of the superblock")]
pub(crate) struct VolumeParams {
    pub(crate) node_bytes: u32,
    pub(crate) fsid: [u8; 16],
    pub(crate) chunk_tree_uuid: [u8; 16],
    pub(crate) csum: ChecksumKind,
    pub(crate) incompat: u64,
    pub(crate) is_skinny: bool,
    pub(crate) is_mixed: bool,
    /// Whether the volume has a valid free space tree, which commits maintain.
    pub(crate) has_free_space_tree: bool,
    pub(crate) has_block_group_tree: bool,
}

impl VolumeParams {
    pub(crate) fn of(super_block: &SuperBlock, chunk_tree_uuid: [u8; 16]) -> Self {
        let is_valid = super_block.has_compat_ro(feature::FREE_SPACE_TREE)
            && super_block.has_compat_ro(feature::FREE_SPACE_TREE_VALID);
        Self {
            node_bytes: super_block.node_bytes(),
            fsid: super_block.metadata_uuid(),
            chunk_tree_uuid,
            csum: super_block.csum(),
            incompat: super_block.raw().incompat_flags.get(),
            is_skinny: super_block.has(feature::SKINNY_METADATA),
            is_mixed: super_block.has(feature::MIXED_GROUPS),
            has_free_space_tree: is_valid,
            has_block_group_tree: super_block.has_compat_ro(feature::BLOCK_GROUP_TREE),
        }
    }

    pub(crate) fn node_len(&self) -> usize {
        index(self.node_bytes)
    }

    /// Returns the size of the longest item that a leaf can hold, in bytes.
    pub(crate) fn item_bytes_max(&self) -> usize {
        self.node_len().saturating_sub(HEADER_BYTES).saturating_sub(crate::block_edit::ITEM_BYTES)
    }

    /// Returns the tree that holds block group items.
    pub(crate) fn group_tree(&self) -> TreeId {
        if self.has_block_group_tree { TreeId::BLOCK_GROUP } else { TreeId::EXTENT }
    }
}
