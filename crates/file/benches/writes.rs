//! Writes of one file: large and small sequential writes, random 4 KiB writes; the cost of merging
//! and committing them; and small files. For comparison, the same bytes written to the device
//! itself.
//!
//! The figures are relative: the line of the device shows what the machine can do.

#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    clippy::cast_precision_loss,
    clippy::cast_possible_truncation,
    reason = "a bench prints, and stops where it fails"
)]

use butternut_device::{Device, FileDevice, OpenDevice};
use butternut_file::{FileState, MergeFile, Source, SourceOptions};
use butternut_format::inode::Inode;
use butternut_format::key::{ItemType, Key};
use butternut_format::units::{Ino, TreeId};
use butternut_mkfs::MkfsOptions;
use butternut_tree::{Forest, ForestOptions, Need};
use butternut_volume::{OpenOptions, Volume};
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

const MIB: u64 = 1 << 20;
const IMAGE_BYTES: u64 = 1600 * MIB;
const FILE_BYTES: u64 = 512 * MIB;
const RANDOM_WRITES: u64 = 100_000;
const SMALL_FILES: u64 = 30_000;

fn main() {
    let is_quick = std::env::args().any(|argument| argument == "--test");
    let scale = if is_quick { 64 } else { 1 };
    let place =
        if Path::new("/dev/shm").is_dir() { "/dev/shm".into() } else { std::env::temp_dir() };
    let dir = tempfile::TempDir::with_prefix_in("butternut-bench-", place).unwrap();
    let path = dir.path().join("image");
    std::fs::File::create(&path).unwrap().set_len(IMAGE_BYTES).unwrap();
    let options = OpenDevice { writable: true, ..OpenDevice::default() };
    let device = FileDevice::open(&path, &options).unwrap();
    raw(&device, FILE_BYTES / scale);
    butternut_mkfs::make(&device, &MkfsOptions { overwrite: true, ..MkfsOptions::default() })
        .unwrap();
    let volume = Volume::open(vec![Arc::new(device)], OpenOptions::default()).unwrap();
    let forest = Forest::open_writable(Arc::new(volume), ForestOptions::default()).unwrap();
    let workers = rayon::ThreadPoolBuilder::new().num_threads(2).build().unwrap();
    let source = Source::open(forest, Arc::new(workers), SourceOptions::default()).unwrap();
    for ino in 300..303 {
        create(&source, ino);
    }
    let chosen = std::env::args().skip(1).find(|argument| !argument.starts_with('-'));
    if chosen.is_none_or(|chosen| chosen == "large") {
        sequential(&source, 300, MIB as usize, FILE_BYTES / scale);
        sequential(&source, 301, 4096, FILE_BYTES / 8 / scale);
        random(&source, 300, FILE_BYTES / scale, RANDOM_WRITES / scale);
    }
    small(&source, 1000, 4096, SMALL_FILES / scale);
    small(&source, 100_000, 1000, SMALL_FILES / scale);
}

/// Small files, merged in batches.
fn small(source: &Source, first_ino: u64, each: usize, count: u64) {
    let data = noise(4, each);
    let start = Instant::now();
    for ino in first_ino..first_ino + count {
        create(source, ino);
    }
    report(&format!("{each} bytes in a file: create"), 0, count, start);
    let start = Instant::now();
    let mut files: Vec<FileState> = Vec::new();
    for ino in first_ino..first_ino + count {
        let mut file = state(source, ino);
        file.write_at(0, &data).unwrap();
        files.push(file);
    }
    report("  write", count * each as u64, count, start);
    let start = Instant::now();
    for batch in files.chunks_mut(128) {
        let mut updates: Vec<_> = batch.iter().map(|_| |_: &mut Inode| {}).collect();
        let mut merging: Vec<MergeFile<'_>> = batch
            .iter_mut()
            .zip(&mut updates)
            .map(|(file, update)| MergeFile { file, update })
            .collect();
        FileState::merge_many(&mut merging).unwrap();
    }
    report("  flush and merge", 0, count, start);
    let start = Instant::now();
    source.forest().commit().unwrap();
    report("  commit", 0, count, start);
}

fn report(what: &str, bytes: u64, writes: u64, start: Instant) {
    let seconds = start.elapsed().as_secs_f64();
    let rate = bytes as f64 / seconds / 1e6;
    let each = seconds / writes as f64 * 1e6;
    println!("{what:<32} {rate:8.0} MB/s {each:10.2} us each");
}

fn raw(device: &FileDevice, bytes: u64) {
    let data = butternut_sys::buffer::Buffer::copy_of(&noise(1, MIB as usize));
    for turn in 0..2 {
        let start = Instant::now();
        for at in 0..bytes / MIB {
            device.write_at(at * MIB, &data).unwrap();
        }
        if turn == 1 {
            report("device, 1 MiB sequential", bytes, bytes / MIB, start);
        }
    }
}

fn sequential(source: &Source, ino: u64, each: usize, bytes: u64) {
    let mut file = state(source, ino);
    let data = noise(2, each);
    let writes = bytes / each as u64;
    let start = Instant::now();
    for number in 0..writes {
        file.write_at(number * each as u64, &data).unwrap();
    }
    report(&format!("{} KiB sequential", each >> 10), bytes, writes, start);
    finish(source, &mut file, writes);
}

fn random(source: &Source, ino: u64, file_bytes: u64, writes: u64) {
    let mut file = state(source, ino);
    let data = noise(3, 4096);
    let mut seed = 7_u64;
    let start = Instant::now();
    for _ in 0..writes {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let at = (seed >> 20) % (file_bytes / 4096) * 4096;
        file.write_at(at, &data).unwrap();
    }
    report("4 KiB random", writes * 4096, writes, start);
    finish(source, &mut file, writes);
}

fn finish(source: &Source, file: &mut FileState, writes: u64) {
    let start = Instant::now();
    file.write_back().unwrap();
    report("  flush", 0, writes, start);
    let start = Instant::now();
    file.merge(&mut |_| {}).unwrap();
    report("  merge", 0, writes, start);
    let start = Instant::now();
    source.forest().commit().unwrap();
    report("  commit", 0, writes, start);
}

fn create(source: &Source, ino: u64) {
    let tree = source.forest().tree(TreeId::FS).unwrap().unwrap();
    let top = tree.find(&Key::new(256, ItemType::INODE_ITEM, 0)).unwrap().unwrap();
    let top = Inode::check(top.data()).unwrap();
    let inode = Inode { size: 0, bytes_used: 0, mode: 0o100_644, ..top };
    let handle = source.forest().join(Need::items(1)).unwrap();
    let edit = handle.tree(TreeId::FS).unwrap();
    edit.put(&Key::new(ino, ItemType::INODE_ITEM, 0), &inode.to_bytes()).unwrap();
}

fn state(source: &Source, ino: u64) -> FileState {
    let tree = source.forest().tree(TreeId::FS).unwrap().unwrap();
    let item = tree.find(&Key::new(ino, ItemType::INODE_ITEM, 0)).unwrap().unwrap();
    FileState::new(source, &tree, Ino(ino), &Inode::check(item.data()).unwrap())
}

fn noise(seed: u64, bytes: usize) -> Vec<u8> {
    let mut state = seed;
    let mut next = || {
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        state
    };
    (0..bytes / 8).flat_map(|_| next().to_le_bytes()).collect()
}
