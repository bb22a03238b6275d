//! IOCTL: calls about the whole volume, which are label, trim and shutdown.
//!
//! | call | caller | effect |
//! |---|---|---|
//! | `FS_IOC_GETFSLABEL` | any caller | returns the label |
//! | `FS_IOC_SETFSLABEL` | `CAP_SYS_ADMIN`, a writable mount | sets the label, and commits it |
//! | `FITRIM` | `CAP_SYS_ADMIN` | discards free space |
//! | `FS_IOC_SHUTDOWN` | `CAP_SYS_ADMIN` | modes 0 and 1 commit first, mode 2 does not |
//!
//! 1. The capability is checked before the arguments, as in kernel btrfs.
//! 2. After a shutdown nothing is written to the devices. Requests that end the mount or read
//!    attributes are still served; every other one fails with `EIO`, also a sync that the shutdown
//!    overtakes. [`SYNC_XATTR`](crate::SYNC_XATTR) tells of the shutdown.
//! 3. A call that writes or waits for other requests gets a deferred reply, so it occupies no
//!    worker that those requests need.
//! 4. A shutdown that commits first returns `EIO` where the kernel has lost writes that it had
//!    cached, of any user. The volume is shut down all the same: the losses are final.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use zerocopy::IntoBytes;

use crate::connection::protocol::{FsTrimRange, InHeader, IoctlIn, IoctlOut, op};
use crate::connection::reply::Reply;
use crate::connection::request::Request;
use crate::door::{Door, Outcome, caller};
use crate::errno::{Errno, ErrnoResult};

const GET_LABEL: u32 = 0x8100_9431;
const SET_LABEL: u32 = 0x4100_9432;
const TRIM: u32 = 0xc018_5879;
const SHUT_DOWN: u32 = 0x8004_587d;

/// Size of a label in these calls, in bytes, with its final zero byte.
const LABEL_BYTES: u32 = 256;
/// Minimum length of a range to trim, in bytes.
const SECTOR_BYTES: u64 = 4096;

/// The mode of a shutdown that discards what is not committed.
const WITHOUT_COMMIT: u32 = 2;

impl Door {
    /// Serves a call about the volume. Returns `None` for every other call.
    pub(super) fn volume_call(
        &self,
        call: &IoctlIn,
        request: &mut Request<'_>,
        reply: &mut Reply,
    ) -> Option<ErrnoResult<Outcome>> {
        Some(match call.cmd {
            GET_LABEL => self.label(reply).map(|()| Outcome::Reply),
            SET_LABEL => self.set_label(request),
            TRIM => self.trim(request),
            SHUT_DOWN => self.shut_down(call, request, reply),
            _ => return None,
        })
    }

    /// Returns whether a request is still served after a shutdown (law 2).
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
        // `umount` opens the root of the mount and reads the xattr with the process id. The kernel
        // fetches the mode of the root before that if a change in the directory has invalidated it.
        let reads_attributes =
            matches!(opcode, op::GETXATTR | op::GETATTR | op::STATX | op::OPENDIR);
        ends_mount || reads_attributes || !self.is_shut_down()
    }

    pub(super) fn is_shut_down(&self) -> bool {
        self.is_shut_down.load(Ordering::Acquire)
    }

    fn label(&self, reply: &mut Reply) -> ErrnoResult<()> {
        let mut label = self.filesystem.label();
        label.resize(usize::try_from(LABEL_BYTES).unwrap_or(0), 0);
        reply.push(&IoctlOut::default())?;
        reply.push_bytes(&label)
    }

    fn set_label(&self, request: &mut Request<'_>) -> ErrnoResult<Outcome> {
        check_administrator(&request.header)?;
        let bytes = request.data(LABEL_BYTES)?;
        let end = bytes.iter().position(|byte| *byte == 0).ok_or(Errno::EINVAL)?;
        let label = bytes[..end].to_vec();
        let (caller, filesystem) = (self.checked_caller(request), self.filesystem.clone());
        // Programs such as blkid(8) read the label from the device as soon as the call returns.
        self.reply_deferred(request, size_of::<IoctlOut>(), move |reply| {
            caller.may_change()?;
            filesystem.set_label(&label)?;
            filesystem.sync()?;
            reply.push(&IoctlOut::default())
        })
    }

    fn trim(&self, request: &mut Request<'_>) -> ErrnoResult<Outcome> {
        check_administrator(&request.header)?;
        let range_in: FsTrimRange = request.take()?;
        // Kernel btrfs refuses exactly one start, the last address.
        if range_in.len < SECTOR_BYTES || range_in.start == u64::MAX {
            return Err(Errno::EINVAL);
        }
        let filesystem = self.filesystem.clone();
        let bytes = size_of::<IoctlOut>() + size_of::<FsTrimRange>();
        self.reply_deferred(request, bytes, move |reply| {
            let range = range_in.start..range_in.start.saturating_add(range_in.len);
            let len = filesystem.trim_range(range, range_in.minlen.max(SECTOR_BYTES))?;
            reply.push(&IoctlOut::default())?;
            reply.push(&FsTrimRange { len, ..range_in })
        })
    }

    fn shut_down(
        &self,
        call: &IoctlIn,
        request: &Request<'_>,
        reply: &mut Reply,
    ) -> ErrnoResult<Outcome> {
        check_administrator(&request.header)?;
        let mut mode = 0_u32;
        // The number of the call says that it returns data, so the kernel does not copy its
        // argument.
        caller::read_memory(request.header.pid, call.arg, mode.as_mut_bytes())
            .ok_or(Errno::EFAULT)?;
        if mode > WITHOUT_COMMIT {
            return Err(Errno::EINVAL);
        }
        if mode == WITHOUT_COMMIT {
            // Before the rest is discarded: a sync that commits nothing must fail.
            self.is_shut_down.store(true, Ordering::Release);
            self.filesystem.abandon();
            return reply.push(&IoctlOut::default()).map(|()| Outcome::Reply);
        }
        let (unsent, losses) = (self.unsent_files_at_end(), self.lost_writes.watch());
        let (device, filesystem) = (Arc::clone(request.device), self.filesystem.clone());
        let is_shut_down = Arc::clone(&self.is_shut_down);
        self.reply_deferred(request, size_of::<IoctlOut>(), move |reply| {
            // A loss keeps no volume from being shut down (law 4).
            unsent.all().send(&device);
            let sent = losses.check();
            let synced = filesystem.sync();
            is_shut_down.store(true, Ordering::Release);
            filesystem.abandon();
            sent?;
            synced?;
            reply.push(&IoctlOut::default())
        })
    }
}

/// Checks the capability of law 1.
fn check_administrator(caller: &InHeader) -> ErrnoResult<()> {
    if caller::is_administrator(caller) { Ok(()) } else { Err(Errno::EPERM) }
}
