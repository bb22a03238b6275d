//! New inodes, their link counts and times, and orphan items.

use super::*;
use crate::memory::Memory;
use crate::orphan::{add_orphan, orphans, remove_orphan};
use crate::set_xattr::{SetXattr, Xattr, set_xattr};
use butternut_format::inode::RawInodeItem;
use zerocopy::{FromZeros, IntoBytes};

const THEN: Moment = Moment { generation: Generation(7), now: Time { secs: 70, nanos: 7 } };
const NOW: Moment = Moment { generation: Generation(9), now: Time { secs: 90, nanos: 9 } };

fn directory(permissions: u32, flags: InodeFlags) -> Inode {
    let mut raw = RawInodeItem::new_zeroed();
    raw.mode.set(0o40_000 | permissions);
    raw.gid.set(33);
    Inode { flags, ..Inode::check(raw.as_bytes()).unwrap() }
}

fn made(kind: FileKind, parent: &Inode) -> Inode {
    let rdev = DeviceNumber::default();
    NewInode { kind, permissions: 0o644, uid: 5, gid: 6, rdev }.inode(parent, THEN)
}

/// An orphan item may have been left by a driver that ended midway.
#[test]
fn an_inode_may_have_an_orphan_item_already() {
    let memory = Memory::new(true);
    for _ in 0..2 {
        add_orphan(&memory, Ino(700)).unwrap();
        assert_eq!(orphans(&memory, Ino(0), 9).unwrap(), [Ino(700)]);
    }
}

#[test]
fn a_new_inode_is_stamped_with_its_moment() {
    let inode = made(FileKind::File, &directory(0o755, InodeFlags::default()));
    assert_eq!((inode.mode, inode.uid, inode.gid, inode.nlink), (0o100_644, 5, 6, 1));
    assert_eq!((inode.generation, inode.transid), (Generation(7), Generation(7)));
    assert_eq!([inode.atime, inode.ctime, inode.mtime, inode.otime], [THEN.now; 4]);
    assert_eq!(Inode::check(&inode.to_bytes()).unwrap(), inode);
}

#[test]
fn a_set_group_id_directory_hands_its_group_down() {
    let parent = directory(0o2755, InodeFlags::default());
    let file = made(FileKind::File, &parent);
    assert_eq!((file.mode, file.gid), (0o100_644, 33));
    let dir = made(FileKind::Directory, &parent);
    assert_eq!((dir.mode, dir.gid), (0o42_644, 33));
}

#[test]
fn flags_are_inherited_as_the_kernel_does() {
    let all = InodeFlags::NODATACOW
        .with(InodeFlags::SYNC)
        .with(InodeFlags::IMMUTABLE)
        .with(InodeFlags::COMPRESS);
    let parent = directory(0o755, all);
    let both = InodeFlags::NODATACOW.with(InodeFlags::COMPRESS);
    assert_eq!(made(FileKind::Directory, &parent).flags, both);
    assert_eq!(made(FileKind::Symlink, &parent).flags, both);
    assert_eq!(made(FileKind::File, &parent).flags, both.with(InodeFlags::NODATASUM));
    let never = directory(0o755, InodeFlags::NOCOMPRESS);
    assert_eq!(made(FileKind::File, &never).flags, InodeFlags::NOCOMPRESS);
}

#[test]
fn entries_and_links_are_counted() {
    let mut dir = made(FileKind::Directory, &directory(0o755, InodeFlags::default()));
    entry_added(&mut dir, b"name", NOW);
    assert_eq!((dir.size, dir.sequence, dir.transid), (8, 1, Generation(9)));
    assert_eq!((dir.mtime, dir.ctime, dir.atime), (NOW.now, NOW.now, THEN.now));
    entry_removed(&mut dir, b"name", NOW);
    assert_eq!((dir.size, dir.sequence, dir.nlink), (0, 2, 1));
    let mut file = made(FileKind::File, &dir);
    link_added(&mut file, NOW).unwrap();
    assert_eq!((file.nlink, file.ctime, file.mtime), (2, NOW.now, THEN.now));
    link_removed(&mut file, NOW);
    link_removed(&mut file, NOW);
    assert_eq!((file.nlink, file.sequence), (0, 3));
    let mut full = Inode { nlink: LINKS_MAX, ..file };
    assert!(matches!(link_added(&mut full, NOW), Err(NamesError::TooManyLinks)));
    assert_eq!(full, Inode { nlink: LINKS_MAX, ..file });
}

#[test]
fn an_inode_goes_with_all_that_is_its_own_and_no_more() {
    let memory = Memory::new(true);
    let file = made(FileKind::File, &directory(0o755, InodeFlags::default()));
    for ino in [257, 258, 259] {
        insert_inode(&memory, Ino(ino), &file).unwrap();
        let xattr = Xattr { name: b"user.a", value: b"1" };
        set_xattr(&memory, Ino(ino), &xattr, SetXattr::Either, Generation(9)).unwrap();
    }
    assert!(insert_inode(&memory, Ino(258), &file).is_err());
    let changed = Inode { size: 77, ..file };
    put_inode(&memory, Ino(258), &changed).unwrap();
    assert_eq!(inode(&memory, Ino(258)).unwrap(), Some(changed));
    let mut seen = Vec::new();
    let removed = remove_inode(&memory, Ino(258), FileKind::File, &mut |key, item| {
        seen.push((key.item_type, item.len()));
    });
    assert_eq!(removed.unwrap(), 2);
    assert_eq!(seen[0], (ItemType::INODE_ITEM, changed.to_bytes().len()));
    assert_eq!(seen[1].0, ItemType::XATTR_ITEM);
    assert_eq!(inode(&memory, Ino(258)).unwrap(), None);
    assert_eq!(inode(&memory, Ino(257)).unwrap(), Some(file));
    assert_eq!(memory.items().len(), 4);
    put_inode(&memory, Ino(258), &changed).unwrap();
    assert_eq!(inode(&memory, Ino(258)).unwrap(), Some(changed));
}

#[test]
fn orphans_are_listed_in_order_and_in_parts() {
    let memory = Memory::new(true);
    assert_eq!(orphans(&memory, Ino(0), 9).unwrap(), []);
    for ino in [300, 257, 700, 300] {
        add_orphan(&memory, Ino(ino)).unwrap();
    }
    assert_eq!(orphans(&memory, Ino(0), 2).unwrap(), [Ino(257), Ino(300)]);
    assert_eq!(orphans(&memory, Ino(301), 9).unwrap(), [Ino(700)]);
    assert!(remove_orphan(&memory, Ino(300)).unwrap());
    assert!(!remove_orphan(&memory, Ino(300)).unwrap());
    assert_eq!(orphans(&memory, Ino(0), 9).unwrap(), [Ino(257), Ino(700)]);
    memory.audit();
}
