//! One thread of the run: it uses every lane on blocks that all threads write.

use super::history::{BegunWrite, Clock};
use super::{BLOCK, BLOCKS, FILE_BYTES, Shared};
use crate::borrowed::BorrowedMemory;
use crate::lane::read;
use crate::operation::Lane;
use crate::random::Random;
use anyhow::{Context, Result, ensure};
use butternut::queue::{Completion, IoFlags, Queue, QueueOptions, SyncKind};
use butternut::server::FileExt;
use butternut::{Allocate, Buffer, File, Filesystem, Privileges};
use std::collections::BTreeMap;
use std::ops::Range;

const DEPTH: usize = 8;

pub(super) struct Worker<'a> {
    number: usize,
    random: Random,
    filesystem: &'a Filesystem,
    files: &'a [Shared],
    /// The source of copies.
    source: &'a File,
    clock: &'a Clock,
    queue: Queue,
    /// Requests in flight, by tag.
    in_flight: BTreeMap<u64, InFlight>,
    tag: u64,
    reads: u64,
}

/// A request that was submitted and not reaped.
struct InFlight {
    file: usize,
    range: Range<usize>,
    begun: u64,
    /// `Some` for a write.
    write: Option<BegunWrite>,
    _borrowed: Option<BorrowedMemory>,
}

impl<'a> Worker<'a> {
    pub(super) fn new(
        number: u8,
        seed: u64,
        filesystem: &'a Filesystem,
        (files, source): (&'a [Shared], &'a File),
        clock: &'a Clock,
    ) -> Result<Worker<'a>> {
        let options =
            QueueOptions::default().depth(DEPTH).arena_bytes(256 << 10).bounce_bytes(256 << 10);
        Ok(Worker {
            number: number.into(),
            random: Random::new(seed),
            filesystem,
            files,
            source,
            clock,
            queue: filesystem.queue(&options)?,
            in_flight: BTreeMap::new(),
            tag: 0,
            reads: 0,
        })
    }

    /// Runs the operations, and returns the number of reads that were checked.
    pub(super) fn run(mut self, operations: usize) -> Result<u64> {
        for number in 0..operations {
            let oldest = self.in_flight.values().map(|request| request.begun).min();
            self.clock.set_active(self.number, oldest);
            self.step().with_context(|| format!("operation {number}"))?;
        }
        self.reap(usize::MAX)?;
        ensure!(self.in_flight.is_empty(), "{} requests never completed", self.in_flight.len());
        Ok(self.reads)
    }

    fn step(&mut self) -> Result<()> {
        match self.random.below(40) {
            0..=11 => self.queue_write(),
            12..=13 => self.queue_read(),
            14..=21 => self.write(),
            22..=26 => self.read(),
            27..=29 => self.allocate(),
            30 => self.truncate(),
            31..=32 => self.copy(),
            33 => self.sync(),
            _ => {
                let some = self.random.index(DEPTH);
                self.reap(some)
            }
        }
    }

    fn file(&mut self) -> usize {
        self.random.index(self.files.len())
    }

    fn blocks(&mut self) -> Range<usize> {
        let first = self.random.index(BLOCKS);
        let count = 1 + self.random.index((BLOCKS - first).min(3));
        first * BLOCK..(first + count) * BLOCK
    }

    /// Returns a range of bytes, sometimes of whole blocks.
    fn part(&mut self) -> Range<usize> {
        if self.random.one_in(4) {
            return self.blocks();
        }
        let from = self.random.index(FILE_BYTES);
        let most = if self.random.one_in(4) { 10_000 } else { 1500 };
        from..from + 1 + self.random.index((FILE_BYTES - from).min(most))
    }

    fn value(&mut self) -> u8 {
        1 + u8::try_from(self.random.below(255)).expect("below 255")
    }

    /// Runs a write of one value that is acknowledged when `run` returns.
    fn written(
        &mut self,
        file: usize,
        range: &Range<usize>,
        value: u8,
        run: impl FnOnce(&mut Self, &File) -> Result<()>,
    ) -> Result<()> {
        let files = self.files;
        let Shared { file, history } = &files[file];
        let write = history.begin(self.clock, range, value);
        run(self, file)?;
        history.end(self.clock, &write);
        Ok(())
    }

    fn write(&mut self) -> Result<()> {
        let (file, range, value) = (self.file(), self.part(), self.value());
        let how = self.random.below(5);
        self.written(file, &range, value, |_, file| {
            let (at, bytes) = (range.start as u64, vec![value; range.len()]);
            let written = match how {
                0 | 1 => file.write_at(at, &bytes),
                2 => file.write_uncached(at, &bytes, Privileges::Keep),
                3 => file.write_from_cache(at, &bytes),
                _ => file.write_direct(at, &bytes, Privileges::Keep),
            };
            ensure!(written? == bytes.len(), "a write was short");
            Ok(())
        })
    }

    fn allocate(&mut self) -> Result<()> {
        let (file, range) = (self.file(), self.part());
        let bytes = range.start as u64..range.end as u64;
        let zeroes = [Allocate::PunchHole, Allocate::Zero, Allocate::ZeroKeepSize];
        if self.random.one_in(4) {
            self.files[file].file.allocate(bytes, Allocate::KeepSize)?;
            return Ok(());
        }
        let how = *self.random.pick(&zeroes);
        self.written(file, &range, 0, |_, file| Ok(file.allocate(bytes, how)?))
    }

    fn truncate(&mut self) -> Result<()> {
        let (file, size) = (self.file(), self.random.index(FILE_BYTES));
        let grows = self.random.one_in(2);
        self.written(file, &(size..FILE_BYTES), 0, |_, file| {
            file.truncate(size as u64)?;
            if grows {
                file.truncate(FILE_BYTES as u64)?;
            }
            Ok(())
        })
    }

    fn copy(&mut self) -> Result<()> {
        let (file, part, value) = (self.file(), self.part(), self.value());
        let range = part.start..part.end.min(part.start + BLOCK);
        let (from, bytes) = (u64::from(value) * BLOCK as u64, range.len() as u64);
        self.written(file, &range, value, |worker, file| {
            let copied = file.copy_range(range.start as u64, worker.source, from, bytes)?;
            ensure!(copied == bytes, "a copy was short");
            Ok(())
        })
    }

    fn sync(&mut self) -> Result<()> {
        let file = self.file();
        if self.random.one_in(3) {
            self.filesystem.sync()?;
        } else {
            self.files[file].file.sync_all()?;
        }
        Ok(())
    }

    fn read(&mut self) -> Result<()> {
        let (file, part) = (self.file(), self.part());
        let lane = *self.random.pick(&[Lane::Cached, Lane::Direct, Lane::Uncached]);
        let Shared { file, history } = &self.files[file];
        let begun = self.clock.tick();
        let bytes = read(file, part.start as u64, part.len(), lane)?;
        self.reads += 1;
        history
            .check(part.start, &bytes, (begun, self.clock.tick()))
            .with_context(|| format!("{lane:?}"))
    }

    fn memory(&mut self, bytes: usize) -> (Buffer, Option<BorrowedMemory>) {
        if self.random.one_in(4) {
            let borrowed = BorrowedMemory::new(bytes);
            return (borrowed.buffer(bytes), Some(borrowed));
        }
        (self.queue.buffer(bytes).unwrap_or_else(|| Buffer::zeroed(bytes)), None)
    }

    fn flags(&mut self) -> IoFlags {
        let lane = match self.random.below(8) {
            0 => IoFlags::default(),
            1 => IoFlags::UNCACHED,
            _ => IoFlags::DIRECT,
        };
        if self.random.one_in(3) { lane.with(IoFlags::NOWAIT) } else { lane }
    }

    fn queue_write(&mut self) -> Result<()> {
        let (file, flags, value) = (self.file(), self.flags(), self.value());
        let is_direct = flags.contains(IoFlags::DIRECT);
        let range = if is_direct { self.blocks() } else { self.part() };
        let (mut buffer, borrowed) = self.memory(range.len());
        buffer.fill(value);
        if self.queue.outstanding() == DEPTH {
            self.reap(1)?;
        }
        let Shared { file: handle, history } = &self.files[file];
        let begun = self.clock.tick();
        let write = history.begin(self.clock, &range, value);
        let request = InFlight { file, range, begun, write: Some(write), _borrowed: borrowed };
        self.enqueue(handle, buffer, flags, request)
    }

    fn queue_read(&mut self) -> Result<()> {
        let (file, flags, range) = (self.file(), self.flags(), self.blocks());
        let (buffer, borrowed) = self.memory(range.len());
        if self.queue.outstanding() == DEPTH {
            self.reap(1)?;
        }
        let begun = self.clock.tick();
        let request = InFlight { file, range, begun, write: None, _borrowed: borrowed };
        self.enqueue(&self.files[file].file, buffer, flags, request)
    }

    fn enqueue(
        &mut self,
        file: &File,
        mut buffer: Buffer,
        mut flags: IoFlags,
        request: InFlight,
    ) -> Result<()> {
        self.tag += 1;
        let (tag, offset) = (self.tag, request.range.start as u64);
        loop {
            let taken = if request.write.is_some() {
                self.queue.write(file, offset, buffer, flags, tag)
            } else {
                self.queue.read(file, offset, buffer, flags, tag)
            };
            let Err(refused) = taken else { break };
            ensure!(flags.contains(IoFlags::NOWAIT), "refused: {}", refused.error);
            flags = flags.without(IoFlags::NOWAIT);
            buffer = refused.buffer;
        }
        self.in_flight.insert(tag, request);
        if self.random.one_in(8) {
            let tag = self.tag + 1;
            if self.queue.outstanding() < DEPTH {
                self.tag = tag;
                let taken = self.queue.sync(file, SyncKind::Data, tag);
                taken.map_err(|refused| refused.error)?;
            }
        }
        Ok(())
    }

    fn reap(&mut self, min: usize) -> Result<()> {
        let mut done = Vec::new();
        self.queue.reap(min, None, &mut done);
        for Completion { tag, mut buffer, result } in done {
            let transferred = result.with_context(|| format!("request {tag}"))?;
            // A sync is not recorded in the map.
            let Some(request) = self.in_flight.remove(&tag) else { continue };
            let InFlight { file, range, begun, write, .. } = &request;
            let history = &self.files[*file].history;
            if let Some(write) = write {
                ensure!(
                    transferred == range.len(),
                    "request {tag}: {transferred} bytes were written"
                );
                history.end(self.clock, write);
            } else {
                buffer.get_mut(transferred..).unwrap_or_default().fill(0);
                self.reads += 1;
                history
                    .check(range.start, &buffer, (*begun, self.clock.tick()))
                    .context("by a queue")?;
            }
            drop(buffer);
        }
        Ok(())
    }
}
