//! Damage: exactly the bytes that are bad are missing, and everything else is served.

use crate::content::{noise, text};
use crate::image::{Image, is_left_out, view};
use butternut_file::{FileError, MappingKind, Mappings, ReadAt, Source, SourceOptions, Stream};
use std::fs::{self, OpenOptions};
use std::os::unix::fs::{FileExt, MetadataExt};

const SECTOR: u64 = 4096;

/// Flips a byte of every place in the image that holds these 4 KiB. Says how many there were.
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

/// Writes one file and says its number.
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
fn a_read_stops_at_the_first_bad_sector_and_goes_on_behind_it() {
    if is_left_out("a_read_stops_at_the_first_bad_sector_and_goes_on_behind_it") {
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
fn a_bad_packed_extent_is_missed_whole_and_alone() {
    if is_left_out("a_bad_packed_extent_is_missed_whole_and_alone") {
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
fn a_good_copy_stands_in_for_a_bad_one() {
    if is_left_out("a_good_copy_stands_in_for_a_bad_one") {
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
fn without_checksums_what_is_there_is_served() {
    if is_left_out("without_checksums_what_is_there_is_served") {
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
