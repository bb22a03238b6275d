//! Lanes, and batches of requests.

use super::Generator;
use crate::model::Model;
use crate::operation::{Asked, File, Lane, Operation, Request};

const BLOCK: u64 = 4096;
/// Requests of one batch, and bytes of one request, at most.
const REQUESTS_MAX: u64 = 12;
const BYTES_MAX: u64 = 48 << 10;

impl Generator {
    pub(super) fn lane(&mut self) -> Lane {
        match self.random.below(8) {
            0..=2 => Lane::Cached,
            3..=5 => Lane::Direct,
            _ => Lane::Uncached,
        }
    }

    /// Mostly whole blocks, where the lane makes a difference between those and others.
    pub(super) fn for_lane(&mut self, lane: Lane, offset: u64, bytes: u64) -> (u64, u64) {
        if lane != Lane::Direct || self.random.one_in(4) {
            return (offset, bytes);
        }
        (offset / BLOCK * BLOCK, bytes.next_multiple_of(BLOCK))
    }

    /// A batch on one file or two: ascending ranges that share no block, whichever file they are
    /// of; and whatever moves the end of a file comes last.
    pub(super) fn batch(&mut self, model: &Model) -> Operation {
        if self.without.batches {
            return Operation::Sync;
        }
        let files = [self.large_file(model), self.file()];
        let wanted = 1 + self.random.below(REQUESTS_MAX);
        let mut requests = Vec::new();
        let mut at = 0;
        let dense = self.random.one_in(2);
        for _ in 0..wanted {
            let file = self.random.pick(&files).clone();
            let end = size_of(&file, model);
            if end > 0 && self.random.one_in(10) {
                requests.push(self.request(file, Asked::Sync));
                continue;
            }
            if !dense {
                at += self.random.below(16) * BLOCK;
            }
            let (skip, bytes) = self.inside_blocks();
            let (offset, left) = (at + skip, end.saturating_sub(at + skip));
            // What is not whole blocks is not in flight.
            let left = if skip == 0 && left > BLOCK { left / BLOCK * BLOCK } else { left };
            let bytes = bytes.min(left);
            if bytes == 0 {
                continue;
            }
            at = (offset + bytes).next_multiple_of(BLOCK);
            let what = if self.random.one_in(4) {
                Asked::Read { offset, bytes }
            } else {
                Asked::Write { offset, bytes, seed: self.seed(), is_durable: self.random.one_in(8) }
            };
            requests.push(self.request(file, what));
        }
        if requests.is_empty() || self.random.one_in(3) {
            let file = self.random.pick(&files).clone();
            let (skip, bytes) = self.inside_blocks();
            let seed = self.seed();
            let is_by_name = matches!(file, File::At(_));
            let what = if is_by_name && self.random.one_in(2) {
                // It must share no block with the requests before it.
                let is_behind = size_of(&file, model) >= at;
                let offset = at.max(size_of(&file, model)) + skip;
                let write = Asked::Write { offset, bytes, seed, is_durable: false };
                if is_behind { Asked::Append { bytes, seed } } else { write }
            } else {
                Asked::Write { offset: at + skip, bytes, seed, is_durable: false }
            };
            requests.push(self.request(file, what));
        }
        Operation::Batch { requests }
    }

    /// The largest of some: there is little room for requests in small ones.
    fn large_file(&mut self, model: &Model) -> File {
        let some: Vec<File> = (0..4).map(|_| self.file()).collect();
        some.into_iter().max_by_key(|file| size_of(file, model)).expect("there are some")
    }

    fn request(&mut self, file: File, what: Asked) -> Request {
        if what == Asked::Sync {
            return Request { file, what, lane: Lane::Cached, is_lent: false };
        }
        // It is for direct ones that there are queues.
        let lane = if self.random.one_in(2) { Lane::Direct } else { self.lane() };
        let is_lent = self.random.one_in(4);
        Request { file, what, lane, is_lent }
    }

    /// So far into a block, so many bytes: mostly whole blocks.
    fn inside_blocks(&mut self) -> (u64, u64) {
        let most = if self.random.one_in(4) { 12 } else { 3 };
        let blocks = 1 + self.random.below(most);
        let bytes = (blocks * BLOCK).min(BYTES_MAX);
        if self.random.one_in(5) {
            let skip = self.random.below(BLOCK);
            return (skip, 1 + self.random.below(bytes));
        }
        (0, bytes)
    }

    fn seed(&mut self) -> u64 {
        if self.random.one_in(8) { 0 } else { self.random.below(1 << 30) }
    }
}

fn size_of(file: &File, model: &Model) -> u64 {
    let size = match file {
        File::At(at) => model.size_at(at),
        File::Open(slot) => model.size_open(*slot),
    };
    size.unwrap_or(0)
}
