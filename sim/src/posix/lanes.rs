//! Reads and writes through system calls, cached and with `O_DIRECT`.
//!
//! The kernel's btrfs accepts any offset and length with `O_DIRECT`: requests that are not
//! block-aligned fall back to its page cache. Memory is aligned.

use super::{Answer, PosixSubject};
use crate::content::{pattern, read_digest};
use crate::operation::{File, Lane, Outcome, Request, RequestKind};
use butternut::Buffer;
use rustix::fs::OFlags;
use rustix::io::Errno;
use std::os::fd::OwnedFd;

impl PosixSubject<'_> {
    /// Runs a function on a file that is open for a lane.
    fn in_lane<T>(
        &self,
        file: &File,
        how: OFlags,
        lane: Lane,
        run: impl FnOnce(&OwnedFd) -> Answer<T>,
    ) -> Answer<T> {
        if lane != Lane::Direct {
            return self.with_file(file, how, run);
        }
        self.with_file(file, how | OFlags::DIRECT, |opened| {
            if matches!(file, File::At(_)) {
                return run(opened);
            }
            let was = rustix::fs::fcntl_getfl(opened)?;
            rustix::fs::fcntl_setfl(opened, was | OFlags::DIRECT)?;
            let done = run(opened);
            rustix::fs::fcntl_setfl(opened, was)?;
            done
        })
    }

    pub(super) fn read(&self, file: &File, offset: u64, bytes: u64, lane: Lane) -> Answer<Outcome> {
        let mut memory = Buffer::zeroed(usize::try_from(bytes).expect("fits memory"));
        let done =
            self.in_lane(file, OFlags::RDONLY, lane, |file| read_all(file, offset, &mut memory))?;
        Ok(Outcome::Read { bytes: done as u64, digest: read_digest(&memory[..done]) })
    }

    pub(super) fn write(
        &self,
        file: &File,
        (offset, bytes): (u64, u64),
        seed: u64,
        lane: Lane,
    ) -> Answer<()> {
        let memory = memory(seed, bytes);
        self.in_lane(file, OFlags::WRONLY, lane, |file| write_all(file, offset, &memory))
    }

    /// Appends to a file that is given by its name, which is opened with `O_APPEND`.
    pub(super) fn append(&self, file: &File, bytes: u64, seed: u64, lane: Lane) -> Answer<()> {
        let memory = memory(seed, bytes);
        self.in_lane(file, OFlags::WRONLY | OFlags::APPEND, lane, |file| {
            let mut rest = &memory[..];
            while !rest.is_empty() {
                let written = rustix::io::write(file, rest)?;
                rest = &rest[written..];
            }
            Ok(())
        })
    }

    /// Runs the requests one after another.
    pub(super) fn batch(&self, requests: &[Request]) -> Vec<Outcome> {
        let one = |request: &Request| {
            let done = self.request(request);
            done.unwrap_or_else(|errno| Outcome::Failed(errno.raw_os_error()))
        };
        requests.iter().map(one).collect()
    }

    fn request(&self, Request { file, what, lane, is_lent: _ }: &Request) -> Answer<Outcome> {
        match *what {
            RequestKind::Read { offset, bytes } => return self.read(file, offset, bytes, *lane),
            RequestKind::Write { offset, bytes, seed, is_durable } => {
                self.write(file, (offset, bytes), seed, *lane)?;
                if is_durable {
                    self.sync(file)?;
                }
            }
            RequestKind::Append { bytes, seed } => self.append(file, bytes, seed, *lane)?,
            RequestKind::Sync => self.sync(file)?,
        }
        Ok(Outcome::Done)
    }

    fn sync(&self, file: &File) -> Answer<()> {
        self.with_file(file, OFlags::RDONLY, |file| rustix::fs::fsync(file))
    }
}

fn memory(seed: u64, bytes: u64) -> Buffer {
    Buffer::copy_of(&pattern(seed, usize::try_from(bytes).expect("fits memory")))
}

fn write_all(file: &OwnedFd, offset: u64, memory: &[u8]) -> Answer<()> {
    let mut done = 0;
    loop {
        done += rustix::io::pwrite(file, &memory[done..], offset + done as u64)?;
        if done == memory.len() {
            return Ok(());
        }
    }
}

fn read_all(file: &OwnedFd, offset: u64, memory: &mut [u8]) -> Result<usize, Errno> {
    let mut done = 0;
    loop {
        let transferred = rustix::io::pread(file, &mut memory[done..], offset + done as u64)?;
        done += transferred;
        if transferred == 0 || done == memory.len() {
            return Ok(done);
        }
    }
}
