//! [`StreamReader`]: reads the commands of send streams one at a time.
//!
//! 1. At most one command is in memory.
//! 2. The end of the input is an error, except where a stream may begin.

use super::command_place::CommandPlace;
use super::limits::{Limits, StreamLimits};
use crate::{Error, Result};
use butternut_format::refused::Refused;
use butternut_format::stream::{
    COMMAND_HEADER_BYTES, Command, STREAM_HEADER_BYTES, StreamVersion, command_bytes,
};
use butternut_format::units::length;
use std::io::{self, Read};

/// Where a command has its checksum.
const CHECKSUM: std::ops::Range<usize> = 6..COMMAND_HEADER_BYTES;

/// A command, its stored checksum and its size in bytes.
pub(super) struct NextCommand<'a> {
    pub(super) place: CommandPlace,
    pub(super) command: Command<'a>,
    pub(super) checksum: u32,
    pub(super) bytes: u64,
}

/// Reads send streams. The input is read in small pieces: wrap a file in a
/// [`BufReader`](std::io::BufReader).
#[derive(Debug)]
pub struct StreamReader<R> {
    input: R,
    /// The version of the stream that has begun.
    version: Option<StreamVersion>,
    streams: u64,
    place: CommandPlace,
    /// Offset of the next byte.
    offset: u64,
    buf: Vec<u8>,
    limits: Limits,
}

impl<R: Read> StreamReader<R> {
    pub fn new(input: R) -> Self {
        let place = CommandPlace { number: 0, offset: 0 };
        let (buf, limits) = (Vec::new(), Limits::default());
        Self { input, version: None, streams: 0, place, offset: 0, buf, limits }
    }

    /// Lets `goes_on` end a receive of the stream while a command copies or seals data, which may
    /// take hours: it is called after each mebibyte at most. When it returns false, the command
    /// fails with [`Error::StreamInput`] and `ECANCELED`.
    #[must_use]
    pub fn end_unless(self, goes_on: impl Fn() -> bool + Send + Sync + 'static) -> Self {
        Self { limits: self.limits.end_unless(goes_on), ..self }
    }

    /// Limits the bytes of the files that a receive of the stream seals by fs-verity, and of their
    /// hashes, and the extents that it clones or frees. All of the files are hashed, and a few
    /// bytes of a stream make a file of any size. Above 64 GiB of files and 1024 times the size of
    /// the streams up to there, or 130 MiB of hashes and 4 times that size, or 524,288 extents and
    /// one for each 16 bytes, the command fails with [`Error::Stream`].
    #[must_use]
    pub fn limit_work(self, limits: &StreamLimits) -> Self {
        Self { limits: self.limits.limit_work(limits), ..self }
    }

    pub(super) fn limits(&self) -> &Limits {
        &self.limits
    }

    /// Returns the input, of which nothing beyond the last command has been read.
    pub fn into_inner(self) -> R {
        self.input
    }

    /// Returns whether another stream begins, after reading its header; `None` at the end of the
    /// input after at least one stream.
    ///
    /// # Errors
    /// [`Error::Receive`]: the input has no stream, or is damaged, or cannot be read.
    pub fn next_stream(&mut self) -> Result<Option<StreamVersion>> {
        self.place = CommandPlace { number: 0, offset: self.offset };
        self.version = None;
        let read = self.fill(0, STREAM_HEADER_BYTES)?;
        if read == 0 && self.streams > 0 {
            return Ok(None);
        }
        let header = self.buf.first_chunk::<STREAM_HEADER_BYTES>();
        let header = header.filter(|_| read == STREAM_HEADER_BYTES);
        let header = header.ok_or_else(|| {
            Refused::new("bytes", read, format_args!("{STREAM_HEADER_BYTES}, the input ends"))
        });
        let version = header.and_then(StreamVersion::decode);
        let version = version.map_err(|refused| self.failed(Error::Stream(refused)))?;
        self.streams += 1;
        self.version = Some(version);
        Ok(Some(version))
    }

    /// Reads the next command of the stream.
    ///
    /// # Errors
    /// [`Error::Receive`]: the command is damaged or unknown, the input ends, or cannot be read.
    pub fn next_command(&mut self) -> Result<(CommandPlace, Command<'_>)> {
        let NextCommand { place, command, .. } = self.next_checked()?;
        Ok((place, command))
    }

    /// Reads the next command with its checksum and its size.
    pub(super) fn next_checked(&mut self) -> Result<NextCommand<'_>> {
        self.place.number += 1;
        self.place.offset = self.offset;
        let version = self.version.ok_or(Error::InvalidArgument { what: "no stream has begun" })?;
        self.read_command(version)?;
        let place = self.place;
        let decoded = Command::decode(version, &self.buf);
        let command = decoded.map_err(|refused| at(place, Error::Stream(refused)))?;
        if command == Command::End {
            self.version = None;
        }
        let checksum = self.buf.get(CHECKSUM).and_then(|bytes| bytes.try_into().ok());
        let checksum = u32::from_le_bytes(checksum.unwrap_or_default());
        Ok(NextCommand { place, command, checksum, bytes: length(self.buf.len()) })
    }

    /// Reads the bytes of one command into the buffer.
    fn read_command(&mut self, version: StreamVersion) -> Result<()> {
        let read = self.fill(0, COMMAND_HEADER_BYTES)?;
        let header = self.buf.first_chunk::<COMMAND_HEADER_BYTES>();
        let Some(header) = header.filter(|_| read == COMMAND_HEADER_BYTES) else {
            let want = "a command: the stream ends without an end command";
            let refused = Refused::new("bytes", read, want);
            return Err(self.failed(Error::Stream(refused)));
        };
        let bytes = command_bytes(version, header);
        let bytes = bytes.map_err(|refused| self.failed(Error::Stream(refused)))?;
        let read = COMMAND_HEADER_BYTES + self.fill(COMMAND_HEADER_BYTES, bytes)?;
        if read < bytes {
            let refused = Refused::new("bytes", read, format_args!("{bytes}, the input ends"));
            return Err(self.failed(Error::Stream(refused)));
        }
        Ok(())
    }

    /// Fills the buffer from byte `from` up to `to`, its new length. Returns the number of bytes
    /// read: fewer only where the input ends.
    fn fill(&mut self, from: usize, to: usize) -> Result<usize> {
        self.buf.resize(to, 0);
        let mut rest = &mut self.buf[from..];
        let wanted = rest.len();
        while !rest.is_empty() {
            match self.input.read(rest) {
                Ok(0) => break,
                Ok(read) => rest = &mut rest[read..],
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(at(self.place, Error::StreamInput(error))),
            }
        }
        let read = wanted - rest.len();
        self.offset += length(read);
        Ok(read)
    }

    fn failed(&self, source: Error) -> Error {
        at(self.place, source)
    }
}

fn at(place: CommandPlace, source: Error) -> Error {
    Error::Receive { place, what: "reading".to_owned(), source: Box::new(source) }
}
