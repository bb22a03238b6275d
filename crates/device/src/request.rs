//! Requests and their completions.
//!
//! A [`Request`] owns its memory, is submitted to a queue pair once, and becomes one
//! [`Completion`]. A request that is dropped without being submitted or released by
//! [`Request::abandon`] is a bug; the drop panics in debug builds.
//!
//! [`ReadInto`] and [`WriteFrom`] borrow their memory instead. One blocking call runs a batch of
//! them.

use crate::error::DeviceError;
use butternut_sys::buffer::Buffer;
use butternut_sys::buffers::Load;

/// An operation on one device of the queue pair, with its memory.
#[derive(Debug)]
pub struct Request {
    pub(crate) header: RequestHeader,
    /// Empty for flush and discard.
    pub(crate) load: Load,
    is_pending: bool,
}

/// A request without its memory: the user data of the request in the ring.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RequestHeader {
    pub(crate) device: usize,
    pub(crate) tag: u64,
    pub(crate) offset: u64,
    pub(crate) bytes: u64,
    pub(crate) kind: RequestKind,
}

/// What a request does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RequestKind {
    Read,
    Write,
    Flush,
    Discard,
}

/// The completion of a request: its tag, its memory and its result.
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
    /// Makes a request that fills the buffer's whole length from `offset`.
    pub fn read(device: usize, offset: u64, buffer: Buffer, tag: u64) -> Request {
        Request::new(device, RequestKind::Read, offset, buffer.len() as u64, buffer.into(), tag)
    }

    /// Makes a request that writes one or several buffers contiguously, as one transfer.
    pub fn write(device: usize, offset: u64, load: impl Into<Load>, tag: u64) -> Request {
        let load = load.into();
        Request::new(device, RequestKind::Write, offset, load.bytes() as u64, load, tag)
    }

    /// Makes a flush, which covers the writes that completed before it was submitted, and no
    /// others.
    pub fn flush(device: usize, tag: u64) -> Request {
        Request::new(device, RequestKind::Flush, 0, 0, Load::default(), tag)
    }

    /// Makes a request that declares a range unused (TRIM).
    pub fn discard(device: usize, offset: u64, bytes: u64, tag: u64) -> Request {
        Request::new(device, RequestKind::Discard, offset, bytes, Load::default(), tag)
    }

    /// Drops the request without submitting it, and returns its memory.
    pub fn abandon(mut self) -> Load {
        self.is_pending = false;
        std::mem::take(&mut self.load)
    }

    /// Returns the caller's tag.
    pub fn tag(&self) -> u64 {
        self.header.tag
    }

    pub(crate) fn complete(mut self, result: Result<(), DeviceError>) -> Completion {
        self.is_pending = false;
        self.header.complete(std::mem::take(&mut self.load), result)
    }

    /// Splits the request. The caller must see that it is completed.
    pub(crate) fn into_parts(mut self) -> (RequestHeader, Load) {
        self.is_pending = false;
        (self.header, std::mem::take(&mut self.load))
    }

    pub(crate) fn from_parts(header: RequestHeader, load: Load) -> Request {
        Request { header, load, is_pending: true }
    }

    fn new(
        device: usize,
        kind: RequestKind,
        offset: u64,
        bytes: u64,
        load: Load,
        tag: u64,
    ) -> Request {
        Request::from_parts(RequestHeader { device, tag, offset, bytes, kind }, load)
    }
}

impl RequestHeader {
    pub(crate) fn complete(self, load: Load, result: Result<(), DeviceError>) -> Completion {
        let RequestHeader { device, tag, offset, bytes, kind } = self;
        Completion { tag, device, kind, offset, bytes, load, result }
    }

    /// Returns the length of the memory in bytes.
    pub(crate) fn len(self) -> usize {
        usize::try_from(self.bytes).expect("it is the length of memory")
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

/// A read into borrowed memory, one of a batch.
#[derive(Debug)]
pub struct ReadInto<'a> {
    pub device: usize,
    pub offset: u64,
    pub buf: &'a mut [u8],
    /// The caller's tag; not used here.
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

/// A write from borrowed memory, one of a batch, made by [`WriteFrom::new`] or
/// [`WriteFrom::vectored`].
#[derive(Debug)]
pub struct WriteFrom<'a> {
    pub device: usize,
    pub offset: u64,
    slices: Slices<'a>,
    /// The write completes when it is on the medium. Whether that makes earlier writes durable,
    /// too, [`WriteCache::durable_write_flushes`](crate::WriteCache) tells.
    pub is_durable: bool,
    /// [`DeviceError::NotRun`] until the batch has run.
    pub result: Result<(), DeviceError>,
    pub(crate) bounce: Option<Buffer>,
}

/// Slices of memory that are written contiguously.
#[derive(Clone, Copy, Debug)]
enum Slices<'a> {
    One([&'a [u8]; 1]),
    Many(&'a [&'a [u8]]),
}

impl<'a> WriteFrom<'a> {
    pub fn new(device: usize, offset: u64, buf: &'a [u8]) -> WriteFrom<'a> {
        Self::of(device, offset, Slices::One([buf]))
    }

    /// Makes a write of several slices, as one write.
    pub fn vectored(device: usize, offset: u64, slices: &'a [&'a [u8]]) -> WriteFrom<'a> {
        Self::of(device, offset, Slices::Many(slices))
    }

    fn of(device: usize, offset: u64, slices: Slices<'a>) -> WriteFrom<'a> {
        let (is_durable, result) = (false, Err(DeviceError::NotRun));
        WriteFrom { device, offset, slices, is_durable, result, bounce: None }
    }

    pub fn slices(&self) -> &[&'a [u8]] {
        match &self.slices {
            Slices::One(one) => one,
            Slices::Many(slices) => slices,
        }
    }

    /// Returns the length of all slices in bytes.
    pub fn bytes(&self) -> usize {
        self.slices().iter().map(|slice| slice.len()).fold(0, usize::saturating_add)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[should_panic(expected = "request 7 was dropped before its completion")]
    #[cfg(debug_assertions)]
    fn dropping_an_uncompleted_request_panics() {
        drop(Request::flush(0, 7));
    }

    #[test]
    fn abandon_returns_the_memory() {
        assert_eq!(Request::read(0, 0, Buffer::zeroed(5), 1).abandon().bytes(), 5);
    }
}
