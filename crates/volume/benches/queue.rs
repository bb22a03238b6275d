//! Random transfers through a data queue, compared with a plain queue pair and with fio on the same
//! device.
//!
//! Goals: the ratios of one run, of 4 KiB random transfers at depth 64. Not a goal: absolute
//! numbers of a device; the device is a loop device over a file in /dev/shm. Rounds are
//! interleaved. Each result is the best round, which other programs disturbed least, with the
//! median, and the least CPU time of the calling thread for each request, including the kernel.
//! `BENCH_SECONDS` is the duration of one round, `BENCH_ROUNDS` their number.

#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a benchmark prints its ratios, and stops at the first surprise"
)]

#[path = "../../device/tests/loops/mod.rs"]
mod loops;
#[path = "../tests/set/mod.rs"]
mod set;

use butternut_device::{
    Completion, Device, FileDevice, OpenDevice, QueueOptions, QueuePair, Request,
};
use butternut_format::chunk::{BlockGroupFlags, Chunk, Profile, Stripe};
use butternut_format::units::{DevId, Logical, Physical};
use butternut_sys::arena::Arena;
use butternut_sys::buffer::Buffer;
use butternut_volume::{Checksums, DataDone, DataQueueOptions, Volume};
use loops::{Image, LoopDevice};
use set::{uuid, volume_of};
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

const DEPTH: usize = 64;
const BATCH: usize = 16;
const BLOCK: usize = 4096;
const CHUNK_BYTES: u64 = 256 << 20;
/// Offsets on the device of the chunk that is read and of the one that is written. Their logical
/// addresses are 4 GiB higher.
const READ_AT: u64 = 256 << 20;
const WRITE_AT: u64 = 512 << 20;
const LOGICAL: u64 = 4 << 30;

struct Bench {
    device: Arc<dyn Device>,
    volume: Volume,
    checksums: Vec<u8>,
    arena: Arena,
    time: Duration,
}

type FullStripe<'a> = (&'static str, Box<dyn Fn() -> Sample + 'a>);

fn main() {
    let of = |name: &str| std::env::var(name).ok().and_then(|text| text.parse::<f64>().ok());
    let time = Duration::from_secs_f64(of("BENCH_SECONDS").unwrap_or(1.0));
    let rounds = of("BENCH_ROUNDS").unwrap_or(5.0);
    let image = Image::new_in("/dev/shm", 1 << 30);
    let looped = LoopDevice::new(&image, &["--direct-io=on"]);
    let how = OpenDevice { writable: true, ..OpenDevice::default() };
    let device: Arc<dyn Device> = Arc::new(FileDevice::open(looped.path(), &how).unwrap());
    let bytes = set::pattern(1, usize::try_from(CHUNK_BYTES).unwrap());
    device.write_at(READ_AT, &bytes).unwrap();
    device.write_at(WRITE_AT, &bytes).unwrap();
    let volume = volume_of(BlockGroupFlags(0), vec![Arc::clone(&device)]);
    for at in [READ_AT, WRITE_AT] {
        volume.install_chunk(Logical(LOGICAL + at), &chunk(at)).unwrap();
    }
    volume.publish_chunks().unwrap();
    let mut checksums = Vec::new();
    volume.checksum(&bytes, &mut checksums);
    let bench =
        Bench { device, volume, checksums, arena: Arena::new(2 * DEPTH * BLOCK).unwrap(), time };
    let path = image.path();
    let rows: [FullStripe<'_>; 9] = [
        ("fio, registered, batched: read", Box::new(|| fio(looped.path(), time))),
        ("queue pair: read", Box::new(|| bench.pair(false, false))),
        ("queue pair, prompt: read", Box::new(|| bench.pair(true, false))),
        ("data queue: read", Box::new(|| bench.queue(Kind::Read))),
        ("data queue: read and verify", Box::new(|| bench.queue(Kind::Verify))),
        ("queue pair: write", Box::new(|| bench.pair(false, true))),
        ("queue pair, prompt: write", Box::new(|| bench.pair(true, true))),
        ("data queue: write", Box::new(|| bench.queue(Kind::Write))),
        ("data queue: checksum and write", Box::new(|| bench.queue(Kind::Checksum))),
    ];
    let mut samples: Vec<Vec<Sample>> = rows.iter().map(|_| Vec::new()).collect();
    let mut round = 0.0;
    while round < rounds {
        for ((_, row), samples) in rows.iter().zip(&mut samples) {
            samples.push(row());
        }
        round += 1.0;
    }
    println!(
        "4K random, depth {DEPTH}, batches of {BATCH}; on a loop device over {}",
        path.display()
    );
    let mut raw = None;
    for ((name, _), samples) in rows.iter().zip(&mut samples) {
        let mut rates: Vec<f64> = samples.iter().map(|sample| sample.rate).collect();
        rates.sort_by(f64::total_cmp);
        let (median, best) = (rates[rates.len() / 2], rates[rates.len() - 1]);
        let ratio = best / *raw.get_or_insert(best);
        let cpu = samples.iter().filter_map(|sample| sample.cpu).reduce(f64::min);
        let cpu = cpu.map_or_else(String::new, |cpu| format!("{cpu:>6.0} ns"));
        println!("  {name:<34} {best:>9.0}/s ({median:>9.0}) {ratio:>5.2} {cpu}");
    }
}

/// The result of one round.
struct Sample {
    /// Requests per second.
    rate: f64,
    /// CPU time of this thread for each request, in nanoseconds.
    cpu: Option<f64>,
}

struct Clock {
    start: Instant,
    cpu: f64,
}

impl Clock {
    fn start() -> Clock {
        Clock { start: Instant::now(), cpu: on_cpu() }
    }

    fn stop(self, count: u32) -> Sample {
        let count = f64::from(count);
        let rate = count / self.start.elapsed().as_secs_f64();
        Sample { rate, cpu: Some((on_cpu() - self.cpu) / count) }
    }
}

/// Returns the CPU time of this thread, in nanoseconds.
fn on_cpu() -> f64 {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap();
    text.split(' ').next().and_then(|text| text.parse().ok()).unwrap()
}

#[derive(Clone, Copy, PartialEq)]
enum Kind {
    Read,
    Verify,
    Write,
    Checksum,
}

fn chunk(at: u64) -> Chunk {
    let stripe = Stripe { devid: DevId(1), offset: Physical(at), dev_uuid: uuid(1) };
    let (logical, bytes, flags) = (Logical(LOGICAL + at), CHUNK_BYTES, BlockGroupFlags::DATA);
    let profile = Profile::Single;
    Chunk { logical, bytes, flags, profile, sub_stripes: 1, stripes: vec![stripe] }
}

/// Random offsets in a chunk.
fn next(state: &mut u64) -> u64 {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    (*state >> 16) % (CHUNK_BYTES / BLOCK as u64) * BLOCK as u64
}

impl Bench {
    fn buffers(&self) -> Vec<Buffer> {
        (0..DEPTH).map(|_| self.arena.allocate(BLOCK).unwrap()).collect()
    }

    fn pair(&self, is_prompt: bool, writes: bool) -> Sample {
        let arenas = vec![self.arena.clone()];
        let options = QueueOptions { depth: DEPTH, arenas, is_prompt, ..QueueOptions::default() };
        let mut pair = QueuePair::with_options(&[Arc::clone(&self.device)], &options);
        let (mut spare, mut state) = (self.buffers(), 88_172_645_463_325_252);
        let mut out: Vec<Completion> = Vec::with_capacity(DEPTH);
        let (clock, mut count) = (Clock::start(), 0u32);
        while clock.start.elapsed() < self.time {
            for buffer in spare.drain(..) {
                let at = next(&mut state) + if writes { WRITE_AT } else { READ_AT };
                let request = if writes {
                    Request::write(0, at, buffer, 0)
                } else {
                    Request::read(0, at, buffer, 0)
                };
                pair.submit(request).unwrap();
            }
            pair.poll(BATCH, None, &mut out);
            for done in out.drain(..) {
                assert!(done.result.is_ok());
                count += 1;
                spare.push(done.load.into_one().unwrap());
            }
        }
        clock.stop(count)
    }

    fn queue(&self, kind: Kind) -> Sample {
        let arenas = vec![self.arena.clone()];
        let mut queue =
            self.volume.data_queue(&DataQueueOptions { depth: DEPTH, arenas, event: None });
        let (mut spare, mut state) = (self.buffers(), 88_172_645_463_325_252);
        let mut out: Vec<DataDone> = Vec::with_capacity(DEPTH);
        let mut checksums = Vec::with_capacity(64);
        let (clock, mut count) = (Clock::start(), 0u32);
        while clock.start.elapsed() < self.time {
            for buffer in spare.drain(..) {
                let at = next(&mut state);
                if matches!(kind, Kind::Read | Kind::Verify) {
                    let logical = Logical(LOGICAL + READ_AT + at);
                    queue.read(&self.volume, logical, buffer, at).unwrap();
                    continue;
                }
                if kind == Kind::Checksum {
                    checksums.clear();
                    self.volume.checksum(&buffer, &mut checksums);
                }
                let logical = Logical(LOGICAL + WRITE_AT + at);
                queue.write(&self.volume, logical, buffer, at).unwrap();
            }
            queue.poll(&self.volume, BATCH, None, &mut out).expect("the queue of this volume");
            for done in out.drain(..) {
                assert!(done.result.is_ok());
                let buffer = done.buffers.into_one().unwrap();
                if kind == Kind::Verify {
                    let first = usize::try_from(done.tag).unwrap() / BLOCK * 4;
                    let checksums = Checksums::Stored(&self.checksums[first..first + 4]);
                    assert!(self.volume.verify(&buffer, checksums));
                }
                count += 1;
                spare.push(buffer);
            }
        }
        clock.stop(count)
    }
}

/// Returns the reads per second that fio reports.
fn fio(path: &Path, time: Duration) -> Sample {
    let mut fio = Command::new("fio");
    fio.arg(format!("--filename={}", path.display()))
        .args(["--name=raw", "--rw=randread", "--ioengine=io_uring", "--direct=1", "--readonly"])
        .args([format!("--bs={BLOCK}"), format!("--iodepth={DEPTH}")])
        .args([format!("--offset={READ_AT}"), format!("--size={CHUNK_BYTES}")])
        .arg(format!("--iodepth_batch_submit={BATCH}"))
        .arg(format!("--iodepth_batch_complete_min={BATCH}"))
        .arg(format!("--runtime={}ms", time.as_millis()))
        .args(["--thread=1", "--time_based", "--norandommap", "--gtod_reduce=1"])
        .args(["--registerfiles=1", "--fixedbufs=1", "--random_generator=tausworthe64"])
        .args(["--output-format=terse", "--terse-version=3"]);
    let line = loops::run(&mut fio);
    // Field 8 of the terse format, counted from 1, is the reads per second.
    let rate = line.trim().split(';').nth(7).and_then(|text| text.parse().ok()).unwrap();
    Sample { rate, cpu: None }
}
