//! A small volume in memory, with files that consist only of inode items.

use butternut_device::{Device, FaultyDevice, MemoryDevice};
use butternut_file::{FileState, Source, SourceOptions};
use butternut_format::inode::{Inode, InodeFlags};
use butternut_format::key::{ItemType, Key};
use butternut_format::units::{Ino, TreeId};
use butternut_mkfs::MkfsOptions;
use butternut_tree::{EnospcInjector, Forest, ForestOptions, Need, Tree, TreeError};
use butternut_volume::{OpenOptions, Volume};
use std::sync::Arc;

pub(crate) fn fresh(mib: u64) -> Arc<dyn Device> {
    let device = MemoryDevice::new("memory", mib << 20);
    butternut_mkfs::make(&device, &MkfsOptions::default()).expect("a fresh volume");
    Arc::new(device)
}

pub(crate) fn open_faulty(device: &Arc<FaultyDevice>) -> Source {
    let device: Arc<dyn Device> = Arc::<FaultyDevice>::clone(device);
    open(&device)
}

pub(crate) fn open(device: &Arc<dyn Device>) -> Source {
    let workers = rayon::ThreadPoolBuilder::new().num_threads(2).build().unwrap();
    open_with(device, Arc::new(workers))
}

pub(crate) fn open_with(device: &Arc<dyn Device>, workers: Arc<rayon::ThreadPool>) -> Source {
    let volume = Volume::open(vec![Arc::clone(device)], OpenOptions::default()).expect("a volume");
    let forest = Forest::open_writable(Arc::new(volume), ForestOptions::default());
    let forest = forest.expect("a writable forest");
    Source::open(forest, workers, SourceOptions::default()).unwrap()
}

/// Opens a volume whose reservations fail as the injector says.
pub(crate) fn open_with_injector(device: &Arc<dyn Device>, injector: &EnospcInjector) -> Source {
    let volume = Volume::open(vec![Arc::clone(device)], OpenOptions::default()).unwrap();
    let enospc_injector = Some(injector.clone());
    let options = ForestOptions { enospc_injector, ..ForestOptions::default() };
    let forest = Forest::open_writable(Arc::new(volume), options).unwrap();
    let workers = rayon::ThreadPoolBuilder::new().num_threads(2).build().unwrap();
    Source::open(forest, Arc::new(workers), SourceOptions::default()).unwrap()
}

pub(crate) fn open_device_to_read(device: &Arc<dyn Device>) -> Source {
    let volume = Volume::open(vec![Arc::clone(device)], OpenOptions::default()).expect("a volume");
    let forest = Forest::open(Arc::new(volume), ForestOptions::default()).expect("a forest");
    let workers = rayon::ThreadPoolBuilder::new().num_threads(1).build().unwrap();
    Source::open(forest, Arc::new(workers), SourceOptions::default()).unwrap()
}

pub(crate) fn subvolume(source: &Source) -> Tree {
    source.forest().tree(TreeId::FS).unwrap().unwrap()
}

/// An empty file.
pub(crate) fn create(source: &Source, ino: u64, flags: InodeFlags) {
    let top = inode(source, 256);
    let inode = Inode { size: 0, bytes_used: 0, mode: 0o100_644, flags, ..top };
    put(source, ino, &inode).unwrap();
}

/// As [`create`], where there may be no space for it.
pub(crate) fn try_create(source: &Source, ino: u64) -> Result<(), TreeError> {
    let top = inode(source, 256);
    put(source, ino, &Inode { size: 0, bytes_used: 0, mode: 0o100_644, ..top })
}

pub(crate) fn put(source: &Source, ino: u64, inode: &Inode) -> Result<(), TreeError> {
    let handle = source.forest().join(Need::items(1))?;
    handle.tree(TreeId::FS)?.put(&Key::new(ino, ItemType::INODE_ITEM, 0), &inode.to_bytes())
}

pub(crate) fn inode(source: &Source, ino: u64) -> Inode {
    let key = Key::new(ino, ItemType::INODE_ITEM, 0);
    Inode::check(subvolume(source).find(&key).unwrap().unwrap().data()).unwrap()
}

pub(crate) fn state(source: &Source, ino: u64) -> FileState {
    FileState::new(source, &subvolume(source), Ino(ino), &inode(source, ino))
}
