//! IOCTL: inode flags, which `chattr` changes and `lsattr` shows.
//!
//! | call | check of the caller |
//! |---|---|
//! | `GET_FLAGS`, `GET_XFLAGS`, `GET_VERSION` | none: the caller could open the file |
//! | `SET_FLAGS`, `SET_XFLAGS` | the kernel's VFS since 5.13, and law 2 |
//!
//! 1. The VFS recognizes a call by its number, and checks the caller only of those that it
//!    recognizes. It passes every other number on unchecked, from any caller that can open the file
//!    for reading. So the door accepts a change only by exactly the number that the VFS recognizes.
//!    The 32-bit number of `SET_FLAGS` is not one; the kernel translates the calls of 32-bit
//!    programs.
//! 2. Every change checks its caller here as well. It needs the owner, user 0 or `CAP_FOWNER`; a
//!    change of immutable or append-only needs `CAP_LINUX_IMMUTABLE`.
//! 3. A change of flags changes the ctime of the inode. With write-back caching the kernel keeps
//!    the times in its own inode, so it is made to forget that inode: its name is invalidated, and
//!    looked up again once no program has the file open. The kernel unmounts what is mounted on a
//!    name that it forgets, and forgets the inode only with its last name. So the names of a file
//!    with several of them stay, and its ctime is shown late.
//! 4. The kernel holds the inode lock of the file until it has the reply. So a change that must
//!    wait for writeback is not queued (law 3 of `deferred`): above the limit of such changes of
//!    users it fails with `EAGAIN`. link(2), unlink(2) and
//!    rename(2) hold the lock of a directory while they wait for that lock, and the invalidation of
//!    a name waits for the lock of its directory. So a thread of its own invalidates the name, and
//!    the reply waits for it for at most [`FORGET_WAIT`]. An invalidation that has begun cannot be
//!    taken back: it is for the inode that has the name when it gets the lock, in the order of
//!    those that wait for it. There are at most [`FORGETTING_MAX`] such threads; without one the
//!    ctime is shown late.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::mpsc::channel;
use std::time::Duration;

use butternut::{AttributeFlags, FileId, FileKind, Filesystem};
use butternut_sys::private_fd_table;
use zerocopy::{Immutable, IntoBytes};

use crate::connection;
use crate::connection::protocol::{FsXattr, IoctlIn, IoctlOut};
use crate::connection::reply::Reply;
use crate::connection::request::Request;
use crate::door::deferred::ThreadSlot;
use crate::door::{Door, Outcome, caller};
use crate::errno::{Errno, ErrnoResult};
use crate::nodes::Nodes;

/// `FS_IOC_GETFLAGS` and `FS_IOC_SETFLAGS`, as the VFS recognizes them (law 1).
const GET_FLAGS: u32 = 0x8008_6601;
const SET_FLAGS: u32 = 0x4008_6602;
/// `FS_IOC_GETVERSION` of 64-bit and of 32-bit programs, which the VFS passes on.
const GET_VERSION: [u32; 2] = [0x8008_7601, 0x8004_7601];
const GET_XFLAGS: u32 = 0x801c_581f;
const SET_XFLAGS: u32 = 0x401c_5820;

/// Handles that belong to a change of flags: the program's, and one that the kernel opens for it.
const HANDLES_OF_CALL: usize = 2;
/// Maximum time for which a reply waits until the kernel has forgotten the name (law 4). If it
/// takes longer, the new ctime is shown later.
const FORGET_WAIT: Duration = Duration::from_millis(20);
/// Maximum number of threads that wait for the lock of a directory (law 4).
const FORGETTING_MAX: u64 = 64;

/// The flags that both kinds of calls have, and their bits in an xflags call.
const XFLAGS: [(AttributeFlags, u32); 5] = [
    (AttributeFlags::IMMUTABLE, 0x8),
    (AttributeFlags::APPEND, 0x10),
    (AttributeFlags::SYNC, 0x20),
    (AttributeFlags::NOATIME, 0x40),
    (AttributeFlags::NODUMP, 0x80),
];

impl Door {
    pub(super) fn ioctl(
        &self,
        request: &mut Request<'_>,
        reply: &mut Reply,
    ) -> ErrnoResult<Outcome> {
        let call: IoctlIn = request.take()?;
        if let Some(answer) = self.volume_call(&call, request, reply) {
            return answer;
        }
        if let Some(answer) = self.subvolume_call(&call, request, reply) {
            return answer;
        }
        if let Some(answer) = self.info_call(&call, request, reply) {
            return answer.map(|()| Outcome::Reply);
        }
        if let Some(answer) = self.search_call(&call, request) {
            return answer;
        }
        if let Some(answer) = self.subvolume_lookup(&call, request) {
            return answer;
        }
        if let Some(answer) = self.extent_call(&call, request) {
            return answer;
        }
        if let Some(answer) = self.defragment_call(&call, request) {
            return answer;
        }
        if let Some(answer) = self.verity_call(&call, request, reply) {
            return answer;
        }
        let id = self.node(request)?;
        let flags = match call.cmd {
            SET_FLAGS => AttributeFlags(request.take()?),
            SET_XFLAGS => self.with_xflags(id, &request.take()?)?,
            _ => return self.read_flags(&call, request, reply).map(|()| Outcome::Reply),
        };
        self.may_set_flags(request, id, flags)?;
        self.set_flags(request, reply, flags)
    }

    /// Checks the caller of a change (law 2).
    fn may_set_flags(
        &self,
        request: &Request<'_>,
        id: FileId,
        flags: AttributeFlags,
    ) -> ErrnoResult<()> {
        let was = self.filesystem.attribute_flags(id)?.0;
        let changed = was ^ flags.0;
        let is_guarded = changed & (AttributeFlags::IMMUTABLE.0 | AttributeFlags::APPEND.0) != 0;
        let owner = self.filesystem.stat(id)?.uid;
        if caller::may_set_flags(&request.header, owner, is_guarded) {
            return Ok(());
        }
        Err(Errno::EPERM)
    }

    /// Sets the flags of an inode. Some flags can be set only on an empty file, so the kernel
    /// writes back its pages first. Then applies law 3.
    fn set_flags(
        &self,
        request: &Request<'_>,
        reply: &mut Reply,
        flags: AttributeFlags,
    ) -> ErrnoResult<Outcome> {
        let id = self.node(request)?;
        let stat = self.filesystem.stat(id)?;
        let keeps_times = self.options.writes_back() && stat.kind == FileKind::File;
        if !keeps_times && !self.handles.is_open_for_write(id) {
            self.filesystem.set_attribute_flags(id, flags)?;
            self.invalidate_attributes(request.header.nodeid);
            reply.push(&IoctlOut::default())?;
            return Ok(Outcome::Reply);
        }
        let filesystem = self.filesystem.clone();
        let (device, node) = (Arc::clone(request.device), request.header.nodeid);
        let is_forgotten = keeps_times && self.handles.handle_count(id) <= HANDLES_OF_CALL;
        let (nodes, forgetting) = (Arc::clone(&self.nodes), Arc::clone(&self.forgetting_names));
        let counted = self.flag_changes.begin(self.counted_user(request)).ok_or(Errno::EAGAIN)?;
        self.reply_after_writeback(request, counted, size_of::<IoctlOut>(), move |reply| {
            filesystem.set_attribute_flags(id, flags)?;
            connection::invalidate_attributes(&device, node);
            // Afterwards: the file may have been renamed before.
            if is_forgotten && let Some(name) = only_name_of(&filesystem, &nodes, id) {
                forget_name(&device, name, &forgetting);
            }
            reply.push(&IoctlOut::default())
        })
    }

    fn read_flags(
        &self,
        call: &IoctlIn,
        request: &mut Request<'_>,
        reply: &mut Reply,
    ) -> ErrnoResult<()> {
        let id = self.node(request)?;
        if GET_VERSION.contains(&call.cmd) {
            let generation = self.filesystem.stat(id)?.generation & u64::from(u32::MAX);
            return reply_value(reply, call, &u32::try_from(generation).unwrap_or(0));
        }
        match call.cmd {
            GET_FLAGS => reply_value(reply, call, &self.filesystem.attribute_flags(id)?.0),
            GET_XFLAGS => {
                let xflags = xflags(self.filesystem.attribute_flags(id)?);
                reply_value(reply, call, &FsXattr { xflags, ..FsXattr::default() })
            }
            _ => Err(Errno::ENOTTY),
        }
    }

    /// Returns all flags of a file, with those of an xflags call changed.
    fn with_xflags(&self, id: FileId, set: &FsXattr) -> ErrnoResult<AttributeFlags> {
        let all_known = XFLAGS.iter().fold(0, |all, (_, xflag)| all | xflag);
        if set.xflags & !all_known != 0
            || set.projid != 0
            || set.extsize != 0
            || set.cowextsize != 0
        {
            return Err(Errno::EOPNOTSUPP);
        }
        let mut flags = self.filesystem.attribute_flags(id)?.0;
        for (flag, xflag) in XFLAGS {
            flags = if set.xflags & xflag != 0 { flags | flag.0 } else { flags & !flag.0 };
        }
        Ok(AttributeFlags(flags))
    }
}

/// Returns the name of a file that has one, with the node id of its directory.
fn only_name_of(filesystem: &Filesystem, nodes: &Nodes, id: FileId) -> Option<(u64, Vec<u8>)> {
    // Where the name cannot be read, the flags are set and the ctime is shown late.
    let names = filesystem.names_of(id, 2).unwrap_or_default();
    let [(dir, name)] = <[_; 1]>::try_from(names).ok()?;
    Some((nodes.node_id(dir), name))
}

/// Makes the kernel forget the name of a file, and waits for that for a limited time (law 4).
fn forget_name(device: &OwnedFd, name: (u64, Vec<u8>), forgetting: &Arc<AtomicU64>) {
    let Some(slot) = ThreadSlot::begin(forgetting, FORGETTING_MAX) else { return };
    let (working, forgotten) = channel::<()>();
    let run = move |device: BorrowedFd<'_>| {
        connection::invalidate_entry(device, name.0, &name.1);
        drop((working, slot));
    };
    // Without a thread, the ctime is shown late.
    if private_fd_table::spawn("butternut-names", device.as_fd(), run).is_ok() {
        forgotten.recv_timeout(FORGET_WAIT).unwrap_or_default();
    }
}

fn xflags(flags: AttributeFlags) -> u32 {
    let set = XFLAGS.iter().filter(|(flag, _)| flags.contains(*flag));
    set.fold(0, |all, (_, xflag)| all | xflag)
}

/// Replies with as many bytes of a value as the caller has room for.
fn reply_value<T: IntoBytes + Immutable>(
    reply: &mut Reply,
    call: &IoctlIn,
    value: &T,
) -> ErrnoResult<()> {
    reply.push(&IoctlOut::default())?;
    let bytes_max = usize::try_from(call.out_size).unwrap_or(usize::MAX);
    let bytes = value.as_bytes();
    reply.push_bytes(&bytes[..bytes.len().min(bytes_max)])
}
