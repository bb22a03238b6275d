//! Reads the chunk tree, which maps all other logical addresses.

use crate::blocks::{Block, Reader};
use crate::misplaced::misplaced;
use crate::walk::Survey;
use butternut_format::chunk::Chunk;
use butternut_format::device_item::DeviceItem;
use butternut_format::key::ItemType;
use butternut_format::units::TreeId;

/// Contents of the chunk tree.
#[derive(Clone, Debug, Default)]
pub(crate) struct ChunkTree {
    pub(crate) chunks: Vec<Chunk>,
    pub(crate) devices: Vec<DeviceItem>,
    /// Part of it could not be read.
    pub(crate) is_lost: bool,
}

pub(crate) struct ChunkSurvey<'a> {
    pub(crate) reader: &'a Reader<'a>,
}

impl Survey for ChunkSurvey<'_> {
    type Out = ChunkTree;

    fn leaf(&self, leaf: &Block<'_>, _is_first: bool) -> ChunkTree {
        let mut out = ChunkTree::default();
        let incompat = self.reader.volume().block_rules().incompat;
        for slot in 0..leaf.len() {
            let Some((key, data)) = leaf.item(slot) else { continue };
            match key.item_type {
                ItemType::CHUNK_ITEM => out.chunks.extend(Chunk::check(key, data, incompat)),
                ItemType::DEV_ITEM => out.devices.extend(DeviceItem::check(key, data)),
                _ => misplaced(self.reader, TreeId::CHUNK, leaf, key),
            }
        }
        out
    }

    fn join(&self, left: &mut ChunkTree, right: ChunkTree) {
        left.chunks.extend(right.chunks);
        left.devices.extend(right.devices);
        left.is_lost |= right.is_lost;
    }

    fn lost(&self) -> ChunkTree {
        ChunkTree { is_lost: true, ..ChunkTree::default() }
    }
}
