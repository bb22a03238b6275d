//! [`TestImage`]: a volume in memory that tests damage. Changes recompute the checksums, so that a
//! test damages nothing else.

use butternut_device::{Device, MemoryDevice};
use butternut_format::checksum::ChecksumKind;
use butternut_format::chunk::Chunk;
use butternut_format::device_item::DeviceItem;
use butternut_format::key::{ItemType, Key, RawKey};
use butternut_format::node::{CSUM_BYTES, Expected, HEADER_BYTES, RawHeader, RawItem, RawKeyPtr};
use butternut_format::root::RootItem;
use butternut_format::super_block::{COPY_OFFSETS, RawSuperBlock};
use butternut_format::units::{Logical, TreeId};
use butternut_volume::{OpenOptions, Volume};
use std::sync::Arc;
use zerocopy::little_endian::U32;
use zerocopy::{FromBytes, IntoBytes};

pub(crate) type Item = (Key, Vec<u8>);

pub(crate) struct TestImage {
    device: Arc<MemoryDevice>,
    volume: Volume,
}

/// A block on the path to a leaf, and the slot of the next block.
type Step = (Logical, usize);

impl TestImage {
    pub(crate) fn new(image: &[u8]) -> Self {
        let device = Arc::new(MemoryDevice::copy_of("test-image", image));
        let devices: Vec<Arc<dyn Device>> = vec![Arc::clone(&device) as Arc<dyn Device>];
        let volume = Volume::open(devices, OpenOptions::default()).unwrap();
        let image = Self { device, volume };
        let incompat = image.volume.super_block().raw().incompat_flags.get();
        for (key, data) in image.items(TreeId::CHUNK) {
            match key.item_type {
                ItemType::DEV_ITEM => {
                    image.volume.install_device(&DeviceItem::check(key, &data).unwrap());
                }
                ItemType::CHUNK_ITEM => {
                    let chunk = Chunk::check(key, &data, incompat).unwrap();
                    image.volume.install_chunk(chunk.logical, &chunk).unwrap();
                }
                _ => {}
            }
        }
        image.volume.seal().unwrap();
        image
    }

    pub(crate) fn device(&self) -> Arc<dyn Device> {
        Arc::clone(&self.device) as Arc<dyn Device>
    }

    pub(crate) fn volume(&self) -> &Volume {
        &self.volume
    }

    pub(crate) fn root(&self, tree: TreeId) -> Expected {
        match tree {
            TreeId::ROOT => self.volume.super_block().root(),
            TreeId::CHUNK => self.volume.super_block().chunk_root(),
            _ => {
                let is_it =
                    |key: &Key| key.objectid == tree.0 && key.item_type == ItemType::ROOT_ITEM;
                let (key, data) = self.find(TreeId::ROOT, |key, _| is_it(key));
                RootItem::check(key, &data).unwrap().block(tree)
            }
        }
    }

    /// Every item of a tree.
    pub(crate) fn items(&self, tree: TreeId) -> Vec<Item> {
        let mut out = Vec::new();
        self.collect(&self.root(tree), &mut out);
        out
    }

    fn collect(&self, expected: &Expected, out: &mut Vec<Item>) {
        let block = self.volume.read_block(expected).unwrap();
        for slot in 0..block.len() {
            if let Some((key, data)) = block.item(slot) {
                out.push((key, data.to_vec()));
            } else if let Some(child) = block.child(slot) {
                self.collect(&below(expected, child.logical, child.generation, child.key), out);
            }
        }
    }

    /// Returns the first item that `suits` accepts.
    #[track_caller]
    pub(crate) fn find(&self, tree: TreeId, suits: impl Fn(&Key, &[u8]) -> bool) -> Item {
        let found = self.items(tree).into_iter().find(|(key, data)| suits(key, data));
        found.expect("the image has such an item")
    }

    /// The first item of a type.
    #[track_caller]
    pub(crate) fn first(&self, tree: TreeId, item_type: ItemType) -> Item {
        self.find(tree, |key, _| key.item_type == item_type)
    }

    /// Returns the path to the leaf of `key`.
    pub(crate) fn path_to(&self, tree: TreeId, key: &Key) -> Vec<Step> {
        let mut expected = self.root(tree);
        let mut way = Vec::new();
        loop {
            let block = self.volume.read_block(&expected).unwrap();
            let slot = match block.find(key) {
                Ok(slot) => slot,
                Err(slot) => slot.saturating_sub(1),
            };
            way.push((expected.logical, slot));
            let Some(child) = block.child(slot) else { return way };
            expected = below(&expected, child.logical, child.generation, child.key);
        }
    }

    /// Returns the leaf of `key`.
    pub(crate) fn leaf_of(&self, tree: TreeId, key: &Key) -> Logical {
        self.path_to(tree, key).last().unwrap().0
    }

    /// The bytes of a block.
    pub(crate) fn bytes(&self, logical: Logical) -> Vec<u8> {
        let mut bytes = vec![0; self.volume.super_block().node_bytes() as usize];
        self.volume.read_raw(logical, 0, &mut bytes).unwrap();
        bytes
    }

    /// Changes a block in place on every mirror, and recomputes its checksum.
    pub(crate) fn edit_block(&self, logical: Logical, edit: impl FnOnce(&mut [u8])) {
        let mut bytes = self.bytes(logical);
        edit(&mut bytes);
        let csum = self.volume.super_block().csum();
        sign(&mut bytes, csum);
        self.write(logical, &bytes, usize::MAX);
    }

    /// Writes bytes at a logical address, on the given number of mirrors.
    pub(crate) fn write(&self, logical: Logical, bytes: &[u8], copies: usize) {
        let chunks = self.volume.chunks();
        let layout = chunks.find(logical).unwrap();
        let piece = layout.segment(logical, bytes.len() as u64).unwrap();
        assert_eq!(piece.bytes, bytes.len() as u64);
        for place in layout.mirrors(&piece).iter().take(copies) {
            self.device.write_at(piece.physical(place).0, bytes).unwrap();
        }
    }

    /// Changes the items of the leaf of `key`.
    #[track_caller]
    pub(crate) fn edit(&self, tree: TreeId, key: &Key, edit: impl FnOnce(&mut Vec<Item>)) {
        let way = self.path_to(tree, key);
        let (leaf, _) = *way.last().unwrap();
        let mut items = items_of(&self.bytes(leaf));
        edit(&mut items);
        items.sort_by_key(|(key, _)| *key);
        self.edit_block(leaf, |bytes| fill(bytes, &items));
        let first = items.first().expect("the leaf keeps an item").0;
        for (node, slot) in way.iter().rev().skip(1) {
            self.edit_block(*node, |bytes| set_key(bytes, *slot, first));
            if *slot > 0 {
                return;
            }
        }
    }

    #[track_caller]
    pub(crate) fn remove(&self, tree: TreeId, key: &Key) {
        self.edit(tree, key, |items| {
            let before = items.len();
            items.retain(|(found, _)| found != key);
            assert!(items.len() < before, "{key} is in tree {tree}");
        });
    }

    #[track_caller]
    pub(crate) fn insert(&self, tree: TreeId, key: Key, data: &[u8]) {
        self.edit(tree, &key, |items| items.push((key, data.to_vec())));
    }

    /// Changes an item's bytes.
    #[track_caller]
    pub(crate) fn change(&self, tree: TreeId, key: &Key, change: impl FnOnce(&mut Vec<u8>)) {
        self.edit(tree, key, |items| {
            let item = items.iter_mut().find(|(found, _)| found == key);
            change(&mut item.expect("the item is there").1);
        });
    }

    /// Changes an item that is one structure.
    #[track_caller]
    pub(crate) fn alter<T>(&self, tree: TreeId, key: &Key, alter: impl FnOnce(&mut T))
    where
        T: FromBytes + IntoBytes + zerocopy::KnownLayout + zerocopy::Immutable,
    {
        self.change(tree, key, |data| {
            let (mut raw, _) = T::read_from_prefix(data).unwrap();
            alter(&mut raw);
            data[..size_of::<T>()].copy_from_slice(raw.as_bytes());
        });
    }

    /// Moves an item to another key.
    #[track_caller]
    pub(crate) fn rekey(&self, tree: TreeId, key: &Key, to: Key) {
        self.edit(tree, key, |items| {
            let item = items.iter_mut().find(|(found, _)| found == key);
            item.expect("the item is there").0 = to;
        });
    }

    /// Changes all copies of the superblock.
    pub(crate) fn edit_super(&self, edit: impl Fn(&mut RawSuperBlock)) {
        for copy in 0..2 {
            self.edit_super_copy(copy, true, &edit);
        }
    }

    /// Changes one copy, with a valid or an invalid checksum.
    pub(crate) fn edit_super_copy(
        &self,
        copy: usize,
        is_signed: bool,
        edit: impl Fn(&mut RawSuperBlock),
    ) {
        let mut bytes = vec![0; 4096];
        let offset = COPY_OFFSETS[copy];
        self.device.read_at(offset, &mut bytes).unwrap();
        let csum = self.volume.super_block().csum();
        edit(RawSuperBlock::mut_from_bytes(&mut bytes).unwrap());
        if is_signed {
            sign(&mut bytes, csum);
        }
        self.device.write_at(offset, &bytes).unwrap();
    }

    /// An inode by its path from the top of a tree.
    #[track_caller]
    pub(crate) fn ino(&self, tree: TreeId, path: &str) -> u64 {
        path.split('/').fold(256, |dir, name| {
            let (_, data) = self.find(tree, |key, data| {
                key.objectid == dir
                    && key.item_type == ItemType::DIR_INDEX
                    && data.ends_with(name.as_bytes())
                    && data.len() == 30 + name.len()
            });
            Key::from(RawKey::ref_from_prefix(&data).unwrap().0).objectid
        })
    }

    /// The whole device as a file.
    pub(crate) fn save(&self, path: &std::path::Path) {
        use std::os::unix::fs::FileExt;
        let file = std::fs::File::create(path).unwrap();
        file.set_len(self.device.bytes()).unwrap();
        let mut bytes = vec![0; 1 << 16];
        for offset in (0..self.device.bytes()).step_by(bytes.len()) {
            self.device.read_at(offset, &mut bytes).unwrap();
            if bytes.iter().any(|byte| *byte != 0) {
                file.write_all_at(&bytes, offset).unwrap();
            }
        }
    }
}

fn below(
    parent: &Expected,
    logical: Logical,
    generation: butternut_format::units::Generation,
    key: Key,
) -> Expected {
    Expected {
        logical,
        generation,
        level: parent.level - 1,
        tree: parent.tree,
        first_key: Some(key),
        end_key: None,
    }
}

fn sign(bytes: &mut [u8], csum: ChecksumKind) {
    let digest = csum.compute(&bytes[CSUM_BYTES..]);
    bytes[..CSUM_BYTES].copy_from_slice(&digest);
}

fn items_of(bytes: &[u8]) -> Vec<Item> {
    let (header, rest) = RawHeader::ref_from_prefix(bytes).unwrap();
    assert_eq!(header.level, 0);
    let count = header.nritems.get() as usize;
    let (slots, _) = <[RawItem]>::ref_from_prefix_with_elems(rest, count).unwrap();
    let data = |item: &RawItem| {
        let start = HEADER_BYTES + item.offset.get() as usize;
        bytes[start..start + item.size.get() as usize].to_vec()
    };
    slots.iter().map(|item| (Key::from(&item.key), data(item))).collect()
}

/// Writes all items of a leaf.
fn fill(bytes: &mut [u8], items: &[Item]) {
    let size: usize = items.iter().map(|(_, data)| data.len() + size_of::<RawItem>()).sum();
    assert!(size <= bytes.len() - HEADER_BYTES, "the leaf has no room");
    let (header, rest) = bytes.split_at_mut(HEADER_BYTES);
    let header = RawHeader::mut_from_bytes(header).unwrap();
    header.nritems = U32::new(items.len() as u32);
    let mut end = rest.len();
    for (slot, (key, data)) in items.iter().enumerate() {
        end -= data.len();
        rest[end..end + data.len()].copy_from_slice(data);
        let item = RawItem {
            key: RawKey::from(*key),
            offset: U32::new(end as u32),
            size: U32::new(data.len() as u32),
        };
        let at = slot * size_of::<RawItem>();
        rest[at..at + size_of::<RawItem>()].copy_from_slice(item.as_bytes());
    }
}

/// Changes the key in one slot of a node.
pub(crate) fn set_key(bytes: &mut [u8], slot: usize, key: Key) {
    let at = HEADER_BYTES + slot * size_of::<RawKeyPtr>();
    let raw = RawKey::from(key);
    bytes[at..at + size_of::<RawKey>()].copy_from_slice(raw.as_bytes());
}
