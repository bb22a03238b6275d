//! fs-verity: sealed files against the program `fsverity` (Debian's package of that name), which
//! computes digests, trees of hashes and descriptors by itself; and what seals and reads them.

use crate::volume::{TestVolume, names, new, place};
use butternut::device::{Device, MemoryDevice};
use butternut::format::checksum::ChecksumKind;
use butternut::format::feature;
use butternut::format::key::{ItemType, Key};
use butternut::format::quota::QgroupId;
use butternut::format::refused::Hex;
use butternut::format::units::TreeId;
use butternut::inspect::TreeSearch;
use butternut::queue::{IoFlags, QueueOptions};
use butternut::server::FileExt;
use butternut::{
    Allocate, AttributeFlags, Buffer, Compress, Compression, Compressor, Error, File, FileId,
    Filesystem, Follow, MountOptions, Privileges, QgroupLimits, ReadAt, RenameFlags, SetAttributes,
    SnapshotAccess, VerityHash, VerityMetadata, VerityOptions,
};
use butternut_mkfs::MkfsOptions;
use std::ops::ControlFlow;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;

/// What the program computes for a file.
struct Judged {
    digest: String,
    tree: Vec<u8>,
    descriptor: Vec<u8>,
}

pub(crate) fn hex(bytes: &[u8]) -> String {
    Hex(bytes).to_string()
}

fn judge(dir: &Path, content: &[u8], hash: VerityHash, block: u32, salt: &[u8]) -> Judged {
    let at = |name: &str| dir.join(name);
    std::fs::write(at("content"), content).unwrap();
    let mut command = Command::new("fsverity");
    command.arg("digest").arg("--compact").arg(format!("--hash-alg={}", hash.name()));
    command.arg(format!("--block-size={block}")).arg(at("content"));
    command.arg(format!("--out-merkle-tree={}", at("tree").display()));
    command.arg(format!("--out-descriptor={}", at("descriptor").display()));
    if !salt.is_empty() {
        command.arg(format!("--salt={}", hex(salt)));
    }
    let done = command.output().expect("the program fsverity (apt-get install fsverity)");
    assert!(done.status.success(), "{done:?}");
    Judged {
        digest: String::from_utf8(done.stdout).unwrap().trim().to_owned(),
        tree: std::fs::read(at("tree")).unwrap(),
        descriptor: std::fs::read(at("descriptor")).unwrap(),
    }
}

pub(crate) fn pattern(bytes: usize) -> Vec<u8> {
    let mut state = 7_u32;
    let next = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        state.to_le_bytes()[3]
    };
    std::iter::repeat_with(next).take(bytes).collect()
}

fn metadata(file: &File, what: VerityMetadata) -> Vec<u8> {
    let mut all = Vec::new();
    // A length that no item has.
    let mut part = [0; 1500];
    loop {
        match file.read_verity_metadata(what, all.len() as u64, &mut part).unwrap() {
            0 => return all,
            more => all.extend_from_slice(&part[..more]),
        }
    }
}

pub(crate) fn whole(file: &File) -> Vec<u8> {
    let mut all = vec![0; usize::try_from(file.len()).unwrap()];
    file.read_exact_at(0, &mut all).unwrap();
    all
}

fn compare(file: &File, judged: &Judged, what: &str) {
    assert_eq!(hex(&file.measure_verity().unwrap().digest), judged.digest, "{what}");
    assert_eq!(metadata(file, VerityMetadata::MerkleTree), judged.tree, "{what}");
    assert_eq!(metadata(file, VerityMetadata::Descriptor), judged.descriptor, "{what}");
}

#[test]
fn every_byte_is_what_the_program_computes() {
    let dir = tempfile::tempdir().unwrap();
    let volume = TestVolume::new();
    let fs = volume.open();
    let sizes =
        [0, 1, 1023, 1024, 1025, 4095, 4096, 4097, 8192, 65_537, 128 * 4096, 128 * 4096 + 1];
    let mut sealed = Vec::new();
    for (nth, hash) in VerityHash::ALL.into_iter().enumerate() {
        for (salt, block) in [(0, 4096), (32, 4096), (5, 2048), (16, 1024)] {
            for size in sizes {
                let what = format!("{nth} {salt} {block} {size}");
                let salt = &pattern(salt);
                let content = pattern(size);
                let name = format!("{what} file");
                let id = fs.create(fs.root(), name.as_bytes(), &new(0o644)).unwrap();
                let file = fs.open_file(id).unwrap();
                file.write_at(0, &content).unwrap();
                let options = VerityOptions::default().hash(hash).block_bytes(block).salt(salt);
                file.enable_verity(&options).unwrap();
                let judged = judge(dir.path(), &content, hash, block, salt);
                compare(&file, &judged, &what);
                assert!(whole(&file) == content, "{what}");
                assert_eq!(metadata_errno(&file), 61, "no signature");
                sealed.push((id, content, judged, what));
            }
        }
    }
    let fs = volume.reopen(fs);
    for (id, content, judged, what) in sealed {
        let file = fs.open_file(id).unwrap();
        compare(&file, &judged, &what);
        assert!(whole(&file) == content, "{what}");
        assert!(fs.attribute_flags(id).unwrap().contains(AttributeFlags::VERITY));
    }
}

/// As the kernel: `FS_IOC_SETFLAGS` refuses the flag, and leaves it where it is left out.
#[test]
fn the_flag_of_a_sealed_file_stays() {
    let volume = TestVolume::new();
    let fs = volume.open();
    let id = fs.create(fs.root(), b"file", &new(0o644)).unwrap();
    let refused = fs.set_attribute_flags(id, AttributeFlags::VERITY).unwrap_err();
    assert_eq!(refused.errno(), 95);
    fs.open_file(id).unwrap().enable_verity(&VerityOptions::default()).unwrap();
    let is = fs.attribute_flags(id).unwrap();
    assert_eq!(fs.set_attribute_flags(id, is).unwrap_err().errno(), 95);
    fs.set_attribute_flags(id, AttributeFlags::default()).unwrap();
    fs.set_attribute_flags(id, AttributeFlags::NODUMP).unwrap();
    let now = fs.attribute_flags(id).unwrap();
    assert!(now.contains(AttributeFlags::VERITY) && now.contains(AttributeFlags::NODUMP));
    volume.reopen(fs);
}

fn metadata_errno(file: &File) -> i32 {
    file.read_verity_metadata(VerityMetadata::Signature, 0, &mut [0; 8]).unwrap_err().errno()
}

#[test]
fn sparse_compressed_and_large_files_have_their_trees() {
    let dir = tempfile::tempdir().unwrap();
    let device = MemoryDevice::new("memory", 512 << 20);
    butternut_mkfs::make(&device, &MkfsOptions::default()).unwrap();
    let device = Arc::new(device);
    let compressor = Compressor::new(Compression::Zstd).unwrap();
    let compress = Compress { compressor, is_forced: true };
    let options = MountOptions::default().read_only(false).compress(Some(compress));
    let fs = Filesystem::open_devices(vec![device as Arc<dyn Device>], &options).unwrap();
    let text: Vec<u8> = (0..500_000_u32).flat_map(|n| n.to_string().into_bytes()).collect();
    let mut sparse = vec![0; 9 << 20];
    sparse[3 << 20..(3 << 20) + 5000].fill(9);
    // Three levels: with 16 hashes in a block.
    let large = pattern((4 << 20) + 77);
    for (name, content) in [("text", text), ("sparse", sparse), ("large", large)] {
        let id = fs.create(fs.root(), name.as_bytes(), &new(0o644)).unwrap();
        let file = fs.open_file(id).unwrap();
        for (at, part) in content.chunks(100_000).enumerate() {
            if part.iter().any(|byte| *byte != 0) {
                file.write_at(at as u64 * 100_000, part).unwrap();
            }
        }
        file.truncate(content.len() as u64).unwrap();
        let options = VerityOptions::default().hash(VerityHash::Sha512).block_bytes(1024);
        file.enable_verity(&options).unwrap();
        let judged = judge(dir.path(), &content, VerityHash::Sha512, 1024, b"");
        compare(&file, &judged, name);
        assert!(whole(&file) == content, "{name}");
    }
    fs.close().unwrap();
}

/// A volume on which fs-verity was enabled on a file of 40 blocks and a part of one.
struct Sealed {
    volume: TestVolume,
    content: Vec<u8>,
    /// Where block 5 of the file is on the device.
    block: u64,
}

fn sealed(block_bytes: u32) -> Sealed {
    let volume = TestVolume::of(256 << 20, &MkfsOptions::default());
    let fs = volume.open();
    let content = pattern(40 * 4096 + 100);
    let id = fs.create(fs.root(), b"file", &new(0o644)).unwrap();
    // Without checksums nothing else finds what is changed below.
    fs.set_attribute_flags(id, AttributeFlags::NOCOW).unwrap();
    let file = fs.open_file(id).unwrap();
    file.write_at(0, &content).unwrap();
    file.enable_verity(&VerityOptions::default().block_bytes(block_bytes)).unwrap();
    let block = place(&file, 5 * 4096);
    drop(file);
    fs.close().unwrap();
    volume.check();
    Sealed { volume, content, block }
}

type Read = fn(&File, u64, &mut [u8]) -> butternut::Result<usize>;

/// Opens the only file of a volume.
fn open(volume: &TestVolume, is_writable: bool) -> (Filesystem, File) {
    let options = MountOptions::default().read_only(!is_writable);
    let fs = Filesystem::open_devices(volume.devices(), &options).unwrap();
    let file = fs.open_file(fs.resolve(b"file", Follow::Last).unwrap()).unwrap();
    (fs, file)
}

#[test]
fn a_block_that_disagrees_is_never_returned() {
    for block_bytes in [4096, 1024] {
        let Sealed { volume, content, block } = sealed(block_bytes);
        // A byte in the last quarter of block 5.
        let bad = 5 * 4096 + 4096 - 7;
        let bad_start = bad - bad % usize::try_from(block_bytes).unwrap();
        let device = volume.devices().remove(0);
        let mut bytes = vec![0; 4096];
        device.read_at(block, &mut bytes).unwrap();
        assert!(bytes == content[5 * 4096..6 * 4096]);
        bytes[4096 - 7] ^= 1;
        device.write_at(block, &bytes).unwrap();
        for is_writable in [false, true] {
            let (fs, file) = open(&volume, is_writable);
            let mut buf = vec![0; content.len()];
            let reads: [(&str, Read); 3] = [
                ("cached", File::read_at),
                ("uncached", File::read_uncached),
                ("direct", File::read_direct),
            ];
            for (what, read) in reads {
                let all = read(&file, 0, &mut buf).unwrap();
                // The cache has whole pages.
                assert!(all <= bad_start && all >= 5 * 4096, "{what}: {all}");
                assert!(buf[..all] == content[..all]);
                let error = read(&file, bad as u64, &mut buf[..3]).unwrap_err();
                assert_eq!(error.errno(), 5, "{what}");
                let behind = 6 * 4096;
                let rest = read(&file, behind as u64, &mut buf).unwrap();
                assert!(buf[..rest] == content[behind..behind + rest], "{what}");
                assert_eq!(rest, content.len() - behind);
                // Parts of good blocks.
                assert_eq!(read(&file, 4095, &mut buf[..4098]).unwrap(), 4098);
                assert!(buf[..4098] == content[4095..4095 + 4098], "{what}");
            }
            let mut parts = [[0; 100]; 2];
            let [first, second] = &mut parts;
            let mut many = [ReadAt::new(bad as u64, first), ReadAt::new(50, second)];
            file.read_many(&mut many);
            let results = many.map(|read| read.result.map_err(|error| error.errno()));
            assert_eq!(results, [Err(5), Ok(100)]);
            let mut queue = fs.queue(&QueueOptions::default()).unwrap();
            for (at, wanted) in [(4096, 4096), (5 * 4096, -5), (6 * 4096, 4096)] {
                let buffer = Buffer::zeroed(4096);
                queue.read(&file, at, buffer, IoFlags::DIRECT, 1).unwrap();
                let mut done = Vec::new();
                queue.reap(1, None, &mut done);
                let done = done.remove(0);
                let found = done
                    .result
                    .map_or_else(|error| -error.errno(), |read| i32::try_from(read).unwrap());
                let good = if block_bytes == 1024 && wanted < 0 { 3072 } else { wanted };
                assert_eq!(found, good, "at {at}");
            }
            drop(queue);
            assert!(fs.stats().verity_errors > 0);
            drop(file);
            fs.close().unwrap();
        }
    }
}

/// Changes one byte of the first item of a type of the file.
fn with_item(volume: &TestVolume, item_type: ItemType, offset: u64, at: usize) -> TestVolume {
    changed_item(volume, item_type, offset, |item| item[at] ^= 1)
}

/// Changes the first item of a type of the file.
fn changed_item(
    volume: &TestVolume,
    item_type: ItemType,
    offset: u64,
    change: impl Fn(&mut [u8]),
) -> TestVolume {
    let key = |block: &[u8], slot: usize| {
        let item = &block[101 + slot * 25..];
        (item[8], u64::from_le_bytes(item[9..17].try_into().unwrap()))
    };
    volume.with_leaves(|block| {
        let count = crate::volume::word(block, 96);
        let Some(slot) = (0..count).find(|slot| key(block, *slot) == (item_type.0, offset)) else {
            return false;
        };
        let data = 101 + crate::volume::word(block, 101 + slot * 25 + 17);
        change(&mut block[data..]);
        true
    })
}

/// The hashes cover what a block has, and not where holes are: these are left out of copies.
#[test]
fn a_hole_in_the_place_of_sealed_data_is_an_error() {
    let Sealed { volume, .. } = sealed(4096);
    let (fs, file) = open(&volume, false);
    file.verify_holes(0..u64::MAX).unwrap();
    drop((file, fs));
    // No place on the disk.
    let changed = changed_item(&volume, ItemType::EXTENT_DATA, 0, |item| item[21..45].fill(0));
    let (fs, file) = open(&changed, true);
    assert_eq!(file.verify_holes(0..u64::MAX).unwrap_err().errno(), 5);
    assert_eq!(file.verify_holes(0..4096).unwrap_err().errno(), 5);
    file.verify_holes(1 << 40..u64::MAX).unwrap();
    let copy = fs.open_file(fs.create(fs.root(), b"copy", &new(0o644)).unwrap()).unwrap();
    // Not where extents can be shared.
    assert_eq!(copy.copy_range(1, &file, 0, 9000).unwrap_err().errno(), 5);
}

#[test]
fn hashes_and_descriptors_that_disagree_are_errors() {
    let Sealed { volume, content, .. } = sealed(1024);
    // 161 blocks have 6 blocks of hashes, and a root block.
    for (offset, at, bad) in [(0, 3, 0), (1024, 3, 0), (6 * 1024, 3, 160 * 1024)] {
        let changed = with_item(&volume, ItemType::VERITY_MERKLE_ITEM, offset, at);
        let (fs, file) = open(&changed, false);
        let mut buf = vec![0; content.len()];
        let error = file.read_at(bad, &mut buf).unwrap_err();
        assert_eq!(error.errno(), 5);
        if offset == 6 * 1024 {
            assert_eq!(file.read_at(0, &mut buf[..4096]).unwrap(), 4096);
        }
        drop((file, fs));
    }
    // The version, the size of the file, the root hash.
    for (at, opens) in [(0, false), (8, false), (20, true)] {
        let changed = with_item(&volume, ItemType::VERITY_DESC_ITEM, 1, at);
        let options = MountOptions::default();
        let fs = Filesystem::open_devices(changed.devices(), &options).unwrap();
        let id = fs.resolve(b"file", Follow::Last).unwrap();
        match fs.open_file(id) {
            Ok(file) => {
                assert!(opens);
                assert_eq!(file.read_at(0, &mut [0; 10]).unwrap_err().errno(), 5);
            }
            Err(error) => assert_eq!((opens, error.errno()), (false, 5)),
        }
    }
}

#[test]
fn a_signature_is_stored_and_arguments_have_limits() {
    let volume = TestVolume::new();
    let fs = volume.open();
    let id = fs.create(fs.root(), b"file", &new(0o644)).unwrap();
    let file = fs.open_file(id).unwrap();
    file.write_at(0, b"text").unwrap();
    assert_eq!(file.measure_verity().unwrap_err().errno(), 61);
    let bad = |options: VerityOptions| file.enable_verity(&options).unwrap_err().errno();
    let options = VerityOptions::default();
    for block in [0, 512, 1025, 8192, 1 << 31] {
        assert_eq!(bad(options.clone().block_bytes(block)), 22, "{block}");
    }
    assert_eq!(bad(options.clone().salt(&[1; 33])), 90);
    assert_eq!(bad(options.clone().signature(&[1; 16129])), 90);
    for flag in [AttributeFlags::APPEND, AttributeFlags::IMMUTABLE] {
        fs.set_attribute_flags(id, flag).unwrap();
        assert_eq!(bad(options.clone()), 1);
    }
    fs.set_attribute_flags(id, AttributeFlags::default()).unwrap();
    let signature = pattern(16128);
    file.enable_verity(&options.clone().signature(&signature)).unwrap();
    assert_eq!(bad(options.clone()), 17);
    assert_eq!(metadata(&file, VerityMetadata::Signature), signature);
    drop(file);
    let fs = volume.reopen(fs);
    let file = fs.open_file(id).unwrap();
    assert_eq!(metadata(&file, VerityMetadata::Signature), signature);
    assert_eq!(file.enable_verity(&options).unwrap_err().errno(), 30);
    assert!(fs.inspect().super_block().has_compat_ro(feature::VERITY));
    drop(file);
    drop(fs);
    let fs = volume.open();
    fs.unlink(fs.root(), b"file").unwrap();
    volume.reopen(fs);
}

#[test]
fn nothing_changes_while_a_file_is_being_sealed() {
    let volume = TestVolume::new();
    let fs = volume.open();
    let id = fs.create(fs.root(), b"file", &new(0o644)).unwrap();
    let file = fs.open_file(id).unwrap();
    let content = pattern(3 << 20);
    file.write_at(0, &content).unwrap();
    let other = fs.create(fs.root(), b"other", &new(0o644)).unwrap();
    let other = fs.open_file(other).unwrap();
    other.write_at(0, &content).unwrap();
    let calls = std::cell::Cell::new(0);
    let keep = Privileges::Keep;
    let during = || {
        calls.set(calls.get() + 1);
        let writer = fs.open_file(id).unwrap();
        let refused = [
            writer.write_at(0, b"x").map(drop),
            writer.append(b"x", keep).map(drop),
            writer.write_direct(4096, &[1; 4096], keep).map(drop),
            writer.write_uncached(0, b"x", keep).map(drop),
            writer.write_from_cache(0, b"x").map(drop),
            writer.truncate(5),
            writer.allocate(0..4096, Allocate::PunchHole),
            writer.allocate(0..9 << 20, Allocate::KeepSize),
            writer.copy_range(0, &other, 0, 4096).map(drop),
            writer.clone_range(0, &other, 0, 4096).map(drop),
            fs.set_attributes(id, &SetAttributes::size(5)).map(drop),
        ];
        for (nth, refused) in refused.into_iter().enumerate() {
            assert_eq!(refused.unwrap_err().errno(), 26, "number {nth}");
        }
        let mut queue = fs.queue(&QueueOptions::default()).unwrap();
        for flags in [IoFlags::default(), IoFlags::DIRECT, IoFlags::UNCACHED] {
            queue.write(&writer, 0, Buffer::copy_of(&[2; 4096]), flags, 1).unwrap();
            let mut done = Vec::new();
            queue.reap(1, None, &mut done);
            assert_eq!(done.remove(0).result.unwrap_err().errno(), 26, "{flags:?}");
        }
        drop(queue);
        let again = writer.enable_verity(&VerityOptions::default());
        assert_eq!(again.unwrap_err().errno(), 16);
        let mut some = [0; 100];
        writer.read_exact_at(77, &mut some).unwrap();
        assert!(some == content[77..177]);
        // Flags, names and times may change; the file need not be in the trees.
        fs.rename((fs.root(), b"file"), (fs.root(), b"moved"), RenameFlags::default()).unwrap();
        fs.rename((fs.root(), b"moved"), (fs.root(), b"file"), RenameFlags::default()).unwrap();
        fs.sync().unwrap();
        true
    };
    file.enable_verity_while(&VerityOptions::default(), &during).unwrap();
    assert_eq!(calls.get(), 4);
    assert_eq!(file.write_at(0, b"x").unwrap_err().errno(), 1);
    let fs = volume.reopen(fs);
    assert!(whole(&fs.open_file(id).unwrap()) == content);
}

/// Returns whether a file of a volume has any item of fs-verity.
pub(crate) fn has_items(fs: &Filesystem, id: FileId) -> bool {
    let key = |item_type, offset| Key::new(id.ino, item_type, offset);
    let search = TreeSearch {
        tree: TreeId(id.subvolume_id()),
        keys: key(ItemType::VERITY_DESC_ITEM, 0)..=key(ItemType::VERITY_MERKLE_ITEM, u64::MAX),
        generations: 0..=u64::MAX,
    };
    let mut has_any = false;
    fs.inspect()
        .search(&search, &mut |_| {
            has_any = true;
            ControlFlow::Break(())
        })
        .unwrap();
    has_any
}

#[test]
fn an_interrupted_call_leaves_nothing() {
    let volume = TestVolume::new();
    let fs = volume.open();
    let id = fs.create(fs.root(), b"file", &new(0o644)).unwrap();
    let file = fs.open_file(id).unwrap();
    let content = pattern((20 << 20) + 5);
    file.write_at(0, &content).unwrap();
    let left = std::cell::Cell::new(18);
    let crashed = std::cell::RefCell::new(None);
    let snapshot = std::cell::Cell::new(None);
    let goes_on = || {
        left.set(left.get() - 1);
        if left.get() == 2 {
            let name = b"snap";
            let root = fs.root();
            let snap = fs.snapshot(5, root, name, SnapshotAccess::ReadWrite).unwrap();
            snapshot.set(Some(snap));
            fs.sync().unwrap();
            crashed.replace(Some(volume.copy()));
        }
        left.get() > 0
    };
    let error = file.enable_verity_while(&VerityOptions::default().block_bytes(1024), &goes_on);
    assert!(matches!(error, Err(Error::Interrupted)), "{error:?}");
    assert!(!has_items(&fs, id));
    file.write_at(0, b"still writable").unwrap();
    // The snapshot has a part of the items, until it is written to.
    let copy = FileId::new(snapshot.take().unwrap(), id.ino);
    assert!(has_items(&fs, copy));
    let copied = fs.open_file(copy).unwrap();
    assert!(whole(&copied) == content);
    copied.write_at(0, b"writable too").unwrap();
    assert!(!has_items(&fs, copy));
    drop((file, copied));
    volume.reopen(fs);
    // A crash in the midst.
    let crashed = crashed.take().unwrap();
    let fs = crashed.open();
    let file = fs.open_file(id).unwrap();
    assert!(!has_items(&fs, id));
    assert!(whole(&file) == content);
    file.write_at(0, b"x").unwrap();
    file.enable_verity(&VerityOptions::default()).unwrap();
    drop(file);
    let fs = crashed.reopen(fs);
    assert_eq!(names(&fs, fs.root()), ["file", "snap"]);
}

/// A file without a name, one that loses its name, and one that gets its first, while it is sealed.
#[test]
fn names_come_and_go_while_a_file_is_being_sealed() {
    let volume = TestVolume::new();
    let fs = volume.open();
    let content = pattern((2 << 20) + 9);
    let options = VerityOptions::default().block_bytes(1024);
    for (nth, fails) in [(0, false), (1, false), (2, true), (3, true)] {
        let gets_name = nth % 2 == 1;
        let file = fs.open_unnamed(fs.root(), &new(0o600)).unwrap();
        file.write_at(0, &content).unwrap();
        let calls = std::cell::Cell::new(0);
        let done = file.enable_verity_while(&options, &|| {
            calls.set(calls.get() + 1);
            if gets_name && calls.get() == 2 {
                fs.link(file.id(), fs.root(), b"named").unwrap();
            }
            !fails || calls.get() < 3
        });
        assert_eq!(done.is_err(), fails);
        assert_eq!(has_items(&fs, file.id()), !fails);
        assert!(whole(&file) == content);
        if gets_name {
            fs.sync().unwrap();
            volume.copy().check();
            fs.unlink(fs.root(), b"named").unwrap();
        }
    }
    let id = fs.create(fs.root(), b"file", &new(0o644)).unwrap();
    let file = fs.open_file(id).unwrap();
    file.write_at(0, &content).unwrap();
    let calls = std::cell::Cell::new(0);
    let unlink = || {
        calls.set(calls.get() + 1);
        if calls.get() == 2 {
            fs.unlink(fs.root(), b"file").unwrap();
            fs.sync().unwrap();
        }
        true
    };
    file.enable_verity_while(&options, &unlink).unwrap();
    assert!(whole(&file) == content);
    file.measure_verity().unwrap();
    drop(file);
    let fs = volume.reopen(fs);
    assert_eq!(names(&fs, fs.root()), [""; 0]);
    assert!(!has_items(&fs, id));
}

/// Each reservation of space fails in turn, and then the quota is reached.
#[test]
fn a_call_without_space_leaves_nothing() {
    let injector = butternut::EnospcInjector::default();
    let volume = TestVolume::new();
    let options = MountOptions::default().read_only(false).commit_seconds(0);
    let options = options.enospc_injector(Some(injector.clone()));
    let fs = Filesystem::open_devices(volume.devices(), &options).unwrap();
    fs.enable_quotas().unwrap();
    let sub = fs.create_subvolume(fs.root(), b"sub", &new(0o755)).unwrap();
    let id = fs.create(FileId::root_of(sub), b"file", &new(0o644)).unwrap();
    let file = fs.open_file(id).unwrap();
    let content = pattern((6 << 20) + 5);
    file.write_at(0, &content).unwrap();
    let seal = || file.enable_verity(&VerityOptions::default().block_bytes(1024));
    let mut failures = 0;
    for nth in 1..40 {
        fs.sync().unwrap();
        injector.fail_from(nth);
        let done = seal();
        injector.fail_none();
        let Err(error) = done else { break };
        assert_eq!(error.errno(), 28, "{nth}");
        failures += 1;
        // What could not be removed without space is removed by the next call.
        file.write_at(0, &content[..1]).unwrap();
        fs.sync().unwrap();
        let copy = volume.copy();
        let fs = copy.open();
        fs.open_file(id).unwrap().write_at(0, &content[..1]).unwrap();
        assert!(!has_items(&fs, id), "{nth}");
        copy.reopen(fs);
    }
    assert!(failures > 3 && failures < 38, "{failures}");
    fs.sync().unwrap();
    let used = |fs: &Filesystem| {
        let groups = fs.quotas().unwrap().unwrap().groups;
        groups.iter().find(|group| group.id.0 == sub).unwrap().usage.referenced
    };
    if fs.open_file(id).unwrap().measure_verity().is_ok() {
        // The injector had no more reservations to fail.
        let other = fs.create(FileId::root_of(sub), b"other", &new(0o644)).unwrap();
        let other = fs.open_file(other).unwrap();
        other.write_at(0, &content).unwrap();
        fs.sync().unwrap();
        let limits = QgroupLimits { referenced: Some(used(&fs) + 100_000), exclusive: None };
        fs.limit_qgroup(QgroupId(sub), limits).unwrap();
        let error = other.enable_verity(&VerityOptions::default().block_bytes(1024)).unwrap_err();
        assert_eq!(error.errno(), 122);
        assert!(!has_items(&fs, other.id()));
        let none = QgroupLimits { referenced: None, exclusive: None };
        fs.limit_qgroup(QgroupId(sub), none).unwrap();
        let before = used(&fs);
        other.enable_verity(&VerityOptions::default().block_bytes(1024)).unwrap();
        fs.sync().unwrap();
        assert!(used(&fs) > before + 150_000, "quotas count the items");
    }
    drop(file);
    volume.reopen(fs);
}

#[test]
fn snapshots_clones_and_defragmentation_keep_what_is_sealed() {
    let volume = TestVolume::new();
    let fs = volume.open();
    let id = fs.create(fs.root(), b"file", &new(0o644)).unwrap();
    let file = fs.open_file(id).unwrap();
    let content = pattern(300_000);
    for at in (0..content.len()).step_by(20_000) {
        file.write_at(at as u64, &content[at..at + 20_000]).unwrap();
        fs.sync().unwrap();
    }
    file.enable_verity(&VerityOptions::default()).unwrap();
    let digest = file.measure_verity().unwrap();
    let snap = fs.snapshot(5, fs.root(), b"snap", SnapshotAccess::ReadOnly).unwrap();
    file.defragment(&butternut::DefragmentOptions::default()).unwrap();
    assert!(whole(&file) == content);
    let clone = fs.create(fs.root(), b"clone", &new(0o644)).unwrap();
    let clone = fs.open_file(clone).unwrap();
    clone.clone_range(0, &file, 0, 300_000).unwrap();
    clone.write_at(5, b"not sealed").unwrap();
    drop((file, clone));
    fs.unlink(fs.root(), b"file").unwrap();
    let copy = fs.open_file(FileId::new(snap, id.ino)).unwrap();
    assert!(whole(&copy) == content);
    assert_eq!(copy.measure_verity().unwrap(), digest);
    assert_eq!(copy.enable_verity(&VerityOptions::default()).unwrap_err().errno(), 30);
    drop(copy);
    volume.reopen(fs);
}

/// Threads write, rename, read and seal: whatever is sealed agrees with what is read then.
#[test]
fn writers_and_calls_that_seal_race() {
    let volume = TestVolume::new();
    let fs = volume.open();
    let mut sealed = 0;
    for round in 0..12_u8 {
        let name = [b'a' + round];
        let id = fs.create(fs.root(), &name, &new(0o644)).unwrap();
        fs.open_file(id).unwrap().write_at(0, &pattern(400_000)).unwrap();
        let results: Vec<bool> = std::thread::scope(|scope| {
            let fs = &fs;
            let writers: Vec<_> = (0..3_u64)
                .map(|nth| {
                    scope.spawn(move || {
                        let file = fs.open_file(id).unwrap();
                        for at in 0..200_u64 {
                            let block = [at as u8; 4096];
                            let to = at % 90 * 4096;
                            let done = match nth {
                                0 => file.write_at(to, &block),
                                1 => file.write_direct(to, &block, Privileges::Keep),
                                _ => file.append(&block[..10], Privileges::Keep).map(|it| it.1),
                            };
                            match done.map_err(|error| error.errno()) {
                                Ok(_) | Err(26 | 1) => {}
                                Err(errno) => panic!("errno {errno}"),
                            }
                        }
                    })
                })
                .collect();
            let calls = (0..2).map(|_| {
                scope.spawn(move || {
                    let file = fs.open_file(id).unwrap();
                    let options = VerityOptions::default().block_bytes(1024);
                    match file.enable_verity(&options).map_err(|error| error.errno()) {
                        Ok(()) => true,
                        Err(16 | 17) => false,
                        Err(errno) => panic!("errno {errno}"),
                    }
                })
            });
            let calls: Vec<_> = calls.collect();
            for writer in writers {
                writer.join().unwrap();
            }
            calls.into_iter().map(|call| call.join().unwrap()).collect()
        });
        sealed += results.iter().filter(|it| **it).count();
        assert!(results.iter().any(|it| *it));
        let file = fs.open_file(id).unwrap();
        let dir = tempfile::tempdir().unwrap();
        let content = whole(&file);
        let judged = judge(dir.path(), &content, VerityHash::Sha256, 1024, b"");
        assert_eq!(hex(&file.measure_verity().unwrap().digest), judged.digest);
    }
    assert!(sealed >= 12);
    let fs = volume.reopen(fs);
    for entry in names(&fs, fs.root()) {
        whole(&fs.open_file(fs.resolve(entry.as_bytes(), Follow::Last).unwrap()).unwrap());
    }
}

/// An image that Linux 6.12 has written, with what its own calls and `sha256sum` say of each file.
#[test]
fn files_that_the_kernel_has_sealed_are_verified() {
    let packed = include_bytes!("../images/verity.img.zst");
    let volume = TestVolume::of_image(&zstd::decode_all(packed.as_slice()).unwrap());
    volume.check();
    let fs = volume.open();
    let expected = include_str!("../images/verity.txt").lines().filter(|it| !it.starts_with('#'));
    let mut count = 0;
    for line in expected {
        let [digest, contents, path] = *line.split(' ').collect::<Vec<_>>() else {
            panic!("{line}")
        };
        let file = fs.open_file(fs.resolve(path.as_bytes(), Follow::Last).unwrap()).unwrap();
        let measured = match file.measure_verity() {
            Ok(found) => format!("{}:{}", found.hash.name(), hex(&found.digest)),
            Err(error) => {
                assert_eq!(error.errno(), 61);
                "none".to_owned()
            }
        };
        assert_eq!(measured, digest, "{path}");
        let hash = ChecksumKind::Sha256.compute(&whole(&file));
        assert_eq!(hex(&hash), contents, "{path}");
        count += 1;
    }
    assert_eq!(count, 20);
    let sub = fs.resolve(b"sub", Follow::Last).unwrap();
    for name in [&b"zstd"[..], b"sha512", b"empty"] {
        fs.unlink(sub, name).unwrap();
    }
    let plain = fs.open_file(fs.resolve(b"sub/plain", Follow::Last).unwrap()).unwrap();
    plain.enable_verity(&VerityOptions::default()).unwrap();
    drop(plain);
    volume.reopen(fs);
}
