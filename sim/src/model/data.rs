//! Operations on the data of files.

use super::{Answer, Body, Model};
use crate::content::{pattern, read_digest};
use crate::errno;
use crate::operation::{
    Allocating, File, Operation, Outcome, Request, RequestKind, Seeking, flags,
};

impl Model {
    pub(super) fn data_operation(&mut self, operation: &Operation) -> Answer<Outcome> {
        match operation {
            Operation::Write { file, offset, bytes, seed, lane: _ } => {
                self.write_file(file, *offset, *bytes, *seed)?;
            }
            Operation::Append { at, bytes, seed } => {
                self.append(&File::At(at.clone()), *bytes, *seed)?;
            }
            Operation::Truncate { file, size } => {
                let ino = self.file(file, true)?;
                if self.inode(ino).has(flags::APPEND) {
                    return Err(errno::NOT_PERMITTED);
                }
                self.may_write_open(ino, *size)?;
                self.content_mut(ino).resize(*size);
            }
            Operation::Fallocate { file, how, offset, bytes } => {
                self.fallocate(file, *how, *offset, *bytes)?;
            }
            Operation::Read { file, offset, bytes, lane: _ } => {
                return self.read(file, *offset, *bytes);
            }
            Operation::Batch { requests } => {
                let one = |request| self.request(request).unwrap_or_else(Outcome::Failed);
                return Ok(Outcome::Batch(requests.iter().map(one).collect()));
            }
            Operation::Seek { file, what: _, offset } => {
                let ino = self.file(file, false)?;
                if *offset >= self.content(ino).size() {
                    return Err(errno::NO_ADDRESS);
                }
                return Ok(Outcome::Found(*offset));
            }
            Operation::Copy { from, from_offset, to, to_offset, bytes } => {
                let (from, to) = (self.file(from, false)?, self.file(to, true)?);
                return self.copy((from, *from_offset), (to, *to_offset), *bytes);
            }
            Operation::Fsync { file } => drop(self.file(file, false)?),
            _ => {}
        }
        Ok(Outcome::Done)
    }

    /// Returns whether at most the last request of a batch moves the end of a file.
    pub fn is_fair(&self, operation: &Operation) -> bool {
        let Operation::Batch { requests } = operation else { return true };
        let moves_end = |request: &Request| match request.what {
            RequestKind::Read { .. } | RequestKind::Sync => false,
            RequestKind::Append { .. } => true,
            RequestKind::Write { offset, bytes, .. } => self
                .file(&request.file, true)
                .is_ok_and(|ino| self.content(ino).size() < offset + bytes),
        };
        !requests.iter().rev().skip(1).any(moves_end)
    }

    fn request(&mut self, request: &Request) -> Answer<Outcome> {
        match request.what {
            RequestKind::Read { offset, bytes } => return self.read(&request.file, offset, bytes),
            RequestKind::Write { offset, bytes, seed, is_durable: _ } => {
                self.write_file(&request.file, offset, bytes, seed)?;
            }
            RequestKind::Append { bytes, seed } => self.append(&request.file, bytes, seed)?,
            RequestKind::Sync => drop(self.file(&request.file, false)?),
        }
        Ok(Outcome::Done)
    }

    fn read(&self, file: &File, offset: u64, bytes: u64) -> Answer<Outcome> {
        let ino = self.file(file, false)?;
        let memory = self.content(ino).read(offset, bytes);
        let (bytes, digest) = (memory.len() as u64, read_digest(&memory));
        Ok(Outcome::Read { bytes, digest })
    }

    fn write_file(&mut self, file: &File, offset: u64, bytes: u64, seed: u64) -> Answer<()> {
        let ino = self.file(file, true)?;
        self.may_write_open(ino, offset)?;
        self.write(ino, offset, bytes, seed);
        Ok(())
    }

    fn append(&mut self, file: &File, bytes: u64, seed: u64) -> Answer<()> {
        // An append-only file can be opened for writing only with O_APPEND.
        let ino = self.file(file, false)?;
        if self.inode(ino).has(flags::IMMUTABLE) {
            return Err(errno::NOT_PERMITTED);
        }
        self.may_change_subvolume(self.inode(ino))?;
        self.write(ino, self.content(ino).size(), bytes, seed);
        Ok(())
    }

    fn write(&mut self, ino: u64, offset: u64, bytes: u64, seed: u64) {
        if bytes > 0 {
            let memory = pattern(seed, usize::try_from(bytes).expect("fits memory"));
            self.content_mut(ino).write(offset, &memory);
        }
    }

    fn fallocate(&mut self, file: &File, how: Allocating, offset: u64, bytes: u64) -> Answer<()> {
        let ino = self.file(file, true)?;
        if bytes == 0 {
            return Err(errno::INVALID);
        }
        let keeps_bytes = matches!(how, Allocating::Allocate | Allocating::KeepSize);
        let inode = self.inode(ino);
        if inode.has(flags::APPEND) && !keeps_bytes || inode.has(flags::IMMUTABLE) {
            return Err(errno::NOT_PERMITTED);
        }
        let content = self.content_mut(ino);
        if !keeps_bytes {
            content.zero(offset, bytes);
        }
        if matches!(how, Allocating::Allocate | Allocating::ZeroRange) {
            content.resize(content.size().max(offset + bytes));
        }
        Ok(())
    }

    fn copy(&mut self, from: (u64, u64), to: (u64, u64), bytes: u64) -> Answer<Outcome> {
        if self.inode(to.0).has(flags::IMMUTABLE) {
            return Err(errno::NOT_PERMITTED);
        }
        let bytes = bytes.min(self.content(from.0).size().saturating_sub(from.1));
        if from.0 == to.0 && to.1 + bytes > from.1 && to.1 < from.1 + bytes {
            return Err(errno::INVALID);
        }
        if bytes > 0 {
            self.may_write_open(to.0, to.1)?;
        }
        let memory = self.content(from.0).read(from.1, bytes);
        if bytes > 0 {
            self.content_mut(to.0).write(to.1, &memory);
        }
        Ok(Outcome::Copied(bytes))
    }

    /// Returns whether the result of a seek is possible: the bytes that were skipped as a hole are
    /// zero, and so are the bytes at a found hole (law 6 of [`model`](super)).
    pub fn accepts_seek(&self, operation: &Operation, outcome: &Outcome) -> bool {
        let Operation::Seek { file, what, offset } = operation else { return false };
        let Ok(ino) = self.file(file, false) else { return false };
        let Body::File(content) = &self.inode(ino).body else { return false };
        let size = content.size();
        match (what, outcome) {
            (Seeking::Data, Outcome::Failed(errno::NO_ADDRESS)) => content.is_zero(*offset, size),
            (Seeking::Data, Outcome::Found(at)) => {
                at >= offset && *at < size && content.is_zero(*offset, *at)
            }
            (Seeking::Hole, Outcome::Found(at)) => {
                at >= offset && *at <= size && content.is_zero(*at, *at + 1)
            }
            _ => false,
        }
    }
}
