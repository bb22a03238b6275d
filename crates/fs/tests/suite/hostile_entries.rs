//! Directories with entries that contradict each other, with valid checksums: a call on such an
//! entry succeeds or is refused, and the volume can be changed afterwards.

use crate::leaf::edit_items;
use crate::volume::{TestVolume, names, new};
use butternut::{Error, FileId, FileKind, Filesystem, RenameFlags, Result};

const INODE_ITEM: u8 = 1;
const INODE_REF: u8 = 12;
const DIR_INDEX: u8 = 96;
/// Offset of the size in an inode item.
const SIZE_AT: usize = 16;

/// Removes items from a leaf, and sets the size of `dir` to 0 if items of it are removed.
fn remove_items(block: &mut [u8], dir: u64, is_removed: impl Fn(u64, u8) -> bool) -> bool {
    edit_items(block, |(objectid, kind), data| {
        if objectid == dir && kind == INODE_ITEM && is_removed(dir, DIR_INDEX) {
            data[SIZE_AT..SIZE_AT + 8].fill(0);
        }
        !is_removed(objectid, kind)
    })
}

/// The part of the entry `full/entry` that a damaged volume has lost.
#[derive(Clone, Copy, Debug)]
enum Lost {
    /// Its index item: only the hash of its name finds it.
    Index,
    /// The reference from its inode.
    Reference,
    Both,
}

impl Lost {
    fn has(self, (objectid, kind): (u64, u8), (dir, ino): (u64, u64)) -> bool {
        let is_index = objectid == dir && kind == DIR_INDEX;
        let is_reference = objectid == ino && kind == INODE_REF;
        match self {
            Self::Index => is_index,
            Self::Reference => is_reference,
            Self::Both => is_index || is_reference,
        }
    }
}

/// Calls `call` on a volume that has a directory `full` with a damaged entry, and checks that the
/// volume can be changed afterwards.
fn does_no_harm(
    lost: Lost,
    kind: FileKind,
    call: impl FnOnce(&Filesystem, FileId) -> Result<()>,
) -> Result<()> {
    let volume = TestVolume::of(112 << 20, &butternut_mkfs::MkfsOptions::default());
    let fs = volume.open();
    let full = fs.mkdir(fs.root(), b"full", &new(0o755)).unwrap();
    let make = |dir, name: &[u8]| {
        if kind == FileKind::Directory {
            fs.mkdir(dir, name, &new(0o755)).unwrap()
        } else {
            fs.create(dir, name, &new(0o644)).unwrap()
        }
    };
    let entry = make(full, b"entry");
    make(fs.root(), b"outside");
    fs.close().unwrap();
    let ids = (full.ino, entry.ino);
    let is_removed = |objectid, kind| lost.has((objectid, kind), ids);
    let fs = volume.with_leaves(|block| remove_items(block, full.ino, is_removed)).open();
    let result = call(&fs, full);
    fs.mkdir(fs.root(), b"another", &new(0o755)).unwrap();
    fs.sync().unwrap();
    result
}

fn is_refused_and_does_no_harm(call: impl FnOnce(&Filesystem) -> Result<()>) {
    let refused = does_no_harm(Lost::Index, FileKind::File, |fs, _| call(fs)).unwrap_err();
    assert!(matches!(refused, Error::NotEmpty), "{refused}");
}

#[test]
fn a_directory_with_an_entry_without_index_is_not_removed() {
    is_refused_and_does_no_harm(|fs| fs.rmdir(fs.root(), b"full"));
}

#[test]
fn a_directory_with_an_entry_without_index_is_not_replaced() {
    is_refused_and_does_no_harm(|fs| {
        fs.mkdir(fs.root(), b"other", &new(0o755)).unwrap();
        fs.rename((fs.root(), b"other"), (fs.root(), b"full"), RenameFlags::default())
    });
}

/// Every part of an entry that can be lost.
const LOSSES: [Lost; 3] = [Lost::Index, Lost::Reference, Lost::Both];

#[test]
fn a_damaged_entry_can_be_unlinked() {
    for lost in LOSSES {
        does_no_harm(lost, FileKind::File, |fs, full| {
            fs.unlink(full, b"entry")?;
            assert!(matches!(fs.lookup(full, b"entry"), Err(Error::NotFound)));
            fs.rmdir(fs.root(), b"full")
        })
        .unwrap();
        does_no_harm(lost, FileKind::Directory, |fs, full| fs.rmdir(full, b"entry")).unwrap();
    }
}

#[test]
fn an_open_file_with_a_damaged_entry_can_be_unlinked() {
    for lost in LOSSES {
        does_no_harm(lost, FileKind::File, |fs, full| {
            let _file = fs.open_file(fs.lookup(full, b"entry")?)?;
            fs.unlink(full, b"entry")
        })
        .unwrap();
    }
}

#[test]
fn a_damaged_entry_can_be_renamed_replaced_and_exchanged() {
    let none = RenameFlags::default;
    let exchange = || RenameFlags { exchange: true, ..none() };
    for lost in LOSSES {
        for kind in [FileKind::File, FileKind::Directory] {
            let call = |call: fn(&Filesystem, FileId, RenameFlags) -> Result<()>, flags| {
                does_no_harm(lost, kind, |fs, full| call(fs, full, flags)).unwrap();
            };
            call(|fs, full, none| fs.rename((full, b"entry"), (full, b"other"), none), none());
            call(|fs, full, none| fs.rename((full, b"entry"), (fs.root(), b"b"), none), none());
            let over = |fs: &Filesystem, full, flags| {
                fs.rename((fs.root(), b"outside"), (full, b"entry"), flags)
            };
            call(over, none());
            call(over, exchange());
        }
    }
}

/// An inode whose reference has another index than the listing of its directory.
#[test]
fn a_name_with_a_wrong_index_leaves_the_listing_when_it_is_removed_moved_or_replaced() {
    type Call = fn(&Filesystem, FileId, RenameFlags) -> Result<()>;
    let none = RenameFlags::default;
    let unlink: Call = |fs, full, _| fs.unlink(full, b"entry");
    let rename: Call = |fs, full, none| fs.rename((full, b"entry"), (full, b"other"), none);
    let away: Call = |fs, full, none| fs.rename((full, b"entry"), (fs.root(), b"other"), none);
    let over: Call = |fs, full, none| fs.rename((fs.root(), b"outside"), (full, b"entry"), none);
    let calls: [(Call, RenameFlags, &[&str]); 5] = [
        (unlink, none(), &[]),
        (rename, none(), &["other"]),
        (away, none(), &[]),
        (over, none(), &["entry"]),
        (over, RenameFlags { exchange: true, ..none() }, &["entry"]),
    ];
    for is_open in [false, true] {
        for (call, flags, left) in calls {
            let volume = TestVolume::of(112 << 20, &butternut_mkfs::MkfsOptions::default());
            let fs = volume.open();
            let full = fs.mkdir(fs.root(), b"full", &new(0o755)).unwrap();
            let entry = fs.create(full, b"entry", &new(0o644)).unwrap();
            fs.create(fs.root(), b"outside", &new(0o644)).unwrap();
            fs.close().unwrap();
            let damaged = volume.with_leaves(|block| {
                edit_items(block, |found, data| {
                    if found == (entry.ino, INODE_REF) {
                        data[..8].copy_from_slice(&99_u64.to_le_bytes());
                    }
                    true
                })
            });
            let fs = damaged.open();
            let file = is_open.then(|| fs.open_file(entry).unwrap());
            call(&fs, full, flags).unwrap();
            drop(file);
            assert_eq!(names(&fs, full), left);
            let fs = damaged.reopen(fs);
            assert_eq!(names(&fs, full), left);
        }
    }
}
