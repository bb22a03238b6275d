//! One thread of the run: requests on its own regions, blocking and in flight.

use super::{Region, any_lane, append, same};
use crate::borrowed::BorrowedMemory;
use crate::lane::read_whole;
use crate::operation::Lane;
use crate::random::Random;
use anyhow::{Context, Result, ensure};
use butternut::queue::{Completion, IoFlags, Queue, QueueOptions, SyncKind};
use butternut::{Allocate, Buffer, File, Filesystem, Privileges};
use std::collections::BTreeMap;
use std::ops::Range;

const BLOCK: u64 = 4096;
const DEPTH: usize = 16;

pub(super) struct Worker<'a> {
    number: u8,
    random: Random,
    files: &'a [File],
    log: &'a File,
    regions: Vec<Region>,
    queue: Queue,
    /// Requests in flight, by tag.
    in_flight: BTreeMap<u64, InFlight>,
    queued: u64,
    appended: u32,
    filesystem: &'a Filesystem,
}

/// A request that was submitted and not reaped. Its region is not used meanwhile.
struct InFlight {
    region: Option<usize>,
    range: Range<usize>,
    what: What,
    _borrowed: Option<BorrowedMemory>,
}

enum What {
    Read,
    Write(Vec<u8>),
    Other,
}

impl<'a> Worker<'a> {
    pub(super) fn new(
        number: u8,
        seed: u64,
        filesystem: &'a Filesystem,
        (files, log): (&'a [File], &'a File),
        regions: Vec<Region>,
    ) -> Result<Worker<'a>> {
        let options =
            QueueOptions::default().depth(DEPTH).arena_bytes(512 << 10).bounce_bytes(256 << 10);
        let queue = filesystem.queue(&options)?;
        let (random, in_flight) = (Random::new(seed), BTreeMap::new());
        let (queued, appended) = (0, 0);
        Ok(Worker {
            number,
            random,
            files,
            log,
            regions,
            queue,
            in_flight,
            queued,
            appended,
            filesystem,
        })
    }

    /// Runs the operations, and returns the regions and the number of queued requests.
    pub(super) fn run(mut self, operations: usize) -> Result<(Vec<Region>, u64)> {
        for number in 0..operations {
            self.step().with_context(|| format!("operation {number}"))?;
        }
        self.reap(usize::MAX)?;
        ensure!(self.in_flight.is_empty(), "{} requests never completed", self.in_flight.len());
        Ok((self.regions, self.queued))
    }

    fn step(&mut self) -> Result<()> {
        match self.random.below(40) {
            0..=11 => self.queue_write(),
            12..=15 => self.queue_read(),
            16..=21 => self.write(),
            22..=27 => self.read(),
            28..=29 => self.read_of_another(),
            30..=31 => self.make_zeroes(),
            32..=33 => self.append(),
            34 => self.sync(),
            35..=36 => {
                self.queue.submit();
                Ok(())
            }
            _ => {
                let some = self.random.index(DEPTH);
                self.reap(some)
            }
        }
    }

    /// Returns a region without requests in flight.
    fn idle(&mut self) -> Result<usize> {
        loop {
            let region = self.random.index(self.regions.len());
            if self.in_flight.values().all(|request| request.region != Some(region)) {
                return Ok(region);
            }
            self.reap(1)?;
        }
    }

    /// Returns a part of a region, mostly of whole blocks for a direct request.
    fn part(&mut self, region: usize, lane: Lane) -> Range<usize> {
        let Region { start, bytes, .. } = &self.regions[region];
        let len = bytes.len();
        if lane == Lane::Direct && !self.random.one_in(5) {
            let (block, skip) = (size(BLOCK), size(start.next_multiple_of(BLOCK) - start));
            let blocks = (len - skip) / block;
            let first = self.random.index(blocks);
            let count = 1 + self.random.index((blocks - first).min(6));
            return skip + first * block..skip + (first + count) * block;
        }
        let from = self.random.index(len);
        let most = if self.random.one_in(3) { len - from } else { (len - from).min(3000) };
        from..from + 1 + self.random.index(most)
    }

    /// Returns bytes that identify this thread; sometimes they compress well.
    fn content(&mut self, bytes: usize) -> Vec<u8> {
        let name = (self.number + 1) << 4;
        let is_flat = self.random.one_in(4);
        let flat = self.random.number().to_le_bytes()[0];
        let nibble = |random: &mut Random| {
            if is_flat { flat & 15 } else { random.number().to_le_bytes()[0] & 15 }
        };
        (0..bytes).map(|_| name | nibble(&mut self.random)).collect()
    }

    fn queue_write(&mut self) -> Result<()> {
        let (region, lane) = (self.idle()?, any_lane(&mut self.random));
        let range = self.part(region, lane);
        let content = self.content(range.len());
        let (mut buffer, borrowed) = self.memory(range.len());
        buffer.copy_from_slice(&content);
        let durable = if self.random.one_in(24) { IoFlags::DSYNC } else { IoFlags::default() };
        let request = InFlight {
            region: Some(region),
            range,
            what: What::Write(content),
            _borrowed: borrowed,
        };
        self.enqueue(request, buffer, flags_of(lane).with(durable))
    }

    fn queue_read(&mut self) -> Result<()> {
        let (region, lane) = (self.idle()?, any_lane(&mut self.random));
        let range = self.part(region, lane);
        let (buffer, borrowed) = self.memory(range.len());
        let request =
            InFlight { region: Some(region), range, what: What::Read, _borrowed: borrowed };
        self.enqueue(request, buffer, flags_of(lane))
    }

    fn enqueue(&mut self, request: InFlight, mut buffer: Buffer, mut flags: IoFlags) -> Result<()> {
        if self.random.one_in(4) {
            flags = flags.with(IoFlags::NOWAIT);
        }
        let region = request.region.expect("the request has a region");
        let Region { file, start, .. } = self.regions[region];
        let (file, offset) = (&self.files[file], start + request.range.start as u64);
        let tag = self.queued;
        loop {
            if self.queue.outstanding() == DEPTH {
                self.reap(1)?;
            }
            let taken = match request.what {
                What::Write(_) => self.queue.write(file, offset, buffer, flags, tag),
                What::Read | What::Other => self.queue.read(file, offset, buffer, flags, tag),
            };
            let Err(refused) = taken else { break };
            ensure!(flags.contains(IoFlags::NOWAIT), "refused: {}", refused.error);
            flags = flags.without(IoFlags::NOWAIT);
            buffer = refused.buffer;
        }
        self.queued += 1;
        self.in_flight.insert(tag, request);
        Ok(())
    }

    fn memory(&mut self, bytes: usize) -> (Buffer, Option<BorrowedMemory>) {
        if self.random.one_in(4) {
            let borrowed = BorrowedMemory::new(bytes);
            return (borrowed.buffer(bytes), Some(borrowed));
        }
        (self.queue.buffer(bytes).unwrap_or_else(|| Buffer::zeroed(bytes)), None)
    }

    fn reap(&mut self, min: usize) -> Result<()> {
        let mut done = Vec::new();
        self.queue.reap(min, None, &mut done);
        for Completion { tag, buffer, result } in done {
            let request = self.in_flight.remove(&tag).context("a request completed twice")?;
            let bytes = result.with_context(|| format!("request {tag}"))?;
            ensure!(
                buffer.len() == request.range.len(),
                "a buffer was returned with another length"
            );
            ensure!(bytes == request.range.len(), "request {tag}: {bytes} bytes were transferred");
            let Some(region) = request.region else { continue };
            let Region { file, start, bytes } = &mut self.regions[region];
            let at = *start + request.range.start as u64;
            match request.what {
                What::Write(content) => bytes[request.range].copy_from_slice(&content),
                What::Read => same(&buffer, &bytes[request.range], *file, at)?,
                What::Other => {}
            }
            drop(buffer);
        }
        Ok(())
    }

    fn write(&mut self) -> Result<()> {
        let (region, lane) = (self.idle()?, any_lane(&mut self.random));
        let range = self.part(region, lane);
        let content = self.content(range.len());
        let Region { file, start, bytes } = &mut self.regions[region];
        let (file, at) = (&self.files[*file], *start + range.start as u64);
        let written = match lane {
            Lane::Cached => file.write_at(at, &content),
            Lane::Direct => file.write_direct(at, &content, Privileges::Keep),
            Lane::Uncached => file.write_uncached(at, &content, Privileges::Keep),
        };
        ensure!(written? == content.len(), "a write was short");
        bytes[range].copy_from_slice(&content);
        Ok(())
    }

    fn read(&mut self) -> Result<()> {
        let (region, lane) = (self.idle()?, any_lane(&mut self.random));
        let range = self.part(region, lane);
        let Region { file, start, bytes } = &self.regions[region];
        let at = *start + range.start as u64;
        let have = read_whole(&self.files[*file], at, range.len(), lane)?;
        same(&have, &bytes[range], *file, at).with_context(|| format!("{lane:?}"))
    }

    /// Checks law 2 of the run.
    fn read_of_another(&mut self) -> Result<()> {
        let lane = any_lane(&mut self.random);
        let number = self.random.index(self.files.len());
        let file = &self.files[number];
        let at = self.random.below(file.len() - super::REGION_BYTES);
        let at = if self.random.one_in(2) { at / BLOCK * BLOCK } else { at };
        let have = read_whole(file, at, size(super::REGION_BYTES), lane)?;
        let own: Vec<&Region> =
            self.regions.iter().filter(|region| region.file == number).collect();
        for (byte, at) in have.iter().zip(at..) {
            let is_own = own
                .iter()
                .any(|region| (region.start..region.start + super::REGION_BYTES).contains(&at));
            let is_mine = byte >> 4 == self.number + 1;
            ensure!(
                *byte == 0 || is_mine == is_own,
                "file {number}, byte {at}: {byte:x} ({lane:?})"
            );
        }
        Ok(())
    }

    fn make_zeroes(&mut self) -> Result<()> {
        let region = self.idle()?;
        let range = self.part(region, Lane::Direct);
        let Region { file, start, bytes } = &mut self.regions[region];
        let (from, to) = (*start + range.start as u64, *start + range.end as u64);
        let how = *self.random.pick(&[
            Allocate::PunchHole,
            Allocate::Zero,
            Allocate::KeepSize,
            Allocate::ZeroKeepSize,
        ]);
        self.files[*file].allocate(from..to, how)?;
        if how != Allocate::KeepSize {
            bytes[range].fill(0);
        }
        Ok(())
    }

    fn append(&mut self) -> Result<()> {
        let bytes = 12 + self.random.index(3000);
        let record = append::record(self.number, self.appended, bytes);
        self.appended += 1;
        if self.random.one_in(2) {
            let (_, written) = self.log.append(&record, Privileges::Keep)?;
            ensure!(written == bytes, "an append was short");
            return Ok(());
        }
        if self.queue.outstanding() == DEPTH {
            self.reap(1)?;
        }
        let (mut buffer, borrowed) = self.memory(bytes);
        buffer.copy_from_slice(&record);
        let flags = flags_of(any_lane(&mut self.random)).with(IoFlags::APPEND);
        let tag = self.queued;
        let taken = self.queue.write(self.log, 0, buffer, flags, tag);
        taken.map_err(|refused| refused.error)?;
        self.queued += 1;
        let request =
            InFlight { region: None, range: 0..bytes, what: What::Other, _borrowed: borrowed };
        self.in_flight.insert(tag, request);
        Ok(())
    }

    fn sync(&mut self) -> Result<()> {
        let file = self.random.pick(self.files);
        match self.random.below(4) {
            0 => self.filesystem.sync()?,
            1 => file.sync_all()?,
            2 => file.sync_data()?,
            _ => {
                if self.queue.outstanding() == DEPTH {
                    self.reap(1)?;
                }
                let tag = self.queued;
                let taken = self.queue.sync(file, SyncKind::Data, tag);
                taken.map_err(|refused| refused.error)?;
                self.queued += 1;
                let request =
                    InFlight { region: None, range: 0..0, what: What::Other, _borrowed: None };
                self.in_flight.insert(tag, request);
            }
        }
        Ok(())
    }
}

fn flags_of(lane: Lane) -> IoFlags {
    match lane {
        Lane::Cached => IoFlags::default(),
        Lane::Direct => IoFlags::DIRECT,
        Lane::Uncached => IoFlags::UNCACHED,
    }
}

fn size(bytes: u64) -> usize {
    usize::try_from(bytes).expect("fits memory")
}
