//! Modes, owners, times, attributes, ACLs and flags: changes, and their side effects.

use crate::volume::{TestVolume, new};
use butternut::device::{Fault, Rule};
use butternut::format::chunk::BlockGroupFlags;
use butternut::{
    AttributeFlags, EnospcInjector, FileId, FileKind, Filesystem, MountOptions, Privileges,
    SetAttributes, SetTime, SetXattr, Time,
};

const NONE: SetAttributes = SetAttributes {
    mode: None,
    uid: None,
    gid: None,
    size: None,
    atime: None,
    mtime: None,
    ctime: None,
    is_late: false,
    privileges: Privileges::Keep,
};

fn file(fs: &Filesystem, name: &[u8], permissions: u32) -> FileId {
    fs.create(fs.root(), name, &new(permissions)).unwrap()
}

/// An ACL as the kernel passes it: version 2, then tag, permissions and id of each entry.
fn acl(entries: &[(u16, u16, u32)]) -> Vec<u8> {
    let mut bytes = 2_u32.to_le_bytes().to_vec();
    for (tag, permissions, id) in entries {
        bytes.extend_from_slice(&tag.to_le_bytes());
        bytes.extend_from_slice(&permissions.to_le_bytes());
        bytes.extend_from_slice(&id.to_le_bytes());
    }
    bytes
}

const NO_ID: u32 = u32::MAX;
const ACCESS: &[u8] = b"system.posix_acl_access";
const CAPABILITIES: &[u8] = b"security.capability";
const DEFAULT: &[u8] = b"system.posix_acl_default";

/// As on kernel btrfs, truncate(2) to the current size leaves the times unchanged, unlike
/// ftruncate(2).
#[test]
fn truncating_to_the_current_size_changes_no_times() {
    let volume = TestVolume::new();
    let fs = volume.open();
    let id = file(&fs, b"file", 0o4755);
    let opened = fs.open_file(id).unwrap();
    opened.write_at(0, &[7; 5000]).unwrap();
    let before = fs.stat(id).unwrap();
    assert_eq!(fs.set_attributes(id, &SetAttributes::size(5000)).unwrap(), before);
    let set = SetAttributes { mode: Some(0o700), ..SetAttributes::size(5000) };
    let after = fs.set_attributes(id, &set).unwrap();
    assert!(after.mtime == before.mtime && after.ctime > before.ctime);
    opened.truncate(5000).unwrap();
    let of_open = fs.stat(id).unwrap();
    assert!(of_open.mtime > after.mtime && of_open.ctime > after.ctime);
    let shorter = fs.set_attributes(id, &SetAttributes::size(4999)).unwrap();
    assert!(shorter.mtime > of_open.mtime && shorter.ctime > of_open.ctime);
    drop(opened);
    let fs = volume.reopen(fs);
    assert_eq!(fs.stat(id).unwrap(), shorter);
}

#[test]
fn set_attributes_changes_only_the_given_attributes() {
    let volume = TestVolume::new();
    let fs = volume.open();
    let id = file(&fs, b"file", 0o644);
    let before = fs.stat(id).unwrap();
    let at = |secs, nanos| Some(SetTime::At(Time { secs, nanos }));
    let set =
        SetAttributes { mode: Some(0o4711), uid: Some(7), atime: at(-5, 999_999_999), ..NONE };
    let after = fs.set_attributes(id, &set).unwrap();
    assert_eq!((after.mode, after.uid, after.gid), (0o104_711, 7, 100));
    assert_eq!(after.atime, Time { secs: -5, nanos: 999_999_999 });
    assert_eq!((after.mtime, after.btime), (before.mtime, before.btime));
    assert!(after.ctime > before.ctime);
    let set = SetAttributes { atime: Some(SetTime::Now), mtime: at(9, 1), ..NONE };
    let last = fs.set_attributes(id, &set).unwrap();
    assert!(last.atime > after.ctime && last.atime == last.ctime);
    assert_eq!(last.mtime, Time { secs: 9, nanos: 1 });
    let wrong = SetAttributes { mtime: at(0, 1_000_000_000), ..NONE };
    assert_eq!(fs.set_attributes(id, &wrong).unwrap_err().errno(), 22);
    let fs = volume.reopen(fs);
    assert_eq!(fs.stat(id).unwrap(), last);
}

#[test]
fn times_of_an_append_only_inode_can_be_set_only_to_now() {
    let volume = TestVolume::new();
    let fs = volume.open();
    let id = file(&fs, b"file", 0o644);
    fs.set_attribute_flags(id, AttributeFlags::APPEND).unwrap();
    let at = |secs| Time { secs, nanos: 0 };
    let (now, given) = (Some(SetTime::Now), |secs| Some(SetTime::At(at(secs))));
    // Times from a cache in front, which are those of the change.
    let of_cache = SetAttributes { atime: now, mtime: given(7), ctime: Some(at(7)), ..NONE };
    for allowed in [SetAttributes { atime: now, mtime: now, ..NONE }, of_cache] {
        fs.set_attributes(id, &allowed).unwrap();
    }
    for refused in [
        SetAttributes { atime: now, ..NONE },
        SetAttributes { mtime: now, ..NONE },
        SetAttributes { mtime: given(7), ctime: Some(at(7)), ..NONE },
        SetAttributes { atime: now, mtime: given(6), ctime: Some(at(7)), ..NONE },
        SetAttributes { mode: Some(0o600), ..NONE },
    ] {
        assert_eq!(fs.set_attributes(id, &refused).unwrap_err().errno(), 1, "{refused:?}");
    }
    let late = SetAttributes { mtime: given(9), ctime: Some(at(9)), is_late: true, ..NONE };
    assert_eq!(fs.set_attributes(id, &late).unwrap().mtime, at(9));
    let later = SetAttributes { mtime: given(8), ctime: Some(at(10)), is_late: true, ..NONE };
    let stat = fs.set_attributes(id, &later).unwrap();
    assert_eq!((stat.mtime, stat.ctime), (at(9), at(10)));
    fs.set_attribute_flags(id, AttributeFlags::IMMUTABLE).unwrap();
    let touch = SetAttributes { atime: now, mtime: now, ..NONE };
    assert_eq!(fs.set_attributes(id, &touch).unwrap_err().errno(), 1);
    volume.reopen(fs);
}

#[test]
fn a_change_of_owner_strips_privileges_on_request() {
    let volume = TestVolume::new();
    let fs = volume.open();
    let id = file(&fs, b"file", 0o6755);
    let owner = SetAttributes { uid: Some(1), ..NONE };
    assert_eq!(fs.set_attributes(id, &owner).unwrap().mode, 0o106_755);
    let stripping = SetAttributes { privileges: Privileges::Strip, ..owner };
    assert_eq!(fs.set_attributes(id, &stripping).unwrap().mode, 0o100_755);
    let id = file(&fs, b"locked", 0o2644);
    assert_eq!(fs.set_attributes(id, &stripping).unwrap().mode, 0o102_644);
    let foreign = SetAttributes { privileges: Privileges::StripForeign, ..owner };
    assert_eq!(fs.set_attributes(id, &foreign).unwrap().mode, 0o100_644);
    volume.reopen(fs);
}

#[test]
fn attributes_are_set_replaced_and_removed() {
    let volume = TestVolume::new();
    let fs = volume.open();
    let id = file(&fs, b"file", 0o644);
    let before = fs.stat(id).unwrap();
    let set = |name: &[u8], value: &[u8], how| fs.set_xattr(id, name, value, how);
    set(b"user.one", b"1", SetXattr::Create).unwrap();
    assert!(fs.stat(id).unwrap().ctime > before.ctime);
    assert_eq!(set(b"user.one", b"2", SetXattr::Create).unwrap_err().errno(), 17);
    assert_eq!(set(b"user.two", b"2", SetXattr::Replace).unwrap_err().errno(), 61);
    set(b"user.one", b"other", SetXattr::Replace).unwrap();
    set(b"user.two", &[5; 10_000], SetXattr::Either).unwrap();
    assert_eq!(set(b"user.three", &vec![5; 20_000], SetXattr::Either).unwrap_err().errno(), 28);
    assert_eq!(fs.remove_xattr(id, b"user.three").unwrap_err().errno(), 61);
    set(b"user.three", b"", SetXattr::Either).unwrap();
    fs.remove_xattr(id, b"user.three").unwrap();
    let fs = volume.reopen(fs);
    assert_eq!(fs.xattr(id, b"user.one").unwrap(), b"other");
    assert_eq!(fs.xattr(id, b"user.two").unwrap(), [5; 10_000]);
    assert_eq!(fs.xattr_names(id).unwrap().len(), 2);
}

#[test]
fn an_access_acl_and_the_mode_are_kept_equal() {
    let volume = TestVolume::new();
    let fs = volume.open();
    let id = file(&fs, b"file", 0o644);
    let plain = acl(&[(1, 6, NO_ID), (4, 4, NO_ID), (32, 0, NO_ID)]);
    fs.set_xattr(id, ACCESS, &plain, SetXattr::Either).unwrap();
    assert_eq!(fs.stat(id).unwrap().mode, 0o100_640);
    assert_eq!(fs.xattr(id, ACCESS).unwrap_err().errno(), 61, "the mode contains it all");
    let named = acl(&[(1, 7, NO_ID), (2, 6, 5), (4, 4, NO_ID), (16, 6, NO_ID), (32, 1, NO_ID)]);
    fs.set_xattr(id, ACCESS, &named, SetXattr::Either).unwrap();
    assert_eq!(fs.stat(id).unwrap().mode, 0o100_761);
    fs.set_attributes(id, &SetAttributes { mode: Some(0o640), ..NONE }).unwrap();
    let masked = acl(&[(1, 6, NO_ID), (2, 6, 5), (4, 4, NO_ID), (16, 4, NO_ID), (32, 0, NO_ID)]);
    assert_eq!(fs.xattr(id, ACCESS).unwrap(), masked);
    assert_eq!(fs.set_xattr(id, DEFAULT, &named, SetXattr::Either).unwrap_err().errno(), 13);
    assert_eq!(fs.set_xattr(id, ACCESS, b"short ac", SetXattr::Either).unwrap_err().errno(), 95);
    fs.remove_xattr(id, ACCESS).unwrap();
    fs.remove_xattr(id, ACCESS).unwrap();
    assert_eq!(fs.stat(id).unwrap().mode, 0o100_640);
    volume.reopen(fs);
}

#[test]
fn a_default_acl_is_inherited_and_replaces_the_umask() {
    let volume = TestVolume::new();
    let fs = volume.open();
    let dir = fs.mkdir(fs.root(), b"dir", &new(0o755)).unwrap();
    let masked = butternut::NewInode { umask: 0o077, ..new(0o666) };
    let before = fs.create(dir, b"before", &masked).unwrap();
    assert_eq!(fs.stat(before).unwrap().mode, 0o100_600);
    let list = acl(&[(1, 7, NO_ID), (2, 7, 5), (4, 5, NO_ID), (16, 7, NO_ID), (32, 0, NO_ID)]);
    fs.set_xattr(dir, DEFAULT, &list, SetXattr::Either).unwrap();
    let made = fs.create(dir, b"file", &masked).unwrap();
    assert_eq!(fs.stat(made).unwrap().mode, 0o100_660);
    let inherited = acl(&[(1, 6, NO_ID), (2, 7, 5), (4, 5, NO_ID), (16, 6, NO_ID), (32, 0, NO_ID)]);
    assert_eq!(fs.xattr(made, ACCESS).unwrap(), inherited);
    let sub = fs.mkdir(dir, b"sub", &butternut::NewInode { umask: 0o077, ..new(0o777) }).unwrap();
    assert_eq!(fs.xattr(sub, DEFAULT).unwrap(), list);
    fs.remove_xattr(dir, DEFAULT).unwrap();
    let after = fs.create(dir, b"after", &masked).unwrap();
    assert_eq!(fs.stat(after).unwrap().mode, 0o100_600);
    volume.reopen(fs);
}

#[test]
fn the_group_of_a_set_group_id_directory_is_inherited() {
    let volume = TestVolume::new();
    let fs = volume.open();
    let dir = fs.mkdir(fs.root(), b"dir", &new(0o2755)).unwrap();
    fs.set_attributes(dir, &SetAttributes { gid: Some(77), ..NONE }).unwrap();
    let made = fs.create(dir, b"file", &new(0o644)).unwrap();
    assert_eq!((fs.stat(made).unwrap().gid, fs.stat(made).unwrap().mode), (77, 0o100_644));
    let sub = fs.mkdir(dir, b"sub", &new(0o755)).unwrap();
    assert_eq!((fs.stat(sub).unwrap().gid, fs.stat(sub).unwrap().mode), (77, 0o042_755));
    volume.reopen(fs);
}

#[test]
fn compression_and_nocow_are_inherited() {
    let volume = TestVolume::new();
    let fs = volume.open();
    let dir = fs.mkdir(fs.root(), b"dir", &new(0o755)).unwrap();
    fs.set_xattr(dir, b"btrfs.compression", b"zstd", SetXattr::Either).unwrap();
    let made = fs.create(dir, b"file", &new(0o644)).unwrap();
    assert_eq!(fs.xattr(made, b"btrfs.compression").unwrap(), b"zstd");
    assert!(fs.attribute_flags(made).unwrap().contains(AttributeFlags::COMPRESS));
    assert_eq!(fs.set_attribute_flags(dir, AttributeFlags::NOCOW).unwrap_err().errno(), 22);
    fs.set_attribute_flags(dir, AttributeFlags::default()).unwrap();
    fs.set_attribute_flags(dir, AttributeFlags::NOCOW).unwrap();
    assert_eq!(fs.xattr(dir, b"btrfs.compression").unwrap_err().errno(), 61);
    let made = fs.create(dir, b"other", &new(0o644)).unwrap();
    assert_eq!(fs.attribute_flags(made).unwrap(), AttributeFlags::NOCOW);
    let wrong = fs.set_xattr(made, b"btrfs.compression", b"lzo", SetXattr::Either);
    assert_eq!(wrong.unwrap_err().errno(), 22);
    let wrong = fs.set_xattr(dir, b"btrfs.colour", b"red", SetXattr::Either);
    assert_eq!(wrong.unwrap_err().errno(), 22);
    let wrong = fs.set_attribute_flags(dir, AttributeFlags(1));
    assert_eq!(wrong.unwrap_err().errno(), 95);
    volume.reopen(fs);
}

/// As in the kernel, which checks the value and then ignores it.
#[test]
fn the_compression_property_has_no_effect_on_symlinks_and_fifos() {
    let volume = TestVolume::new();
    let fs = volume.open();
    let link = fs.symlink(fs.root(), b"link", b"file", &new(0o777)).unwrap();
    let fifo = fs.mknod(fs.root(), b"fifo", &new(0o644), FileKind::Fifo, (0, 0)).unwrap();
    for id in [link, fifo] {
        let before = fs.stat(id).unwrap();
        let set = |name: &[u8], value: &[u8]| fs.set_xattr(id, name, value, SetXattr::Either);
        set(b"btrfs.compression", b"zstd").unwrap();
        fs.set_xattr(id, b"btrfs.compression", b"zstd", SetXattr::Replace).unwrap();
        assert!(fs.xattr_names(id).unwrap().is_empty());
        fs.remove_xattr(id, b"btrfs.compression").unwrap();
        assert_eq!(set(b"btrfs.compression", b"fast").unwrap_err().errno(), 22);
        assert_eq!(set(b"btrfs.colour", b"red").unwrap_err().errno(), 22);
        assert_eq!(fs.stat(id).unwrap(), before);
    }
    volume.reopen(fs);
}

/// As in the kernel. Such a name that another program has written can be removed.
#[test]
fn a_namespace_is_no_name_of_an_attribute() {
    let volume = TestVolume::new();
    let fs = volume.open();
    let id = file(&fs, b"file", 0o644);
    for name in [&b"user."[..], b"trusted.", b"security.", b"btrfs."] {
        let set = fs.set_xattr(id, name, b"value", SetXattr::Either);
        assert_eq!(set.unwrap_err().errno(), 22, "{}", name.escape_ascii());
    }
    assert_eq!(fs.remove_xattr(id, b"user.").unwrap_err().errno(), 61);
    assert!(fs.xattr_names(id).unwrap().is_empty());
    volume.reopen(fs);
}

/// Every n-th reservation fails, for each n: a call either makes all of its changes or none.
#[test]
fn a_size_and_other_attributes_are_set_atomically() {
    let mut refused = 0;
    for nth in 1..=12 {
        for size in [5000, 20_000, 300_000] {
            let volume = TestVolume::new();
            let enospc_injector = EnospcInjector::default();
            let options = MountOptions::default()
                .read_only(false)
                .enospc_injector(Some(enospc_injector.clone()));
            let fs = Filesystem::open_devices(volume.devices(), &options).unwrap();
            let id = file(&fs, b"file", 0o6755);
            let opened = fs.open_file(id).unwrap();
            opened.write_at(0, &vec![7; 100_000]).unwrap();
            fs.set_xattr(id, CAPABILITIES, b"all of them", SetXattr::Create).unwrap();
            let entries =
                acl(&[(1, 7, NO_ID), (2, 7, 3), (4, 5, NO_ID), (16, 7, NO_ID), (32, 5, NO_ID)]);
            fs.set_xattr(id, ACCESS, &entries, SetXattr::Create).unwrap();
            fs.sync().unwrap();
            let xattrs =
                |fs: &Filesystem| [CAPABILITIES, ACCESS].map(|name| fs.xattr(id, name).ok());
            let before = (fs.stat(id).unwrap(), xattrs(&fs));
            let at = SetTime::At(Time { secs: 5, nanos: 6 });
            let set = SetAttributes {
                mode: Some(0o4600),
                uid: Some(77),
                size: Some(size),
                mtime: Some(at),
                privileges: Privileges::Strip,
                ..NONE
            };
            enospc_injector.fail_every(nth);
            let done = fs.set_attributes(id, &set);
            enospc_injector.fail_none();
            let after = fs.stat(id).unwrap();
            let now = xattrs(&fs);
            match done {
                Err(error) => {
                    refused += 1;
                    assert_eq!(error.errno(), 28, "{error}");
                    assert_eq!(
                        (&after, &now),
                        (&before.0, &before.1),
                        "failure {nth}, size {size}"
                    );
                    let mut bytes = vec![0; 100_001];
                    assert_eq!(opened.read_at(0, &mut bytes).unwrap(), 100_000);
                    assert!(bytes[..100_000].iter().all(|byte| *byte == 7));
                }
                Ok(stat) => {
                    assert_eq!(stat, after);
                    assert_eq!((after.size, after.uid, after.mode & 0o7777), (size, 77, 0o600));
                    assert_eq!(after.mtime, Time { secs: 5, nanos: 6 });
                    assert!(now[0].is_none() && now[1] != before.1[1]);
                }
            }
            drop(opened);
            let fs = volume.reopen(fs);
            assert_eq!(fs.stat(id).unwrap(), after);
        }
    }
    assert!(refused > 3, "{refused} calls were refused");
}

/// The block at the new end is read in the middle of the call, followed by a commit and a crash.
#[test]
fn a_crash_during_a_change_of_size_and_mode_keeps_acl_and_mode_equal() {
    let volume = TestVolume::of(160 << 20, &butternut_mkfs::MkfsOptions::default());
    let fs = volume.open();
    let id = file(&fs, b"file", 0o4755);
    let other = file(&fs, b"other", 0o644);
    fs.open_file(id).unwrap().write_at(0, &vec![1; 65_536]).unwrap();
    fs.set_xattr(id, CAPABILITIES, b"all of them", SetXattr::Create).unwrap();
    let entries = acl(&[(1, 7, NO_ID), (2, 7, 3), (4, 5, NO_ID), (16, 7, NO_ID), (32, 5, NO_ID)]);
    fs.set_xattr(id, ACCESS, &entries, SetXattr::Create).unwrap();
    let mode = fs.stat(id).unwrap().mode;
    fs.close().unwrap();

    let (device, fs) = volume.open_faulty(&MountOptions::default());
    let other = fs.open_file(other).unwrap();
    other.write_at(0, b"x").unwrap();
    other.sync_all().unwrap();
    let chunks = fs.inspect().chunks();
    let data = chunks.iter().find(|chunk| chunk.flags.contains(BlockGroupFlags::DATA)).unwrap();
    let at = data.stripes[0].1;
    let rule = device.add(Rule::at(at..at + data.bytes, Fault::HeldRead));
    let set = SetAttributes {
        mode: Some(0o700),
        privileges: Privileges::Strip,
        ..SetAttributes::size(5000)
    };
    let crashed = std::thread::scope(|scope| {
        let changing = scope.spawn(|| fs.set_attributes(id, &set).unwrap());
        device.wait_for_held_reads(1);
        other.sync_all().unwrap();
        let crashed = volume.copy();
        device.remove(rule);
        changing.join().unwrap();
        crashed
    });
    drop(other);
    fs.close().unwrap();
    let fs = crashed.open();
    let is_old = fs.stat(id).unwrap().mode == mode;
    assert_eq!(fs.xattr(id, ACCESS).unwrap() == entries, is_old, "the mode and its ACL");
    assert_eq!(fs.xattr(id, CAPABILITIES).is_ok(), is_old, "the mode and the capabilities");
    assert_eq!(fs.stat(id).unwrap().size, 65_536);
    crashed.reopen(fs);
}
