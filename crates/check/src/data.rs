//! Verifies every sector that has a checksum, on every mirror.
//!
//! 1. Reads are large, and many are in flight while one is verified.
//! 2. Every mirror is read from its own device.
//! 3. Parity is not verified, since it is no mirror.

use crate::blocks::{Block, Reader};
use crate::checksum_items::range_of;
use crate::finding::Kind;
use crate::walk::Survey;
use butternut_device::{QueuePair, ReadInto};
use butternut_format::checksum::ChecksumKind;
use butternut_format::key::ItemType;
use butternut_format::units::{DevId, Logical, SECTOR_BYTES};
use butternut_sys::buffer::Buffer;
use butternut_sys::lock::{Mutex, rank};
use butternut_volume::Chunks;

/// Maximum length of one read.
const READ_BYTES: u64 = 1 << 20;
/// Maximum length of all reads of a batch.
const BATCH_BYTES: usize = 16 << 20;

const SECTOR: usize = 4096;
const _: () = assert!(SECTOR_BYTES == 4096);

pub(crate) struct DataSurvey<'a> {
    reader: &'a Reader<'a>,
    csum: ChecksumKind,
    idle: Mutex<Vec<BatchQueue>, rank::CheckQueues>,
}

struct BatchQueue {
    queue: QueuePair,
    memory: Buffer,
}

/// A run of sectors on one mirror, and their checksums.
struct Task<'a> {
    logical: u64,
    mirror: usize,
    member: usize,
    devid: DevId,
    physical: u64,
    bytes: usize,
    sums: &'a [u8],
}

impl<'a> DataSurvey<'a> {
    pub(crate) fn new(reader: &'a Reader<'a>) -> Self {
        let csum = reader.volume().super_block().csum();
        Self { reader, csum, idle: Mutex::default() }
    }

    /// Adds the reads for one checksum item to `tasks`.
    fn tasks<'s>(&self, chunks: &Chunks, start: u64, sums: &'s [u8], tasks: &mut Vec<Task<'s>>) {
        let (mut at, end) = range_of(start, sums, self.csum.bytes());
        let mut rest = sums;
        while at < end {
            let layout = chunks.find(Logical(at));
            let piece =
                layout.and_then(|layout| layout.segment(Logical(at), READ_BYTES.min(end - at)));
            let (Some(layout), Some(piece)) = (layout, piece) else {
                self.unreadable(at, end - at, "in no chunk");
                return;
            };
            let sectors = usize::try_from(piece.bytes / SECTOR_BYTES).unwrap_or_default();
            let (own, later) = rest.split_at(rest.len().min(sectors * self.csum.bytes()));
            rest = later;
            for (mirror, place) in layout.mirrors(&piece).iter().enumerate() {
                let Some(member) = self.reader.member(place.devid, &place.uuid) else { continue };
                tasks.push(Task {
                    logical: at,
                    mirror,
                    member,
                    devid: place.devid,
                    physical: piece.physical(place).0,
                    bytes: sectors * SECTOR,
                    sums: own,
                });
            }
            if sectors == 0 {
                return;
            }
            at += piece.bytes;
        }
    }

    /// Runs the tasks in batches of at most [`BATCH_BYTES`].
    fn run(&self, mut tasks: &[Task<'_>]) {
        let mut batch_queue = self.batch_queue();
        while !tasks.is_empty() {
            let mut bytes = 0;
            let fits = tasks.iter().take_while(|task| {
                bytes += task.bytes;
                bytes <= BATCH_BYTES
            });
            let count = fits.count().max(1);
            let (now, later) = tasks.split_at(count.min(tasks.len()));
            tasks = later;
            self.run_batch(&mut batch_queue, now);
        }
        self.idle.lock().push(batch_queue);
    }

    fn run_batch(&self, batch_queue: &mut BatchQueue, tasks: &[Task<'_>]) {
        let bytes: usize = tasks.iter().map(|task| task.bytes).sum();
        if batch_queue.memory.len() < bytes {
            batch_queue.memory = Buffer::zeroed(bytes);
        }
        let mut rest = batch_queue.memory.get_mut(..bytes).unwrap_or_default();
        let mut reads = Vec::with_capacity(tasks.len());
        for (at, task) in tasks.iter().enumerate() {
            let (now, later) = rest.split_at_mut(task.bytes.min(rest.len()));
            rest = later;
            let mut read = ReadInto::new(task.member, task.physical, now);
            read.tag = at;
            reads.push(read);
        }
        let seen: Mutex<_, rank::CheckBatch> = Mutex::new(vec![false; tasks.len()]);
        batch_queue.queue.run_inspecting(&mut reads, &|read| {
            if let Some(task) = tasks.get(read.tag) {
                self.verify(task, read.buf);
                let mut seen = seen.lock();
                if let Some(seen) = seen.get_mut(read.tag) {
                    *seen = true;
                }
            }
        });
        let seen = seen.into_inner();
        for ((read, task), was_seen) in reads.iter().zip(tasks).zip(seen) {
            match &read.result {
                Ok(()) if was_seen => {}
                Ok(()) => self.verify(task, read.buf),
                Err(error) => {
                    let place = place_of(task, task.logical);
                    let sink = self.reader.sink();
                    sink.add(Kind::DataUnreadable, place, "read", error, "success");
                }
            }
        }
    }

    fn verify(&self, task: &Task<'_>, bytes: &[u8]) {
        let sink = self.reader.sink();
        let counters = &sink.counters;
        let sectors = bytes.chunks_exact(SECTOR).zip(task.sums.chunks_exact(self.csum.bytes()));
        let mut count = 0;
        for (number, (sector, sum)) in sectors.enumerate() {
            count += 1;
            if !self.csum.matches(sector, sum) {
                let offset = u64::try_from(number).unwrap_or_default() * SECTOR_BYTES;
                let place = place_of(task, task.logical + offset);
                let digest = self.csum.compute(sector);
                let have = digest.get(..self.csum.bytes()).unwrap_or_default();
                let hex = butternut_format::refused::Hex;
                sink.add(Kind::DataCorrupt, place, "checksum", hex(have), hex(sum));
            }
        }
        sink.count(&counters.data_sectors, count);
        sink.count(&counters.data_bytes_read, count * SECTOR_BYTES);
    }

    fn unreadable(&self, start: u64, bytes: u64, why: &str) {
        let place = format!("data {start} + {bytes}");
        self.reader.sink().add(Kind::DataUnreadable, place, "chunk", why, "one");
    }

    fn batch_queue(&self) -> BatchQueue {
        let found = self.idle.lock().pop();
        found
            .unwrap_or_else(|| BatchQueue { queue: self.reader.queue(), memory: Buffer::default() })
    }
}

impl Survey for DataSurvey<'_> {
    type Out = ();

    fn leaf(&self, leaf: &Block<'_>, _is_first: bool) {
        let chunks = self.reader.volume().chunks();
        let mut tasks = Vec::new();
        for slot in 0..leaf.len() {
            let Some((key, data)) = leaf.item(slot) else { continue };
            if key.item_type == ItemType::EXTENT_CSUM {
                self.tasks(&chunks, key.offset, data, &mut tasks);
            }
        }
        self.run(&tasks);
    }

    fn join(&self, _left: &mut (), _right: ()) {}
}

fn place_of(task: &Task<'_>, logical: u64) -> String {
    let physical = task.physical + (logical - task.logical);
    let mirror = task.mirror + 1;
    format!("data {logical}: mirror {mirror} (device {} at {physical})", task.devid)
}
