//! Orphan items that name what must not be deleted, with right checksums: such an inode is left as
//! it is and reported, and the volume can be changed.

#![allow(clippy::unwrap_used, dead_code, reason = "a test panics where it fails; shared helpers")]

mod volume;

use butternut::format::checksum::ChecksumKind;
use butternut::{FileId, Filesystem, MountOptions};
use volume::{TestVolume, new};

const NODE_BYTES: usize = 16384;
const HEADER_BYTES: usize = 101;
const ITEM_BYTES: usize = 25;
const CHECKSUM_BYTES: usize = 32;

const INODE_ITEM: u8 = 1;
const ORPHAN_ITEM: u8 = 48;
const ORPHAN_OBJECTID: u64 = 0_u64.wrapping_sub(5);
/// Where an inode item has its count of links.
const NLINK_AT: usize = 40;

const ROOT_INO: u64 = 256;

/// A volume with a directory that has an entry, an empty directory, and a file that has lost its
/// name while it was open; with the numbers of the three.
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

/// The orphan item names another inode, which has no links.
fn hostile(volume: &TestVolume, ino: u64) -> TestVolume {
    let mut image = volume.image();
    let fsid = image[65536 + 0x20..65536 + 0x30].to_vec();
    let mut changes = 0;
    for at in (1 << 20..image.len()).step_by(NODE_BYTES) {
        let Some(block) = image.get_mut(at..at + NODE_BYTES) else { continue };
        let is_leaf = block[0x20..0x30] == fsid && block[100] == 0;
        if is_leaf && patch(block, ino) {
            changes += 1;
            let digest = ChecksumKind::Crc32c.digest(&block[CHECKSUM_BYTES..]);
            block[..CHECKSUM_BYTES].copy_from_slice(&digest);
        }
    }
    assert!(changes > 0);
    TestVolume::of_image(&image)
}

fn patch(block: &mut [u8], ino: u64) -> bool {
    let word = |block: &[u8], at: usize| {
        usize::try_from(u32::from_le_bytes(block[at..at + 4].try_into().unwrap())).unwrap()
    };
    let mut is_changed = false;
    for slot in 0..word(block, 96) {
        let item = HEADER_BYTES + slot * ITEM_BYTES;
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

/// Changes a directory of a volume twice, opened anew each time; the notices of each.
fn changed_twice(volume: &TestVolume, dir: &[u8]) -> Vec<Vec<String>> {
    let options = MountOptions { read_only: false, ..MountOptions::default() };
    let rounds = [&b"first"[..], b"second"].into_iter().map(|name| {
        let fs = Filesystem::open_devices(volume.devices(), &options).unwrap();
        let watch = fs.watch_troubles();
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
fn an_orphan_that_is_a_directory_with_entries_or_the_root_is_left_and_reported() {
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
        drop(fs.hold(FileId::new(5, ino)).unwrap());
        fs.sync().unwrap();
        assert!(fs.stat(FileId::new(5, ino)).is_ok(), "it is left, also by its last handle");
        assert!(fs.resolve(b"full/entry", butternut::Follow::Last).is_ok());
        let second = format!("{dir}/second");
        assert!(fs.resolve(second.as_bytes(), butternut::Follow::Last).is_ok());
    }
}

#[test]
fn an_orphan_that_is_an_empty_directory_is_deleted() {
    let (volume, [_, empty, _]) = volume();
    let hostile = hostile(&volume, empty);
    for notices in changed_twice(&hostile, b"full") {
        assert!(notices.is_empty(), "{notices:?}");
    }
    assert!(hostile.open().stat(FileId::new(5, empty)).is_err());
}
