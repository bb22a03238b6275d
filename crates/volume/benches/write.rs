//! The speed of writes, compared with the same writes of the plain device.
//!
//! Goals: the cost of mapping large and small writes, and the gain of coalescing adjacent ones, as
//! ratios of one run over a loop device in memory (or the file or device named by
//! `BUTTERNUT_BENCH_FILE`, which is overwritten). Not a goal: absolute numbers.

#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    clippy::cast_precision_loss,
    reason = "a benchmark prints its ratios, and stops at the first surprise"
)]

mod one_chunk;

use butternut_device::{Device, FileDevice, OpenDevice, QueuePair, WriteFrom};
use butternut_format::units::Logical;
use butternut_sys::buffer::Buffer;
use butternut_volume::{DataWrite, OpenOptions, Volume};
use one_chunk::{DATA_AT, LOGICAL, install};
use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

const DATA_BYTES: u64 = 1 << 30;
const DEVICE_BYTES: u64 = 1200 << 20;
const RUN: Duration = Duration::from_millis(200);

/// The writes of one round.
#[derive(Clone, Copy)]
struct Load {
    name: &'static str,
    bytes: usize,
    depth: usize,
    is_random: bool,
}

const LOADS: [Load; 7] = [
    Load { name: "1M x 1", bytes: 1 << 20, depth: 1, is_random: false },
    Load { name: "1M x 8", bytes: 1 << 20, depth: 8, is_random: false },
    Load { name: "16M x 1", bytes: 16 << 20, depth: 1, is_random: false },
    Load { name: "256K x 32", bytes: 256 << 10, depth: 32, is_random: false },
    Load { name: "16K x 512", bytes: 16 << 10, depth: 512, is_random: false },
    Load { name: "4K x 64 in a row", bytes: 4096, depth: 64, is_random: false },
    Load { name: "4K x 64 at random", bytes: 4096, depth: 64, is_random: true },
];

/// A loop device over a file in memory, detached when dropped.
struct Disk {
    path: PathBuf,
    is_loop: bool,
    _directory: tempfile::TempDir,
}

fn main() {
    let disk = Disk::make();
    let how = OpenDevice { writable: true, ..OpenDevice::default() };
    let device: Arc<dyn Device> = Arc::new(FileDevice::open(&disk.path, &how).unwrap());
    let volume = Volume::open(vec![Arc::clone(&device)], OpenOptions::default()).unwrap();
    install(&volume, DATA_BYTES);
    let mut pair = QueuePair::new(Arc::from(vec![Arc::clone(&device)]), 128);
    let mut raw = |offsets: &[u64], buffers: &[Buffer]| {
        let writes = offsets.iter().zip(buffers);
        let mut batch: Vec<WriteFrom<'_>> =
            writes.map(|(&at, buffer)| WriteFrom::new(0, DATA_AT + at, buffer)).collect();
        pair.run_writes(&mut batch);
        assert!(batch.iter().all(|write| write.result.is_ok()));
    };
    let mut ours = |offsets: &[u64], buffers: &[Buffer]| {
        let writes = offsets.iter().zip(buffers);
        let mut writes: Vec<DataWrite<'_>> =
            writes.map(|(&at, buffer)| DataWrite::new(Logical(LOGICAL + at), buffer)).collect();
        volume.write_data(&mut writes);
        assert!(writes.iter().all(|write| write.result.is_ok()));
    };
    // Allocates the memory of the file before the measurement.
    measure(LOADS[1], DATA_BYTES, &mut raw);
    for load in LOADS {
        let (mut bare, mut mapped) = (0_f64, 0_f64);
        for _ in 0..12 {
            bare = bare.max(measure(load, 0, &mut raw));
            mapped = mapped.max(measure(load, 0, &mut ours));
        }
        let mib = |rate: f64| rate * load.bytes as f64 / f64::from(1 << 20);
        let (bare_mib, mapped_mib, ratio) = (mib(bare), mib(mapped), mapped / bare);
        println!("{}: raw {bare_mib:.0} MiB/s, ours {mapped_mib:.0} MiB/s, {ratio:.2}", load.name);
    }
}

/// Runs rounds until the time is up and `bytes_min` are written. Returns writes per second.
fn measure(load: Load, bytes_min: u64, run: &mut impl FnMut(&[u64], &[Buffer])) -> f64 {
    let mut buffers: Vec<Buffer> = (0..load.depth).map(|_| Buffer::zeroed(load.bytes)).collect();
    for buffer in &mut buffers {
        buffer.fill(0x5a);
    }
    let mut offsets = vec![0; load.depth];
    let mut state = 88_172_645_463_325_252_u64;
    let (step, mut at, mut count) = (load.bytes as u64, 0, 0_u64);
    let start = Instant::now();
    while start.elapsed() < RUN || count * step < bytes_min {
        for offset in &mut offsets {
            if load.is_random {
                state ^= state << 13;
                state ^= state >> 7;
                state ^= state << 17;
                at = state % (DATA_BYTES / step) * step;
            }
            *offset = at;
            at = (at + step) % DATA_BYTES;
        }
        run(&offsets, &buffers);
        count += load.depth as u64;
    }
    count as f64 / start.elapsed().as_secs_f64()
}

impl Disk {
    fn make() -> Disk {
        let directory = tempfile::tempdir_in("/dev/shm").unwrap();
        let given = std::env::var_os("BUTTERNUT_BENCH_FILE").map(PathBuf::from);
        let is_loop = given.is_none();
        let path = given.unwrap_or_else(|| {
            let image = directory.path().join("volume.img");
            std::fs::File::create(&image).unwrap().set_len(DEVICE_BYTES).unwrap();
            let mut losetup = Command::new("losetup");
            let output = losetup.args(["--find", "--show", "--direct-io=on"]).arg(&image).output();
            let output = output.unwrap();
            let device = String::from_utf8(output.stdout).unwrap();
            assert!(output.status.success(), "losetup failed");
            PathBuf::from(device.trim())
        });
        let made = Command::new("mkfs.btrfs").args(["-q", "-f"]).arg(&path).status().unwrap();
        assert!(made.success());
        Disk { path, is_loop, _directory: directory }
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        if self.is_loop {
            let detached = Command::new("losetup").arg("--detach").arg(&self.path).status();
            assert!(detached.is_ok_and(|status| status.success()));
        }
    }
}
