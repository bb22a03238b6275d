//! What the types of a subvolume's items accept, refuse and decode.

#![allow(clippy::unwrap_used, reason = "a test that panics has failed")]

use butternut_format::dir::{DirEntries, EntryKind, RawDirItem};
use butternut_format::file_extent::{
    Compression, DiskExtent, ExtentBody, ExtentRun, FileExtent, RawFileExtentHeader,
    RawFileExtentItem,
};
use butternut_format::inode::{DeviceNumber, FileKind, Inode, RawInodeItem, Time};
use butternut_format::inode_ref::{InodeExtrefs, InodeRefs};
use butternut_format::key::{ItemType, Key, RawKey};
use butternut_format::units::{Ino, Logical, TreeId};
use butternut_format::uuid::{Uuid, subvolume_ids};
use proptest::prelude::*;
use zerocopy::{FromZeros, IntoBytes};

fn raw_inode(mode: u32) -> RawInodeItem {
    let mut raw = RawInodeItem::new_zeroed();
    raw.mode.set(mode);
    raw
}

fn refused_inode(change: impl FnOnce(&mut RawInodeItem)) -> String {
    let mut raw = raw_inode(0o100_644);
    change(&mut raw);
    Inode::check(raw.as_bytes()).unwrap_err().to_string()
}

fn entry(location: Key, entry_type: u8, name: &[u8], data: &[u8]) -> Vec<u8> {
    let mut raw = RawDirItem::new_zeroed();
    raw.location = RawKey::from(location);
    raw.entry_type = entry_type;
    raw.name_len.set(name.len().try_into().unwrap());
    raw.data_len.set(data.len().try_into().unwrap());
    [raw.as_bytes(), name, data].concat()
}

fn raw_extent(extent_type: u8, bytenr: u64, disk: u64, offset: u64, run: u64) -> RawFileExtentItem {
    let mut raw = RawFileExtentItem::new_zeroed();
    raw.header.extent_type = extent_type;
    raw.header.ram_bytes.set(disk);
    raw.disk_bytenr.set(bytenr);
    raw.disk_num_bytes.set(disk);
    raw.offset.set(offset);
    raw.num_bytes.set(run);
    raw
}

fn refused_extent(change: impl FnOnce(&mut RawFileExtentItem)) -> String {
    let mut raw = raw_extent(1, 1 << 20, 8192, 0, 8192);
    change(&mut raw);
    FileExtent::check(raw.as_bytes(), 4096).unwrap_err().to_string()
}

#[test]
fn inode_times_before_1970_and_after_2038_keep_their_sign() {
    let mut raw = raw_inode(0o040_755);
    raw.mtime.sec.set(-86_400);
    raw.mtime.nsec.set(7);
    raw.otime.sec.set(5_000_000_000);
    let inode = Inode::check(raw.as_bytes()).unwrap();
    assert_eq!(inode.kind, FileKind::Directory);
    assert_eq!(inode.mtime, Time { secs: -86_400, nanos: 7 });
    assert_eq!(inode.otime, Time { secs: 5_000_000_000, nanos: 0 });
}

#[test]
fn device_numbers_have_12_bits_of_major_and_20_of_minor() {
    // The kernel writes these for `mknod c 4095 1048575` and `mknod b 259 300`.
    let largest = DeviceNumber(0xffff_ffff);
    assert_eq!((largest.major(), largest.minor()), (4095, 1_048_575));
    let disk = DeviceNumber((259 << 20) + 300);
    assert_eq!(disk.to_string(), "259:300");
    assert_eq!(DeviceNumber::new(259, 300), disk);
}

#[test]
fn an_invalid_inode_is_refused_by_field() {
    let short = Inode::check(&[0; 159]).unwrap_err().to_string();
    assert_eq!(short, "item size: have 159, want 160");
    let text = refused_inode(|raw| raw.mode.set(0o200_100_644));
    assert_eq!(text, "mode: have 0o200100644, want no bits beyond 0o177777");
    let text = refused_inode(|raw| raw.mode.set(0o644));
    assert_eq!(text, "mode: have 0o644, want a file type");
    let text = refused_inode(|raw| {
        raw.mode.set(0o040_755);
        raw.nlink.set(2);
    });
    assert_eq!(text, "nlink: have 2, want at most 1");
    let text = refused_inode(|raw| raw.flags.set(1 << 12));
    assert_eq!(text, "flags: have 0x1000, want no bits beyond 0x80000fff");
}

#[test]
fn an_unknown_flag_of_the_upper_half_is_refused_only_for_writing() {
    let mut raw = raw_inode(0o100_644);
    raw.flags.set(1 << 32);
    let verity = Inode::check(raw.as_bytes()).unwrap();
    assert!(verity.flags.check_writable().is_ok());
    raw.flags.set(1 << 33);
    let newer = Inode::check(raw.as_bytes()).unwrap();
    let text = newer.flags.check_writable().unwrap_err().to_string();
    assert_eq!(text, "flags: have 0x200000000, want no bits beyond 0x100000000");
}

#[test]
fn every_file_kind_round_trips_through_mode_and_entry_type() {
    for entry_type in 1..=7 {
        let kind = EntryKind::from_entry_type(entry_type).unwrap();
        assert_eq!(kind.entry_type(), entry_type);
        let EntryKind::File(kind) = kind else { panic!("{entry_type} is an attribute") };
        assert_eq!(FileKind::from_mode(kind.mode_bits() | 0o7777), Some(kind));
    }
    assert_eq!(EntryKind::from_entry_type(0), None);
    assert_eq!(EntryKind::from_entry_type(9), None);
}

#[test]
fn an_item_with_colliding_names_lists_every_one() {
    let file = Key::new(257, ItemType::INODE_ITEM, 0);
    let item = [entry(file, 1, b"a", b""), entry(file, 7, b"\xff\xfe", b"")].concat();
    let names: Vec<_> = DirEntries::new(&item).map(|entry| entry.unwrap().name).collect();
    assert_eq!(names, [b"a".as_slice(), b"\xff\xfe"]);
}

#[test]
fn an_attribute_has_data_and_may_have_a_slash() {
    let item = entry(Key::default(), 8, b"user.a/b", b"value");
    let entry = DirEntries::new(&item).next().unwrap().unwrap();
    assert_eq!((entry.name, entry.data), (b"user.a/b".as_slice(), b"value".as_slice()));
}

#[test]
fn entries_that_break_a_law_are_refused_and_end_the_list() {
    let file = Key::new(257, ItemType::INODE_ITEM, 0);
    let good = entry(file, 1, b"a", b"");
    let cases: [(Vec<u8>, &str); 7] = [
        (entry(file, 0, b"a", b""), "type: have 0, want 1 to 8"),
        (entry(file, 9, b"a", b""), "type: have 9, want 1 to 8"),
        (entry(file, 1, b"", b""), "name_len: have 0, want 1 to 255"),
        (entry(file, 1, b"a/b", b""), "name: have \"a/b\", want no '/'"),
        (entry(file, 1, b"a\0", b""), "name: have \"a\\x00\", want no NUL"),
        (entry(file, 1, b"a", b"x"), "data_len: have 1, want 0 outside attributes"),
        (good[..30].to_vec(), "name_len: have 1, want at most the 0 left"),
    ];
    for (bad, want) in cases {
        let item = [good.clone(), bad].concat();
        let mut entries = DirEntries::new(&item);
        assert!(entries.next().unwrap().is_ok());
        assert_eq!(entries.next().unwrap().unwrap_err().to_string(), want);
        assert!(entries.next().is_none());
    }
}

#[test]
fn both_forms_of_references_list_parent_index_and_name() {
    let item = b"\x02\0\0\0\0\0\0\0\x03\0abc\x05\0\0\0\0\0\0\0\x01\0z";
    let refs: Vec<_> = InodeRefs::new(item).map(|entry| entry.unwrap()).collect();
    assert_eq!((refs[0].index, refs[0].name), (2, b"abc".as_slice()));
    assert_eq!((refs[1].index, refs[1].name), (5, b"z".as_slice()));
    let item = b"\0\x01\0\0\0\0\0\0\x09\0\0\0\0\0\0\0\x02\0xy";
    let extref = InodeExtrefs::new(item).next().unwrap().unwrap();
    assert_eq!((extref.parent, extref.index, extref.name), (Ino(256), 9, b"xy".as_slice()));
}

#[test]
fn a_reference_cut_short_is_refused() {
    let item = b"\x02\0\0\0\0\0\0\0\x03\0ab";
    let refused = InodeRefs::new(item).next().unwrap().unwrap_err();
    assert_eq!(refused.to_string(), "name_len: have 3, want at most the 2 left");
    let refused = InodeExtrefs::new(item).next().unwrap().unwrap_err();
    assert_eq!(refused.to_string(), "bytes left in item: have 12, want at least 18");
}

#[test]
fn a_partial_extent_refers_to_its_part_of_the_disk_extent() {
    let raw = raw_extent(1, 1 << 20, 65536, 8192, 4096);
    let extent = FileExtent::check(raw.as_bytes(), 12288).unwrap();
    let disk = DiskExtent { logical: Logical(1 << 20), bytes: 65536 };
    let run = ExtentRun { offset: 8192, num_bytes: 4096 };
    assert_eq!(extent.body, ExtentBody::Regular { disk, run });
    assert_eq!((extent.file_bytes(), extent.disk()), (4096, Some(disk)));
}

#[test]
fn a_hole_has_no_disk_extent_but_a_preallocated_run_has_one() {
    let hole = raw_extent(1, 0, 0, 0, 1 << 40);
    let hole = FileExtent::check(hole.as_bytes(), 0).unwrap();
    assert_eq!(hole.body, ExtentBody::Hole { num_bytes: 1 << 40 });
    assert_eq!(hole.disk(), None);
    let preallocated = raw_extent(2, 1 << 20, 8192, 4096, 4096);
    let preallocated = FileExtent::check(preallocated.as_bytes(), 0).unwrap();
    assert!(matches!(preallocated.body, ExtentBody::Preallocated { .. }));
}

#[test]
fn an_inline_extent_covers_its_last_sector() {
    let mut header = RawFileExtentHeader::new_zeroed();
    header.ram_bytes.set(5);
    let item = [header.as_bytes(), b"hello"].concat();
    let extent = FileExtent::check(&item, 0).unwrap();
    assert_eq!((extent.body, extent.file_bytes()), (ExtentBody::Inline(b"hello"), 4096));
    let refused = FileExtent::check(&item, 4096).unwrap_err().to_string();
    assert_eq!(refused, "key offset: have 4096, want 0 of an inline extent");
    let refused = FileExtent::check(&item[..24], 0).unwrap_err().to_string();
    assert_eq!(refused, "ram_bytes: have 5, want the item's 3");
    header.compression = 3;
    let compressed = [header.as_bytes(), b"xy"].concat();
    assert_eq!(FileExtent::check(&compressed, 0).unwrap().compression, Compression::Zstd);
}

#[test]
fn an_invalid_extent_is_refused_by_field() {
    let text = refused_extent(|raw| raw.header.extent_type = 3);
    assert_eq!(text, "type: have 3, want at most 2");
    let text = refused_extent(|raw| raw.header.compression = 4);
    assert_eq!(text, "compression: have 4, want at most 3");
    let text = refused_extent(|raw| raw.header.encryption = 1);
    assert_eq!(text, "encryption: have 1, want 0");
    let text = refused_extent(|raw| raw.disk_bytenr.set(1));
    assert_eq!(text, "disk_bytenr: have 1, want sector aligned");
    let text = refused_extent(|raw| raw.num_bytes.set(12288));
    assert_eq!(text, "num_bytes: have 12288, want at most 8192");
    let text = refused_extent(|raw| raw.num_bytes.set(u64::MAX - 4095));
    assert_eq!(text, "num_bytes: have 18446744073709547520, want at most 18446744073709547519");
    let text = refused_extent(|raw| {
        raw.header.compression = 1;
        raw.header.ram_bytes.set(1 << 20);
    });
    assert_eq!(text, "ram_bytes: have 1048576, want at most 131072 where compressed");
    let refused = FileExtent::check(&[1; 20], 0).unwrap_err().to_string();
    assert_eq!(refused, "item size: have 20, want at least 21");
}

#[test]
fn a_uuid_is_converted_to_its_key_and_back() {
    let uuid = Uuid([0xf4, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 0x80]);
    assert_eq!(uuid.to_string(), "f4010203-0405-0607-0809-0a0b0c0d0e80");
    let key = uuid.key(ItemType::UUID_SUBVOL);
    assert_eq!(key, Key::new(0x0706_0504_0302_01f4, ItemType(251), 0x800e_0d0c_0b0a_0908));
    assert_eq!(Uuid::from_key(&key), uuid);
}

#[test]
fn a_uuid_item_lists_every_subvolume() {
    let ids: Vec<_> = subvolume_ids(b"\0\x01\0\0\0\0\0\0\x01\x01\0\0\0\0\0\0").unwrap().collect();
    assert_eq!(ids, [TreeId(256), TreeId(257)]);
    assert!(subvolume_ids(&[]).is_err());
    assert!(subvolume_ids(&[0; 9]).is_err());
}

proptest! {
    #[test]
    fn no_bytes_panic_any_decoder(
        bytes in proptest::collection::vec(any::<u8>(), 0..200), at: u64,
    ) {
        drop(Inode::check(&bytes));
        drop(FileExtent::check(&bytes, at));
        prop_assert!(DirEntries::new(&bytes).count() <= bytes.len());
        prop_assert!(InodeRefs::new(&bytes).count() <= bytes.len());
        prop_assert!(InodeExtrefs::new(&bytes).count() <= bytes.len());
        drop(subvolume_ids(&bytes).map(Iterator::count));
    }

    #[test]
    fn a_damaged_extent_is_refused_or_stays_inside_its_disk_extent(
        at in 0_usize..53, byte: u8,
        file_offset in (0_u64..1 << 52).prop_map(|sector| sector << 12),
    ) {
        let mut bytes = raw_extent(1, 1 << 20, 65536, 4096, 8192).as_bytes().to_vec();
        bytes[at] = byte;
        if let Ok(extent) = FileExtent::check(&bytes, file_offset)
            && let ExtentBody::Regular { disk, run } = extent.body
            && extent.compression == Compression::None
        {
            prop_assert!(run.offset + run.num_bytes <= disk.bytes);
            prop_assert!(file_offset.checked_add(run.num_bytes).is_some());
        }
    }

    #[test]
    fn entries_are_decoded_as_they_were_encoded(
        names in proptest::collection::vec("[^/\0.][^/\0]{0,59}", 1..6), ino in 256_u64..1 << 40,
    ) {
        let location = Key::new(ino, ItemType::INODE_ITEM, 0);
        let item: Vec<u8> =
            names.iter().flat_map(|name| entry(location, 2, name.as_bytes(), b"")).collect();
        let back: Vec<_> = DirEntries::new(&item).map(|entry| entry.unwrap()).collect();
        prop_assert_eq!(back.len(), names.len());
        for (entry, name) in back.iter().zip(&names) {
            prop_assert_eq!((entry.name, entry.location), (name.as_bytes(), location));
        }
    }
}

/// A path through such an entry would lead elsewhere.
#[test]
fn no_entry_has_the_name_of_its_directory_or_of_the_parent() {
    let location = Key::new(257, ItemType::INODE_ITEM, 0);
    for name in [&b"."[..], b".."] {
        let item = entry(location, 2, name, b"");
        let refused = DirEntries::new(&item).next().unwrap().unwrap_err();
        assert!(refused.to_string().contains("name"), "{refused}");
    }
    assert!(DirEntries::new(&entry(location, 2, b"...", b"")).all(|entry| entry.is_ok()));
}
