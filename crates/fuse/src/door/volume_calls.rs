//! IOCTL calls about the whole volume: its label, discarding free space, and shutting it down.
//!
//! | call | who may | what |
//! |---|---|---|
//! | `FS_IOC_GETFSLABEL` | any caller | returns the label |
//! | `FS_IOC_SETFSLABEL` | `CAP_SYS_ADMIN` | sets the label, and commits it |
//! | `FITRIM` | `CAP_SYS_ADMIN` | discards free space |
//! | `FS_IOC_SHUTDOWN` | `CAP_SYS_ADMIN` | modes 0 and 1 commit first, mode 2 does not |
//!
//! 1. The capability is looked for before the arguments, as kernel btrfs does.
//! 2. After a shutdown nothing is written to the devices. Requests that end the mount or read
//!    attributes are still served; every other one is answered with `EIO`.
//! 3. A call that writes or waits for other requests runs on a thread of its own, so it takes no
//!    thread away from the requests that it waits for.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use zerocopy::IntoBytes;

use crate::caller;
use crate::connection;
use crate::door::{Door, Wanted};
use crate::refusal::{Answer, Refusal};
use crate::reply::Reply;
use crate::request::Request;
use crate::wire::{FsTrimRange, InHeader, IoctlIn, IoctlOut, op};

const GET_LABEL: u32 = 0x8100_9431;
const SET_LABEL: u32 = 0x4100_9432;
const TRIM: u32 = 0xc018_5879;
const SHUT_DOWN: u32 = 0x8004_587d;

/// The size of a label in these calls, in bytes, with the zero at its end.
const LABEL_BYTES: u32 = 256;
/// The shortest range that is trimmed, in bytes.
const SECTOR_BYTES: u64 = 4096;

/// The mode of a shutdown that leaves everything undone that is not committed.
const WITHOUT_COMMIT: u32 = 2;

impl Door {
    /// Answers a call about the volume; `None` for every other call.
    pub(super) fn volume_call(
        &self,
        call: &IoctlIn,
        request: &mut Request<'_>,
        reply: &mut Reply,
    ) -> Option<Answer<Wanted>> {
        Some(match call.cmd {
            GET_LABEL => self.label(reply).map(|()| Wanted::Reply),
            SET_LABEL => self.set_label(request),
            TRIM => self.trim(request),
            SHUT_DOWN => self.shut_down_as_asked(call, request, reply),
            _ => return None,
        })
    }

    /// Whether a request is answered after a shutdown (law 2).
    pub(super) fn is_served(&self, opcode: u32) -> bool {
        let ends_mount = matches!(
            opcode,
            op::FORGET
                | op::BATCH_FORGET
                | op::RELEASE
                | op::RELEASEDIR
                | op::INTERRUPT
                | op::NOTIFY_REPLY
                | op::DESTROY
                | op::STATFS
        );
        // `umount` opens the mount's root, and asks the mount for its process. The kernel reads
        // the mode of the root before it passes that on, where a change in the directory made it
        // forget.
        let reads_attributes =
            matches!(opcode, op::GETXATTR | op::GETATTR | op::STATX | op::OPENDIR);
        ends_mount || reads_attributes || !self.is_shut_down.load(Ordering::Acquire)
    }

    fn label(&self, reply: &mut Reply) -> Answer<()> {
        let mut label = self.filesystem.label();
        label.resize(usize::try_from(LABEL_BYTES).unwrap_or(0), 0);
        reply.put(&IoctlOut::default())?;
        reply.data(&label)
    }

    fn set_label(&self, request: &mut Request<'_>) -> Answer<Wanted> {
        must_administer(&request.header)?;
        let given = request.data(LABEL_BYTES)?;
        let end = given.iter().position(|byte| *byte == 0).ok_or(Refusal::INVALID)?;
        let label = given[..end].to_vec();
        let filesystem = self.filesystem.clone();
        // Programs such as blkid(8) look for the label on the device, as soon as the call returns.
        self.answer_on_thread(request, size_of::<IoctlOut>(), move |reply| {
            filesystem.set_label(&label)?;
            filesystem.sync()?;
            reply.put(&IoctlOut::default())
        })
    }

    fn trim(&self, request: &mut Request<'_>) -> Answer<Wanted> {
        must_administer(&request.header)?;
        let asked: FsTrimRange = request.take()?;
        // Kernel btrfs refuses one address as a start, the last there is.
        if asked.len < SECTOR_BYTES || asked.start == u64::MAX {
            return Err(Refusal::INVALID);
        }
        let filesystem = self.filesystem.clone();
        let bytes = size_of::<IoctlOut>() + size_of::<FsTrimRange>();
        self.answer_on_thread(request, bytes, move |reply| {
            let range = asked.start..asked.start.saturating_add(asked.len);
            let len = filesystem.trim_range(range, asked.minlen.max(SECTOR_BYTES))?;
            reply.put(&IoctlOut::default())?;
            reply.put(&FsTrimRange { len, ..asked })
        })
    }

    fn shut_down_as_asked(
        &self,
        call: &IoctlIn,
        request: &Request<'_>,
        reply: &mut Reply,
    ) -> Answer<Wanted> {
        must_administer(&request.header)?;
        let mode = read_word(request.header.pid, call.arg).ok_or(Refusal::FAULT)?;
        if mode > WITHOUT_COMMIT {
            return Err(Refusal::INVALID);
        }
        if mode == WITHOUT_COMMIT {
            self.filesystem.abandon();
            self.is_shut_down.store(true, Ordering::Release);
            return reply.put(&IoctlOut::default()).map(|()| Wanted::Reply);
        }
        let nodes: Vec<u64> =
            self.handles.written().into_iter().map(|id| self.nodes.number(id)).collect();
        let (device, filesystem) = (Arc::clone(request.device), self.filesystem.clone());
        let is_shut_down = Arc::clone(&self.is_shut_down);
        self.answer_on_thread(request, size_of::<IoctlOut>(), move |reply| {
            for node in nodes {
                connection::write_pages_back(&device, node);
            }
            filesystem.sync()?;
            filesystem.abandon();
            is_shut_down.store(true, Ordering::Release);
            reply.put(&IoctlOut::default())
        })
    }
}

/// Law 1.
fn must_administer(caller: &InHeader) -> Answer<()> {
    if caller::is_administrator(caller) { Ok(()) } else { Err(Refusal::NOT_PERMITTED) }
}

/// Reads the argument of a call that the kernel takes for an answer of ours, because of how its
/// number is made: it stays in the memory of the caller, which waits.
fn read_word(pid: u32, at: u64) -> Option<u32> {
    let memory = File::open(format!("/proc/{pid}/mem")).ok()?;
    let mut word = 0_u32;
    memory.read_exact_at(word.as_mut_bytes(), at).ok()?;
    Some(word)
}
