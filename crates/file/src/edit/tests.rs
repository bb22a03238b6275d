//! Panics under the locks of a file in memory: nothing of the file comes into its tree any more.

use crate::{FileState, Source, SourceOptions};
use butternut_device::{Device, MemoryDevice};
use butternut_format::inode::Inode;
use butternut_format::key::{ItemType, Key};
use butternut_format::units::{Ino, TreeId};
use butternut_mkfs::MkfsOptions;
use butternut_tree::{Forest, ForestOptions, Need, TreeError};
use butternut_volume::{OpenOptions, Volume};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

const INO: u64 = 300;

fn open() -> Source {
    let device = MemoryDevice::new("memory", 256 << 20);
    butternut_mkfs::make(&device, &MkfsOptions::default()).expect("a fresh volume");
    let device: Arc<dyn Device> = Arc::new(device);
    let volume = Volume::open(vec![device], OpenOptions::default()).expect("a volume");
    let forest = Forest::open_writable(Arc::new(volume), ForestOptions::default());
    let forest = forest.expect("a writable forest");
    let workers = rayon::ThreadPoolBuilder::new().num_threads(1).build().expect("a thread");
    Source::open(forest, Arc::new(workers), SourceOptions::default()).expect("a source")
}

/// An empty file.
fn file(source: &Source) -> FileState {
    let tree = source.forest().tree(TreeId::FS).expect("the root tree").expect("a tree");
    let key = |ino| Key::new(ino, ItemType::INODE_ITEM, 0);
    let top = tree.find(&key(256)).expect("a search").expect("the top directory");
    let top = Inode::check(top.data()).expect("an inode");
    let inode = Inode { size: 0, bytes_used: 0, mode: 0o100_644, ..top };
    let handle = source.forest().join(Need::items(1)).expect("space");
    let edit = handle.tree(TreeId::FS).expect("a tree");
    edit.put(&key(INO), &inode.to_bytes()).expect("a change that was reserved for");
    drop(handle);
    FileState::new(source, &tree, Ino(INO), &inode)
}

#[test]
fn a_panic_under_a_lock_of_the_file_ends_writing_before_it_is_merged() {
    type Panic = fn(&FileState);
    let panics: [(&str, Panic); 3] = [
        ("overlay", |file| {
            let _overlay = file.live.overlay_to_settle();
            panic!("in the middle of a change");
        }),
        ("items", |file| {
            let _items = file.live.changing_items();
            panic!("between two items");
        }),
        ("pages", |file| {
            let _pages = file.live.pages().change();
            panic!("between two pages");
        }),
    ];
    for (name, panic) in panics {
        let source = open();
        let mut file = file(&source);
        file.write_at(0, &[7; 8192]).expect("space");
        let panicked = catch_unwind(AssertUnwindSafe(|| panic(&file)));
        assert!(panicked.is_err());
        assert!(file.merge(&mut |_| {}).is_err(), "{name}");
        let Some(TreeError::ReadOnly { cause }) = source.forest().write_error() else {
            panic!("{name}: half a change can be committed");
        };
        assert!(matches!(*cause, TreeError::Panicked), "{name}: {cause}");
        let mut bytes = [0; 8192];
        assert_eq!(source.read_at(file.view(), 0, &mut bytes).expect("reads go on"), 8192);
    }
}
