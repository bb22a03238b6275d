//! Subvolumes and snapshots that Butternut makes, on volumes in memory that are checked when they
//! are closed.

use crate::volume::{TestVolume, change_beside, failing_data, names, new, read, write};
use butternut::queue::{IoFlags, QueueOptions};
use butternut::{
    Error, FIRST_ENTRY, FileId, FileKind, Filesystem, MountOptions, Privileges, RecursiveSnapshot,
    SnapshotAccess, TOP_LEVEL,
};
use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, Ordering};

/// The byte that fills a file.
fn byte(number: usize) -> u8 {
    u8::try_from(number % 256).unwrap()
}

#[test]
fn an_empty_subvolume_is_there_after_a_crash() {
    let volume = TestVolume::new();
    let filesystem = volume.open();
    let root = filesystem.root();
    let dir = filesystem.mkdir(root, b"dir", &new(0o755)).unwrap();
    let id = filesystem.create_subvolume(dir, b"sub", &new(0o750)).unwrap();
    assert_eq!(id, 256);
    assert!(matches!(filesystem.create_subvolume(dir, b"sub", &new(0o755)), Err(Error::Exists)));
    let crashed = volume.copy();
    crashed.check();
    let again = Filesystem::open_devices(crashed.devices(), &MountOptions::default()).unwrap();
    let info = again.subvolume(id).unwrap();
    assert_eq!((info.path.as_deref(), info.parent), (Some(&b"dir/sub"[..]), Some(TOP_LEVEL)));
    write(&filesystem, "dir/sub/file", b"contents");
    let stat = filesystem.stat(FileId::root_of(id)).unwrap();
    assert_eq!((stat.mode & 0o7777, stat.uid, stat.gid), (0o750, 1000, 100));
    let filesystem = volume.reopen(filesystem);
    assert_eq!(read(&filesystem, "dir/sub/file"), b"contents");
}

#[test]
fn a_snapshot_and_its_source_change_apart() {
    let volume = TestVolume::new();
    let filesystem = volume.open();
    let root = filesystem.root();
    for number in 0..500 {
        write(&filesystem, &format!("small {number}"), format!("{number}").as_bytes());
        write(&filesystem, &format!("large {number}"), &vec![byte(number); 20_000]);
    }
    let id = filesystem.snapshot(TOP_LEVEL, root, b"snap", SnapshotAccess::ReadWrite).unwrap();
    let mut before: Vec<_> = names(&filesystem, FileId::root_of(id));
    before.retain(|name| name != "snap");
    assert_eq!(before.len(), 1000);
    assert!(filesystem.resolve(b"snap/snap", butternut::Follow::Last).is_err(), "law 3");
    for number in (0..500).step_by(3) {
        write(&filesystem, &format!("small {number}"), b"changed in the source");
        write(&filesystem, &format!("snap/large {number}"), b"changed in the snapshot");
        filesystem.unlink(root, format!("large {number}").as_bytes()).unwrap();
    }
    filesystem.sync().unwrap();
    volume.copy().check();
    let second = filesystem.snapshot(id, root, b"second", SnapshotAccess::ReadOnly).unwrap();
    assert!(filesystem.subvolume(second).unwrap().read_only);
    write(&filesystem, "snap/large 0", b"changed again");
    let filesystem = volume.reopen(filesystem);
    assert_eq!(read(&filesystem, "small 3"), b"changed in the source");
    assert_eq!(read(&filesystem, "snap/small 3"), b"3");
    assert_eq!(read(&filesystem, "snap/large 4"), vec![4; 20_000]);
    assert_eq!(read(&filesystem, "snap/large 3"), b"changed in the snapshot");
    assert_eq!(read(&filesystem, "snap/large 0"), b"changed again");
    assert_eq!(read(&filesystem, "second/large 0"), b"changed in the snapshot");
    let info = filesystem.subvolume(second).unwrap();
    assert_eq!(info.parent_uuid, filesystem.subvolume(id).unwrap().uuid);
}

#[test]
fn a_snapshot_of_a_small_or_an_empty_tree() {
    let volume = TestVolume::new();
    let filesystem = volume.open();
    let root = filesystem.root();
    let empty = filesystem.create_subvolume(root, b"empty", &new(0o755)).unwrap();
    let inside = FileId::root_of(empty);
    filesystem.snapshot(empty, inside, b"itself", SnapshotAccess::ReadWrite).unwrap();
    write(&filesystem, "empty/one", &[1; 9000]);
    filesystem.snapshot(empty, root, b"one", SnapshotAccess::ReadOnly).unwrap();
    filesystem.snapshot(empty, inside, b"two", SnapshotAccess::ReadWrite).unwrap();
    write(&filesystem, "empty/two/one", &[2; 9000]);
    let filesystem = volume.reopen(filesystem);
    assert_eq!(read(&filesystem, "one/one"), vec![1; 9000]);
    assert_eq!(read(&filesystem, "empty/two/one"), vec![2; 9000]);
    assert_eq!(names(&filesystem, inside), ["itself", "one", "two"]);
    // The directory of a subvolume that the snapshot does not contain.
    assert!(filesystem.resolve(b"one/itself", butternut::Follow::Last).unwrap().is_placeholder());
}

#[test]
fn what_a_snapshot_shares_is_not_overwritten_in_place() {
    let volume = TestVolume::new();
    let filesystem = volume.open();
    let root = filesystem.root();
    let file = filesystem.create_path(b"nocow", &new(0o644)).unwrap();
    let id = filesystem.resolve(b"nocow", butternut::Follow::Last).unwrap();
    let nocow = butternut::AttributeFlags::NOCOW;
    filesystem.set_attribute_flags(id, nocow).unwrap();
    let block = |value: u8| [value; 4096];
    file.write_at(0, &vec![1; 16 << 12]).unwrap();
    filesystem.sync().unwrap();
    let write = |at: u64, value| file.write_direct(at << 12, &block(value), Privileges::Keep);
    write(0, 2).unwrap();
    filesystem.snapshot(TOP_LEVEL, root, b"snap", SnapshotAccess::ReadOnly).unwrap();
    write(0, 3).unwrap();
    write(1, 3).unwrap();
    file.write_at(2 << 12, &block(3)).unwrap();
    let filesystem = volume.reopen({
        drop(file);
        filesystem
    });
    let snap = read(&filesystem, "snap/nocow");
    assert_eq!(snap[..4096], block(2));
    assert_eq!(snap[4096..], vec![1; 15 << 12]);
    assert_eq!(read(&filesystem, "nocow")[..3 << 12], vec![3; 3 << 12]);
}

/// Bytes in use by data and metadata.
fn used(filesystem: &Filesystem) -> u64 {
    filesystem.usage().unwrap().groups.iter().map(|group| group.used_bytes).sum()
}

fn fill(filesystem: &Filesystem, dir: &str, files: usize) {
    for number in 0..files {
        let bytes = vec![byte(number); if number % 5 == 0 { 30_000 } else { 300 }];
        write(filesystem, &format!("{dir}/file {number}"), &bytes);
    }
}

#[test]
fn a_deleted_subvolume_gives_its_space_back() {
    let volume = TestVolume::new();
    let filesystem = volume.open();
    let root = filesystem.root();
    let sub = filesystem.create_subvolume(root, b"sub", &new(0o755)).unwrap();
    filesystem.sync().unwrap();
    let before = used(&filesystem);
    fill(&filesystem, "sub", 700);
    filesystem.sync().unwrap();
    filesystem.snapshot(sub, root, b"snap", SnapshotAccess::ReadOnly).unwrap();
    fill(&filesystem, "sub", 100);
    assert!(matches!(filesystem.delete_subvolume(root, b"none"), Err(Error::NotFound)));
    // What is dirty in memory goes, too.
    assert_eq!(filesystem.delete_subvolume(root, b"sub").unwrap(), sub);
    volume.copy().check();
    assert!(filesystem.resolve(b"sub", butternut::Follow::Last).is_err());
    assert_eq!(filesystem.clean_subvolumes().unwrap(), [0; 0]);
    filesystem.sync().unwrap();
    volume.copy().check();
    assert_eq!(read(&filesystem, "snap/file 10"), vec![10; 30_000]);
    filesystem.delete_subvolume(root, b"snap").unwrap();
    filesystem.clean_subvolumes().unwrap();
    filesystem.sync().unwrap();
    assert!(used(&filesystem) <= before + (64 << 10), "{} of {before}", used(&filesystem));
    let filesystem = volume.reopen(filesystem);
    assert!(filesystem.subvolumes().unwrap().is_empty());
}

#[test]
fn an_open_file_of_a_deleted_subvolume_is_read_until_it_is_closed() {
    let volume = TestVolume::new();
    let filesystem = volume.open();
    let root = filesystem.root();
    let sub = filesystem.create_subvolume(root, b"sub", &new(0o755)).unwrap();
    fill(&filesystem, "sub", 50);
    filesystem.sync().unwrap();
    let open = filesystem.open_path(b"sub/file 5").unwrap();
    filesystem.delete_subvolume(root, b"sub").unwrap();
    assert_eq!(filesystem.clean_subvolumes().unwrap(), [sub]);
    let mut bytes = vec![0; 30_000];
    open.read_exact_at(0, &mut bytes).unwrap();
    assert_eq!(bytes, vec![5; 30_000]);
    assert!(open.write_at(0, b"late").is_err());
    drop(open);
    assert_eq!(filesystem.clean_subvolumes().unwrap(), [0; 0]);
    volume.reopen(filesystem);
}

#[test]
fn another_subvolume_of_the_name_is_not_deleted() {
    let volume = TestVolume::new();
    let filesystem = volume.open();
    let root = filesystem.root();
    let checked = filesystem.create_subvolume(root, b"sub", &new(0o755)).unwrap();
    filesystem.delete_subvolume(root, b"sub").unwrap();
    let other = filesystem.create_subvolume(root, b"sub", &new(0o755)).unwrap();
    let refused = filesystem.delete_subvolume_of_id(root, b"sub", checked);
    assert!(matches!(refused, Err(Error::NotFound)));
    write(&filesystem, "sub/file", b"contents");
    filesystem.delete_subvolume_of_id(root, b"sub", other).unwrap();
    assert!(filesystem.clean_subvolumes().unwrap().is_empty());
    let filesystem = volume.reopen(filesystem);
    assert!(filesystem.subvolumes().unwrap().is_empty());
}

#[test]
fn what_may_not_be_deleted_stays() {
    let volume = TestVolume::new();
    let filesystem = volume.open();
    let root = filesystem.root();
    let outer = filesystem.create_subvolume(root, b"outer", &new(0o755)).unwrap();
    let inner = FileId::root_of(outer);
    filesystem.create_subvolume(inner, b"inner", &new(0o755)).unwrap();
    assert!(matches!(filesystem.delete_subvolume(root, b"outer"), Err(Error::NotEmpty)));
    filesystem.delete_subvolume(inner, b"inner").unwrap();
    filesystem.set_default_subvolume(outer).unwrap();
    assert_eq!(filesystem.default_subvolume().unwrap(), outer);
    let refused = filesystem.delete_subvolume(root, b"outer");
    assert!(matches!(refused, Err(Error::NotPermitted { .. })));
    filesystem.set_default_subvolume(TOP_LEVEL).unwrap();
    filesystem.mkdir(root, b"plain", &new(0o755)).unwrap();
    assert!(filesystem.delete_subvolume(root, b"plain").is_err());
    filesystem.set_subvolume_read_only(outer, true).unwrap();
    let refused = filesystem.create_path(b"outer/file", &new(0o644));
    assert!(matches!(refused, Err(Error::ReadOnly { .. })));
    filesystem.set_subvolume_read_only(outer, false).unwrap();
    filesystem.create_path(b"outer/file", &new(0o644)).unwrap();
    volume.reopen(filesystem);
}

#[test]
fn threads_change_a_source_and_its_snapshots_at_the_same_time() {
    for round in 0..3 {
        let volume = TestVolume::new();
        let filesystem = volume.open();
        let root = filesystem.root();
        filesystem.create_subvolume(root, b"s0", &new(0o755)).unwrap();
        let sub = filesystem.resolve(b"s0", butternut::Follow::Last).unwrap().subvolume;
        fill(&filesystem, "s0", 400);
        for number in 1..4 {
            let name = format!("s{number}");
            let access = SnapshotAccess::ReadWrite;
            filesystem.snapshot(sub, root, name.as_bytes(), access).unwrap();
        }
        std::thread::scope(|scope| {
            for number in 0..4 {
                let filesystem = filesystem.clone();
                scope.spawn(move || {
                    for file in (0..400).step_by(7 + round) {
                        write(&filesystem, &format!("s{number}/file {file}"), &[9; 5000]);
                        if file % 3 == number {
                            let dir = format!("s{number}");
                            let dir = filesystem.resolve(dir.as_bytes(), butternut::Follow::Last);
                            let name = format!("file {file}");
                            filesystem.unlink(dir.unwrap(), name.as_bytes()).unwrap();
                        }
                    }
                });
            }
            let filesystem = filesystem.clone();
            scope.spawn(move || {
                filesystem.snapshot(sub, root, b"late", SnapshotAccess::ReadOnly).unwrap();
                filesystem.delete_subvolume(root, b"late").unwrap();
                filesystem.clean_subvolumes().unwrap();
            });
        });
        volume.reopen(filesystem);
    }
}

#[test]
fn a_deletion_that_fails_keeps_what_is_dirty() {
    let volume = TestVolume::new();
    let filesystem = volume.open();
    let root = filesystem.root();
    let dir = filesystem.mkdir(root, b"dir", &new(0o755)).unwrap();
    filesystem.create_subvolume(dir, b"sub", &new(0o755)).unwrap();
    write(&filesystem, "dir/sub/file", &vec![5; 70_000]);
    filesystem.set_attribute_flags(dir, butternut::AttributeFlags::IMMUTABLE).unwrap();
    let refused = filesystem.delete_subvolume(dir, b"sub");
    assert!(matches!(refused, Err(Error::NotPermitted { .. })));
    filesystem.set_attribute_flags(dir, butternut::AttributeFlags::default()).unwrap();
    let filesystem = volume.reopen(filesystem);
    assert_eq!(read(&filesystem, "dir/sub/file"), vec![5; 70_000]);
}

#[test]
fn the_id_of_a_deleted_subvolume_is_not_used_again_while_the_volume_is_open() {
    let volume = TestVolume::new();
    let filesystem = volume.open();
    let root = filesystem.root();
    write(&filesystem, "file", &[1; 5000]);
    let first = filesystem.snapshot(TOP_LEVEL, root, b"snap", SnapshotAccess::ReadWrite).unwrap();
    filesystem.close().unwrap();
    let filesystem = volume.open();
    assert_eq!(read(&filesystem, "snap/file"), [1; 5000]);
    write(&filesystem, "snap/file", &vec![2; 50_000]);
    filesystem.delete_subvolume(root, b"snap").unwrap();
    filesystem.clean_subvolumes().unwrap();
    let second = filesystem.snapshot(TOP_LEVEL, root, b"snap", SnapshotAccess::ReadWrite).unwrap();
    assert_eq!(second, first + 1);
    assert_eq!(read(&filesystem, "snap/file"), [1; 5000]);
    write(&filesystem, "snap/file", &vec![3; 20_000]);
    let filesystem = volume.reopen(filesystem);
    assert_eq!(read(&filesystem, "snap/file"), vec![3; 20_000]);
}

#[test]
fn no_lane_writes_to_a_subvolume_that_is_deleted_or_read_only() {
    let volume = TestVolume::new();
    let filesystem = volume.open();
    let root = filesystem.root();
    for name in ["deleted", "read-only"] {
        let id = filesystem.create_subvolume(root, name.as_bytes(), &new(0o755)).unwrap();
        write(&filesystem, &format!("{name}/file"), &vec![1; 16 << 10]);
        let file = filesystem.open_path(format!("{name}/file").as_bytes()).unwrap();
        file.write_at(0, &[2; 4096]).unwrap();
        file.write_direct(4096, &[2; 4096], Privileges::Keep).unwrap();
        if name == "deleted" {
            filesystem.delete_subvolume(root, name.as_bytes()).unwrap();
        } else {
            filesystem.set_subvolume_read_only(id, true).unwrap();
        }
        assert!(file.write_at(0, &[3; 4096]).is_err(), "{name}");
        assert!(file.write_direct(4096, &[3; 4096], Privileges::Keep).is_err(), "{name}");
        assert!(file.truncate(0).is_err(), "{name}");
        drop(file);
        filesystem.clean_subvolumes().unwrap();
        filesystem.sync().unwrap();
    }
    let id = filesystem.resolve(b"read-only", butternut::Follow::Last).unwrap().subvolume;
    let bytes = read(&filesystem, "read-only/file");
    assert_eq!((bytes[0], bytes[4096], bytes[8192]), (2, 2, 1));
    filesystem.set_subvolume_read_only(id, false).unwrap();
    let file = filesystem.open_path(b"read-only/file").unwrap();
    file.write_direct(4096, &[4; 4096], Privileges::Keep).unwrap();
    drop(file);
    volume.reopen(filesystem);
}

/// Writes one block at each of the ways into a file, and returns which of them succeeded.
fn lanes_that_write(filesystem: &Filesystem, path: &str) -> Vec<&'static str> {
    let file = filesystem.open_path(path.as_bytes()).unwrap();
    let mut open = Vec::new();
    let mut note = |lane, is_done: bool| {
        if is_done {
            open.push(lane);
        }
    };
    note("direct", file.write_direct(0, &[3; 4096], Privileges::Keep).is_ok());
    for flags in [IoFlags::DIRECT, IoFlags::DIRECT.with(IoFlags::NOWAIT), IoFlags::default()] {
        let mut queue = filesystem.queue(&QueueOptions::default()).unwrap();
        let mut buffer = queue.buffer(4096).unwrap();
        buffer.fill(3);
        let is_accepted = queue.write(&file, 4096, buffer, flags, 1).is_ok();
        let mut done = Vec::new();
        if is_accepted {
            queue.reap(1, None, &mut done);
        }
        note("queue", is_accepted && done[0].result.is_ok());
    }
    note("cached", file.write_at(8192, &[3; 4096]).is_ok());
    note("uncached", file.write_uncached(8192, &[3; 4096], Privileges::Keep).is_ok());
    note("truncate", file.truncate(0).is_ok());
    note("fallocate", file.allocate(0..4096, butternut::Allocate::Extend).is_ok());
    open
}

#[test]
fn no_lane_writes_to_a_file_whose_subvolume_was_read_only_before() {
    let volume = TestVolume::new();
    let filesystem = volume.open();
    let root = filesystem.root();
    let id = filesystem.create_subvolume(root, b"sub", &new(0o755)).unwrap();
    write(&filesystem, "sub/file", &vec![1; 16 << 10]);
    filesystem.snapshot(id, root, b"snap", SnapshotAccess::ReadOnly).unwrap();
    assert_eq!(lanes_that_write(&filesystem, "snap/file"), [""; 0], "a new snapshot");
    filesystem.set_subvolume_read_only(id, true).unwrap();
    drop(filesystem);
    let filesystem = volume.open();
    for path in ["snap/file", "sub/file"] {
        assert_eq!(lanes_that_write(&filesystem, path), [""; 0], "{path} after a new open");
    }
    filesystem.set_subvolume_read_only(id, false).unwrap();
    assert_eq!(lanes_that_write(&filesystem, "sub/file").len(), 8);
    filesystem.set_subvolume_read_only(id, true).unwrap();
    assert_eq!(lanes_that_write(&filesystem, "sub/file"), [""; 0], "read-only again");
    let filesystem = volume.reopen(filesystem);
    assert_eq!(read(&filesystem, "snap/file"), vec![1; 16 << 10]);
}

#[test]
fn no_inode_number_is_used_twice_while_the_volume_is_open() {
    let volume = TestVolume::new();
    let filesystem = volume.open();
    let root = filesystem.root();
    let id = filesystem.create_subvolume(root, b"sub", &new(0o755)).unwrap();
    let sub = FileId::root_of(id);
    let mut seen = Vec::new();
    for step in 0..4 {
        let name = format!("file {step}");
        let made = filesystem.create(sub, name.as_bytes(), &new(0o644)).unwrap();
        assert!(!seen.contains(&made), "{made:?} after {seen:?}");
        seen.push(made);
        filesystem.unlink(sub, name.as_bytes()).unwrap();
        if step % 2 == 0 {
            filesystem.set_subvolume_read_only(id, true).unwrap();
        }
        filesystem.set_subvolume_read_only(id, false).unwrap();
    }
    volume.reopen(filesystem);
}

/// Data that was acknowledged and is lost in the call's own writeback is an error of the call, with
/// and without a flusher.
#[test]
fn a_subvolume_whose_data_is_lost_is_not_copied_and_not_made_read_only() {
    for seconds in [0, 3600] {
        let volume = TestVolume::new();
        let options = MountOptions::default().commit_seconds(seconds);
        let (device, filesystem) = volume.open_faulty(&options);
        let root = filesystem.root();
        let id = filesystem.create_subvolume(root, b"sub", &new(0o755)).unwrap();
        for is_snapshot in [true, false] {
            write(&filesystem, "sub/file", &vec![1; 100_000]);
            filesystem.sync().unwrap();
            write(&filesystem, "sub/file", &vec![2; 100_000]);
            let rule = device.add(failing_data(&filesystem));
            let done = if is_snapshot {
                filesystem.snapshot(id, root, b"snap", SnapshotAccess::ReadOnly).map(drop)
            } else {
                filesystem.set_subvolume_read_only(id, true)
            };
            device.remove(rule);
            assert_eq!(done.unwrap_err().errno(), 5, "{seconds} {is_snapshot}");
            assert!(filesystem.resolve(b"snap", butternut::Follow::Last).is_err());
            assert!(!filesystem.subvolume(id).unwrap().read_only);
            filesystem.sync().unwrap_err();
        }
        volume.reopen(filesystem);
    }
}

#[test]
fn a_listing_keeps_a_deleted_subvolume_until_it_ends() {
    let volume = TestVolume::new();
    let filesystem = volume.open();
    let root = filesystem.root();
    let sub = filesystem.create_subvolume(root, b"sub", &new(0o755)).unwrap();
    fill(&filesystem, "sub", 600);
    filesystem.sync().unwrap();
    let mut listing = filesystem.read_dir(FileId::root_of(sub), butternut::FIRST_ENTRY).unwrap();
    listing.next().unwrap().unwrap();
    filesystem.delete_subvolume(root, b"sub").unwrap();
    assert_eq!(filesystem.clean_subvolumes().unwrap(), [sub]);
    assert_eq!(listing.by_ref().map(Result::unwrap).count(), 599);
    drop(listing);
    assert_eq!(filesystem.clean_subvolumes().unwrap(), [0; 0]);
    volume.reopen(filesystem);
}

#[test]
fn no_inode_of_a_deleted_subvolume_is_found_by_its_id() {
    let volume = TestVolume::new();
    let filesystem = volume.open();
    let root = filesystem.root();
    let sub = filesystem.create_subvolume(root, b"sub", &new(0o755)).unwrap();
    fill(&filesystem, "sub", 3);
    filesystem.sync().unwrap();
    let id = |path: &str| filesystem.resolve(path.as_bytes(), butternut::Follow::Last).unwrap();
    let (top, closed, open) = (FileId::root_of(sub), id("sub/file 0"), id("sub/file 1"));
    let file = filesystem.open_file(open).unwrap();
    filesystem.delete_subvolume(root, b"sub").unwrap();
    let is_stale = |id| {
        assert!(matches!(filesystem.stat(id), Err(Error::Stale { .. })), "{id:?}");
        assert!(filesystem.open_file(id).is_err(), "{id:?}");
    };
    is_stale(top);
    is_stale(closed);
    assert!(filesystem.stat(open).is_ok(), "it is open");
    assert_eq!(filesystem.clean_subvolumes().unwrap(), [sub]);
    drop(file);
    assert_eq!(filesystem.clean_subvolumes().unwrap(), [0; 0]);
    is_stale(open);
    volume.reopen(filesystem);
}

/// A deletion removes the name before any lookup can take it for the name of a placeholder.
#[test]
fn a_name_of_a_subvolume_is_never_a_placeholder_while_it_is_deleted() {
    let volume = TestVolume::new();
    let filesystem = volume.open();
    let root = filesystem.root();
    let done = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        let reader = scope.spawn(|| {
            while !done.load(std::sync::atomic::Ordering::Acquire) {
                match filesystem.lookup(root, b"sub") {
                    Ok(id) => assert!(!id.is_placeholder(), "{id:?}"),
                    Err(error) => assert!(matches!(error, Error::NotFound), "{error:?}"),
                }
                for entry in filesystem.read_dir(root, butternut::FIRST_ENTRY).unwrap() {
                    assert!(!entry.unwrap().id.is_placeholder());
                }
            }
        });
        for _ in 0..40 {
            filesystem.create_subvolume(root, b"sub", &new(0o755)).unwrap();
            filesystem.delete_subvolume(root, b"sub").unwrap();
        }
        done.store(true, std::sync::atomic::Ordering::Release);
        reader.join().unwrap();
    });
    volume.reopen(filesystem);
}

#[test]
fn an_orphan_of_a_read_only_subvolume_gives_its_space_back() {
    let volume = TestVolume::new();
    let filesystem = volume.open();
    let root = filesystem.root();
    let id = filesystem.create_subvolume(root, b"sub", &new(0o755)).unwrap();
    let sub = FileId::root_of(id);
    filesystem.snapshot(id, root, b"snap", SnapshotAccess::ReadOnly).unwrap();
    filesystem.sync().unwrap();
    let before = used(&filesystem);
    let mut ids = Vec::new();
    for is_snapshot in [true, false] {
        write(&filesystem, "sub/file", &vec![5; 4 << 20]);
        let file = filesystem.open_path(b"sub/file").unwrap();
        filesystem.sync().unwrap();
        filesystem.unlink(sub, b"file").unwrap();
        if is_snapshot {
            let name = b"of an orphan";
            filesystem.snapshot(id, root, name, SnapshotAccess::ReadOnly).unwrap();
        } else {
            filesystem.set_subvolume_read_only(id, true).unwrap();
        }
        ids.push(file.id());
        let mut bytes = vec![0; 4 << 20];
        file.read_exact_at(0, &mut bytes).unwrap();
        assert_eq!(bytes, vec![5; 4 << 20]);
        drop(file);
        filesystem.sync().unwrap();
        assert!(used(&filesystem) < before + (1 << 20), "{} of {before}", used(&filesystem));
    }
    // The highest inode number was an orphan's.
    filesystem.set_subvolume_read_only(id, false).unwrap();
    let made = filesystem.create(sub, b"new", &new(0o644)).unwrap();
    assert!(!ids.contains(&made), "{made:?} after {ids:?}");
    volume.reopen(filesystem);
}

/// The same after a crash: nothing writes to the subvolume, so no operation finds the orphan.
#[test]
fn an_orphan_that_a_crash_has_left_in_a_read_only_subvolume_gives_its_space_back() {
    let options = MountOptions::default().read_only(false).commit_seconds(0);
    let open = |volume: &TestVolume| Filesystem::open_devices(volume.devices(), &options).unwrap();
    for is_snapshot in [true, false] {
        let volume = TestVolume::new();
        let filesystem = open(&volume);
        let root = filesystem.root();
        let sub = filesystem.create_subvolume(root, b"sub", &new(0o755)).unwrap();
        filesystem.sync().unwrap();
        let before = used(&filesystem);
        write(&filesystem, "sub/file", &vec![5; 4 << 20]);
        let file = filesystem.open_path(b"sub/file").unwrap();
        filesystem.sync().unwrap();
        filesystem.unlink(FileId::root_of(sub), b"file").unwrap();
        let read_only = if is_snapshot {
            // The orphan of the snapshot is deleted after the commit that makes the snapshot.
            filesystem.snapshot(sub, root, b"snap", SnapshotAccess::ReadOnly).unwrap()
        } else {
            filesystem.set_subvolume_read_only(sub, true).unwrap();
            sub
        };
        let crashed = volume.copy();
        drop(file);
        volume.reopen(filesystem);

        let again = open(&crashed);
        assert!(used(&again) > before + (3 << 20));
        if is_snapshot {
            write(&again, "sub/new", b"deletes the orphan of the source");
        }
        again.stat(FileId::root_of(read_only)).unwrap();
        again.clean_subvolumes().unwrap();
        again.sync().unwrap();
        assert!(used(&again) < before + (1 << 20), "{} of {before}", used(&again));
        crashed.reopen(again);
    }
}

/// fsync(2) of the directory that stands for a subvolume in a snapshot succeeds, as with the
/// kernel (`simple_dir_operations`, `noop_fsync`).
#[test]
fn a_placeholder_can_be_synced() {
    let volume = TestVolume::new();
    let filesystem = volume.open();
    let root = filesystem.root();
    let sub = filesystem.create_subvolume(root, b"sub", &new(0o755)).unwrap();
    let inside = FileId::root_of(sub);
    filesystem.create_subvolume(inside, b"inner", &new(0o755)).unwrap();
    filesystem.snapshot(sub, root, b"snap", SnapshotAccess::ReadWrite).unwrap();
    let placeholder = filesystem.resolve(b"snap/inner", butternut::Follow::Last).unwrap();
    assert!(placeholder.is_placeholder());
    filesystem.sync_directory(placeholder).unwrap();
    volume.reopen(filesystem);
}

/// The kernel has no limit of depth, and neither have `mkdir` and `create_subvolume` here. So the
/// lists, which are those of all users, have one that is deep, too.
#[test]
fn a_subvolume_in_a_deep_directory_hides_no_others() {
    let volume = TestVolume::new();
    let filesystem = volume.open();
    let root = filesystem.root();
    let other = filesystem.create_subvolume(root, b"other", &new(0o755)).unwrap();
    let mut dir = root;
    for _ in 0..2100 {
        dir = filesystem.mkdir(dir, b"d", &new(0o755)).unwrap();
    }
    let deep = filesystem.create_subvolume(dir, b"deep", &new(0o755)).unwrap();
    let filesystem = volume.reopen(filesystem); // checks: no damage
    let listed: Vec<u64> = filesystem.subvolumes().unwrap().iter().map(|info| info.id).collect();
    assert_eq!(listed, [other, deep]);
    let info = filesystem.subvolume(deep).unwrap();
    assert!(!info.deleted && !info.read_only);
}

/// The entry is visible while the commit that makes the subvolume still runs.
#[test]
fn a_new_subvolume_is_found_as_soon_as_its_name_is() {
    let volume = TestVolume::new();
    let filesystem = volume.open();
    let root = filesystem.root();
    let source = filesystem.create_subvolume(root, b"source", &new(0o755)).unwrap();
    filesystem.create_subvolume(FileId::root_of(source), b"inner", &new(0o755)).unwrap();
    fill(&filesystem, "source", 200);
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let look = || {
            let mut seen = HashSet::new();
            while !done.load(Ordering::Acquire) {
                for entry in filesystem.read_dir(root, FIRST_ENTRY).unwrap() {
                    let entry = entry.unwrap();
                    if entry.id == root || !seen.insert(entry.id) {
                        continue;
                    }
                    let id = entry.id;
                    assert_eq!(filesystem.stat(id).unwrap().kind, FileKind::Directory);
                    let info = filesystem.subvolume(id.subvolume).unwrap();
                    assert_eq!(info.path.as_deref(), Some(&entry.name[..]));
                    if let Ok(inner) = filesystem.lookup(id, b"inner") {
                        filesystem.stat(inner).unwrap();
                    }
                }
            }
        };
        change_beside([scope.spawn(look)], &done, 0..60, |number| {
            let name = format!("{number}");
            if number % 3 == 0 {
                filesystem.create_subvolume(root, name.as_bytes(), &new(0o755)).unwrap();
            } else {
                let how = RecursiveSnapshot::new(SnapshotAccess::ReadWrite);
                filesystem.snapshot_recursive(source, root, name.as_bytes(), how).unwrap();
            }
            write(&filesystem, &format!("source/{number}"), &vec![7; 40_000]);
        });
    });
    volume.reopen(filesystem);
}
