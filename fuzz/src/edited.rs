//! Target that edits the items of leaves before it changes volumes.
//!
//! ```text
//! input = seed 1 | number of edits 1 | edit 10 | ... | step 8 | step 8 | ...
//! edit  = kind 1 | leaf 2 | item 1 | other item 2 | field 1 | value 3
//! ```
//!
//! An edit keeps the form of a leaf: items are in order, fill the block from its end, and the keys
//! of the nodes above match. So most edits pass the checks of a block, and the contradiction shows
//! only where another item is read. Steps are those of [`crate::changing`].

use crate::changing::{Changed, run_script};
use crate::seed::{PatchedDevice, SUPER_OFFSET, Seed, WRITABLE_SEEDS};
use butternut_format::key::{ItemType, Key, RawKey};
use butternut_format::orphan::orphan_key;
use butternut_format::units::TreeId;
use std::sync::Arc;
use zerocopy::{FromBytes, IntoBytes};

/// Maximum number of device reads of a crafted volume.
const READS_MAX: u64 = 200_000;

const HEADER_BYTES: usize = 101;
const ITEM_BYTES: usize = 25;
const CHILD_BYTES: usize = 33;
const LOGICAL_AT: usize = 48;
const GENERATION_AT: usize = 80;
const OWNER_AT: usize = 88;
const COUNT_AT: usize = 96;
const LEVEL_AT: usize = 100;
pub(crate) const EDIT_BYTES: usize = 10;
const FREE_SPACE_TREE: u64 = 10;

/// Types that an edit gives to a key.
const TYPES: [u8; 21] = [
    1, 12, 13, 24, 48, 72, 84, 96, 108, 128, 132, 144, 156, 168, 169, 176, 178, 182, 184, 198, 204,
];

/// Values that are often limits.
const LIMITS: [u64; 16] = [
    0,
    1,
    2,
    5,
    255,
    256,
    4096,
    65536,
    1 << 32,
    1 << 47,
    1 << 63,
    i64::MAX.unsigned_abs(),
    i64::MAX.unsigned_abs() - 4095,
    u64::MAX - 255,
    u64::MAX - 4095,
    u64::MAX,
];

/// The key and the data of an item.
pub type Item = (Key, Vec<u8>);

fn word(block: &[u8], at: usize) -> usize {
    let bytes = block.get(at..at + 4).and_then(|bytes| bytes.try_into().ok());
    usize::try_from(bytes.map_or(0, u32::from_le_bytes)).unwrap_or(0)
}

fn put_word(block: &mut [u8], at: usize, value: usize) {
    let value = u32::try_from(value).unwrap_or(u32::MAX);
    block[at..at + 4].copy_from_slice(&value.to_le_bytes());
}

fn number(bytes: &[u8], at: usize) -> u64 {
    let bytes = bytes.get(at..at + 8).and_then(|bytes| bytes.try_into().ok());
    bytes.map_or(0, u64::from_le_bytes)
}

fn key_at(block: &[u8], at: usize) -> Key {
    let raw = block.get(at..at + 17).and_then(|bytes| RawKey::ref_from_bytes(bytes).ok());
    raw.map_or(Key::MIN, Key::from)
}

fn items_of(block: &[u8]) -> Vec<Item> {
    let item = |slot: usize| {
        let at = HEADER_BYTES + slot * ITEM_BYTES;
        let start = HEADER_BYTES + word(block, at + 17);
        let data = block.get(start..start + word(block, at + 21)).unwrap_or_default();
        (key_at(block, at), data.to_vec())
    };
    (0..word(block, COUNT_AT)).map(item).collect()
}

/// Writes items into a leaf, as many as fit.
fn fill(block: &mut [u8], mut items: Vec<Item>) {
    items.sort_by_key(|(key, _)| *key);
    items.dedup_by_key(|(key, _)| *key);
    let (mut end, mut slots) = (block.len(), 0);
    for (key, data) in &items {
        let at = HEADER_BYTES + slots * ITEM_BYTES;
        if at + ITEM_BYTES + data.len() > end {
            break;
        }
        end -= data.len();
        block[at..at + 17].copy_from_slice(RawKey::from(*key).as_bytes());
        put_word(block, at + 17, end - HEADER_BYTES);
        put_word(block, at + 21, data.len());
        block[end..end + data.len()].copy_from_slice(data);
        slots += 1;
    }
    put_word(block, COUNT_AT, slots);
}

pub(crate) struct Edit {
    pub(crate) kind: u8,
    leaf: usize,
    item: usize,
    other: usize,
    field: u8,
    value: u64,
}

impl Edit {
    pub(crate) fn of(bytes: &[u8; EDIT_BYTES]) -> Self {
        let [kind, a, b, item, c, d, field, value @ ..] = *bytes;
        Self {
            kind,
            leaf: u16::from_le_bytes([a, b]).into(),
            item: item.into(),
            other: u16::from_le_bytes([c, d]).into(),
            field,
            value: u32::from_le_bytes([value[0], value[1], value[2], 0]).into(),
        }
    }

    /// A new value for a number: a limit, a neighbour, or that of another item.
    fn number(&self, old: u64, other: u64) -> u64 {
        let step = [1, 4096, 16384, 1 << 20][usize::from(self.field / 8 % 4)];
        match self.value % 8 {
            0 | 1 => LIMITS[usize::try_from(self.value / 8).unwrap_or(0) % LIMITS.len()],
            2 => old.wrapping_add(step),
            3 => old.wrapping_sub(step),
            4 => old.wrapping_add(self.value / 8 * 4096),
            5 => old ^ (1 << (self.value / 8 % 64)),
            _ => other,
        }
    }

    fn key(&self, old: Key, other: Key) -> Key {
        let mut key = old;
        match self.field % 8 {
            0..=2 => key.offset = self.number(old.offset, other.offset),
            3..=5 => key.objectid = self.number(old.objectid, other.objectid),
            6 => key.item_type.0 = TYPES[self.other % TYPES.len()],
            _ => (key.objectid, key.offset) = (other.objectid, other.offset),
        }
        key
    }

    /// Sets a number in the data of an item, at one of the offsets that numbers have.
    fn set(&self, data: &mut [u8], other: &[u8]) {
        let starts = [0, 5, 4];
        let words = data.len() / 8 + 1;
        let at = starts[usize::from(self.kind / 16 % 3)] + usize::from(self.field) % words * 8;
        if data.len() >= at + 8 {
            let value = self.number(number(data, at), number(other, at));
            data[at..at + 8].copy_from_slice(&value.to_le_bytes());
        } else if let Some(last) = data.last_mut() {
            *last = last.wrapping_add(self.field);
        }
    }

    /// Adds an item that contradicts others: free space that is in use, or an orphan that has a
    /// name.
    fn contradict(&self, owner: u64, items: &mut Vec<Item>, others: &[Item]) {
        let kinds: [ItemType; 2] = match owner {
            FREE_SPACE_TREE => [ItemType::EXTENT_ITEM, ItemType::METADATA_ITEM],
            _ => [ItemType::INODE_ITEM, ItemType::ROOT_ITEM],
        };
        let alike: Vec<Key> = others.iter().map(|(key, _)| *key).collect();
        let alike: Vec<&Key> = alike.iter().filter(|key| kinds.contains(&key.item_type)).collect();
        let Some(key) = alike.get(self.other % alike.len().max(1)) else { return };
        let new = match (owner, key.item_type) {
            (FREE_SPACE_TREE, ItemType::EXTENT_ITEM) => {
                Key::new(key.objectid, ItemType::FREE_SPACE_EXTENT, key.offset)
            }
            (FREE_SPACE_TREE, _) => {
                Key::new(key.objectid, ItemType::FREE_SPACE_EXTENT, self.value % 4 * 4096 + 4096)
            }
            _ => orphan_key(key.objectid),
        };
        items.push((new, Vec::new()));
    }

    /// Changes the items of a leaf. `others` are the items of all leaves.
    fn apply(&self, owner: u64, items: &mut Vec<Item>, others: &[Item]) {
        if items.is_empty() {
            return;
        }
        let at = self.item % items.len();
        let key = items[at].0;
        let alike: Vec<&Item> =
            others.iter().filter(|(other, _)| other.item_type == key.item_type).collect();
        let Some((other_key, other)) = alike.get(self.other % alike.len().max(1)) else { return };
        match self.kind % 17 {
            16 => self.contradict(owner, items, others),
            0..=5 => self.set(&mut items[at].1, other),
            6 | 7 => items[at].0 = self.key(key, *other_key),
            8 => drop(items.remove(at)),
            9 | 10 => items.push((self.key(key, *other_key), items[at].1.clone())),
            11 => items[at].1.clone_from(other),
            12 => {
                let len = items[at].1.len();
                let by = usize::try_from(self.value % 64).unwrap_or(0);
                let len = if self.field < 128 { len + by } else { len.saturating_sub(by) };
                items[at].1.resize(len, self.field);
            }
            13 => {
                let from = others[self.other % others.len()].clone();
                items.push((Key { objectid: key.objectid, ..from.0 }, from.1));
            }
            14 => {
                items[at].0 = self.key(key, *other_key);
                self.set(&mut items[at].1, other);
            }
            _ => {
                let count = 1 + usize::from(self.field) % 4;
                items.drain(at..(at + count).min(items.len()));
            }
        }
    }
}

/// A volume whose leaves are edited.
pub(crate) struct Editor<'a> {
    seed: &'a Seed,
    pub(crate) device: PatchedDevice,
}

impl<'a> Editor<'a> {
    pub(crate) fn new(seed: &'a Arc<Seed>) -> Self {
        Self { seed, device: PatchedDevice::new(seed, READS_MAX) }
    }

    fn block(&self, at: u64) -> Vec<u8> {
        self.device.bytes_at(at, self.seed.node_bytes)
    }

    fn write(&mut self, at: u64, mut block: Vec<u8>) {
        let digest = self.seed.csum.compute(&block[32..]);
        block[..32].copy_from_slice(&digest);
        self.device.change(at, &block);
    }

    /// Calls `change` with the owner and the items of each leaf, and writes those that it changed.
    pub(crate) fn change_leaves(&mut self, mut change: impl FnMut(TreeId, &mut Vec<Item>) -> bool) {
        for at in self.seed.blocks.clone() {
            let mut block = self.block(at);
            let mut items = items_of(&block);
            if block[LEVEL_AT] == 0 && change(TreeId(number(&block, OWNER_AT)), &mut items) {
                let (count, first) = (items.len(), key_at(&block, HEADER_BYTES));
                fill(&mut block, items);
                assert_eq!(word(&block, COUNT_AT), count, "the items fit");
                let (new, logical) = (key_at(&block, HEADER_BYTES), number(&block, LOGICAL_AT));
                self.write(at, block);
                if first != new {
                    self.set_key_above(logical, new);
                }
            }
        }
    }

    /// Edits a leaf of any tree.
    pub(crate) fn edit(&mut self, edit: &Edit) {
        self.edit_leaf(edit, None);
    }

    /// Edits a leaf of one tree, or one of any tree.
    pub(crate) fn edit_leaf(&mut self, edit: &Edit, owner: Option<u64>) {
        let blocks = self.seed.blocks.iter().map(|at| (*at, self.block(*at)));
        let leaves: Vec<(u64, Vec<u8>)> =
            blocks.filter(|(_, block)| block[LEVEL_AT] == 0).collect();
        let others: Vec<Item> = leaves.iter().flat_map(|(_, block)| items_of(block)).collect();
        // Each tree is edited as often as the others, however many leaves it has.
        let mut owners: Vec<u64> = leaves.iter().map(|(_, leaf)| number(leaf, OWNER_AT)).collect();
        owners.sort_unstable();
        owners.dedup();
        let owner = owner.unwrap_or(owners[edit.leaf % owners.len()]);
        let of_owner: Vec<_> =
            leaves.iter().filter(|(_, leaf)| number(leaf, OWNER_AT) == owner).collect();
        let (at, mut block) = of_owner[edit.leaf / owners.len() % of_owner.len()].clone();
        let mut items = items_of(&block);
        let first = items.first().map(|(key, _)| *key);
        edit.apply(owner, &mut items, &others);
        fill(&mut block, items);
        let new = key_at(&block, HEADER_BYTES);
        let (logical, count) = (number(&block, LOGICAL_AT), word(&block, COUNT_AT));
        self.write(at, block);
        if count > 0 && first.is_some_and(|first| first != new) {
            self.set_key_above(logical, new);
        }
    }

    /// Sets the key of a block in the nodes above it.
    fn set_key_above(&mut self, child: u64, key: Key) {
        let blocks: Vec<u64> = self.seed.blocks.clone();
        for at in blocks {
            let mut block = self.block(at);
            if block[LEVEL_AT] == 0 {
                continue;
            }
            let slots = (0..word(&block, COUNT_AT)).map(|slot| HEADER_BYTES + slot * CHILD_BYTES);
            let Some(slot) = slots.into_iter().find(|slot| number(&block, slot + 17) == child)
            else {
                continue;
            };
            block[slot..slot + 17].copy_from_slice(RawKey::from(key).as_bytes());
            let logical = number(&block, LOGICAL_AT);
            self.write(at, block);
            if slot == HEADER_BYTES {
                self.set_key_above(logical, key);
            }
        }
    }

    /// Lets a pointer to a block of a tree, in a node or in a root item, lead to another block.
    pub(crate) fn point_elsewhere(&mut self, edit: &Edit, owner: u64) {
        const ROOT_BYTENR_AT: usize = 176;
        let blocks: Vec<(u64, Vec<u8>)> =
            self.seed.blocks.iter().map(|at| (*at, self.block(*at))).collect();
        let mut pointers = Vec::new();
        for (at, block) in blocks.iter().filter(|(_, block)| number(block, OWNER_AT) == owner) {
            let is_leaf = block[LEVEL_AT] == 0;
            for slot in 0..word(block, COUNT_AT) {
                let item = HEADER_BYTES + slot * if is_leaf { ITEM_BYTES } else { CHILD_BYTES };
                if !is_leaf {
                    pointers.push((*at, item + 17));
                } else if key_at(block, item).item_type == ItemType::ROOT_ITEM {
                    pointers.push((*at, HEADER_BYTES + word(block, item + 17) + ROOT_BYTENR_AT));
                }
            }
        }
        if pointers.is_empty() {
            return;
        }
        let (at, place) = pointers[edit.item % pointers.len()];
        let (_, to) = &blocks[edit.other % blocks.len()];
        let mut block = self.block(at);
        if let Some(field) = block.get_mut(place..place + 8) {
            field.copy_from_slice(&number(to, LOGICAL_AT).to_le_bytes());
            self.write(at, block);
        }
    }

    /// Sets a number of the superblock.
    pub(crate) fn edit_super(&mut self, edit: &Edit) {
        let mut block = self.device.bytes_at(SUPER_OFFSET, 4096);
        let offsets = [0x70, 0x78, 0x80, 0x88, 0x90, 0xb4, 0xbc, 0xa0, 0xd1, 0xd9, 0x22b, 0x48];
        let at = offsets[edit.item % offsets.len()];
        let value = edit.number(number(&block, at), number(&block, GENERATION_AT));
        block[at..at + 8].copy_from_slice(&value.to_le_bytes());
        let digest = self.seed.csum.compute(&block[32..]);
        block[..32].copy_from_slice(&digest);
        self.device.change(SUPER_OFFSET, &block);
    }
}

/// Runs one input, and panics if a law of [`crate::changing`] is broken.
pub fn edited(input: &[u8]) -> Changed {
    let Some((&seed, rest)) = input.split_first() else { return Changed::Refused };
    let Some((&count, rest)) = rest.split_first() else { return Changed::Refused };
    let seed: &Arc<Seed> = &WRITABLE_SEEDS[usize::from(seed) % WRITABLE_SEEDS.len()];
    let mut editor = Editor::new(seed);
    let count = rest.len().min(usize::from(count % 8) * EDIT_BYTES);
    let (edits, script) = rest.split_at(count - count % EDIT_BYTES);
    let (edits, _) = edits.as_chunks::<EDIT_BYTES>();
    for edit in edits.iter().map(Edit::of) {
        if edit.kind == u8::MAX {
            editor.edit_super(&edit);
        } else {
            editor.edit(&edit);
        }
    }
    run_script(editor.device, script)
}

pub(crate) fn editing(input: &[u8]) {
    edited(input);
}
