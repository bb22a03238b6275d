//! Names: creation, renames and removal, and their effects on inodes.

use crate::volume::{TestVolume, names, new};
use butternut::server::FilesystemExt;
use butternut::{Error, FileKind, Follow, RenameFlags, SetAttributes, SetXattr};
use std::sync::atomic::{AtomicBool, Ordering};

#[test]
fn created_files_exist_after_a_reopen() {
    let volume = TestVolume::new();
    let fs = volume.open();
    let root = fs.root();
    let dir = fs.mkdir(root, b"dir", &new(0o755)).unwrap();
    let file = fs.create(dir, b"file", &new(0o640)).unwrap();
    fs.symlink(dir, b"link", b"../file", &new(0)).unwrap();
    fs.mknod(root, b"null", &new(0o666), FileKind::CharDevice, (1, 3)).unwrap();
    fs.mknod(root, b"pipe", &new(0o600), FileKind::Fifo, (0, 0)).unwrap();
    let before = fs.stat(file).unwrap();

    let fs = volume.reopen(fs);
    assert_eq!(names(&fs, root), ["dir", "null", "pipe"]);
    assert_eq!(names(&fs, dir), ["file", "link"]);
    assert_eq!(fs.stat(file).unwrap(), before);
    assert_eq!((before.mode, before.uid, before.gid, before.nlink), (0o100_640, 1000, 100, 1));
    assert_eq!(fs.stat(fs.lookup(root, b"null").unwrap()).unwrap().rdev, (1, 3));
    let link = fs.lookup(dir, b"link").unwrap();
    assert_eq!(fs.read_link(link).unwrap(), b"../file");
    assert_eq!((fs.stat(link).unwrap().size, fs.stat(link).unwrap().mode), (7, 0o120_777));
    assert_eq!(fs.stat(dir).unwrap().size, 2 * (4 + 4));
}

#[test]
fn a_filesystem_is_read_only_by_default() {
    let volume = TestVolume::new();
    let options = butternut::MountOptions::default();
    let fs = butternut::Filesystem::open_devices(volume.devices(), &options).unwrap();
    let error = fs.create(fs.root(), b"a", &new(0o644)).unwrap_err();
    assert_eq!((error.errno(), fs.is_writable()), (30, false));
}

#[test]
fn a_new_entry_changes_its_directorys_times_and_size() {
    let volume = TestVolume::new();
    let fs = volume.open();
    let before = fs.stat(fs.root()).unwrap();
    fs.create(fs.root(), b"abc", &new(0o644)).unwrap();
    let after = fs.stat(fs.root()).unwrap();
    assert_eq!(after.size, before.size + 6);
    assert!(after.mtime > before.mtime && after.mtime == after.ctime);
    assert_eq!(after.atime, before.atime);
    fs.unlink(fs.root(), b"abc").unwrap();
    let last = fs.stat(fs.root()).unwrap();
    assert_eq!(last.size, before.size);
    assert!(last.mtime > after.mtime);
    volume.reopen(fs);
}

#[test]
fn invalid_names_are_refused() {
    let volume = TestVolume::new();
    let fs = volume.open();
    let root = fs.root();
    let file = fs.create(root, b"file", &new(0o644)).unwrap();
    let errno = |result: butternut::Result<_>| result.unwrap_err().errno();
    assert_eq!(errno(fs.create(root, b"file", &new(0o644))), 17);
    assert_eq!(errno(fs.create(root, &[b'x'; 256], &new(0o644))), 36);
    assert_eq!(errno(fs.create(root, b"a/b", &new(0o644))), 22);
    assert_eq!(errno(fs.create(file, b"a", &new(0o644))), 20);
    assert_eq!(errno(fs.symlink(root, b"l", &[b'x'; 4096], &new(0))), 36);
    assert_eq!(errno(fs.symlink(root, b"l", b"a\0b", &new(0))), 22);
    fs.create(root, &[b'x'; 255], &new(0o644)).unwrap();
    let unlink = |name: &[u8]| fs.unlink(root, name).unwrap_err().errno();
    assert_eq!(unlink(b"none"), 2);
    let dir = fs.mkdir(root, b"dir", &new(0o755)).unwrap();
    assert_eq!(unlink(b"dir"), 21);
    assert_eq!(fs.rmdir(root, b"file").unwrap_err().errno(), 20);
    fs.create(dir, b"a", &new(0o644)).unwrap();
    assert_eq!(fs.rmdir(root, b"dir").unwrap_err().errno(), 39);
    volume.reopen(fs);
}

#[test]
fn a_removed_directory_refuses_new_entries() {
    let volume = TestVolume::new();
    let fs = volume.open();
    let dir = fs.mkdir(fs.root(), b"dir", &new(0o755)).unwrap();
    let pin = fs.pin(dir).unwrap();
    fs.rmdir(fs.root(), b"dir").unwrap();
    assert_eq!(fs.create(dir, b"a", &new(0o644)).unwrap_err().errno(), 2);
    assert_eq!(fs.stat(dir).unwrap().nlink, 0);
    drop(pin);
    assert!(matches!(fs.stat(dir), Err(Error::Stale { .. })));
    volume.reopen(fs);
}

#[test]
fn a_file_exists_while_it_has_a_name_or_a_handle() {
    let volume = TestVolume::new();
    let fs = volume.open();
    let root = fs.root();
    let id = fs.create(root, b"a", &new(0o644)).unwrap();
    fs.link(id, root, b"b").unwrap();
    assert_eq!(fs.stat(id).unwrap().nlink, 2);
    fs.unlink(root, b"a").unwrap();
    let file = fs.open_file(id).unwrap();
    fs.unlink(root, b"b").unwrap();
    assert_eq!(file.metadata().unwrap().nlink, 0);
    assert_eq!(fs.link(id, root, b"c").unwrap_err().errno(), 2, "its names are removed");
    drop(file);
    assert!(matches!(fs.stat(id), Err(Error::Stale { .. })));
    volume.reopen(fs);
}

#[test]
fn an_unnamed_file_is_deleted_with_its_handle_unless_linked() {
    let volume = TestVolume::new();
    let fs = volume.open();
    let root = fs.root();
    let gone = fs.open_unnamed(root, &new(0o600)).unwrap();
    let kept = fs.open_unnamed(root, &new(0o600)).unwrap();
    let (gone_id, kept_id) = (gone.id(), kept.id());
    fs.link(kept_id, root, b"kept").unwrap();
    drop((gone, kept));
    let fs = volume.reopen(fs);
    assert_eq!(names(&fs, root), ["kept"]);
    assert!(matches!(fs.stat(gone_id), Err(Error::Stale { .. })));
    assert_eq!(fs.stat(kept_id).unwrap().nlink, 1);
}

#[test]
fn a_removed_directory_that_is_pinned_gets_unnamed_files_but_no_names() {
    let volume = TestVolume::new();
    let fs = volume.open();
    let dir = fs.mkdir(fs.root(), b"dir", &new(0o755)).unwrap();
    let pin = fs.pin(dir).unwrap();
    fs.rmdir(fs.root(), b"dir").unwrap();
    assert_eq!(fs.create(dir, b"file", &new(0o644)).unwrap_err().errno(), 2);
    let file = fs.open_unnamed(dir, &new(0o600)).unwrap();
    file.write_at(0, &[7; 5000]).unwrap();
    fs.sync().unwrap();
    drop(pin);
    assert_eq!((file.metadata().unwrap().nlink, file.len()), (0, 5000));
    fs.link(file.id(), fs.root(), b"kept").unwrap();
    assert!(matches!(fs.open_unnamed(dir, &new(0o600)), Err(Error::Stale { .. })));
    drop(file);
    let fs = volume.reopen(fs);
    assert_eq!(names(&fs, fs.root()), ["kept"]);
}

#[test]
fn orphans_of_a_crash_are_deleted_at_the_next_open() {
    let volume = TestVolume::new();
    let fs = volume.open();
    let id = fs.create(fs.root(), b"a", &new(0o644)).unwrap();
    let file = fs.open_file(id).unwrap();
    file.write_at(0, &[7; 10_000]).unwrap();
    fs.unlink(fs.root(), b"a").unwrap();
    fs.sync().unwrap();
    // Power failure: nothing that happens from here on reaches the device.
    let cut = volume.copy();
    drop(file);
    volume.reopen(fs);
    cut.check();
    let fs = cut.open();
    assert!(matches!(fs.stat(id), Err(Error::Stale { .. })));
    cut.reopen(fs);
}

#[test]
fn a_rename_replaces_an_existing_entry() {
    let volume = TestVolume::new();
    let fs = volume.open();
    let root = fs.root();
    let (a, b) =
        (fs.mkdir(root, b"a", &new(0o755)).unwrap(), fs.mkdir(root, b"b", &new(0o755)).unwrap());
    let file = fs.create(a, b"file", &new(0o644)).unwrap();
    let old = fs.create(b, b"there", &new(0o644)).unwrap();
    fs.rename((a, b"file"), (b, b"there"), RenameFlags::default()).unwrap();
    assert!(matches!(fs.stat(old), Err(Error::Stale { .. })));
    assert_eq!(fs.lookup(b, b"there").unwrap(), file);
    fs.rename((b, b"there"), (b, b"here"), RenameFlags::default()).unwrap();
    let fs = volume.reopen(fs);
    assert_eq!((names(&fs, a), names(&fs, b)), (vec![], vec!["here".to_owned()]));
    assert_eq!((fs.stat(a).unwrap().size, fs.stat(b).unwrap().size), (0, 8));
    assert_eq!(fs.paths_of(file).unwrap(), [b"b/here"]);
}

#[test]
fn invalid_renames_are_refused() {
    let volume = TestVolume::new();
    let fs = volume.open();
    let root = fs.root();
    let dir = fs.mkdir(root, b"dir", &new(0o755)).unwrap();
    let sub = fs.mkdir(dir, b"sub", &new(0o755)).unwrap();
    fs.create(root, b"file", &new(0o644)).unwrap();
    fs.create(sub, b"file", &new(0o644)).unwrap();
    let plain = RenameFlags::default();
    let errno = |from: (butternut::FileId, &[u8]), to: (butternut::FileId, &[u8]), flags| {
        fs.rename(from, to, flags).unwrap_err().errno()
    };
    assert_eq!(errno((root, b"none"), (root, b"x"), plain), 2);
    assert_eq!(errno((root, b"dir"), (sub, b"x"), plain), 22, "below itself");
    assert_eq!(errno((root, b"dir"), (dir, b"x"), plain), 22, "into itself");
    assert_eq!(errno((sub, b"file"), (root, b"dir"), plain), 39, "over an ancestor");
    assert_eq!(errno((root, b"dir"), (root, b"file"), plain), 20);
    assert_eq!(errno((root, b"file"), (root, b"dir"), plain), 21);
    fs.mkdir(root, b"other", &new(0o755)).unwrap();
    assert_eq!(errno((root, b"other"), (root, b"dir"), plain), 39);
    let no_replace = RenameFlags { no_replace: true, ..plain };
    assert_eq!(errno((root, b"other"), (root, b"dir"), no_replace), 17);
    let exchange = RenameFlags { exchange: true, ..plain };
    assert_eq!(errno((root, b"other"), (root, b"none"), exchange), 2);
    assert_eq!(errno((root, b"dir"), (sub, b"file"), exchange), 22);
    let both = RenameFlags { exchange: true, ..no_replace };
    assert_eq!(errno((root, b"other"), (root, b"dir"), both), 22);
    volume.reopen(fs);
}

#[test]
fn an_exchange_swaps_two_names() {
    let volume = TestVolume::new();
    let fs = volume.open();
    let root = fs.root();
    let dir = fs.mkdir(root, b"dir", &new(0o755)).unwrap();
    let inner = fs.create(dir, b"inner", &new(0o644)).unwrap();
    let outer = fs.mkdir(root, b"outer", &new(0o755)).unwrap();
    let exchange = RenameFlags { exchange: true, ..RenameFlags::default() };
    fs.rename((dir, b"inner"), (root, b"outer"), exchange).unwrap();
    let fs = volume.reopen(fs);
    assert_eq!(fs.lookup(dir, b"inner").unwrap(), outer);
    assert_eq!(fs.lookup(root, b"outer").unwrap(), inner);
    assert_eq!(fs.parent(outer).unwrap(), dir);
}

#[test]
fn a_rename_leaves_a_whiteout() {
    let volume = TestVolume::new();
    let fs = volume.open();
    let root = fs.root();
    let file = fs.create(root, b"file", &new(0o644)).unwrap();
    let whiteout = RenameFlags { whiteout: Some((1, 2)), ..RenameFlags::default() };
    fs.rename((root, b"file"), (root, b"moved"), whiteout).unwrap();
    let fs = volume.reopen(fs);
    assert_eq!(fs.lookup(root, b"moved").unwrap(), file);
    let stat = fs.stat(fs.lookup(root, b"file").unwrap()).unwrap();
    assert_eq!((stat.mode, stat.rdev, stat.uid, stat.gid), (0o020_000, (0, 0), 1, 2));
    assert_eq!(fs.stat(root).unwrap().size, 2 * (4 + 5));
}

#[test]
fn two_names_of_one_inode_do_not_replace_each_other() {
    let volume = TestVolume::new();
    let fs = volume.open();
    let root = fs.root();
    let id = fs.create(root, b"a", &new(0o644)).unwrap();
    fs.link(id, root, b"b").unwrap();
    fs.rename((root, b"a"), (root, b"b"), RenameFlags::default()).unwrap();
    assert_eq!(names(&fs, root), ["a", "b"]);
    volume.reopen(fs);
}

#[test]
fn immutable_and_append_only_apply_to_all_callers() {
    use butternut::AttributeFlags;
    let volume = TestVolume::new();
    let fs = volume.open();
    let root = fs.root();
    let id = fs.create(root, b"a", &new(0o644)).unwrap();
    let file = fs.open_file(id).unwrap();
    fs.set_attribute_flags(id, AttributeFlags::IMMUTABLE).unwrap();
    assert_eq!(fs.attribute_flags(id).unwrap(), AttributeFlags::IMMUTABLE);
    assert_eq!(fs.unlink(root, b"a").unwrap_err().errno(), 1);
    assert_eq!(fs.link(id, root, b"b").unwrap_err().errno(), 1);
    assert_eq!(file.write_at(0, b"x").unwrap_err().errno(), 1);
    let chmod = SetAttributes { mode: Some(0o600), ..SetAttributes::default() };
    assert_eq!(fs.set_attributes(id, &chmod).unwrap_err().errno(), 1);
    assert_eq!(fs.set_xattr(id, b"user.a", b"1", SetXattr::Either).unwrap_err().errno(), 1);
    fs.set_attribute_flags(id, AttributeFlags::APPEND).unwrap();
    file.append(b"one", butternut::Privileges::Keep).unwrap();
    assert_eq!(file.write_at(0, b"x").unwrap_err().errno(), 1);
    assert_eq!(file.truncate(0).unwrap_err().errno(), 1);
    file.write_at(3, b"two").unwrap();
    fs.set_attribute_flags(id, AttributeFlags::default()).unwrap();
    drop(file);
    fs.unlink(root, b"a").unwrap();
    volume.reopen(fs);
}

#[test]
fn a_listing_with_an_end_terminates_during_renames() {
    let volume = TestVolume::new();
    let fs = volume.open();
    let dir = fs.mkdir(fs.root(), b"dir", &new(0o755)).unwrap();
    assert_eq!(fs.end_of_listing(dir).unwrap(), butternut::FIRST_ENTRY);
    for number in 0..100 {
        fs.create(dir, format!("file-{number}").as_bytes(), &new(0o644)).unwrap();
    }
    let end = fs.end_of_listing(dir).unwrap();
    let (mut cookie, mut seen) = (0, 0);
    while let Some(entry) = fs.read_dir(dir, cookie).unwrap().until(end).next() {
        let entry = entry.unwrap();
        cookie = entry.cookie;
        seen += 1;
        assert!(seen <= 102, "the listing does not end");
        if entry.kind == FileKind::File {
            for (from, to) in [(&*entry.name, &b"aside"[..]), (b"aside", &entry.name)] {
                fs.rename((dir, from), (dir, to), RenameFlags::default()).unwrap();
            }
        }
    }
    assert_eq!(seen, 102);
    volume.reopen(fs);
}

#[test]
fn many_entries_are_created_and_removed() {
    let volume = TestVolume::new();
    let fs = volume.open();
    let dir = fs.mkdir(fs.root(), b"dir", &new(0o755)).unwrap();
    for number in 0..5000 {
        fs.create(dir, format!("file {number}").as_bytes(), &new(0o644)).unwrap();
    }
    let fs = volume.reopen(fs);
    assert_eq!(names(&fs, dir).len(), 5000);
    drop(fs);
    let fs = volume.open();
    for number in 0..5000 {
        fs.unlink(dir, format!("file {number}").as_bytes()).unwrap();
    }
    fs.rmdir(fs.root(), b"dir").unwrap();
    let fs = volume.reopen(fs);
    assert_eq!(names(&fs, fs.root()), Vec::<String>::new());
}

#[test]
fn concurrent_changes_of_the_same_names_are_consistent() {
    let volume = TestVolume::new();
    let fs = volume.open();
    let dirs = [fs.root(), fs.mkdir(fs.root(), b"dir", &new(0o755)).unwrap()];
    std::thread::scope(|scope| {
        for thread in 0..4_usize {
            let fs = &fs;
            scope.spawn(move || {
                for round in 0..2000_usize {
                    let (from, to) = (dirs[(round + thread) % 2], dirs[round / 2 % 2]);
                    let (name, other) = ([b"abc"[round % 3]], [b"abcde"[round % 5]]);
                    let flags = RenameFlags { exchange: round % 7 == 0, ..RenameFlags::default() };
                    let results = [
                        fs.create(from, &name, &new(0o644)).map(drop),
                        fs.rename((from, &name), (to, &other), flags),
                        fs.mkdir(to, &name, &new(0o755)).map(drop),
                        fs.unlink(to, &other),
                        fs.rmdir(to, &name),
                    ];
                    for error in results.into_iter().filter_map(Result::err) {
                        assert!([2, 17, 20, 21, 39].contains(&error.errno()), "{error:?}");
                    }
                }
            });
        }
    });
    volume.reopen(fs);
}

/// A program that replaces a file, or a symbolic link, by a rename hides it from no reader.
#[test]
fn a_path_whose_last_name_is_replaced_meanwhile_can_always_be_opened() {
    let volume = TestVolume::new();
    let fs = volume.open();
    let root = fs.root();
    fs.create(root, b"target", &new(0o644)).unwrap();
    let make = |name: &[u8]| {
        fs.create(root, &[name, b".file"].concat(), &new(0o644)).unwrap();
        fs.symlink(root, &[name, b".link"].concat(), b"target", &new(0)).unwrap();
    };
    make(b"a");
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let reader = scope.spawn(|| {
            while !is_over.load(Ordering::Acquire) {
                fs.open_path(b"a.file").unwrap();
                fs.open_path(b"a.link").unwrap();
                fs.resolve(b"a.link", Follow::Last).unwrap();
            }
        });
        for _ in 0..3000 {
            make(b"b");
            for (from, to) in [(&b"b.file"[..], &b"a.file"[..]), (b"b.link", b"a.link")] {
                fs.rename((root, from), (root, to), RenameFlags::default()).unwrap();
            }
        }
        is_over.store(true, Ordering::Release);
        reader.join().unwrap();
    });
}
