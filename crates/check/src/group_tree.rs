//! Block groups: what each says is used, against the extents inside it and the chunk under it.

use crate::blocks::{Block, Reader};
use crate::finding::Kind;
use crate::sink::Sink;
use crate::spans::Spans;
use crate::stray::stray;
use crate::walk::Survey;
use butternut_format::block_group::BlockGroup;
use butternut_format::chunk::Chunk;
use butternut_format::key::ItemType;
use butternut_format::refused::Bits;
use butternut_format::units::TreeId;

/// Block groups that lie in a tree of their own.
pub(crate) struct GroupSurvey<'a> {
    pub(crate) reader: &'a Reader<'a>,
}

impl Survey for GroupSurvey<'_> {
    type Out = Vec<BlockGroup>;

    fn leaf(&self, leaf: &Block<'_>, _is_first: bool) -> Vec<BlockGroup> {
        let incompat = self.reader.volume().block_rules().incompat;
        let mut groups = Vec::new();
        for slot in 0..leaf.len() {
            let Some((key, data)) = leaf.item(slot) else { continue };
            if key.item_type == ItemType::BLOCK_GROUP_ITEM {
                groups.extend(BlockGroup::check(key, data, incompat));
            } else {
                stray(self.reader, TreeId::BLOCK_GROUP, leaf, key);
            }
        }
        groups
    }

    fn join(&self, left: &mut Vec<BlockGroup>, right: Vec<BlockGroup>) {
        left.extend(right);
    }
}

/// Every chunk has one block group, as long and of the same type, and no group is without chunk.
/// Both are in the order of their addresses.
pub(crate) fn check_chunks(groups: &[BlockGroup], chunks: &[Chunk], sink: &Sink<'_>) {
    for group in groups {
        let place = format!("block group {}", group.logical);
        let at = chunks.binary_search_by_key(&group.logical, |chunk| chunk.logical);
        let Some(chunk) = at.ok().and_then(|at| chunks.get(at)) else {
            sink.add(Kind::GroupChunk, place, "chunk", "none", "one at this address");
            continue;
        };
        if chunk.bytes != group.bytes {
            let want = format!("{}, as the chunk's", chunk.bytes);
            sink.add(Kind::GroupChunk, &place, "length", group.bytes, want);
        }
        if chunk.flags != group.flags {
            let want = format!("{}, as the chunk's", Bits(chunk.flags.0));
            sink.add(Kind::GroupChunk, &place, "flags", Bits(group.flags.0), want);
        }
    }
    for chunk in chunks {
        if groups.binary_search_by_key(&chunk.logical, |group| group.logical).is_err() {
            let place = format!("chunk {}", chunk.logical);
            sink.add(Kind::ChunkGroup, place, "block group", "none", "one");
        }
    }
}

/// Says where a group counts other bytes than its extents have; gives the bytes of all extents.
pub(crate) fn check_used(groups: &[BlockGroup], spans: &Spans, sink: &Sink<'_>) -> u64 {
    for group in groups {
        let end = group.logical.0.saturating_add(group.bytes);
        let used = spans.covered(group.logical.0, end);
        if used != group.bytes_used {
            let place = format!("block group {}", group.logical);
            sink.add(Kind::GroupUsed, place, "used", group.bytes_used, used);
        }
    }
    spans.iter().map(|span| span.end.saturating_sub(span.start)).sum()
}
