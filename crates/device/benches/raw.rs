//! Measures reads of one device through each backend of a queue pair, beside fio on the same
//! device.
//!
//! The device is a loop device over a file in /dev/shm, or the one that the environment variable
//! `BENCH_DEVICE` names (read only). Rounds of all rows are interleaved; each row shows its best
//! round, which other programs disturbed least, and the median beside it. The ratio is relative to
//! fio with registered files and buffers and the same batches. `BENCH_SECONDS` is the time of one
//! round of one row.

#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a benchmark prints, and may fail")]

#[path = "../tests/loops/mod.rs"]
mod loops;

use butternut_device::{
    Completion, Device, FileDevice, OpenDevice, QueueOptions, QueuePair, ReadInto, Request, RingUse,
};
use butternut_sys::arena::Arena;
use butternut_sys::buffer::Buffer;
use loops::{Image, LoopDevice};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

const DEVICE_BYTES: u64 = 1 << 30;
const ROUNDS: usize = 5;

/// A pattern of reads.
struct Workload {
    name: &'static str,
    block: usize,
    depth: usize,
    /// Number of completions waited for, and of requests submitted, at a time.
    batch: usize,
    is_random: bool,
}

const WORKLOADS: [Workload; 2] = [
    Workload { name: "4K random, depth 64", block: 4096, depth: 64, batch: 16, is_random: true },
    Workload {
        name: "1M sequential, depth 4",
        block: 1 << 20,
        depth: 4,
        batch: 1,
        is_random: false,
    },
];

/// Generates the offsets of a workload.
struct Offsets {
    state: u64,
    block: u64,
    blocks: u64,
    is_random: bool,
}

impl Offsets {
    fn new(workload: &Workload, device: &dyn Device) -> Offsets {
        let block = workload.block as u64;
        Offsets { state: 1, block, blocks: device.bytes() / block, is_random: workload.is_random }
    }

    fn next(&mut self) -> u64 {
        if !self.is_random {
            self.state += 1;
            return self.state % self.blocks * self.block;
        }
        self.state ^= self.state << 13;
        self.state ^= self.state >> 7;
        self.state ^= self.state << 17;
        (self.state >> 16) % self.blocks * self.block
    }
}

fn main() {
    let named = std::env::var_os("BENCH_DEVICE").map(PathBuf::from);
    let seconds = std::env::var("BENCH_SECONDS").ok().and_then(|text| text.parse().ok());
    let time = Duration::from_secs_f64(seconds.unwrap_or(2.0));
    let made = named.is_none().then(|| {
        let image = Image::new_in("/dev/shm", DEVICE_BYTES);
        fill(image.path());
        let looped = LoopDevice::new(&image, &["--direct-io=on"]);
        (looped, image)
    });
    let path = named.unwrap_or_else(|| made.as_ref().unwrap().0.path().to_owned());
    for workload in &WORKLOADS {
        measure(&path, workload, time);
    }
}

fn fill(path: &Path) {
    let how = OpenDevice { writable: true, direct: false, ..OpenDevice::default() };
    let device = FileDevice::open(path, &how).unwrap();
    let bytes: Vec<u8> =
        (0..1u32 << 20).map(|at| (at.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    for at in 0..DEVICE_BYTES >> 20 {
        device.write_at(at << 20, &bytes).unwrap();
    }
}

fn measure(path: &Path, workload: &Workload, time: Duration) {
    type Row<'a> = (&'static str, Box<dyn Fn() -> f64 + 'a>);
    let device: Arc<dyn Device> = Arc::new(FileDevice::open(path, &OpenDevice::default()).unwrap());
    let devices = [device];
    let arena = Arena::new(workload.block * workload.depth).unwrap();
    let huge = Arena::with_huge_pages(workload.block * workload.depth).unwrap();
    let (ring, never) = (RingUse::Try, RingUse::Never);
    let rows: [Row<'_>; 8] = [
        (
            "fio io_uring, registered, batched",
            Box::new(|| fio(path, workload, time, true, workload.batch)),
        ),
        ("fio io_uring, registered", Box::new(|| fio(path, workload, time, true, 1))),
        ("fio io_uring", Box::new(|| fio(path, workload, time, false, 1))),
        (
            "queue pair, owned, registered",
            Box::new(|| owned(&devices, workload, time, Some(&arena))),
        ),
        (
            "queue pair, owned, huge pages",
            Box::new(|| owned(&devices, workload, time, Some(&huge))),
        ),
        ("queue pair, owned", Box::new(|| owned(&devices, workload, time, None))),
        ("queue pair, run", Box::new(|| borrowed(&devices, workload, time, ring))),
        ("queue pair, run, threads", Box::new(|| borrowed(&devices, workload, time, never))),
    ];
    let mut samples = vec![Vec::new(); rows.len()];
    for round in 0..ROUNDS {
        for at in 0..rows.len() {
            let at = if round % 2 == 0 { at } else { rows.len() - 1 - at };
            samples[at].push(rows[at].1());
        }
    }
    println!("{}", workload.name);
    let mut raw = None;
    for ((name, _), samples) in rows.iter().zip(&mut samples) {
        samples.sort_by(f64::total_cmp);
        let (median, best) = (samples[samples.len() / 2], samples[samples.len() - 1]);
        let ratio = best / *raw.get_or_insert(best);
        let megabytes = best * f64::from(u32::try_from(workload.block).unwrap()) / 1e6;
        println!("  {name:<36} {best:>9.0}/s ({median:>9.0}) {megabytes:>7.0} MB/s {ratio:>5.2}");
    }
}

/// Returns the reads per second with owned requests.
fn owned(
    devices: &[Arc<dyn Device>],
    workload: &Workload,
    time: Duration,
    arena: Option<&Arena>,
) -> f64 {
    let arenas = arena.cloned().into_iter().collect();
    let options = QueueOptions { depth: workload.depth, arenas, ..QueueOptions::default() };
    let mut pair = QueuePair::with_options(devices, &options);
    let mut offsets = Offsets::new(workload, &*devices[0]);
    let buffer = || arena.and_then(|arena| arena.allocate(workload.block));
    let mut spare: Vec<Buffer> = (0..workload.depth)
        .map(|_| buffer().unwrap_or_else(|| Buffer::zeroed(workload.block)))
        .collect();
    let mut out: Vec<Completion> = Vec::with_capacity(workload.depth);
    let (start, mut reads) = (Instant::now(), 0u32);
    while start.elapsed() < time {
        for buffer in spare.drain(..) {
            pair.submit(Request::read(0, offsets.next(), buffer, 0)).unwrap();
        }
        pair.poll(workload.batch, None, &mut out);
        for done in out.drain(..) {
            assert!(done.result.is_ok());
            reads += 1;
            spare.push(done.load.into_one().unwrap());
        }
    }
    f64::from(reads) / start.elapsed().as_secs_f64()
}

/// Returns the reads per second with borrowed requests, in batches of four times the depth.
fn borrowed(
    devices: &[Arc<dyn Device>],
    workload: &Workload,
    time: Duration,
    ring: RingUse,
) -> f64 {
    let options = QueueOptions { depth: workload.depth, ring, ..QueueOptions::default() };
    let mut pair = QueuePair::with_options(devices, &options);
    let mut offsets = Offsets::new(workload, &*devices[0]);
    let count = workload.depth * 4;
    // All of the memory is used in turn, so the cache footprint equals that of the other rows.
    let mut memory = Buffer::zeroed(workload.block * count);
    let mut batch: Vec<_> =
        memory.chunks_mut(workload.block).map(|memory| ReadInto::new(0, 0, memory)).collect();
    let (start, mut reads) = (Instant::now(), 0u32);
    while start.elapsed() < time {
        for read in &mut batch {
            read.offset = offsets.next();
        }
        pair.run(&mut batch);
        assert!(batch.iter().all(|read| read.result.is_ok()));
        reads += u32::try_from(count).unwrap();
    }
    f64::from(reads) / start.elapsed().as_secs_f64()
}

/// Returns the reads per second that fio reports.
fn fio(path: &Path, workload: &Workload, time: Duration, is_registered: bool, batch: usize) -> f64 {
    let pattern = if workload.is_random { "randread" } else { "read" };
    let mut fio = Command::new("fio");
    fio.arg(format!("--filename={}", path.display()))
        .arg(format!("--rw={pattern}"))
        .arg(format!("--bs={}", workload.block))
        .arg(format!("--iodepth={}", workload.depth))
        .arg(format!("--iodepth_batch_submit={batch}"))
        .arg(format!("--iodepth_batch_complete_min={batch}"))
        .arg(format!("--runtime={}ms", time.as_millis()))
        .args(["--name=raw", "--ioengine=io_uring", "--direct=1", "--readonly", "--thread=1"])
        .args(["--time_based", "--norandommap", "--gtod_reduce=1", "--output-format=terse"])
        .args(["--random_generator=tausworthe64", "--terse-version=3"]);
    if is_registered {
        fio.args(["--registerfiles=1", "--fixedbufs=1"]);
    }
    let line = loops::run(&mut fio);
    // Field 8 of the terse format, counted from 1, is the reads per second.
    line.trim().split(';').nth(7).and_then(|text| text.parse().ok()).unwrap()
}
