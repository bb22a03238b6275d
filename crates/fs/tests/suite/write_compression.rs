//! Compression of written files: by mount option, flag and property.

use crate::volume::{TestVolume, new};
use butternut::{
    AttributeFlags, Compress, Compression, Compressor, ExtentKind, FileId, Filesystem,
    MountOptions, SetXattr,
};

const PROPERTY: &[u8] = b"btrfs.compression";

fn open_compressing(volume: &TestVolume, name: &str) -> Filesystem {
    let compressor: Compressor = name.parse().unwrap();
    let compress = Some(Compress { compressor, is_forced: false });
    let options = MountOptions::default().read_only(false).compress(compress);
    Filesystem::open_devices(volume.devices(), &options).unwrap()
}

/// Writes text to a file, and returns the compression of its extents.
fn compression_of(fs: &Filesystem, id: FileId) -> Vec<Compression> {
    let mut text = b"not a melon, nor a pumpkin; ".repeat(20_000);
    text.truncate(512 << 10);
    let file = fs.open_file(id).unwrap();
    file.write_at(0, &text).unwrap();
    file.sync_all().unwrap();
    let mut have = vec![0; text.len()];
    assert_eq!(file.read_at(0, &mut have).unwrap(), text.len());
    assert_eq!(have, text);
    let mut compression_of: Vec<Compression> = file
        .extents(0..u64::MAX)
        .filter_map(|extent| match extent.unwrap().kind {
            ExtentKind::Regular { compression, .. } | ExtentKind::Inline { compression } => {
                Some(compression)
            }
            ExtentKind::Hole | ExtentKind::Prealloc { .. } | ExtentKind::Buffered => None,
        })
        .collect();
    compression_of.dedup();
    compression_of
}

#[test]
fn the_option_compresses_files_without_an_opposing_flag() {
    let volume = TestVolume::new();
    let fs = open_compressing(&volume, "zstd:1");
    let make = |name: &[u8]| fs.create(fs.root(), name, &new(0o644)).unwrap();
    assert_eq!(compression_of(&fs, make(b"plain")), [Compression::Zstd]);
    for (name, flags) in
        [(&b"m"[..], AttributeFlags::NOCOMPRESS), (&b"C"[..], AttributeFlags::NOCOW)]
    {
        let id = make(name);
        fs.set_attribute_flags(id, flags).unwrap();
        assert_eq!(compression_of(&fs, id), [Compression::None]);
        assert!(fs.attribute_flags(id).unwrap().contains(flags));
    }
    let id = make(b"none");
    fs.set_xattr(id, PROPERTY, b"none", SetXattr::Either).unwrap();
    assert_eq!(compression_of(&fs, id), [Compression::None]);
    fs.set_xattr(id, PROPERTY, b"", SetXattr::Either).unwrap();
    assert_eq!(compression_of(&fs, id), [Compression::Zstd]);
    volume.reopen(fs);
}

#[test]
fn a_property_selects_the_algorithm_and_is_inherited() {
    let volume = TestVolume::new();
    for has_option in [false, true] {
        let fs = if has_option { open_compressing(&volume, "zlib") } else { volume.open() };
        let dir = fs.mkdir(fs.root(), b"dir", &new(0o755)).unwrap();
        fs.set_xattr(dir, PROPERTY, b"lzo", SetXattr::Either).unwrap();
        let file = fs.create(dir, b"file", &new(0o644)).unwrap();
        assert_eq!(compression_of(&fs, file), [Compression::Lzo]);
        // Before the file is written again, and while it is open for writing.
        fs.set_xattr(file, PROPERTY, b"zstd", SetXattr::Either).unwrap();
        assert_eq!(compression_of(&fs, file), [Compression::Zstd]);
        fs.unlink(dir, b"file").unwrap();
        fs.rmdir(fs.root(), b"dir").unwrap();
        volume.reopen(fs);
    }
}

#[test]
fn chattr_selects_zlib_or_the_algorithm_of_the_mount() {
    let volume = TestVolume::new();
    for (option, name, want) in
        [(None, &b"zlib"[..], Compression::Zlib), (Some("lzo"), b"lzo", Compression::Lzo)]
    {
        let fs = option.map_or_else(|| volume.open(), |option| open_compressing(&volume, option));
        let id = fs.create(fs.root(), name, &new(0o644)).unwrap();
        fs.set_attribute_flags(id, AttributeFlags::COMPRESS).unwrap();
        assert_eq!(fs.xattr(id, PROPERTY).unwrap(), name);
        assert_eq!(compression_of(&fs, id), [want]);
        volume.reopen(fs);
    }
}

#[test]
fn an_incompressible_file_keeps_its_nocompress_flag() {
    let volume = TestVolume::new();
    let fs = open_compressing(&volume, "zstd");
    let id = fs.create(fs.root(), b"file", &new(0o644)).unwrap();
    // Noise that looks compressible where samples are taken.
    let mut state = 1_u64;
    let mut noise: Vec<u8> = (0..48 << 10)
        .map(|_| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            state.to_le_bytes()[7]
        })
        .collect();
    noise.chunks_mut(256).for_each(|chunk| chunk[..16].fill(0));
    let file = fs.open_file(id).unwrap();
    file.write_at(0, &noise).unwrap();
    file.sync_all().unwrap();
    assert!(fs.attribute_flags(id).unwrap().contains(AttributeFlags::NOCOMPRESS));
    assert_eq!(compression_of(&fs, id), [Compression::None]);
    let read = volume.reopen(fs);
    assert!(read.attribute_flags(id).unwrap().contains(AttributeFlags::NOCOMPRESS));
    drop(read);
    // Clearing the flag enables compression again.
    let fs = open_compressing(&volume, "zstd");
    fs.set_attribute_flags(id, AttributeFlags::default()).unwrap();
    assert_eq!(compression_of(&fs, id), [Compression::Zstd]);
    volume.reopen(fs);
}
