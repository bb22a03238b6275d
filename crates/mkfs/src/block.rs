//! Builds tree blocks from sorted items, bottom up.
//!
//! 1. Items fill the leaves in order, each leaf as far as they fit. Pointers to the blocks of a
//!    level fill the nodes of the level above in the same way.
//! 2. A tree without items is one empty leaf. The root is the last block of its tree.

use crate::item::Item;
use crate::options::Plan;
use butternut_format::key::{Key, RawKey};
use butternut_format::node::{
    BACKREF_REVISION_MIXED, BACKREF_REVISION_SHIFT, CSUM_BYTES, HEADER_BYTES, HEADER_FLAG_WRITTEN,
    RawHeader, RawItem, RawKeyPtr,
};
use butternut_format::units::{Logical, TreeId, index, length};
use std::ops::Range;
use zerocopy::IntoBytes;
use zerocopy::little_endian::{U32, U64};

const ITEM_BYTES: usize = size_of::<RawItem>();
const POINTER_BYTES: usize = size_of::<RawKeyPtr>();

/// A tree block whose address and contents are planned.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PlannedBlock {
    pub(crate) tree: TreeId,
    pub(crate) level: u8,
    pub(crate) logical: Logical,
    /// Key of its first item or child; the lowest key in an empty leaf.
    pub(crate) first_key: Key,
    /// Its items, as indexes of the tree's items; in a node its children, as indexes of the blocks
    /// of the level below.
    entries: Range<usize>,
}

/// Plans the blocks for `items`. `place` returns the address of each.
pub(crate) fn plan(
    tree: TreeId,
    items: &[Item],
    node_bytes: u32,
    mut place: impl FnMut() -> Logical,
) -> Vec<PlannedBlock> {
    let capacity = index(node_bytes) - HEADER_BYTES;
    let keys: Vec<Key> = items.iter().map(|item| item.key).collect();
    let sizes: Vec<usize> = items.iter().map(|item| ITEM_BYTES + item.data.len()).collect();
    let (mut level, mut keys, mut sizes) = (0, keys, sizes);
    let mut blocks = Vec::new();
    loop {
        let ranges = fill(&sizes, capacity);
        let above = ranges.into_iter().map(|entries| PlannedBlock {
            tree,
            level,
            logical: place(),
            first_key: keys.get(entries.start).copied().unwrap_or(Key::MIN),
            entries,
        });
        let from = blocks.len();
        blocks.extend(above);
        let above = &blocks[from..];
        if above.len() == 1 {
            return blocks;
        }
        keys = above.iter().map(|block| block.first_key).collect();
        sizes = vec![POINTER_BYTES; above.len()];
        level += 1;
    }
}

/// Distributes entries over blocks, in order.
fn fill(sizes: &[usize], capacity: usize) -> Vec<Range<usize>> {
    let mut ranges = Vec::new();
    let (mut start, mut taken) = (0, 0);
    for (at, size) in sizes.iter().enumerate() {
        if taken + size > capacity {
            ranges.push(start..at);
            (start, taken) = (at, 0);
        }
        taken += size;
    }
    ranges.push(start..sizes.len());
    ranges
}

/// Encodes the blocks of a planned tree and passes each to `emit`.
pub(crate) fn write(
    plan: &Plan,
    blocks: &[PlannedBlock],
    items: &[Item],
    mut emit: impl FnMut(Logical, &[u8]),
) {
    let mut bytes = vec![0; index(plan.node_bytes)];
    for block in blocks {
        bytes.fill(0);
        if block.level == 0 {
            put_items(&mut bytes, &items[block.entries.clone()]);
        } else {
            let below: Vec<_> = blocks.iter().filter(|b| b.level + 1 == block.level).collect();
            put_pointers(&mut bytes, &below[block.entries.clone()]);
        }
        put_header(plan, block, &mut bytes);
        emit(block.logical, &bytes);
    }
}

fn put_items(bytes: &mut [u8], items: &[Item]) {
    let mut data_end = bytes.len();
    for (slot, item) in items.iter().enumerate() {
        let data_start = data_end - item.data.len();
        bytes[data_start..data_end].copy_from_slice(&item.data);
        let raw = RawItem {
            key: RawKey::from(item.key),
            offset: U32::new(short(data_start - HEADER_BYTES)),
            size: U32::new(short(item.data.len())),
        };
        let at = HEADER_BYTES + slot * ITEM_BYTES;
        bytes[at..at + ITEM_BYTES].copy_from_slice(raw.as_bytes());
        data_end = data_start;
    }
}

fn put_pointers(bytes: &mut [u8], children: &[&PlannedBlock]) {
    for (slot, child) in children.iter().enumerate() {
        let raw = RawKeyPtr {
            key: RawKey::from(child.first_key),
            blockptr: U64::new(child.logical.0),
            generation: U64::new(Plan::GENERATION.0),
        };
        let at = HEADER_BYTES + slot * POINTER_BYTES;
        bytes[at..at + POINTER_BYTES].copy_from_slice(raw.as_bytes());
    }
}

/// Writes the header, and last the checksum of everything behind the checksum field.
fn put_header(plan: &Plan, block: &PlannedBlock, bytes: &mut [u8]) {
    let revision = BACKREF_REVISION_MIXED << BACKREF_REVISION_SHIFT;
    let header = RawHeader {
        csum: [0; CSUM_BYTES],
        fsid: plan.identity.fsid.0,
        bytenr: U64::new(block.logical.0),
        flags: U64::new(HEADER_FLAG_WRITTEN | revision),
        chunk_tree_uuid: plan.identity.chunk_tree.0,
        generation: U64::new(Plan::GENERATION.0),
        owner: U64::new(block.tree.0),
        nritems: U32::new(short(block.entries.len())),
        level: block.level,
    };
    bytes[..HEADER_BYTES].copy_from_slice(header.as_bytes());
    let digest = plan.csum.compute(&bytes[CSUM_BYTES..]);
    bytes[..CSUM_BYTES].copy_from_slice(&digest);
}

/// Converts an offset or count inside a block.
fn short(value: usize) -> u32 {
    u32::try_from(length(value)).expect("a block has at most 64 KiB")
}

#[cfg(test)]
mod tests {
    use super::*;
    use butternut_format::key::ItemType;

    fn items(count: u64, bytes: usize) -> Vec<Item> {
        let item = |n| Item {
            key: Key::new(n, ItemType::ROOT_ITEM, 0),
            data: vec![u8::try_from(n % 251).unwrap(); bytes],
        };
        (0..count).map(item).collect()
    }

    /// Returns the number of blocks of each level.
    fn check(count: u64, bytes: usize) -> Vec<usize> {
        let mut next = 0;
        let place = || {
            next += 4096;
            Logical(next)
        };
        let blocks = plan(TreeId::ROOT, &items(count, bytes), 4096, place);
        let levels = blocks.last().map_or(0, |root| root.level);
        (0..=levels).map(|level| blocks.iter().filter(|b| b.level == level).count()).collect()
    }

    #[test]
    fn items_fill_leaves_and_pointers_fill_nodes() {
        assert_eq!(check(0, 0), [1]);
        // 3995 bytes behind the header: eight items of 464 and a rest, 799 of 5 bytes no more.
        assert_eq!(check(8, 439), [1]);
        assert_eq!(check(9, 439), [2, 1]);
        assert_eq!(check(1, 3970), [1]);
        // 121 pointers of 33 bytes fit in a node.
        assert_eq!(check(121, 3970), [121, 1]);
        assert_eq!(check(122, 3970), [122, 2, 1]);
    }
}
