//! Reading tree blocks: every copy of each, in batches.
//!
//! 1. Every copy that the profile promises is read and held against the block's laws. A copy that
//!    fails beside one that does not is damage, and the good one is used.
//! 2. Two copies that both keep the laws hold the same bytes.
//! 3. A block without any good copy may still be rebuilt from parity; the volume knows how.
//! 4. A batch is read into memory that its lane keeps: reading allocates nothing.

use crate::finding::Kind;
use crate::sink::Sink;
use butternut_device::{Device, QueuePair, ReadInto};
use butternut_format::node::{BlockRules, Expected, TreeBlock};
use butternut_format::refused::Refused;
use butternut_format::units::{DevId, Logical, index};
use butternut_format::uuid::Uuid;
use butternut_sys::buffer::Buffer;
use butternut_volume::{Chunks, Volume, VolumeError};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

/// Blocks of one batch.
pub(crate) const BATCH_BLOCKS: usize = 32;

/// Reads in flight on one lane.
const DEPTH: usize = 64;

/// A leaf or node in the memory of its batch.
pub(crate) type Block<'a> = TreeBlock<&'a [u8]>;

/// A device of the volume, and who it is.
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
    lanes: Mutex<Vec<Lane>>,
    /// The id of the chunk tree, as its root says: the first block that is read.
    chunk_tree_uuid: OnceLock<[u8; 16]>,
}

/// A queue, and memory for one batch.
struct Lane {
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
        let lanes = Mutex::default();
        let chunk_tree_uuid = OnceLock::new();
        Self { volume, sink, members, devices, lanes, chunk_tree_uuid }
    }

    pub(crate) fn volume(&self) -> &'a Volume {
        self.volume
    }

    pub(crate) fn sink(&self) -> &'a Sink<'a> {
        self.sink
    }

    /// Says where a block was written for another chunk tree.
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

    /// A queue over all devices, for reads of data.
    pub(crate) fn queue(&self) -> QueuePair {
        QueuePair::new(Arc::clone(&self.devices), DEPTH)
    }

    /// The member that a stripe lies on.
    pub(crate) fn member(&self, devid: DevId, uuid: &[u8; 16]) -> Option<usize> {
        self.members.iter().position(|member| member.devid == devid && member.uuid == *uuid)
    }

    /// Reads blocks and shows each, in order; `None` for one that cannot be had.
    pub(crate) fn read(
        &self,
        wanted: &[Expected],
        show: &mut dyn FnMut(usize, Option<&Block<'_>>),
    ) {
        let (rules, chunks) = (self.volume.block_rules(), self.volume.chunks());
        let mut lane = self.take();
        for (batch, part) in wanted.chunks(BATCH_BLOCKS).enumerate() {
            self.read_batch(&mut lane, &chunks, &rules, part, &mut |at, block| {
                show(batch * BATCH_BLOCKS + at, block);
            });
        }
        self.lanes.lock().unwrap_or_else(PoisonError::into_inner).push(lane);
    }

    fn take(&self) -> Lane {
        let idle = self.lanes.lock().unwrap_or_else(PoisonError::into_inner).pop();
        idle.unwrap_or_else(|| Lane { queue: self.queue(), memory: Buffer::default() })
    }

    fn read_batch(
        &self,
        lane: &mut Lane,
        chunks: &Chunks,
        rules: &BlockRules,
        wanted: &[Expected],
        show: &mut dyn FnMut(usize, Option<&Block<'_>>),
    ) {
        let node_bytes = index(rules.node_bytes);
        let copies = self.copies(chunks, wanted, u64::from(rules.node_bytes));
        let bytes = copies.len() * node_bytes;
        if lane.memory.len() < bytes {
            lane.memory = Buffer::zeroed(bytes);
        }
        let memory = lane.memory.get_mut(..bytes).unwrap_or_default();
        let mut reads: Vec<ReadInto<'_>> = copies
            .iter()
            .zip(memory.chunks_exact_mut(node_bytes))
            .map(|(copy, memory)| ReadInto::new(copy.member, copy.physical, memory))
            .collect();
        lane.queue.run(&mut reads);
        let read: Vec<(Mirror, Result<(), String>)> = copies
            .into_iter()
            .zip(reads)
            .map(|(copy, read)| (copy, read.result.map_err(|error| error.to_string())))
            .collect();
        let memory = lane.memory.get(..bytes).unwrap_or_default();
        let mut slots = read.iter().zip(memory.chunks_exact(node_bytes)).peekable();
        for (at, expected) in wanted.iter().enumerate() {
            let own = std::iter::from_fn(|| slots.next_if(|((copy, _), _)| copy.block == at));
            self.judge(expected, rules, own, &mut |block| show(at, block));
        }
    }

    /// Where the copies of each block lie. A block that straddles stripes has none here.
    fn copies(&self, chunks: &Chunks, wanted: &[Expected], node_bytes: u64) -> Vec<Mirror> {
        let mut copies = Vec::with_capacity(wanted.len() * 2);
        for (block, expected) in wanted.iter().enumerate() {
            let Some(layout) = chunks.find(expected.logical) else { continue };
            let piece = layout.piece(expected.logical, node_bytes);
            let Some(piece) = piece.filter(|piece| piece.bytes == node_bytes) else { continue };
            for (number, place) in layout.copies(&piece).iter().enumerate() {
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

    /// Laws 1 to 3, for one block.
    fn judge<'m>(
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
            self.say_copies(expected, &bad);
            return show(Some(&block));
        }
        match self.volume.read_block(expected) {
            Ok(block) => {
                self.say_copies(expected, &bad);
                let rebuilt = TreeBlock::check(block.bytes(), expected, rules);
                show(rebuilt.ok().as_ref());
            }
            Err(error) => {
                if let Some((copy, fault)) = bad.first() {
                    self.say(Kind::BlockBad, expected, *copy, fault);
                } else {
                    self.unreadable(expected, &error);
                }
                show(None);
            }
        }
    }

    fn say_copies(&self, expected: &Expected, bad: &[(Mirror, Fault)]) {
        for (copy, fault) in bad {
            self.say(Kind::BlockCopy, expected, *copy, fault);
        }
    }

    fn say(&self, kind: Kind, expected: &Expected, copy: Mirror, fault: &Fault) {
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

/// What is wrong with one copy.
enum Fault {
    Read(String),
    Refused(Refused),
    /// It is a good block, and not the one that copy number so holds.
    Differs(usize),
}

fn tree_of(expected: &Expected) -> String {
    format!("tree {}", tree_name(expected.tree.0))
}

/// A tree as a person names it.
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

/// An address inside a finding.
pub(crate) fn block_at(tree: u64, logical: Logical) -> String {
    format!("tree {}: block {logical}", tree_name(tree))
}
