//! Damage: exactly the damaged bytes are missing, and everything else can be read.

use crate::content::{noise, text};
use crate::image::{Image, is_skipped, view};
use butternut_file::{FileError, MappingKind, Mappings, ReadAt, Source, SourceOptions, Stream};
use butternut_format::checksum::ChecksumKind;
use butternut_format::key::{ItemType, Key};
use butternut_format::units::TreeId;
use butternut_tree::Cursor;
use flate2::write::ZlibEncoder;
use std::fs::{self, OpenOptions};
use std::io::Write;
use std::os::unix::fs::{FileExt, MetadataExt};

const SECTOR: u64 = 4096;

/// Flips a byte of every sector of the image with these contents. Returns how many there were.
fn damage(image: &Image, sector: &[u8]) -> usize {
    let bytes = fs::read(image.path()).unwrap();
    let file = OpenOptions::new().write(true).open(image.path()).unwrap();
    let places = bytes.chunks(4096).enumerate().filter(|(_, chunk)| *chunk == sector);
    let mut count = 0;
    for (index, chunk) in places {
        let at = index as u64 * SECTOR + 1000;
        file.write_all_at(&[chunk[1000] ^ 0x40], at).unwrap();
        count += 1;
    }
    count
}

/// Writes one file and returns its inode number.
fn one_file(image: &Image, options: &str, bytes: &[u8]) -> u64 {
    let mounted = image.mount(options);
    let path = mounted.file("file");
    fs::write(&path, bytes).unwrap();
    mounted.sync();
    fs::metadata(&path).unwrap().ino()
}

fn read(source: &Source, ino: u64, at: u64, bytes: usize) -> Result<Vec<u8>, FileError> {
    let mut out = vec![0; bytes];
    let filled = source.read_at(&view(source, ino), at, &mut out)?;
    out.truncate(filled);
    Ok(out)
}

#[test]
fn a_read_stops_at_the_first_bad_sector_and_continues_after_it() {
    if is_skipped("a_read_stops_at_the_first_bad_sector_and_continues_after_it") {
        return;
    }
    let image = Image::make(128, "-d single");
    let content = noise(70, 1_000_003);
    let ino = one_file(&image, "compress=no", &content);
    for sector in [10, 11, 200] {
        let at = sector * 4096;
        assert_eq!(damage(&image, &content[at..at + 4096]), 1);
    }
    let source = image.open(SourceOptions::default());
    for (at, bytes, good) in [
        (0, 1 << 20, 40_960),
        (0, 40_960, 40_960),
        (3, 60_000, 40_957),
        (40_959, 2, 1),
        (49_152, 1 << 20, 819_200 - 49_152),
        (49_153, 300_000, 300_000),
        (823_296, 1 << 20, 1_000_003 - 823_296),
        (700_001, 150_000, 819_200 - 700_001),
    ] {
        let got = read(&source, ino, at as u64, bytes).unwrap();
        assert!(got == content[at..at + good], "at {at}: {} bytes", got.len());
    }
    for (at, bytes) in [(40_960, 1), (40_960, 1 << 20), (45_055, 10), (49_151, 9000), (820_000, 5)]
    {
        let error = read(&source, ino, at, bytes).unwrap_err();
        let FileError::Data { offset, .. } = error else { panic!("{error}") };
        assert_eq!(offset, at);
    }
    let stream = Stream::new(source.clone(), view(&source, ino));
    let mut bytes = vec![0; 4096];
    for sector in 0..245 {
        let result = stream.read_at(sector * SECTOR, &mut bytes);
        assert_eq!(result.is_err(), [10, 11, 200].contains(&sector), "sector {sector}");
    }
    let mut buffers = vec![vec![0; 4096]; 245];
    let numbered = buffers.iter_mut().enumerate();
    let mut reads: Vec<_> =
        numbered.map(|(sector, buf)| ReadAt::new(sector as u64 * SECTOR, buf)).collect();
    source.read_many(&view(&source, ino), &mut reads);
    for (sector, read) in reads.iter().enumerate() {
        assert_eq!(read.result.is_err(), [10, 11, 200].contains(&sector), "sector {sector}");
    }
}

#[test]
fn a_bad_compressed_extent_is_missing_as_a_whole_and_alone() {
    if is_skipped("a_bad_compressed_extent_is_missing_as_a_whole_and_alone") {
        return;
    }
    let image = Image::make(128, "-d single");
    let content = text(71, 600_000);
    let ino = one_file(&image, "compress-force=zstd", &content);
    let source = image.open(SourceOptions::default());
    let mapping = Mappings::of(&view(&source, ino), 0..600_000).nth(2).unwrap().unwrap();
    let MappingKind::Regular { extent, .. } = mapping.kind else { panic!("{mapping:?}") };
    let mut sector = vec![0; 4096];
    source.forest().volume().read_raw(extent.logical, 0, &mut sector).unwrap();
    drop(source);
    assert_eq!(damage(&image, &sector), 1);
    let source = image.open(SourceOptions::default());
    let (start, end) = (mapping.offset as usize, mapping.end() as usize);
    assert!(read(&source, ino, 0, 1 << 20).unwrap() == content[..start]);
    assert!(read(&source, ino, start as u64, 1 << 20).is_err());
    assert!(read(&source, ino, end as u64 - 1, 100).is_err());
    assert!(read(&source, ino, end as u64, 1 << 20).unwrap() == content[end..]);
}

#[test]
fn a_good_mirror_replaces_a_bad_one() {
    if is_skipped("a_good_mirror_replaces_a_bad_one") {
        return;
    }
    let image = Image::make(256, "-d dup");
    let content = noise(72, 300_000);
    let ino = one_file(&image, "compress=no", &content);
    let bytes = fs::read(image.path()).unwrap();
    let sector = &content[8192..12_288];
    let first = bytes.chunks(4096).position(|chunk| chunk == sector).unwrap() as u64;
    let file = OpenOptions::new().write(true).open(image.path()).unwrap();
    file.write_all_at(&[!sector[0]], first * SECTOR).unwrap();
    let source = image.open(SourceOptions::default());
    assert!(read(&source, ino, 0, 300_000).unwrap() == content);
}

#[test]
fn without_checksums_damaged_data_is_returned() {
    if is_skipped("without_checksums_damaged_data_is_returned") {
        return;
    }
    let image = Image::make(128, "-d single");
    let mut content = noise(73, 50_000);
    let ino = one_file(&image, "nodatasum", &content);
    assert_eq!(damage(&image, &content[4096..8192]), 1);
    content[4096 + 1000] ^= 0x40;
    let source = image.open(SourceOptions::default());
    assert!(read(&source, ino, 0, 50_000).unwrap() == content);
}

/// Changes the item at the cursor, and the block's checksum with it. Metadata is single.
fn change_item(image: &Image, cursor: &Cursor, change: impl FnOnce(&mut [u8])) {
    let item = cursor.data().unwrap();
    let old = cursor.position().unwrap().0.bytes();
    let at = item.as_ptr().addr() - old.as_ptr().addr();
    let mut new = old.to_vec();
    change(&mut new[at..at + item.len()]);
    let checksum_of_block = ChecksumKind::Crc32c.compute(&new[32..]);
    new[..32].copy_from_slice(&checksum_of_block);
    write_over(image, old, &new);
}

/// Overwrites the old bytes in the image with new ones.
fn write_over(image: &Image, old: &[u8], new: &[u8]) {
    let bytes = fs::read(image.path()).unwrap();
    let place = bytes.chunks(4096).position(|chunk| chunk == &old[..4096]).unwrap();
    let file = OpenOptions::new().write(true).open(image.path()).unwrap();
    file.write_all_at(new, place as u64 * SECTOR).unwrap();
}

/// Clears the NODATASUM flag of the inode, whose data has no checksums.
fn clear_nodatasum(image: &Image, ino: u64) {
    let source = image.open(SourceOptions::default());
    let mut cursor = view(&source, ino).tree().cursor();
    cursor.seek(&Key::new(ino, ItemType::INODE_ITEM, 0)).unwrap();
    change_item(image, &cursor, |inode| {
        assert_eq!(inode[64] & 1, 1, "NODATASUM was set");
        inode[64] &= !1;
    });
}

/// Replaces the compressed bytes of the file's first extent, and their checksums.
fn recompress(image: &Image, ino: u64, compressed: &[u8]) {
    let source = image.open(SourceOptions::default());
    let mapping = Mappings::of(&view(&source, ino), 0..4096).next().unwrap().unwrap();
    let MappingKind::Regular { extent, .. } = mapping.kind else { panic!("{mapping:?}") };
    let mut old = vec![0; extent.bytes as usize];
    source.forest().volume().read_raw(extent.logical, 0, &mut old).unwrap();
    let mut new = compressed.to_vec();
    assert!(new.len() <= old.len());
    new.resize(old.len(), 0);
    let checksums = source.forest().tree(TreeId::CHECKSUM).unwrap().unwrap();
    let mut cursor = checksums.cursor();
    let key = Key::new(u64::MAX - 9, ItemType::EXTENT_CSUM, extent.logical.0);
    cursor.seek_last(&key).unwrap();
    let first = (extent.logical.0 - cursor.key().unwrap().offset) / SECTOR * 4;
    change_item(image, &cursor, |checksums| {
        for (checksum, sector) in checksums[first as usize..].chunks_mut(4).zip(new.chunks(4096)) {
            checksum.copy_from_slice(&ChecksumKind::Crc32c.compute(sector)[..4]);
        }
    });
    write_over(image, &old, &new);
}

/// What we and the kernel read of a compressed extent of 20,000 bytes, whose compressed data is
/// replaced by `recompressed`.
fn both_read(algorithm: &str, recompressed: &[u8]) -> (Option<Vec<u8>>, Option<Vec<u8>>) {
    let image = Image::make(128, "-d single -m single");
    let mut content = text(75, 20_000);
    content[8000..].rotate_left(1000);
    let ino = one_file(&image, &format!("compress-force={algorithm}"), &content);
    recompress(&image, ino, recompressed);
    let ours = read(&image.open(SourceOptions::default()), ino, 0, 20_000).ok();
    let mounted = image.mount("ro");
    (ours, fs::read(mounted.file("file")).ok())
}

#[test]
fn short_or_invalid_compressed_extents_read_as_the_kernel_reads_them() {
    if is_skipped("short_or_invalid_compressed_extents_read_as_the_kernel_reads_them") {
        return;
    }
    let less = text(76, 5000);
    let zlib = {
        let mut encoder = ZlibEncoder::new(Vec::new(), flate2::Compression::new(3));
        encoder.write_all(&less).unwrap();
        encoder.finish().unwrap()
    };
    let zstd = zstd::bulk::compress(&less, 3).unwrap();
    let mut bad_sum = zlib.clone();
    *bad_sum.last_mut().unwrap() ^= 1;
    let filled: Vec<u8> = less.iter().copied().chain([0; 15_000]).collect();
    for (algorithm, compressed, want) in [
        ("zlib", &zlib, Some(&filled)),
        ("zlib", &bad_sum, Some(&filled)),
        ("zstd", &zstd, Some(&filled)),
        ("zlib", &noise(77, 4096), None),
        ("lzo", &noise(77, 4096), None),
        ("zstd", &noise(77, 4096), None),
    ] {
        let (ours, kernels) = both_read(algorithm, compressed);
        let named = |bytes: &Option<Vec<u8>>| bytes.as_ref().map(Vec::len);
        assert!(ours == kernels, "{algorithm}: {:?}, {:?}", named(&ours), named(&kernels));
        assert!(ours.as_ref() == want, "{algorithm}");
    }
}

#[test]
fn missing_checksums_fail_reads_as_in_the_kernel() {
    if is_skipped("missing_checksums_fail_reads_as_in_the_kernel") {
        return;
    }
    let image = Image::make(128, "-d single -m single");
    let ino = one_file(&image, "nodatasum", &noise(74, 50_000));
    clear_nodatasum(&image, ino);
    let source = image.open(SourceOptions::default());
    let error = read(&source, ino, 20_000, 5).unwrap_err();
    assert!(matches!(error, FileError::NoChecksum { offset: 20_000, .. }), "{error}");
    drop(source);
    let mounted = image.mount("ro");
    let error = fs::read(mounted.file("file")).unwrap_err();
    assert_eq!(error.raw_os_error(), Some(rustix::io::Errno::IO.raw_os_error()));
}
