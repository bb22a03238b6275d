//! IOCTL: defragmentation of files, by the calls of the kernel's btrfs.
//!
//! | call | effect |
//! |---|---|
//! | `DEFRAG` | defragments a file, with the kernel's defaults |
//! | `DEFRAG_RANGE` | defragments a range, and compresses it if requested |
//! | `DEFRAG_RANGE`, sized | as above; returns what was done, and may break sharing |
//!
//! 1. The VFS checks nothing for these calls. As in kernel btrfs, a caller needs no descriptor that
//!    is open for writing, so that a program that runs can be defragmented. It needs the permission
//!    to write to the file, or is an administrator; otherwise the call fails with `EPERM`. Through
//!    a read-only mount it fails with `EROFS`, and so in a read-only subvolume.
//! 2. A directory is refused: the kernel defragments a tree then, and a tree here is none the worse
//!    for its order.
//! 3. Unlike the kernel, the calls leave extents alone that are shared, unless a sized call breaks
//!    sharing ([`defragment_calls`](butternut_sys::defragment_calls)).
//!    Since btrfs-progs refuses a FUSE mount before it makes a call, other programs make these.
//! 4. The calls read and write much, so their replies are deferred. Writes that the kernel has
//!    cached and not sent are sent first. Its pages stay valid: no byte changes. They may take
//!    hours, so few of users run at a time (`user_calls`), and each ends after its current part, or
//!    in its examination, when its caller is interrupted or the mount ends.

use std::sync::Arc;

use butternut::server::FilesystemExt;
use butternut::{
    AttributeFlags, Compression, Compressor, DefragmentOptions, Defragmented, FileKind,
    SharedExtents,
};
use butternut_sys::defragment_calls::{
    BREAK_SHARING, COMPRESS, COMPRESS_LEVEL, DEFRAGMENT_FILE, DEFRAGMENT_RANGE, SIZED_DEFRAGMENT,
    START_IO,
};

use crate::connection::protocol::{DefragmentDone, DefragmentRange, IoctlIn, IoctlOut};
use crate::connection::request::Request;
use crate::door::{Door, Outcome};
use crate::errno::{Errno, ErrnoResult};

const WRITE: u16 = 0o2;

impl Door {
    /// Serves a call that defragments. Returns `None` for every other call.
    pub(super) fn defragment_call(
        &self,
        call: &IoctlIn,
        request: &mut Request<'_>,
    ) -> Option<ErrnoResult<Outcome>> {
        Some(match call.cmd {
            DEFRAGMENT_FILE => {
                let options = DefragmentOptions::default();
                self.defragment(request, move || Ok(options), None)
            }
            DEFRAGMENT_RANGE => {
                let range = request.take::<DefragmentRange>();
                self.defragment(request, move || options(&range?), None)
            }
            SIZED_DEFRAGMENT => self.defragment_sized(request),
            _ => return None,
        })
    }

    fn defragment_sized(&self, request: &mut Request<'_>) -> ErrnoResult<Outcome> {
        let range: DefragmentRange = request.take()?;
        let shared = match range.unused[0] {
            0 => SharedExtents::Keep,
            BREAK_SHARING => SharedExtents::Break,
            _ => return Err(Errno::EINVAL),
        };
        self.defragment(request, move || Ok(options(&range)?.shared(shared)), Some(range))
    }

    /// Checks the caller, then the arguments, and defragments. A sized call returns its arguments
    /// and what was done.
    fn defragment(
        &self,
        request: &Request<'_>,
        options: impl FnOnce() -> ErrnoResult<DefragmentOptions>,
        sized: Option<DefragmentRange>,
    ) -> ErrnoResult<Outcome> {
        let id = self.node(request)?;
        self.filesystem.check_writable(id)?;
        let caller = self.checked_caller(request);
        match self.filesystem.stat(id)?.kind {
            FileKind::File => {}
            // Law 2.
            FileKind::Directory if caller.is_administrator => return Err(Errno::EOPNOTSUPP),
            FileKind::Directory => return Err(Errno::EPERM),
            FileKind::Symlink
            | FileKind::CharDevice
            | FileKind::BlockDevice
            | FileKind::Fifo
            | FileKind::Socket => return Err(Errno::EINVAL),
        }
        if !caller.is_administrator {
            let flags = self.filesystem.attribute_flags(id)?;
            let may_write = self.may_access(&request.header, id, WRITE).is_ok();
            if !may_write || flags.contains(AttributeFlags::IMMUTABLE) {
                return Err(Errno::EPERM);
            }
        }
        let options = options()?;
        let filesystem = self.filesystem.clone();
        let unsent = self.unsent_files().file(id);
        let device = Arc::clone(request.device);
        let returned =
            sized.map_or(0, |_| size_of::<DefragmentRange>() + size_of::<DefragmentDone>());
        let bytes = size_of::<IoctlOut>() + returned;
        let (interrupts, unique) = (self.interrupts.clone(), request.header.unique);
        // Law 4.
        self.reply_deferred_within(&self.defragmentations, request, bytes, move |reply| {
            let waiting = interrupts.begin(unique);
            caller.may_change()?;
            unsent.map_or(Ok(()), |file| file.write_back(&device))?;
            let file = filesystem.open_file(id)?;
            let done = file.defragment_while(&options, &|| waiting.goes_on())?;
            if !waiting.goes_on() {
                return Err(Errno::EINTR);
            }
            reply.push(&IoctlOut::default())?;
            let Some(range) = sized else { return Ok(()) };
            reply.push(&range)?;
            reply.push(&described(&done))
        })
    }
}

/// Returns what a range means.
fn options(range: &DefragmentRange) -> ErrnoResult<DefragmentOptions> {
    if range.flags & !(COMPRESS | COMPRESS_LEVEL | START_IO) != 0 {
        return Err(Errno::EOPNOTSUPP);
    }
    let compressor = if range.flags & COMPRESS == 0 { None } else { Some(compressor(range)?) };
    // As in the kernel, nothing means the rest of the file.
    let end = if range.len == 0 { u64::MAX } else { range.start.saturating_add(range.len) };
    Ok(DefragmentOptions::default()
        .range(range.start..end)
        .threshold(range.extent_thresh.into())
        .compressor(compressor))
}

/// Returns the algorithm of a range, as the kernel reads it: 0 is zlib.
fn compressor(range: &DefragmentRange) -> ErrnoResult<Compressor> {
    let [algorithm, level, ..] = range.compress_type.to_le_bytes();
    let has_level = range.flags & COMPRESS_LEVEL != 0;
    let number = if has_level { algorithm.into() } else { range.compress_type };
    let found = u8::try_from(number).ok().and_then(Compression::from_byte);
    let found = found.ok_or(Errno::EINVAL)?;
    let compression = if found == Compression::None { Compression::Zlib } else { found };
    let level = i32::from(level.cast_signed());
    let found = if has_level && level != 0 {
        Compressor::with_level(compression, level)
    } else {
        Compressor::new(compression)
    };
    found.ok_or(Errno::EINVAL)
}

fn described(done: &Defragmented) -> DefragmentDone {
    DefragmentDone {
        rewritten_bytes: done.rewritten_bytes,
        extents_before: done.extents_before,
        extents_after: done.extents_after,
        shared_bytes_left: done.shared_bytes_left,
        unshared_bytes: done.unshared_bytes,
    }
}
