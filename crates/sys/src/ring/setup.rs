//! Asking the kernel for a ring.
//!
//! 1. Flags that only make a ring cheaper are tried first and given up one by one, newest first:
//!    `NO_SQARRAY` (Linux 6.6), `COOP_TASKRUN` (5.19, not if the ring is to be prompt),
//!    `SUBMIT_ALL` (5.18).
//! 2. What is required: reads, writes and fsync by opcode (5.6), waiting with a timeout (5.11), and
//!    that no completion is ever dropped (5.5). A kernel without them is a refusal, like one whose
//!    administrator or seccomp filter forbids rings.
//! 3. A ring is tried with one empty request before it is believed in.
//! 4. Disks and arenas are registered if the kernel allows it (locked memory is limited for
//!    ordinary users); without, all works the same, slower.
//! 5. The registrations end before the ring does: the kernel tears a ring down in the background,
//!    and would keep exclusive disks open for a while after our descriptors are closed.

use super::{RING_DEPTH_MAX, Ring, Slot};
use crate::arena::Arena;
use crate::errno::Errno;
use crate::file::DiskFile;
use io_uring::{IoUring, Probe, opcode, squeue};
use std::collections::VecDeque;
use std::ops::Range;
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};

#[derive(Clone, Debug, Default)]
pub struct RingOptions {
    /// How many requests of each sort, owned and borrowed, may be in flight.
    pub depth: usize,
    /// Memory to register: transfers into it skip the kernel's page look-up. All of its pages stay
    /// pinned, hence resident, as long as the ring lives.
    pub arenas: Vec<Arena>,
    /// The kernel interrupts the thread that submitted to complete its requests, which another
    /// thread may wait for. Otherwise it waits until that thread enters the kernel, for the next
    /// tick of its timer at the latest: cheaper, and no different where the thread itself waits.
    pub is_prompt: bool,
}

/// Why there is no ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RingRefused {
    #[error("the kernel has no io_uring")]
    Absent,
    #[error("io_uring is forbidden here")]
    Forbidden,
    #[error("the kernel's io_uring is too old: no {missing}")]
    TooOld { missing: &'static str },
    #[error("io_uring does not start")]
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
    /// A ring over these disks, whose numbers are their places in `files`.
    pub fn new(files: &[&DiskFile], options: &RingOptions) -> Result<Ring<T>, RingRefused> {
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
            again: Vec::with_capacity(slots),
            reaped: VecDeque::with_capacity(2 * slots),
            done: VecDeque::with_capacity(depth),
            vectors: Vec::new(),
            owned: 0,
            borrowed: 0,
            broken: None,
        };
        ring.try_one()?;
        Ok(ring)
    }

    /// Law 3.
    fn try_one(&mut self) -> Result<(), RingRefused> {
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
            Some(answer) => Err(RingRefused::Failed(Errno(answer.saturating_neg()))),
            None => Err(RingRefused::Failed(Errno::IO)),
        }
    }
}

impl Table {
    fn register(
        uring: &IoUring,
        files: &[&DiskFile],
        arenas: &[Arena],
    ) -> Result<Table, RingRefused> {
        let own = |file: &&DiskFile| file.as_fd().try_clone_to_owned();
        let files: Result<Vec<OwnedFd>, _> = files.iter().map(own).collect();
        let files = files.map_err(|error| RingRefused::Failed(error.into()))?;
        let numbers: Vec<RawFd> = files.iter().map(AsRawFd::as_raw_fd).collect();
        let files_are_registered = uring.submitter().register_files(&numbers).is_ok();
        let memory = |arena: &Arena| libc::iovec {
            iov_base: arena.start().as_ptr().cast(),
            iov_len: arena.bytes(),
        };
        let vectors: Vec<libc::iovec> = arenas.iter().map(memory).collect();
        // SAFETY: the arenas' memory stays mapped until the table is gone, which the kernel's
        // registration does not outlive (law 5), and the arenas are kept with the table.
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
        // A refusal means that the kernel will do it in its own time.
        if self.files_are_registered {
            uring.submitter().unregister_files().ok();
        }
        if !self.buffers.is_empty() {
            uring.submitter().unregister_buffers().ok();
        }
    }

    /// What names the disk in a request: its registered number, or its descriptor.
    pub(super) fn target(&self, file: u32) -> RawFd {
        if self.files_are_registered {
            RawFd::try_from(file).unwrap_or(-1)
        } else {
            self.files.get(file as usize).map_or(-1, AsRawFd::as_raw_fd)
        }
    }

    pub(super) fn entry_flags(&self) -> squeue::Flags {
        if self.files_are_registered { squeue::Flags::FIXED_FILE } else { squeue::Flags::empty() }
    }

    /// The registered buffer that holds all of this memory.
    pub(super) fn buffer_index(&self, start: usize, bytes: usize) -> Option<u16> {
        let holds = |range: &Range<usize>| range.start <= start && start + bytes <= range.end;
        let index = self.buffers.iter().position(holds)?;
        u16::try_from(index).ok()
    }
}

fn build(entries: u32, is_prompt: bool) -> Result<IoUring, RingRefused> {
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
        // Room for the completions of both sorts of request.
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

fn check_features(uring: &IoUring) -> Result<(), RingRefused> {
    let params = uring.params();
    let need = |there: bool, missing| {
        if there { Ok(()) } else { Err(RingRefused::TooOld { missing }) }
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

fn refused(errno: Errno) -> RingRefused {
    match errno {
        Errno(libc::ENOSYS) => RingRefused::Absent,
        Errno(libc::EPERM | libc::EACCES) => RingRefused::Forbidden,
        errno => RingRefused::Failed(errno),
    }
}
