//! Changes of names on damaged volumes: names without a reference, names that the listing of their
//! directory has lost, and blocks that cannot be read.
//!
//! 1. After an error, nothing has changed, or the volume is read-only and nothing is committed.
//! 2. A change of a damaged name damages no other name and no other inode.

use crate::leaf::{edit_items, keys, owner, rewrite};
use crate::volume::{TestVolume, names, new};
use butternut::device::{Fault, Rule, When};
use butternut::format::key::{ItemType, Key};
use butternut::format::orphan::orphan_key;
use butternut::{Error, FileId, FileKind, Filesystem, MountOptions, RenameFlags, Result, SetXattr};
use butternut_check::{CheckOptions, Kind};
use butternut_mkfs::{MkfsOptions, Profile};

const INODE_ITEM: u8 = 1;
const INODE_REF: u8 = 12;
const DIR_ITEM: u8 = 84;
const DIR_INDEX: u8 = 96;
const NODE_BYTES: usize = 16384;

/// The size of the volumes of most tests, in bytes.
const VOLUME_BYTES: u64 = 128 << 20;

/// Removes the items of one kind of an inode.
fn without(volume: &TestVolume, lost: (u64, u8)) -> TestVolume {
    volume.with_leaves(|block| edit_items(block, |found, _| found != lost))
}

/// Makes the only name of `was` lead to `real`, and removes the items of `was`.
fn stale(volume: &TestVolume, was: FileId, real: FileId) -> TestVolume {
    let is_removed = |item_type| matches!(item_type, INODE_ITEM | INODE_REF);
    volume.with_leaves(|block| {
        edit_items(block, |(object, item_type), data| {
            let is_entry = matches!(item_type, DIR_ITEM | DIR_INDEX);
            if is_entry && data[..8] == was.ino.to_le_bytes() {
                data[..8].copy_from_slice(&real.ino.to_le_bytes());
            }
            object != was.ino || !is_removed(item_type)
        })
    })
}

fn findings(volume: &TestVolume) -> Vec<String> {
    let report = butternut_check::check(volume.devices(), &CheckOptions::default()).unwrap();
    let findings = report.findings.iter().filter(|found| found.kind != Kind::DeviceErrors);
    findings.map(ToString::to_string).collect()
}

const fn exchange() -> RenameFlags {
    RenameFlags { no_replace: false, exchange: true, whiteout: None }
}

fn filler(number: u32) -> Vec<u8> {
    format!("{number:0>100}").into_bytes()
}

/// The references of the subvolume have a wrong index, and it has an orphan item already.
#[test]
fn a_subvolume_with_wrong_references_is_deleted() {
    const ROOT_TREE: u64 = 1;
    let volume = TestVolume::of(VOLUME_BYTES, &MkfsOptions::default());
    let fs = volume.open();
    let sub = fs.create_subvolume(fs.root(), b"sub", &new(0o755)).unwrap();
    fs.create(fs.root(), b"file", &new(0o644)).unwrap();
    fs.close().unwrap();
    let damaged = volume.with_leaves(|block| {
        owner(block) == ROOT_TREE
            && rewrite(block, |items| {
                let is_reference =
                    |key: Key| matches!(key.item_type, ItemType::ROOT_REF | ItemType::ROOT_BACKREF);
                for (_, data) in items.iter_mut().filter(|(key, _)| is_reference(*key)) {
                    // The index follows the number of the directory.
                    data[8..16].copy_from_slice(&77_u64.to_le_bytes());
                }
                items.push((orphan_key(sub), Vec::new()));
            })
    });
    let fs = damaged.open();
    fs.delete_subvolume(fs.root(), b"sub").unwrap();
    assert!(fs.is_writable());
    assert_eq!(fs.clean_subvolumes().unwrap(), [0; 0]);
    let fs = damaged.reopen(fs);
    assert_eq!(names(&fs, fs.root()), ["file"]);
    assert_eq!(fs.subvolumes().unwrap(), []);
}

#[test]
fn a_rename_that_cannot_read_the_listing_changes_nothing_or_ends_writing() {
    fails_midway(|fs, full| fs.rename((full, b"entry"), (full, b"other"), RenameFlags::default()));
}

#[test]
fn so_does_one_that_replaces_the_damaged_entry() {
    fails_midway(|fs, full| {
        fs.rename((fs.root(), b"outside"), (full, b"entry"), RenameFlags::default())
    });
}

#[test]
fn so_does_an_exchange_with_the_damaged_entry() {
    fails_midway(|fs, full| fs.rename((fs.root(), b"outside"), (full, b"entry"), exchange()));
}

fn fails_midway(call: impl Fn(&Filesystem, FileId) -> Result<()>) {
    let volume = TestVolume::of(256 << 20, &MkfsOptions::default());
    let fs = volume.open();
    let full = fs.mkdir(fs.root(), b"full", &new(0o755)).unwrap();
    for number in 0..3000 {
        fs.create(full, &filler(number), &new(0o644)).unwrap();
    }
    let entry = fs.create(full, b"entry", &new(0o644)).unwrap();
    fs.create(fs.root(), b"outside", &new(0o644)).unwrap();
    fs.close().unwrap();
    let volume = without(&volume, (entry.ino, INODE_REF));
    let before = findings(&volume);
    // The leaves that hold only the listing of the directory.
    let image = volume.image();
    let fsid = image[65536 + 0x20..65536 + 0x30].to_vec();
    let leaves: Vec<usize> = (1 << 20..image.len())
        .step_by(NODE_BYTES)
        .filter(|at| {
            let Some(block) = image.get(*at..at + NODE_BYTES) else { return false };
            let is_leaf = block[0x20..0x30] == fsid && block[100] == 0;
            let all = if is_leaf { keys(block) } else { Vec::new() };
            !all.is_empty() && all.iter().all(|key| *key == (full.ino, DIR_INDEX))
        })
        .collect();
    assert!(leaves.len() > 20, "{}", leaves.len());
    let (device, fs) = volume.open_faulty(&MountOptions::default().commit_seconds(0));
    // The last leaf of the listing is in memory, and the damaged entry.
    fs.create(full, b"warm", &new(0o644)).unwrap();
    for at in &leaves[..leaves.len() - 4] {
        let at = *at as u64;
        device.add(Rule::at(at..at + NODE_BYTES as u64, Fault::ReadError));
    }
    call(&fs, full).unwrap_err();
    device.clear();
    let _is_committed = fs.sync();
    assert_eq!(findings(&volume), before, "the volume is no more damaged than it was");
}

/// The inodes and directories of the volume whose reads fail.
#[derive(Clone, Copy)]
struct Ids {
    full: FileId,
    near: FileId,
    named: FileId,
}

/// A volume whose trees do not fit into the node cache, with names of every kind.
fn volume_with_all_kinds() -> (TestVolume, Ids) {
    let options = MkfsOptions { metadata: Some(Profile::Single), ..MkfsOptions::default() };
    let volume = TestVolume::of(VOLUME_BYTES, &options);
    let fs = volume.open();
    let make = |dir, name: &[u8]| fs.create(dir, name, &new(0o644)).unwrap();
    let full = fs.mkdir(fs.root(), b"full", &new(0o755)).unwrap();
    // Each of the others has leaves of its own.
    let mut numbers = 0..;
    let mut add_leaves = || {
        for number in numbers.by_ref().take(100) {
            make(full, &filler(number));
        }
    };
    add_leaves();
    let named = make(full, b"named");
    fs.set_xattr(named, b"user.one", b"1", SetXattr::Either).unwrap();
    add_leaves();
    let real = make(full, b"real");
    add_leaves();
    let lost = make(full, b"lost");
    add_leaves();
    let was = make(full, b"stale");
    add_leaves();
    fs.mkdir(full, b"empty", &new(0o755)).unwrap();
    add_leaves();
    let near = fs.mkdir(fs.root(), b"near", &new(0o755)).unwrap();
    add_leaves();
    make(near, b"outside");
    add_leaves();
    fs.close().unwrap();
    let volume = without(&stale(&volume, was, real), (lost.ino, INODE_REF));
    (volume, Ids { full, near, named })
}

/// An operation on names.
type Step = fn(&Filesystem, Ids) -> Result<()>;

const STEPS: [(&str, Step); 24] = [
    ("create", |fs, ids| fs.create(ids.full, b"new", &new(0o644)).map(drop)),
    ("mkdir", |fs, ids| fs.mkdir(ids.full, b"new", &new(0o755)).map(drop)),
    ("symlink", |fs, ids| fs.symlink(ids.full, b"new", b"text", &new(0o777)).map(drop)),
    ("mknod", |fs, ids| {
        fs.mknod(ids.full, b"new", &new(0o644), FileKind::CharDevice, (1, 3)).map(drop)
    }),
    ("link", |fs, ids| fs.link(ids.named, ids.near, b"new")),
    ("link in the same directory", |fs, ids| fs.link(ids.named, ids.full, b"new")),
    ("open unnamed", |fs, ids| fs.open_unnamed(ids.full, &new(0o644)).map(drop)),
    ("unlink", |fs, ids| fs.unlink(ids.full, b"named")),
    ("unlink lost", |fs, ids| fs.unlink(ids.full, b"lost")),
    ("unlink stale", |fs, ids| fs.unlink(ids.full, b"stale")),
    ("rmdir", |fs, ids| fs.rmdir(ids.full, b"empty")),
    ("rename", |fs, ids| fs.rename((ids.full, b"named"), (ids.full, b"new"), none())),
    ("rename lost", |fs, ids| fs.rename((ids.full, b"lost"), (ids.full, b"new"), none())),
    ("move", |fs, ids| fs.rename((ids.full, b"named"), (ids.near, b"new"), none())),
    ("move lost", |fs, ids| fs.rename((ids.full, b"lost"), (ids.near, b"new"), none())),
    ("move directory", |fs, ids| fs.rename((ids.full, b"empty"), (ids.near, b"new"), none())),
    ("whiteout", |fs, ids| {
        let flags = RenameFlags { whiteout: Some((0, 0)), ..none() };
        fs.rename((ids.full, b"named"), (ids.near, b"new"), flags)
    }),
    ("replace", |fs, ids| fs.rename((ids.near, b"outside"), (ids.full, b"named"), none())),
    ("replace lost", |fs, ids| fs.rename((ids.near, b"outside"), (ids.full, b"lost"), none())),
    ("replace stale", |fs, ids| fs.rename((ids.near, b"outside"), (ids.full, b"stale"), none())),
    ("exchange", |fs, ids| fs.rename((ids.near, b"outside"), (ids.full, b"named"), exchange())),
    ("exchange lost", |fs, ids| fs.rename((ids.near, b"outside"), (ids.full, b"lost"), exchange())),
    ("set xattr", |fs, ids| fs.set_xattr(ids.named, b"user.two", b"2", SetXattr::Either)),
    ("remove xattr", |fs, ids| fs.remove_xattr(ids.named, b"user.one")),
];

fn none() -> RenameFlags {
    RenameFlags::default()
}

#[test]
fn an_error_of_any_read_of_any_operation_leaves_no_part_of_it() {
    let (volume, ids) = volume_with_all_kinds();
    for (name, step) in STEPS {
        let errors = fail_each_read(&volume.copy(), ids, name, step);
        assert!(errors > 0, "{name} meets no error");
    }
}

/// Fails the reads of an operation, one in each run, until it succeeds. Returns the number of reads
/// with which it failed.
fn fail_each_read(volume: &TestVolume, ids: Ids, name: &str, step: Step) -> u64 {
    let options = MountOptions::default().commit_seconds(0).node_cache_bytes(32 << 10);
    let (before, mut errors) = (findings(volume), 0);
    let listed = |fs: &Filesystem| [fs.root(), ids.full, ids.near].map(|dir| names(fs, dir));
    let all = listed(&volume.open());
    for nth in 0.. {
        let (device, fs) = volume.open_faulty(&options);
        device.add(Rule { range: 0..u64::MAX, when: When::Nth(nth), fault: Fault::ReadError });
        let result = step(&fs, ids);
        device.clear();
        if result.is_ok() {
            assert_eq!(device.fault_counts().read_errors, 0, "{name}, read {nth}");
            break;
        }
        errors += 1;
        if fs.is_writable() {
            assert_eq!(listed(&fs), all, "{name}, read {nth}");
            fs.sync().unwrap();
        }
        drop(fs);
        assert_eq!(findings(volume), before, "{name}, read {nth}");
        assert_eq!(listed(&volume.open()), all, "{name}, read {nth}");
    }
    errors
}

#[test]
fn unlinking_an_entry_that_the_listing_has_lost_leaves_the_others_listed() {
    for replaces in [false, true] {
        let volume = TestVolume::of(VOLUME_BYTES, &MkfsOptions::default());
        let fs = volume.open();
        let full = fs.mkdir(fs.root(), b"full", &new(0o755)).unwrap();
        fs.create(full, b"entry", &new(0o644)).unwrap();
        fs.create(fs.root(), b"outside", &new(0o644)).unwrap();
        fs.close().unwrap();
        let volume = without(&volume, (full.ino, DIR_INDEX));
        let fs = volume.open();
        // It gets the index of the lost item.
        fs.create(full, b"fresh", &new(0o644)).unwrap();
        assert_eq!(names(&fs, full), ["fresh"]);
        if replaces {
            fs.rename((fs.root(), b"outside"), (full, b"entry"), none()).unwrap();
            assert_eq!(names(&fs, full), ["entry", "fresh"]);
        } else {
            fs.unlink(full, b"entry").unwrap();
            assert_eq!(names(&fs, full), ["fresh"]);
        }
        fs.close().unwrap();
        volume.check();
    }
}

/// Calls `call` on a volume where `b/stale` has no reference and leads to the inode of `a/real`,
/// and checks that this inode keeps its name and its data.
fn keeps_the_real_inode(
    kind: FileKind,
    call: impl Fn(&Filesystem, FileId) -> Result<()>,
) -> (TestVolume, Result<()>) {
    let volume = TestVolume::of(VOLUME_BYTES, &MkfsOptions::default());
    let fs = volume.open();
    let [a, b] = [b"a", b"b"].map(|name| fs.mkdir(fs.root(), name, &new(0o755)).unwrap());
    let make = |dir, name: &[u8]| {
        if kind == FileKind::Directory {
            fs.mkdir(dir, name, &new(0o755)).unwrap()
        } else {
            fs.create(dir, name, &new(0o644)).unwrap()
        }
    };
    let (real, was) = (make(a, b"real"), make(b, b"stale"));
    make(b, b"other");
    if kind == FileKind::Directory {
        fs.create(real, b"inside", &new(0o644)).unwrap();
    } else {
        fs.open_file(real).unwrap().write_at(0, b"data").unwrap();
    }
    fs.close().unwrap();
    let volume = stale(&volume, was, real);
    let fs = volume.open();
    let result = call(&fs, b);
    assert!(fs.is_writable());
    let look = |fs: &Filesystem| {
        assert_eq!(fs.lookup(a, b"real").unwrap(), real);
        assert_eq!(fs.stat(real).unwrap().nlink, 1);
        if kind == FileKind::Directory {
            assert_eq!(names(fs, real), ["inside"]);
        } else {
            let mut data = [0; 4];
            fs.open_file(real).unwrap().read_at(0, &mut data).unwrap();
            assert_eq!(&data, b"data");
        }
    };
    look(&fs);
    fs.close().unwrap();
    look(&volume.open());
    (volume, result)
}

#[test]
fn a_stale_name_is_removed_and_replaced_without_its_inode() {
    for kind in [FileKind::File, FileKind::Directory] {
        let (volume, result) = keeps_the_real_inode(kind, |fs, b| {
            if kind == FileKind::Directory {
                fs.rmdir(b, b"stale")?;
            } else {
                fs.unlink(b, b"stale")?;
            }
            assert_eq!(names(fs, b), ["other"]);
            Ok(())
        });
        result.unwrap();
        volume.check();
        let (volume, result) = keeps_the_real_inode(kind, |fs, b| {
            fs.rename((b, b"other"), (b, b"stale"), none())?;
            assert_eq!(names(fs, b), ["stale"]);
            Ok(())
        });
        result.unwrap();
        volume.check();
    }
}

#[test]
fn an_open_inode_keeps_its_data_when_a_stale_name_is_removed() {
    let (volume, result) = keeps_the_real_inode(FileKind::File, |fs, b| {
        let _file = fs.open_file(fs.lookup(b, b"stale")?)?;
        fs.unlink(b, b"stale")
    });
    result.unwrap();
    volume.check();
}

#[test]
fn a_stale_name_is_neither_renamed_nor_moved_nor_exchanged() {
    let calls: [fn(&Filesystem, FileId) -> Result<()>; 4] = [
        |fs, b| fs.rename((b, b"stale"), (b, b"new"), none()),
        |fs, b| fs.rename((b, b"stale"), (fs.root(), b"new"), none()),
        |fs, b| fs.rename((b, b"stale"), (b, b"other"), exchange()),
        |fs, b| fs.rename((b, b"other"), (b, b"stale"), exchange()),
    ];
    for kind in [FileKind::File, FileKind::Directory] {
        for call in calls {
            let (volume, result) = keeps_the_real_inode(kind, |fs, b| {
                let result = call(fs, b);
                assert_eq!(names(fs, b), ["other", "stale"]);
                result
            });
            assert!(matches!(result, Err(Error::NotFound)), "{result:?}");
            // The names that it found can still be removed, and then nothing is damaged.
            let fs = volume.open();
            let b = fs.lookup(fs.root(), b"b").unwrap();
            if kind == FileKind::Directory {
                fs.rmdir(b, b"stale").unwrap();
            } else {
                fs.unlink(b, b"stale").unwrap();
            }
            fs.close().unwrap();
            volume.check();
        }
    }
}
