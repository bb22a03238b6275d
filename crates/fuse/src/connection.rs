//! The connection to the kernel: /dev/fuse, requests read from it and answers written to it.
//!
//! Every thread has a descriptor of its own on the connection, and memory for one request and one
//! answer. One of them waits for requests, and answers what is brief itself
//! ([`turn`](crate::turn)).

use std::fs::OpenOptions;
use std::io::{self, IoSlice};
use std::ops::Range;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use butternut_sys::buffer::Buffer;
use butternut_sys::errno::Errno;
use butternut_sys::fuse_device;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::{read, write, writev};
use zerocopy::IntoBytes;

use crate::door::negotiation::TRANSFER_BYTES_MAX;
use crate::door::{Door, Wanted};
use crate::near::{Callers, Near};
use crate::refusal::Answer;
use crate::reply::Reply;
use crate::request::{Class, Pace, Request};
use crate::share::{Kept, Shares};
use crate::turn::{Held, Turn};
use crate::wire::{
    InHeader, InvalidEntryOut, InvalidInodeOut, NOTIFY_INVAL_ENTRY, NOTIFY_INVAL_INODE, OutHeader,
    TransferIn,
};

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

/// How the turn of a thread ended.
enum Ended {
    /// It was taken away.
    Taken,
    /// It is another thread's, which need not wait for the answer to this.
    Given(Work),
    Unmounted,
}

/// A request that is to be answered.
enum Work {
    /// The one that was read, of this length.
    Read(usize),
    /// One that waited for its share, which is taken.
    Kept(Class, Kept),
}

impl Worker {
    pub(crate) fn new(device: OwnedFd) -> Self {
        let memory = Buffer::zeroed(REQUEST_AT + REQUEST_BYTES);
        let device = Arc::new(device);
        Self { device, memory, reply: Reply::new(TRANSFER_BYTES_MAX as usize) }
    }

    /// Another thread's end of the same connection.
    pub(crate) fn another(&self) -> io::Result<Self> {
        // Without descriptors of their own, threads share one: where the kernel cannot join them,
        // or this process may no longer open the device.
        let shared = || Ok(Self::new(self.device.try_clone()?));
        let device = match open() {
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => return shared(),
            opened => opened?,
        };
        match fuse_device::join(device.as_fd(), self.device.as_fd()) {
            Ok(()) => Ok(Self::new(device)),
            Err(Errno::INVALID) => shared(),
            Err(errno) => Err(io::Error::from_raw_os_error(errno.0)),
        }
    }

    /// Answers the request that opens a connection; whether there was one.
    pub(crate) fn negotiate(&mut self, door: &Door) -> io::Result<bool> {
        let Some(bytes) = self.wait()? else { return Ok(false) };
        self.answer_with(bytes, |request, reply| {
            door.negotiate(request, reply).map(|()| Wanted::Reply)
        })
    }

    /// Answers requests until the mount is gone, in turn with the other threads if there is one.
    pub(crate) fn serve(
        &mut self,
        door: &Arc<Door>,
        shares: &Shares,
        turn: Option<&(Turn, Callers)>,
    ) -> io::Result<()> {
        let mut near = Near::default();
        loop {
            let held = turn.and_then(|(turn, _)| turn.take());
            let ended = if let (Some(turn), Some(mut held)) = (turn, held) {
                // However this thread ends, it is another's turn then.
                let ended = self.serve_turn(door, shares, turn, &mut held, &mut near)?;
                drop(held);
                near.roam();
                ended
            } else {
                let Some(bytes) = self.wait()? else { return Ok(()) };
                if let Some((turn, _)) = turn
                    && self.is_rush(bytes, &mut near)?
                {
                    turn.rush();
                }
                Ended::Given(Work::Read(bytes))
            };
            match ended {
                Ended::Given(work) => {
                    if !self.answer_all(work, door, shares)? {
                        return Ok(());
                    }
                }
                Ended::Taken => {}
                Ended::Unmounted => return Ok(()),
            }
        }
    }

    /// Answers requests while they are brief and come one by one.
    fn serve_turn(
        &mut self,
        door: &Arc<Door>,
        shares: &Shares,
        (turn, callers): &(Turn, Callers),
        held: &mut Held<'_>,
        near: &mut Near,
    ) -> io::Result<Ended> {
        loop {
            let Some(bytes) = self.wait()? else { return Ok(Ended::Unmounted) };
            if self.is_rush(bytes, near)? {
                turn.rush();
                return Ok(Ended::Given(Work::Read(bytes)));
            }
            let request = parse(&self.memory, bytes, &self.device)?;
            match request.pace() {
                Pace::Long => return Ok(Ended::Given(Work::Read(bytes))),
                Pace::Brief => near.follow(callers, request.header.pid),
                Pace::Unwaited => {}
            }
            let Some(class) = self.take_share(bytes, shares)? else { continue };
            held.begin();
            if !self.answer(bytes, door)? {
                return Ok(Ended::Unmounted);
            }
            if let Some((class, kept)) = shares.leave(class) {
                return Ok(Ended::Given(Work::Kept(class, kept)));
            }
            if !held.end() {
                return Ok(Ended::Taken);
            }
        }
    }

    /// Whether requests come faster than one by one, with this one.
    fn is_rush(&self, bytes: usize, near: &mut Near) -> io::Result<bool> {
        let request = parse(&self.memory, bytes, &self.device)?;
        let is_waited_for = request.pace() != Pace::Unwaited;
        Ok(is_waited_for && (near.meets_many(request.header.pid) || is_pending(&self.device)))
    }

    /// Takes a share of the threads for the request that was read, and returns its class; `None`
    /// where the request waits for one.
    fn take_share(&self, bytes: usize, shares: &Shares) -> io::Result<Option<Class>> {
        let class = parse(&self.memory, bytes, &self.device)?.class();
        let keep = || {
            let mut memory = Buffer::zeroed(REQUEST_AT + bytes);
            let place = REQUEST_AT..REQUEST_AT + bytes;
            memory[place.clone()].copy_from_slice(&self.memory[place]);
            Kept { memory, bytes, device: Arc::clone(&self.device) }
        };
        Ok(shares.enter(class, bytes, keep).then_some(class))
    }

    /// Answers a request, if its share allows that, and then those that wait for a share; `false`
    /// when the mount is gone.
    fn answer_all(&mut self, work: Work, door: &Arc<Door>, shares: &Shares) -> io::Result<bool> {
        let mut class = match work {
            Work::Read(bytes) => {
                let Some(class) = self.take_share(bytes, shares)? else { return Ok(true) };
                if !self.answer(bytes, door)? {
                    return Ok(false);
                }
                class
            }
            Work::Kept(class, kept) => {
                if !self.answer_kept(&kept, door)? {
                    return Ok(false);
                }
                class
            }
        };
        while let Some((next, kept)) = shares.leave(class) {
            if !self.answer_kept(&kept, door)? {
                return Ok(false);
            }
            class = next;
        }
        Ok(true)
    }

    /// Answers the request that was read; `false` when the mount is gone.
    fn answer(&mut self, bytes: usize, door: &Arc<Door>) -> io::Result<bool> {
        self.answer_with(bytes, |request, reply| door.serve(request, reply))
    }

    /// As [`Worker::answer`], for a request that this thread or another one kept.
    fn answer_kept(&mut self, kept: &Kept, door: &Arc<Door>) -> io::Result<bool> {
        let mut request = parse(&kept.memory, kept.bytes, &kept.device)?;
        answered(&mut request, &mut self.reply, |request, reply| door.serve(request, reply))
    }

    fn answer_with(
        &mut self,
        bytes: usize,
        answer: impl FnOnce(&mut Request<'_>, &mut Reply) -> Answer<Wanted>,
    ) -> io::Result<bool> {
        let mut request = parse(&self.memory, bytes, &self.device)?;
        answered(&mut request, &mut self.reply, answer)
    }

    /// Waits for a request, and reads it; `None` when the mount is gone.
    fn wait(&mut self) -> io::Result<Option<usize>> {
        use rustix::io::Errno;
        loop {
            match read(&self.device, &mut self.memory[REQUEST_AT..]) {
                Ok(bytes) => return Ok(Some(bytes)),
                // One that was taken back.
                Err(Errno::NOENT | Errno::INTR | Errno::AGAIN) => {}
                Err(Errno::NODEV) => return Ok(None),
                Err(errno) => return Err(errno.into()),
            }
        }
    }
}

/// Answers a request on the descriptor that it came from; `false` when the mount is gone.
fn answered(
    request: &mut Request<'_>,
    reply: &mut Reply,
    answer: impl FnOnce(&mut Request<'_>, &mut Reply) -> Answer<Wanted>,
) -> io::Result<bool> {
    let (unique, device) = (request.header.unique, Arc::clone(request.device));
    reply.clear();
    let error = match answer(request, reply) {
        Ok(Wanted::Nothing) => return Ok(true),
        Ok(Wanted::Reply) => 0,
        Err(refusal) => {
            reply.clear();
            -refusal.0
        }
    };
    sent(write(&device, reply.message(error, unique)))
}

fn parse<'a>(
    memory: &'a Buffer,
    bytes: usize,
    device: &'a Arc<OwnedFd>,
) -> io::Result<Request<'a>> {
    let request = Request::parse(&memory[REQUEST_AT..REQUEST_AT + bytes], device);
    request.ok_or_else(|| io::Error::from(io::ErrorKind::InvalidData))
}

/// Whether more requests wait.
fn is_pending(device: &OwnedFd) -> bool {
    let mut asked = [PollFd::new(device, PollFlags::IN)];
    poll(&mut asked, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })) == Ok(1)
}

/// What became of an answer; `false` when the mount is gone.
fn sent(result: rustix::io::Result<usize>) -> io::Result<bool> {
    use rustix::io::Errno;
    match result {
        // Whoever asked has gone.
        Ok(_) | Err(Errno::NOENT) => Ok(true),
        Err(Errno::NODEV) => Ok(false),
        Err(errno) => Err(errno.into()),
    }
}

/// Answers a request from another thread than the one that took it, on the descriptor that it came
/// from: the kernel looks for it nowhere else.
pub(crate) fn answer(device: &OwnedFd, unique: u64, answer: Answer<()>, reply: &mut Reply) {
    let error = match answer {
        Ok(()) => 0,
        Err(refusal) => {
            reply.clear();
            -refusal.0
        }
    };
    // Without a connection nobody waits.
    sent(write(device, reply.message(error, unique))).map(drop).unwrap_or_default();
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

/// Has the kernel send and drop the pages of a range of a file, and waits for that: others must be
/// there to take them, and to fill those that are being filled.
pub(crate) fn drop_pages(device: &OwnedFd, node: u64, pages: &Range<u64>) {
    let off = i64::try_from(pages.start).unwrap_or(i64::MAX);
    // A length of 0 reaches to the end of the file.
    let len = i64::try_from(pages.end - pages.start).unwrap_or(0);
    notify(device, &InvalidInodeOut { ino: node, off, len });
}

/// Has the kernel look a name up again, and forget the file that it led to once that is not open.
/// This waits for the directory's lock in the kernel: other threads must be there to answer the
/// requests of its holder.
pub(crate) fn invalidate_entry(device: &OwnedFd, parent: u64, name: &[u8]) {
    let Ok(namelen) = u32::try_from(name.len()) else { return };
    let what = InvalidEntryOut { parent, namelen, flags: 0 };
    send(device, NOTIFY_INVAL_ENTRY, &[what.as_bytes(), name, b"\0"]);
}

fn notify(device: &OwnedFd, what: &InvalidInodeOut) {
    send(device, NOTIFY_INVAL_INODE, &[what.as_bytes()]);
}

/// Sends the kernel a notice. One that has forgotten what it is about has nothing to do.
fn send(device: &OwnedFd, code: i32, parts: &[&[u8]]) {
    let bytes = size_of::<OutHeader>() + parts.iter().map(|part| part.len()).sum::<usize>();
    let Ok(len) = u32::try_from(bytes) else { return };
    let header = OutHeader { len, error: code, unique: 0 };
    let mut message = vec![IoSlice::new(header.as_bytes())];
    message.extend(parts.iter().map(|part| IoSlice::new(part)));
    sent(writev(device, &message)).map(drop).unwrap_or_default();
}
