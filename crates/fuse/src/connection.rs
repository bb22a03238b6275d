//! The connection to the kernel: /dev/fuse, and what is written to it outside of a worker's own
//! replies.
//!
//! ```text
//! kernel  -- request -->         worker    (worker.rs reads; `request` parses)
//! worker  -- reply -->           kernel    (`reply` builds; or `send_reply`, from another thread)
//! process -- notification -->    kernel    FUSE_NOTIFY_INVAL_INODE, FUSE_NOTIFY_INVAL_ENTRY
//! ```
//!
//! 1. A reply goes to the descriptor that its request was read from: the kernel looks for the
//!    request only in the queue of that descriptor.
//! 2. A notification that invalidates pages waits for writeback, so the calling thread must not
//!    be the only one that can serve the WRITE requests.
//! 3. A notification that invalidates a name waits for the kernel's lock of the directory. Its
//!    holder may wait for the inode lock of a file in it. So no reply to a request for which the
//!    kernel holds an inode lock waits for such a notification without a limit.
//! 4. A thread that waits in a notification cannot be killed, and keeps the descriptors of the
//!    process open. So the end of the process does not end the connection, and the requests that
//!    the thread waits for are never answered. A process that ends before its mount aborts the
//!    connection ([`abort`]). One that waits for a lock of a directory cannot even be ended so:
//!    it has no part of the filesystem, which is closed meanwhile, and no descriptor of the process
//!    but that of the connection (`door::name_invalidations`).

pub(crate) mod abort;
pub(crate) mod mount_xattrs;
pub(crate) mod protocol;
pub(crate) mod reply;
pub(crate) mod request;

use std::fs::OpenOptions;
use std::io::{self, IoSlice};
use std::ops::Range;
use std::os::fd::{AsFd, OwnedFd};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::{retry_on_intr, write, writev};
use zerocopy::IntoBytes;

use crate::connection::protocol::{
    InvalidEntryOut, InvalidInodeOut, NOTIFY_INVAL_ENTRY, NOTIFY_INVAL_INODE, OutHeader,
};
use crate::connection::reply::Reply;
use crate::errno::ErrnoResult;
use crate::nodes::ROOT as ROOT_NODE;

const DEVICE: &str = "/dev/fuse";

/// Opens a descriptor that belongs to no connection yet.
pub(crate) fn open() -> io::Result<OwnedFd> {
    Ok(OpenOptions::new().read(true).write(true).open(DEVICE)?.into())
}

/// Returns whether the mount still exists, from the result of a write to its descriptor.
///
/// # Errors
/// The write failed for another reason than an interrupted request or an ended connection.
pub(crate) fn is_connected(result: rustix::io::Result<usize>) -> io::Result<bool> {
    use rustix::io::Errno;
    match result {
        // ENOENT: the caller was killed, and the kernel has dropped the request.
        Ok(_) | Err(Errno::NOENT) => Ok(true),
        Err(Errno::NODEV) => Ok(false),
        Err(errno) => Err(errno.into()),
    }
}

/// Returns whether the kernel still uses the connection. It ends the connection with the
/// superblock, or before that for a forced unmount or an abort, which leave mounts and open files
/// behind.
pub(crate) fn is_alive(device: impl AsFd) -> bool {
    let mut polled = [PollFd::new(&device, PollFlags::empty())];
    let answered = retry_on_intr(|| poll(&mut polled, Some(&Timespec::default())));
    answered.is_ok() && !polled[0].revents().contains(PollFlags::ERR)
}

/// Returns whether the superblock of the connection still exists, and so holds its block device.
/// After the end of the connection, the superblock lives on until its last mount is gone and the
/// last open file is closed. The kernel also accepts a notification then, and finds the root inode
/// that it names exactly until it begins to release the superblock.
pub(crate) fn has_superblock(device: impl AsFd) -> bool {
    is_alive(&device) || {
        let root = InvalidInodeOut { ino: ROOT_NODE, off: -1, len: 0 };
        let message = notification(NOTIFY_INVAL_INODE, size_of::<InvalidInodeOut>());
        let parts = [IoSlice::new(message.as_bytes()), IoSlice::new(root.as_bytes())];
        retry_on_intr(|| writev(&device, &parts)).is_ok()
    }
}

/// Sends a reply from another thread than the one that read the request (law 1).
pub(crate) fn send_reply(
    device: impl AsFd,
    unique: u64,
    result: ErrnoResult<()>,
    reply: &mut Reply,
) {
    let error = match result {
        Ok(()) => 0,
        Err(errno) => {
            reply.clear();
            -errno.0
        }
    };
    // Without a connection no caller waits for the reply.
    is_connected(write(device, reply.message(error, unique))).map(drop).unwrap_or_default();
}

/// Makes the kernel fetch the attributes of a file again.
pub(crate) fn invalidate_attributes(device: impl AsFd, node: u64) {
    notify_inode(device, &InvalidInodeOut { ino: node, off: -1, len: 0 });
}

/// Makes the kernel write back its dirty pages of a file and drop all pages of the file, and
/// waits until it has done so (law 2).
pub(crate) fn invalidate_pages(device: &OwnedFd, node: u64) {
    notify_inode(device, &InvalidInodeOut { ino: node, off: 0, len: 0 });
}

/// Makes the kernel write back and drop its pages of a byte range of a file, and waits until it
/// has done so. Other threads must be there to serve the WRITE requests, and the READ requests of
/// pages that the kernel has locked for reading.
pub(crate) fn invalidate_page_range(device: &OwnedFd, node: u64, pages: &Range<u64>) {
    let off = i64::try_from(pages.start).unwrap_or(i64::MAX);
    // A length of 0 reaches to the end of the file.
    let len = i64::try_from(pages.end - pages.start).unwrap_or(0);
    notify_inode(device, &InvalidInodeOut { ino: node, off, len });
}

/// Makes the kernel look a name up again, and forget the inode behind it once that is not open.
/// This waits for the kernel's lock of the directory, so other threads must be there to serve the
/// requests of the lock's holder (law 3).
pub(crate) fn invalidate_entry(device: impl AsFd, parent: u64, name: &[u8]) {
    let Ok(namelen) = u32::try_from(name.len()) else { return };
    let what = InvalidEntryOut { parent, namelen, flags: 0 };
    notify(device, NOTIFY_INVAL_ENTRY, &[what.as_bytes(), name, b"\0"]);
}

fn notify_inode(device: impl AsFd, what: &InvalidInodeOut) {
    notify(device, NOTIFY_INVAL_INODE, &[what.as_bytes()]);
}

/// Sends a notification. The error of a node or name that the kernel does not cache is ignored.
fn notify(device: impl AsFd, code: i32, parts: &[&[u8]]) {
    let header = notification(code, parts.iter().map(|part| part.len()).sum());
    let mut message = vec![IoSlice::new(header.as_bytes())];
    message.extend(parts.iter().map(|part| IoSlice::new(part)));
    is_connected(writev(&device, &message)).map(drop).unwrap_or_default();
}

/// Returns the header of a notification with `bytes` bytes after it. The kernel refuses a header
/// with another length than that of the message.
fn notification(code: i32, bytes: usize) -> OutHeader {
    let bytes = size_of::<OutHeader>().saturating_add(bytes);
    OutHeader { len: u32::try_from(bytes).unwrap_or(0), error: code, unique: 0 }
}
