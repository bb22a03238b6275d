//! IOCTL: the extents of a file, and deduplication.
//!
//! | call | caller | effect |
//! |---|---|---|
//! | `FS_IOC_FIEMAP`, sized | any caller | returns extents, as many as fit |
//! | `FIDEDUPERANGE`, sized | law 2 | compares two ranges; equal ones share their extents then |
//!
//! 1. The VFS answers both calls itself where the number is the kernel's. These have the kernel's
//!    structures under numbers that state the size of all of it
//!    ([`extent_calls`](butternut_sys::extent_calls)).
//! 2. The VFS checks nothing here. The caller must be able to read the source, which is the file of
//!    the call, or the answer would tell of its bytes. It must own the target, a descriptor of its
//!    own, or be able to write to it. Nothing is shared through a read-only mount.
//! 3. As in the kernel, what is wrong with the target is its status, and the call succeeds.
//! 4. Both calls may read much, so their replies are deferred, and the calls of users that run at a
//!    time are limited ([`user_calls`](crate::door::user_calls)).
//! 5. Data that the kernel has cached and not sent is newer than what is compared and shared; it is
//!    written over that when it is sent. A fiemap with the flag `SYNC` makes the kernel send it.
//! 6. The flag of shared extents is set only for a caller that wants it: finding out costs a search
//!    for each extent, and may need a commit. Such a fiemap goes on behind the end of the file, and
//!    its first reserved word has the offset into a compressed extent.
//! 7. As in the kernel, the address of a compressed extent is that of its beginning, whichever part
//!    of it the file refers to.

use std::iter::Peekable;
use std::sync::Arc;

use butternut::server::FileExt;
use butternut::{Compression, Dedupe, Extent, ExtentKind, FileId, FileKind, Filesystem};
use butternut_sys::extent_calls::{
    EXTENT_DELALLOC, EXTENT_ENCODED, EXTENT_INLINE, EXTENT_LAST, EXTENT_SHARED, EXTENT_UNKNOWN,
    EXTENT_UNWRITTEN, EXTENTS_MAX, RANGE_DIFFERS, SHARING, SIZED_DEDUPE, SIZED_FIEMAP,
};

use crate::connection::protocol::{DedupeRange, Fiemap, FiemapExtent, IoctlIn, IoctlOut};
use crate::connection::reply::Reply;
use crate::connection::request::Request;
use crate::door::checked_caller::CheckedCaller;
use crate::door::{Door, Outcome};
use crate::errno::{Errno, ErrnoResult};

/// Of a fiemap: data is written back first.
const SYNC: u32 = 1;
/// The extent does not begin and end at blocks of the device.
const EXTENT_NOT_ALIGNED: u32 = 0x100;
/// Permissions, as three bits.
const READ: u16 = 0o4;
const WRITE: u16 = 0o2;

/// The part of a call that is the same for both directions.
const REPLY_BYTES: usize =
    size_of::<IoctlOut>() + size_of::<Fiemap>() + EXTENTS_MAX * size_of::<FiemapExtent>();

impl Door {
    /// Serves a call about extents. Returns `None` for every other call.
    pub(super) fn extent_call(
        &self,
        call: &IoctlIn,
        request: &mut Request<'_>,
    ) -> Option<ErrnoResult<Outcome>> {
        match call.cmd {
            SIZED_FIEMAP => Some(self.fiemap(request)),
            SIZED_DEDUPE => Some(self.dedupe(request)),
            _ => None,
        }
    }

    fn fiemap(&self, request: &mut Request<'_>) -> ErrnoResult<Outcome> {
        let map: Fiemap = request.take()?;
        if map.flags & !(SYNC | SHARING) != 0 || map.length == 0 {
            return Err(Errno::EINVAL);
        }
        let id = self.regular_file(request)?;
        let filesystem = self.filesystem.clone();
        let is_synced = map.flags & SYNC != 0;
        let unsent = is_synced.then(|| self.unsent_files().file(id)).flatten();
        let device = Arc::clone(request.device);
        self.reply_deferred_to_user(request, REPLY_BYTES, move |reply| {
            unsent.map_or(Ok(()), |file| file.write_back(&device))?;
            if map.flags & SHARING != 0 {
                let extents = extents_with_sharing(&filesystem, id, &map)?;
                return push_extents(reply, map, &extents);
            }
            let mut extents = extents(&filesystem, id, &map)?;
            let is_buffered = |extent: &FiemapExtent| extent.flags & EXTENT_DELALLOC != 0;
            if map.flags & SYNC != 0 && extents.iter().any(is_buffered) {
                filesystem.open_file(id)?.sync_data()?;
                extents = self::extents(&filesystem, id, &map)?;
            }
            push_extents(reply, map, &extents)
        })
    }

    fn dedupe(&self, request: &mut Request<'_>) -> ErrnoResult<Outcome> {
        let mut range: DedupeRange = request.take()?;
        if range.dest_count != 1 || range.reserved1 != 0 || range.reserved2 != 0 {
            return Err(Errno::EINVAL);
        }
        let source = self.regular_file(request)?;
        self.may_access(&request.header, source, READ)?;
        let (nodes, caller) = (Arc::clone(&self.nodes), self.checked_caller(request));
        let filesystem = self.filesystem.clone();
        self.reply_deferred_to_user(
            request,
            size_of::<IoctlOut>() + size_of_val(&range),
            move |reply| {
                let target = || -> ErrnoResult<FileId> {
                    let fd = u64::try_from(range.dest_fd).map_err(|_| Errno::EBADF)?;
                    let target =
                        nodes.file_id(caller.node_of_descriptor(fd)?).ok_or(Errno::ESTALE)?;
                    may_be_target(&filesystem, &caller, target)?;
                    Ok(target)
                };
                let done = target().and_then(|target| {
                    let (source, target) =
                        (filesystem.open_file(source)?, filesystem.open_file(target)?);
                    let (to, from) = (range.dest_offset, range.src_offset);
                    Ok(target.dedupe_range(to, &source, from, range.src_length)?)
                });
                // Law 3.
                (range.status, range.bytes_deduped) = match done {
                    Ok(Dedupe::Shared(bytes)) => (0, bytes),
                    Ok(Dedupe::Differs) => (RANGE_DIFFERS, 0),
                    Err(errno) => (errno.0.saturating_neg(), 0),
                };
                reply.push(&IoctlOut::default())?;
                reply.push(&range)
            },
        )
    }

    fn regular_file(&self, request: &Request<'_>) -> ErrnoResult<FileId> {
        let id = self.node(request)?;
        if self.filesystem.stat(id)?.kind == FileKind::File { Ok(id) } else { Err(Errno::EINVAL) }
    }
}

/// Checks that the caller may change the target of a deduplication (law 2).
fn may_be_target(
    filesystem: &Filesystem,
    caller: &CheckedCaller,
    target: FileId,
) -> ErrnoResult<()> {
    caller.may_change()?;
    match filesystem.stat(target)?.kind {
        FileKind::File => {}
        FileKind::Directory => return Err(Errno::EISDIR),
        FileKind::Symlink
        | FileKind::CharDevice
        | FileKind::BlockDevice
        | FileKind::Fifo
        | FileKind::Socket => return Err(Errno::EINVAL),
    }
    if caller.owns(filesystem, target)? {
        return Ok(());
    }
    caller.may_access(filesystem, target, WRITE).map_err(|_| Errno::EPERM)
}

/// Returns the extents of a file that a fiemap asks for.
fn extents(filesystem: &Filesystem, id: FileId, map: &Fiemap) -> ErrnoResult<Vec<FiemapExtent>> {
    let file = filesystem.open_file(id)?;
    let end = map.start.saturating_add(map.length).min(file.len());
    if map.start >= end {
        return Ok(Vec::new());
    }
    let stored = |extent: &butternut::Result<Extent>| {
        !matches!(extent, Ok(Extent { kind: ExtentKind::Hole, .. }))
    };
    let mut all = file.extents(map.start..file.len()).filter(stored).peekable();
    let count = usize::try_from(map.count).unwrap_or(EXTENTS_MAX).min(EXTENTS_MAX);
    let mut found = Vec::new();
    while found.len() < count
        && let Some(extent) = next_before(&mut all, end)?
    {
        found.push(described(&extent, all.peek().is_none()));
    }
    Ok(found)
}

/// As [`extents`], with the flags of law 6.
fn extents_with_sharing(
    filesystem: &Filesystem,
    id: FileId,
    map: &Fiemap,
) -> ErrnoResult<Vec<FiemapExtent>> {
    let file = filesystem.open_file(id)?;
    let count = usize::try_from(map.count).unwrap_or(EXTENTS_MAX).min(EXTENTS_MAX);
    let mut found = file.extents_with_sharing(map.start, count)?;
    let is_buffered = |(extent, _): &(Extent, bool)| extent.kind == ExtentKind::Buffered;
    if map.flags & SYNC != 0 && found.iter().any(is_buffered) {
        file.sync_data()?;
        found = file.extents_with_sharing(map.start, count)?;
    }
    let flagged = |(extent, is_shared): (Extent, bool)| {
        let mut described = described(&extent, false);
        if is_shared {
            described.flags |= EXTENT_SHARED;
        }
        if let ExtentKind::Regular { extent_offset, .. } = extent.kind
            && described.flags & EXTENT_ENCODED != 0
        {
            described.reserved64[0] = extent_offset;
        }
        described
    };
    Ok(found.into_iter().map(flagged).collect())
}

/// Returns the next extent that begins before an offset.
fn next_before(
    extents: &mut Peekable<impl Iterator<Item = butternut::Result<Extent>>>,
    end: u64,
) -> ErrnoResult<Option<Extent>> {
    let is_before = |extent: &butternut::Result<Extent>| {
        extent.as_ref().map_or(true, |extent| extent.offset < end)
    };
    Ok(extents.next_if(is_before).transpose()?)
}

fn described(extent: &Extent, is_last: bool) -> FiemapExtent {
    let (physical, flags) = match extent.kind {
        ExtentKind::Hole => (0, 0),
        ExtentKind::Prealloc { logical } => (logical, EXTENT_UNWRITTEN),
        ExtentKind::Inline { .. } => (0, EXTENT_INLINE | EXTENT_NOT_ALIGNED),
        ExtentKind::Buffered => (0, EXTENT_DELALLOC | EXTENT_UNKNOWN),
        ExtentKind::Regular { logical, extent_offset, compression: Compression::None, .. } => {
            (logical.saturating_add(extent_offset), 0)
        }
        // Law 7.
        ExtentKind::Regular { logical, .. } => (logical, EXTENT_ENCODED),
    };
    FiemapExtent {
        logical: extent.offset,
        physical,
        length: extent.bytes,
        flags: flags | if is_last { EXTENT_LAST } else { 0 },
        ..FiemapExtent::default()
    }
}

fn push_extents(reply: &mut Reply, map: Fiemap, extents: &[FiemapExtent]) -> ErrnoResult<()> {
    let mapped = u32::try_from(extents.len()).unwrap_or(0);
    reply.push(&IoctlOut::default())?;
    reply.push(&Fiemap { mapped, ..map })?;
    extents.iter().try_for_each(|extent| reply.push(extent))?;
    (extents.len()..EXTENTS_MAX).try_for_each(|_| reply.push(&FiemapExtent::default()))
}
