//! Plans and encodes the blocks of all trees.
//!
//! The extent tree and the free space tree describe the addresses of all blocks, including their
//! own, and so the number of blocks depends on itself. It is computed in rounds: the addresses of
//! the last round give the items, and the items give new addresses, until nothing changes. This
//! ends, because each round only adds items.

use crate::block::{self, PlannedBlock};
use crate::item::Item;
use crate::layout::Group;
use crate::options::Plan;
use crate::trees;
use butternut_format::chunk::BlockGroupFlags;
use butternut_format::units::{Logical, TreeId, index};
use butternut_sys::buffer::Buffer;

/// Maximum number of rounds. An empty volume needs three, as measured.
const ROUNDS_MAX: u32 = 16;

/// The planned blocks of all trees.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Arrangement {
    /// Tree by tree, leaves first.
    pub(crate) blocks: Vec<PlannedBlock>,
}

/// All data that is written, except the superblocks.
#[derive(Debug)]
pub(crate) struct Composed {
    pub(crate) arrangement: Arrangement,
    /// For each block group with blocks, their bytes from the start of the group.
    pub(crate) writes: Vec<(Group, Buffer)>,
    pub(crate) bytes_used: u64,
}

impl Arrangement {
    /// Returns the blocks of one tree.
    pub(crate) fn of(&self, tree: TreeId) -> impl Iterator<Item = &PlannedBlock> {
        self.blocks.iter().filter(move |block| block.tree == tree)
    }

    pub(crate) fn root(&self, tree: TreeId) -> &PlannedBlock {
        self.of(tree).last().expect("every tree has a root")
    }

    /// Returns the number of bytes that blocks use at the start of a group.
    pub(crate) fn bytes_used(&self, group: &Group, node_bytes: u32) -> u64 {
        let inside = |block: &&PlannedBlock| (group.logical..group.end()).contains(&block.logical);
        self.blocks.iter().filter(inside).map(|_| u64::from(node_bytes)).sum()
    }

    fn new(plan: &Plan, items: &[(TreeId, Vec<Item>)]) -> Self {
        let start = |kind| plan.groups.iter().find(|g| g.holds(kind)).map(|g| g.logical.0);
        let mut system = start(BlockGroupFlags::SYSTEM).expect("every volume has one");
        let mut metadata = start(BlockGroupFlags::METADATA).expect("every volume has one");
        let mut blocks = Vec::new();
        for (tree, items) in items {
            let next = if *tree == TreeId::CHUNK { &mut system } else { &mut metadata };
            let place = || {
                let here = Logical(*next);
                *next += u64::from(plan.node_bytes);
                here
            };
            blocks.extend(block::plan(*tree, items, plan.node_bytes, place));
        }
        Self { blocks }
    }
}

pub(crate) fn compose(plan: &Plan) -> Composed {
    let empty: Vec<_> = trees::ids(plan).into_iter().map(|tree| (tree, Vec::new())).collect();
    let mut arrangement = Arrangement::new(plan, &empty);
    for _ in 0..ROUNDS_MAX {
        let items = trees::items(plan, &arrangement);
        let next = Arrangement::new(plan, &items);
        if next == arrangement {
            return write(plan, arrangement, &items);
        }
        arrangement = next;
    }
    unreachable!("every round adds items, and an empty volume has few")
}

fn write(plan: &Plan, arrangement: Arrangement, items: &[(TreeId, Vec<Item>)]) -> Composed {
    let used = |group: &Group| arrangement.bytes_used(group, plan.node_bytes);
    let mut writes: Vec<_> = plan
        .groups
        .iter()
        .map(|group| (group.clone(), Buffer::zeroed(to_index(used(group)))))
        .filter(|(_, blocks)| !blocks.is_empty())
        .collect();
    for (tree, items) in items {
        let blocks: Vec<_> = arrangement.of(*tree).cloned().collect();
        block::write(plan, &blocks, items, |logical, bytes| {
            let group = writes.iter_mut().find(|(group, _)| logical < group.end());
            let (group, memory) = group.expect("blocks lie in groups");
            let at = to_index(logical.0 - group.logical.0);
            memory[at..at + bytes.len()].copy_from_slice(bytes);
        });
    }
    let bytes_used = plan.groups.iter().map(used).sum();
    Composed { arrangement, writes, bytes_used }
}

/// Converts an offset among the blocks of an empty volume.
fn to_index(bytes: u64) -> usize {
    u32::try_from(bytes).map(index).expect("an empty volume has a few blocks")
}
