//! Checks block groups: their used bytes against the extents, and their ranges against the chunks.

use crate::blocks::{Block, Reader};
use crate::finding::Kind;
use crate::misplaced::misplaced;
use crate::sink::Sink;
use crate::spans::Spans;
use crate::walk::Survey;
use butternut_format::block_group::BlockGroup;
use butternut_format::chunk::Chunk;
use butternut_format::key::ItemType;
use butternut_format::refused::Bits;
use butternut_format::units::TreeId;

/// Reads the block group tree.
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
                misplaced(self.reader, TreeId::BLOCK_GROUP, leaf, key);
            }
        }
        groups
    }

    fn join(&self, left: &mut Vec<BlockGroup>, right: Vec<BlockGroup>) {
        left.extend(right);
    }
}

/// Checks that chunks and block groups match in address, length and flags. Both are sorted by
/// address.
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

/// Compares the used bytes of each block group with its extents. Returns the bytes of all extents.
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
