//! Recursive snapshots, on volumes in memory that are checked when they are closed.

use crate::leaf::{edit_items, owner};
use crate::volume::{TestVolume, names, new, read, write};
use butternut::device::{Fault, Rule};
use butternut::{
    Error, FileId, Filesystem, Follow, MountOptions, NewInode, RecursiveSnapshot, RenameFlags,
    SnapshotAccess, TOP_LEVEL,
};
use butternut_mkfs::MkfsOptions;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

/// Small, because the tests copy it.
fn volume() -> TestVolume {
    TestVolume::of(192 << 20, &MkfsOptions::default())
}

fn find(filesystem: &Filesystem, path: &str) -> FileId {
    filesystem.resolve(path.as_bytes(), Follow::Last).unwrap()
}

fn create(filesystem: &Filesystem, path: &str) -> u64 {
    let (dir, name) = path.rsplit_once('/').unwrap_or(("", path));
    let dir = if dir.is_empty() { filesystem.root() } else { find(filesystem, dir) };
    filesystem.create_subvolume(dir, name.as_bytes(), &new(0o755)).unwrap()
}

/// Makes a subvolume with others inside it, three deep, and data in all.
fn make_tree(filesystem: &Filesystem) {
    create(filesystem, "top");
    filesystem.mkdir(find(filesystem, "top"), b"dir", &new(0o700)).unwrap();
    for path in ["top/a", "top/dir/b", "top/a/deep", "top/a/deep/deepest", "top/empty"] {
        create(filesystem, path);
    }
    for (number, path) in (1_u8..).zip(["top", "top/a", "top/dir/b", "top/a/deep/deepest"]) {
        write(filesystem, &format!("{path}/small"), path.as_bytes());
        write(filesystem, &format!("{path}/large"), &vec![number; 300_000]);
        for file in 0..200 {
            write(filesystem, &format!("{path}/file {file}"), format!("{path} {file}").as_bytes());
        }
    }
}

fn recursive(access: SnapshotAccess) -> RecursiveSnapshot {
    RecursiveSnapshot::new(access)
}

#[test]
fn a_recursive_snapshot_has_snapshots_in_the_places_of_nested_subvolumes() {
    let volume = volume();
    let filesystem = volume.open();
    make_tree(&filesystem);
    let (root, top) = (filesystem.root(), find(&filesystem, "top").subvolume);
    for (name, access) in [("ro", SnapshotAccess::ReadOnly), ("rw", SnapshotAccess::ReadWrite)] {
        let before = filesystem.stat(find(&filesystem, "top/dir")).unwrap();
        let made =
            filesystem.snapshot_recursive(top, root, name.as_bytes(), recursive(access)).unwrap();
        assert_eq!(made.len(), 6);
        assert_eq!(made[0].0, top);
        volume.copy().check();
        for (source, id) in &made {
            let (source, info) =
                (filesystem.subvolume(*source).unwrap(), filesystem.subvolume(*id).unwrap());
            assert_eq!(info.parent_uuid, source.uuid);
            assert_ne!(info.uuid, source.uuid);
            assert_eq!(info.read_only, access == SnapshotAccess::ReadOnly);
            assert_eq!(
                info.created_generation,
                filesystem.subvolume(made[0].1).unwrap().generation
            );
            let wanted = String::from_utf8(source.path.unwrap()).unwrap();
            let wanted = wanted.replacen("top", name, 1).into_bytes();
            assert_eq!(info.path.unwrap(), wanted);
        }
        for path in ["", "/a", "/dir", "/dir/b", "/a/deep", "/a/deep/deepest"] {
            let inside = |of: &str| names(&filesystem, find(&filesystem, &format!("{of}{path}")));
            assert_eq!(inside(name), inside("top"), "{path}");
        }
        let after = filesystem.stat(find(&filesystem, &format!("{name}/dir"))).unwrap();
        assert_eq!((after.size, after.mtime, after.mode), (before.size, before.mtime, before.mode));
        let read = read(&filesystem, &format!("{name}/a/deep/deepest/large"));
        assert_eq!(read, vec![4; 300_000]);
    }
    write(&filesystem, "rw/a/deep/deepest/small", b"changed in the snapshot");
    write(&filesystem, "top/dir/b/small", b"changed in the source");
    let refused = filesystem.create_path(b"ro/a/deep/new", &new(0o644));
    assert!(matches!(refused, Err(Error::ReadOnly { .. })), "{refused:?}");
    let filesystem = volume.reopen(filesystem);
    assert_eq!(read(&filesystem, "top/a/deep/deepest/small"), b"top/a/deep/deepest");
    assert_eq!(read(&filesystem, "ro/a/deep/deepest/small"), b"top/a/deep/deepest");
    assert_eq!(read(&filesystem, "rw/a/deep/deepest/small"), b"changed in the snapshot");
    assert_eq!(read(&filesystem, "ro/dir/b/small"), b"top/dir/b");
    drop(filesystem);
    let filesystem = volume.open();
    // A snapshot that is not recursive has placeholders, also of one that is.
    let ro = find(&filesystem, "ro").subvolume;
    let again = recursive(SnapshotAccess::ReadWrite);
    let made = filesystem.snapshot_recursive(ro, filesystem.root(), b"again", again).unwrap();
    assert_eq!(made.len(), 6);
    filesystem.snapshot(ro, filesystem.root(), b"flat", SnapshotAccess::ReadOnly).unwrap();
    assert!(find(&filesystem, "flat/a").is_placeholder());
    assert_eq!(read(&filesystem, "again/a/deep/deepest/file 7"), b"top/a/deep/deepest 7");
    for path in ["a/deep/deepest", "a/deep", "a", "dir/b", "empty"] {
        let (dir, name) = path.rsplit_once('/').unwrap_or(("", path));
        let dir = find(&filesystem, format!("top/{dir}").trim_end_matches('/'));
        filesystem.delete_subvolume(dir, name.as_bytes()).unwrap();
    }
    filesystem.delete_subvolume(filesystem.root(), b"top").unwrap();
    assert!(filesystem.clean_subvolumes().unwrap().is_empty());
    let filesystem = volume.reopen(filesystem);
    assert_eq!(read(&filesystem, "ro/a/large"), vec![2; 300_000]);
    assert_eq!(read(&filesystem, "again/a/large"), vec![2; 300_000]);
}

/// The new tree is inside the old one, so each contains only what was there before.
#[test]
fn a_recursive_snapshot_inside_its_source_does_not_contain_itself() {
    let volume = volume();
    let filesystem = volume.open();
    make_tree(&filesystem);
    for (source, dir) in [(TOP_LEVEL, "top/a/deep"), (TOP_LEVEL, ""), (256, "top/a")] {
        let dir = if dir.is_empty() { filesystem.root() } else { find(&filesystem, dir) };
        let count = filesystem.subvolumes_below(source).unwrap().len();
        let name = format!("snap of {source}");
        let access = recursive(SnapshotAccess::ReadWrite);
        let made = filesystem.snapshot_recursive(source, dir, name.as_bytes(), access).unwrap();
        assert_eq!(made.len(), count);
        volume.copy().check();
    }
    let filesystem = volume.reopen(filesystem);
    let deep = find(&filesystem, "top/a/deep/snap of 5/top/a/deep");
    assert_eq!(names(&filesystem, deep), ["deepest"]);
}

#[test]
fn a_recursive_snapshot_that_fails_makes_nothing() {
    let volume = volume();
    let filesystem = volume.open();
    make_tree(&filesystem);
    let (root, top) = (filesystem.root(), find(&filesystem, "top").subvolume);
    let of_other = NewInode { uid: 4321, ..new(0o755) };
    filesystem.create_subvolume(find(&filesystem, "top/a"), b"of other", &of_other).unwrap();
    let before = filesystem.subvolumes().unwrap().len();
    let options = recursive(SnapshotAccess::ReadOnly);
    let limited = options.owned_by(Some(1000));
    let refused = filesystem.snapshot_recursive(top, root, b"snap", limited);
    assert!(matches!(refused, Err(Error::NotPermitted { .. })), "{refused:?}");
    let refused = filesystem.snapshot_recursive(top, root, b"top", options);
    assert!(matches!(refused, Err(Error::Exists)), "{refused:?}");
    let refused = filesystem.snapshot_recursive(999, root, b"snap", options);
    assert!(matches!(refused, Err(Error::NoSubvolume { .. })), "{refused:?}");
    assert_eq!(filesystem.subvolumes().unwrap().len(), before);
    volume.copy().check();
    filesystem.snapshot_recursive(top, root, b"snap", options).unwrap();
    drop(volume.reopen(filesystem));
}

/// A file of a nested subvolume is written after each write of a file of the source, so at any
/// instant the first has the number of the second or the one before.
#[test]
fn a_recursive_snapshot_is_of_one_instant() {
    const SNAPSHOTS: usize = 25;
    let volume = volume();
    let filesystem = volume.open();
    make_tree(&filesystem);
    let paths = ["top/counter", "top/a/counter", "top/a/deep/deepest/counter"];
    for path in paths {
        write(&filesystem, path, &0_u64.to_le_bytes());
    }
    let (top, is_over) = (find(&filesystem, "top").subvolume, AtomicBool::new(false));
    thread::scope(|scope| {
        scope.spawn(|| {
            let files = paths.map(|path| filesystem.open_path(path.as_bytes()).unwrap());
            for count in 1_u64.. {
                for file in &files {
                    file.write_at(0, &count.to_le_bytes()).unwrap();
                }
                if is_over.load(Ordering::Acquire) {
                    break;
                }
            }
        });
        let made: butternut::Result<()> = (0..SNAPSHOTS).try_for_each(|number| {
            let name = format!("snap {number}");
            let options = recursive(SnapshotAccess::ReadOnly);
            let dir = filesystem.root();
            filesystem.snapshot_recursive(top, dir, name.as_bytes(), options).map(drop)
        });
        is_over.store(true, Ordering::Release);
        made.unwrap();
    });
    let mut counts = Vec::new();
    for number in 0..SNAPSHOTS {
        let count = |path: &str| {
            let path = path.replacen("top", &format!("snap {number}"), 1);
            u64::from_le_bytes(read(&filesystem, &path).try_into().unwrap())
        };
        let [first, second, third] = paths.map(count);
        assert!(third <= second && second <= first && first <= third + 1, "{number}");
        counts.push(first);
    }
    assert!(counts.is_sorted() && counts.last() > counts.first(), "{counts:?}");
    drop(volume.reopen(filesystem));
}

#[test]
fn more_subvolumes_than_fit_into_a_block_are_in_one_snapshot() {
    let volume = volume();
    let filesystem = volume.open();
    create(&filesystem, "top");
    for number in 0..60 {
        create(&filesystem, &format!("top/nested {number}"));
        write(&filesystem, &format!("top/nested {number}/file"), &[7; 5000]);
    }
    let (root, top) = (filesystem.root(), find(&filesystem, "top").subvolume);
    let options = recursive(SnapshotAccess::ReadWrite);
    assert_eq!(filesystem.snapshot_recursive(top, root, b"snap", options).unwrap().len(), 61);
    for number in 0..60 {
        write(&filesystem, &format!("snap/nested {number}/file"), &[8; 5000]);
    }
    let filesystem = volume.reopen(filesystem);
    for number in 0..60 {
        assert_eq!(read(&filesystem, &format!("top/nested {number}/file")), [7; 5000]);
        assert_eq!(read(&filesystem, &format!("snap/nested {number}/file")), [8; 5000]);
    }
}

/// A subvolume whose root block cannot be read fails the call; it does not end writing (law 2).
#[test]
fn a_nested_subvolume_that_cannot_be_read_does_not_end_writing() {
    const NODE_BYTES: usize = 16384;
    let volume = volume();
    let filesystem = volume.open();
    create(&filesystem, "top");
    let nested = create(&filesystem, "top/nested");
    let top = find(&filesystem, "top").subvolume;
    filesystem.close().unwrap();
    let image = volume.image();
    let fsid = image[65536 + 0x20..65536 + 0x30].to_vec();
    let blocks: Vec<u64> = (1 << 20..image.len())
        .step_by(NODE_BYTES)
        .filter(|at| {
            let block = image.get(*at..at + NODE_BYTES);
            block.is_some_and(|block| block[0x20..0x30] == fsid && owner(block) == nested)
        })
        .map(|at| at as u64)
        .collect();
    assert!(!blocks.is_empty());
    let (device, filesystem) = volume.open_faulty(&MountOptions::default().commit_seconds(0));
    let root = filesystem.root();
    filesystem.create(root, b"before", &new(0o644)).unwrap(); // Not committed yet.
    for at in blocks {
        device.add(Rule::at(at..at + NODE_BYTES as u64, Fault::ReadError));
    }
    let options = recursive(SnapshotAccess::ReadOnly);
    filesystem.snapshot_recursive(top, root, b"snap", options).unwrap_err();
    device.clear();
    assert!(filesystem.is_writable(), "a snapshot that cannot be made has ended writing");
    assert!(filesystem.lookup(root, b"snap").is_err());
    filesystem.sync().unwrap();
    let filesystem = volume.reopen(filesystem);
    filesystem.lookup(filesystem.root(), b"before").unwrap();
}

/// Between the searches in one parent and in the next, a subvolume moves from one to the other.
#[test]
fn nested_subvolumes_are_listed_while_one_of_them_moves() {
    let volume = volume();
    let filesystem = volume.open();
    create(&filesystem, "top");
    create(&filesystem, "top/first");
    for number in 0..40 {
        create(&filesystem, &format!("top/between {number}"));
    }
    create(&filesystem, "top/last");
    create(&filesystem, "top/first/moves");
    let top = find(&filesystem, "top").subvolume;
    let (first, last) = (find(&filesystem, "top/first"), find(&filesystem, "top/last"));
    let is_over = AtomicBool::new(false);
    let listed: butternut::Result<()> = thread::scope(|scope| {
        scope.spawn(|| {
            for round in 0_u32.. {
                let (from, to) = if round % 2 == 0 { (first, last) } else { (last, first) };
                let name = &b"moves"[..];
                filesystem.rename((from, name), (to, name), RenameFlags::default()).unwrap();
                if is_over.load(Ordering::Acquire) {
                    break;
                }
            }
        });
        let listed = (0..2000).try_for_each(|_| filesystem.subvolumes_below(top).map(drop));
        let made = (0..8).try_for_each(|number| {
            let (name, options) = (format!("snap {number}"), recursive(SnapshotAccess::ReadOnly));
            let root = filesystem.root();
            filesystem.snapshot_recursive(top, root, name.as_bytes(), options).map(drop)
        });
        is_over.store(true, Ordering::Release);
        listed.and(made)
    });
    listed.unwrap();
    drop(volume.reopen(filesystem));
}

/// References of subvolumes with wrong indexes: each is searched for in its whole directory, while
/// all operations that write wait.
#[test]
fn a_recursive_snapshot_of_crafted_references_is_refused() {
    const FILES: u32 = 20_000;
    const SUBVOLUMES: u32 = 500;
    let volume = TestVolume::of(512 << 20, &MkfsOptions::default());
    let filesystem = volume.open();
    create(&filesystem, "top");
    let top = find(&filesystem, "top");
    for number in 0..FILES {
        filesystem.create(top, format!("f{number}").as_bytes(), &new(0o644)).unwrap();
    }
    for number in 0..SUBVOLUMES {
        create(&filesystem, &format!("top/s{number}"));
    }
    filesystem.close().unwrap();
    let crafted = volume.with_leaves(|block| {
        // ROOT_REF 156 and ROOT_BACKREF 144 of the root tree: directory, index, length, name.
        owner(block) == 1
            && edit_items(block, |(_, kind), data| {
                if kind == 156 || kind == 144 {
                    data[8..16].copy_from_slice(&(1_u64 << 40).to_le_bytes());
                }
                true
            })
    });
    let filesystem = crafted.open();
    let top = find(&filesystem, "top").subvolume;
    let options = recursive(SnapshotAccess::ReadOnly);
    let refused = filesystem.snapshot_recursive(top, filesystem.root(), b"snap", options);
    let refused = format!("{:?}", refused.expect_err("500 searches of 20,000 entries"));
    assert!(refused.contains("many without references"), "{refused}");
}

/// Nodes of 4 KiB hold 121 children, and an insertion splits a node of 120 during its descent. Each
/// file adds one leaf, so one of them leaves 120 children in the root: a change of an entry that
/// inserted it would split the root of the snapshot alone, in the commit of the snapshot. With two
/// lengths of names, because a split of a leaf of entries may come in between.
#[test]
fn a_snapshot_of_a_recursive_snapshot_outlives_it() {
    let options = MkfsOptions { node_bytes: Some(4096), ..MkfsOptions::default() };
    for pad in [4, 60] {
        let volume = TestVolume::of(192 << 20, &options);
        let filesystem = volume.open();
        let root = filesystem.root();
        create(&filesystem, "top");
        create(&filesystem, "top/nested");
        let top = find(&filesystem, "top").subvolume;
        for number in 0..140 {
            write(&filesystem, &format!("top/{number:0pad$}"), &[7; 2000]);
            filesystem.sync().unwrap();
            if number < 90 {
                continue;
            }
            let access = SnapshotAccess::ReadWrite;
            let made = filesystem.snapshot_recursive(top, root, b"rec", recursive(access)).unwrap();
            filesystem.snapshot(made[0].1, root, b"copy", access).unwrap();
            filesystem.delete_subvolume(find(&filesystem, "rec"), b"nested").unwrap();
            filesystem.delete_subvolume(root, b"rec").unwrap();
            assert!(filesystem.clean_subvolumes().unwrap().is_empty());
            filesystem.sync().unwrap();
            // Each leaf of the copy is copied, or dropped.
            write(&filesystem, &format!("copy/{number:0pad$}"), b"changed");
            filesystem.sync().unwrap();
            filesystem.delete_subvolume(root, b"copy").unwrap();
            assert!(filesystem.clean_subvolumes().unwrap().is_empty());
            filesystem.sync().unwrap();
        }
        drop(volume.reopen(filesystem));
    }
}
