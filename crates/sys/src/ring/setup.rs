//! Creates a ring.
//!
//! 1. Flags that only make a ring cheaper are tried first and dropped one by one, newest first:
//!    `NO_SQARRAY` (Linux 6.6), `COOP_TASKRUN` (5.19, not if the ring is to be prompt),
//!    `SUBMIT_ALL` (5.18).
//! 2. Required are: reads, writes and fsync by opcode (5.6), waiting with a timeout (5.11), and a
//!    completion queue that never drops completions (5.5). A kernel without them is reported as
//!    unavailable, like one whose administrator or seccomp filter forbids rings.
//! 3. A ring must complete one empty request before it is used.
//! 4. Disks and arenas are registered if the kernel allows it (locked memory is limited for
//!    ordinary users), and disks if all of them may be ([`OpenDisk::may_register`]). Without
//!    registration everything works, but slower.
//! 5. The registrations are removed before the ring is closed: the kernel destroys a ring in the
//!    background, and would otherwise keep exclusively opened disks open after the descriptors are
//!    closed.

use super::{RING_DEPTH_MAX, Ring, Slot};
use crate::arena::Arena;
use crate::errno::Errno;
use crate::event::Event;
use crate::file::DiskFile;
#[cfg(doc)]
use crate::file::OpenDisk;
use io_uring::{IoUring, Probe, opcode, squeue};
use std::collections::VecDeque;
use std::ops::Range;
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};
use std::sync::Arc;

/// How to create a ring.
#[derive(Clone, Debug, Default)]
pub struct RingOptions {
    /// Maximum number of requests of each kind, owned and borrowed, in flight.
    pub depth: usize,
    /// Memory to register. Transfers into it skip the kernel's page lookup. All of its pages stay
    /// pinned, and therefore resident, as long as the ring exists.
    pub arenas: Vec<Arena>,
    /// Whether the kernel interrupts the submitting thread to complete its requests, so that
    /// another thread can wait for them. If not, the kernel completes them when that thread next
    /// enters the kernel, at the latest at the next timer tick (`COOP_TASKRUN`): this costs less,
    /// and makes no difference where the submitting thread itself waits.
    pub is_prompt: bool,
    /// Signalled by the kernel at each completion.
    pub event: Option<Arc<Event>>,
}

/// Why no ring could be created.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RingUnavailable {
    #[error("the kernel has no io_uring")]
    Absent,
    #[error("io_uring is forbidden to this process")]
    Forbidden,
    #[error("the kernel's io_uring is too old: it has no {missing}")]
    TooOld { missing: &'static str },
    #[error("cannot create an io_uring")]
    Failed(#[source] Errno),
}

/// The registered disks and memory.
pub(super) struct Table {
    files: Vec<OwnedFd>,
    files_are_registered: bool,
    buffers: Vec<Range<usize>>,
    /// Keeps the registered memory mapped.
    _arenas: Vec<Arena>,
}

impl<T> Ring<T> {
    /// Creates a ring over these disks. The index of a disk in `files` is its number in requests.
    ///
    /// # Errors
    /// The kernel refuses a ring, or lacks a required feature (law 2).
    pub fn new(files: &[&DiskFile], options: &RingOptions) -> Result<Ring<T>, RingUnavailable> {
        let depth = options.depth.clamp(1, RING_DEPTH_MAX);
        let entries = u32::try_from(depth.next_power_of_two()).expect("at most 4096");
        let uring = build(entries, options.is_prompt)?;
        check_features(&uring)?;
        let table = Table::register(&uring, files, &options.arenas)?;
        let slots = 2 * depth;
        let count = u32::try_from(slots).expect("at most 8192");
        let mut ring = Ring {
            uring,
            table,
            depth,
            slots: (0..slots).map(|_| Slot::empty()).collect(),
            free: (0..count).rev().collect(),
            queued: VecDeque::with_capacity(slots),
            resubmit: Vec::with_capacity(slots),
            reaped: VecDeque::with_capacity(2 * slots),
            done: VecDeque::with_capacity(depth),
            vectors: Vec::new(),
            owned: 0,
            borrowed: 0,
            broken: None,
        };
        ring.test_request()?;
        if let Some(event) = &options.event {
            let fd = event.as_fd().as_raw_fd();
            let registered = ring.uring.submitter().register_eventfd(fd);
            registered.map_err(|error| RingUnavailable::Failed(Errno::from(&error)))?;
        }
        Ok(ring)
    }

    /// Runs one empty request (law 3).
    fn test_request(&mut self) -> Result<(), RingUnavailable> {
        let entry = opcode::Nop::new().build();
        // SAFETY: an empty request refers to no memory.
        unsafe { self.uring.submission().push(&entry) }.expect("the queue is empty");
        while let Err(error) = self.uring.submit_and_wait(1) {
            if Errno::from(&error) != Errno::INTERRUPTED {
                return Err(refused(Errno::from(error)));
            }
        }
        match self.uring.completion().next().map(|entry| entry.result()) {
            Some(0) => Ok(()),
            Some(answer) => Err(RingUnavailable::Failed(Errno(answer.saturating_neg()))),
            None => Err(RingUnavailable::Failed(Errno::IO)),
        }
    }
}

impl Table {
    fn register(
        uring: &IoUring,
        files: &[&DiskFile],
        arenas: &[Arena],
    ) -> Result<Table, RingUnavailable> {
        let may_register = files.iter().all(|file| file.may_register());
        let own = |file: &&DiskFile| file.as_fd().try_clone_to_owned();
        let files: Result<Vec<OwnedFd>, _> = files.iter().map(own).collect();
        let files = files.map_err(|error| RingUnavailable::Failed(error.into()))?;
        let numbers: Vec<RawFd> = files.iter().map(AsRawFd::as_raw_fd).collect();
        let files_are_registered =
            may_register && uring.submitter().register_files(&numbers).is_ok();
        let memory = |arena: &Arena| libc::iovec {
            iov_base: arena.start().as_ptr().cast(),
            iov_len: arena.bytes(),
        };
        let vectors: Vec<libc::iovec> = arenas.iter().map(memory).collect();
        // SAFETY: the table keeps the arenas, so their memory stays mapped until the table is
        // dropped, and the kernel's registration ends before that (law 5).
        let registered =
            !arenas.is_empty() && unsafe { uring.submitter().register_buffers(&vectors) }.is_ok();
        let range = |arena: &Arena| {
            let start = arena.start().as_ptr().addr();
            start..start + arena.bytes()
        };
        let buffers = if registered { arenas.iter().map(range).collect() } else { Vec::new() };
        Ok(Table { files, files_are_registered, buffers, _arenas: arenas.to_vec() })
    }

    pub(super) fn unregister(&self, uring: &IoUring) {
        // After a failure the kernel removes the registration when it destroys the ring.
        if self.files_are_registered {
            uring.submitter().unregister_files().ok();
        }
        if !self.buffers.is_empty() {
            uring.submitter().unregister_buffers().ok();
        }
    }

    /// Returns what identifies the disk in a request: its registered index, or its descriptor.
    pub(super) fn target(&self, file: u32) -> RawFd {
        if self.files_are_registered {
            RawFd::try_from(file).unwrap_or(-1)
        } else {
            self.descriptor(file)
        }
    }

    /// Returns the descriptor of the disk.
    pub(super) fn descriptor(&self, file: u32) -> RawFd {
        self.files.get(file as usize).map_or(-1, AsRawFd::as_raw_fd)
    }

    pub(super) fn entry_flags(&self) -> squeue::Flags {
        if self.files_are_registered { squeue::Flags::FIXED_FILE } else { squeue::Flags::empty() }
    }

    /// Returns the index of the registered buffer that contains all of this memory.
    pub(super) fn buffer_index(&self, start: usize, bytes: usize) -> Option<u16> {
        let holds = |range: &Range<usize>| range.start <= start && start + bytes <= range.end;
        let index = self.buffers.iter().position(holds)?;
        u16::try_from(index).ok()
    }
}

fn build(entries: u32, is_prompt: bool) -> Result<IoUring, RingUnavailable> {
    let mut last = Errno::INVALID;
    for drop in 0..4 {
        let mut builder = IoUring::builder();
        builder.dontfork();
        if drop < 3 {
            builder.setup_submit_all();
        }
        if drop < 2 && !is_prompt {
            builder.setup_coop_taskrun();
        }
        if drop < 1 {
            builder.setup_no_sqarray();
        }
        // One entry for each completion of both kinds of requests.
        builder.setup_cqsize(entries * 2);
        match builder.build(entries) {
            Ok(uring) => return Ok(uring),
            Err(error) => last = error.into(),
        }
        if last != Errno::INVALID {
            break;
        }
    }
    Err(refused(last))
}

fn check_features(uring: &IoUring) -> Result<(), RingUnavailable> {
    let params = uring.params();
    let need = |there: bool, missing| {
        if there { Ok(()) } else { Err(RingUnavailable::TooOld { missing }) }
    };
    need(params.is_feature_nodrop(), "safe completion queue")?;
    need(params.is_feature_ext_arg(), "waiting with a timeout")?;
    let mut probe = Probe::new();
    let probed = uring.submitter().register_probe(&mut probe);
    need(probed.is_ok(), "list of operations")?;
    need(probe.is_supported(opcode::Read::CODE), "read")?;
    need(probe.is_supported(opcode::Write::CODE), "write")?;
    need(probe.is_supported(opcode::ReadFixed::CODE), "read into registered memory")?;
    need(probe.is_supported(opcode::WriteFixed::CODE), "write from registered memory")?;
    need(probe.is_supported(opcode::Writev::CODE), "write from several buffers")?;
    need(probe.is_supported(opcode::Fsync::CODE), "fsync")
}

fn refused(errno: Errno) -> RingUnavailable {
    match errno {
        Errno(libc::ENOSYS) => RingUnavailable::Absent,
        Errno(libc::EPERM | libc::EACCES) => RingUnavailable::Forbidden,
        errno => RingUnavailable::Failed(errno),
    }
}
