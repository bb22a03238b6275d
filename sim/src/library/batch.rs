//! Batches of requests on a queue of the library.
//!
//! 1. Every request completes once, and returns its buffer.
//! 2. One request in three is submitted with NOWAIT, and submitted again without it if the first
//!    attempt would have blocked.
//! 3. The memory of a borrowed buffer changes as soon as its request has completed.

use super::{Answer, IntoAnswer, LibrarySubject, Opening};
use crate::borrowed::BorrowedMemory;
use crate::content::{pattern, read_digest};
use crate::errno;
use crate::operation::{Lane, Outcome, Request, RequestKind};
use butternut::queue::{Completion, IoFlags, Queue, QueueOptions, SyncKind};
use butternut::{Buffer, File};
use std::collections::BTreeMap;

const DEPTH: usize = 32;
const ARENA_BYTES: usize = 1 << 20;
const BOUNCE_BYTES: usize = 512 << 10;
const NOWAIT_ONE_IN: u64 = 3;

/// A queue, and the memory of its borrowed buffers by the tag of the request.
pub(super) struct Batches {
    queue: Queue,
    borrowed: BTreeMap<u64, BorrowedMemory>,
    submitted: u64,
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
                RequestKind::Write { .. } => Opening::Write,
                RequestKind::Append { .. } => Opening::Append,
                RequestKind::Read { .. } | RequestKind::Sync => Opening::Read,
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
        outcomes.into_iter().map(|outcome| outcome.expect("each request completes once")).collect()
    }
}

impl Batches {
    fn new(filesystem: &butternut::Filesystem) -> Answer<Batches> {
        let options = QueueOptions::default()
            .depth(DEPTH)
            .arena_bytes(ARENA_BYTES)
            .bounce_bytes(BOUNCE_BYTES);
        let queue = filesystem.queue(&options).into_answer()?;
        Ok(Batches { queue, borrowed: BTreeMap::new(), submitted: 0 })
    }

    fn add(&mut self, file: &File, request: &Request, tag: u64) -> Answer<()> {
        let lane = match request.lane {
            Lane::Cached => IoFlags::default(),
            Lane::Direct => IoFlags::DIRECT,
            Lane::Uncached => IoFlags::UNCACHED,
        };
        let (bytes, content) = match request.what {
            RequestKind::Read { bytes, .. } => (bytes, None),
            RequestKind::Write { bytes, seed, .. } | RequestKind::Append { bytes, seed } => {
                (bytes, Some(pattern(seed, index(bytes))))
            }
            RequestKind::Sync => return self.queue.sync(file, SyncKind::All, tag).map_err(refused),
        };
        let mut buffer = self.memory(index(bytes), request.is_lent.then_some(tag));
        if let Some(content) = content {
            buffer.copy_from_slice(&content);
        }
        self.submitted += 1;
        let mut flags = if self.submitted.is_multiple_of(NOWAIT_ONE_IN) {
            lane.with(IoFlags::NOWAIT)
        } else {
            lane
        };
        loop {
            let queued = match request.what {
                RequestKind::Write { offset, is_durable, .. } => {
                    let flags = if is_durable { flags.with(IoFlags::DSYNC) } else { flags };
                    self.queue.write(file, offset, buffer, flags, tag)
                }
                RequestKind::Append { .. } => {
                    self.queue.write(file, 0, buffer, flags.with(IoFlags::APPEND), tag)
                }
                RequestKind::Read { offset, .. } => {
                    self.queue.read(file, offset, buffer, flags, tag)
                }
                RequestKind::Sync => return Ok(()),
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
                    self.borrowed.remove(&tag);
                    return Err(errno);
                }
                Ok(()) => return Ok(()),
            }
        }
    }

    /// Returns memory of the queue's arena if any is free, heap memory, or a borrowed buffer for
    /// the request with this tag.
    fn memory(&mut self, bytes: usize, borrowed_by: Option<u64>) -> Buffer {
        let Some(tag) = borrowed_by else {
            return self.queue.buffer(bytes).unwrap_or_else(|| Buffer::zeroed(bytes));
        };
        self.borrowed.entry(tag).or_insert_with(|| BorrowedMemory::new(bytes)).buffer(bytes)
    }

    fn reap(&mut self, requests: &[Request], outcomes: &mut [Option<Outcome>]) {
        let mut done = Vec::new();
        self.queue.reap(1, None, &mut done);
        for Completion { tag, buffer, result } in done {
            let request = &requests[index(tag)];
            let outcome = outcome(request, &buffer, result);
            drop(buffer);
            self.borrowed.remove(&tag);
            let before = outcomes[index(tag)].replace(outcome);
            assert!(before.is_none(), "request {tag} completed twice");
        }
    }
}

fn outcome(request: &Request, buffer: &Buffer, result: butternut::Result<usize>) -> Outcome {
    match (request.what, result) {
        (_, Err(error)) => Outcome::Failed(error.errno()),
        (RequestKind::Read { bytes, .. }, Ok(transferred)) => {
            assert_eq!(buffer.len(), index(bytes), "law 1");
            Outcome::Read { bytes: transferred as u64, digest: read_digest(&buffer[..transferred]) }
        }
        (RequestKind::Write { bytes, .. } | RequestKind::Append { bytes, .. }, Ok(written)) => {
            assert_eq!(buffer.len(), index(bytes), "law 1");
            if written as u64 == bytes { Outcome::Done } else { Outcome::Copied(written as u64) }
        }
        (RequestKind::Sync, Ok(_)) => Outcome::Done,
    }
}

#[expect(clippy::needless_pass_by_value, reason = "it drops the buffer")]
#[expect(clippy::boxed_local, reason = "the API boxes it")]
fn refused(refused: Box<butternut::queue::Refused>) -> i32 {
    refused.error.errno()
}

fn index(number: u64) -> usize {
    usize::try_from(number).expect("fits memory")
}
