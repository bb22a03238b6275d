//! Batches of requests, on a queue of the library.
//!
//! 1. Every request comes back once, with its buffer.
//! 2. One request in three is asked not to wait, and asked again if it would have to.
//! 3. Memory that is lent is another's again as soon as its request has come back.

use super::{Answer, LibrarySubject, Opening, Told};
use crate::content::{pattern, read_digest};
use crate::errno;
use crate::lender::Lent;
use crate::operation::{Asked, Lane, Outcome, Request};
use butternut::{Buffer, Done, File, IoFlags, Queue, QueueOptions, SyncKind};
use std::collections::BTreeMap;

const DEPTH: usize = 32;
const ARENA_BYTES: usize = 1 << 20;
const BOUNCE_BYTES: usize = 512 << 10;
const NOWAIT_ONE_IN: u64 = 3;

/// A queue, and the memory that is lent to it, by the tag of the request.
pub(super) struct Batches {
    queue: Queue,
    lent: BTreeMap<u64, Lent>,
    asked: u64,
}

impl LibrarySubject {
    pub(super) fn batch(&mut self, requests: &[Request]) -> Answer<Vec<Outcome>> {
        let mut batches = match self.queue.take() {
            Some(batches) => batches,
            None => Batches::new(self.filesystem())?,
        };
        let outcomes = self.run_batch(&mut batches, requests);
        self.queue = Some(batches);
        Ok(outcomes)
    }

    fn run_batch(&self, batches: &mut Batches, requests: &[Request]) -> Vec<Outcome> {
        let mut outcomes: Vec<Option<Outcome>> = vec![None; requests.len()];
        for (tag, request) in (0..).zip(requests) {
            let opening = match request.what {
                Asked::Write { .. } => Opening::Write,
                Asked::Append { .. } => Opening::Append,
                Asked::Read { .. } | Asked::Sync => Opening::Read,
            };
            while batches.queue.outstanding() >= DEPTH {
                batches.reap(requests, &mut outcomes);
            }
            let queued =
                self.with_file(&request.file, opening, |file| batches.add(file, request, tag));
            if let Err(errno) = queued {
                outcomes[index(tag)] = Some(Outcome::Failed(errno));
            }
        }
        while batches.queue.outstanding() > 0 {
            batches.reap(requests, &mut outcomes);
        }
        outcomes.into_iter().map(|outcome| outcome.expect("each comes back once")).collect()
    }
}

impl Batches {
    fn new(filesystem: &butternut::Filesystem) -> Answer<Batches> {
        let options = QueueOptions {
            depth: DEPTH,
            arena_bytes: ARENA_BYTES,
            bounce_bytes: BOUNCE_BYTES,
            ..QueueOptions::default()
        };
        let queue = filesystem.queue(&options).told()?;
        Ok(Batches { queue, lent: BTreeMap::new(), asked: 0 })
    }

    fn add(&mut self, file: &File, request: &Request, tag: u64) -> Answer<()> {
        let lane = match request.lane {
            Lane::Cached => IoFlags::default(),
            Lane::Direct => IoFlags::DIRECT,
            Lane::Uncached => IoFlags::UNCACHED,
        };
        let (bytes, content) = match request.what {
            Asked::Read { bytes, .. } => (bytes, None),
            Asked::Write { bytes, seed, .. } | Asked::Append { bytes, seed } => {
                (bytes, Some(pattern(seed, index(bytes))))
            }
            Asked::Sync => return self.queue.sync(file, SyncKind::All, tag).map_err(refused),
        };
        let mut buffer = self.memory(index(bytes), request.is_lent.then_some(tag));
        if let Some(content) = content {
            buffer.copy_from_slice(&content);
        }
        self.asked += 1;
        let mut flags = if self.asked.is_multiple_of(NOWAIT_ONE_IN) {
            lane.with(IoFlags::NOWAIT)
        } else {
            lane
        };
        loop {
            let queued = match request.what {
                Asked::Write { offset, is_durable, .. } => {
                    let flags = if is_durable { flags.with(IoFlags::DSYNC) } else { flags };
                    self.queue.write(file, offset, buffer, flags, tag)
                }
                Asked::Append { .. } => {
                    self.queue.write(file, 0, buffer, flags.with(IoFlags::APPEND), tag)
                }
                Asked::Read { offset, .. } => self.queue.read(file, offset, buffer, flags, tag),
                Asked::Sync => return Ok(()),
            };
            match queued {
                Err(back)
                    if flags.contains(IoFlags::NOWAIT) && back.error.errno() == errno::AGAIN =>
                {
                    flags = flags.without(IoFlags::NOWAIT);
                    buffer = back.buffer;
                }
                Err(back) => {
                    let errno = refused(back);
                    self.lent.remove(&tag);
                    return Err(errno);
                }
                Ok(()) => return Ok(()),
            }
        }
    }

    /// Memory of the queue's arena if it has some, of the heap, or lent to the request of this tag.
    fn memory(&mut self, bytes: usize, lent_to: Option<u64>) -> Buffer {
        let Some(tag) = lent_to else {
            return self.queue.buffer(bytes).unwrap_or_else(|| Buffer::zeroed(bytes));
        };
        self.lent.entry(tag).or_insert_with(|| Lent::new(bytes)).buffer(bytes)
    }

    fn reap(&mut self, requests: &[Request], outcomes: &mut [Option<Outcome>]) {
        let mut done = Vec::new();
        self.queue.reap(1, None, &mut done);
        for Done { tag, buffer, result } in done {
            let request = &requests[index(tag)];
            let outcome = outcome(request, &buffer, result);
            drop(buffer);
            self.lent.remove(&tag);
            let before = outcomes[index(tag)].replace(outcome);
            assert!(before.is_none(), "request {tag} came back twice");
        }
    }
}

fn outcome(request: &Request, buffer: &Buffer, result: butternut::Result<usize>) -> Outcome {
    match (request.what, result) {
        (_, Err(error)) => Outcome::Failed(error.errno()),
        (Asked::Read { bytes, .. }, Ok(came)) => {
            assert_eq!(buffer.len(), index(bytes), "law 1");
            Outcome::Read { bytes: came as u64, digest: read_digest(&buffer[..came]) }
        }
        (Asked::Write { bytes, .. } | Asked::Append { bytes, .. }, Ok(written)) => {
            assert_eq!(buffer.len(), index(bytes), "law 1");
            if written as u64 == bytes { Outcome::Done } else { Outcome::Copied(written as u64) }
        }
        (Asked::Sync, Ok(_)) => Outcome::Done,
    }
}

#[expect(clippy::needless_pass_by_value, reason = "the buffer goes with it")]
#[expect(clippy::boxed_local, reason = "as it comes")]
fn refused(refused: Box<butternut::Refused>) -> i32 {
    refused.error.errno()
}

fn index(number: u64) -> usize {
    usize::try_from(number).expect("fits memory")
}
