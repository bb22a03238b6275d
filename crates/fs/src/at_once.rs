//! Cached reads and writes that wait for nothing, or are not done: what `NOWAIT` asks for.
//!
//! Laws:
//!
//! 1. What cannot be done at once has changed nothing that anybody sees: no byte, no size, no time.
//! 2. No lock is waited for that somebody holds over I/O, and nothing is read, brought down or
//!    committed. What is not known without that is refused, though it might have been quick.

use crate::inode_table::InodeEntry;
use crate::latency::Operation;
use crate::{File, Filesystem, Privileges, Result};
use butternut_file::{FileState, Stamp};
use butternut_format::inode::{Inode, InodeFlags};
use butternut_pages::{Stay, UncachedFlush};
use std::sync::Arc;

impl File {
    /// As [`File::read_at`], if all of it is in memory.
    pub(crate) fn read_at_once(&self, offset: u64, buf: &mut [u8], stay: Stay) -> Option<usize> {
        let _body = match self.held.as_deref() {
            Some(held) => Some(held.entry().try_body()?),
            None => None,
        };
        let timed = self.timed(Operation::CachedRead);
        let read = self.stream().read_at_once(offset, buf, stay);
        if read.is_none() {
            timed.forget();
        }
        read
    }

    /// As [`File::write_as`], if the bytes have to wait for nothing; without an offset, at the end.
    pub(crate) fn write_at_once(
        &self,
        offset: Option<u64>,
        bytes: &[u8],
        privileges: Privileges,
        stay: Stay,
    ) -> Option<Result<usize>> {
        let held = match self.held() {
            Ok(held) => held,
            Err(error) => return Some(Err(error)),
        };
        let timed = self.timed(Operation::CachedWrite);
        let filesystem = held.filesystem();
        let written =
            filesystem.write_at_once(self, held.entry(), (offset, bytes), privileges, stay);
        let written = written.transpose();
        if written.is_none() {
            timed.forget();
        }
        if matches!(written, Some(Ok(1..))) && stay == Stay::Uncached {
            let source = self.source();
            let switch = filesystem.switches().uncached_flush;
            source.pages().kick_uncached(self.view().key(), bytes.len().div_ceil(4096), switch);
        }
        written
    }
}

impl Filesystem {
    fn write_at_once(
        &self,
        file: &File,
        entry: &Arc<InodeEntry>,
        (offset, bytes): (Option<u64>, &[u8]),
        privileges: Privileges,
        stay: Stay,
    ) -> Result<Option<usize>> {
        let writer = self.may_begin()?;
        let is_inline = self.switches().uncached_flush == UncachedFlush::Inline;
        let source = &self.shared.source;
        let waits = stay == Stay::Uncached
            && (is_inline || !source.has_flusher() || source.pages().is_far_ahead());
        if waits || !self.is_calm(writer)? {
            return Ok(None);
        }
        let Some(subvolume) = writer.known_subvolume(entry.id) else { return Ok(None) };
        let Some(mut body) = entry.try_body_in_traffic() else { return Ok(None) };
        let Some(inode) = entry.known_at_once() else { return Ok(None) };
        file.may_write(&inode)?;
        let is_plain = !inode.flags.contains(InodeFlags::SYNC)
            && (privileges == Privileges::Keep || entry.has_no_privileges());
        let Some(state) = body.file.as_mut().filter(|_| is_plain) else { return Ok(None) };
        let end = state.size();
        file.may_write_at(&inode, end, offset)?;
        let offset = offset.unwrap_or(end);
        if bytes.is_empty() {
            return Ok(Some(0));
        }
        if !state.take_hold(offset, bytes.len())? {
            return Ok(None);
        }
        let change = |state: &mut FileState, _: &Inode, _: Stamp<'_>| {
            let written = match stay {
                Stay::Cached => state.write_at(offset, bytes),
                Stay::Uncached => state.write_uncached(offset, bytes),
            };
            state.let_go();
            Ok(written?)
        };
        self.alter_file(writer, &subvolume, entry, &mut body, file.times, change).map(Some)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::MountOptions;
    use butternut_device::{Device, MemoryDevice};
    use butternut_mkfs::MkfsOptions;

    #[test]
    fn a_file_that_somebody_has_is_not_waited_for() {
        let device = Arc::new(MemoryDevice::new("memory", 256 << 20));
        butternut_mkfs::make(&*device, &MkfsOptions::default()).unwrap();
        let options = MountOptions { read_only: false, ..MountOptions::default() };
        let device = device as Arc<dyn Device>;
        let fs = Filesystem::open_devices(vec![device], &options).unwrap();
        let id = fs.create(fs.root(), b"file", &crate::NewInode::new(0o644)).unwrap();
        let file = fs.open_file(id).unwrap();
        file.write_at(0, &[7; 8192]).unwrap();
        let mut buf = [0; 10];
        let mut read = || file.read_at_once(4090, &mut buf, Stay::Cached);
        let write = || {
            let (keep, stay) = (Privileges::Keep, Stay::Cached);
            file.write_at_once(Some(0), &[8; 10], keep, stay).map(Result::unwrap)
        };
        assert_eq!((read(), write()), (Some(10), Some(10)));
        let entry = Arc::clone(file.held().unwrap().entry());
        let reader = entry.body();
        assert_eq!((read(), write()), (Some(10), None), "readers share it");
        drop(reader);
        let writer = entry.body_in_traffic();
        assert_eq!((read(), write()), (None, None));
        drop(writer);
        assert_eq!((read(), write()), (Some(10), Some(10)));
    }
}
