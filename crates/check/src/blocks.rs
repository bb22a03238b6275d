//! [`Reader`]: reads tree blocks in batches, and checks every mirror of each.
//!
//! 1. Every mirror of the profile is read and checked. An invalid mirror next to a valid one is
//!    reported, and the valid one is used.
//! 2. Two valid mirrors must have the same bytes.
//! 3. A block without a valid mirror is read through the volume, which can rebuild it from parity.
//! 4. The memory of a batch is reused, so that reads allocate no buffers.

use crate::finding::Kind;
use crate::sink::Sink;
use butternut_device::{Device, QueuePair, ReadInto};
use butternut_format::node::{BlockRules, Expected, TreeBlock};
use butternut_format::refused::Refused;
use butternut_format::units::{DevId, Logical, index};
use butternut_format::uuid::Uuid;
use butternut_sys::buffer::Buffer;
use butternut_sys::lock::{Mutex, rank};
use butternut_volume::{Chunks, Volume, VolumeError};
use std::sync::{Arc, OnceLock};

/// Maximum number of blocks of one batch.
pub(crate) const BATCH_BLOCKS: usize = 32;

/// Queue depth of one thread.
const DEPTH: usize = 64;

/// A leaf or node in the memory of a batch.
pub(crate) type Block<'a> = TreeBlock<&'a [u8]>;

/// A device of the volume.
pub(crate) struct Member {
    pub(crate) devid: DevId,
    pub(crate) uuid: [u8; 16],
    pub(crate) device: Arc<dyn Device>,
}

pub(crate) struct Reader<'a> {
    volume: &'a Volume,
    sink: &'a Sink<'a>,
    members: Vec<Member>,
    devices: Arc<[Arc<dyn Device>]>,
    idle: Mutex<Vec<BatchQueue>, rank::CheckQueues>,
    /// The UUID of the chunk tree, from its root, which is the first block that is read.
    chunk_tree_uuid: OnceLock<[u8; 16]>,
}

/// A queue and the memory of one batch. A thread takes one for each read and returns it.
struct BatchQueue {
    queue: QueuePair,
    memory: Buffer,
}

/// One copy of one block of a batch.
#[derive(Clone, Copy)]
struct Mirror {
    block: usize,
    number: usize,
    member: usize,
    physical: u64,
}

impl<'a> Reader<'a> {
    pub(crate) fn new(volume: &'a Volume, sink: &'a Sink<'a>) -> Self {
        let members: Vec<Member> = volume
            .devices()
            .into_iter()
            .filter_map(|status| {
                let device = status.device?;
                Some(Member { devid: status.devid, uuid: status.uuid, device })
            })
            .collect();
        let devices = members.iter().map(|member| Arc::clone(&member.device)).collect();
        let idle = Mutex::default();
        let chunk_tree_uuid = OnceLock::new();
        Self { volume, sink, members, devices, idle, chunk_tree_uuid }
    }

    pub(crate) fn volume(&self) -> &'a Volume {
        self.volume
    }

    pub(crate) fn sink(&self) -> &'a Sink<'a> {
        self.sink
    }

    /// Reports a block with the UUID of another chunk tree.
    pub(crate) fn check_uuid(&self, tree: u64, block: &Block<'_>) {
        let have = block.header().chunk_tree_uuid;
        let want = *self.chunk_tree_uuid.get_or_init(|| have);
        if have != want {
            let place = block_at(tree, block.logical());
            self.sink.add(Kind::BlockUuid, place, "chunk_tree_uuid", Uuid(have), Uuid(want));
        }
    }

    pub(crate) fn members(&self) -> &[Member] {
        &self.members
    }

    /// Returns a new queue over all devices.
    pub(crate) fn queue(&self) -> QueuePair {
        QueuePair::new(Arc::clone(&self.devices), DEPTH)
    }

    /// Returns the index of the device of a stripe.
    pub(crate) fn member(&self, devid: DevId, uuid: &[u8; 16]) -> Option<usize> {
        self.members.iter().position(|member| member.devid == devid && member.uuid == *uuid)
    }

    /// Reads blocks and passes each to `show`, in order; `None` for a block without a valid copy.
    pub(crate) fn read(
        &self,
        targets: &[Expected],
        show: &mut dyn FnMut(usize, Option<&Block<'_>>),
    ) {
        let (rules, chunks) = (self.volume.block_rules(), self.volume.chunks());
        let mut batch_queue = self.batch_queue();
        for (batch, part) in targets.chunks(BATCH_BLOCKS).enumerate() {
            self.read_batch(&mut batch_queue, &chunks, &rules, part, &mut |at, block| {
                show(batch * BATCH_BLOCKS + at, block);
            });
        }
        self.idle.lock().push(batch_queue);
    }

    fn batch_queue(&self) -> BatchQueue {
        let found = self.idle.lock().pop();
        found.unwrap_or_else(|| BatchQueue { queue: self.queue(), memory: Buffer::default() })
    }

    fn read_batch(
        &self,
        batch_queue: &mut BatchQueue,
        chunks: &Chunks,
        rules: &BlockRules,
        targets: &[Expected],
        show: &mut dyn FnMut(usize, Option<&Block<'_>>),
    ) {
        let node_bytes = index(rules.node_bytes);
        let copies = self.copies(chunks, targets, u64::from(rules.node_bytes));
        let bytes = copies.len() * node_bytes;
        if batch_queue.memory.len() < bytes {
            batch_queue.memory = Buffer::zeroed(bytes);
        }
        let memory = batch_queue.memory.get_mut(..bytes).unwrap_or_default();
        let mut reads: Vec<ReadInto<'_>> = copies
            .iter()
            .zip(memory.chunks_exact_mut(node_bytes))
            .map(|(copy, memory)| ReadInto::new(copy.member, copy.physical, memory))
            .collect();
        batch_queue.queue.run(&mut reads);
        let read: Vec<(Mirror, Result<(), String>)> = copies
            .into_iter()
            .zip(reads)
            .map(|(copy, read)| (copy, read.result.map_err(|error| error.to_string())))
            .collect();
        let memory = batch_queue.memory.get(..bytes).unwrap_or_default();
        let mut slots = read.iter().zip(memory.chunks_exact(node_bytes)).peekable();
        for (at, expected) in targets.iter().enumerate() {
            let own = std::iter::from_fn(|| slots.next_if(|((copy, _), _)| copy.block == at));
            self.check_mirrors(expected, rules, own, &mut |block| show(at, block));
        }
    }

    /// Returns the mirrors of each block. A block that crosses a stripe boundary has none here.
    fn copies(&self, chunks: &Chunks, targets: &[Expected], node_bytes: u64) -> Vec<Mirror> {
        let mut copies = Vec::with_capacity(targets.len() * 2);
        for (block, expected) in targets.iter().enumerate() {
            let Some(layout) = chunks.find(expected.logical) else { continue };
            let piece = layout.segment(expected.logical, node_bytes);
            let Some(piece) = piece.filter(|piece| piece.bytes == node_bytes) else { continue };
            for (number, place) in layout.mirrors(&piece).iter().enumerate() {
                if let Some(member) = self.member(place.devid, &place.uuid) {
                    copies.push(Mirror {
                        block,
                        number,
                        member,
                        physical: piece.physical(place).0,
                    });
                }
            }
        }
        copies
    }

    /// Checks the mirrors of one block and passes a valid one to `show` (laws 1 to 3).
    fn check_mirrors<'m>(
        &self,
        expected: &Expected,
        rules: &BlockRules,
        copies: impl Iterator<Item = (&'m (Mirror, Result<(), String>), &'m [u8])>,
        show: &mut dyn FnMut(Option<&Block<'_>>),
    ) {
        let mut good: Option<(Block<'m>, Mirror)> = None;
        let mut bad: Vec<(Mirror, Fault)> = Vec::new();
        for ((copy, result), bytes) in copies {
            if let Err(error) = result {
                bad.push((*copy, Fault::Read(error.clone())));
                continue;
            }
            if good.as_ref().is_some_and(|(block, _)| block.bytes() == bytes) {
                continue;
            }
            match (TreeBlock::check(bytes, expected, rules), &good) {
                (Ok(_), Some((_, first))) => bad.push((*copy, Fault::Differs(first.number))),
                (Ok(block), None) => good = Some((block, *copy)),
                (Err(refused), _) => bad.push((*copy, Fault::Refused(refused))),
            }
        }
        if let Some((block, _)) = good {
            self.report_copies(expected, &bad);
            return show(Some(&block));
        }
        match self.volume.read_block(expected) {
            Ok(block) => {
                self.report_copies(expected, &bad);
                let rebuilt = TreeBlock::check(block.bytes(), expected, rules);
                show(rebuilt.ok().as_ref());
            }
            Err(error) => {
                if let Some((copy, fault)) = bad.first() {
                    self.report(Kind::BlockBad, expected, *copy, fault);
                } else {
                    self.unreadable(expected, &error);
                }
                show(None);
            }
        }
    }

    fn report_copies(&self, expected: &Expected, bad: &[(Mirror, Fault)]) {
        for (copy, fault) in bad {
            self.report(Kind::BlockCopy, expected, *copy, fault);
        }
    }

    fn report(&self, kind: Kind, expected: &Expected, copy: Mirror, fault: &Fault) {
        let devid = self.members.get(copy.member).map_or(DevId(0), |member| member.devid);
        let tree = tree_of(expected);
        let at = format!("mirror {} (device {devid} at {})", copy.number + 1, copy.physical);
        let logical = expected.logical;
        match fault {
            Fault::Read(error) => {
                let place = format!("{tree}: block {logical}: {at}");
                self.sink.add(kind, place, "read", error, "success");
            }
            Fault::Differs(first) => {
                let place = format!("{tree}: block {logical}: {at}");
                let want = format!("that of mirror {}", first + 1);
                self.sink.add(kind, place, "contents", "another valid block", want);
            }
            Fault::Refused(refused) => self.sink.refused(kind, format!("{tree}: {at}"), refused),
        }
    }

    fn unreadable(&self, expected: &Expected, error: &VolumeError) {
        let place = format!("{}: block {}", tree_of(expected), expected.logical);
        let mut have = error.to_string();
        let mut cause = std::error::Error::source(error);
        while let Some(error) = cause {
            have = format!("{have}: {error}");
            cause = error.source();
        }
        self.sink.add(Kind::BlockBad, place, "read", have, "success");
    }
}

/// The fault of one mirror.
enum Fault {
    Read(String),
    Refused(Refused),
    /// It is a valid block, but differs from the mirror of this number.
    Differs(usize),
}

fn tree_of(expected: &Expected) -> String {
    format!("tree {}", tree_name(expected.tree.0))
}

/// Returns the name of a tree, for findings.
pub(crate) fn tree_name(tree: u64) -> String {
    let name = match tree {
        1 => "root",
        2 => "extent",
        3 => "chunk",
        4 => "device",
        7 => "checksum",
        8 => "quota",
        9 => "uuid",
        10 => "free space",
        11 => "block group",
        other => {
            let negative = other.wrapping_neg();
            return if negative < 256 { format!("-{negative}") } else { other.to_string() };
        }
    };
    name.to_owned()
}

/// Formats the place of a tree block, for findings.
pub(crate) fn block_at(tree: u64, logical: Logical) -> String {
    format!("tree {}: block {logical}", tree_name(tree))
}
