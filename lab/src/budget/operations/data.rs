//! Operations on the bytes of files: each lane, in blocks of 4 KiB and of 1 MiB.

use super::super::meter::Meter;
use super::{Call, FILE_BYTES, Volume, fill, open_to_read};
use anyhow::{Context, Result, ensure};
use butternut::queue::{IoFlags, Queue, QueueOptions};
use butternut::{AttributeFlags, File, FileId, Privileges};
use std::sync::Arc;

const BLOCK: usize = 4 << 10;
const LONG: usize = 1 << 20;

/// Returns a place of a file for a call: no two calls have the same, and places of blocks are not
/// adjacent.
fn place(number: u32, bytes: usize) -> u64 {
    let slots = FILE_BYTES / bytes as u64;
    u64::from(number) * 37 % slots * bytes as u64
}

/// How many bytes are transferred, and how that is done.
type Transfer = fn(&File, u64, &mut [u8]) -> Result<usize, butternut::Error>;

/// Returns a call that transfers `bytes` bytes of a file, and is measured as a whole.
fn transfer(file: File, bytes: usize, transfer: Transfer) -> Call {
    let mut memory = vec![9; bytes];
    Box::new(move |number, meter: &mut Meter| {
        let at = place(number, bytes);
        let done = meter.count(|| transfer(&file, at, &mut memory)).context("not called")??;
        ensure!(done == bytes, "{done} bytes of {bytes}");
        Ok(())
    })
}

fn buffered(file: &File, at: u64, bytes: &mut [u8]) -> Result<usize, butternut::Error> {
    file.write_at(at, bytes)
}

fn buffered_fsync(file: &File, at: u64, bytes: &mut [u8]) -> Result<usize, butternut::Error> {
    let written = file.write_at(at, bytes)?;
    file.sync_all().map(|()| written)
}

/// The fsync makes the count independent of when the flusher begins.
fn uncached_fsync(file: &File, at: u64, bytes: &mut [u8]) -> Result<usize, butternut::Error> {
    let written = file.write_uncached(at, bytes, Privileges::Keep)?;
    file.sync_all().map(|()| written)
}

fn direct(file: &File, at: u64, bytes: &mut [u8]) -> Result<usize, butternut::Error> {
    file.write_direct(at, bytes, Privileges::Keep)
}

pub(super) fn write_4k_buffered(volume: &Volume) -> Result<Call> {
    Ok(transfer(volume.written("file")?, BLOCK, buffered))
}

pub(super) fn write_1m_buffered(volume: &Volume) -> Result<Call> {
    Ok(transfer(volume.written("file")?, LONG, buffered))
}

pub(super) fn write_4k_buffered_fsync(volume: &Volume) -> Result<Call> {
    Ok(transfer(volume.written("file")?, BLOCK, buffered_fsync))
}

pub(super) fn write_1m_buffered_fsync(volume: &Volume) -> Result<Call> {
    Ok(transfer(volume.written("file")?, LONG, buffered_fsync))
}

pub(super) fn write_4k_uncached_fsync(volume: &Volume) -> Result<Call> {
    Ok(transfer(volume.written("file")?, BLOCK, uncached_fsync))
}

pub(super) fn write_1m_uncached_fsync(volume: &Volume) -> Result<Call> {
    Ok(transfer(volume.written("file")?, LONG, uncached_fsync))
}

pub(super) fn write_4k_direct(volume: &Volume) -> Result<Call> {
    Ok(transfer(volume.written("file")?, BLOCK, direct))
}

pub(super) fn write_1m_direct(volume: &Volume) -> Result<Call> {
    Ok(transfer(volume.written("file")?, LONG, direct))
}

pub(super) fn write_4k_in_place(volume: &Volume) -> Result<Call> {
    Ok(transfer(in_place(volume)?, BLOCK, direct))
}

/// Makes a written file without copy-on-write and checksums.
fn in_place(volume: &Volume) -> Result<File> {
    let file = volume.file("file")?;
    volume.fs.set_attribute_flags(file.id(), AttributeFlags::NOCOW)?;
    let file = volume.fs.open_file(file.id())?;
    fill(&file)?;
    Ok(file)
}

/// Only the fsync is measured.
pub(super) fn fsync_4k(volume: &Volume) -> Result<Call> {
    let file = volume.written("file")?;
    Ok(Box::new(move |number, meter: &mut Meter| {
        file.write_at(place(number, BLOCK), &[9; BLOCK])?;
        meter.count(|| file.sync_all()).context("not called")??;
        Ok(())
    }))
}

pub(super) fn clone_1m(volume: &Volume) -> Result<Call> {
    let (from, to) = (volume.written("from")?, volume.file("to")?);
    Ok(Box::new(move |number, meter: &mut Meter| {
        let at = u64::from(number) * LONG as u64;
        meter.count(|| to.clone_range(at, &from, at, LONG as u64)).context("not called")??;
        Ok(())
    }))
}

pub(super) fn read_4k_warm(volume: &Volume) -> Result<Call> {
    Ok(transfer(cached(volume)?, BLOCK, File::read_at))
}

pub(super) fn read_1m_warm(volume: &Volume) -> Result<Call> {
    Ok(transfer(cached(volume)?, LONG, File::read_at))
}

/// Makes a written file whose pages are all cached.
fn cached(volume: &Volume) -> Result<File> {
    let file = volume.written("file")?;
    volume.fs.sync()?;
    let mut memory = vec![0; LONG];
    for at in (0..FILE_BYTES).step_by(LONG) {
        ensure!(file.read_at(at, &mut memory)? == LONG, "a short read");
    }
    Ok(file)
}

pub(super) fn read_4k_direct(volume: &Volume) -> Result<Call> {
    Ok(transfer(volume.written("file")?, BLOCK, File::read_direct))
}

pub(super) fn read_1m_direct(volume: &Volume) -> Result<Call> {
    Ok(transfer(volume.written("file")?, LONG, File::read_direct))
}

pub(super) fn read_4k_cold(volume: &Volume) -> Result<Call> {
    cold(volume, BLOCK)
}

pub(super) fn read_1m_cold(volume: &Volume) -> Result<Call> {
    cold(volume, LONG)
}

/// Returns a call that reads from a filesystem that has just been opened. The lookup of the file
/// is measured, too, and the open of the filesystem is not.
fn cold(volume: &Volume, bytes: usize) -> Result<Call> {
    let file = volume.written("file")?;
    let (device, id) = (Arc::clone(&volume.device), file.id());
    Ok(Box::new(move |number, meter: &mut Meter| {
        let fs = open_to_read(&device)?;
        let mut memory = vec![0; bytes];
        let read =
            |id: FileId, memory: &mut [u8]| fs.open_file(id)?.read_at(place(number, bytes), memory);
        let done = meter.count(|| read(id, &mut memory)).context("not called")??;
        ensure!(done == bytes, "{done} bytes of {bytes}");
        Ok(())
    }))
}

pub(super) fn write_4k_queue(volume: &Volume) -> Result<Call> {
    queued(volume, volume.written("file")?, true)
}

pub(super) fn write_4k_queue_in_place(volume: &Volume) -> Result<Call> {
    queued(volume, in_place(volume)?, true)
}

pub(super) fn read_4k_queue(volume: &Volume) -> Result<Call> {
    queued(volume, volume.written("file")?, false)
}

/// Returns a call that transfers one block from or to a buffer of a queue, past every cache.
fn queued(volume: &Volume, file: File, is_write: bool) -> Result<Call> {
    let mut queue: Queue = volume.fs.queue(&QueueOptions::default())?;
    let mut done = Vec::with_capacity(8);
    Ok(Box::new(move |number, meter: &mut Meter| {
        let at = place(number, BLOCK);
        let whole = |queue: &mut Queue, done: &mut Vec<_>| {
            let buffer = queue.buffer(BLOCK).context("no buffer")?;
            let queued = if is_write {
                queue.write(&file, at, buffer, IoFlags::DIRECT, 0)
            } else {
                queue.read(&file, at, buffer, IoFlags::DIRECT, 0)
            };
            queued.map_err(|refused| refused.error)?;
            queue.reap(1, None, done);
            anyhow::Ok(())
        };
        meter.count(|| whole(&mut queue, &mut done)).context("not called")??;
        let completed = done.pop().context("nothing was completed")?;
        ensure!(completed.result? == BLOCK, "a short transfer");
        Ok(())
    }))
}
