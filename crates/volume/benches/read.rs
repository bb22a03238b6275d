//! The speed of verified reads, compared with the same reads of the plain device.
//!
//! Goals: the cost of mapping and verifying 4 KiB reads in batches of 64, and of 1 MiB reads, as
//! ratios of one run. Not a goal: absolute numbers of a device; the device is memory, or the file
//! named by `BUTTERNUT_BENCH_FILE`.

#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    clippy::cast_precision_loss,
    reason = "a benchmark prints its ratios, and stops at the first surprise"
)]

mod one_chunk;

use butternut_device::{Device, FileDevice, MemoryDevice, OpenDevice, QueuePair, ReadInto};
use butternut_format::checksum::ChecksumKind;
use butternut_format::units::Logical;
use butternut_sys::buffer::Buffer;
use butternut_volume::{Checksums, DataRead, OpenOptions, Volume};
use one_chunk::{DATA_AT, LOGICAL, install};
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

const DEPTH: usize = 64;
const DATA_BYTES: u64 = 256 << 20;
const DEVICE_BYTES: u64 = 512 << 20;
const RUN: Duration = Duration::from_millis(1500);

fn main() {
    let directory = tempfile::tempdir_in("/dev/shm").unwrap();
    let path = directory.path().join("volume.img");
    std::fs::File::create(&path).unwrap().set_len(DEVICE_BYTES).unwrap();
    let made = Command::new("mkfs.btrfs").args(["-q", "-f"]).arg(&path).status().unwrap();
    assert!(made.success());
    let file = std::env::var_os("BUTTERNUT_BENCH_FILE");
    let device: Arc<dyn Device> = match &file {
        None => Arc::new(MemoryDevice::copy_of("memory", &std::fs::read(&path).unwrap())),
        Some(file) => {
            std::fs::copy(&path, Path::new(file)).unwrap();
            let how = OpenDevice { writable: true, ..OpenDevice::default() };
            Arc::new(FileDevice::open(Path::new(file), &how).unwrap())
        }
    };
    let digests = write_data(device.as_ref());
    let volume = Volume::open(vec![Arc::clone(&device)], OpenOptions::default()).unwrap();
    install(&volume, DATA_BYTES);
    let mut pair = QueuePair::new(Arc::from(vec![Arc::clone(&device)]), 128);
    for (name, bytes, depth) in [("4K x 64", 4096, DEPTH), ("1M x 1", 1 << 20, 1)] {
        let raw = measure(bytes, depth, |offsets, buffers| {
            let mut batch: Vec<ReadInto<'_>> = offsets
                .iter()
                .zip(buffers)
                .map(|(&at, buffer)| ReadInto::new(0, DATA_AT + at, buffer))
                .collect();
            pair.run(&mut batch);
            assert!(batch.iter().all(|read| read.result.is_ok()));
        });
        let verified = measure(bytes, depth, |offsets, buffers| {
            let mut reads: Vec<DataRead<'_>> = offsets
                .iter()
                .zip(buffers)
                .map(|(&at, buffer)| {
                    let first = usize::try_from(at / 4096).unwrap() * 4;
                    let checksums = Checksums::Stored(&digests[first..first + bytes / 1024]);
                    DataRead::new(Logical(LOGICAL + at), buffer, checksums)
                })
                .collect();
            volume.read_data(&mut reads);
            assert!(reads.iter().all(|read| read.result.is_ok()));
        });
        println!(
            "{name}: raw {raw:.0}/s, verified {verified:.0}/s, {:.0} MiB/s, ratio {:.2}",
            verified * bytes as f64 / f64::from(1 << 20),
            verified / raw
        );
    }
}

/// Runs batches of random reads until the time is up. Returns reads per second.
fn measure(bytes: usize, depth: usize, mut run: impl FnMut(&[u64], &mut [Buffer])) -> f64 {
    let mut buffers: Vec<Buffer> = (0..depth).map(|_| Buffer::zeroed(bytes)).collect();
    let mut offsets = vec![0; depth];
    let mut state = 88_172_645_463_325_252_u64;
    let step = bytes as u64;
    let (start, mut count) = (Instant::now(), 0_u64);
    while start.elapsed() < RUN {
        for offset in &mut offsets {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            *offset = state % (DATA_BYTES / step) * step;
        }
        run(&offsets, &mut buffers);
        count += depth as u64;
    }
    count as f64 / start.elapsed().as_secs_f64()
}

/// Writes the data and returns its checksums.
fn write_data(device: &dyn Device) -> Vec<u8> {
    let mut digests = Vec::new();
    let mut buffer = Buffer::zeroed(1 << 20);
    let mut at = DATA_AT;
    while at < DATA_AT + DATA_BYTES {
        for (index, sector) in buffer.chunks_mut(4096).enumerate() {
            sector[..8].copy_from_slice(&(at + index as u64).to_le_bytes());
            digests.extend_from_slice(&ChecksumKind::Crc32c.compute(sector)[..4]);
        }
        device.write_at(at, &buffer).unwrap();
        at += 1 << 20;
    }
    digests
}
