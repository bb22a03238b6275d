//! A fresh volume in memory, and an empty file on it, for unit tests.

use crate::{FileState, Source, SourceOptions};
use butternut_device::{Device, MemoryDevice};
use butternut_format::inode::Inode;
use butternut_format::key::{ItemType, Key};
use butternut_format::units::{Ino, TreeId};
use butternut_mkfs::MkfsOptions;
use butternut_tree::{Forest, ForestOptions, Need};
use butternut_volume::{OpenOptions, Volume};
use std::sync::Arc;

const INO: u64 = 300;

pub(crate) fn open() -> Source {
    open_with(ForestOptions::default())
}

pub(crate) fn open_with(options: ForestOptions) -> Source {
    open_on(Arc::new(MemoryDevice::new("memory", 256 << 20)), options)
}

/// Makes a volume on the device and opens it.
pub(crate) fn open_on(device: Arc<dyn Device>, options: ForestOptions) -> Source {
    butternut_mkfs::make(&*device, &MkfsOptions::default()).expect("a fresh volume");
    let volume = Volume::open(vec![device], OpenOptions::default()).expect("a volume");
    let forest = Forest::open_writable(Arc::new(volume), options);
    let forest = forest.expect("a writable forest");
    let workers = rayon::ThreadPoolBuilder::new().num_threads(1).build().expect("a thread");
    Source::open(forest, Arc::new(workers), SourceOptions::default()).expect("a source")
}

/// An empty file.
pub(crate) fn file(source: &Source) -> FileState {
    file_of(source, INO)
}

/// An empty file with an inode number of its own.
pub(crate) fn file_of(source: &Source, ino: u64) -> FileState {
    let tree = source.forest().tree(TreeId::FS).expect("the root tree").expect("a tree");
    let key = |ino| Key::new(ino, ItemType::INODE_ITEM, 0);
    let top = tree.find(&key(256)).expect("a search").expect("the top directory");
    let top = Inode::check(top.data()).expect("an inode");
    let inode = Inode { size: 0, bytes_used: 0, mode: 0o100_644, ..top };
    let handle = source.forest().join(Need::items(1)).expect("space");
    let edit = handle.tree(TreeId::FS).expect("a tree");
    edit.put(&key(ino), &inode.to_bytes()).expect("a change that was reserved for");
    drop(handle);
    FileState::new(source, &tree, Ino(ino), &inode)
}
