//! IOCTL: the flags that `chattr` changes and `lsattr` shows.
//!
//! | call | what checks its caller |
//! |---|---|
//! | `GET_FLAGS`, `GET_XFLAGS`, `GET_VERSION` | nothing: a caller that opened the file may |
//! | `SET_FLAGS`, `SET_XFLAGS` | the kernel's VFS since 5.13, and law 2 |
//!
//! 1. The kernel's VFS implements a call by its number, and checks the caller only then. Any other
//!    number goes through unchecked, from any caller that can open the file for reading. So a call
//!    that changes something is accepted by exactly the number that the VFS handles: the 32-bit
//!    number of `SET_FLAGS` is not one (the kernel translates the calls of 32-bit programs).
//! 2. Every call that changes something checks its caller here as well: changes need the owner,
//!    user 0 or `CAP_FOWNER`; immutable and append-only need user 0 or `CAP_LINUX_IMMUTABLE`.
//! 3. A change of flags changes the inode's ctime. Where the kernel writes back, it takes the times
//!    of a file from its own inode only. So it is made to forget that inode: the names of the file
//!    are looked up again, once no program has it open.

use std::sync::Arc;

use butternut::{AttributeFlags, FileId, FileKind};
use zerocopy::{Immutable, IntoBytes};

use crate::caller;
use crate::connection;
use crate::door::{Door, Wanted};
use crate::refusal::{Answer, Refusal};
use crate::reply::Reply;
use crate::request::Request;
use crate::wire::{FsXattr, IoctlIn, IoctlOut};

/// The calls by number: `FS_IOC_GETFLAGS` and `FS_IOC_SETFLAGS` as the VFS handles them (law 1).
const GET_FLAGS: u32 = 0x8008_6601;
const SET_FLAGS: u32 = 0x4008_6602;
/// `FS_IOC_GETVERSION`, which the VFS passes on, for programs of 64 and of 32 bits.
const GET_VERSION: [u32; 2] = [0x8008_7601, 0x8004_7601];
const GET_XFLAGS: u32 = 0x801c_581f;
const SET_XFLAGS: u32 = 0x401c_5820;

/// Open files that belong to a change of flags: the program's, and one that the kernel opens for
/// it.
const HANDLES_OF_CALL: usize = 2;
/// Names that the kernel is made to look up again; the ctime of a file with more of them is shown
/// late.
const NAMES_MAX: usize = 64;

/// The flags that both kinds of call know, and what they are in the second.
const XFLAGS: [(AttributeFlags, u32); 5] = [
    (AttributeFlags::IMMUTABLE, 0x8),
    (AttributeFlags::APPEND, 0x10),
    (AttributeFlags::SYNC, 0x20),
    (AttributeFlags::NOATIME, 0x40),
    (AttributeFlags::NODUMP, 0x80),
];

impl Door {
    pub(super) fn ioctl(&self, request: &mut Request<'_>, reply: &mut Reply) -> Answer<Wanted> {
        let call: IoctlIn = request.take()?;
        if let Some(answer) = self.volume_call(&call, request, reply) {
            return answer;
        }
        let id = self.node(request)?;
        let flags = match call.cmd {
            SET_FLAGS => AttributeFlags(request.take()?),
            SET_XFLAGS => self.with_xflags(id, &request.take()?)?,
            _ => return self.answer_call(&call, request, reply).map(|()| Wanted::Reply),
        };
        self.may_set_flags(request, id, flags)?;
        self.set_flags(request, reply, flags)
    }

    /// Law 2.
    fn may_set_flags(
        &self,
        request: &Request<'_>,
        id: FileId,
        flags: AttributeFlags,
    ) -> Answer<()> {
        let was = self.filesystem.attribute_flags(id)?.0;
        let changed = was ^ flags.0;
        let is_guarded = changed & (AttributeFlags::IMMUTABLE.0 | AttributeFlags::APPEND.0) != 0;
        let owner = self.filesystem.stat(id)?.uid;
        if caller::may_set_flags(&request.header, owner, is_guarded) {
            return Ok(());
        }
        Err(Refusal::NOT_PERMITTED)
    }

    /// Some flags are only for a file that holds nothing, so the kernel sends what it holds back
    /// first. Law 3.
    fn set_flags(
        &self,
        request: &Request<'_>,
        reply: &mut Reply,
        flags: AttributeFlags,
    ) -> Answer<Wanted> {
        let id = self.node(request)?;
        let stat = self.filesystem.stat(id)?;
        let keeps_times = self.manner.writes_back() && stat.kind == FileKind::File;
        if !keeps_times && !self.handles.is_written(id) {
            self.filesystem.set_attribute_flags(id, flags)?;
            self.invalidate_attributes(request.header.nodeid);
            reply.put(&IoctlOut::default())?;
            return Ok(Wanted::Reply);
        }
        let filesystem = self.filesystem.clone();
        let (device, node) = (Arc::clone(request.device), request.header.nodeid);
        let names = if keeps_times && self.handles.count(id) <= HANDLES_OF_CALL {
            self.names_of(id)
        } else {
            Vec::new()
        };
        self.answer_aside(request, size_of::<IoctlOut>(), move |reply| {
            filesystem.set_attribute_flags(id, flags)?;
            connection::invalidate_attributes(&device, node);
            for (parent, name) in &names {
                connection::invalidate_entry(&device, *parent, name);
            }
            reply.put(&IoctlOut::default())
        })
    }

    /// The names of a file, with the numbers of their directories.
    fn names_of(&self, id: FileId) -> Vec<(u64, Vec<u8>)> {
        // Without its names the file is changed all the same.
        let names = self.filesystem.names_of(id, NAMES_MAX).unwrap_or_default();
        names.into_iter().map(|(dir, name)| (self.nodes.number(dir), name)).collect()
    }

    fn answer_call(
        &self,
        call: &IoctlIn,
        request: &mut Request<'_>,
        reply: &mut Reply,
    ) -> Answer<()> {
        let id = self.node(request)?;
        if GET_VERSION.contains(&call.cmd) {
            let generation = self.filesystem.stat(id)?.generation & u64::from(u32::MAX);
            return answer(reply, call, &u32::try_from(generation).unwrap_or(0));
        }
        match call.cmd {
            GET_FLAGS => answer(reply, call, &self.filesystem.attribute_flags(id)?.0),
            GET_XFLAGS => {
                let xflags = xflags(self.filesystem.attribute_flags(id)?);
                answer(reply, call, &FsXattr { xflags, ..FsXattr::default() })
            }
            _ => Err(Refusal::NO_TTY_CALL),
        }
    }

    /// All flags, with what a call of the second kind makes of those that it knows.
    fn with_xflags(&self, id: FileId, set: &FsXattr) -> Answer<AttributeFlags> {
        let known = XFLAGS.iter().fold(0, |all, (_, xflag)| all | xflag);
        if set.xflags & !known != 0 || set.projid != 0 || set.extsize != 0 || set.cowextsize != 0 {
            return Err(Refusal::UNSUPPORTED);
        }
        let mut flags = self.filesystem.attribute_flags(id)?.0;
        for (flag, xflag) in XFLAGS {
            flags = if set.xflags & xflag != 0 { flags | flag.0 } else { flags & !flag.0 };
        }
        Ok(AttributeFlags(flags))
    }
}

fn xflags(flags: AttributeFlags) -> u32 {
    let shown = XFLAGS.iter().filter(|(flag, _)| flags.contains(*flag));
    shown.fold(0, |all, (_, xflag)| all | xflag)
}

/// Answers with as much of a value as the caller has room for.
fn answer<T: IntoBytes + Immutable>(reply: &mut Reply, call: &IoctlIn, value: &T) -> Answer<()> {
    reply.put(&IoctlOut::default())?;
    let room = usize::try_from(call.out_size).unwrap_or(usize::MAX);
    let bytes = value.as_bytes();
    reply.data(&bytes[..bytes.len().min(room)])
}
