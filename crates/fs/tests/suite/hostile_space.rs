//! Volumes whose free space tree and file extents name space that is in use, with valid checksums.
//!
//! 1. Every call on such a volume returns.
//! 2. A change that would use a tree block twice, or add an extent item over another, is refused,
//!    and nothing of it is committed.
//! 3. A write in place changes no byte of another file and no tree block.
//! 4. No commit writes a superblock that the volume cannot be opened with.

use crate::leaf::{owner, rewrite};
use crate::volume::{TestVolume, new};
use butternut::format::key::{ItemType, Key};
use butternut::{Allocate, AttributeFlags, ExtentKind, FileId, Filesystem, SetAttributes};
use butternut_check::CheckOptions;
use butternut_mkfs::{MkfsOptions, Profile};
use std::collections::BTreeMap;
use std::ops::Range;

const FREE_SPACE_TREE: u64 = 10;
const FS_TREE: u64 = 5;
const NODE_BYTES: u64 = 16384;
const VOLUME_BYTES: u64 = 256 << 20;
const FILES: u32 = 900;

fn number(data: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(data[at..at + 8].try_into().unwrap())
}

fn put(data: &mut [u8], at: usize, value: u64) {
    data[at..at + 8].copy_from_slice(&value.to_le_bytes());
}

fn findings(volume: &TestVolume) -> Vec<String> {
    let options = CheckOptions { check_data_csum: true, ..CheckOptions::default() };
    let report = butternut_check::check(volume.devices(), &options).unwrap();
    report.findings.iter().map(ToString::to_string).collect()
}

/// The addresses of the tree blocks of the top-level subvolume, by level.
fn tree_blocks(volume: &TestVolume) -> BTreeMap<u8, Vec<u64>> {
    let options = butternut::MountOptions::default();
    let fs = Filesystem::open_devices(volume.devices(), &options).unwrap();
    let inspect = fs.inspect();
    let root = inspect.tree_roots().unwrap().into_iter().find(|root| root.tree.0 == FS_TREE);
    let root = root.unwrap();
    let mut found: BTreeMap<u8, Vec<u64>> = BTreeMap::new();
    let mut pending = vec![root.expected()];
    while let Some(expected) = pending.pop() {
        let block = inspect.block(&expected).unwrap();
        found.entry(expected.level).or_default().push(expected.logical.0);
        let children = (0..block.len()).filter_map(|slot| inspect.child(&block, slot, root.tree));
        pending.extend(children);
    }
    found
}

/// Makes `free` the only free space of the block group that holds it, for the free space tree.
fn with_free(volume: &TestVolume, free: &[u64]) -> TestVolume {
    let mut free: Vec<u64> = free.to_vec();
    free.sort_unstable();
    volume.with_leaves(|block| {
        if owner(block) != FREE_SPACE_TREE {
            return false;
        }
        rewrite(block, |items| {
            let is_info = |key: &Key| key.item_type == ItemType::FREE_SPACE_INFO;
            let holds = |key: &Key| (key.objectid..key.objectid + key.offset).contains(&free[0]);
            let group = items.iter().find(|(key, _)| is_info(key) && holds(key));
            let Some((group, _)) = group.cloned() else { return };
            let whole = group.objectid..group.objectid + group.offset;
            items.retain(|(key, _)| is_info(key) || !whole.contains(&key.objectid));
            let mut runs: Vec<Range<u64>> = Vec::new();
            for at in free.iter().filter(|at| whole.contains(at)) {
                match runs.last_mut() {
                    Some(last) if last.end == *at => last.end = at + NODE_BYTES,
                    _ => runs.push(*at..at + NODE_BYTES),
                }
            }
            let info = items.iter_mut().find(|(key, _)| *key == group).unwrap();
            let count = u32::try_from(runs.len()).unwrap();
            info.1[..4].copy_from_slice(&count.to_le_bytes());
            let extent = |run: &Range<u64>| {
                Key::new(run.start, ItemType::FREE_SPACE_EXTENT, run.end - run.start)
            };
            items.extend(runs.iter().map(|run| (extent(run), Vec::new())));
        })
    })
}

/// A volume with a tree of two levels.
fn volume_with_many_blocks() -> TestVolume {
    let options = MkfsOptions { metadata: Some(Profile::Single), ..MkfsOptions::default() };
    let volume = TestVolume::of(VOLUME_BYTES, &options);
    let fs = volume.open();
    for number in 0..FILES {
        let id = fs.create(fs.root(), format!("file {number}").as_bytes(), &new(0o644)).unwrap();
        fs.open_file(id).unwrap().write_at(0, &[7; 2000]).unwrap();
    }
    fs.close().unwrap();
    volume
}

#[test]
fn tree_blocks_that_are_free_and_in_use_are_not_used_twice() {
    let volume = volume_with_many_blocks();
    let blocks = tree_blocks(&volume);
    assert!(blocks.len() > 1 && blocks[&0].len() > 100, "{} levels", blocks.len());
    let all: Vec<u64> = blocks.values().flatten().copied().collect();
    for free in [blocks[&0].clone(), all] {
        let hostile = with_free(&volume, &free);
        let before = findings(&hostile);
        assert!(!before.is_empty());
        let fs = hostile.open();
        let change = || {
            for number in (0..FILES).step_by(40) {
                let name = format!("file {number}");
                let id = fs.lookup(fs.root(), name.as_bytes())?;
                let set = SetAttributes { mode: Some(0o600), ..SetAttributes::default() };
                fs.set_attributes(id, &set)?;
                fs.unlink(fs.root(), format!("file {}", number + 7).as_bytes())?;
            }
            fs.sync()
        };
        let refused = change().unwrap_err();
        assert!(!fs.is_writable(), "{refused}");
        drop(fs);
        assert_eq!(findings(&hostile), before, "the volume is no more damaged than it was");
    }
}

/// Returns where the data of a file is: its only extent.
fn extent_of(fs: &Filesystem, id: FileId) -> (u64, u64) {
    let extents = fs.open_file(id).unwrap().extents(0..u64::MAX);
    let extents: Vec<_> = extents.map(Result::unwrap).collect();
    let [extent] = &extents[..] else { panic!("{extents:?}") };
    match extent.kind {
        ExtentKind::Regular { logical, .. } | ExtentKind::Prealloc { logical } => {
            (logical, extent.bytes)
        }
        ExtentKind::Hole | ExtentKind::Inline { .. } | ExtentKind::Buffered => {
            panic!("{extent:?}")
        }
    }
}

/// Makes the only extent of a file name other space.
fn with_extent(volume: &TestVolume, id: FileId, disk: (u64, u64)) -> TestVolume {
    volume.with_leaves(|block| {
        if owner(block) != FS_TREE {
            return false;
        }
        rewrite(block, |items| {
            for (key, data) in items {
                if (key.objectid, key.item_type) == (id.ino, ItemType::EXTENT_DATA) {
                    put(data, 8, disk.1);
                    put(data, 21, disk.0);
                    put(data, 29, disk.1);
                    put(data, 37, 0);
                    put(data, 45, disk.1);
                }
            }
        })
    })
}

#[test]
fn a_write_in_place_leaves_the_data_of_other_files_and_tree_blocks_alone() {
    let volume = TestVolume::of(VOLUME_BYTES, &MkfsOptions::default());
    let fs = volume.open();
    let victim = fs.create(fs.root(), b"victim", &new(0o600)).unwrap();
    fs.open_file(victim).unwrap().write_at(0, &vec![7; 65536]).unwrap();
    let nocow = fs.create(fs.root(), b"nocow", &new(0o600)).unwrap();
    fs.set_attribute_flags(nocow, AttributeFlags::NOCOW).unwrap();
    fs.open_file(nocow).unwrap().write_at(0, &[8; 16384]).unwrap();
    let preallocated = fs.create(fs.root(), b"preallocated", &new(0o600)).unwrap();
    fs.open_file(preallocated).unwrap().allocate(0..16384, Allocate::Extend).unwrap();
    fs.sync().unwrap();
    let (at, bytes) = extent_of(&fs, victim);
    assert_eq!(bytes, 65536);
    let (own, _) = extent_of(&fs, nocow);
    fs.close().unwrap();
    let block = tree_blocks(&volume)[&0][0];
    // In the midst of another extent, its start with another length, a tree block, free space.
    let places = [(at + 4096, 16384), (at, 16384), (block, 16384), (own + (4 << 20), 16384)];
    for id in [nocow, preallocated] {
        for place in places {
            let hostile = with_extent(&volume, id, place);
            let before = findings(&hostile);
            assert!(!before.is_empty());
            let fs = hostile.open();
            let change = || {
                fs.open_file(id)?.write_at(0, &[9; 16384])?;
                fs.sync()
            };
            let refused = change().unwrap_err();
            assert!(!fs.is_writable(), "{place:?}: {refused}");
            drop(fs);
            assert_eq!(findings(&hostile), before, "{id:?} {place:?}");
        }
    }
}

/// Changes the items of one type, creates a file, and checks that the volume can be
/// opened afterwards. Returns the error of the commit, if there was one.
fn commit_with(item_type: ItemType, change: impl Fn(&mut Vec<u8>)) -> Option<butternut::Error> {
    let volume = TestVolume::of(VOLUME_BYTES, &MkfsOptions::default());
    let hostile = volume.with_leaves(|block| {
        rewrite(block, |items| {
            let found = items.iter_mut().filter(|(key, _)| key.item_type == item_type);
            found.for_each(|(_, data)| change(data));
        })
    });
    let fs = hostile.open();
    fs.create(fs.root(), b"new", &new(0o644)).unwrap();
    let refused = fs.sync().err();
    drop(fs);
    hostile.open();
    refused
}

#[test]
fn a_device_item_with_another_fsid_does_not_spoil_the_superblock() {
    const FSID_AT: usize = 82;
    let refused = commit_with(ItemType::DEV_ITEM, |data| data[FSID_AT] ^= 1);
    assert!(refused.is_none(), "{refused:?}");
}

#[test]
fn groups_that_use_less_than_a_volume_has_do_not_spoil_the_superblock() {
    for used in [0, 16384, 65536] {
        let refused = commit_with(ItemType::BLOCK_GROUP_ITEM, |data| {
            let used = used.min(number(data, 0));
            put(data, 0, used);
        });
        assert!(refused.is_some(), "{used}");
    }
}

#[test]
fn with_the_last_inode_number_in_use_files_are_still_changed_and_deleted() {
    const LAST: u64 = u64::MAX - 256;
    let volume = TestVolume::of(VOLUME_BYTES, &MkfsOptions::default());
    let fs = volume.open();
    let file = fs.create(fs.root(), b"file", &new(0o644)).unwrap();
    fs.close().unwrap();
    let volume = volume.with_leaves(|block| {
        let changes = |items: &mut Vec<(Key, Vec<u8>)>| {
            for (key, data) in items {
                let is_entry = [ItemType::DIR_ITEM, ItemType::DIR_INDEX].contains(&key.item_type);
                if key.objectid == file.ino {
                    key.objectid = LAST;
                } else if is_entry && number(data, 0) == file.ino {
                    put(data, 0, LAST);
                }
            }
        };
        owner(block) == FS_TREE && rewrite(block, changes)
    });
    volume.check();
    let fs = volume.open();
    let refused = fs.create(fs.root(), b"new", &new(0o644)).unwrap_err();
    let refused = butternut_volume::chain(&refused);
    assert!(refused.contains("inode numbers"), "{refused}");
    let id = fs.lookup(fs.root(), b"file").unwrap();
    assert_eq!(id.ino, LAST);
    fs.open_file(id).unwrap().write_at(0, b"data").unwrap();
    fs.unlink(fs.root(), b"file").unwrap();
    fs.close().unwrap();
    volume.check();
}

#[test]
fn disk_usage_reads_what_no_commit_has_written() {
    let volume = volume_with_many_blocks();
    let fs = volume.open();
    let file = fs.lookup(fs.root(), b"file 450").unwrap();
    fs.open_file(file).unwrap().write_at(0, &vec![1; 65536]).unwrap();
    fs.sync().unwrap();
    for number in (0..FILES).step_by(5) {
        let id = fs.lookup(fs.root(), format!("file {number}").as_bytes()).unwrap();
        let set = SetAttributes { mode: Some(0o600), ..SetAttributes::default() };
        fs.set_attributes(id, &set).unwrap();
        fs.disk_usage(file).unwrap();
    }
    fs.close().unwrap();
    volume.check();
}

/// Makes the block group at `start` unused, for the group items and the free space tree.
fn with_unused_group(volume: &TestVolume, start: u64) -> TestVolume {
    volume.with_leaves(|block| {
        rewrite(block, |items| {
            let mut group = None;
            for (key, data) in items.iter_mut().filter(|(key, _)| key.objectid == start) {
                match key.item_type {
                    ItemType::BLOCK_GROUP_ITEM => put(data, 0, 0),
                    ItemType::FREE_SPACE_INFO => {
                        data[..4].copy_from_slice(&1_u32.to_le_bytes());
                        group = Some(key.offset);
                    }
                    _ => {}
                }
            }
            let Some(bytes) = group else { return };
            let is_inside = |key: &Key| (start..start + bytes).contains(&key.objectid);
            items
                .retain(|(key, _)| key.item_type != ItemType::FREE_SPACE_EXTENT || !is_inside(key));
            items.push((Key::new(start, ItemType::FREE_SPACE_EXTENT, bytes), Vec::new()));
        })
    })
}

#[test]
fn a_group_that_counts_as_unused_and_has_extents_is_not_removed() {
    let volume = TestVolume::of(4 << 30, &MkfsOptions::default());
    let fs = volume.open();
    let data = |number: u8| vec![number; 4 << 20];
    let files: Vec<FileId> = (0..4)
        .map(|number| {
            let id = fs.create(fs.root(), &[b'a' + number], &new(0o600)).unwrap();
            fs.open_file(id).unwrap().write_at(0, &data(number)).unwrap();
            fs.sync().unwrap();
            id
        })
        .collect();
    let (first, _) = extent_of(&fs, files[0]);
    let chunks = fs.inspect().chunks();
    let holds = |start: u64, bytes: u64| (start..start + bytes).contains(&first);
    let chunk = chunks.iter().find(|chunk| holds(chunk.logical.0, chunk.bytes)).unwrap();
    let start = chunk.logical.0;
    fs.close().unwrap();
    let hostile = with_unused_group(&volume, start);
    let fs = hostile.open();
    fs.create(fs.root(), b"new", &new(0o644)).unwrap();
    fs.sync().ok();
    drop(fs);
    let options = butternut::MountOptions::default();
    let fs = Filesystem::open_devices(hostile.devices(), &options).unwrap();
    for (number, id) in (0..).zip(&files) {
        let mut found = vec![0; 4 << 20];
        fs.open_file(*id).unwrap().read_at(0, &mut found).unwrap();
        assert!(found == data(number), "file {number}");
    }
}

/// Adds checksums of space that no extent uses: `bytes` from `start` on.
fn with_checksums(volume: &TestVolume, start: u64, bytes: u64) -> TestVolume {
    const CHECKSUM_TREE: u64 = 7;
    const OBJECT: u64 = u64::MAX - 9;
    volume.with_leaves(|block| {
        if owner(block) != CHECKSUM_TREE {
            return false;
        }
        rewrite(block, |items| {
            let key = Key::new(OBJECT, ItemType::EXTENT_CSUM, start);
            let checksums = usize::try_from(bytes / 4096 * 4).unwrap();
            items.push((key, vec![0xa5; checksums]));
        })
    })
}

#[test]
fn leftover_checksums_of_free_space_are_replaced() {
    let volume = TestVolume::of(VOLUME_BYTES, &MkfsOptions::default());
    let fs = volume.open();
    let first = fs.create(fs.root(), b"first", &new(0o600)).unwrap();
    fs.open_file(first).unwrap().write_at(0, &vec![7; 65536]).unwrap();
    fs.sync().unwrap();
    let (at, bytes) = extent_of(&fs, first);
    fs.close().unwrap();
    // Next to those of the extent, and some sectors behind.
    for behind in [0, 5 * 4096, 40 * 4096] {
        let hostile = with_checksums(&volume, at + bytes + behind, 100 * 4096);
        let fs = hostile.open();
        let mut files = vec![(first, vec![7; 65536])];
        for number in 0..4_u8 {
            let id = fs.create(fs.root(), &[b'a' + number], &new(0o600)).unwrap();
            let data = vec![number; (usize::from(number) * 3 + 1) * 8192];
            fs.open_file(id).unwrap().write_at(0, &data).unwrap();
            fs.sync().unwrap();
            files.push((id, data));
        }
        fs.close().unwrap();
        let options = butternut::MountOptions::default();
        let fs = Filesystem::open_devices(hostile.devices(), &options).unwrap();
        for (id, data) in files {
            let mut found = vec![0; data.len()];
            fs.open_file(id).unwrap().read_at(0, &mut found).unwrap();
            assert!(found == data);
        }
        drop(fs);
        let left = findings(&hostile);
        assert!(left.iter().all(|found| !found.contains("overlap")), "{left:?}");
    }
}

#[test]
fn a_wrong_number_of_free_runs_does_not_change_how_they_are_stored() {
    let volume = TestVolume::new();
    let is_free_space = |block: &[u8]| owner(block) == FREE_SPACE_TREE;
    let crafted = volume.with_leaves(|block| {
        is_free_space(block)
            && rewrite(block, |items| {
                for (key, data) in items {
                    if key.item_type == ItemType::FREE_SPACE_INFO {
                        data[..4].copy_from_slice(&u32::MAX.to_le_bytes());
                    }
                }
            })
    });
    let fs = crafted.open();
    fs.create(fs.root(), b"file", &new(0o644)).unwrap();
    fs.close().unwrap();
    let (mut bitmaps, mut right) = (0, 0);
    crafted.with_leaves(|block| {
        is_free_space(block)
            && rewrite(block, |items| {
                for (key, data) in items {
                    bitmaps += usize::from(key.item_type == ItemType::FREE_SPACE_BITMAP);
                    let is_info = key.item_type == ItemType::FREE_SPACE_INFO;
                    right += usize::from(is_info && data[..4] != u32::MAX.to_le_bytes());
                    // Something is to change.
                    data.iter_mut().take(1).for_each(|byte| *byte ^= 1);
                }
            })
    });
    assert_eq!(bitmaps, 0);
    assert!(right > 0, "no group was written again");
}
