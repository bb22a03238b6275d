//! Power cuts while requests are in flight: threads write their own blocks of the same files
//! through queues, by every lane, reap some requests from time to time, and sync. After each crash
//! every write is there that had been reported as durable. Every other block has its old or its new
//! content (each sector, if the file is nodatacow). The checker finds nothing, and the volume can
//! be changed.
//!
//! `BUTTERNUT_LONG=1` checks at least 20,000 crashes; `BUTTERNUT_SEED=N` checks one workload.

#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a test panics where it fails")]

use anyhow::{Context, Result, ensure};
use butternut::queue::{IoFlags, Queue, QueueOptions, SyncKind};
use butternut::{AttributeFlags, Buffer, File, Filesystem, MountOptions, NewInode};
use butternut_device::{Crash, CrashImage, CrashOptions, Device, RecordingDevice};
use butternut_mkfs::MkfsOptions;
use butternut_sim::content::{SECTOR_BYTES, pattern};
use butternut_sim::crash::{JudgeOptions, StoryBuilder, Verdict, judge};
use butternut_sim::operation::flags;
use butternut_sim::random::{Random, mix};
use butternut_sim::volume::{check_crashed, fresh, is_super_block};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

const VOLUME_BYTES: u64 = 160 << 20;
const BLOCK: usize = 4096;
const BLOCKS: usize = 64;
/// Adjacent blocks that one thread owns.
const STRIPE: usize = 8;
const FILES: [(&str, u32); 3] =
    [("plain", 0), ("in place", flags::NO_COW), ("packed", flags::COMPRESS)];
const IN_PLACE: usize = 1;
const DEPTH: usize = 12;

/// A file and a block of it.
type At = (usize, usize);

/// The versions of a block in order, beginning with its initial content.
#[derive(Debug, Default)]
struct Block {
    /// The seed of the bytes, and the position of the log before they were queued.
    versions: Vec<(u64, usize)>,
    /// Pairs of a position of the log and the number of the oldest version that may be there from
    /// then on.
    durable_from: Vec<(usize, usize)>,
}

/// What one thread did.
#[derive(Debug, Default)]
struct Done {
    blocks: BTreeMap<At, Block>,
    /// Pairs of a position in the device's log and the size that the appended file had begun to
    /// have, or durably had, by then.
    appended: Vec<(usize, u64)>,
    durable: Vec<(usize, u64)>,
    requests: u64,
    in_flight_most: usize,
}

struct InFlight {
    blocks: Vec<At>,
    is_durable: bool,
    /// The versions that a sync makes durable.
    covers: Vec<(At, usize)>,
}

struct Writer<'a> {
    filesystem: &'a Filesystem,
    device: &'a RecordingDevice,
    files: &'a [File],
    /// The appended file; `Some` for the first thread only.
    log: Option<&'a File>,
    random: Random,
    queue: Queue,
    in_flight: BTreeMap<u64, InFlight>,
    /// The newest version of each block that was reaped.
    reaped: BTreeMap<At, usize>,
    done: Done,
}

fn options() -> MountOptions {
    MountOptions::default().read_only(false).commit_seconds(1 << 30).workers(1)
}

fn first_seed((file, block): At) -> u64 {
    1 + 4 * (file * BLOCKS + block) as u64
}

fn log_byte(at: u64) -> u8 {
    mix(at / 100).to_le_bytes()[0]
}

/// Makes a volume with files on a device that is not written any more.
fn base() -> Result<Arc<dyn Device>> {
    let device = fresh(VOLUME_BYTES, &MkfsOptions::default())?;
    let filesystem = Filesystem::open_devices(vec![Arc::clone(&device)], &options())?;
    for (number, (name, flags)) in FILES.iter().enumerate() {
        let id = filesystem.create(filesystem.root(), name.as_bytes(), &NewInode::new(0o644))?;
        filesystem.set_attribute_flags(id, AttributeFlags(*flags))?;
        let file = filesystem.open_file(id)?;
        for block in 0..BLOCKS {
            let bytes = pattern(first_seed((number, block)), BLOCK);
            file.write_at((block * BLOCK) as u64, &bytes)?;
        }
    }
    filesystem.create(filesystem.root(), b"log", &NewInode::new(0o644))?;
    filesystem.close()?;
    Ok(device)
}

fn open(filesystem: &Filesystem, name: &str) -> Result<File> {
    Ok(filesystem.open_file(filesystem.lookup(filesystem.root(), name.as_bytes())?)?)
}

impl Writer<'_> {
    fn run(mut self, steps: usize, own: &[At]) -> Result<Done> {
        for at in own {
            let first = Block { versions: vec![(first_seed(*at), 0)], durable_from: Vec::new() };
            self.done.blocks.insert(*at, first);
            self.reaped.insert(*at, 0);
        }
        for step in 0..steps {
            self.step(own).with_context(|| format!("step {step}"))?;
        }
        self.reap(usize::MAX)?;
        Ok(self.done)
    }

    fn step(&mut self, own: &[At]) -> Result<()> {
        match self.random.below(30) {
            0..=19 => self.write(own),
            20..=22 => {
                let some = self.random.index(6);
                self.reap(some)
            }
            23 => {
                self.queue.submit();
                Ok(())
            }
            24 => self.queue_sync(),
            25 => self.sync(),
            26..=27 => self.append(),
            _ => self.read(own),
        }
    }

    /// Returns adjacent blocks without requests in flight.
    fn idle(&mut self, own: &[At]) -> Result<Vec<At>> {
        loop {
            let (file, block) = *self.random.pick(own);
            let most = STRIPE - block % STRIPE;
            let count = 1 + if self.random.one_in(3) { self.random.index(most) } else { 0 };
            let wanted: Vec<At> = (block..block + count).map(|block| (file, block)).collect();
            let is_busy =
                |at: &At| self.in_flight.values().any(|request| request.blocks.contains(at));
            if !wanted.iter().any(is_busy) {
                return Ok(wanted);
            }
            self.reap(1)?;
        }
    }

    fn write(&mut self, own: &[At]) -> Result<()> {
        self.wait_for_space()?;
        let blocks = self.idle(own)?;
        let lane = match self.random.below(6) {
            0 => IoFlags::default(),
            1 => IoFlags::UNCACHED,
            _ => IoFlags::DIRECT,
        };
        let is_durable = self.random.one_in(9);
        let flags = if is_durable { lane.with(IoFlags::DSYNC) } else { lane };
        let before = self.device.position();
        let mut content = Vec::new();
        for at in &blocks {
            let seed = 2 * self.random.below(1 << 40) + 1;
            content.extend(pattern(seed, BLOCK));
            self.done.blocks.get_mut(at).unwrap().versions.push((seed, before));
        }
        let buffer = self.queue.buffer(content.len());
        let mut buffer = buffer.unwrap_or_else(|| Buffer::zeroed(content.len()));
        buffer.copy_from_slice(&content);
        let (file, offset) = (&self.files[blocks[0].0], (blocks[0].1 * BLOCK) as u64);
        let tag = self.done.requests;
        let taken = self.queue.write(file, offset, buffer, flags, tag);
        taken.map_err(|refused| refused.error)?;
        self.add_in_flight(InFlight { blocks, is_durable, covers: Vec::new() });
        Ok(())
    }

    fn add_in_flight(&mut self, request: InFlight) {
        self.in_flight.insert(self.done.requests, request);
        self.done.requests += 1;
        self.done.in_flight_most = self.done.in_flight_most.max(self.in_flight.len());
    }

    fn wait_for_space(&mut self) -> Result<()> {
        if self.queue.outstanding() == DEPTH { self.reap(1) } else { Ok(()) }
    }

    fn reap(&mut self, min: usize) -> Result<()> {
        let mut done = Vec::new();
        self.queue.reap(min, None, &mut done);
        let position = self.device.position();
        for butternut::queue::Completion { tag, result, .. } in done {
            let request = self.in_flight.remove(&tag).context("a request completed twice")?;
            let bytes = result?;
            ensure!(bytes == request.blocks.len() * BLOCK, "{bytes} bytes");
            for at in request.blocks {
                let block = self.done.blocks.get_mut(&at).unwrap();
                let version = block.versions.len() - 1;
                self.reaped.insert(at, version);
                if request.is_durable {
                    block.durable_from.push((position, version));
                }
            }
            self.mark_durable(position, &request.covers);
        }
        Ok(())
    }

    fn mark_durable(&mut self, position: usize, covers: &[(At, usize)]) {
        for (at, version) in covers {
            self.done.blocks.get_mut(at).unwrap().durable_from.push((position, *version));
        }
    }

    /// Returns the versions that a sync of a file, or of all files, makes durable.
    fn covers(&self, file: Option<usize>) -> Vec<(At, usize)> {
        let is_it = |at: &At| file.is_none_or(|file| at.0 == file);
        self.reaped.iter().filter(|(at, _)| is_it(at)).map(|(at, v)| (*at, *v)).collect()
    }

    fn queue_sync(&mut self) -> Result<()> {
        self.wait_for_space()?;
        let file = self.random.index(FILES.len());
        let covers = self.covers(Some(file));
        let tag = self.done.requests;
        let taken = self.queue.sync(&self.files[file], SyncKind::Data, tag);
        taken.map_err(|refused| refused.error)?;
        self.add_in_flight(InFlight { blocks: Vec::new(), is_durable: false, covers });
        Ok(())
    }

    fn sync(&mut self) -> Result<()> {
        let file = self.random.index(FILES.len() + 1);
        let covers = self.covers((file < FILES.len()).then_some(file));
        match self.files.get(file) {
            Some(file) => file.sync_all()?,
            None => self.filesystem.sync()?,
        }
        let position = self.device.position();
        self.mark_durable(position, &covers);
        Ok(())
    }

    fn append(&mut self) -> Result<()> {
        let Some(log) = self.log else { return Ok(()) };
        self.wait_for_space()?;
        let bytes = 1 + self.random.index(6000);
        let (start, end) = (log.len(), log.len() + bytes as u64);
        self.done.appended.push((self.device.position(), end));
        let mut buffer = Buffer::zeroed(bytes);
        for (byte, at) in buffer.iter_mut().zip(start..) {
            *byte = log_byte(at);
        }
        let is_durable = self.random.one_in(3);
        let durable = if is_durable { IoFlags::DSYNC } else { IoFlags::default() };
        let lane = *self.random.pick(&[IoFlags::default(), IoFlags::DIRECT, IoFlags::UNCACHED]);
        let flags = IoFlags::APPEND.with(lane).with(durable);
        // The next append has to know where it begins, so this one is waited for.
        self.reap(usize::MAX)?;
        let taken = self.queue.write(log, 0, buffer, flags, u64::MAX);
        taken.map_err(|refused| refused.error)?;
        let mut done = Vec::new();
        self.queue.reap(1, None, &mut done);
        ensure!(done.pop().context("it comes back")?.result? == bytes, "a short append");
        if is_durable {
            self.done.durable.push((self.device.position(), end));
        }
        Ok(())
    }

    /// Checks that a read returns the newest version.
    fn read(&mut self, own: &[At]) -> Result<()> {
        let (file, block) = self.idle(own)?[0];
        let mut have = vec![0; BLOCK];
        self.files[file].read_at((block * BLOCK) as u64, &mut have)?;
        let (seed, _) = *self.done.blocks[&(file, block)].versions.last().unwrap();
        ensure!(have == pattern(seed, BLOCK), "file {file}, block {block}: not what was written");
        Ok(())
    }
}

/// Runs a workload of several threads, and returns what they did.
fn run(
    seed: u64,
    threads: usize,
    steps: usize,
    device: &Arc<RecordingDevice>,
) -> Result<Vec<Done>> {
    let recorded: Arc<dyn Device> = Arc::<RecordingDevice>::clone(device);
    let filesystem = Filesystem::open_devices(vec![recorded], &options())?;
    let files: Vec<File> =
        FILES.iter().map(|(name, _)| open(&filesystem, name)).collect::<Result<_>>()?;
    let log = open(&filesystem, "log")?;
    let left = AtomicUsize::new(threads);
    std::thread::scope(|scope| {
        let mut writers = Vec::new();
        for number in 0..threads {
            let is_own = |at: &At| at.1 / STRIPE % threads == number;
            let all = (0..FILES.len()).flat_map(|file| (0..BLOCKS).map(move |block| (file, block)));
            let own: Vec<At> = all.filter(is_own).collect();
            let options =
                QueueOptions::default().depth(DEPTH).arena_bytes(1 << 20).bounce_bytes(1 << 20);
            let writer = Writer {
                filesystem: &filesystem,
                device,
                files: &files,
                log: (number == 0).then_some(&log),
                random: Random::new(seed << 4 | number as u64),
                queue: filesystem.queue(&options)?,
                in_flight: BTreeMap::new(),
                reaped: BTreeMap::new(),
                done: Done::default(),
            };
            let left = &left;
            writers.push(scope.spawn(move || {
                let done = writer.run(steps, &own);
                left.fetch_sub(1, Ordering::Release);
                done
            }));
        }
        // Commit while requests are in flight.
        while seed.is_multiple_of(2) && left.load(Ordering::Acquire) > 0 {
            std::thread::sleep(std::time::Duration::from_millis(3));
            filesystem.sync()?;
        }
        writers.into_iter().map(|writer| writer.join().unwrap()).collect()
    })
}

fn check_crash(done: &[Done], crash: &Crash, image: CrashImage) -> Result<()> {
    let image: Arc<dyn Device> = Arc::new(image);
    check_crashed(&image).context("the image")?;
    let filesystem = Filesystem::open_devices(vec![Arc::clone(&image)], &options())?;
    let files: Vec<File> =
        FILES.iter().map(|(name, _)| open(&filesystem, name)).collect::<Result<_>>()?;
    for done in done {
        for ((number, block), writes) in &done.blocks {
            let mut have = vec![0; BLOCK];
            let transferred = files[*number].read_at((block * BLOCK) as u64, &mut have)?;
            ensure!(transferred == BLOCK, "file {number}, block {block}: {transferred} bytes");
            check_block(*number, writes, crash.position, &have)
                .with_context(|| format!("file {number}, block {block}"))?;
        }
    }
    check_log(&done[0], crash.position, &open(&filesystem, "log")?)?;
    if crash.number.is_multiple_of(8) {
        go_on(&filesystem, &files, crash.number)?;
        drop((files, filesystem));
        check_crashed(&image).context("the image after more operations")?;
    }
    Ok(())
}

fn check_block(file: usize, writes: &Block, position: usize, have: &[u8]) -> Result<()> {
    let durable = writes.durable_from.iter().filter(|(at, _)| *at <= position);
    let oldest = durable.map(|(_, version)| *version).max().unwrap_or(0);
    let begun = writes.versions.iter().filter(|(_, at)| *at <= position).count();
    let allowed = writes.versions.get(oldest..begun.max(oldest + 1)).unwrap_or_default();
    let allowed: Vec<Vec<u8>> = allowed.iter().map(|(seed, _)| pattern(*seed, BLOCK)).collect();
    let is_right = if file == IN_PLACE {
        let mut sectors = (0..BLOCK).step_by(SECTOR_BYTES).map(|at| at..at + SECTOR_BYTES);
        sectors.all(|at| allowed.iter().any(|one| one[at.clone()] == have[at.clone()]))
    } else {
        allowed.iter().any(|one| one == have)
    };
    let is_it = |(seed, _): &(u64, usize)| pattern(*seed, BLOCK) == have;
    let found = writes.versions.iter().position(is_it);
    ensure!(is_right, "versions {oldest}..{begun} are allowed, have {found:?}");
    Ok(())
}

fn check_log(done: &Done, position: usize, log: &File) -> Result<()> {
    let at = |known: &[(usize, u64)]| {
        known.iter().filter(|(at, _)| *at <= position).map(|(_, end)| *end).max().unwrap_or(0)
    };
    let (least, most, size) = (at(&done.durable), at(&done.appended), log.len());
    ensure!(size >= least && size <= most, "the log is {size} bytes, not {least}..={most}");
    let mut have = vec![0; usize::try_from(size)?];
    ensure!(log.read_at(0, &mut have)? == have.len(), "the appended file is short");
    let differs = (0..).zip(&have).find(|(at, byte)| **byte != log_byte(*at));
    ensure!(differs.is_none(), "the appended file has other bytes: {differs:?} of {size}");
    Ok(())
}

fn go_on(filesystem: &Filesystem, files: &[File], seed: u64) -> Result<()> {
    let mut queue = filesystem
        .queue(&QueueOptions::default().arena_bytes(256 << 10).bounce_bytes(256 << 10))?;
    let mut random = Random::new(seed);
    let wanted: BTreeMap<At, u64> = (0..12)
        .map(|_| ((random.index(FILES.len()), random.index(BLOCKS)), 1 + 2 * random.below(1 << 30)))
        .collect();
    for ((file, block), seed) in &wanted {
        let buffer = Buffer::copy_of(&pattern(*seed, BLOCK));
        let taken =
            queue.write(&files[*file], (block * BLOCK) as u64, buffer, IoFlags::DIRECT, *seed);
        taken.map_err(|refused| refused.error)?;
    }
    let mut done = Vec::new();
    queue.reap(usize::MAX, None, &mut done);
    ensure!(done.iter().all(|done| done.result.is_ok()), "writes after the crash fail");
    filesystem.sync()?;
    for ((file, block), seed) in &wanted {
        let mut have = vec![0; BLOCK];
        files[*file].read_direct((block * BLOCK) as u64, &mut have)?;
        ensure!(have == pattern(*seed, BLOCK), "a block differs after more writes");
    }
    Ok(())
}

fn check_seed(seed: u64, base: &Arc<dyn Device>) -> Result<(Verdict, u64, usize)> {
    let mut random = Random::new(seed);
    let device = Arc::new(RecordingDevice::new(Arc::clone(base)));
    let (threads, steps) = (1 + random.index(3), 20 + random.index(100));
    let done = run(seed, threads, steps, &device)?;
    let crashes = CrashOptions { seed, seeded_per_gap: 5, pivotal: is_super_block };
    let options = JudgeOptions { crashes, threads: 2, one_in: 1 };
    let story = StoryBuilder::default().end(&device);
    let verdict = judge(&story, &options, &|crash, image, _| {
        check_crash(&done, crash, image).map_err(|error| format!("{error:#}"))
    });
    let requests = done.iter().map(|done| done.requests).sum();
    let most = done.iter().map(|done| done.in_flight_most).max().unwrap_or(0);
    Ok((verdict, requests, most))
}

#[test]
fn durable_writes_survive_every_crash_with_requests_in_flight() {
    let only = std::env::var("BUTTERNUT_SEED").ok().and_then(|seed| seed.parse().ok());
    let is_long = std::env::var_os("BUTTERNUT_LONG").is_some_and(|value| !value.is_empty());
    let seeds = match only {
        Some(seed) => seed..seed + 1,
        None => 0..if is_long { 150 } else { 3 },
    };
    let base = base().unwrap();
    let (mut states, mut requests, mut most) = (0, 0, 0);
    for seed in seeds {
        let (verdict, queued, in_flight) = check_seed(seed, &base).unwrap();
        assert_eq!(verdict.failed, 0, "seed {seed}: {verdict}");
        states += verdict.states;
        requests += queued;
        most = most.max(in_flight);
    }
    println!("{states} crashes of {requests} requests, up to {most} in flight");
    assert!(only.is_some() || (states > if is_long { 20_000 } else { 100 } && most > 5));
}
