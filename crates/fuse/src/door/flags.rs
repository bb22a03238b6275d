//! The flags that `chattr` changes and `lsattr` shows, by the calls that the kernel makes of them.
//!
//! Who may set which is the kernel's to know: it asks for the flags before it sets them.

use std::sync::Arc;

use butternut::{AttributeFlags, FileId};
use zerocopy::{Immutable, IntoBytes};

use crate::connection;
use crate::door::{Door, Wanted};
use crate::refusal::{Answer, Refusal};
use crate::reply::Reply;
use crate::request::Request;
use crate::wire::{FsXattr, IoctlIn, IoctlOut};

/// The calls, for programs of 64 and of 32 bits.
const GET_FLAGS: [u32; 2] = [0x8008_6601, 0x8004_6601];
const SET_FLAGS: [u32; 2] = [0x4008_6602, 0x4004_6602];
const GET_VERSION: [u32; 2] = [0x8008_7601, 0x8004_7601];
const GET_XFLAGS: u32 = 0x801c_581f;
const SET_XFLAGS: u32 = 0x401c_5820;

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
        if SET_FLAGS.contains(&call.cmd) {
            let flags = AttributeFlags(request.take()?);
            return self.set_flags(request, reply, flags);
        }
        self.answer_call(&call, request, reply).map(|()| Wanted::Reply)
    }

    /// Some flags are only for a file that holds nothing.
    fn set_flags(
        &self,
        request: &Request<'_>,
        reply: &mut Reply,
        flags: AttributeFlags,
    ) -> Answer<Wanted> {
        let id = self.node(request)?;
        if !self.handles.is_written(id) {
            self.filesystem.set_attribute_flags(id, flags)?;
            return self.flags_changed(request, reply).map(|()| Wanted::Reply);
        }
        let filesystem = self.filesystem.clone();
        let (device, node) = (Arc::clone(request.device), request.header.nodeid);
        self.answer_aside(request, size_of::<IoctlOut>(), move |reply| {
            filesystem.set_attribute_flags(id, flags)?;
            connection::invalidate_attributes(&device, node);
            reply.put(&IoctlOut::default())
        })
    }

    fn answer_call(
        &self,
        call: &IoctlIn,
        request: &mut Request<'_>,
        reply: &mut Reply,
    ) -> Answer<()> {
        let id = self.node(request)?;
        if GET_FLAGS.contains(&call.cmd) {
            return answer(reply, call, &self.filesystem.attribute_flags(id)?.0);
        }
        if GET_VERSION.contains(&call.cmd) {
            let generation = self.filesystem.stat(id)?.generation & u64::from(u32::MAX);
            return answer(reply, call, &u32::try_from(generation).unwrap_or(0));
        }
        match call.cmd {
            GET_XFLAGS => {
                let xflags = xflags(self.filesystem.attribute_flags(id)?);
                answer(reply, call, &FsXattr { xflags, ..FsXattr::default() })
            }
            SET_XFLAGS => {
                let set: FsXattr = request.take()?;
                self.set_xflags(id, &set)?;
                self.flags_changed(request, reply)
            }
            _ => Err(Refusal::NO_TTY_CALL),
        }
    }

    /// The change has a time, and the kernel does not know it.
    fn flags_changed(&self, request: &Request<'_>, reply: &mut Reply) -> Answer<()> {
        self.invalidate_attributes(request.header.nodeid);
        reply.put(&IoctlOut::default())
    }

    fn set_xflags(&self, id: FileId, set: &FsXattr) -> Answer<()> {
        let known = XFLAGS.iter().fold(0, |all, (_, xflag)| all | xflag);
        if set.xflags & !known != 0 || set.projid != 0 || set.extsize != 0 || set.cowextsize != 0 {
            return Err(Refusal::UNSUPPORTED);
        }
        let mut flags = self.filesystem.attribute_flags(id)?.0;
        for (flag, xflag) in XFLAGS {
            flags = if set.xflags & xflag != 0 { flags | flag.0 } else { flags & !flag.0 };
        }
        Ok(self.filesystem.set_attribute_flags(id, AttributeFlags(flags))?)
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
