//! Round trips: decoders accept what the encoders write, and encoders reproduce the items of real
//! volumes.

#![allow(clippy::unwrap_used, reason = "a test that panics has failed")]

mod image;

use butternut_format::block_group::{BlockGroup, RawBlockGroup};
use butternut_format::chunk::{CHUNK_IO_BYTES, Chunk, RawChunk};
use butternut_format::device_extent::{DeviceExtent, RawDeviceExtent};
use butternut_format::dir::{DirEntries, DirEntry, EntryKind, without_entry};
use butternut_format::file_extent::{Compression, DiskExtent, ExtentBody, ExtentRun, FileExtent};
use butternut_format::free_space::{FreeSpaceInfo, RawFreeSpaceInfo};
use butternut_format::inode::{FileKind, Inode};
use butternut_format::inode_ref::{
    InodeExtref, InodeExtrefs, InodeRef, InodeRefs, without_extref, without_ref,
};
use butternut_format::key::{ItemType, Key};
use butternut_format::root_ref::RootRef;
use butternut_format::units::{Generation, Ino, Logical};
use image::{Folder, Image, fill, items, mkfs};
use proptest::prelude::*;
use std::collections::BTreeMap;
use zerocopy::{FromBytes, IntoBytes};

/// Decodes and encodes an item. Returns `None` for types without an encoder.
fn round_trip(key: Key, data: &[u8]) -> Option<Vec<u8>> {
    let mut bytes = Vec::new();
    match key.item_type {
        ItemType::INODE_ITEM => bytes.extend(Inode::check(data).unwrap().to_bytes()),
        ItemType::INODE_REF => {
            InodeRefs::new(data).for_each(|entry| entry.unwrap().append_to(&mut bytes));
        }
        ItemType::INODE_EXTREF => {
            InodeExtrefs::new(data).for_each(|entry| entry.unwrap().append_to(&mut bytes));
        }
        ItemType::DIR_ITEM | ItemType::DIR_INDEX | ItemType::XATTR_ITEM => {
            DirEntries::new(data).for_each(|entry| entry.unwrap().append_to(&mut bytes));
        }
        ItemType::EXTENT_DATA => FileExtent::check(data, key.offset).unwrap().append_to(&mut bytes),
        ItemType::ROOT_REF | ItemType::ROOT_BACKREF => {
            bytes = RootRef::check(data).unwrap().to_bytes();
        }
        ItemType::CHUNK_ITEM => {
            let (raw, _) = RawChunk::ref_from_prefix(data).unwrap();
            assert!([4096, CHUNK_IO_BYTES].contains(&raw.io_align.get()));
            let chunk = Chunk::check(key, data, 0).unwrap();
            assert_eq!(chunk.key(), key);
            bytes = chunk.to_bytes(raw.io_align.get());
        }
        ItemType::DEV_EXTENT => {
            let extent = DeviceExtent::check(key, data).unwrap();
            let uuid = RawDeviceExtent::ref_from_bytes(data).unwrap().chunk_tree_uuid;
            let raw = RawDeviceExtent::of(extent.chunk, extent.bytes, uuid);
            bytes.extend(raw.as_bytes());
        }
        ItemType::BLOCK_GROUP_ITEM => {
            let group = BlockGroup::check(key, data, 0).unwrap();
            bytes.extend(RawBlockGroup::of(group.bytes_used, group.flags).as_bytes());
        }
        ItemType::FREE_SPACE_INFO => {
            let info = FreeSpaceInfo::check(key, data).unwrap();
            bytes.extend(RawFreeSpaceInfo::of(info.extent_count, info.is_bitmaps).as_bytes());
        }
        _ => return None,
    }
    Some(bytes)
}

#[test]
fn every_item_of_a_real_volume_is_encoded_as_it_was_read() {
    let folder = Folder::new("encode");
    fill(&folder);
    let content = folder.0.join("content");
    std::fs::write(content.join("target"), "").unwrap();
    for i in 0..600 {
        let name = format!("one of so many names that their references need a second form {i}");
        std::fs::hard_link(content.join("target"), content.join(name)).unwrap();
    }
    std::fs::File::create(content.join("sparse")).unwrap().set_len(1 << 20).unwrap();
    let mut seen = BTreeMap::new();
    for options in [&["-O", "^no-holes"][..], &["--compress", "zstd", "-n", "4096"]] {
        let image = Image::open(&mkfs(&folder, options));
        image.walk_all(&mut |block| {
            for (key, data) in items(block) {
                if let Some(bytes) = round_trip(key, data) {
                    assert_eq!(bytes, data, "{key}");
                    *seen.entry(key.item_type.0).or_insert(0) += 1;
                }
            }
        });
    }
    let of_files = [(1, 6000), (12, 6000), (13, 10), (84, 6000), (96, 6000), (108, 6000)];
    // At least three chunks on each of two volumes.
    let of_space = [(192, 6), (198, 6), (204, 6), (228, 6)];
    for (item_type, least) in of_files.into_iter().chain(of_space) {
        let have = seen.get(&item_type).copied().unwrap_or_default();
        assert!(have >= least, "type {item_type}: {have} of {least} in {seen:?}");
    }
}

#[test]
fn each_kind_of_extent_is_decoded_as_it_was_encoded() {
    let generation = Generation(9);
    let disk = DiskExtent { logical: Logical(1 << 20), bytes: 65536 };
    let run = ExtentRun { offset: 4096, num_bytes: 8192 };
    let compressed = FileExtent {
        generation,
        ram_bytes: 131_072,
        compression: Compression::Zstd,
        body: ExtentBody::Regular { disk, run },
    };
    let cases = [
        FileExtent::inline(generation, b"hello"),
        FileExtent::regular(generation, disk, run),
        FileExtent::preallocated(generation, disk, run),
        FileExtent::hole(generation, 1 << 30),
        compressed,
    ];
    for extent in cases {
        assert_eq!(FileExtent::check(&extent.to_bytes(), 0).unwrap(), extent);
    }
    assert_eq!(FileExtent::inline(generation, b"hello").to_bytes().len(), 26);
    assert_eq!(FileExtent::hole(generation, 4096).to_bytes().len(), 53);
}

fn names() -> impl Strategy<Value = Vec<Vec<u8>>> {
    let name = prop::collection::vec(prop::num::u8::ANY, 1..20)
        .prop_map(|name| name.into_iter().map(|byte| byte.max(b'0')).collect::<Vec<u8>>());
    prop::collection::btree_set(name, 1..6).prop_map(|names| names.into_iter().collect())
}

proptest! {
    #[test]
    fn removing_an_entry_keeps_the_others(names in names(), pick: usize) {
        let removed = pick % names.len();
        let kind = EntryKind::File(FileKind::File);
        let (mut entries, mut refs, mut extrefs) = (Vec::new(), Vec::new(), Vec::new());
        let (mut less, mut less_refs, mut less_extrefs) = (Vec::new(), Vec::new(), Vec::new());
        for (at, name) in names.iter().enumerate() {
            let index = at as u64;
            let location = Key::new(257 + index, ItemType::INODE_ITEM, 0);
            let entry = DirEntry { location, transid: Generation(7), kind, name, data: b"" };
            let reference = InodeRef { index, name };
            let extref = InodeExtref { parent: Ino(256), index, name };
            entry.append_to(&mut entries);
            reference.append_to(&mut refs);
            extref.append_to(&mut extrefs);
            if at != removed {
                entry.append_to(&mut less);
                reference.append_to(&mut less_refs);
                extref.append_to(&mut less_extrefs);
            }
        }
        let name = &names[removed];
        prop_assert_eq!(without_entry(&entries, name).unwrap(), Some(less));
        let shortened = without_ref(&refs, name).unwrap().unwrap();
        prop_assert_eq!((shortened.item, shortened.index), (less_refs, removed as u64));
        let shortened = without_extref(&extrefs, Ino(256), name).unwrap().unwrap();
        prop_assert_eq!((shortened.item, shortened.index), (less_extrefs, removed as u64));
        prop_assert_eq!(without_extref(&extrefs, Ino(257), name).unwrap(), None);
        prop_assert_eq!(without_entry(&entries, b"!").unwrap(), None);
        prop_assert_eq!(without_ref(&refs, b"!").unwrap(), None);
    }
}
