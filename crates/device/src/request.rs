//! Requests and their completions.
//!
//! A [`Request`] is a linear token: it owns its memory, goes into a queue pair once, and comes out
//! as one [`Completion`]. Dropping one that is neither submitted nor given up by
//! [`Request::abandon`] is a mistake of the program, and panics in debug builds.
//!
//! [`ReadInto`] and [`WriteFrom`] borrow their memory instead; a batch of them is run to the end by
//! one blocking call.

use crate::error::DeviceError;
use butternut_sys::buffer::Buffer;
use butternut_sys::buffers::Load;

/// What is to be done, on which device of the queue pair.
#[derive(Debug)]
pub struct Request {
    pub(crate) outline: Outline,
    /// Empty for flush and discard.
    pub(crate) load: Load,
    is_pending: bool,
}

/// A request but for its memory: what travels with it through a ring.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Outline {
    pub(crate) device: usize,
    pub(crate) tag: u64,
    pub(crate) offset: u64,
    pub(crate) bytes: u64,
    pub(crate) kind: RequestKind,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RequestKind {
    Read,
    Write,
    Flush,
    Discard,
}

/// The end of a request: its tag, its memory again, and how it went.
#[derive(Debug)]
pub struct Completion {
    pub tag: u64,
    pub device: usize,
    pub kind: RequestKind,
    pub offset: u64,
    pub bytes: u64,
    /// Empty if the device panicked.
    pub load: Load,
    pub result: Result<(), DeviceError>,
}

impl Request {
    /// Fills the buffer's whole length from `offset`.
    pub fn read(device: usize, offset: u64, buffer: Buffer, tag: u64) -> Request {
        Request::new(device, RequestKind::Read, offset, buffer.len() as u64, buffer.into(), tag)
    }

    /// Writes a buffer, or several in a row, as one transfer.
    pub fn write(device: usize, offset: u64, load: impl Into<Load>, tag: u64) -> Request {
        let load = load.into();
        Request::new(device, RequestKind::Write, offset, load.bytes() as u64, load, tag)
    }

    /// Covers the writes that completed before it was submitted, no others.
    pub fn flush(device: usize, tag: u64) -> Request {
        Request::new(device, RequestKind::Flush, 0, 0, Load::default(), tag)
    }

    pub fn discard(device: usize, offset: u64, bytes: u64, tag: u64) -> Request {
        Request::new(device, RequestKind::Discard, offset, bytes, Load::default(), tag)
    }

    /// Gives the request up, and its memory back.
    pub fn abandon(mut self) -> Load {
        self.is_pending = false;
        std::mem::take(&mut self.load)
    }

    pub fn tag(&self) -> u64 {
        self.outline.tag
    }

    pub(crate) fn complete(mut self, result: Result<(), DeviceError>) -> Completion {
        self.is_pending = false;
        self.outline.complete(std::mem::take(&mut self.load), result)
    }

    /// Both parts, for who sees to it that they are completed.
    pub(crate) fn into_parts(mut self) -> (Outline, Load) {
        self.is_pending = false;
        (self.outline, std::mem::take(&mut self.load))
    }

    pub(crate) fn from_parts(outline: Outline, load: Load) -> Request {
        Request { outline, load, is_pending: true }
    }

    fn new(
        device: usize,
        kind: RequestKind,
        offset: u64,
        bytes: u64,
        load: Load,
        tag: u64,
    ) -> Request {
        Request::from_parts(Outline { device, tag, offset, bytes, kind }, load)
    }
}

impl Outline {
    pub(crate) fn complete(self, load: Load, result: Result<(), DeviceError>) -> Completion {
        let Outline { device, tag, offset, bytes, kind } = self;
        Completion { tag, device, kind, offset, bytes, load, result }
    }

    /// The length of the memory.
    pub(crate) fn len(self) -> usize {
        usize::try_from(self.bytes).expect("it was the length of memory")
    }
}

impl Drop for Request {
    fn drop(&mut self) {
        debug_assert!(
            !self.is_pending || std::thread::panicking(),
            "request {} was dropped before its completion",
            self.tag()
        );
    }
}

/// A read into borrowed memory, one of a batch; made by [`ReadInto::new`].
#[derive(Debug)]
pub struct ReadInto<'a> {
    pub device: usize,
    pub offset: u64,
    pub buf: &'a mut [u8],
    /// The caller's own.
    pub tag: usize,
    /// [`DeviceError::NotRun`] until the batch has run.
    pub result: Result<(), DeviceError>,
    pub(crate) bounce: Option<Buffer>,
}

impl<'a> ReadInto<'a> {
    pub fn new(device: usize, offset: u64, buf: &'a mut [u8]) -> ReadInto<'a> {
        ReadInto { device, offset, buf, tag: 0, result: Err(DeviceError::NotRun), bounce: None }
    }
}

/// A write out of borrowed memory, one of a batch; made by [`WriteFrom::new`] and
/// [`WriteFrom::row`].
#[derive(Debug)]
pub struct WriteFrom<'a> {
    pub device: usize,
    pub offset: u64,
    row: Row<'a>,
    /// [`DeviceError::NotRun`] until the batch has run.
    pub result: Result<(), DeviceError>,
    pub(crate) bounce: Option<Buffer>,
}

/// Pieces of memory that are written one behind the other.
#[derive(Clone, Copy, Debug)]
enum Row<'a> {
    One([&'a [u8]; 1]),
    Many(&'a [&'a [u8]]),
}

impl<'a> WriteFrom<'a> {
    pub fn new(device: usize, offset: u64, buf: &'a [u8]) -> WriteFrom<'a> {
        Self::of(device, offset, Row::One([buf]))
    }

    /// Several pieces, as one write.
    pub fn row(device: usize, offset: u64, row: &'a [&'a [u8]]) -> WriteFrom<'a> {
        Self::of(device, offset, Row::Many(row))
    }

    fn of(device: usize, offset: u64, row: Row<'a>) -> WriteFrom<'a> {
        WriteFrom { device, offset, row, result: Err(DeviceError::NotRun), bounce: None }
    }

    pub fn pieces(&self) -> &[&'a [u8]] {
        match &self.row {
            Row::One(one) => one,
            Row::Many(row) => row,
        }
    }

    /// Of all pieces.
    pub fn bytes(&self) -> usize {
        self.pieces().iter().map(|piece| piece.len()).fold(0, usize::saturating_add)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[should_panic(expected = "request 7 was dropped before its completion")]
    #[cfg(debug_assertions)]
    fn dropping_an_uncompleted_request_shouts() {
        drop(Request::flush(0, 7));
    }

    #[test]
    fn an_abandoned_request_gives_its_memory_back() {
        assert_eq!(Request::read(0, 0, Buffer::zeroed(5), 1).abandon().bytes(), 5);
    }
}
