//! Rows about reads: sequential, compressed and random, by the library and by mounts.

use crate::fio;
use crate::report::Report;
use crate::rig::{Rig, drop_caches, next, text};
use anyhow::{Context, Result};
use butternut::{DevicePath, File, Filesystem, Follow, MountOptions, ReadAt};
use butternut_sys::buffer::Buffer;
use std::io::Read;
use std::path::Path;
use std::time::Instant;

const MIB: usize = 1 << 20;
const DEPTH: usize = 64;

pub(crate) fn rows(rig: &Rig, report: &mut Report) -> Result<()> {
    sequential(rig, report)?;
    sequential_mounted(rig, report)?;
    compressed(rig, report)?;
    random(rig, report)
}

fn open(rig: &Rig, path: &str) -> Result<(Filesystem, File)> {
    let fs = Filesystem::open(&[DevicePath::from(&rig.device)], &MountOptions::default())?;
    let id = fs.resolve(path.as_bytes(), Follow::Last)?;
    let file = fs.open_file(id)?;
    Ok((fs, file))
}

/// Reads a whole file through the library, 1 MiB per call, and returns MB/s.
fn library_stream(rig: &Rig, path: &str) -> Result<f64> {
    let (_fs, file) = open(rig, path)?;
    let mut buffer = Buffer::zeroed(MIB);
    let start = Instant::now();
    let mut offset = 0;
    loop {
        let got = file.read_at(offset, &mut buffer)?;
        if got == 0 {
            break;
        }
        offset += got as u64;
    }
    Ok(per_second(offset, start) / 1e6)
}

/// Reads a whole file through a mount, 1 MiB per call, with nothing cached, and returns MB/s.
fn mounted_stream(path: &Path) -> Result<f64> {
    drop_caches()?;
    let mut file = std::fs::File::open(path)?;
    let mut buffer = vec![0; MIB];
    let start = Instant::now();
    let mut bytes = 0;
    loop {
        let got = file.read(&mut buffer)?;
        if got == 0 {
            break;
        }
        bytes += got as u64;
    }
    Ok(per_second(bytes, start) / 1e6)
}

#[expect(clippy::cast_precision_loss, reason = "the counts of an hour fit into the mantissa")]
fn per_second(count: u64, start: Instant) -> f64 {
    count as f64 / start.elapsed().as_secs_f64()
}

fn raw_stream(rig: &Rig, depth: usize) -> Result<f64> {
    fio::megabytes(&fio::read(&[
        format!("--filename={}", text(&rig.device)),
        "--readonly".into(),
        "--ioengine=io_uring".into(),
        "--direct=1".into(),
        "--rw=read".into(),
        "--bs=1M".into(),
        format!("--iodepth={depth}"),
        "--offset=64M".into(),
        format!("--size={}", rig.size.stream_bytes),
    ])?)
}

fn sequential(rig: &Rig, report: &mut Report) -> Result<()> {
    report.row(
        "sequential 1M: library, raw device",
        "MB/s",
        rig.size.repeats,
        &mut [
            ("library", &mut || library_stream(rig, "/stream")),
            ("raw depth 1", &mut || raw_stream(rig, 1)),
            ("raw depth 4", &mut || raw_stream(rig, 4)),
        ],
    )
}

fn sequential_mounted(rig: &Rig, report: &mut Report) -> Result<()> {
    report.row(
        "sequential 1M cold: mount, kernel btrfs",
        "MB/s",
        rig.size.repeats,
        &mut [
            ("mount", &mut || {
                let _mounted = rig.mount()?;
                mounted_stream(&rig.butternut_mount.join("stream"))
            }),
            ("kernel", &mut || mounted_stream(&rig.stream())),
        ],
    )
}

fn compressed(rig: &Rig, report: &mut Report) -> Result<()> {
    report.row(
        "sequential zstd cold: library, mount, kernel",
        "MB/s",
        rig.size.repeats,
        &mut [
            ("library", &mut || library_stream(rig, "/zstd")),
            ("mount", &mut || {
                let _mounted = rig.mount()?;
                mounted_stream(&rig.butternut_mount.join("zstd"))
            }),
            ("kernel", &mut || mounted_stream(&rig.kernel.join("zstd"))),
        ],
    )
}

/// Reads random 4K blocks in batches of [`DEPTH`] and returns thousands of reads per second.
fn library_random(rig: &Rig) -> Result<f64> {
    let (_fs, file) = open(rig, "/stream")?;
    let blocks = file.len() / 4096;
    let mut buffers: Vec<Buffer> = (0..DEPTH).map(|_| Buffer::zeroed(4096)).collect();
    let mut state = 0x5851_F42D_4C95_7F2D_u64;
    let start = Instant::now();
    let mut done = 0;
    while start.elapsed().as_secs() < u64::from(rig.size.seconds) {
        let mut batch: Vec<ReadAt<'_>> = buffers
            .iter_mut()
            .map(|buffer| ReadAt {
                offset: next(&mut state) % blocks * 4096,
                buf: buffer,
                result: Ok(0),
            })
            .collect();
        file.read_many(&mut batch);
        for read in batch {
            read.result.context("a random read failed")?;
            done += 1;
        }
    }
    Ok(per_second(done, start) / 1e3)
}

fn random_args(rig: &Rig, file: &Path) -> Vec<String> {
    vec![
        format!("--filename={}", text(file)),
        "--readonly".into(),
        "--ioengine=io_uring".into(),
        "--direct=1".into(),
        "--rw=randread".into(),
        "--bs=4k".into(),
        format!("--iodepth={DEPTH}"),
        "--iodepth_batch_submit=32".into(),
        "--iodepth_batch_complete_min=1".into(),
        "--iodepth_batch_complete_max=64".into(),
        format!("--size={}", rig.size.stream_bytes),
        "--time_based".into(),
        format!("--runtime={}", rig.size.seconds),
    ]
}

fn random(rig: &Rig, report: &mut Report) -> Result<()> {
    report.row(
        "random 4K depth 64: library, kernel, raw",
        "k/s",
        rig.size.repeats,
        &mut [
            ("library", &mut || library_random(rig)),
            ("kernel", &mut || fio::kilo_iops(&fio::read(&random_args(rig, &rig.stream()))?)),
            ("raw", &mut || fio::kilo_iops(&fio::read(&random_args(rig, &rig.device))?)),
        ],
    )
}
