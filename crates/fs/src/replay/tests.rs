//! The work of a replay, in items that it reads.

use crate::background::committer::tests::{fresh, open};
use crate::{FIRST_ENTRY, Filesystem, MountOptions, NewInode};
use butternut_device::{Device, MemoryDevice};
use butternut_format::inode_ref::InodeRef;
use butternut_format::key::{ItemType, Key};
use butternut_format::units::{TreeId, length};
use butternut_tree::{LogEntry, Need};
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

/// Logs the items of the root's subvolume that are selected, and more. Returns the number of logged
/// items.
fn log(
    fs: &Filesystem,
    ino: u64,
    is_logged: impl Fn(Key, &[u8]) -> bool,
    more: impl IntoIterator<Item = (Key, Vec<u8>)>,
) -> u64 {
    let (root, forest) = (fs.root(), fs.forest());
    let tree_id = TreeId(root.subvolume);
    let tree = forest.tree(tree_id).expect("a tree").expect("the subvolume");
    let mut entry = LogEntry::default();
    let mut cursor = tree.cursor();
    cursor.seek(&Key::MIN).expect("a tree");
    while let Some((key, data)) = cursor.item_parts() {
        if is_logged(key, data) {
            entry.items.push((key, data.to_vec()));
        }
        cursor.advance().expect("a tree");
    }
    entry.items.extend(more);
    entry.items.sort();
    let items = entry.items.len();
    let log = forest.begin_log().expect("a log").expect("no need for a commit");
    let ticket = log.append(tree_id, ino, entry).expect("a log").expect("few items");
    drop(log);
    forest.sync_log(ticket).expect("a write").expect("no need for a commit");
    u64::try_from(items).expect("a number of items")
}

/// Selects the items of a file and of its directory.
fn of_file(dir: u64, ino: u64) -> impl Fn(Key, &[u8]) -> bool {
    move |key, _| match key.item_type {
        ItemType::INODE_ITEM => [dir, ino].contains(&key.objectid),
        ItemType::DIR_INDEX => key.objectid == dir,
        ItemType::INODE_REF | ItemType::INODE_EXTREF => key.objectid == ino,
        _ => false,
    }
}

/// Returns the item that says that the log has all names of a directory from an index on.
fn all_names_from(dir: u64, index: u64) -> (Key, Vec<u8>) {
    (Key::new(dir, ItemType::DIR_LOG_INDEX, index), u64::MAX.to_le_bytes().to_vec())
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
    let logged = log(&fs, file.ino, of_file(root.ino, file.ino), None);
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

#[test]
fn logged_ranges_of_a_directory_that_overlap_are_read_once() {
    let device = fresh();
    let fs = open(&device);
    let root = fs.root();
    let file = fs.create(root, b"file", &NewInode::new(0o644)).expect("a new file");
    for link in 0..LINKS {
        fs.link(file, root, &name("old", link)).expect("a link");
    }
    fs.sync().expect("a commit");
    let ranges = (0..length(LINKS)).map(|first| all_names_from(root.ino, first));
    let logged = log(&fs, file.ino, of_file(root.ino, file.ino), ranges);
    let after = copy(&device);
    drop(fs);
    let before = ITEMS_READ.get();
    let fs = open(&after);
    let read = ITEMS_READ.get() - before;
    assert!(
        (1..=logged * READS_PER_ITEM_MAX).contains(&read),
        "{read} items read for {logged} logged items"
    );
    let entries = fs.read_dir(root, FIRST_ENTRY).expect("a directory");
    let entries: Vec<_> = entries.collect::<crate::Result<_>>().expect("entries");
    assert_eq!(entries.len(), LINKS + 1);
    fs.close().expect("a sound volume");
}

#[test]
fn the_names_of_a_file_in_many_lost_directories_are_counted_once() {
    const DIRECTORIES: usize = 500;
    let device = fresh();
    let fs = open(&device);
    let root = fs.root();
    let file = fs.create(root, b"file", &NewInode::new(0o644)).expect("a new file");
    for number in 0..DIRECTORIES {
        let dir = fs.mkdir(root, &name("lost", number), &NewInode::new(0o755)).expect("a new one");
        fs.link(file, dir, b"link").expect("a link");
    }
    fs.sync().expect("a commit");
    let is_logged = |key: Key, data: &[u8]| match key.item_type {
        ItemType::INODE_ITEM => key.objectid == root.ino,
        ItemType::DIR_INDEX => key.objectid == root.ino && data.ends_with(b"file"),
        _ => false,
    };
    log(&fs, root.ino, is_logged, Some(all_names_from(root.ino, 0)));
    let after = copy(&device);
    drop(fs);
    let before = ITEMS_READ.get();
    let fs = open(&after);
    let read = ITEMS_READ.get() - before;
    let names = length(2 * DIRECTORIES);
    assert!((1..=names * READS_PER_ITEM_MAX).contains(&read), "{read} items read");
    assert_eq!(fs.stat(file).expect("a file").nlink, 1);
    let entries = fs.read_dir(root, FIRST_ENTRY).expect("a directory");
    let entries: Vec<_> = entries.collect::<crate::Result<_>>().expect("entries");
    assert_eq!(entries.len(), 1);
    fs.close().expect("a sound volume");
}

/// A crafted volume: the names that the log gives to others have no references, and each is found
/// by a search of the listing.
#[test]
fn searches_for_entries_without_references_are_bounded() {
    const FILES: usize = 200;
    let device = fresh();
    let fs = open(&device);
    let root = fs.root();
    let files: Vec<_> = (0..FILES)
        .map(|at| fs.create(root, &name("old", at), &NewInode::new(0o644)).expect("a new file"))
        .collect();
    fs.sync().expect("a commit");
    let tree_id = TreeId(root.subvolume);
    let handle = fs.forest().join(Need::items(400)).expect("space");
    for file in &files {
        let key = Key::new(file.ino, ItemType::INODE_REF, root.ino);
        handle.tree(tree_id).expect("a tree").remove(&key).expect("an item");
    }
    drop(handle);
    fs.sync().expect("a commit");
    let tree = fs.forest().tree(tree_id).expect("a tree").expect("the subvolume");
    let item = tree.find(&Key::new(files[0].ino, ItemType::INODE_ITEM, 0)).expect("a tree");
    let item = item.expect("an inode").data().to_vec();
    // Rising inode numbers take the names from the end of the listing.
    let more = (0..FILES).flat_map(|at| {
        let ino = 1_000_000 + length(at);
        let mut reference = Vec::new();
        let old = name("old", FILES - 1 - at);
        InodeRef { index: 2_000_000 + length(at), name: &old }.append_to(&mut reference);
        [
            (Key::new(ino, ItemType::INODE_ITEM, 0), item.clone()),
            (Key::new(ino, ItemType::INODE_REF, root.ino), reference),
        ]
    });
    log(&fs, root.ino, |_, _| false, more);
    let after = copy(&device);
    drop(fs);
    let options = MountOptions::default().read_only(false).commit_seconds(0);
    let refused = Filesystem::open_devices(vec![after], &options).expect_err("a long search");
    let mut causes =
        std::iter::successors(Some(&refused as &dyn std::error::Error), |e| e.source());
    let is_named = causes.any(|cause| cause.to_string().contains("without references"));
    assert!(is_named, "{refused:?}");
}
