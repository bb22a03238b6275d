//! Worker threads: each reads requests from /dev/fuse, serves them and writes the replies.
//!
//! ```text
//! leader   -- read(2) --> short: serves it, reads again
//!                     \-> long, or more requests are queued: gives up leadership, then serves it
//! follower -- waits in `Leadership::acquire` until it becomes the leader
//! ```
//!
//! 1. Every worker has its own descriptor of the connection, and memory for one request and one
//!    reply. Descriptors are shared where the kernel cannot clone them or this process may no
//!    longer open /dev/fuse.
//! 2. Only the leader reads requests ([`leader`]). While requests arrive in a burst, and on a
//!    mount with `all_wait`, every worker reads.
//! 3. A request is served only within the limit of its class; otherwise it is queued, and a worker
//!    that finishes another request serves it ([`thread_limits`]).

pub(crate) mod cpu_affinity;
pub(crate) mod leader;
pub(crate) mod thread_limits;

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use butternut_sys::buffer::Buffer;
use butternut_sys::fuse_device;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::{read, write};

use crate::connection;
use crate::connection::protocol::{InHeader, TransferIn};
use crate::connection::reply::Reply;
use crate::connection::request::{Class, Latency, Request};
use crate::door::negotiation::TRANSFER_BYTES_MAX;
use crate::door::{Door, Outcome};
use crate::errno::ErrnoResult;
use crate::worker::cpu_affinity::{CallerTracker, CpuAffinity};
use crate::worker::leader::{Leader, Leadership};
use crate::worker::thread_limits::{QueuedRequest, ThreadLimits};

/// Offset of a request in its memory, chosen so that the data of a WRITE is page-aligned.
const REQUEST_AT: usize = 4096 - size_of::<InHeader>() - size_of::<TransferIn>();
/// Bytes of the largest request, a WRITE of the largest size.
const REQUEST_BYTES: usize = 4096 + TRANSFER_BYTES_MAX as usize;

/// The state of one worker thread.
pub(crate) struct Worker {
    device: Arc<OwnedFd>,
    memory: Buffer,
    reply: Reply,
}

/// How a thread's time as the leader ended.
enum LeadershipEnd {
    /// The monitor took the leadership over while this thread served a request.
    TakenOver,
    /// The thread gave it up, so that another thread reads while this one serves the request.
    GivenUp(Work),
    Unmounted,
}

/// A request that a worker is to serve.
enum Work {
    /// The request in the worker's memory, with its length in bytes.
    Read(usize),
    /// A request that was queued. It is counted in the limit of its class already.
    Queued(Class, QueuedRequest),
}

impl Worker {
    pub(crate) fn new(device: OwnedFd) -> Self {
        let memory = Buffer::zeroed(REQUEST_AT + REQUEST_BYTES);
        let device = Arc::new(device);
        Self { device, memory, reply: Reply::new(TRANSFER_BYTES_MAX as usize) }
    }

    /// Returns a worker for another thread of the same connection (law 1).
    pub(crate) fn another(&self) -> io::Result<Self> {
        let shared = || Ok(Self::new(self.device.try_clone()?));
        let device = match connection::open() {
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => return shared(),
            opened => opened?,
        };
        match fuse_device::join(device.as_fd(), self.device.as_fd()) {
            Ok(()) => Ok(Self::new(device)),
            Err(butternut_sys::errno::Errno::INVALID) => shared(),
            Err(errno) => Err(io::Error::from_raw_os_error(errno.0)),
        }
    }

    /// Answers INIT, the first request of a connection. Returns `false` where the mount was gone
    /// before it.
    pub(crate) fn negotiate(&mut self, door: &Door) -> io::Result<bool> {
        let Some(bytes) = self.read_request()? else { return Ok(false) };
        self.serve_with(bytes, |request, reply| {
            door.negotiate(request, reply).map(|()| Outcome::Reply)
        })
    }

    /// Serves requests until the mount is gone. With `leadership`, only the leader reads (law 2).
    pub(crate) fn run(
        &mut self,
        door: &Arc<Door>,
        limits: &ThreadLimits,
        leadership: Option<&(Leadership, CallerTracker)>,
    ) -> io::Result<()> {
        let mut affinity = CpuAffinity::default();
        loop {
            let leader = leadership.and_then(|(leadership, _)| leadership.acquire());
            let end = if let (Some(leadership), Some(mut leader)) = (leadership, leader) {
                let end = self.lead(door, limits, leadership, &mut leader, &mut affinity)?;
                // Also dropped where `lead` fails, so that another thread becomes the leader.
                drop(leader);
                affinity.unpin();
                end
            } else {
                let Some(bytes) = self.read_request()? else { return Ok(()) };
                if let Some((leadership, _)) = leadership
                    && self.is_burst(bytes, &mut affinity)?
                {
                    leadership.start_burst();
                }
                LeadershipEnd::GivenUp(Work::Read(bytes))
            };
            match end {
                LeadershipEnd::GivenUp(work) => {
                    if !self.serve_all(work, door, limits)? {
                        return Ok(());
                    }
                }
                LeadershipEnd::TakenOver => {}
                LeadershipEnd::Unmounted => return Ok(()),
            }
        }
    }

    /// Reads and serves requests as the leader, while they are short and arrive one at a time.
    fn lead(
        &mut self,
        door: &Arc<Door>,
        limits: &ThreadLimits,
        (leadership, callers): &(Leadership, CallerTracker),
        leader: &mut Leader<'_>,
        affinity: &mut CpuAffinity,
    ) -> io::Result<LeadershipEnd> {
        loop {
            let Some(bytes) = self.read_request()? else { return Ok(LeadershipEnd::Unmounted) };
            if self.is_burst(bytes, affinity)? {
                leadership.start_burst();
                return Ok(LeadershipEnd::GivenUp(Work::Read(bytes)));
            }
            let request = parse(&self.memory, bytes, &self.device)?;
            match request.latency() {
                Latency::Long => return Ok(LeadershipEnd::GivenUp(Work::Read(bytes))),
                Latency::Short => affinity.follow_caller(callers, request.header.pid),
                Latency::NoWaiter => {}
            }
            let Some(class) = self.admit(bytes, limits)? else { continue };
            leader.begin_request();
            if !self.serve(bytes, door)? {
                return Ok(LeadershipEnd::Unmounted);
            }
            if let Some((class, queued)) = limits.finish(class) {
                return Ok(LeadershipEnd::GivenUp(Work::Queued(class, queued)));
            }
            if !leader.end_request() {
                return Ok(LeadershipEnd::TakenOver);
            }
        }
    }

    /// Returns whether requests, with this one, arrive faster than one thread serves them.
    fn is_burst(&self, bytes: usize, affinity: &mut CpuAffinity) -> io::Result<bool> {
        let request = parse(&self.memory, bytes, &self.device)?;
        let has_waiter = request.latency() != Latency::NoWaiter;
        Ok(has_waiter
            && (affinity.has_many_callers(request.header.pid) || has_request(&self.device)))
    }

    /// Admits the request that was read, and returns its class. Returns `None` where the limit of
    /// its class is reached: the request is queued.
    fn admit(&mut self, bytes: usize, limits: &ThreadLimits) -> io::Result<Option<Class>> {
        let class = parse(&self.memory, bytes, &self.device)?.class();
        let queued = || {
            let mut memory = Buffer::zeroed(REQUEST_AT + bytes);
            let range = REQUEST_AT..REQUEST_AT + bytes;
            memory[range.clone()].copy_from_slice(&self.memory[range]);
            QueuedRequest { memory, bytes, device: Arc::clone(&self.device) }
        };
        Ok(limits.admit(class, bytes, queued).then_some(class))
    }

    /// Serves a request, if the limit of its class allows that, and then every queued request that
    /// its end admits. Returns `false` when the mount is gone.
    fn serve_all(
        &mut self,
        work: Work,
        door: &Arc<Door>,
        limits: &ThreadLimits,
    ) -> io::Result<bool> {
        let mut class = match work {
            Work::Read(bytes) => {
                let Some(class) = self.admit(bytes, limits)? else { return Ok(true) };
                if !self.serve(bytes, door)? {
                    return Ok(false);
                }
                class
            }
            Work::Queued(class, queued) => {
                if !self.serve_queued(&queued, door)? {
                    return Ok(false);
                }
                class
            }
        };
        while let Some((next, queued)) = limits.finish(class) {
            if !self.serve_queued(&queued, door)? {
                return Ok(false);
            }
            class = next;
        }
        Ok(true)
    }

    /// Serves the request in this worker's memory. Returns `false` when the mount is gone.
    fn serve(&mut self, bytes: usize, door: &Arc<Door>) -> io::Result<bool> {
        self.serve_with(bytes, |request, reply| door.serve(request, reply))
    }

    /// Serves a request that this thread or another one queued. Returns `false` when the mount is
    /// gone.
    fn serve_queued(&mut self, queued: &QueuedRequest, door: &Arc<Door>) -> io::Result<bool> {
        let mut request = parse(&queued.memory, queued.bytes, &queued.device)?;
        reply_to(&mut request, &mut self.reply, |request, reply| door.serve(request, reply))
    }

    fn serve_with(
        &mut self,
        bytes: usize,
        serve: impl FnOnce(&mut Request<'_>, &mut Reply) -> ErrnoResult<Outcome>,
    ) -> io::Result<bool> {
        let mut request = parse(&self.memory, bytes, &self.device)?;
        reply_to(&mut request, &mut self.reply, serve)
    }

    /// Waits for a request, reads it and returns its length in bytes; `None` when the mount is
    /// gone.
    fn read_request(&mut self) -> io::Result<Option<usize>> {
        use rustix::io::Errno;
        loop {
            match read(&self.device, &mut self.memory[REQUEST_AT..]) {
                Ok(bytes) => return Ok(Some(bytes)),
                // ENOENT: the caller was killed before the request was read.
                Err(Errno::NOENT | Errno::INTR | Errno::AGAIN) => {}
                Err(Errno::NODEV) => return Ok(None),
                Err(errno) => return Err(errno.into()),
            }
        }
    }
}

/// Serves a request and writes its reply to the descriptor that it was read from. Returns `false`
/// when the mount is gone.
fn reply_to(
    request: &mut Request<'_>,
    reply: &mut Reply,
    serve: impl FnOnce(&mut Request<'_>, &mut Reply) -> ErrnoResult<Outcome>,
) -> io::Result<bool> {
    let (unique, device) = (request.header.unique, Arc::clone(request.device));
    reply.clear();
    let error = match serve(request, reply) {
        Ok(Outcome::NoReply) => return Ok(true),
        Ok(Outcome::Reply) => 0,
        Err(errno) => {
            reply.clear();
            -errno.0
        }
    };
    connection::is_connected(write(&device, reply.message(error, unique)))
}

fn parse<'a>(
    memory: &'a Buffer,
    bytes: usize,
    device: &'a Arc<OwnedFd>,
) -> io::Result<Request<'a>> {
    let request = Request::parse(&memory[REQUEST_AT..REQUEST_AT + bytes], device);
    request.ok_or_else(|| io::Error::from(io::ErrorKind::InvalidData))
}

/// Returns whether the kernel has another request to read.
fn has_request(device: &OwnedFd) -> bool {
    let mut polled = [PollFd::new(device, PollFlags::IN)];
    poll(&mut polled, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })) == Ok(1)
}
