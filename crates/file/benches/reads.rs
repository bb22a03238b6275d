//! Speed of reads through this crate, compared with fio on the raw device and kernel btrfs on the
//! same device.
//!
//! Creates an image in memory (`/dev/shm`) on a loop device, so that the CPU is the bottleneck.
//! Needs root, mkfs.btrfs and fio. Run it with `cargo bench -p butternut-file`; a word after `--`
//! selects the parts whose names contain it.

#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    clippy::cast_precision_loss,
    clippy::cast_possible_truncation,
    reason = "a benchmark that panics has failed; it prints, and its numbers are rounded"
)]

use butternut_device::{FileDevice, OpenDevice};
use butternut_file::{FileView, ReadAt, Source, SourceOptions, Stream};
use butternut_format::inode::Inode;
use butternut_format::key::{ItemType, Key};
use butternut_format::units::{Ino, TreeId};
use butternut_sys::buffer::Buffer;
use butternut_tree::{Forest, ForestOptions};
use butternut_volume::{OpenOptions, Volume};
use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

const MIB: usize = 1 << 20;
const PLAIN_MIB: usize = 1024;
const COMPRESSED_MIB: usize = 768;
const RANDOM_READS: usize = 400_000;

struct Bench {
    dir: PathBuf,
    device: String,
    plain: u64,
    compressed: u64,
    chosen: Option<String>,
}

fn main() {
    let chosen = std::env::args().skip(1).find(|arg| !arg.starts_with('-'));
    let bench = Bench::prepare(chosen);
    bench.part("sequential-plain", Bench::sequential_plain);
    bench.part("sequential-zstd", Bench::sequential_compressed);
    bench.part("random-4k", Bench::random);
}

fn run(words: &str) -> String {
    let mut split = words.split_whitespace();
    let out = Command::new(split.next().unwrap()).args(split).output().unwrap();
    assert!(out.status.success(), "{words}: {}", String::from_utf8_lossy(&out.stderr));
    String::from_utf8(out.stdout).unwrap().trim().to_owned()
}

fn next(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9E37_79B9_7F4A_7C15);
    let z = (*state ^ (*state >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z ^ (z >> 29)
}

/// 1 MiB that zstd compresses to about a third, like source text.
fn text(state: &mut u64) -> Vec<u8> {
    let mut text = Vec::with_capacity(MIB + 16);
    while text.len() < MIB {
        let word = next(state) % 900;
        text.extend(format!("{:x} ", word.wrapping_mul(0x1234_5679)).bytes());
    }
    text.truncate(MIB);
    text
}

impl Bench {
    fn prepare(chosen: Option<String>) -> Self {
        let dir = PathBuf::from(format!("/dev/shm/butternut-bench-{}", std::process::id()));
        fs::create_dir(&dir).unwrap();
        let image = dir.join("image");
        File::create(&image).unwrap().set_len(1900 << 20).unwrap();
        run(&format!("mkfs.btrfs -q -f -m single -d single {}", image.display()));
        let device = run(&format!("losetup --find --show {}", image.display()));
        let mut bench = Self { dir, device, plain: 0, compressed: 0, chosen };
        let root = bench.mount("compress=no");
        let mut state = 1;
        let mut file = File::create(root.join("plain")).unwrap();
        for _ in 0..PLAIN_MIB {
            let block: Vec<u8> =
                (0..MIB / 8).flat_map(|_| next(&mut state).to_le_bytes()).collect();
            file.write_all(&block).unwrap();
        }
        drop(file);
        run(&format!("btrfs filesystem sync {}", root.display()));
        run(&format!("mount -o remount,compress-force=zstd {}", root.display()));
        let mut file = File::create(root.join("zstd")).unwrap();
        for _ in 0..COMPRESSED_MIB {
            file.write_all(&text(&mut state)).unwrap();
        }
        drop(file);
        let ino = |name: &str| fs::metadata(root.join(name)).unwrap().ino();
        (bench.plain, bench.compressed) = (ino("plain"), ino("zstd"));
        bench.unmount();
        bench
    }

    fn part(&self, name: &str, run: impl Fn(&Self)) {
        if self.chosen.as_ref().is_none_or(|chosen| name.contains(chosen.as_str())) {
            println!("{name}");
            run(self);
        }
    }

    fn mount(&self, options: &str) -> PathBuf {
        let root = self.dir.join("mnt");
        fs::create_dir_all(&root).unwrap();
        run(&format!("mount -t btrfs -o noatime,{options} {} {}", self.device, root.display()));
        root
    }

    fn unmount(&self) {
        run(&format!("umount {}", self.dir.join("mnt").display()));
    }

    fn open(&self) -> Source {
        let device = FileDevice::open(Path::new(&self.device), &OpenDevice::default()).unwrap();
        let volume = Volume::open(vec![Arc::new(device)], OpenOptions::default()).unwrap();
        let forest = Forest::open(Arc::new(volume), ForestOptions::default()).unwrap();
        let workers = rayon::ThreadPoolBuilder::new().num_threads(2).build().unwrap();
        Source::open(forest, Arc::new(workers), SourceOptions::default()).unwrap()
    }

    /// fio's mean bandwidth in MiB/s, and its operations per second.
    fn fio(words: &str) -> (f64, f64) {
        fs::write("/proc/sys/vm/drop_caches", "3").unwrap();
        let out = run(&format!(
            "fio --name=bench --readonly --output-format=terse --terse-version=3 --thread {words}"
        ));
        let line = out.lines().find(|line| line.starts_with("3;")).unwrap();
        let field = |index: usize| line.split(';').nth(index).unwrap().parse::<f64>().unwrap();
        (field(6) / 1024.0, field(7))
    }

    fn raw_sequential(&self, depth: usize) -> f64 {
        let device = &self.device;
        let words = format!("--filename={device} --rw=read --bs=1M --size=1G --direct=1");
        Self::fio(&format!("{words} --ioengine=io_uring --iodepth={depth}")).0
    }

    fn sequential_plain(&self) {
        for depth in [1, 2, 8] {
            println!("  raw device, fio 1M depth {depth}: {:.0} MiB/s", self.raw_sequential(depth));
        }
        let root = self.mount("ro");
        let plain = root.join("plain");
        let file = format!("--filename={} --rw=read --bs=1M --size=1G", plain.display());
        println!("  kernel btrfs, buffered: {:.0} MiB/s", Self::fio(&file).0);
        println!("  kernel btrfs, direct: {:.0} MiB/s", Self::fio(&format!("{file} --direct=1")).0);
        self.unmount();
        self.sequential(self.plain, PLAIN_MIB);
    }

    fn sequential_compressed(&self) {
        let root = self.mount("ro");
        let file = format!("--filename={}/zstd --rw=read --bs=1M --size=768M", root.display());
        println!("  kernel btrfs, buffered: {:.0} MiB/s", Self::fio(&file).0);
        self.unmount();
        self.sequential(self.compressed, COMPRESSED_MIB);
    }

    fn sequential(&self, ino: u64, mib: usize) {
        let source = self.open();
        let view = view(&source, ino);
        for block in [MIB, 128 << 10, 4096] {
            let mut buffer = Buffer::zeroed(block);
            let kib = block >> 10;
            timed(&format!("read_at, {kib} KiB"), mib, |at| {
                source.read_at(&view, at as u64, &mut buffer).unwrap()
            });
            let stream = Stream::new(source.clone(), view.clone());
            timed(&format!("stream, {kib} KiB"), mib, |at| {
                stream.read_at(at as u64, &mut buffer).unwrap()
            });
        }
    }

    fn random(&self) {
        let words = "--rw=randread --bs=4k --size=1G --direct=1 --ioengine=io_uring --iodepth=64 \
                     --iodepth_batch=64 --iodepth_batch_complete_min=1 \
                     --iodepth_batch_complete_max=64 --runtime=4 --time_based --norandommap";
        let raw = Self::fio(&format!("--filename={} {words}", self.device)).1;
        println!("  raw device, fio depth 64: {raw:.0} reads/s");
        let root = self.mount("ro");
        let kernel = Self::fio(&format!("--filename={}/plain {words}", root.display())).1;
        println!("  kernel btrfs, fio depth 64: {kernel:.0} reads/s");
        self.unmount();
        let source = self.open();
        let view = view(&source, self.plain);
        for round in ["cold", "warm"] {
            let (start, spent) = (Instant::now(), thread_time());
            random_reads(&source, &view);
            let (elapsed, spent) = (start.elapsed(), thread_time().saturating_sub(spent));
            let rate = RANDOM_READS as f64 / elapsed.as_secs_f64();
            let each = spent.as_secs_f64() * 1e6 / RANDOM_READS as f64;
            println!(
                "  read_many of 64, {round}: {rate:.0} reads/s, {each:.2} us of this thread each"
            );
        }
    }
}

impl Drop for Bench {
    fn drop(&mut self) {
        Command::new("umount").arg(self.dir.join("mnt")).output().ok();
        Command::new("losetup").arg("--detach").arg(&self.device).output().ok();
        fs::remove_dir_all(&self.dir).ok();
    }
}

/// Reads `mib` MiB sequentially, and prints the speed.
fn timed(what: &str, mib: usize, mut read: impl FnMut(usize) -> usize) {
    let (start, spent) = (Instant::now(), cpu_time());
    let mut at = 0;
    while at < mib * MIB {
        at += read(at);
    }
    let elapsed = start.elapsed();
    let rate = mib as f64 / elapsed.as_secs_f64();
    let busy = cpu_time().saturating_sub(spent).as_secs_f64() * 1e6 / mib as f64;
    println!("  {what}: {rate:.0} MiB/s, {busy:.0} us of CPU for each MiB");
}

fn random_reads(source: &Source, view: &FileView) {
    let mut buffer = Buffer::zeroed(64 * 4096);
    let sectors = view.size() / 4096;
    let mut state = 3;
    for _ in 0..RANDOM_READS / 64 {
        let mut reads: Vec<ReadAt<'_>> = buffer
            .chunks_exact_mut(4096)
            .map(|buf| ReadAt::new(next(&mut state) % sectors * 4096, buf))
            .collect();
        source.read_many(view, &mut reads);
        assert!(reads.iter().all(|read| matches!(read.result, Ok(4096))));
    }
}

fn view(source: &Source, ino: u64) -> FileView {
    let tree = source.forest().tree(TreeId::FS).unwrap().unwrap();
    let item = tree.find(&Key::new(ino, ItemType::INODE_ITEM, 0)).unwrap().unwrap();
    FileView::new(tree, Ino(ino), &Inode::check(item.data()).unwrap())
}

/// CPU time of the whole process.
fn cpu_time() -> Duration {
    clock(rustix::time::ClockId::ProcessCPUTime)
}

fn thread_time() -> Duration {
    clock(rustix::time::ClockId::ThreadCPUTime)
}

fn clock(id: rustix::time::ClockId) -> Duration {
    let now = rustix::time::clock_gettime(id);
    Duration::new(now.tv_sec.unsigned_abs(), u32::try_from(now.tv_nsec).unwrap())
}
