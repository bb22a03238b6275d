//! Random changes of a file while writeback batches and direct writes of it are in flight, on a
//! volume that has no space at times, or whose device fails writes: the file reads as the model,
//! accepted bytes are kept, and no space is lost.

use crate::script::{Dice, compare, same};
use crate::volume::{create, fresh, inode, state};
use butternut_device::{Device, Fault, FaultyDevice, Rule, When};
use butternut_file::{
    AllocationRun, DirectWrite, FallocateSize, FileError, FileState, RequestOwner, Source,
    SourceOptions, WritebackBatch,
};
use butternut_format::file_extent::Compression;
use butternut_format::inode::InodeFlags;
use butternut_pages::{CacheMode, WritebackReason};
use butternut_space::Cluster;
use butternut_sys::wait::Wait;
use butternut_tree::{EnospcInjector, Forest, ForestOptions};
use butternut_volume::{DataWrite, OpenOptions, Volume};
use std::io::Write;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

const INO: u64 = 300;
const BLOCK: u64 = 4096;
const STEPS: u64 = 300;

#[derive(Debug)]
enum Held {
    Batch(WritebackBatch),
    Direct(DirectWrite, u64, Vec<u8>),
}

/// Owns what is in flight, and the bytes that the file has.
#[derive(Debug)]
struct Owner {
    source: Source,
    held: Mutex<Vec<Held>>,
    model: Mutex<Vec<u8>>,
    /// Bytes of completed direct writes, which the next change may have replaced.
    written: Mutex<Vec<(u64, Vec<u8>)>>,
    is_failing: AtomicBool,
}

struct Rig {
    device: Arc<FaultyDevice>,
    injector: EnospcInjector,
    owner: Arc<Owner>,
    source: Source,
    file: FileState,
    allocation: AllocationRun,
    dice: Dice,
    reach: u64,
    property: Option<Compression>,
    /// Steps until there is space again.
    full_for: u64,
    /// Every value that each byte had.
    history: Vec<[bool; 256]>,
}

impl Owner {
    fn new(source: &Source, model: Vec<u8>) -> Arc<Self> {
        let owner = Arc::new(Self {
            source: source.clone(),
            held: Mutex::default(),
            model: Mutex::new(model),
            written: Mutex::default(),
            is_failing: AtomicBool::new(false),
        });
        let known: Weak<Self> = Arc::downgrade(&owner);
        source.add_request_owner(known);
        owner
    }

    fn hold(&self, held: Held) {
        self.held.lock().unwrap().push(held);
    }

    fn complete_one(&self) {
        let next = {
            let mut held = self.held.lock().unwrap();
            (!held.is_empty()).then(|| held.remove(0))
        };
        let result = match next {
            None => Ok(()),
            Some(Held::Batch(batch)) => batch.write_and_complete().map_err(|e| e.to_string()),
            Some(Held::Direct(write, at, data)) => self.complete_direct(&write, at, data),
        };
        assert!(result.is_ok() || self.is_failing.load(Ordering::SeqCst), "{result:?}");
    }

    fn complete_direct(&self, write: &DirectWrite, at: u64, data: Vec<u8>) -> Result<(), String> {
        let volume = self.source.forest().volume();
        let mut rows = [DataWrite::new(write.logical(), &data)];
        volume.write_data(&mut rows);
        let [row] = rows;
        if let Err(error) = row.result {
            write.fail(&self.source);
            return Err(error.to_string());
        }
        let mut checksums = Vec::new();
        if write.wants_checksums() {
            volume.checksum(&data, &mut checksums);
        }
        write.complete(&self.source, &checksums);
        self.put(at, &data);
        self.written.lock().unwrap().push((at, data));
        Ok(())
    }

    fn put(&self, at: u64, data: &[u8]) {
        let mut model = self.model.lock().unwrap();
        let (at, end) = (at as usize, at as usize + data.len());
        let bytes = model.len().max(end);
        model.resize(bytes, 0);
        model[at..end].copy_from_slice(data);
    }

    fn zero(&self, range: &Range<u64>, end: FallocateSize) {
        let mut model = self.model.lock().unwrap();
        if end == FallocateSize::Extend {
            let bytes = model.len().max(range.end as usize);
            model.resize(bytes, 0);
        }
        let end = model.len().min(range.end as usize);
        model[end.min(range.start as usize)..end].fill(0);
    }

    fn bytes(&self) -> Vec<u8> {
        self.model.lock().unwrap().clone()
    }
}

impl RequestOwner for Owner {
    fn complete_some(&self, _: Duration) {
        self.complete_one();
    }

    fn release_space(&self) {}
}

fn open(device: &Arc<FaultyDevice>, injector: &EnospcInjector, dice: &mut Dice) -> Source {
    let device = Arc::clone(device) as Arc<dyn Device>;
    let volume = Volume::open(vec![device], OpenOptions::default()).unwrap();
    let enospc_injector = Some(injector.clone());
    let options = ForestOptions { enospc_injector, ..ForestOptions::default() };
    let forest = Forest::open_writable(Arc::new(volume), options).unwrap();
    let workers = rayon::ThreadPoolBuilder::new().num_threads(1).build().unwrap();
    let page_cache_bytes = [800 << 10, 64 << 20][dice.below(2) as usize];
    let options = SourceOptions { page_cache_bytes, ..SourceOptions::default() };
    let source = Source::open(forest, Arc::new(workers), options).unwrap();
    source.set_flusher(dice.below(2) == 0);
    source
}

/// The bytes that data could still be written to.
fn free_bytes(source: &Source) -> u64 {
    let mut taken = Vec::new();
    while let Ok(space) = source.forest().allocate_data(BLOCK, 128 << 20, Cluster(0), Wait::Block) {
        taken.push(space);
    }
    let bytes = taken.iter().map(|space| space.bytes()).sum();
    for space in taken {
        source.forest().release_data(space).unwrap();
    }
    bytes
}

impl Rig {
    fn new(seed: u64, reach: u64, flags: InodeFlags, property: Option<Compression>) -> Self {
        let device = Arc::new(FaultyDevice::new(fresh(192), seed));
        let (injector, mut dice) = (EnospcInjector::default(), Dice::new(seed));
        let source = open(&device, &injector, &mut dice);
        create(&source, INO, flags);
        let mut file = state(&source, INO);
        file.set_property(property);
        let (owner, allocation) = (Owner::new(&source, Vec::new()), AllocationRun::new(&source, 1));
        let mut zero = [false; 256];
        zero[0] = true;
        let history = vec![zero; reach as usize + 1];
        let full_for = 0;
        Self {
            device,
            injector,
            owner,
            source,
            file,
            allocation,
            dice,
            reach,
            property,
            full_for,
            history,
        }
    }

    /// Merges and commits everything, and opens the volume again.
    fn reopen(&mut self) {
        self.file.drain();
        self.file.merge(&mut |_| {}).unwrap();
        assert!(self.file.is_clean());
        self.allocation.release();
        self.source.forest().commit().unwrap();
        let source = open(&self.device, &self.injector, &mut self.dice);
        assert_eq!(inode(&source, INO).bytes_used, self.file.bytes_used());
        self.owner = Owner::new(&source, self.owner.bytes());
        self.file = state(&source, INO);
        self.file.set_property(self.property);
        self.allocation = AllocationRun::new(&source, 1);
        self.source = source;
    }

    fn range(&mut self) -> Range<u64> {
        let (size, dice) = (self.file.size(), &mut self.dice);
        let at = match dice.below(4) {
            0 => dice.below(self.reach),
            1 => dice.below(self.reach / BLOCK) * BLOCK,
            2 => size.saturating_sub(dice.below(5000)),
            _ => size,
        };
        let at = at.min(self.reach - 1);
        let most = [10, 5000, 40_000, 200_000][dice.below(4) as usize];
        let bytes = 1 + dice.below(most);
        let is_aligned = dice.below(3) == 0;
        let bytes = if is_aligned { bytes.next_multiple_of(BLOCK) } else { bytes };
        at..(at + bytes).min(self.reach)
    }

    fn content(&mut self, bytes: u64) -> Vec<u8> {
        let part = [1, 300, bytes][self.dice.below(3) as usize];
        let part: Vec<u8> = (0..part).map(|_| self.dice.next() as u8).collect();
        part.into_iter().cycle().take(bytes as usize).collect()
    }

    /// Whether a change was made. It may be refused only while there is no space.
    fn is_done(&self, result: &Result<(), FileError>) -> bool {
        let is_refused = result.as_ref().is_err_and(FileError::is_no_space);
        assert!(result.is_ok() || is_refused && self.full_for > 0, "{result:?}");
        result.is_ok()
    }

    fn begin_direct(&mut self) {
        let Some(last) = (self.file.size() / BLOCK).checked_sub(1) else { return };
        let first = self.dice.below(last + 1);
        let count = (1 + self.dice.below(12)).min(last + 1 - first);
        let range = first * BLOCK..(first + count) * BLOCK;
        let wait = if self.dice.below(2) == 0 { Wait::Block } else { Wait::NoWait };
        let begun = match self.file.begin_direct_write(&range, &mut self.allocation, wait) {
            Err(FileError::WouldBlock) if wait == Wait::NoWait => None,
            begun => begun.unwrap(),
        };
        if let Some(write) = begun {
            let data = self.content(count * BLOCK);
            self.owner.hold(Held::Direct(write, range.start, data));
        }
    }

    fn write(&mut self) {
        let range = self.range();
        let data = self.content(range.end - range.start);
        let written = match self.dice.below(5) {
            0 | 1 => self.file.write_at(range.start, &data),
            2 => self.file.write(range.start, &data, CacheMode::Uncached, Wait::Block),
            3 => {
                self.file.drain();
                self.file.write_direct(range.start, &data)
            }
            _ => {
                let stay = CacheMode::Cached;
                let written = self.file.write(range.start, &data, stay, Wait::NoWait);
                match &written {
                    Ok(written) => assert_eq!(*written, data.len()),
                    Err(error) => return assert!(error.is_would_block(), "{error}"),
                }
                written
            }
        };
        let count = *written.as_ref().unwrap_or(&0);
        if self.is_done(&written.map(drop)) {
            assert!(count == data.len() || self.full_for > 0);
            self.owner.put(range.start, &data[..count]);
        }
    }

    fn truncate(&mut self) {
        let size = self.range().start;
        self.file.drain();
        let shrinks = size <= self.file.size();
        let done = self.file.truncate(size, &mut |_| {});
        if self.is_done(&done) {
            self.owner.model.lock().unwrap().resize(size as usize, 0);
        }
        assert!(done.is_ok() || !shrinks, "truncation needs no space");
    }

    fn fallocate(&mut self) {
        let (range, stamp) = (self.range(), &mut |_: &mut _| {});
        let end = [FallocateSize::Extend, FallocateSize::Keep][self.dice.below(2) as usize];
        self.file.drain();
        let (done, zeroed, end) = match self.dice.below(3) {
            0 => (self.file.punch_hole(range.clone(), stamp), range, FallocateSize::Keep),
            1 => (self.file.zero_range(range.clone(), end, stamp), range, end),
            _ => (self.file.allocate(range.clone(), end, stamp), range.end..range.end, end),
        };
        if self.is_done(&done) {
            self.owner.zero(&zeroed, end);
        }
    }

    /// Replaced space is freed when others use the file again.
    fn merge_shared(&mut self) {
        let replaced = self.file.drain_to_free();
        let part = self.file.begin_shared_merge();
        for _ in 0..self.dice.below(6) {
            self.begin_direct();
            self.owner.complete_one();
        }
        replaced.release();
        let Some(part) = part else { return };
        let merged = self.file.merge_shared(&part, &mut |_| {}).map(drop);
        self.is_done(&merged);
    }

    fn step(&mut self) {
        if self.full_for > 0 {
            self.full_for -= 1;
            if self.full_for == 0 {
                self.injector.fail_none();
            }
        } else if self.dice.below(40) == 0 {
            self.full_for = 1 + self.dice.below(8);
            self.injector.fail_growth();
        }
        match self.dice.below(30) {
            0..=8 => self.write(),
            9..=10 => self.truncate(),
            11..=14 => self.fallocate(),
            15..=18 => self.begin_direct(),
            19..=20 => self.owner.complete_one(),
            21..=23 => {
                let most = [1, 20_000, u64::MAX][self.dice.below(3) as usize];
                let (batch, planned) = self.file.start_writeback(most, WritebackReason::Sync);
                planned.unwrap();
                if let Some(batch) = batch {
                    self.owner.hold(Held::Batch(batch));
                }
            }
            24 => {
                self.file.drain();
                let merged = self.file.merge_part(&mut |_| {}).map(drop);
                self.is_done(&merged);
            }
            25 => self.merge_shared(),
            26 => {
                self.file.drain();
                self.file.merge(&mut |_| {}).unwrap();
                assert!(self.file.is_clean());
            }
            27 => drop(self.source.forest().commit().unwrap()),
            28 => drop(self.source.pages().shrink(64)),
            _ => {
                let is_kept = self.dice.below(2) == 0;
                self.file.set_property(self.property.filter(|_| is_kept));
            }
        }
    }

    /// A step while the device fails writes: each byte is as it was once.
    fn failing_step(&mut self) {
        let stamp = &mut |_: &mut _| {};
        let when = [When::Always, When::OneIn(2)][self.dice.below(2) as usize];
        let range = self.range();
        let data = self.content(range.end - range.start);
        let rule = self.device.add(Rule { range: 0..u64::MAX, when, fault: Fault::WriteError });
        self.owner.is_failing.store(true, Ordering::SeqCst);
        let how = self.dice.below(7);
        if how > 1 {
            self.file.drain();
        }
        let result = match how {
            0 => self.file.write_back(),
            1 => self.file.write_at(range.start, &data).map(drop),
            2 => self.file.merge(stamp).map(drop),
            3 => self.file.write_direct(range.start, &data).map(drop),
            4 => self.file.truncate(range.start, stamp),
            5 => self.file.zero_range(range.clone(), FallocateSize::Extend, stamp),
            _ => Ok(()),
        };
        self.device.remove(rule);
        self.owner.is_failing.store(false, Ordering::SeqCst);
        assert!(matches!(result, Ok(()) | Err(FileError::Write { .. })), "{result:?}");
        self.owner.written.lock().unwrap().push((range.start, data));
        self.note();
        let mut now = vec![0; self.file.size() as usize];
        assert_eq!(self.source.read_at(self.file.view(), 0, &mut now).unwrap(), now.len());
        for (at, (byte, values)) in now.iter().zip(&self.history).enumerate() {
            assert!(values[usize::from(*byte)], "byte {at} was never {byte}");
        }
        *self.owner.model.lock().unwrap() = now;
    }

    /// Records what each byte is, and was meanwhile.
    fn note(&mut self) {
        let written = std::mem::take(&mut *self.owner.written.lock().unwrap());
        for (at, data) in written.into_iter().chain([(0, self.owner.bytes())]) {
            for (byte, values) in data.iter().zip(&mut self.history[at as usize..]) {
                values[usize::from(*byte)] = true;
            }
        }
    }

    fn look(&mut self) {
        let (range, model) = (self.range(), self.owner.bytes());
        assert_eq!(self.file.size(), model.len() as u64);
        let want = &model[model.len().min(range.start as usize)..];
        let mut buf = vec![0xEE; (range.end - range.start) as usize];
        let read = self.source.read_at(self.file.view(), range.start, &mut buf).unwrap();
        assert_eq!(read, want.len().min(buf.len()));
        same(&buf[..read], &want[..read], range.start);
    }
}

/// Says which run a test failed in.
struct Report(String);

impl Drop for Report {
    fn drop(&mut self) {
        if std::thread::panicking() {
            std::io::stderr().write_all(self.0.as_bytes()).unwrap();
        }
    }
}

fn check(seed: u64, reach: u64, flags: InodeFlags, property: Option<Compression>, fails: bool) {
    let _report = Report(format!("seed {seed}, {reach} bytes, device fails: {fails}\n"));
    let mut rig = Rig::new(seed, reach, flags, property);
    let before = free_bytes(&rig.source);
    for number in 1..=STEPS {
        if fails && number % 9 == 0 && rig.full_for == 0 {
            rig.failing_step();
        } else {
            rig.step();
        }
        if fails {
            rig.note();
        }
        rig.look();
        if number % 60 == 0 {
            rig.full_for = 0;
            rig.injector.fail_none();
            rig.reopen();
            compare(&rig.source, &rig.file, &rig.owner.bytes());
        }
    }
    rig.file.truncate(0, &mut |_| {}).unwrap();
    rig.reopen();
    rig.source.forest().commit().unwrap();
    assert_eq!(inode(&rig.source, INO).bytes_used, 0);
    assert_eq!(free_bytes(&rig.source), before, "space is lost");
}

fn check_all(flags: InodeFlags, property: Option<Compression>) {
    let base: u64 = std::env::var("BUTTERNUT_SEED").map_or(0, |more| more.parse().unwrap());
    for seed in base..base + 12 {
        check(seed, 20_000, flags, property, false);
        check(seed, 20_000, flags, property, true);
        check(seed, 1_000_000, flags, property, false);
    }
}

#[test]
fn changes_beside_writes_in_flight_match_the_model() {
    check_all(InodeFlags::default(), None);
}

#[test]
fn changes_in_place_beside_writes_in_flight_match_the_model() {
    check_all(InodeFlags::NODATACOW.with(InodeFlags::NODATASUM), None);
}

#[test]
fn changes_without_checksums_beside_writes_in_flight_match_the_model() {
    check_all(InodeFlags::NODATASUM, None);
}

#[test]
fn compressed_changes_beside_writes_in_flight_match_the_model() {
    check_all(InodeFlags::default(), Some(Compression::Zstd));
    check_all(InodeFlags::default(), Some(Compression::Lzo));
}
