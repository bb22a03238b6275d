//! One thread of the run: it uses whatever inodes it finds under the shared names.

use super::history::{BegunWrite, CELL_BYTES, CELLS, History, Synced, Tick, Window};
use super::names::{Leads, NAMES};
use super::{LANES, RunCounts, SharedRun, bytes_of, find, offset_of, read};
use crate::operation::{Lane, flags};
use crate::random::Random;
use anyhow::{Context, Result, anyhow, bail, ensure};
use butternut::queue::{Completion, IoFlags, Queue, QueueOptions, SyncKind};
use butternut::{
    Allocate, AttributeFlags, Buffer, Error, File, FileId, Filesystem, NewInode, Privileges,
    RenameFlags,
};
use butternut_device::RecordingDevice;
use std::collections::BTreeMap;
use std::ops::Range;

const DEPTH: usize = 8;
const HANDLES_MAX: usize = 4;
const CELLS_OF_BLOCK: usize = 8;

pub(super) struct Worker<'a> {
    random: Random,
    has_partial_writes: bool,
    filesystem: &'a Filesystem,
    history: &'a History,
    recorder: Option<&'a RecordingDevice>,
    handles: Vec<File>,
    queue: Queue,
    /// Requests in flight, by tag.
    in_flight: BTreeMap<u64, InFlight>,
    ran: RunCounts,
}

/// A request that was submitted and not reaped.
enum InFlight {
    Write { begun: BegunWrite, is_durable: bool },
    Read { file: FileId, first: usize, from: Tick },
    Sync { file: FileId, start: Tick },
}

impl<'a> Worker<'a> {
    pub(super) fn new(
        run: &SharedRun,
        seed: u64,
        filesystem: &'a Filesystem,
        history: &'a History,
        recorder: Option<&'a RecordingDevice>,
    ) -> Result<Self> {
        let options =
            QueueOptions::default().depth(DEPTH).arena_bytes(512 << 10).bounce_bytes(256 << 10);
        let queue = filesystem.queue(&options)?;
        let (random, handles, in_flight) = (Random::new(seed), Vec::new(), BTreeMap::new());
        let ran = RunCounts::default();
        let has_partial_writes = run.has_partial_writes;
        Ok(Self {
            random,
            has_partial_writes,
            filesystem,
            history,
            recorder,
            handles,
            queue,
            in_flight,
            ran,
        })
    }

    pub(super) fn run(mut self, operations: usize) -> Result<RunCounts> {
        for number in 0..operations {
            self.step().with_context(|| format!("operation {number}"))?;
            self.ran.operations += 1;
        }
        self.reap(usize::MAX)?;
        ensure!(self.in_flight.is_empty(), "{} requests never completed", self.in_flight.len());
        Ok(self.ran)
    }

    fn step(&mut self) -> Result<()> {
        match self.random.below(100) {
            0..=5 => return self.open(),
            6..=8 => return self.create(),
            9..=10 => return self.rename(),
            11 => return self.link(),
            12 => return self.unlink(),
            13 if self.random.one_in(2) => return self.sync_all(),
            14..=18 => {
                let some = self.random.index(DEPTH);
                return self.reap(some);
            }
            19 => self.queue.submit(),
            _ => {}
        }
        if self.handles.is_empty() {
            return self.open();
        }
        let file = self.random.pick(&self.handles).clone();
        match self.random.below(80) {
            0..=17 => self.write(&file),
            18..=37 => self.queue_write(&file),
            38..=52 => self.read(&file),
            53..=65 => self.queue_read(&file),
            66..=68 => self.truncate(&file),
            69..=73 => self.make_zeroes(&file),
            74 => self.set_flags(&file),
            75..=77 => self.sync(&file),
            _ => self.queue_sync(&file),
        }
    }

    fn name(&mut self) -> usize {
        self.random.index(NAMES.len())
    }

    fn position(&self) -> usize {
        self.recorder.map_or(0, RecordingDevice::position)
    }

    /// Looks up a name, and opens its inode.
    fn open(&mut self) -> Result<()> {
        let number = self.name();
        let from = self.history.tick();
        let found = find(self.filesystem, NAMES[number])?;
        let window = Window { from, to: self.history.tick(), position: None, stores_from: None };
        let names = self.history.names();
        ensure!(
            names.allows(number, found, &window),
            "{} refers to {found:?} in {window:?}, after {}",
            NAMES[number],
            names.describe(number)
        );
        drop(names);
        self.ran.reads += 1;
        found.map_or(Ok(()), |id| self.keep_handle(id))
    }

    fn keep_handle(&mut self, id: FileId) -> Result<()> {
        match self.filesystem.open_file(id) {
            Ok(file) if self.handles.len() < HANDLES_MAX => self.handles.push(file),
            Ok(file) => {
                let place = self.random.index(HANDLES_MAX);
                self.handles[place] = file;
            }
            Err(Error::Stale { .. }) => {}
            Err(error) => return Err(error.into()),
        }
        Ok(())
    }

    /// Runs a change of names, and records its result.
    fn change_names<R>(
        &mut self,
        changes: &[(usize, Leads)],
        call: impl FnOnce(&Filesystem) -> butternut::Result<R>,
        leads: impl FnOnce(&R) -> Option<Leads>,
    ) -> Result<Option<R>> {
        let begun = {
            let mut names = self.history.names();
            names.begin(self.history.tick(), changes)
        };
        let result = call(self.filesystem);
        let (done, leads) = match result {
            Ok(done) => {
                let leads = leads(&done);
                (Some(done), leads)
            }
            Err(Error::Exists | Error::NotFound | Error::Stale { .. }) => {
                (None, Some(Leads::AsBefore))
            }
            Err(error) => return Err(error.into()),
        };
        let mut names = self.history.names();
        names.end(&begun, self.history.tick(), leads);
        Ok(done)
    }

    fn create(&mut self) -> Result<()> {
        let name = self.name();
        let call = |filesystem: &Filesystem| {
            let root = filesystem.root();
            filesystem.create(root, NAMES[name].as_bytes(), &NewInode::new(0o644))
        };
        let changes = [(name, Leads::ToNew)];
        match self.change_names(&changes, call, |id| Some(Leads::To(*id)))? {
            Some(id) => self.keep_handle(id),
            None => Ok(()),
        }
    }

    fn unlink(&mut self) -> Result<()> {
        let name = self.name();
        let call =
            |filesystem: &Filesystem| filesystem.unlink(filesystem.root(), NAMES[name].as_bytes());
        self.change_names(&[(name, Leads::Nowhere)], call, |()| None).map(drop)
    }

    fn rename(&mut self) -> Result<()> {
        let (from, to) = (self.name(), self.name());
        if from == to {
            return Ok(());
        }
        let exchange = self.random.one_in(3);
        let no_replace = !exchange && self.random.one_in(4);
        let rename = RenameFlags { exchange, no_replace, whiteout: None };
        let call = |filesystem: &Filesystem| {
            let root = filesystem.root();
            let (from, to) = ((root, NAMES[from].as_bytes()), (root, NAMES[to].as_bytes()));
            filesystem.rename(from, to, rename)
        };
        let left = if exchange { Leads::As(to) } else { Leads::NowhereUnlessAs(to) };
        self.change_names(&[(from, left), (to, Leads::As(from))], call, |()| None).map(drop)
    }

    fn link(&mut self) -> Result<()> {
        let name = self.name();
        let Some(file) = self.handles.first() else { return Ok(()) };
        let id = file.id();
        let call = |filesystem: &Filesystem| {
            filesystem.link(id, filesystem.root(), NAMES[name].as_bytes())
        };
        self.change_names(&[(name, Leads::To(id))], call, |()| None).map(drop)
    }

    /// Returns cells that several threads use: often within one block, and mostly whole blocks if
    /// `prefers_blocks`.
    fn cells(&mut self, prefers_blocks: bool) -> Range<usize> {
        if prefers_blocks && !self.random.one_in(6) {
            let blocks = CELLS / CELLS_OF_BLOCK;
            let most = blocks.min(4 + self.random.index(blocks));
            let first = self.random.index(most);
            let count = 1 + self.random.index((blocks - first).min(4));
            return first * CELLS_OF_BLOCK..(first + count) * CELLS_OF_BLOCK;
        }
        let first = self.random.index(CELLS);
        let most = if self.random.one_in(6) { CELLS - first } else { (CELLS - first).min(12) };
        first..first + 1 + self.random.index(most)
    }

    fn cells_to_write(&mut self, lane: Lane) -> Range<usize> {
        let cells = self.cells(lane == Lane::Direct);
        if self.has_partial_writes {
            return cells;
        }
        let start = cells.start / CELLS_OF_BLOCK * CELLS_OF_BLOCK;
        start..cells.end.next_multiple_of(CELLS_OF_BLOCK)
    }

    fn content(begun: &BegunWrite) -> Vec<u8> {
        begun.value.to_le_bytes().repeat(bytes_of(begun.cells.len()) / 8)
    }

    fn write(&mut self, file: &File) -> Result<()> {
        let lane = *self.random.pick(&LANES);
        let cells = self.cells_to_write(lane);
        let begun = self.history.begin(file.id(), cells, false);
        let (content, at) = (Self::content(&begun), offset_of(begun.cells.start));
        let written = match lane {
            Lane::Cached => file.write_at(at, &content),
            Lane::Direct => file.write_direct(at, &content, Privileges::Keep),
            Lane::Uncached => file.write_uncached(at, &content, Privileges::Keep),
        };
        ensure!(written? == content.len(), "a write was short");
        self.history.end(&begun, None);
        Ok(())
    }

    fn read(&mut self, file: &File) -> Result<()> {
        let lane = *self.random.pick(&LANES);
        let cells = self.cells(lane == Lane::Direct);
        let (from, first) = (self.history.tick(), cells.start);
        let bytes = read(file, cells, lane)?;
        self.check(file.id(), first, &bytes, from).with_context(|| format!("{lane:?}"))
    }

    fn check(&mut self, file: FileId, first: usize, bytes: &[u8], from: Tick) -> Result<()> {
        let window = Window { from, to: self.history.tick(), position: None, stores_from: None };
        self.ran.reads += 1;
        self.history.check(file, first, bytes, &window).map_err(|text| anyhow!(text))
    }

    fn queue_write(&mut self, file: &File) -> Result<()> {
        let (lane, is_durable) = (*self.random.pick(&LANES), self.random.one_in(30));
        let cells = self.cells_to_write(lane);
        let begun = self.history.begin(file.id(), cells, false);
        let content = Self::content(&begun);
        let mut buffer = self.memory(content.len());
        buffer.copy_from_slice(&content);
        let durable = if is_durable { IoFlags::DSYNC } else { IoFlags::default() };
        let how = flags_of(lane).with(durable);
        self.enqueue(file, InFlight::Write { begun, is_durable }, buffer, how)
    }

    fn queue_read(&mut self, file: &File) -> Result<()> {
        let lane = *self.random.pick(&LANES);
        let cells = self.cells(lane == Lane::Direct);
        let buffer = self.memory(bytes_of(cells.len()));
        let from = self.history.tick();
        let request = InFlight::Read { file: file.id(), first: cells.start, from };
        self.enqueue(file, request, buffer, flags_of(lane))
    }

    fn queue_sync(&mut self, file: &File) -> Result<()> {
        let request = InFlight::Sync { file: file.id(), start: self.history.tick() };
        self.enqueue(file, request, Buffer::default(), IoFlags::default())
    }

    fn memory(&mut self, bytes: usize) -> Buffer {
        self.queue.buffer(bytes).unwrap_or_else(|| Buffer::zeroed(bytes))
    }

    fn enqueue(
        &mut self,
        file: &File,
        request: InFlight,
        mut buffer: Buffer,
        mut how: IoFlags,
    ) -> Result<()> {
        if self.random.one_in(4) {
            how = how.with(IoFlags::NOWAIT);
        }
        if self.queue.outstanding() == DEPTH {
            self.reap(1)?;
        }
        let tag = self.ran.queued;
        loop {
            let taken = match &request {
                InFlight::Write { begun, .. } => {
                    self.queue.write(file, offset_of(begun.cells.start), buffer, how, tag)
                }
                InFlight::Read { first, .. } => {
                    self.queue.read(file, offset_of(*first), buffer, how, tag)
                }
                InFlight::Sync { .. } => self.queue.sync(file, SyncKind::All, tag),
            };
            let Err(refused) = taken else { break };
            ensure!(how.contains(IoFlags::NOWAIT), "refused: {}", refused.error);
            how = how.without(IoFlags::NOWAIT);
            buffer = refused.buffer;
        }
        self.ran.queued += 1;
        self.in_flight.insert(tag, request);
        Ok(())
    }

    fn reap(&mut self, min: usize) -> Result<()> {
        let mut done = Vec::new();
        self.queue.reap(min, None, &mut done);
        for Completion { tag, mut buffer, result } in done {
            let request = self.in_flight.remove(&tag).context("a request completed twice")?;
            let bytes = result.with_context(|| format!("request {tag}"))?;
            match request {
                InFlight::Write { begun, is_durable } => {
                    ensure!(bytes == bytes_of(begun.cells.len()), "a queued write was short");
                    let position = self.position();
                    self.history.end(&begun, is_durable.then_some(position));
                }
                InFlight::Read { file, first, from } => {
                    ensure!(bytes <= buffer.len(), "more bytes were read than requested");
                    buffer[bytes..].fill(0);
                    self.check(file, first, &buffer, from).context("by a queue")?;
                }
                InFlight::Sync { file, start } => self.synced(Some(file), start),
            }
        }
        Ok(())
    }

    fn truncate(&mut self, file: &File) -> Result<()> {
        let cell = self.random.index(CELLS);
        let begun = self.history.begin(file.id(), cell..CELLS, true);
        file.truncate(offset_of(cell))?;
        self.history.end(&begun, None);
        Ok(())
    }

    fn make_zeroes(&mut self, file: &File) -> Result<()> {
        let cells = self.cells(true);
        let range = offset_of(cells.start)..offset_of(cells.end);
        let how = *self.random.pick(&[
            Allocate::PunchHole,
            Allocate::PunchHole,
            Allocate::Zero,
            Allocate::ZeroKeepSize,
            Allocate::KeepSize,
        ]);
        if how == Allocate::KeepSize {
            return Ok(file.allocate(range, how)?);
        }
        let begun = self.history.begin(file.id(), cells, true);
        file.allocate(range, how)?;
        self.history.end(&begun, None);
        Ok(())
    }

    /// Sets nodatacow or compression, if the file allows it.
    fn set_flags(&mut self, file: &File) -> Result<()> {
        let wanted = *self.random.pick(&[flags::NO_COW, flags::COMPRESS]);
        match self.filesystem.set_attribute_flags(file.id(), AttributeFlags(wanted)) {
            // The flag may exclude one that is set, or need an empty file.
            Ok(()) | Err(Error::Names(_)) => Ok(()),
            Err(error @ Error::Stale { .. }) => {
                bail!("the file is open, but its handle is stale: {error}")
            }
            Err(error) => Err(error.into()),
        }
    }

    fn sync(&mut self, file: &File) -> Result<()> {
        let start = self.history.tick();
        file.sync_all()?;
        self.synced(Some(file.id()), start);
        Ok(())
    }

    fn sync_all(&mut self) -> Result<()> {
        let start = self.history.tick();
        self.filesystem.sync()?;
        self.synced(None, start);
        Ok(())
    }

    fn synced(&mut self, file: Option<FileId>, start: Tick) {
        // The sync holds from this position on; what may be on the medium began before this tick.
        let position = self.position();
        let end = self.history.tick();
        self.history.add_sync(Synced { file, start, end, position });
        self.ran.syncs += 1;
    }
}

fn flags_of(lane: Lane) -> IoFlags {
    match lane {
        Lane::Cached => IoFlags::default(),
        Lane::Direct => IoFlags::DIRECT,
        Lane::Uncached => IoFlags::UNCACHED,
    }
}

const _: () = assert!(CELL_BYTES * CELLS_OF_BLOCK as u64 == 4096);
