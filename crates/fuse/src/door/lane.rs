//! The lane of a request: the path of file data between the kernel and the devices.
//!
//! | caller | lane |
//! |---|---|
//! | a program with `O_DIRECT` | `Direct` |
//! | the kernel's page cache | `KernelCached`; `Uncached` on an uncached mount |
//! | a program that bypasses the kernel's cache | `Uncached` |
//!
//! The library keeps the lanes coherent: a write through one is visible through every other.

use butternut::server::FileExt;
use butternut::{File, Privileges, ReadAt};

use crate::errno::{Errno, ErrnoResult};

pub(super) const O_DIRECT: u32 = 0o40000;
/// The change must be durable before its call returns. `O_SYNC` contains this flag.
pub(super) const O_DSYNC: u32 = 0o10000;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Lane {
    /// The kernel caches the data that is read, and has cached the data that is written.
    KernelCached,
    /// No page stays cached.
    Uncached,
    /// Between the request's memory and the devices.
    Direct,
}

/// The origin of the data of a WRITE.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Writer {
    /// The kernel's page cache. The write was permitted when the program made it, and the kernel
    /// does not repeat a failed one.
    KernelWriteback,
    /// A program, which learns how many bytes were written.
    Program(Privileges),
}

impl Lane {
    /// Reads into `memory`, up to the end of the file. The kernel takes a short reply for the end
    /// of the file, so a read error must be an error of the whole request. The kernel then requests
    /// the pages that it needs one by one.
    pub(super) fn read(self, file: &File, offset: u64, memory: &mut [u8]) -> ErrnoResult<usize> {
        let mut read = 0;
        while read < memory.len() {
            let (at, rest) = (offset + read as u64, &mut memory[read..]);
            match self.read_some(file, at, rest)? {
                0 => break,
                more => read += more,
            }
        }
        Ok(read)
    }

    fn read_some(self, file: &File, offset: u64, memory: &mut [u8]) -> butternut::Result<usize> {
        match self {
            // No readahead: the kernel reads ahead itself, on several threads, each straight into
            // its reply.
            Self::KernelCached => {
                let mut one = [ReadAt::new(offset, memory)];
                file.read_many(&mut one);
                let [one] = one;
                one.result
            }
            Self::Uncached => file.read_uncached(offset, memory),
            Self::Direct => file.read_direct(offset, memory),
        }
    }

    /// Writes `bytes`, or as many of them as there is space for.
    ///
    /// Two kinds of requests are written completely or fail. The kernel does not repeat the rest of
    /// a write from its cache. And it splits one `O_DIRECT` write into requests that are in flight
    /// together, and reports a short one as `EIO`, whatever the reason was.
    pub(super) fn write(
        self,
        file: &File,
        offset: u64,
        bytes: &[u8],
        writer: Writer,
    ) -> ErrnoResult<usize> {
        match (self, writer) {
            (Self::KernelCached, Writer::Program(privileges)) => {
                Ok(file.write_drop_behind(offset, bytes, privileges)?)
            }
            (Self::Uncached, Writer::Program(privileges)) => {
                Ok(file.write_uncached(offset, bytes, privileges)?)
            }
            (Self::Direct, _) | (_, Writer::KernelWriteback) => {
                self.write_whole(file, offset, bytes, writer)
            }
        }
    }

    /// Writes all of `bytes`, or fails.
    fn write_whole(
        self,
        file: &File,
        offset: u64,
        bytes: &[u8],
        writer: Writer,
    ) -> ErrnoResult<usize> {
        let privileges = match writer {
            Writer::KernelWriteback => Privileges::Keep,
            Writer::Program(privileges) => privileges,
        };
        let mut written = 0;
        while written < bytes.len() {
            let (at, rest) = (offset + written as u64, &bytes[written..]);
            let some = match self {
                Self::KernelCached => file.write_from_cache(at, rest)?,
                Self::Uncached => file.write_uncached(at, rest, privileges)?,
                Self::Direct => file.write_direct(at, rest, privileges)?,
            };
            match some {
                0 => return Err(Errno::EIO),
                more => written += more,
            }
        }
        Ok(written)
    }
}
