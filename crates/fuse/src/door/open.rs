//! Files as they are opened: what may be done with them, and which way their bytes go.
//!
//! | mount | opened | the kernel | times |
//! |---|---|---|---|
//! | `writeback` | any | caches it for good, but for `O_DIRECT`, one writer at a time | its own |
//! | any other | without `O_DIRECT` | caches what is read, and writes at once | ours |
//! | | with `O_DIRECT` | passes on everything, many writers at once | ours |
//! | uncached | any | passes on everything, many writers at once | ours |
//!
//! Where the kernel writes back, it believes nobody else's times and sizes. So it has to see every
//! write there (decision 0015).
//!
//! The kernel does not know the flags of an inode, nor that a subvolume is read-only. Laws:
//!
//! 1. Both are checked when a file is opened for writing, before its handle exists: the kernel
//!    caches what is written through a handle, and shows it to readers before this process is sent
//!    it.
//! 2. A handle for an append-only file appends, whatever becomes of its `O_APPEND`. So its writes
//!    pass the kernel's cache on every mount, one at a time, and one below the end is refused
//!    before a reader sees it. Shared mappings of it are refused where the kernel writes back
//!    (`negotiation`); on the other mounts what a mapping changed is refused when the kernel sends
//!    it.

use std::sync::Arc;

use butternut::{File, FileId};

use crate::door::Door;
use crate::door::lane::O_DIRECT;
use crate::handles::Open;
use crate::options::Caching;
use crate::refusal::{Answer, Refusal};
use crate::reply::Reply;
use crate::request::Request;
use crate::wire::{
    FOPEN_DIRECT_IO, FOPEN_KEEP_CACHE, FOPEN_PARALLEL_DIRECT_WRITES, OpenIn, OpenOut, ReleaseIn,
};

const O_ACCMODE: u32 = 0o3;
const O_RDONLY: u32 = 0;
const O_APPEND: u32 = 0o2000;

/// Flags of an inode.
const IMMUTABLE: u64 = 64;
const APPEND_ONLY: u64 = 128;
const VERITY: u64 = 1 << 32;

impl Door {
    pub(super) fn open(&self, request: &mut Request<'_>, reply: &mut Reply) -> Answer<()> {
        if !self.manner.is_writable && self.manner.caching != Caching::Nothing {
            return Err(Refusal::NO_CALL);
        }
        let how: OpenIn = request.take()?;
        let id = self.node(request)?;
        let file = self.filesystem.open_file(id)?;
        let only_appends = writes(how.flags) && self.may_write(id, how.flags)?;
        let file = if only_appends { file.only_appending() } else { file.checked_at_open() };
        self.opened(file, how.flags, only_appends, reply)
    }

    /// Replies with a file that is open from now on.
    pub(super) fn opened(
        &self,
        file: File,
        flags: u32,
        only_appends: bool,
        reply: &mut Reply,
    ) -> Answer<()> {
        let is_direct = flags & O_DIRECT != 0;
        let passes_cache = match self.manner.caching {
            Caching::WriteBack => false,
            Caching::WriteThrough => is_direct,
            Caching::Nothing => true,
        };
        let mut open_flags = if only_appends {
            FOPEN_DIRECT_IO
        } else if passes_cache {
            FOPEN_DIRECT_IO | FOPEN_PARALLEL_DIRECT_WRITES
        } else {
            0
        };
        let passes_cache = passes_cache || only_appends;
        if self.manner.caching != Caching::Nothing {
            open_flags |= FOPEN_KEEP_CACHE;
        }
        // Of a write that passes its cache, the kernel sends no times.
        let keeps_times = self.manner.writes_back() && !passes_cache;
        let file = if keeps_times { file.leaving_times() } else { file };
        let is_written = writes(flags);
        let fills = self.handles.share(file.id());
        if is_written && (is_direct || passes_cache) {
            fills.note_from_now();
        }
        let open = Open { file, is_written, passes_cache, fills, only_appends };
        let fh = self.handles.open(open);
        reply.put(&OpenOut { fh, open_flags, backing_id: 0 })
    }

    /// Law 1, in the kernel's order; whether the file may only be appended to.
    fn may_write(&self, id: FileId, flags: u32) -> Answer<bool> {
        let is = self.filesystem.stat(id)?.flags;
        if is & (IMMUTABLE | VERITY) != 0 {
            return Err(Refusal::NOT_PERMITTED);
        }
        self.filesystem.check_writable(id)?;
        let is_append_only = is & APPEND_ONLY != 0;
        if is_append_only && flags & O_APPEND == 0 {
            return Err(Refusal::NOT_PERMITTED);
        }
        Ok(is_append_only)
    }

    pub(super) fn release(&self, request: &mut Request<'_>) -> Answer<()> {
        let release: ReleaseIn = request.take()?;
        drop(self.handles.close(release.fh));
        Ok(())
    }

    /// The file of a handle; where nothing is opened, of the node.
    pub(super) fn file(&self, request: &Request<'_>, handle: u64) -> Answer<File> {
        self.find(request, handle).map(|open| open.file)
    }

    pub(super) fn find(&self, request: &Request<'_>, handle: u64) -> Answer<Open> {
        if handle != 0 {
            return self.handles.find(handle);
        }
        let id = self.node(request)?;
        let file = self.recent.file(id, || self.filesystem.open_file(id))?;
        let fills = Arc::default();
        Ok(Open { file, is_written: false, passes_cache: false, fills, only_appends: false })
    }
}

fn writes(flags: u32) -> bool {
    flags & O_ACCMODE != O_RDONLY
}
