//! A file's bytes: opened, read, written, moved, set aside, brought down.
//!
//! 1. The kernel caches what is written, and sends it when it likes. What it sends from its cache
//!    was allowed when the program wrote it, so the flags of the inode are asked at the open only.
//! 2. The times of a file that is open are the kernel's, which sends them when it likes: nothing
//!    here sets them.
//! 3. A write from the cache succeeds whole or not at all: nobody would send the rest of it again.

use butternut::{Allocate, Error, File, FileId, Privileges, ReadAt, SetAttributes, SetTime, Stat};

use crate::door::Door;
use crate::door::negotiation::TRANSFER_BYTES_MAX;
use crate::refusal::{Answer, Refusal};
use crate::reply::Reply;
use crate::request::Request;
use crate::wire::{
    CopyFileRangeIn, CopyFileRangeOut, FOPEN_KEEP_CACHE, FallocateIn, FsyncIn, OPEN_KILL_SUIDGID,
    OpenIn, OpenOut, ReleaseIn, TransferIn, WRITE_CACHE, WRITE_KILL_SUIDGID, WriteOut, op,
};

const O_ACCMODE: u32 = 0o3;
const O_RDONLY: u32 = 0;
const O_TRUNC: u32 = 0o1000;
const O_APPEND: u32 = 0o2000;

/// Flags of an inode.
const IMMUTABLE: u64 = 64;
const APPEND_ONLY: u64 = 128;

/// What `fallocate` may be asked for, together.
const KEEP_SIZE: u32 = 1;
const PUNCH_HOLE: u32 = 2;
const ZERO_RANGE: u32 = 0x10;

/// Bytes that one request copies; the kernel asks for the rest with another.
const COPY_BYTES_MAX: u64 = 32 << 20;

impl Door {
    pub(super) fn open(&self, request: &mut Request<'_>, reply: &mut Reply) -> Answer<()> {
        if !self.manner.is_writable {
            return Err(Refusal::NO_CALL);
        }
        let how: OpenIn = request.take()?;
        let id = self.node(request)?;
        let file = self.filesystem.open_file(id)?;
        let writes = how.flags & O_ACCMODE != O_RDONLY || how.flags & O_TRUNC != 0;
        if writes {
            self.may_write(id, how.flags)?;
        }
        if how.flags & O_TRUNC != 0 {
            let strip_privileges = how.open_flags & OPEN_KILL_SUIDGID != 0;
            let Stat { mtime, ctime, .. } = self.filesystem.stat(id)?;
            let (mtime, ctime) = (Some(SetTime::At(mtime)), Some(ctime));
            let size = SetAttributes::size(0);
            let set = SetAttributes { strip_privileges, mtime, ctime, ..size };
            self.filesystem.set_attributes(id, &set)?;
        }
        let fh = self.handles.open(file.leaving_times(), writes);
        reply.put(&OpenOut { fh, open_flags: FOPEN_KEEP_CACHE, backing_id: 0 })
    }

    /// What the flags of an inode say to an open for writing; the kernel does not know them.
    fn may_write(&self, id: FileId, flags: u32) -> Answer<()> {
        let is = self.filesystem.stat(id)?.flags;
        let appends = flags & O_APPEND != 0 && flags & O_TRUNC == 0;
        if is & IMMUTABLE != 0 || (is & APPEND_ONLY != 0 && !appends) {
            return Err(Refusal::NOT_PERMITTED);
        }
        Ok(())
    }

    pub(super) fn release(&self, request: &mut Request<'_>) -> Answer<()> {
        let release: ReleaseIn = request.take()?;
        drop(self.handles.close(release.fh));
        Ok(())
    }

    /// The file of a handle; where nothing is opened, of the node.
    pub(super) fn file(&self, request: &Request<'_>, handle: u64) -> Answer<File> {
        if handle != 0 {
            return self.handles.file(handle);
        }
        let open = || {
            let id = self.nodes.id(request.header.nodeid);
            let unknown = Error::Stale { id: FileId::new(0, request.header.nodeid) };
            self.filesystem.open_file(id.ok_or(unknown)?)
        };
        Ok(self.recent.file(request.header.nodeid, open)?)
    }

    pub(super) fn read(&self, request: &mut Request<'_>, reply: &mut Reply) -> Answer<()> {
        let read: TransferIn = request.take()?;
        let file = self.file(request, read.fh)?;
        let bytes = usize::try_from(read.size.min(TRANSFER_BYTES_MAX)).unwrap_or(0);
        let filled = read_whole(&file, read.offset, reply.room(bytes))?;
        reply.filled(filled);
        Ok(())
    }

    pub(super) fn write(&self, request: &mut Request<'_>, reply: &mut Reply) -> Answer<()> {
        let write: TransferIn = request.take()?;
        let bytes = request.data(write.size)?;
        let file = self.file(request, write.fh)?;
        let written = if write.transfer_flags & WRITE_CACHE != 0 {
            write_whole(&file, write.offset, bytes)?
        } else if write.transfer_flags & WRITE_KILL_SUIDGID != 0 {
            file.write_as(write.offset, bytes, Privileges::Strip)?
        } else {
            // Checked at the open, as in the kernel.
            file.write_back(write.offset, bytes)?
        };
        reply.put(&WriteOut { size: u32::try_from(written).unwrap_or(0), padding: 0 })
    }

    pub(super) fn sync(&self, request: &mut Request<'_>) -> Answer<()> {
        let sync: FsyncIn = request.take()?;
        Ok(self.file(request, sync.fh)?.sync_all()?)
    }

    pub(super) fn allocate(&self, request: &mut Request<'_>) -> Answer<()> {
        const PUNCH: u32 = PUNCH_HOLE | KEEP_SIZE;
        const ZERO_KEEP: u32 = ZERO_RANGE | KEEP_SIZE;
        let asked: FallocateIn = request.take()?;
        let how = match asked.mode {
            0 => Allocate::Extend,
            KEEP_SIZE => Allocate::KeepSize,
            PUNCH => Allocate::PunchHole,
            ZERO_RANGE => Allocate::Zero,
            ZERO_KEEP => Allocate::ZeroKeepSize,
            _ => return Err(Refusal::UNSUPPORTED),
        };
        let end = asked.offset.checked_add(asked.length).ok_or(Refusal::INVALID)?;
        Ok(self.file(request, asked.fh)?.allocate(asked.offset..end, how)?)
    }

    pub(super) fn copy_range(&self, request: &mut Request<'_>, reply: &mut Reply) -> Answer<()> {
        let copy: CopyFileRangeIn = request.take()?;
        let (from, to) = (self.file(request, copy.fh_in)?, self.handles.file(copy.fh_out)?);
        let bytes = copy.len.min(COPY_BYTES_MAX);
        let bytes_copied = to.copy_range(copy.off_out, &from, copy.off_in, bytes)?;
        if request.header.opcode == op::COPY_FILE_RANGE_64 {
            return reply.put(&CopyFileRangeOut { bytes_copied });
        }
        reply.put(&WriteOut { size: u32::try_from(bytes_copied).unwrap_or(0), padding: 0 })
    }
}

/// Writes all of `bytes`, or fails (law 3).
fn write_whole(file: &File, offset: u64, bytes: &[u8]) -> Answer<usize> {
    let mut written = 0;
    while written < bytes.len() {
        match file.write_back(offset + written as u64, &bytes[written..])? {
            0 => return Err(Refusal::IO),
            more => written += more,
        }
    }
    Ok(written)
}

/// Fills `memory` up to the end of the file. The kernel takes a short answer for the end, so what
/// is damaged must be an error; it then asks again for the single pages that it needs.
///
/// The kernel reads ahead on its own, and several threads serve it: each reads straight into its
/// reply. Going through the library's readahead as well would only copy everything once more.
fn read_whole(file: &File, offset: u64, memory: &mut [u8]) -> butternut::Result<usize> {
    let mut read = 0;
    while read < memory.len() {
        let mut one = [ReadAt::new(offset + read as u64, &mut memory[read..])];
        file.read_many(&mut one);
        let [one] = one;
        match one.result? {
            0 => break,
            more => read += more,
        }
    }
    Ok(read)
}
