//! Generates lanes and batches of requests.

use super::Generator;
use crate::model::Model;
use crate::operation::{File, Lane, Operation, Request, RequestKind};

const BLOCK: u64 = 4096;
/// The maximum number of requests of a batch, and of bytes of a request.
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

    /// Aligns a range mostly to whole blocks, if the lane treats these differently.
    pub(super) fn for_lane(&mut self, lane: Lane, offset: u64, bytes: u64) -> (u64, u64) {
        if lane != Lane::Direct || self.random.one_in(4) {
            return (offset, bytes);
        }
        (offset / BLOCK * BLOCK, bytes.next_multiple_of(BLOCK))
    }

    /// Returns a batch on one or two files: ascending ranges that share no block, across the files.
    /// A request that moves the end of a file comes last.
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
                requests.push(self.request(file, RequestKind::Sync));
                continue;
            }
            if !dense {
                at += self.random.below(16) * BLOCK;
            }
            let (skip, bytes) = self.inside_blocks();
            let (offset, left) = (at + skip, end.saturating_sub(at + skip));
            // Requests of partial blocks are not in flight.
            let left = if skip == 0 && left > BLOCK { left / BLOCK * BLOCK } else { left };
            let bytes = bytes.min(left);
            if bytes == 0 {
                continue;
            }
            at = (offset + bytes).next_multiple_of(BLOCK);
            let what = if self.random.one_in(4) {
                RequestKind::Read { offset, bytes }
            } else {
                RequestKind::Write {
                    offset,
                    bytes,
                    seed: self.seed(),
                    is_durable: self.random.one_in(8),
                }
            };
            requests.push(self.request(file, what));
        }
        if requests.is_empty() || self.random.one_in(3) {
            let file = self.random.pick(&files).clone();
            let (skip, bytes) = self.inside_blocks();
            let seed = self.seed();
            let is_by_name = matches!(file, File::At(_));
            let what = if is_by_name && self.random.one_in(2) {
                // The last request must share no block with those before it.
                let is_behind = size_of(&file, model) >= at;
                let offset = at.max(size_of(&file, model)) + skip;
                let write = RequestKind::Write { offset, bytes, seed, is_durable: false };
                if is_behind { RequestKind::Append { bytes, seed } } else { write }
            } else {
                RequestKind::Write { offset: at + skip, bytes, seed, is_durable: false }
            };
            requests.push(self.request(file, what));
        }
        Operation::Batch { requests }
    }

    /// Returns the largest of a few files, since small ones hold few requests.
    fn large_file(&mut self, model: &Model) -> File {
        let some: Vec<File> = (0..4).map(|_| self.file()).collect();
        some.into_iter().max_by_key(|file| size_of(file, model)).expect("the model has files")
    }

    fn request(&mut self, file: File, what: RequestKind) -> Request {
        if what == RequestKind::Sync {
            return Request { file, what, lane: Lane::Cached, is_lent: false };
        }
        // Queues exist for direct I/O.
        let lane = if self.random.one_in(2) { Lane::Direct } else { self.lane() };
        let is_lent = self.random.one_in(4);
        Request { file, what, lane, is_lent }
    }

    /// Returns an offset in a block and a length, mostly of whole blocks.
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
