//! Orphan items that name an inode which must not be deleted, with valid checksums: such an inode
//! is left unchanged and reported, and the volume can be changed.

use crate::volume::{HEADER_BYTES, SLOT_BYTES, TestVolume, new, word};
use butternut::server::FilesystemExt;
use butternut::{FileId, Filesystem, MountOptions};

const INODE_ITEM: u8 = 1;
const ORPHAN_ITEM: u8 = 48;
const ORPHAN_OBJECTID: u64 = 0_u64.wrapping_sub(5);
/// Offset of the link count in an inode item.
const NLINK_AT: usize = 40;

const ROOT_INO: u64 = 256;

/// Makes a volume with a directory that has an entry, an empty directory, and an orphan. Returns
/// the inode numbers of the three.
fn volume() -> (TestVolume, [u64; 3]) {
    let volume = TestVolume::of(112 << 20, &butternut_mkfs::MkfsOptions::default());
    let fs = volume.open();
    let full = fs.mkdir(fs.root(), b"full", &new(0o755)).unwrap();
    fs.create(full, b"entry", &new(0o644)).unwrap();
    let empty = fs.mkdir(fs.root(), b"empty", &new(0o755)).unwrap();
    let gone = fs.create(fs.root(), b"gone", &new(0o644)).unwrap();
    let open = fs.open_file(gone).unwrap();
    fs.unlink(fs.root(), b"gone").unwrap();
    fs.sync().unwrap();
    // As after a crash: the orphan is found when the volume is opened again.
    let copy = volume.copy();
    drop(open);
    (copy, [full.ino, empty.ino, gone.ino])
}

/// Makes the orphan item name another inode, which has no links.
fn hostile(volume: &TestVolume, ino: u64) -> TestVolume {
    volume.with_leaves(|block| rename_orphan_item(block, ino))
}

fn rename_orphan_item(block: &mut [u8], ino: u64) -> bool {
    let mut is_changed = false;
    for slot in 0..word(block, 96) {
        let item = HEADER_BYTES + slot * SLOT_BYTES;
        let objectid = u64::from_le_bytes(block[item..item + 8].try_into().unwrap());
        match (objectid, block[item + 8]) {
            (ORPHAN_OBJECTID, ORPHAN_ITEM) => {
                block[item + 9..item + 17].copy_from_slice(&ino.to_le_bytes());
            }
            (number, INODE_ITEM) if number == ino => {
                let at = HEADER_BYTES + word(block, item + 17) + NLINK_AT;
                block[at..at + 4].fill(0);
            }
            _ => continue,
        }
        is_changed = true;
    }
    is_changed
}

/// Changes a directory of a volume twice, with a new open each time. Returns the notices of each
/// open.
fn changed_twice(volume: &TestVolume, dir: &[u8]) -> Vec<Vec<String>> {
    let options = MountOptions::default().read_only(false);
    let rounds = [&b"first"[..], b"second"].into_iter().map(|name| {
        let fs = Filesystem::open_devices(volume.devices(), &options).unwrap();
        let watch = fs.watch_failures();
        let dir = fs.resolve(dir, butternut::Follow::Last).unwrap();
        fs.mkdir(dir, name, &new(0o755)).unwrap();
        fs.sync().unwrap();
        let notices = watch.take().unwrap().iter().map(ToString::to_string).collect();
        fs.close().unwrap();
        notices
    });
    rounds.collect()
}

#[test]
fn orphan_items_of_the_root_and_of_nonempty_directories_are_reported() {
    let (volume, [full, _, _]) = volume();
    // A directory without links takes no new entries.
    for (ino, why, dir) in [(full, "not empty", "empty"), (ROOT_INO, "in use", "full")] {
        let hostile = hostile(&volume, ino);
        for notices in changed_twice(&hostile, dir.as_bytes()) {
            let is_told =
                |notice: &String| notice.contains(&format!("inode {ino}")) && notice.contains(why);
            assert!(notices.len() == 1 && notices.iter().all(is_told), "{notices:?}");
        }
        let fs = hostile.open();
        drop(fs.pin(FileId::new(5, ino)).unwrap());
        fs.sync().unwrap();
        assert!(
            fs.stat(FileId::new(5, ino)).is_ok(),
            "it remains, even after its last handle is closed"
        );
        assert!(fs.resolve(b"full/entry", butternut::Follow::Last).is_ok());
        let second = format!("{dir}/second");
        assert!(fs.resolve(second.as_bytes(), butternut::Follow::Last).is_ok());
    }
}

#[test]
fn an_orphaned_empty_directory_is_deleted() {
    let (volume, [_, empty, _]) = volume();
    let hostile = hostile(&volume, empty);
    for notices in changed_twice(&hostile, b"full") {
        assert!(notices.is_empty(), "{notices:?}");
    }
    assert!(hostile.open().stat(FileId::new(5, empty)).is_err());
}
