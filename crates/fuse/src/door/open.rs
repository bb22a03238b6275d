//! OPEN and RELEASE: whether a file may be opened, and how the kernel caches it.
//!
//! | mount | opened | the kernel | times kept by |
//! |---|---|---|---|
//! | `writeback` | any | caches reads and writes; `O_DIRECT`: one writer at a time | kernel |
//! | any other | without `O_DIRECT` | caches reads, and sends writes at once | door |
//! | | with `O_DIRECT` | caches nothing, several writers at a time | door |
//! | | both for writing | the handle that is opened later is treated as the first | door |
//! | uncached | any | caches nothing, several writers at a time | door |
//!
//! With write-back caching the kernel ignores times and sizes in replies, so every write must go
//! through it (decision 0015).
//!
//! The kernel does not know the flags of an inode, nor that a subvolume is read-only.
//!
//! 1. Both are checked at an open for writing, before the handle exists. The kernel caches writes
//!    through a handle and shows them to readers before it sends them. The open is counted before
//!    the check, and a subvolume with a counted open does not become read-only ([`write_gates`]).
//! 2. A handle of an append-only file appends, also after the program has cleared `O_APPEND`. So
//!    its writes bypass the kernel's cache on every mount, one at a time, and a write below the end
//!    of the file fails before a reader sees it. With write-back caching such a file cannot be
//!    mapped shared (`negotiation`). On other mounts a change by a mapping fails when the kernel
//!    sends it.
//!
//! [`write_gates`]: crate::handles::write_gates

use butternut::server::{FileExt, FilesystemExt};
use std::sync::Arc;

use butternut::{File, FileId};

use crate::connection::protocol::{
    FOPEN_DIRECT_IO, FOPEN_KEEP_CACHE, FOPEN_PARALLEL_DIRECT_WRITES, OpenIn, OpenOut, ReleaseIn,
};
use crate::connection::reply::Reply;
use crate::connection::request::Request;
use crate::door::Door;
use crate::door::lane::{O_DIRECT, O_DSYNC};
use crate::errno::{Errno, ErrnoResult};
use crate::handles::write_gates::Writer;
use crate::handles::{Bypass, OpenFile, OpenHow};
use crate::options::Caching;

const O_ACCMODE: u32 = 0o3;
const O_RDONLY: u32 = 0;
const O_WRONLY: u32 = 1;
const O_APPEND: u32 = 0o2000;

/// Inode flags of btrfs.
const IMMUTABLE: u64 = 64;
const APPEND_ONLY: u64 = 128;
const VERITY: u64 = 1 << 32;

impl Door {
    pub(super) fn open(&self, request: &mut Request<'_>, reply: &mut Reply) -> ErrnoResult<()> {
        if !self.options.is_writable && self.options.caching != Caching::Nothing {
            return Err(Errno::ENOSYS);
        }
        let how: OpenIn = request.take()?;
        let id = self.node(request)?;
        let writer = self.begin_open(id, how.flags)?;
        // Before the descriptor of a sealed file is read.
        let is_append_only = writes(how.flags) && self.may_write(id, how.flags)?;
        let file = self.filesystem.open_file(id)?;
        let file = if is_append_only { file.only_appending() } else { file.checked_at_open() };
        self.opened(file, (how.flags, writer), is_append_only, reply)
    }

    /// Counts an open for writing of a file, or of one that is about to be created in a directory
    /// (law 1). Returns `None` for an open for reading.
    pub(super) fn begin_open(&self, id: FileId, flags: u32) -> ErrnoResult<Option<Writer>> {
        let enter = || self.handles.write_gates().enter(id.subvolume);
        writes(flags).then(enter).transpose()
    }

    /// Makes a handle of an open file and replies with it. `flags` are those of the open, with what
    /// [`Self::begin_open`] returned for them.
    pub(super) fn opened(
        &self,
        file: File,
        (flags, writer): (u32, Option<Writer>),
        is_append_only: bool,
        reply: &mut Reply,
    ) -> ErrnoResult<()> {
        let is_direct = flags & O_DIRECT != 0;
        let bypass = match self.options.caching {
            _ if is_append_only => Bypass::Always,
            Caching::WriteBack => Bypass::Never,
            Caching::WriteThrough if is_direct => Bypass::Wanted,
            Caching::WriteThrough => Bypass::Unwanted,
            Caching::Nothing => Bypass::Always,
        };
        let how = OpenHow { is_writable: writes(flags), bypass };
        let (fills, bypasses_cache) = self.handles.begin_open(file.id(), how)?;
        let mut open_flags = if is_append_only {
            FOPEN_DIRECT_IO
        } else if bypasses_cache {
            FOPEN_DIRECT_IO | FOPEN_PARALLEL_DIRECT_WRITES
        } else {
            0
        };
        if self.options.caching != Caching::Nothing {
            open_flags |= FOPEN_KEEP_CACHE;
        }
        // The kernel sends no times of a write that bypasses its cache.
        let keeps_times = self.options.writes_back() && !bypasses_cache;
        let file = if keeps_times { file.without_time_updates() } else { file };
        let is_writable = writes(flags);
        if is_writable && (is_direct || bypasses_cache) {
            fills.start_recording();
        }
        let is_synchronous = flags & O_DSYNC != 0;
        let id = file.id();
        let open = OpenFile {
            file,
            is_writable,
            is_readable: flags & O_ACCMODE != O_WRONLY,
            bypasses_cache,
            fills,
            is_append_only,
            is_synchronous,
        };
        let fh = self.handles.insert(open, writer);
        let checked = if is_writable { self.check_unsealed(id) } else { Ok(()) };
        let replied = checked.and_then(|()| reply.push(&OpenOut { fh, open_flags, backing_id: 0 }));
        if replied.is_err() {
            // The kernel does not know the handle, and sends no RELEASE for it.
            drop(self.handles.remove(fh));
        }
        replied
    }

    /// Refuses a file that has been sealed since it was checked, before its handle was counted.
    fn check_unsealed(&self, id: FileId) -> ErrnoResult<()> {
        if self.filesystem.stat(id)?.flags & VERITY != 0 {
            return Err(Errno::EPERM);
        }
        Ok(())
    }

    /// Checks law 1 in the order of the kernel. Returns whether the file is append-only.
    fn may_write(&self, id: FileId, flags: u32) -> ErrnoResult<bool> {
        let is = self.filesystem.stat(id)?.flags;
        if is & (IMMUTABLE | VERITY) != 0 {
            return Err(Errno::EPERM);
        }
        self.filesystem.check_writable(id)?;
        let is_append_only = is & APPEND_ONLY != 0;
        if is_append_only && flags & O_APPEND == 0 {
            return Err(Errno::EPERM);
        }
        Ok(is_append_only)
    }

    pub(super) fn release(&self, request: &mut Request<'_>) -> ErrnoResult<()> {
        let release: ReleaseIn = request.take()?;
        drop(self.handles.remove(release.fh));
        Ok(())
    }

    /// Returns the file of a handle, or of the node on a mount without handles.
    pub(super) fn file(&self, request: &Request<'_>, handle: u64) -> ErrnoResult<File> {
        self.find(request, handle).map(|open| open.file)
    }

    pub(super) fn find(&self, request: &Request<'_>, handle: u64) -> ErrnoResult<OpenFile> {
        if handle != 0 {
            return self.handles.get(handle);
        }
        let id = self.node(request)?;
        let file = self.open_cache.get_or_open(id, || self.filesystem.open_file(id))?;
        let fills = Arc::default();
        Ok(OpenFile {
            file,
            is_writable: false,
            is_readable: true,
            bypasses_cache: false,
            fills,
            is_append_only: false,
            is_synchronous: false,
        })
    }
}

fn writes(flags: u32) -> bool {
    flags & O_ACCMODE != O_RDONLY
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::door::DoorOptions;
    use butternut::device::{Device, MemoryDevice};
    use butternut::{Filesystem, MountOptions, NewInode};
    use butternut_mkfs::MkfsOptions;
    use std::fs;

    const O_RDWR: u32 = 0o2;

    /// Returns the door of an empty filesystem, without a kernel behind it.
    fn door(caching: Caching) -> Door {
        let device = MemoryDevice::new("memory", 128 << 20);
        butternut_mkfs::make(&device, &MkfsOptions::default()).unwrap();
        let devices = vec![Arc::new(device) as Arc<dyn Device>];
        let options = MountOptions::default().read_only(false).commit_seconds(0);
        let filesystem = Filesystem::open_devices(devices, &options).unwrap();
        let options = DoorOptions {
            checks_permissions: false,
            is_writable: true,
            users_delete_subvolumes: false,
            caching,
            is_synchronous: crate::options::Synchronous::new(false),
            report: Box::new(|_| {}),
        };
        let connection = Arc::new(fs::File::open("/dev/null").unwrap().into());
        Door::new(filesystem, options, connection, None)
    }

    /// A handle that the kernel does not know is never released. It would count as a writer.
    #[test]
    fn an_open_that_fails_counts_no_handle() {
        let door = door(Caching::WriteBack);
        let filesystem = &door.filesystem;
        let id = filesystem.create(filesystem.root(), b"file", &NewInode::new(0o644)).unwrap();
        let open = |reply: &mut Reply| {
            let file = filesystem.open_file(id).unwrap();
            let writer = door.begin_open(id, O_RDWR).ok().unwrap();
            door.opened(file, (O_RDWR, writer), false, reply)
        };
        // No room for the reply.
        assert_eq!(open(&mut Reply::new(0)), Err(Errno::ERANGE));
        assert_eq!(door.handles.handle_count(id), 0);
        assert!(door.handles.fills(id).is_none());
        drop(door.handles.seal_gates().begin(id).ok().unwrap());
        open(&mut Reply::new(4096)).ok().unwrap();
        assert_eq!(door.handles.handle_count(id), 1);
        assert_eq!(door.handles.seal_gates().begin(id).err(), Some(Errno::ETXTBSY));
        door.close().unwrap();
    }
}
