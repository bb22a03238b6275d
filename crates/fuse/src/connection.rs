//! The connection to the kernel: /dev/fuse, requests read from it and answers written to it.
//!
//! Every thread has a descriptor of its own on the connection, which the kernel then wakes one at
//! a time, and memory for one request and one answer.

use std::fs::OpenOptions;
use std::io::{self, IoSlice};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use butternut_sys::buffer::Buffer;
use butternut_sys::errno::Errno;
use butternut_sys::fuse_device;
use rustix::io::{read, writev};
use zerocopy::IntoBytes;

use crate::door::negotiation::TRANSFER_BYTES_MAX;
use crate::door::{Door, Wanted};
use crate::refusal::Answer;
use crate::reply::Reply;
use crate::request::Request;
use crate::wire::{InHeader, InvalidInodeOut, NOTIFY_INVAL_INODE, OutHeader, TransferIn};

const DEVICE: &str = "/dev/fuse";

/// Where a request begins in its memory, so that the data of a write begins on a page.
const REQUEST_AT: usize = 4096 - size_of::<InHeader>() - size_of::<TransferIn>();
/// A write of the largest size, or any other request.
const REQUEST_BYTES: usize = 4096 + TRANSFER_BYTES_MAX as usize;

/// A descriptor that is no connection yet.
pub(crate) fn open() -> io::Result<OwnedFd> {
    Ok(OpenOptions::new().read(true).write(true).open(DEVICE)?.into())
}

/// One thread's end of a connection.
pub(crate) struct Worker {
    device: Arc<OwnedFd>,
    memory: Buffer,
    reply: Reply,
}

/// What a look at the connection brought.
enum Read {
    Request(usize),
    /// One that was taken back.
    None,
    Unmounted,
}

impl Worker {
    pub(crate) fn new(device: OwnedFd) -> Self {
        let memory = Buffer::zeroed(REQUEST_AT + REQUEST_BYTES);
        let device = Arc::new(device);
        Self { device, memory, reply: Reply::new(TRANSFER_BYTES_MAX as usize) }
    }

    /// Another thread's end of the same connection.
    pub(crate) fn another(&self) -> io::Result<Self> {
        let device = open()?;
        match fuse_device::join(device.as_fd(), self.device.as_fd()) {
            Ok(()) => Ok(Self::new(device)),
            // Without descriptors of their own, threads share one.
            Err(Errno::INVALID) => Ok(Self::new(self.device.try_clone()?)),
            Err(errno) => Err(io::Error::from_raw_os_error(errno.0)),
        }
    }

    /// Answers the request that opens a connection; whether there was one.
    pub(crate) fn negotiate(&mut self, door: &Door) -> io::Result<bool> {
        self.serve_one(|request, reply| door.negotiate(request, reply).map(|()| Wanted::Reply))
    }

    /// Answers requests until the mount is gone.
    pub(crate) fn serve(&mut self, door: &Arc<Door>) -> io::Result<()> {
        while self.serve_one(|request, reply| door.serve(request, reply))? {}
        Ok(())
    }

    /// Answers one request; `false` when the mount is gone.
    fn serve_one(
        &mut self,
        answer: impl FnOnce(&mut Request<'_>, &mut Reply) -> Answer<Wanted>,
    ) -> io::Result<bool> {
        let bytes = match self.read()? {
            Read::Request(bytes) => bytes,
            Read::None => return Ok(true),
            Read::Unmounted => return Ok(false),
        };
        let memory = &self.memory[REQUEST_AT..REQUEST_AT + bytes];
        let Some(mut request) = Request::parse(memory, &self.device) else {
            return Err(io::Error::from(io::ErrorKind::InvalidData));
        };
        let unique = request.header.unique;
        self.reply.clear();
        let error = match answer(&mut request, &mut self.reply) {
            Ok(Wanted::Nothing) => return Ok(true),
            Ok(Wanted::Reply) => 0,
            Err(refusal) => {
                self.reply.clear();
                -refusal.0
            }
        };
        send(&self.device, error, unique, self.reply.bytes())
    }

    fn read(&mut self) -> io::Result<Read> {
        use rustix::io::Errno;
        match read(&self.device, &mut self.memory[REQUEST_AT..]) {
            Ok(bytes) => Ok(Read::Request(bytes)),
            Err(Errno::NOENT | Errno::INTR | Errno::AGAIN) => Ok(Read::None),
            Err(Errno::NODEV) => Ok(Read::Unmounted),
            Err(errno) => Err(errno.into()),
        }
    }
}

/// Sends an answer; `false` when the mount is gone.
fn send(device: &OwnedFd, error: i32, unique: u64, payload: &[u8]) -> io::Result<bool> {
    use rustix::io::Errno;
    let len = u32::try_from(size_of::<OutHeader>() + payload.len()).unwrap_or(u32::MAX);
    let header = OutHeader { len, error, unique };
    match writev(device, &[IoSlice::new(header.as_bytes()), IoSlice::new(payload)]) {
        // Whoever asked has gone.
        Ok(_) | Err(Errno::NOENT) => Ok(true),
        Err(Errno::NODEV) => Ok(false),
        Err(errno) => Err(errno.into()),
    }
}

/// Answers a request from another thread than the one that took it, on the descriptor that it came
/// from: the kernel looks for it nowhere else.
pub(crate) fn answer(device: &OwnedFd, unique: u64, answer: Answer<()>, reply: &Reply) {
    let (error, payload) = match answer {
        Ok(()) => (0, reply.bytes()),
        Err(refusal) => (-refusal.0, &[][..]),
    };
    // Without a connection nobody waits.
    send(device, error, unique, payload).map(drop).unwrap_or_default();
}

/// Has the kernel ask for the attributes of a file again.
pub(crate) fn invalidate_attributes(device: &OwnedFd, node: u64) {
    notify(device, &InvalidInodeOut { ino: node, off: -1, len: 0 });
}

/// Has the kernel send the pages of a file that were changed, and waits for that: others must be
/// there to take them.
pub(crate) fn write_pages_back(device: &OwnedFd, node: u64) {
    notify(device, &InvalidInodeOut { ino: node, off: 0, len: 0 });
}

/// A kernel that has forgotten the file has nothing to believe.
fn notify(device: &OwnedFd, what: &InvalidInodeOut) {
    send(device, NOTIFY_INVAL_INODE, 0, what.as_bytes()).map(drop).unwrap_or_default();
}
