//! Renames of subvolumes: moves, exchanges and replacements, on volumes in memory that are checked
//! when they are closed.

use crate::leaf::{owner, rewrite};
use crate::volume::{TestVolume, change_beside, names, new, read, write};
use butternut::format::key::ItemType;
use butternut::format::units::TreeId;
use butternut::server::FilesystemExt;
use butternut::{
    Error, FIRST_ENTRY, FileId, FileKind, Filesystem, MountOptions, NamesError, RenameFlags,
    SnapshotAccess,
};
use butternut_mkfs::MkfsOptions;
use std::sync::atomic::{AtomicBool, Ordering};

/// As the VFS does it, which looks at the inodes first.
#[test]
fn a_rename_that_changes_nothing_succeeds_in_a_read_only_subvolume() {
    let volume = TestVolume::new();
    let filesystem = volume.open();
    let root = filesystem.root();
    let sub = filesystem.create_subvolume(root, b"sub", &new(0o755)).unwrap();
    write(&filesystem, "sub/file", b"bytes");
    let dir = FileId::root_of(sub);
    let file = filesystem.lookup(dir, b"file").unwrap();
    filesystem.link(file, dir, b"link").unwrap();
    filesystem.set_subvolume_read_only(sub, true).unwrap();
    let rename = |to: &[u8], flags| filesystem.rename((dir, b"file"), (dir, to), flags);
    for name in ["file", "link"] {
        rename(name.as_bytes(), RenameFlags::default()).unwrap();
        let no_replace = RenameFlags { no_replace: true, ..RenameFlags::default() };
        assert!(matches!(rename(name.as_bytes(), no_replace), Err(Error::Exists)));
    }
    assert!(matches!(rename(b"new", RenameFlags::default()), Err(Error::ReadOnly { .. })));
}

#[test]
fn a_subvolume_is_renamed_and_moved_between_subvolumes() {
    let volume = TestVolume::new();
    let filesystem = volume.open();
    let root = filesystem.root();
    let dir = filesystem.mkdir(root, b"dir", &new(0o755)).unwrap();
    let id = filesystem.create_subvolume(root, b"sub", &new(0o755)).unwrap();
    let other = filesystem.create_subvolume(root, b"other", &new(0o755)).unwrap();
    let inner = filesystem.create_subvolume(FileId::root_of(id), b"inner", &new(0o755)).unwrap();
    write(&filesystem, "sub/file", b"contents");
    let none = RenameFlags::default();
    let rename = |from, to| filesystem.rename(from, to, none);

    rename((root, b"sub"), (root, b"sub")).unwrap();
    rename((root, b"sub"), (root, b"renamed")).unwrap();
    rename((root, b"renamed"), (dir, b"moved")).unwrap();
    rename((dir, b"moved"), (FileId::root_of(other), b"inside")).unwrap();
    let crashed = volume.copy();
    crashed.check();
    let again = Filesystem::open_devices(crashed.devices(), &MountOptions::default()).unwrap();
    assert_eq!(again.subvolume(id).unwrap().path.as_deref(), Some(&b"other/inside"[..]));
    assert_eq!(names(&filesystem, root), ["dir", "other"]);
    assert_eq!(names(&filesystem, dir), [""; 0]);
    assert_eq!(read(&filesystem, "other/inside/file"), b"contents");
    let nested = filesystem.subvolume(inner).unwrap();
    assert_eq!(nested.path.as_deref(), Some(&b"other/inside/inner"[..]));

    // Refused, and nothing has changed.
    let at = FileId::root_of(other);
    let below = rename((root, b"other"), (FileId::root_of(inner), b"loop")).unwrap_err();
    assert!(matches!(below, Error::InvalidArgument { .. }), "{below}");
    let deep = FileId::root_of(inner);
    filesystem.mkdir(dir, b"in it", &new(0o755)).unwrap();
    assert!(matches!(rename((at, b"inside"), (root, b"dir")), Err(Error::NotEmpty)));
    assert!(matches!(rename((root, b"dir"), (root, b"other")), Err(Error::NotEmpty)));
    assert!(matches!(rename((root, b"dir"), (deep, b"new")), Err(Error::CrossesSubvolumes)));
    let exchange = RenameFlags { exchange: true, ..none };
    let exchanged = filesystem.rename((at, b"inside"), (root, b"dir"), exchange);
    assert!(matches!(exchanged, Err(Error::CrossesSubvolumes)));
    let no_replace = RenameFlags { no_replace: true, ..none };
    let replaced = filesystem.rename((at, b"inside"), (root, b"dir"), no_replace);
    assert!(matches!(replaced, Err(Error::Exists)));
    filesystem.set_subvolume_read_only(id, true).unwrap();
    assert!(matches!(rename((at, b"inside"), (root, b"out")), Err(Error::ReadOnly { .. })));
    rename((at, b"inside"), (at, b"same directory")).unwrap();

    let filesystem = volume.reopen(filesystem);
    assert_eq!(read(&filesystem, "other/same directory/file"), b"contents");
}

/// What a crash right after a call leaves.
fn after_crash(volume: &TestVolume) -> Filesystem {
    let crashed = volume.copy();
    crashed.check();
    Filesystem::open_devices(crashed.devices(), &MountOptions::default()).unwrap()
}

/// The rollback of a system: its root and a snapshot change places.
#[test]
fn subvolumes_are_exchanged_with_everything_durably() {
    let volume = TestVolume::new();
    let filesystem = volume.open();
    let root = filesystem.root();
    let current = filesystem.create_subvolume(root, b"@", &new(0o755)).unwrap();
    write(&filesystem, "@/file", b"before");
    let dir = filesystem.mkdir(root, b"snapshots", &new(0o755)).unwrap();
    let snapshot = filesystem.snapshot(current, dir, b"1", SnapshotAccess::ReadWrite).unwrap();
    write(&filesystem, "@/file", b"after");
    let held = filesystem.open_path(b"@/file").unwrap();
    let exchange = RenameFlags { exchange: true, ..RenameFlags::default() };
    filesystem.rename((root, b"@"), (dir, b"1"), exchange).unwrap();

    let crashed = after_crash(&volume);
    for filesystem in [&filesystem, &crashed] {
        assert_eq!(read(filesystem, "@/file"), b"before");
        assert_eq!(filesystem.subvolume(snapshot).unwrap().path.as_deref(), Some(&b"@"[..]));
        let path = filesystem.subvolume(current).unwrap().path;
        assert_eq!(path.as_deref(), Some(&b"snapshots/1"[..]));
        assert_eq!(filesystem.parent(FileId::root_of(current)).unwrap(), dir);
    }
    assert_eq!(read(&filesystem, "snapshots/1/file"), b"after");
    held.write_at(0, b"later").unwrap();
    held.sync_all().unwrap();
    assert_eq!(read(&after_crash(&volume), "snapshots/1/file"), b"later");

    // Into another subvolume, and with a file whose data is in memory only.
    let outer = FileId::root_of(snapshot);
    let inner = filesystem.create_subvolume(outer, b"inner", &new(0o755)).unwrap();
    filesystem.rename((outer, b"inner"), (dir, b"1"), exchange).unwrap();
    write(&filesystem, "plain", &vec![7; 100_000]);
    filesystem.rename((root, b"plain"), (dir, b"1"), exchange).unwrap();
    let crashed = after_crash(&volume);
    assert_eq!(read(&crashed, "snapshots/1"), vec![7; 100_000]);
    assert_eq!(read(&filesystem, "snapshots/1"), vec![7; 100_000]);
    assert_eq!(crashed.subvolume(inner).unwrap().path.as_deref(), Some(&b"plain"[..]));
    let path = crashed.subvolume(current).unwrap().path;
    assert_eq!(path.as_deref(), Some(&b"@/inner"[..]));
    let filesystem = volume.reopen(filesystem);
    assert_eq!(names(&filesystem, root), ["@", "plain", "snapshots"]);
}

#[test]
fn a_subvolume_replaces_an_empty_directory_that_is_in_use() {
    let volume = TestVolume::new();
    let filesystem = volume.open();
    let root = filesystem.root();
    for is_used in [true, false] {
        let id = filesystem.create_subvolume(root, b"sub", &new(0o755)).unwrap();
        let dir = filesystem.mkdir(root, b"dir", &new(0o755)).unwrap();
        let pin = if is_used { filesystem.pin(dir).unwrap() } else { None };
        let flags = RenameFlags { whiteout: Some((0, 0)), ..RenameFlags::default() };
        filesystem.rename((root, b"sub"), (root, b"dir"), flags).unwrap();
        assert_eq!(filesystem.lookup(root, b"dir").unwrap(), FileId::root_of(id));
        let whiteout = filesystem.lookup(root, b"sub").unwrap();
        assert_eq!(filesystem.stat(whiteout).unwrap().kind, FileKind::CharDevice);
        if is_used {
            assert_eq!(filesystem.stat(dir).unwrap().nlink, 0);
            assert!(filesystem.create(dir, b"file", &new(0o644)).is_err());
        }
        drop(pin);
        assert!(matches!(filesystem.stat(dir), Err(Error::Stale { .. })));
        drop(after_crash(&volume));
        filesystem.unlink(root, b"sub").unwrap();
        filesystem.delete_subvolume(root, b"dir").unwrap();
    }
    volume.reopen(filesystem);
}

/// Each name leads to one of both subvolumes at every moment, and to no placeholder.
#[test]
fn a_name_leads_to_a_subvolume_all_the_time_while_it_is_exchanged() {
    let volume = TestVolume::new();
    let filesystem = volume.open();
    let root = filesystem.root();
    let make = |dir, name: &[u8]| filesystem.create_subvolume(dir, name, &new(0o755)).unwrap();
    let outer = FileId::root_of(make(root, b"outer"));
    let both = [make(root, b"one"), make(outer, b"two")].map(FileId::root_of);
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let readers = [(root, &b"one"[..]), (outer, b"two")].map(|(dir, name)| {
            let (filesystem, done) = (&filesystem, &done);
            scope.spawn(move || {
                while !done.load(Ordering::Acquire) {
                    let found = filesystem.lookup(dir, name).unwrap();
                    assert!(both.contains(&found), "{found:?}");
                    for entry in filesystem.read_dir(dir, FIRST_ENTRY).unwrap() {
                        assert!(!entry.unwrap().id.is_placeholder());
                    }
                }
            })
        });
        let exchange = RenameFlags { exchange: true, ..RenameFlags::default() };
        change_beside(readers, &done, 0..300, |_| {
            filesystem.rename((root, b"one"), (outer, b"two"), exchange).unwrap();
        });
    });
    volume.reopen(filesystem);
}

#[test]
fn a_subvolume_whose_references_disagree_is_not_renamed_and_ends_no_writing() {
    let volume = TestVolume::new();
    let filesystem = volume.open();
    let root = filesystem.root();
    filesystem.create_subvolume(root, b"sub", &new(0o755)).unwrap();
    filesystem.mkdir(root, b"dir", &new(0o755)).unwrap();
    filesystem.close().unwrap();
    let wrong = volume.with_leaves(|leaf| {
        owner(leaf) == TreeId::ROOT.0
            && rewrite(leaf, |items| {
                for (key, data) in items {
                    if key.item_type == ItemType::ROOT_BACKREF {
                        data[8] += 1;
                    }
                }
            })
    });
    let filesystem = wrong.open();
    let renamed = filesystem.rename((root, b"sub"), (root, b"new"), RenameFlags::default());
    assert!(matches!(renamed, Err(Error::Corrupt { .. })), "{renamed:?}");
    filesystem.mkdir(root, b"still writable", &new(0o755)).unwrap();
    filesystem.sync().unwrap();
    assert_eq!(names(&filesystem, root), ["dir", "still writable", "sub"]);
}

/// What does not fit is refused before the commit: one that fails in the midst ends writing to the
/// volume.
#[test]
fn a_file_without_room_for_another_reference_is_not_exchanged_and_ends_no_writing() {
    let mut options = MkfsOptions::default();
    options.features.choose("^extref").unwrap();
    let volume = TestVolume::of(512 << 20, &options);
    let filesystem = volume.open();
    let root = filesystem.root();
    let dir = filesystem.mkdir(root, b"dir", &new(0o755)).unwrap();
    let name = |first: u8| [&[first], &[b'x'; 254][..]].concat();
    let sub = name(b's');
    let id = filesystem.create_subvolume(dir, &sub, &new(0o755)).unwrap();
    let file = filesystem.create(root, b"file", &new(0o644)).unwrap();
    let mut links = 0;
    let full = loop {
        let link = format!("{links:0>255}");
        match filesystem.link(file, dir, link.as_bytes()) {
            Ok(()) => links += 1,
            Err(error) => break error,
        }
    };
    assert!(matches!(full, Error::Names(NamesError::TooManyLinks)), "{full:?}");
    let exchange = RenameFlags { exchange: true, ..RenameFlags::default() };
    for (from, to) in [((root, &b"file"[..]), (dir, &sub[..])), ((dir, &sub), (root, b"file"))] {
        let refused = filesystem.rename(from, to, exchange).unwrap_err();
        assert!(matches!(refused, Error::Names(NamesError::TooManyLinks)), "{refused:?}");
    }
    let short = filesystem.create_subvolume(dir, b"s", &new(0o755)).unwrap();
    filesystem.unlink(dir, format!("{:0>255}", 0).as_bytes()).unwrap();
    filesystem.rename((root, b"file"), (dir, b"s"), exchange).unwrap();
    let filesystem = volume.reopen(filesystem);
    assert_eq!(filesystem.lookup(root, b"file").unwrap(), FileId::root_of(short));
    assert_eq!(filesystem.lookup(dir, &sub).unwrap(), FileId::root_of(id));
    assert_eq!(filesystem.lookup(dir, b"s").unwrap(), file);
}

/// A rename removes the old name before any lookup can take it for the name of a placeholder, and
/// the subvolume has a parent all the time.
#[test]
fn a_name_of_a_subvolume_is_never_a_placeholder_while_it_is_renamed() {
    let volume = TestVolume::new();
    let filesystem = volume.open();
    let root = filesystem.root();
    let other = filesystem.create_subvolume(root, b"other", &new(0o755)).unwrap();
    let id = filesystem.create_subvolume(root, b"sub", &new(0o755)).unwrap();
    let (sub, inside) = (FileId::root_of(id), FileId::root_of(other));
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let readers = [0, 1].map(|number| {
            let (filesystem, done) = (&filesystem, &done);
            scope.spawn(move || {
                while !done.load(Ordering::Acquire) {
                    if number == 0 {
                        for at in [(root, b"sub"), (root, b"new"), (inside, b"sub")] {
                            match filesystem.lookup(at.0, at.1) {
                                Ok(found) => assert_eq!(found, sub, "a placeholder"),
                                Err(error) => assert!(matches!(error, Error::NotFound)),
                            }
                        }
                    } else {
                        let above = filesystem.lookup(sub, b"..").unwrap();
                        assert!(above == root || above == inside, "{above:?}");
                        assert!(!filesystem.subvolume(id).unwrap().deleted);
                    }
                }
            })
        });
        let places: [(FileId, &[u8]); 3] = [(root, b"sub"), (root, b"new"), (inside, b"sub")];
        change_beside(readers, &done, 0..600, |round| {
            let (from, to) = (places[round % 3], places[(round + 1) % 3]);
            filesystem.rename(from, to, RenameFlags::default()).unwrap();
        });
    });
    volume.reopen(filesystem);
}
