//! The laws of a block's header and slots, for leaves and inner nodes.
//!
//! 1. The block has the volume's node size, and its checksum covers everything except the checksum
//!    field.
//! 2. In the header, the address, generation, level and owner match the parent's pointer. The id is
//!    that of the volume or of one of its seeds, the WRITTEN flag is set, and the back reference
//!    revision is mixed.
//! 3. Keys strictly increase from slot to slot. The first is not all zero, and equals the key in
//!    the parent's slot. The last is below the key of the parent's next slot, or of the nearest
//!    ancestor that has a next slot: a search for its key reaches every item, and a walk from leaf
//!    to leaf only moves forward.
//! 4. The items of a leaf fill the block from its end downwards without gaps or overlaps, and stop
//!    before the slots. Only a root may be empty, and only in trees that may be empty.
//! 5. A node has at least one child. Every child is sector aligned, not address 0, and not newer
//!    than the node, because copy-on-write always changes the parent with the child.

use super::{LeafContext, LeafItem, leaf_item};
use crate::key::Key;
use crate::node::{
    BACKREF_REVISION_MIXED, BACKREF_REVISION_SHIFT, BlockRules, CSUM_BYTES, Expected,
    HEADER_FLAG_RELOC, HEADER_FLAG_WRITTEN, RawHeader, RawItem, RawKeyPtr, Slots, item_data,
};
use crate::refused::{Bits, Hex, Refused, require};
use crate::units::{Generation, LEVELS_MAX, SECTOR_BYTES, TreeId, index, length};
use zerocopy::FromBytes;

/// Checks every law of a block.
///
/// # Errors
/// The first law that the block violates.
pub fn block(bytes: &[u8], expected: &Expected, rules: &BlockRules) -> Result<(), Refused> {
    let kind = if expected.level == 0 { "leaf" } else { "node" };
    check(bytes, expected, rules)
        .map_err(|refused| refused.at(format_args!("{kind} {}", expected.logical)))
}

fn check(bytes: &[u8], expected: &Expected, rules: &BlockRules) -> Result<(), Refused> {
    require(bytes.len() == index(rules.node_bytes), "bytes", bytes.len(), rules.node_bytes)?;
    let (header, _) = RawHeader::ref_from_prefix(bytes)
        .map_err(|_| Refused::new("bytes", bytes.len(), "a header"))?;
    checksum(bytes, header, rules)?;
    matches_parent(header, expected, rules)?;
    let slots = Slots::of(bytes).ok_or_else(|| {
        Refused::new("nritems", header.nritems, "at most as many as fit into the block")
    })?;
    match slots {
        Slots::Leaf(items) => leaf(bytes, header, items, expected, rules),
        Slots::Node(children) => node(header, children, expected),
    }
}

fn checksum(bytes: &[u8], header: &RawHeader, rules: &BlockRules) -> Result<(), Refused> {
    let covered = bytes.get(CSUM_BYTES..).unwrap_or_default();
    let computed = rules.csum.compute(covered);
    let (want, have) = (computed.get(..rules.csum.bytes()), header.csum.get(..rules.csum.bytes()));
    require(have == want, "csum", Hex(have.unwrap_or_default()), Hex(want.unwrap_or_default()))
}

fn matches_parent(
    header: &RawHeader,
    expected: &Expected,
    rules: &BlockRules,
) -> Result<(), Refused> {
    let bytenr = header.bytenr.get();
    require(bytenr == expected.logical.0, "bytenr", bytenr, expected.logical)?;
    require(bytenr.is_multiple_of(SECTOR_BYTES), "bytenr", bytenr, "sector aligned")?;
    require(
        rules.fsids.contains(&header.fsid),
        "fsid",
        Hex(&header.fsid),
        Hex(rules.fsids.first().map_or(&[], |fsid| fsid.as_slice())),
    )?;
    let generation = header.generation.get();
    require(generation == expected.generation.0, "generation", generation, expected.generation)?;
    require(index(u32::from(header.level)) < LEVELS_MAX, "level", header.level, "below 8")?;
    require(header.level == expected.level, "level", header.level, expected.level)?;
    let flags = header.flags.get();
    require(flags & HEADER_FLAG_WRITTEN != 0, "flags", Bits(flags), "WRITTEN (bit 0) set")?;
    let revision = flags >> BACKREF_REVISION_SHIFT;
    require(
        revision == BACKREF_REVISION_MIXED,
        "flags: backref revision",
        revision,
        BACKREF_REVISION_MIXED,
    )?;
    owner(TreeId(header.owner.get()), expected.tree)
}

/// Checks the owner. A block of a subvolume may be shared with, and then be owned by, any other
/// subvolume.
fn owner(have: TreeId, tree: TreeId) -> Result<(), Refused> {
    if tree == TreeId(0) || tree == TreeId::TREE_RELOCATION {
        return Ok(());
    }
    if tree.is_subvolume() {
        return require(have.is_subvolume(), "owner", have, "a subvolume");
    }
    require(have == tree, "owner", have, tree)
}

fn node(header: &RawHeader, children: &[RawKeyPtr], expected: &Expected) -> Result<(), Refused> {
    require(!children.is_empty(), "nritems", 0, "at least one child")?;
    let generation = header.generation.get();
    let mut previous = None;
    for (slot, child) in children.iter().enumerate() {
        let key = Key::from(&child.key);
        child_laws(key, child, generation, previous)
            .map_err(|refused| refused.at(format_args!("slot {slot}")))?;
        previous = Some(key);
    }
    below_end(previous, expected)?;
    first_key(children.first().map(|child| Key::from(&child.key)), expected)
}

fn child_laws(
    key: Key,
    child: &RawKeyPtr,
    parent: u64,
    previous: Option<Key>,
) -> Result<(), Refused> {
    increasing(key, previous)?;
    let (blockptr, generation) = (child.blockptr.get(), child.generation.get());
    require(blockptr != 0, "blockptr", blockptr, "not 0")?;
    require(blockptr.is_multiple_of(SECTOR_BYTES), "blockptr", blockptr, "sector aligned")?;
    require(generation <= parent, "generation", generation, format_args!("at most {parent}"))
}

fn leaf(
    bytes: &[u8],
    header: &RawHeader,
    items: &[RawItem],
    expected: &Expected,
    rules: &BlockRules,
) -> Result<(), Refused> {
    let owner = TreeId(header.owner.get());
    if items.is_empty() {
        return empty_leaf(header, owner, expected);
    }
    let slots_end = items.len().saturating_mul(size_of::<RawItem>());
    let mut context = LeafContext {
        previous: None,
        owner,
        generation: Generation(header.generation.get()),
        rules,
    };
    let mut data_end = length(rules.slot_bytes());
    for (slot, raw) in items.iter().enumerate() {
        let key = Key::from(&raw.key);
        let placed = increasing(key, context.previous.map(|item| item.key))
            .and_then(|()| placing(raw, data_end, slots_end))
            .and_then(|()| {
                let data = item_data(bytes, raw)
                    .ok_or_else(|| Refused::new("offset", raw.offset, "inside the block"))?;
                let item = LeafItem { key, data };
                leaf_item(&item, &context)?;
                Ok(item)
            })
            .map_err(|refused| refused.at(format_args!("slot {slot}: key {key}")))?;
        context.previous = Some(placed);
        data_end = u64::from(raw.offset.get());
    }
    below_end(context.previous.map(|item| item.key), expected)?;
    first_key(items.first().map(|item| Key::from(&item.key)), expected)
}

/// Checks that items are adjacent: each ends where the previous one begins, the first at the
/// block's end.
fn placing(item: &RawItem, data_end: u64, slots_end: usize) -> Result<(), Refused> {
    let offset = u64::from(item.offset.get());
    let end = offset.saturating_add(u64::from(item.size.get()));
    require(end == data_end, "offset + size", end, data_end)?;
    require(offset >= length(slots_end), "offset", offset, format_args!("at least {slots_end}"))
}

/// Checks that a leaf may be empty. The root of a relocated tree may be, whatever its owner.
fn empty_leaf(header: &RawHeader, owner: TreeId, expected: &Expected) -> Result<(), Refused> {
    if expected.first_key.is_some() {
        return Err(Refused::new("nritems", 0, "at least one item in a leaf below a node"));
    }
    let never_empty = [
        TreeId(0),
        TreeId::ROOT,
        TreeId::EXTENT,
        TreeId::CHUNK,
        TreeId::DEVICE,
        TreeId::FS,
        TreeId::DATA_RELOCATION,
    ];
    let may_be = !never_empty.contains(&owner) || header.flags.get() & HEADER_FLAG_RELOC != 0;
    require(may_be, "nritems", 0, format_args!("at least one item in tree {owner}"))
}

fn increasing(key: Key, previous: Option<Key>) -> Result<(), Refused> {
    let previous = previous.unwrap_or(Key::MIN);
    require(previous < key, "key", key, format_args!("above {previous}"))
}

/// Checks the upper bound of law 3 for the last key of a block.
///
/// # Errors
/// The key is not below `expected.end_key`.
pub fn below_end(last: Option<Key>, expected: &Expected) -> Result<(), Refused> {
    match (last, expected.end_key) {
        (Some(have), Some(end)) => {
            require(have < end, "last key", have, format_args!("below {end}, the parent's next"))
        }
        _ => Ok(()),
    }
}

fn first_key(have: Option<Key>, expected: &Expected) -> Result<(), Refused> {
    match (have, expected.first_key) {
        (Some(have), Some(want)) => require(have == want, "first key", have, want),
        (_, None) => Ok(()),
        (None, Some(want)) => Err(Refused::new("first key", "none", want)),
    }
}
