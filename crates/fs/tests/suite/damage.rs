//! Damaged volumes: random bytes of tree blocks are changed, and the checksums are recomputed.
//!
//! Whatever the blocks contain, every call returns a result or an error.

use crate::image::{Image, image_of};
use butternut::format::checksum::ChecksumKind;
use butternut::{DevicePath, FileId, FileKind, Filesystem, Follow, MountOptions};
use std::collections::HashSet;
use std::fs::{File, OpenOptions};
use std::os::unix::fs::{FileExt, symlink};

/// Damaged volumes per run; `BUTTERNUT_DAMAGE_ROUNDS` overrides it.
const ROUNDS: u64 = 300;
/// Maximum number of inodes visited in each.
const INODES_MAX: usize = 2000;
const NODE_BYTES: usize = 4096;
const CHECKSUM_BYTES: usize = 32;

/// A random number generator with a seed.
struct Random(u64);

impl Random {
    fn next(&mut self, below: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut word = self.0;
        word = (word ^ word >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        word = (word ^ word >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        usize::try_from((word ^ word >> 31) % below as u64).unwrap()
    }
}

fn image() -> Image {
    image_of(&["--nodesize", "4096"], |root| {
        for number in 0..60 {
            std::fs::write(root.join(format!("small{number}")), vec![b'x'; number * 40]).unwrap();
        }
        std::fs::write(root.join("big"), vec![b'y'; 300_000]).unwrap();
        std::fs::hard_link(root.join("big"), root.join("link")).unwrap();
        symlink("small1", root.join("symlink")).unwrap();
        std::fs::create_dir_all(root.join("a/b/c")).unwrap();
        std::fs::write(root.join("a/b/c/file"), "deep").unwrap();
    })
}

fn open(image: &Image) -> butternut::Result<Filesystem> {
    Filesystem::open(&[DevicePath::from(&image.path)], &MountOptions::default())
}

/// Returns the offsets of each tree block in the image, with every copy of it.
fn blocks(image: &Image) -> Vec<Vec<u64>> {
    let filesystem = open(image).unwrap();
    let inspect = filesystem.inspect();
    let chunks = inspect.chunks();
    let mut blocks = Vec::new();
    for root in inspect.tree_roots().unwrap() {
        let mut pending = vec![root.expected()];
        while let Some(expected) = pending.pop() {
            let block = inspect.block(&expected).unwrap();
            pending.extend((0..block.len()).filter_map(|s| inspect.child(&block, s, root.tree)));
            let logical = expected.logical.0;
            let chunk = chunks.iter().rev().find(|chunk| chunk.logical.0 <= logical).unwrap();
            let within = logical - chunk.logical.0;
            blocks.push(chunk.stripes.iter().map(|(_, start)| start + within).collect());
        }
    }
    blocks
}

/// Makes every kind of call on a volume, and ignores the results.
fn exercise(filesystem: &Filesystem) {
    filesystem.statfs().ok();
    filesystem.usage().ok();
    filesystem.subvolumes().ok();
    for tree in filesystem.inspect().tree_roots().unwrap_or_default() {
        filesystem.tree_stats(tree.tree.0).ok();
    }
    for chunk in filesystem.inspect().chunks() {
        filesystem.owners_of_logical(chunk.logical.0, true).ok();
    }
    filesystem.resolve(b"a/b/c/../../b/c/file", Follow::Last).ok();
    filesystem.resolve(b"symlink", Follow::Last).ok();
    let mut seen = HashSet::new();
    let mut pending = vec![filesystem.root()];
    while let Some(id) = pending.pop() {
        if seen.len() >= INODES_MAX || !seen.insert(id) {
            continue;
        }
        visit(filesystem, id);
        let Ok(entries) = filesystem.read_dir(id, 0) else { continue };
        pending.extend(entries.take(INODES_MAX).flatten().map(|entry| entry.id));
    }
}

fn visit(filesystem: &Filesystem, id: FileId) {
    let Ok(stat) = filesystem.stat(id) else { return };
    for name in filesystem.xattr_names(id).unwrap_or_default() {
        filesystem.xattr(id, &name).ok();
    }
    filesystem.paths_of(id).ok();
    filesystem.parent(id).ok();
    filesystem.disk_usage(id).ok();
    filesystem.read_link(id).ok();
    if stat.kind != FileKind::File {
        return;
    }
    let file = filesystem.open_file(id).unwrap();
    let mut memory = vec![0; 65536];
    for offset in [0, 4096, 299_000, stat.size.saturating_sub(10), 1 << 40] {
        file.read_at(offset, &mut memory).ok();
        file.seek_data(offset).ok();
        file.seek_hole(offset).ok();
    }
    file.extents(0..u64::MAX).take(1000).for_each(drop);
}

fn damage(disk: &File, places: &[u64], random: &mut Random) -> Vec<u8> {
    let mut block = vec![0; NODE_BYTES];
    disk.read_exact_at(&mut block, places[0]).unwrap();
    let before = block.clone();
    for _ in 0..=random.next(3) {
        // Most contents of a block are at its ends: header and slots, and the items' data.
        let from_end = random.next(2) == 0;
        let offset = CHECKSUM_BYTES + random.next(600);
        let offset = if from_end { NODE_BYTES - 1 - random.next(1500) } else { offset };
        block[offset] = match random.next(4) {
            0 => 0,
            1 => 0xff,
            2 => block[offset] ^ (1 << random.next(8)),
            _ => u8::try_from(random.next(256)).unwrap(),
        };
    }
    let digest = ChecksumKind::Crc32c.compute(&block[CHECKSUM_BYTES..]);
    block[..4].copy_from_slice(&digest[..4]);
    for place in places {
        disk.write_all_at(&block, *place).unwrap();
    }
    before
}

#[test]
fn no_damaged_block_makes_a_call_panic_or_hang() {
    let rounds = std::env::var("BUTTERNUT_DAMAGE_ROUNDS").ok();
    let rounds = rounds.map_or(ROUNDS, |rounds| rounds.parse().unwrap());
    let image = image();
    let blocks = blocks(&image);
    let disk = OpenOptions::new().read(true).write(true).open(&image.path).unwrap();
    let mut opened = 0;
    for seed in 0..rounds {
        let mut random = Random(seed);
        let places = &blocks[random.next(blocks.len())];
        let before = damage(&disk, places, &mut random);
        let done = std::panic::catch_unwind(|| match open(&image) {
            Ok(filesystem) => {
                exercise(&filesystem);
                1
            }
            Err(error) => {
                assert_ne!(error.errno(), 0);
                0
            }
        });
        opened += done.unwrap_or_else(|_| panic!("seed {seed} makes a call panic"));
        for place in places {
            disk.write_all_at(&before, *place).unwrap();
        }
    }
    assert!(opened > rounds / 4, "only {opened} of {rounds} could be opened");
}
