//! Measures how many files one thread creates, stats, renames and deletes per second, on a volume
//! in memory: empty files, and files of one block.
//!
//! `BUTTERNUT_BENCH_FILES` is the number of files; the default is 100,000.

#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a benchmark prints its rates, and stops at the first surprise"
)]

use butternut::device::{Device, MemoryDevice};
use butternut::{Filesystem, MountOptions, NewInode, RenameFlags};
use std::sync::Arc;
use std::time::Instant;

fn main() {
    let files = std::env::var("BUTTERNUT_BENCH_FILES");
    let count: u32 = files.map_or(100_000, |count| count.parse().unwrap());
    for bytes in [0, 4096] {
        println!("{count} files of {bytes} bytes");
        run(count, bytes);
    }
}

fn run(count: u32, bytes: usize) {
    let device = Arc::new(MemoryDevice::new("memory", 4 << 30));
    butternut_mkfs::make(&*device, &butternut_mkfs::MkfsOptions::default()).unwrap();
    let options = MountOptions::default().read_only(false);
    let fs = Filesystem::open_devices(vec![device as Arc<dyn Device>], &options).unwrap();
    let dir = fs.mkdir(fs.root(), b"dir", &NewInode::new(0o755)).unwrap();
    let (old, new) = (|n: u32| format!("file-{n:08}"), |n: u32| format!("renamed-{n:08}"));
    let data = vec![7; bytes];
    let timed = |what: &str, step: &dyn Fn(u32)| {
        let start = Instant::now();
        (0..count).for_each(step);
        let took = start.elapsed();
        fs.sync().unwrap();
        let rate = f64::from(count) / took.as_secs_f64();
        println!("  {what}: {rate:.0}/s, then sync {:?}", start.elapsed().saturating_sub(took));
    };
    timed("create", &|number| {
        let id = fs.create(dir, old(number).as_bytes(), &NewInode::new(0o644)).unwrap();
        if bytes > 0 {
            fs.open_file(id).unwrap().write_at(0, &data).unwrap();
        }
    });
    timed("stat", &|number| {
        let id = fs.lookup(dir, old(number).as_bytes()).unwrap();
        assert_eq!(fs.stat(id).unwrap().size, bytes as u64);
    });
    timed("rename", &|number| {
        let (from, to) = (old(number), new(number));
        let flags = RenameFlags::default();
        fs.rename((dir, from.as_bytes()), (dir, to.as_bytes()), flags).unwrap();
    });
    timed("unlink", &|number| fs.unlink(dir, new(number).as_bytes()).unwrap());
    fs.close().unwrap();
}
