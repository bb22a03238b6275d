//! The work of a replay, in items that it reads.

use crate::background::committer::tests::{fresh, open};
use crate::{FIRST_ENTRY, Filesystem, NewInode};
use butternut_device::{Device, MemoryDevice};
use butternut_format::key::{ItemType, Key};
use butternut_format::units::TreeId;
use butternut_tree::LogEntry;
use std::cell::Cell;
use std::collections::BTreeSet;
use std::sync::Arc;

thread_local! {
    static ITEMS_READ: Cell<u64> = const { Cell::new(0) };
}

pub(super) fn count_read(items: usize) {
    let items = u64::try_from(items).expect("a number of items");
    ITEMS_READ.with(|read| read.set(read.get() + items));
}

const LINKS: usize = 3000;

/// Items that a replay may read for each item of its log.
const READS_PER_ITEM_MAX: u64 = 8;

fn name(kind: &str, link: usize) -> Vec<u8> {
    format!("{kind} name of a file with many links, {link}").into_bytes()
}

/// Logs what the tree has of a file and of its directory. Returns the number of logged items.
fn log(fs: &Filesystem, ino: u64) -> u64 {
    let (root, forest) = (fs.root(), fs.forest());
    let tree_id = TreeId(root.subvolume);
    let tree = forest.tree(tree_id).expect("a tree").expect("the subvolume");
    let mut entry = LogEntry::default();
    let mut cursor = tree.cursor();
    cursor.seek(&Key::MIN).expect("a tree");
    while let Some((key, data)) = cursor.item_parts() {
        let is_logged = match key.item_type {
            ItemType::INODE_ITEM => [root.ino, ino].contains(&key.objectid),
            ItemType::DIR_INDEX => key.objectid == root.ino,
            ItemType::INODE_REF | ItemType::INODE_EXTREF => key.objectid == ino,
            _ => false,
        };
        if is_logged {
            entry.items.push((key, data.to_vec()));
        }
        cursor.advance().expect("a tree");
    }
    let items = entry.items.len();
    let log = forest.begin_log().expect("a log").expect("no need for a commit");
    let ticket = log.append(tree_id, ino, entry).expect("a log").expect("few items");
    drop(log);
    forest.sync_log(ticket).expect("a write").expect("no need for a commit");
    u64::try_from(items).expect("a number of items")
}

/// Returns a copy of a device as a power failure now would leave it.
fn copy(device: &Arc<dyn Device>) -> Arc<dyn Device> {
    let mut image = vec![0; usize::try_from(device.bytes()).expect("a small device")];
    device.read_at(0, &mut image).expect("a read");
    Arc::new(MemoryDevice::copy_of("copy", &image))
}

#[test]
fn the_work_of_a_replay_grows_with_the_number_of_names() {
    let device = fresh();
    let fs = open(&device);
    let root = fs.root();
    let file = fs.create(root, b"file", &NewInode::new(0o644)).expect("a new file");
    for link in 0..LINKS {
        fs.link(file, root, &name("old", link)).expect("a link");
    }
    fs.sync().expect("a commit");
    for link in 0..LINKS {
        fs.unlink(root, &name("old", link)).expect("a link");
        fs.link(file, root, &name("new", link)).expect("a link");
    }
    let logged = log(&fs, file.ino);
    let after = copy(&device);
    drop(fs);
    assert_eq!(ITEMS_READ.get(), 0);
    let fs = open(&after);
    let read = ITEMS_READ.get();
    assert!(
        (1..=logged * READS_PER_ITEM_MAX).contains(&read),
        "{read} items read for {logged} logged items"
    );
    let entries = fs.read_dir(root, FIRST_ENTRY).expect("a directory");
    let names: BTreeSet<Vec<u8>> = entries.map(|entry| entry.expect("an entry").name).collect();
    let mut want: BTreeSet<Vec<u8>> = (0..LINKS).map(|link| name("new", link)).collect();
    want.insert(b"file".to_vec());
    assert_eq!(names, want);
    fs.close().expect("a sound volume");
}
