//! Every byte as the kernel reads it, at any offset and length.

use crate::content::{Seen, fill, noise, text};
use crate::image::{Image, is_skipped, view};
use crate::script::Dice;
use butternut_file::{MappingKind, Mappings, ReadAt, Source, SourceOptions, Stream};
use std::os::unix::fs::MetadataExt;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Caches so small that most lookups miss.
const TINY: SourceOptions = SourceOptions {
    map_cache_bytes: 20_000,
    plain_map_cache_bytes: 20_000,
    checksum_cache_bytes: 40_000,
    decompressed_cache_bytes: 0,
    verity_cache_bytes: 0,
    page_cache_bytes: 256 << 10,
    pending_bytes: 0,
    compress: None,
};

#[test]
fn every_kind_of_file_reads_as_the_kernel_reads_it() {
    if !is_skipped("every_kind_of_file_reads_as_the_kernel_reads_it") {
        check("--csum crc32c", SourceOptions::default());
    }
}

#[test]
fn volumes_with_explicit_holes_read_the_same() {
    if !is_skipped("volumes_with_explicit_holes_read_the_same") {
        check("-O ^no-holes --csum xxhash64 -n 4096", TINY);
    }
}

#[test]
fn wide_checksums_and_mixed_groups_read_the_same() {
    if !is_skipped("wide_checksums_and_mixed_groups_read_the_same") {
        check("--csum sha256 --mixed", TINY);
        check("--csum blake2", SourceOptions::default());
    }
}

fn check(mkfs: &str, options: SourceOptions) {
    let image = Image::make(256, mkfs);
    let files = fill(&image);
    let source = image.open(options);
    for file in &files {
        whole(&source, file);
        parts(&source, file);
        many(&source, file);
        stream(&source, file);
        mappings(&source, file);
    }
}

fn whole(source: &Source, file: &Seen) {
    let view = view(source, file.ino);
    assert_eq!(view.size(), file.bytes.len() as u64, "{}", file.name);
    let mut bytes = vec![0xEE; file.bytes.len() + 5000];
    let filled = source.read_at(&view, 0, &mut bytes).unwrap();
    assert_eq!(filled, file.bytes.len(), "{}", file.name);
    assert!(bytes[..filled] == file.bytes, "{}", file.name);
}

/// A random offset, most likely near an earlier one or near an edge.
fn offset(dice: &mut Dice, size: u64) -> u64 {
    match dice.below(4) {
        0 => dice.below(size + 10_000),
        1 => dice.below(size / 4096 + 2) * 4096,
        2 => (dice.below(size / (128 << 10) + 2) * (128 << 10)).saturating_sub(dice.below(3)),
        _ => size.saturating_sub(dice.below(9000)),
    }
}

fn length(dice: &mut Dice) -> usize {
    let bound = [2, 4097, 20_000, 300_000, 2_500_000][dice.below(5) as usize];
    let bytes = dice.below(bound) as usize;
    if dice.below(3) == 0 { bytes.next_multiple_of(4096) } else { bytes }
}

fn expected(file: &Seen, offset: u64, bytes: usize) -> &[u8] {
    let start = file.bytes.len().min(offset as usize);
    &file.bytes[start..file.bytes.len().min(start + bytes)]
}

fn parts(source: &Source, file: &Seen) {
    let view = view(source, file.ino);
    let mut dice = Dice::new(60);
    let mut bytes = vec![0; 3 << 20];
    for _ in 0..60 {
        let at = offset(&mut dice, view.size());
        let room = length(&mut dice);
        let shift = [0, 0, 1, 512, 4000][dice.below(5) as usize];
        let out = &mut bytes[shift..shift + room];
        out.fill(0xEE);
        let filled = source.read_at(&view, at, out).unwrap();
        let want = expected(file, at, room);
        assert_eq!(filled, want.len(), "{} at {at} + {room}", file.name);
        assert!(out[..filled] == *want, "{} at {at} + {room}", file.name);
    }
}

fn many(source: &Source, file: &Seen) {
    let view = view(source, file.ino);
    let mut dice = Dice::new(61);
    let mut buffers = vec![vec![0xEE; 9000]; 200];
    let mut reads: Vec<ReadAt<'_>> = buffers
        .iter_mut()
        .map(|buffer| {
            let room = if dice.below(2) == 0 { 4096 } else { dice.below(9001) as usize };
            ReadAt::new(offset(&mut dice, view.size()), &mut buffer[..room])
        })
        .collect();
    source.read_many(&view, &mut reads);
    for read in &reads {
        let want = expected(file, read.offset, read.buf.len());
        let filled = *read.result.as_ref().unwrap();
        assert_eq!(filled, want.len(), "{} at {}", file.name, read.offset);
        assert!(read.buf[..filled] == *want, "{} at {}", file.name, read.offset);
    }
}

/// Sequential reads by one thread or several, with a jump now and then.
fn stream(source: &Source, file: &Seen) {
    for (block, threads, jumps) in [
        (4096, 1, false),
        (1000, 1, true),
        (65_536, 1, false),
        (131_072, 3, true),
        (1 << 20, 1, false),
    ] {
        let stream = Stream::new(source.clone(), view(source, file.ino));
        let next = AtomicUsize::new(0);
        let reader = |seed: u64| {
            let mut dice = Dice::new(seed);
            let mut bytes = vec![0xEE; block];
            loop {
                let mut at = next.fetch_add(block, Ordering::Relaxed) as u64;
                if at > stream.view().size() {
                    break;
                }
                if jumps && dice.below(40) == 0 {
                    at = dice.below(stream.view().size() + 1);
                }
                let filled = stream.read_at(at, &mut bytes).unwrap();
                let want = expected(file, at, block);
                assert_eq!(filled, want.len(), "{} at {at} + {block}", file.name);
                assert!(bytes[..filled] == *want, "{} at {at} + {block}", file.name);
            }
        };
        std::thread::scope(|scope| {
            for seed in 0..threads {
                let reader = &reader;
                scope.spawn(move || reader(seed));
            }
        });
    }
}

/// Mappings leave no gap, and what they report as a hole holds zeroes.
fn mappings(source: &Source, file: &Seen) {
    let view = view(source, file.ino);
    let mut at = 0;
    for mapping in Mappings::of(&view, 0..view.size()) {
        let mapping = mapping.unwrap();
        assert_eq!(mapping.offset, at, "{}", file.name);
        at = mapping.end();
        if matches!(mapping.kind, MappingKind::Hole | MappingKind::Preallocated { .. }) {
            let part = &file.bytes[mapping.offset as usize..mapping.end() as usize];
            assert!(part.iter().all(|byte| *byte == 0), "{}: {mapping:?}", file.name);
        }
    }
    assert_eq!(at, view.size(), "{}", file.name);
}

#[test]
fn one_extent_is_one_device_read_and_a_cached_decompressed_extent_is_none() {
    if is_skipped("one_extent_is_one_device_read_and_a_cached_decompressed_extent_is_none") {
        return;
    }
    let image = Image::make(128, "-d single");
    let (plain, compressed) = {
        let mounted = image.mount("compress=no");
        std::fs::write(mounted.file("plain"), noise(90, 4 << 20)).unwrap();
        mounted.remount("compress-force=zstd");
        std::fs::write(mounted.file("packed"), text(91, 1 << 20)).unwrap();
        let ino = |name| std::fs::metadata(mounted.file(name)).unwrap().ino();
        (ino("plain"), ino("packed"))
    };
    let source = image.open(SourceOptions::default());
    let reads = || {
        let devices = source.forest().volume().devices();
        devices[0].device.as_ref().unwrap().counters().now().reads
    };
    let count = |ino: u64, at: u64, bytes: usize| {
        let view = view(&source, ino);
        let before = reads();
        assert_eq!(source.read_at(&view, at, &mut vec![0; bytes]).unwrap(), bytes);
        reads() - before
    };
    // The first read of each file also reads the trees.
    count(plain, 0, 1);
    assert_eq!(count(plain, 0, 1 << 20), 1, "a whole MiB");
    assert_eq!(count(plain, 1 << 19, 1 << 20), 1, "across cached map regions");
    assert_eq!(count(plain, 5000, 10), 1);
    count(compressed, 0, 1);
    assert_eq!(count(compressed, 1, 4096), 0, "part of an extent that was just decompressed");
    assert_eq!(count(compressed, 128 << 10, 128 << 10), 1);
}

/// Regression test: large reads dropped the pages that had been read ahead inside their range, and
/// read them again.
#[test]
fn a_stream_reads_each_compressed_extent_once_for_any_read_size() {
    if is_skipped("a_stream_reads_each_compressed_extent_once_for_any_read_size") {
        return;
    }
    let image = Image::make(256, "");
    let mounted = image.mount("compress-force=zstd");
    let text = text(1, 16 << 20);
    std::fs::write(mounted.file("packed"), &text).unwrap();
    let ino = std::fs::metadata(mounted.file("packed")).unwrap().ino();
    drop(mounted);
    for read_bytes in [4096, 128 << 10, 1 << 20, 3 << 20] {
        let source =
            image.open(SourceOptions { decompressed_cache_bytes: 0, ..Default::default() });
        let view = view(&source, ino);
        let device = source.forest().volume().devices()[0].device.clone().unwrap();
        let before = device.counters().now();
        let stream = Stream::new(source, view);
        let (mut bytes, mut offset) = (vec![0; read_bytes], 0);
        loop {
            let filled = stream.read_at(offset as u64, &mut bytes).unwrap();
            if filled == 0 {
                break;
            }
            assert!(bytes[..filled] == text[offset..offset + filled]);
            offset += filled;
        }
        assert_eq!(offset, text.len());
        let reads = (device.counters().now() - before).reads;
        let extents = text.len() as u64 / (128 << 10);
        // The first reads, before the stream is detected as sequential, and the trees.
        let most = extents + 40;
        assert!(reads <= most, "{reads} reads of {extents} extents, {read_bytes} bytes a time");
    }
}
