//! What memory keeps of many small files that no program has open any more.

#![allow(clippy::unwrap_used, reason = "a test panics where it fails")]
#![allow(dead_code, reason = "what volumes of tests share, not every test uses")]

mod volume;

use butternut::{Filesystem, MountOptions};
use volume::{TestVolume, new};

const FILES: u64 = 30_000;
const PAGE_CACHE_BYTES: u64 = 8 << 20;
const NODE_CACHE_BYTES: u64 = 8 << 20;
/// Beside the caches, for each file: its place in the inode table.
const BYTES_PER_FILE: u64 = 768;
/// Running transaction, allocator, threads.
const REST_BYTES: u64 = 24 << 20;

/// Anonymous memory of this process, in bytes.
fn resident_bytes() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:")).unwrap();
    line.trim().strip_suffix(" kB").unwrap().parse::<u64>().unwrap() << 10
}

#[test]
fn closed_files_cost_their_inodes_only() {
    let volume = TestVolume::of(2 << 30, &butternut_mkfs::MkfsOptions::default());
    let options = MountOptions {
        read_only: false,
        page_cache_bytes: PAGE_CACHE_BYTES,
        node_cache_bytes: NODE_CACHE_BYTES,
        ..MountOptions::default()
    };
    let fs = Filesystem::open_devices(volume.devices(), &options).unwrap();
    let warm = |from: u64, count: u64| {
        for number in from..from + count {
            let name = format!("file-{number}");
            let id = fs.create(fs.root(), name.as_bytes(), &new(0o644)).unwrap();
            // In the tree, so that the device in memory holds nothing else that grows.
            fs.open_file(id).unwrap().write_at(0, &[7; 100]).unwrap();
        }
        fs.sync().unwrap();
    };
    warm(0, 1000);
    let before = resident_bytes();
    warm(1000, FILES);
    let grown = resident_bytes().saturating_sub(before);
    // The device itself is memory, too: a leaf holds 100 bytes of a file and its items.
    let device = FILES * 600;
    let limit = PAGE_CACHE_BYTES + NODE_CACHE_BYTES + FILES * BYTES_PER_FILE + REST_BYTES + device;
    println!("{} bytes for each file, {grown} in all, at most {limit}", grown / FILES);
    assert!(grown <= limit, "{grown} bytes, at most {limit}");
}
