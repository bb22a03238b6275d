//! The cost of one tree change and of a commit of many: `cargo bench -p butternut-tree`.
//!
//! The items are those of 100,000 new files: a name by hash, a name by index, an inode, and a
//! reference.

#![allow(clippy::print_stdout, reason = "a benchmark prints its results")]

use butternut_device::{Device, MemoryDevice};
use butternut_format::checksum::name_hash;
use butternut_format::key::{ItemType, Key};
use butternut_format::units::TreeId;
use butternut_mkfs::MkfsOptions;
use butternut_tree::{Forest, ForestOptions, Need};
use butternut_volume::{OpenOptions, Volume};
use std::sync::Arc;
use std::time::Instant;

fn main() {
    let is_test = std::env::args().any(|argument| argument == "--test");
    let files: u64 = if is_test { 1000 } else { 100_000 };
    let device = MemoryDevice::new("memory", 4 << 30);
    butternut_mkfs::make(&device, &MkfsOptions::default()).expect("a fresh volume");
    let device: Arc<dyn Device> = Arc::new(device);
    let volume = Volume::open(vec![Arc::clone(&device)], OpenOptions::default()).expect("a volume");
    let forest =
        Forest::open_writable(Arc::new(volume), ForestOptions::default()).expect("a forest");
    let start = Instant::now();
    for number in 0..files {
        let name = format!("file-{number:06}");
        let handle = forest.join(Need::items(5)).expect("space");
        let edit = handle.tree(TreeId::FS).expect("a tree");
        let ino = 257 + number;
        let mut entry = vec![0; 30];
        entry.extend_from_slice(name.as_bytes());
        let put = |key: Key, bytes: &[u8]| edit.insert(&key, bytes).expect("a new item");
        put(Key::new(256, ItemType::DIR_INDEX, 2 + number), &entry);
        // Two names with the same hash would share an item in a filesystem.
        edit.put(&Key::new(256, ItemType::DIR_ITEM, name_hash(name.as_bytes())), &entry)
            .expect("a name");
        put(Key::new(ino, ItemType::INODE_ITEM, 0), &[0; 160]);
        put(Key::new(ino, ItemType::INODE_REF, 256), &[0; 21]);
        edit.update(&Key::new(256, ItemType::INODE_ITEM, 0), &mut |bytes| bytes.rotate_left(0))
            .expect("the directory");
    }
    let spent = start.elapsed();
    let each = spent.as_nanos() / u128::from(files);
    println!("{files} files: {each} ns each, 4 insertions and an update");
    let start = Instant::now();
    let handle = forest.join(Need::items(10).deleting()).expect("space");
    let edit = handle.tree(TreeId::FS).expect("a tree");
    let range = Key::new(257, ItemType(0), 0)..Key::new(u64::MAX, ItemType(0), 0);
    let removed = edit.remove_range(range, &mut |_, _| {}).expect("a removal");
    println!("{removed} items removed in {:?}", start.elapsed());
}
