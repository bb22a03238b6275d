//! The way that a file's bytes go between the kernel and the devices, request by request.
//!
//! | who asks | lane |
//! |---|---|
//! | a program with `O_DIRECT` | `Direct` |
//! | the kernel's cache | `Kernel`, on an uncached mount `Uncached` |
//! | a program past the kernel's cache | `Uncached` |
//!
//! What comes through one lane is seen through every other: that is the library's law.

use butternut::{File, Privileges, ReadAt};

use crate::refusal::{Answer, Refusal};

pub(super) const O_DIRECT: u32 = 0o40000;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Lane {
    /// The kernel keeps what is read, and held back what is written.
    Kernel,
    /// Nobody keeps anything.
    Uncached,
    /// Between the request and the devices.
    Direct,
}

/// Who wrote what is to be written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Writer {
    /// The kernel's cache, late: it was allowed then, and what fails is not sent again.
    Cache,
    /// A program, who is told how much was written.
    Program(Privileges),
}

impl Lane {
    /// Fills `memory` up to the end of the file. The kernel takes a short answer for the end, so
    /// what is damaged must be an error; it then asks again for the single pages that it needs.
    pub(super) fn read(self, file: &File, offset: u64, memory: &mut [u8]) -> Answer<usize> {
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
            // The kernel reads ahead on its own, and several threads serve it: each reads straight
            // into its reply.
            Self::Kernel => {
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
    /// Two kinds of request are written whole or refused. The kernel does not send the rest of a
    /// write from its cache again. And it sends the parts of one `O_DIRECT` write at the same time:
    /// a part that is short it takes for `EIO`, whatever the reason was.
    pub(super) fn write(
        self,
        file: &File,
        offset: u64,
        bytes: &[u8],
        writer: Writer,
    ) -> Answer<usize> {
        match (self, writer) {
            (Self::Kernel, Writer::Program(privileges)) => {
                Ok(file.write_behind(offset, bytes, privileges)?)
            }
            (Self::Uncached, Writer::Program(privileges)) => {
                Ok(file.write_uncached(offset, bytes, privileges)?)
            }
            (Self::Direct, _) | (_, Writer::Cache) => self.write_whole(file, offset, bytes, writer),
        }
    }

    /// Writes all of `bytes`, or fails.
    fn write_whole(self, file: &File, offset: u64, bytes: &[u8], writer: Writer) -> Answer<usize> {
        let privileges = match writer {
            Writer::Cache => Privileges::Keep,
            Writer::Program(privileges) => privileges,
        };
        let mut written = 0;
        while written < bytes.len() {
            let (at, rest) = (offset + written as u64, &bytes[written..]);
            let some = match self {
                Self::Kernel => file.write_back(at, rest)?,
                Self::Uncached => file.write_uncached(at, rest, privileges)?,
                Self::Direct => file.write_direct(at, rest, privileges)?,
            };
            match some {
                0 => return Err(Refusal::IO),
                more => written += more,
            }
        }
        Ok(written)
    }
}
