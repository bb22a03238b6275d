//! Compression of written data: the extents, when a file gives up compression, and the space used.

use crate::script::compare;
use crate::volume::{create, fresh, inode, open, state};
use butternut_file::{FileState, MappingKind, Mappings, Source};
use butternut_format::feature::{COMPRESS_LZO, COMPRESS_ZSTD};
use butternut_format::file_extent::Compression;
use butternut_format::inode::InodeFlags;
use butternut_space::Cluster;
use butternut_sys::wait::Wait;
use butternut_volume::{OpenOptions, Volume};

const INO: u64 = 300;
const MIB: usize = 1 << 20;
const ALL: [Compression; 3] = [Compression::Zlib, Compression::Lzo, Compression::Zstd];

pub(crate) fn text(bytes: usize) -> Vec<u8> {
    b"a gourd is a gourd is a gourd. ".iter().copied().cycle().take(bytes).collect()
}

pub(crate) fn noise(bytes: usize) -> Vec<u8> {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state.to_le_bytes()[4]
    };
    (0..bytes).map(|_| next()).collect()
}

/// Noise that looks compressible to the sample.
fn misleading(bytes: usize) -> Vec<u8> {
    let mut data = noise(bytes);
    data.chunks_mut(256).for_each(|chunk| chunk[..16].fill(b'A'));
    data
}

/// A file with the flag compress, and `property`.
fn compressed_file(source: &Source, property: Option<Compression>) -> FileState {
    create(source, INO, InodeFlags::COMPRESS);
    let mut file = state(source, INO);
    file.set_property(property);
    file
}

/// File offset, bytes, compression, and bytes on disk.
fn extents(file: &FileState) -> Vec<(u64, u64, Compression, u64)> {
    let mappings = Mappings::of(file.view(), 0..u64::MAX).map(Result::unwrap);
    let extent = |mapping: butternut_file::Mapping| match mapping.kind {
        MappingKind::Regular { extent, encoding, .. } => {
            Some((mapping.offset, mapping.bytes, encoding.compression, extent.bytes))
        }
        MappingKind::Inline { compression, ram_bytes, .. } => {
            Some((mapping.offset, ram_bytes, compression, 0))
        }
        MappingKind::Hole | MappingKind::Preallocated { .. } | MappingKind::Buffered => None,
    };
    mappings.filter_map(extent).collect()
}

#[test]
fn text_is_written_in_compressed_extents_of_at_most_128_kib() {
    for compression in ALL {
        let device = fresh(256);
        let source = open(&device);
        let mut file = compressed_file(&source, Some(compression));
        let data = text(3 * MIB + 100_000);
        // The first part is written from the caller's memory, the rest from dirty blocks.
        file.write_at(0, &data[..2 * MIB]).unwrap();
        data[2 * MIB..].chunks(9999).enumerate().for_each(|(number, part)| {
            file.write_at((2 * MIB + number * 9999) as u64, part).unwrap();
        });
        file.write_back().unwrap();
        for merged in [false, true] {
            let found = extents(&file);
            assert!(found.len() >= 25, "{found:?}");
            for (at, bytes, compressed, on_disk) in found {
                assert!(bytes <= 128 << 10 && on_disk < bytes, "{at}: {bytes} in {on_disk}");
                assert_eq!(compressed, compression);
            }
            compare(&source, &file, &data);
            if !merged {
                file.merge(&mut |_| {}).unwrap();
                source.forest().commit().unwrap();
            }
        }
        let volume = Volume::open(vec![device], OpenOptions::default()).unwrap();
        let has = |feature| volume.super_block().has(feature);
        assert_eq!(has(COMPRESS_LZO), compression == Compression::Lzo);
        assert_eq!(has(COMPRESS_ZSTD), compression == Compression::Zstd);
    }
}

#[test]
fn noise_is_written_uncompressed_and_does_not_set_nocompress() {
    let source = open(&fresh(256));
    let mut file = compressed_file(&source, None);
    file.write_at(0, &noise(MIB)).unwrap();
    file.merge(&mut |_| {}).unwrap();
    assert!(extents(&file).iter().all(|extent| extent.2 == Compression::None));
    assert!(!inode(&source, INO).flags.contains(InodeFlags::NOCOMPRESS));
    file.write_at(0, &text(MIB)).unwrap();
    assert!(extents(&file).iter().all(|extent| extent.2 == Compression::Zlib));
}

#[test]
fn misleading_samples_set_nocompress_unless_the_file_has_a_property() {
    for property in [None, Some(Compression::Zstd)] {
        let source = open(&fresh(256));
        let mut file = compressed_file(&source, property);
        // Compression saves a sixteenth, which is less than a sector.
        file.write_at(0, &misleading(48 << 10)).unwrap();
        file.write_back().unwrap();
        assert_eq!(file.has_given_up_compression(), property.is_none());
        assert!(extents(&file).iter().all(|extent| extent.2 == Compression::None));
        file.merge(&mut |_| {}).unwrap();
        let flags = inode(&source, INO).flags;
        assert_eq!(flags.contains(InodeFlags::NOCOMPRESS), property.is_none());
        file.write_at(0, &text(MIB)).unwrap();
        let want = property.unwrap_or(Compression::None);
        assert!(extents(&file).iter().all(|extent| extent.2 == want));
    }
}

#[test]
fn a_file_of_one_block_is_inline_if_its_compressed_data_fits() {
    for compression in ALL {
        let source = open(&fresh(256));
        let mut file = compressed_file(&source, Some(compression));
        let merged = |file: &mut FileState, data: &[u8], want: &[(u64, u64, Compression, u64)]| {
            file.merge(&mut |_| {}).unwrap();
            assert_eq!(extents(file), want, "{compression:?}, {} bytes", data.len());
            assert_eq!(inode(&source, INO).bytes_used, want.iter().map(|extent| extent.1).sum());
            compare(&source, file, data);
        };
        let mut data = text(4096);
        file.write_at(0, &data).unwrap();
        merged(&mut file, &data, &[(0, 4096, compression, 0)]);
        // A shorter file stays inline, with the shorter length.
        file.truncate(3000, &mut |_| {}).unwrap();
        data.truncate(3000);
        merged(&mut file, &data, &[(0, 3000, compression, 0)]);
        // Noise is too long to be inline, and so is a larger file.
        file.write_at(0, &noise(2900)).unwrap();
        data[..2900].copy_from_slice(&noise(2900));
        merged(&mut file, &data, &[(0, 4096, Compression::None, 4096)]);
        data = text(4097);
        file.truncate(0, &mut |_| {}).unwrap();
        file.write_at(0, &data).unwrap();
        merged(&mut file, &data, &[(0, 8192, compression, 4096)]);
    }
}

#[test]
fn a_written_back_small_file_can_grow_and_shrink_before_the_merge() {
    let source = open(&fresh(256));
    let mut file = compressed_file(&source, Some(Compression::Lzo));
    let mut data = text(3500);
    file.write_at(0, &data).unwrap();
    file.write_back().unwrap();
    file.write_at(3400, &noise(500)).unwrap();
    data.resize(3900, 0);
    data[3400..].copy_from_slice(&noise(500));
    file.write_back().unwrap();
    file.truncate(2500, &mut |_| {}).unwrap();
    data.truncate(2500);
    compare(&source, &file, &data);
    file.write_at(2500, &text(20_000)).unwrap();
    data.extend(text(20_000));
    file.merge(&mut |_| {}).unwrap();
    compare(&source, &file, &data);
}

#[test]
fn compressed_data_uses_only_the_space_that_it_needs() {
    let device = fresh(128);
    let source = open(&device);
    let mut file = compressed_file(&source, Some(Compression::Zstd));
    // Several times the size of the volume.
    let data = text(256 * MIB);
    for (number, part) in data.chunks(8 * MIB).enumerate() {
        let at = (number * 8 * MIB) as u64;
        assert_eq!(file.write_at(at, part).unwrap(), part.len());
    }
    file.merge(&mut |_| {}).unwrap();
    source.forest().commit().unwrap();
    // Overwritten repeatedly, before and after merges: the old space is freed each time.
    for round in 0..16_u64 {
        file.write_at(round * 4096, &text(24 * MIB)).unwrap();
        file.write_at(round * 4096 + 50_000, &noise(4096)).unwrap();
        if round % 4 == 3 {
            file.merge(&mut |_| {}).unwrap();
            source.forest().commit().unwrap();
        }
    }
    file.truncate(0, &mut |_| {}).unwrap();
    source.forest().commit().unwrap();
    file.set_property(None);
    file.set_flags(InodeFlags::default());
    // All space has been freed.
    let fits = {
        let source = open(&fresh(128));
        create(&source, INO, InodeFlags::default());
        state(&source, INO).write_at(0, &noise(120 * MIB)).unwrap()
    };
    let written = file.write_at(0, &noise(120 * MIB)).unwrap();
    assert_eq!(written, fits);
}

#[test]
fn a_cut_compressed_extent_is_shown_in_parts_and_merged_once() {
    let source = open(&fresh(256));
    let mut file = compressed_file(&source, Some(Compression::Zlib));
    let mut data = text(MIB);
    file.write_at(0, &data).unwrap();
    for at in (0..MIB).step_by(40_000) {
        file.write_at(at as u64, &noise(5000)).unwrap();
        data[at..at + 5000].copy_from_slice(&noise(5000)[..5000.min(MIB - at)]);
    }
    file.write_back().unwrap();
    compare(&source, &file, &data);
    file.merge(&mut |_| {}).unwrap();
    source.forest().commit().unwrap();
    compare(&source, &file, &data);
    file.punch_hole(100_000..300_000, &mut |_| {}).unwrap();
    data[100_000..300_000].fill(0);
    file.merge(&mut |_| {}).unwrap();
    compare(&source, &file, &data);
}

/// Noise twice. A shorter part of it does not look compressible: all bytes of a sample differ.
fn repeated_noise(bytes: usize) -> Vec<u8> {
    let mut half = noise(bytes / 2);
    for (number, chunk) in half.chunks_mut(256).enumerate() {
        chunk.iter_mut().zip(16 * number as u8..).take(16).for_each(|(byte, new)| *byte = new);
    }
    half.repeat(2)
}

#[test]
fn a_small_file_that_is_not_compressible_any_more_keeps_its_data_on_a_full_volume() {
    let source = open(&fresh(256));
    let mut file = compressed_file(&source, Some(Compression::Zstd));
    let mut data = repeated_noise(3584);
    file.write_at(0, &data).unwrap();
    // It is to become inline, so writeback leaves it in memory.
    file.write_back().unwrap();
    assert!(file.has_dirty_inline());
    let forest = source.forest();
    let mut taken = Vec::new();
    while let Ok(space) = forest.allocate_data(4096, 128 << 20, Cluster(0), Wait::Block) {
        taken.push(space);
    }
    file.truncate(3328, &mut |_| {}).unwrap();
    data.truncate(3328);
    compare(&source, &file, &data);
    file.merge(&mut |_| {}).unwrap();
    compare(&source, &file, &data);
    assert_eq!(extents(&file), [(0, 4096, Compression::None, 4096)]);
}
