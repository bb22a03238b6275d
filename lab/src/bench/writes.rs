//! Rows about writes: sequential, and random overwrites of one file by several threads.

use crate::fio;
use crate::report::Report;
use crate::rig::{Rig, next, text};
use crate::scratch::Scratch;
use anyhow::{Context, Result};
use butternut::{File, Filesystem, NewInode};
use butternut_sys::buffer::Buffer;
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::Instant;

const MIB: usize = 1 << 20;

/// Number of threads that write one file. Each has one write in flight, so this is the depth.
const WRITERS: u64 = 32;

pub(crate) fn rows(rig: &Rig, scratch: &Scratch, report: &mut Report) -> Result<()> {
    let bytes = rig.size.stream_bytes;
    report.row(
        "sequential write 1M, synced: library, raw",
        "MB/s",
        rig.size.repeats,
        &mut [
            ("library", &mut || library_stream(&scratch.library()?, bytes)),
            ("raw", &mut || {
                // As for the library, the image's memory is not allocated yet.
                scratch.reformat()?;
                raw_stream(&scratch.device, bytes)
            }),
        ],
    )?;
    report.row(
        "sequential write 1M, synced: mount, kernel",
        "MB/s",
        rig.size.repeats,
        &mut [
            ("mount", &mut || posix_stream(scratch.butternut()?.root(), bytes)),
            ("kernel", &mut || posix_stream(scratch.kernel()?.root(), bytes)),
        ],
    )?;
    overwrites(rig, scratch, report)
}

fn megabytes(bytes: u64, start: Instant) -> f64 {
    bytes as f64 / start.elapsed().as_secs_f64() / 1e6
}

/// Returns a buffer of pseudo-random bytes.
fn noise(bytes: usize) -> Buffer {
    let mut buffer = Buffer::zeroed(bytes);
    let mut state = 0x9E37_79B9_7F4A_7C15_u64;
    for word in buffer.chunks_exact_mut(8) {
        word.copy_from_slice(&next(&mut state).to_le_bytes());
    }
    buffer
}

fn new_file(filesystem: &Filesystem) -> Result<File> {
    let id = filesystem.create(filesystem.root(), b"file", &NewInode::new(0o644))?;
    Ok(filesystem.open_file(id)?)
}

fn library_stream(filesystem: &Filesystem, bytes: u64) -> Result<f64> {
    let block = noise(MIB);
    let file = new_file(filesystem)?;
    let start = Instant::now();
    for at in (0..bytes).step_by(MIB) {
        file.write_at(at, &block)?;
    }
    file.sync_all()?;
    Ok(megabytes(bytes, start))
}

fn posix_stream(root: &Path, bytes: u64) -> Result<f64> {
    let block = noise(MIB);
    let mut file = std::fs::File::create(root.join("file"))?;
    let start = Instant::now();
    for _ in (0..bytes).step_by(MIB) {
        file.write_all(&block)?;
    }
    file.sync_all()?;
    Ok(megabytes(bytes, start))
}

fn raw_stream(device: &Path, bytes: u64) -> Result<f64> {
    fio::megabytes(&fio::write(&[
        format!("--filename={}", text(device)),
        "--ioengine=io_uring".into(),
        "--direct=1".into(),
        "--rw=write".into(),
        "--bs=1M".into(),
        "--iodepth=1".into(),
        "--end_fsync=1".into(),
        "--offset=64M".into(),
        format!("--size={bytes}"),
    ])?)
}

/// Random 4K overwrites of one file by [`WRITERS`] threads, with a sync at the end.
fn overwrites(rig: &Rig, scratch: &Scratch, report: &mut Report) -> Result<()> {
    let bytes = rig.size.overwritten_bytes;
    let seconds = rig.size.seconds;
    let mut written = None;
    report.row(
        "random 4K overwrites, 32 writers: library, kernel direct, kernel buffered",
        "k/s",
        rig.size.repeats,
        &mut [
            ("library", &mut || {
                let filesystem = scratch.library()?;
                let file = new_file(&filesystem)?;
                fill(bytes, |at, block| Ok(file.write_at(at, block).map(drop)?))?;
                filesystem.sync()?;
                let before = filesystem.counters();
                let rate = timed_overwrites(
                    bytes,
                    seconds,
                    &|at, block| Ok(file.write_at(at, block).map(drop)?),
                    &|| Ok(filesystem.sync()?),
                )?;
                let after = filesystem.counters();
                written = Some((rate.1, after.device_bytes_written - before.device_bytes_written));
                Ok(rate.0)
            }),
            ("kernel direct", &mut || kernel_overwrites(scratch, bytes, seconds, true)),
            ("kernel buffered", &mut || kernel_overwrites(scratch, bytes, seconds, false)),
        ],
    )?;
    if let Some((blocks, device)) = written {
        let each = device as f64 / (blocks * 4096) as f64;
        report
            .value("device bytes written per byte of random overwrites", &format!("{each:.2}"))?;
    }
    Ok(())
}

fn fill(bytes: u64, write: impl Fn(u64, &[u8]) -> Result<()>) -> Result<()> {
    let block = noise(MIB);
    (0..bytes).step_by(MIB).try_for_each(|at| write(at, &block))
}

type WriteAt<'a> = dyn Fn(u64, &[u8]) -> Result<()> + Sync + 'a;

/// Overwrites random blocks for `seconds`, then syncs. Returns thousands of writes per second,
/// including the sync, and the number of writes.
fn timed_overwrites(
    bytes: u64,
    seconds: u32,
    write: &WriteAt<'_>,
    sync: &dyn Fn() -> Result<()>,
) -> Result<(f64, u64)> {
    let blocks = bytes / 4096;
    let start = Instant::now();
    let writer = |number: u64| -> Result<u64> {
        let block = noise(4096);
        let mut state = 0x5851_F42D_4C95_7F2D_u64 ^ (number << 17);
        let mut done = 0;
        while start.elapsed().as_secs() < u64::from(seconds) {
            for _ in 0..16 {
                write(next(&mut state) % blocks * 4096, &block)?;
                done += 1;
            }
        }
        Ok(done)
    };
    let done: u64 = std::thread::scope(|scope| {
        let writers: Vec<_> =
            (0..WRITERS).map(|number| scope.spawn(move || writer(number))).collect();
        writers
            .into_iter()
            .map(|writer| writer.join().ok().context("a writer panicked")?)
            .sum::<Result<u64>>()
    })?;
    sync()?;
    Ok((done as f64 / start.elapsed().as_secs_f64() / 1e3, done))
}

fn kernel_overwrites(scratch: &Scratch, bytes: u64, seconds: u32, direct: bool) -> Result<f64> {
    use std::os::unix::fs::OpenOptionsExt;
    let mount = scratch.kernel()?;
    let path = mount.root().join("file");
    let file = std::fs::File::create(&path)?;
    fill(bytes, |at, block| Ok(file.write_all_at(block, at)?))?;
    file.sync_all()?;
    let mut options = std::fs::OpenOptions::new();
    options.write(true);
    if direct {
        options.custom_flags(i32::try_from(rustix::fs::OFlags::DIRECT.bits())?);
    }
    let file = options.open(&path)?;
    let write = |at: u64, block: &[u8]| -> Result<()> { Ok(file.write_all_at(block, at)?) };
    Ok(timed_overwrites(bytes, seconds, &write, &|| Ok(file.sync_all()?))?.0)
}
