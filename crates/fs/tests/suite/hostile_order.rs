//! Volumes whose leaves contain keys past the next key of their parent, with valid checksums: a
//! search for such a key ends in the next leaf, and does not find an item that a walk has returned.
//!
//! Every call on such a volume returns; it fails if it reads such a leaf.

use crate::volume::{HEADER_BYTES, TestVolume, new};
use butternut::format::checksum::ChecksumKind;
use butternut::format::key::{Key, RawKey};
use butternut::{Allocate, FileId, Filesystem, MountOptions, SetAttributes};
use butternut_mkfs::MkfsOptions;
use butternut_volume::chain;
use zerocopy::IntoBytes;

const NODE_BYTES: usize = 4096;
const CHECKSUM_BYTES: usize = 32;
/// Bytes of a slot of an inner node; the key comes first.
const CHILD_BYTES: usize = 33;

/// Number of extents of the large file: one block each, followed by a hole.
const EXTENTS: u64 = 900;

/// Inode number of the large orphan: the second file that is created.
const GONE_INO: u64 = 258;

/// Inode number of a small orphan.
const LATER_INO: u64 = 259;

/// Makes a volume with a deep tree: a file with many extents, an orphan like it, a small orphan,
/// and many files with one name each.
fn volume() -> TestVolume {
    let options = MkfsOptions { node_bytes: Some(4096), ..MkfsOptions::default() };
    let volume = TestVolume::of(112 << 20, &options);
    let fs = volume.open();
    for name in [b"many", b"gone"] {
        let id = fs.create(fs.root(), name, &new(0o600)).unwrap();
        let file = fs.open_file(id).unwrap();
        for extent in 0..EXTENTS {
            file.write_at(extent * 8192, &[7; 4096]).unwrap();
        }
        file.sync_all().unwrap();
    }
    let later = fs.create(fs.root(), b"later", &new(0o600)).unwrap();
    let later = fs.open_file(later).unwrap();
    later.write_at(0, &[7; 4096]).unwrap();
    let dir = fs.mkdir(fs.root(), b"dir", &new(0o700)).unwrap();
    for number in 0..200 {
        fs.create(dir, format!("name {number}").as_bytes(), &new(0o600)).unwrap();
    }
    let gone = fs.open_file(fs.lookup(fs.root(), b"gone").unwrap()).unwrap();
    fs.unlink(fs.root(), b"gone").unwrap();
    fs.unlink(fs.root(), b"later").unwrap();
    fs.sync().unwrap();
    // As after a crash: the orphans are deleted when the volume is opened again.
    let copy = volume.copy();
    drop((gone, later));
    copy
}

/// Two adjacent leaves: the offsets in the image of their parent, of its slot for the right leaf
/// and of the right leaf, and a key for the right leaf that is not above the last key of the left
/// one.
struct Pair {
    parent: Vec<u64>,
    slot: usize,
    right: Vec<u64>,
    key: Key,
}

/// Returns the pairs of leaves of the top-level subvolume.
fn pairs(volume: &TestVolume) -> Vec<Pair> {
    let options = MountOptions::default().read_only(true);
    let fs = Filesystem::open_devices(volume.devices(), &options).unwrap();
    let inspect = fs.inspect();
    let chunks = inspect.chunks();
    let places = |logical: u64| {
        let chunk = chunks.iter().rev().find(|chunk| chunk.logical.0 <= logical).unwrap();
        chunk.stripes.iter().map(|(_, at)| at + (logical - chunk.logical.0)).collect::<Vec<u64>>()
    };
    let root = inspect.tree_roots().unwrap().into_iter().find(|root| root.tree.0 == 5).unwrap();
    let mut pairs = Vec::new();
    let mut pending = vec![root.expected()];
    while let Some(expected) = pending.pop() {
        let node = inspect.block(&expected).unwrap();
        let children: Vec<_> =
            (0..node.len()).filter_map(|slot| inspect.child(&node, slot, root.tree)).collect();
        if node.level() > 1 {
            pending.extend(children);
            continue;
        }
        for (slot, two) in (1..).zip(children.windows(2)) {
            let left = inspect.block(&two[0]).unwrap();
            let (Some(last), Some(first)) = (left.last_key(), left.key(0)) else { continue };
            // Extents are at multiples of two sectors, so a key fits between two.
            let Some(offset) = last.offset.checked_sub(4096) else { continue };
            let key = Key { offset, ..last };
            if key > first && left.find(&key).is_err() {
                let (parent, right) = (places(expected.logical.0), places(two[1].logical.0));
                pairs.push(Pair { parent, slot, right, key });
            }
        }
    }
    pairs
}

fn set_key(image: &mut [u8], places: &[u64], at: usize, key: Key) {
    for place in places {
        let place = usize::try_from(*place).unwrap();
        let block = &mut image[place..place + NODE_BYTES];
        block[at..at + 17].copy_from_slice(RawKey::from(key).as_bytes());
        let digest = ChecksumKind::Crc32c.compute(&block[CHECKSUM_BYTES..]);
        block[..4].copy_from_slice(&digest[..4]);
    }
}

/// Copies a volume so that the left leaf of a pair reaches past the first key of the right leaf.
fn hostile(image: &[u8], pair: &Pair) -> TestVolume {
    let mut image = image.to_vec();
    set_key(&mut image, &pair.parent, HEADER_BYTES + pair.slot * CHILD_BYTES, pair.key);
    set_key(&mut image, &pair.right, HEADER_BYTES, pair.key);
    TestVolume::of_image(&image)
}

fn read_all(fs: &Filesystem, id: FileId) -> butternut::Result<()> {
    let file = fs.open_file(id)?;
    let mut memory = vec![0; 65536];
    let mut at = 0;
    loop {
        let bytes = file.read_at(at, &mut memory)?;
        if bytes == 0 {
            return file.extents(0..u64::MAX).try_for_each(|extent| extent.map(drop));
        }
        at += bytes as u64;
    }
}

type Call = fn(&Filesystem) -> butternut::Result<()>;

/// Whether a call was refused because keys of a leaf are past its parent's next key.
fn is_of_order(refused: &str) -> bool {
    refused.contains("the parent's next")
}

/// Makes each kind of call that walks over items or removes them. Returns the errors of refused
/// calls.
fn exercise(volume: &TestVolume) -> Vec<String> {
    let options = MountOptions::default().read_only(false);
    let calls: [Call; 10] = [
        |fs| read_all(fs, fs.lookup(fs.root(), b"many")?),
        |fs| fs.read_dir(fs.lookup(fs.root(), b"dir")?, 0)?.try_for_each(|entry| entry.map(drop)),
        |fs| fs.open_file(fs.lookup(fs.root(), b"many")?)?.truncate(0),
        |fs| fs.open_file(fs.lookup(fs.root(), b"many")?)?.truncate(EXTENTS * 4096),
        |fs| {
            let file = fs.open_file(fs.lookup(fs.root(), b"many")?)?;
            file.allocate(0..EXTENTS * 8192, Allocate::PunchHole)
        },
        |fs| {
            let file = fs.open_file(fs.lookup(fs.root(), b"many")?)?;
            for extent in 0..EXTENTS {
                file.write_at(extent * 8192 + 2048, &[1; 4096])?;
            }
            file.sync_all()
        },
        |fs| fs.unlink(fs.root(), b"many"),
        |fs| fs.rmdir(fs.root(), b"dir"),
        |fs| {
            let dir = fs.lookup(fs.root(), b"dir")?;
            (0..200).try_for_each(|n| fs.unlink(dir, format!("name {n}").as_bytes()))
        },
        |fs| {
            let dir = fs.lookup(fs.root(), b"dir")?;
            let set = SetAttributes { mode: Some(0o755), ..SetAttributes::default() };
            fs.set_attributes(dir, &set)?;
            fs.create(dir, b"new", &new(0o600)).map(drop)
        },
    ];
    let mut refused = Vec::new();
    for call in calls {
        let volume = volume.copy();
        // The orphan is deleted, or refused, when the volume is opened.
        let done = Filesystem::open_devices(volume.devices(), &options).and_then(|fs| {
            call(&fs)?;
            fs.sync()
        });
        refused.extend(done.err().map(|error| chain(&error)));
    }
    refused
}

#[test]
fn no_call_loops_on_a_leaf_with_keys_past_its_parents_next_key() {
    let volume = volume();
    let sound = exercise(&volume);
    assert_eq!(sound.len(), 1, "only the directory with entries remains: {sound:?}");
    let image = volume.image();
    let pairs = pairs(&volume);
    // An orphan that cannot be deleted remains, and does not affect the others.
    let (of_orphan, of_others): (Vec<_>, Vec<_>) =
        pairs.iter().partition(|pair| pair.key.objectid == GONE_INO);
    let counts = (of_orphan.len(), of_others.len());
    assert!(counts.0 > 4 && counts.1 > 4, "{counts:?} pairs of leaves");
    for pair in of_orphan.iter().step_by(of_orphan.len().div_ceil(2)) {
        let volume = hostile(&image, pair);
        exercise(&volume);
        let fs = volume.open();
        let refused = read_all(&fs, FileId::new(5, GONE_INO)).map_err(|error| chain(&error));
        assert!(refused.is_err_and(|message| is_of_order(&message)), "behind {:?}", pair.key);
    }
    for pair in of_others.iter().step_by(of_others.len().div_ceil(4)) {
        let refused = exercise(&hostile(&image, pair));
        let of_order = refused.iter().filter(|message| is_of_order(message)).count();
        assert!(of_order > 1, "calls that refused the leaf behind {:?}: {refused:?}", pair.key);
    }
}

#[test]
fn an_undeletable_orphan_is_reported_once_and_others_are_deleted() {
    let volume = volume();
    let pairs = pairs(&volume);
    let of_orphan: Vec<_> = pairs.iter().filter(|pair| pair.key.objectid == GONE_INO).collect();
    let hostile = hostile(&volume.image(), of_orphan[of_orphan.len() / 2]);
    let options = MountOptions::default().read_only(false);
    for _ in 0..2 {
        let fs = Filesystem::open_devices(hostile.devices(), &options).unwrap();
        let watch = fs.watch_failures();
        fs.create(fs.root(), b"new", &new(0o600)).unwrap();
        fs.unlink(fs.root(), b"new").unwrap();
        let notices: Vec<String> = watch.take().unwrap().iter().map(ToString::to_string).collect();
        assert!(notices.len() == 1 && notices[0].contains("inode 258"), "{notices:?}");
        assert!(watch.take().unwrap().is_empty(), "it was reported");
        assert!(fs.stat(FileId::new(5, GONE_INO)).is_ok(), "it is left for the next open");
        assert!(fs.stat(FileId::new(5, LATER_INO)).is_err(), "the one after it is deleted");
        fs.close().unwrap();
    }
}
