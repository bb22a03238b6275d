//! Cached reads and writes that do not block (`RWF_NOWAIT`): they complete, or they are refused.
//!
//! Laws:
//!
//! 1. A refused request has changed nothing that is visible: no byte, no size, no time.
//! 2. A request waits for no lock that another thread holds during I/O, reads nothing from a
//!    device, writes nothing back and commits nothing. If memory does not have what it needs, it is
//!    refused.

use crate::inode::table::InodeEntry;
use crate::stats::latency::Operation;
use crate::{File, Filesystem, Privileges, Result};
use butternut_file::{FileState, InodeUpdate};
use butternut_format::inode::{Inode, InodeFlags};
use butternut_pages::{CacheMode, UncachedFlush};
use std::sync::Arc;

impl File {
    /// As [`File::read_at`] if all bytes are in memory; `None` otherwise.
    pub(crate) fn read_nowait(
        &self,
        offset: u64,
        buf: &mut [u8],
        stay: CacheMode,
    ) -> Option<usize> {
        let _state = match self.pin.as_deref() {
            Some(pin) => Some(pin.entry().try_lock_shared()?),
            None => None,
        };
        let timed = self.timed(Operation::CachedRead);
        let read = self.stream().read_nowait(offset, buf, stay);
        if read.is_none() {
            timed.forget();
        }
        read
    }

    /// As [`File::write_as`] if the write need not wait; `None` otherwise. Without an offset,
    /// writes at the end of the file.
    pub(crate) fn write_nowait(
        &self,
        offset: Option<u64>,
        bytes: &[u8],
        privileges: Privileges,
        stay: CacheMode,
    ) -> Option<Result<usize>> {
        let pin = match self.pin() {
            Ok(pin) => pin,
            Err(error) => return Some(Err(error)),
        };
        let timed = self.timed(Operation::CachedWrite);
        let filesystem = pin.filesystem();
        let written = filesystem.write_nowait(self, pin.entry(), (offset, bytes), privileges, stay);
        let written = written.transpose();
        if written.is_none() {
            timed.forget();
        }
        if matches!(written, Some(Ok(1..))) && stay == CacheMode::Uncached {
            let source = self.source();
            let method = filesystem.tunables().uncached_flush;
            source.pages().queue_uncached(self.view().key(), bytes.len().div_ceil(4096), method);
        }
        written
    }
}

impl Filesystem {
    fn write_nowait(
        &self,
        file: &File,
        entry: &Arc<InodeEntry>,
        (offset, bytes): (Option<u64>, &[u8]),
        privileges: Privileges,
        stay: CacheMode,
    ) -> Result<Option<usize>> {
        let write_state = self.may_begin()?;
        let is_inline = self.tunables().uncached_flush == UncachedFlush::Inline;
        let source = &self.shared.source;
        let waits = stay == CacheMode::Uncached
            && (is_inline || !source.has_flusher() || source.pages().is_uncached_backlog_full());
        if waits || !self.is_below_limits(write_state)? {
            return Ok(None);
        }
        let Some(subvolume) = write_state.cached_subvolume(entry.id) else { return Ok(None) };
        let Some(mut state) = entry.try_lock_without_drain() else { return Ok(None) };
        let Some(inode) = entry.cached_nowait() else { return Ok(None) };
        file.may_write(&inode)?;
        let is_plain = !inode.flags.contains(InodeFlags::SYNC)
            && (privileges == Privileges::Keep || entry.has_no_privileges());
        let Some(data) = state.file.as_mut().filter(|_| is_plain) else { return Ok(None) };
        let end = data.size();
        file.may_write_at(&inode, end, offset)?;
        let offset = offset.unwrap_or(end);
        if bytes.is_empty() {
            return Ok(Some(0));
        }
        if !data.prepare_nowait_write(offset, bytes.len())? {
            return Ok(None);
        }
        let change = |data: &mut FileState, _: &Inode, _: InodeUpdate<'_>| {
            let written = match stay {
                CacheMode::Cached => data.write_at(offset, bytes),
                CacheMode::Uncached => data.write_uncached(offset, bytes),
            };
            data.end_nowait_write();
            Ok(written?)
        };
        self.alter_file(write_state, &subvolume, entry, &mut state, file.times, change).map(Some)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::MountOptions;
    use butternut_device::{Device, MemoryDevice};
    use butternut_mkfs::MkfsOptions;

    #[test]
    fn a_locked_file_is_not_waited_for() {
        let device = Arc::new(MemoryDevice::new("memory", 256 << 20));
        butternut_mkfs::make(&*device, &MkfsOptions::default()).unwrap();
        let options = MountOptions::default().read_only(false);
        let device = device as Arc<dyn Device>;
        let fs = Filesystem::open_devices(vec![device], &options).unwrap();
        let id = fs.create(fs.root(), b"file", &crate::NewInode::new(0o644)).unwrap();
        let file = fs.open_file(id).unwrap();
        file.write_at(0, &[7; 8192]).unwrap();
        let mut buf = [0; 10];
        let mut read = || file.read_nowait(4090, &mut buf, CacheMode::Cached);
        let write = || {
            let (keep, stay) = (Privileges::Keep, CacheMode::Cached);
            file.write_nowait(Some(0), &[8; 10], keep, stay).map(Result::unwrap)
        };
        assert_eq!((read(), write()), (Some(10), Some(10)));
        let entry = Arc::clone(file.pin().unwrap().entry());
        let reader = entry.lock_shared();
        assert_eq!((read(), write()), (Some(10), None), "readers share the lock");
        drop(reader);
        let exclusive = entry.lock_without_drain();
        assert_eq!((read(), write()), (None, None));
        drop(exclusive);
        assert_eq!((read(), write()), (Some(10), Some(10)));
    }
}
