//! Changes of a file's bytes through an open [`File`]: writes, truncation, `fallocate`, syncs.
//!
//! Laws:
//!
//! 1. A change of a file holds its inode lock exclusively, and a read holds it shared, except for
//!    direct writes, which share it (`file/direct.rs`). So a read sees all of a cached write, or
//!    nothing.
//! 2. The size and the times that `stat` returns are those of the last write that returned. The
//!    inode item in the tree is updated when the data is merged.
//! 3. A write that fails has changed no byte and no size, but it may have stripped the file's
//!    privileges. There are two exceptions: a write that a device fails may have changed the blocks
//!    that it overwrites in place, and a synchronous file (`chattr +S`) has the bytes if only the
//!    sync failed. A write that finds space for a part of its bytes returns how many it wrote.
//! 4. A cached read or write that must not block (`RWF_NOWAIT`) is done as a whole, or it fails
//!    with [`Error::WouldBlock`] and has changed nothing that is visible: no byte, no size, no
//!    time. It waits for no lock that another thread holds during I/O, reads nothing from a device,
//!    writes nothing back and commits nothing. There is no other path for it: each function on the
//!    way takes [`Wait`], and refuses where it would block.

use crate::background::merger::MergeScope;
use crate::error::{is_refused, may_block};
use crate::file::alter::Times;
use crate::file::direct::has_too_much_replaced;
use crate::inode::pin::Pin;
use crate::stats::latency::Operation;
use crate::{Error, File, Filesystem, Privileges, Result};
use butternut_file::{FallocateSize, FileState, InodeUpdate};
use butternut_format::inode::{Inode, InodeFlags};
use butternut_format::units::length;
use butternut_pages::{CacheMode, UncachedFlush, WritebackReason};
use butternut_sys::wait::Wait;
use std::collections::BTreeSet;
use std::ops::Range;

/// Writes of at least this many bytes from a cache in front of this library go past the page cache.
const LONG_BYTES_MIN: usize = 512 << 10;

/// What `fallocate` does to a range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Allocate {
    /// Preallocates the range; the file ends at the end of the range or later.
    Extend,
    /// Preallocates the range, also past the end of the file, whose size stays.
    KeepSize,
    /// Frees the space of the range, which reads as zeros.
    PunchHole,
    /// Zeroes the range and preallocates it; the file ends at the end of the range or later.
    Zero,
    /// Zeroes the range and preallocates it, also past the end of the file, whose size stays.
    ZeroKeepSize,
}

/// Whether a change drains the file first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Drain {
    /// The change may block.
    Yes,
    /// Only pages change. Any further change drains the file itself.
    No(Wait),
}

/// The result of a change of a file's bytes, before the file is synced.
pub(super) struct Altered<R> {
    result: R,
    /// The file is synchronous (`chattr +S`).
    is_synchronous: bool,
}

impl File {
    /// As [`FileExt::without_time_updates`](crate::server::FileExt::without_time_updates).
    #[must_use]
    pub(crate) fn without_time_updates(mut self) -> Self {
        self.times = Times::Stay;
        self
    }

    /// Writes `bytes` at `offset`, with any alignment, and returns the number of bytes written:
    /// fewer than all only if the volume is full. The data is then in memory or on the devices. It
    /// survives a crash after [`File::sync_all`], [`Filesystem::sync`] or the next commit, or when
    /// this returns if the file is synchronous (`chattr +S`).
    ///
    /// # Errors
    /// [`Error::ReadOnly`]; no space; a file that would be too large; [`Error::NotPermitted`] for a
    /// file that is immutable, or append-only and not written at its end.
    pub fn write_at(&self, offset: u64, bytes: &[u8]) -> Result<usize> {
        self.write_as(offset, bytes, Privileges::Keep)
    }

    /// As [`File::write_at`], and strips the privileges that the writer may not keep.
    pub fn write_as(&self, offset: u64, bytes: &[u8], privileges: Privileges) -> Result<usize> {
        self.write(Some(offset), bytes, privileges, CacheMode::Cached, Wait::Block)
            .map(|(_, written)| written)
    }

    /// As [`FileExt::write_from_cache`](crate::server::FileExt::write_from_cache).
    pub(crate) fn write_from_cache(&self, offset: u64, bytes: &[u8]) -> Result<usize> {
        let _timed = self.timed(Operation::CachedWrite);
        let is_long = bytes.len() >= LONG_BYTES_MIN;
        let change = |file: &mut FileState, _: &Inode, _: InodeUpdate<'_>| {
            Ok(if is_long {
                file.write_direct(offset, &bytes[..bytes.len() / 4096 * 4096])?
            } else {
                file.write_at(offset, bytes)?
            })
        };
        let drain = if is_long { Drain::Yes } else { Drain::No(Wait::Block) };
        let written = self.with_space(|| self.alter_as(None, drain, change))?;
        let written = self.synced(written)?;
        self.balance_dirty_pages(written, CacheMode::Cached)?;
        Ok(written)
    }

    /// As [`FileExt::write_drop_behind`](crate::server::FileExt::write_drop_behind).
    pub(crate) fn write_drop_behind(
        &self,
        offset: u64,
        bytes: &[u8],
        privileges: Privileges,
    ) -> Result<usize> {
        let stay = (CacheMode::Uncached, CacheMode::Cached);
        let written = self.write_in(Some(offset), bytes, privileges, stay, Wait::Block);
        written.map(|(_, written)| written)
    }

    /// As [`File::write_as`], uncached (`RWF_DONTCACHE`): a flusher writes the pages back soon, and
    /// they are dropped when that has completed.
    pub fn write_uncached(
        &self,
        offset: u64,
        bytes: &[u8],
        privileges: Privileges,
    ) -> Result<usize> {
        self.write(Some(offset), bytes, privileges, CacheMode::Uncached, Wait::Block)
            .map(|(_, written)| written)
    }

    /// As [`File::write_as`] or [`File::write_uncached`], and returns the offset, too; without an
    /// offset, writes at the end of the file. With [`Wait::NoWait`] it writes all bytes, or fails
    /// with [`Error::WouldBlock`] and has changed nothing (law 4).
    pub(crate) fn write(
        &self,
        offset: Option<u64>,
        bytes: &[u8],
        privileges: Privileges,
        stay: CacheMode,
        wait: Wait,
    ) -> Result<(u64, usize)> {
        if stay == CacheMode::Cached {
            return self.write_in(offset, bytes, privileges, (stay, stay), wait);
        }
        let pin = self.pin()?;
        let filesystem = pin.filesystem();
        let (source, method) = (&filesystem.shared.source, filesystem.tunables().uncached_flush);
        let is_inline = !source.has_flusher() || method == UncachedFlush::Inline;
        if is_inline || wait == Wait::NoWait && source.pages().is_uncached_backlog_full() {
            may_block(wait)?;
        }
        let (at, written) = self.write_in(offset, bytes, privileges, (stay, stay), wait)?;
        if is_inline {
            let entries = std::slice::from_ref(pin.entry());
            // The file keeps an error for its next sync.
            drop(filesystem.flush_files(entries, WritebackReason::Uncached));
        } else {
            source.pages().queue_uncached(self.view().key(), written.div_ceil(4096), method);
        }
        Ok((at, written))
    }

    /// As [`File::write_as`], direct: whole blocks go to the devices past the page cache. Writes of
    /// blocks inside the file share it with other reads and writes.
    pub fn write_direct(&self, offset: u64, bytes: &[u8], privileges: Privileges) -> Result<usize> {
        if bytes.is_empty() {
            return self.check_empty_write(Some(offset), Wait::Block).map(|()| 0);
        }
        self.may_begin_at(Some(offset))?;
        let timed = self.timed(Operation::DirectWrite);
        if let Some(written) = self.write_shared(offset, bytes, privileges)? {
            return Ok(written);
        }
        timed.forget();
        self.write_direct_exclusive(offset, bytes, privileges)
    }

    /// As [`File::write_direct`], under the exclusive inode lock.
    pub(crate) fn write_direct_exclusive(
        &self,
        offset: u64,
        bytes: &[u8],
        privileges: Privileges,
    ) -> Result<usize> {
        let _timed = self.timed(Operation::DirectWrite);
        self.lane_counters().dio_write_exclusive.add();
        let mut done = Altered { result: 0, is_synchronous: false };
        while let Some(rest) = bytes.get(done.result..).filter(|rest| !rest.is_empty()) {
            let at = offset.saturating_add(length(done.result));
            let written = self.with_space(|| {
                self.alter(privileges, |file, inode, _| {
                    self.may_write_at(inode, file.size(), Some(at))?;
                    Ok(file.write_direct(at, rest)?)
                })
            });
            match written {
                Ok(Altered { result: 0, .. }) => break,
                Ok(written) => {
                    done.result += written.result;
                    done.is_synchronous |= written.is_synchronous;
                }
                Err(error) if done.result == 0 => return Err(error),
                Err(_) => break,
            }
        }
        self.synced(done)
    }

    /// Runs `run`. If it finds no space, writes all files back, commits and runs it once more:
    /// space that direct writes have replaced is freed only by a commit. If it reaches a limit,
    /// writes back what is charged below it, and commits if data was deleted.
    pub(crate) fn with_space<R>(&self, run: impl Fn() -> Result<R>) -> Result<R> {
        let mut result = run();
        if result.as_ref().is_err_and(Error::is_quota_exceeded) {
            let pin = self.pin()?;
            result = pin.filesystem().run_again_at_limit(self.id().subvolume, &run);
        }
        if !result.as_ref().is_err_and(Error::is_no_space) {
            return result;
        }
        let pin = self.pin()?;
        let filesystem = pin.filesystem();
        let write_state = filesystem.write_state()?;
        filesystem.shared.source.release_space();
        // Deleted files may still have their space.
        if write_state.cleaner.wait_until_evicted(&BTreeSet::clone) {
            filesystem.commit()?;
            result = run();
            if !result.as_ref().is_err_and(Error::is_no_space) {
                return result;
            }
        }
        if write_state.dirty_count() > 0 && filesystem.forest().commits_for_space() {
            // A file keeps its writeback error for its next sync.
            drop(filesystem.write_back_all(write_state, MergeScope::Whole));
            filesystem.commit()?;
        }
        run()
    }

    /// Appends `bytes` to the file. Returns the offset at which they were written, and how many
    /// were.
    pub fn append(&self, bytes: &[u8], privileges: Privileges) -> Result<(u64, usize)> {
        self.write(None, bytes, privileges, CacheMode::Cached, Wait::Block)
    }

    /// Writes through the page cache. `stay` says what happens to the pages when they are clean;
    /// `throttled_as`, whose limits the caller is throttled by.
    fn write_in(
        &self,
        offset: Option<u64>,
        bytes: &[u8],
        privileges: Privileges,
        (stay, throttled_as): (CacheMode, CacheMode),
        wait: Wait,
    ) -> Result<(u64, usize)> {
        if bytes.is_empty() {
            self.check_empty_write(offset, wait)?;
            return Ok((offset.unwrap_or_else(|| self.len()), 0));
        }
        self.may_begin_at(offset)?;
        let timed = self.timed(Operation::CachedWrite);
        let change = |file: &mut FileState, inode: &Inode, _: InodeUpdate<'_>| {
            let end = file.size();
            self.may_write_at(inode, end, offset)?;
            let offset = offset.unwrap_or(end);
            Ok((offset, file.write(offset, bytes, stay, wait)?))
        };
        let altered = || self.alter_as(Some(privileges), Drain::No(wait), change);
        let result = match wait {
            Wait::Block => self.with_space(altered),
            // A write that may block finds out whether there is space after all.
            Wait::NoWait => altered()
                .map_err(|error| if error.is_quota_exceeded() { Error::WouldBlock } else { error }),
        };
        if is_refused(&result) {
            timed.forget();
        }
        let (at, written) = self.synced(result?)?;
        // A write that must not block stays below the limits of the throttle.
        if wait == Wait::Block {
            self.balance_dirty_pages(written, throttled_as)?;
        }
        Ok((at, written))
    }

    /// Checks a write of no bytes, which is refused like any other, and changes nothing.
    fn check_empty_write(&self, offset: Option<u64>, wait: Wait) -> Result<()> {
        let pin = self.pin()?;
        let inode = pin.filesystem().attributes_as(pin.entry(), wait)?;
        self.may_write(&inode)?;
        self.may_write_at(&inode, self.len(), offset)
    }

    /// Throttles a writer that is faster than the devices, with nothing locked.
    fn balance_dirty_pages(&self, bytes: usize, stay: CacheMode) -> Result<()> {
        let filesystem = self.pin()?.filesystem();
        if filesystem.shared.source.has_flusher() {
            filesystem.balance_dirty_pages(bytes, stay);
        }
        Ok(())
    }

    /// Sets the size: bytes past the new end are dropped, new bytes read as zeros. The mtime
    /// becomes now even if the size does not change, as with ftruncate(2).
    pub fn truncate(&self, size: u64) -> Result<()> {
        let mtime = Some(crate::SetTime::Now);
        let set = crate::SetAttributes { mtime, ..crate::SetAttributes::size(size) };
        let pin = self.pin()?;
        pin.filesystem().set_attributes(pin.id(), &set).map(drop)
    }

    /// Preallocates, punches or zeroes a range.
    ///
    /// # Errors
    /// As [`File::write_at`]; [`Error::InvalidArgument`] for an empty range.
    pub fn allocate(&self, range: Range<u64>, how: Allocate) -> Result<()> {
        self.allocate_as(range, how, Privileges::Keep)
    }

    /// As [`File::allocate`], and strips the privileges that the caller may not keep.
    pub fn allocate_as(
        &self,
        range: Range<u64>,
        how: Allocate,
        privileges: Privileges,
    ) -> Result<()> {
        if range.is_empty() {
            return Err(Error::InvalidArgument { what: "the range is empty" });
        }
        let _watch = self.watch_panics();
        let pin = self.pin()?;
        let inode = pin.filesystem().attributes(pin.entry())?;
        Filesystem::may_write(&inode)?;
        let preallocates = matches!(how, Allocate::Extend | Allocate::KeepSize);
        if inode.flags.contains(InodeFlags::APPEND) && !preallocates {
            return Err(Error::NotPermitted { what: "the file is append-only" });
        }
        let altered = self.with_space(|| self.allocate_once(range.clone(), how, privileges))?;
        self.synced(altered)
    }

    fn allocate_once(
        &self,
        range: Range<u64>,
        how: Allocate,
        privileges: Privileges,
    ) -> Result<Altered<()>> {
        self.alter(privileges, |file, _, stamp| {
            match how {
                Allocate::Extend => file.allocate(range, FallocateSize::Extend, stamp),
                Allocate::KeepSize => file.allocate(range, FallocateSize::Keep, stamp),
                Allocate::PunchHole => file.punch_hole(range, stamp),
                Allocate::Zero => file.zero_range(range, FallocateSize::Extend, stamp),
                Allocate::ZeroKeepSize => file.zero_range(range, FallocateSize::Keep, stamp),
            }
            .map_err(Error::from)
        })
    }

    /// Makes the file's data, attributes and names durable: writes its dirty pages back, and what
    /// changed of the file to the log tree. It commits instead if the log cannot express the
    /// changes, or if [`Tunables::log_tree`](crate::Tunables::log_tree) is off.
    ///
    /// # Errors
    /// Data that could not be written, also by earlier writes and through other handles: every
    /// handle that was open when data was lost returns the loss once. Clones of a handle count as
    /// one handle, as duplicates of a file descriptor do. A handle that is opened later returns a
    /// loss that no handle has returned.
    pub fn sync_all(&self) -> Result<()> {
        let Some(pin) = self.pin.as_ref() else { return Ok(()) };
        let _timed = self.timed(Operation::Sync);
        let filesystem = pin.filesystem();
        let write_state = filesystem.may_sync()?;
        let scope = MergeScope::Acknowledged;
        let merged = filesystem.write_back_one(write_state, pin.entry(), scope);
        let durable = filesystem.sync_file(write_state, pin.entry());
        merged.and(self.check_errors()).and(durable)
    }

    /// Makes the file's data durable, and the metadata that is needed to read it.
    pub fn sync_data(&self) -> Result<()> {
        self.sync_all()
    }

    pub(crate) fn pin(&self) -> Result<&Pin> {
        self.pin.as_deref().ok_or(Error::ReadOnly { what: "the filesystem" })
    }

    /// Changes the file's bytes under its inode lock, and updates the inode (law 2). The caller
    /// syncs a synchronous file ([`Self::synced`]).
    pub(super) fn alter<R>(
        &self,
        privileges: Privileges,
        change: impl FnOnce(&mut FileState, &Inode, InodeUpdate<'_>) -> Result<R>,
    ) -> Result<Altered<R>> {
        self.alter_as(Some(privileges), Drain::Yes, change)
    }

    fn alter_as<R>(
        &self,
        privileges: Option<Privileges>,
        drain: Drain,
        change: impl FnOnce(&mut FileState, &Inode, InodeUpdate<'_>) -> Result<R>,
    ) -> Result<Altered<R>> {
        let wait = match drain {
            Drain::Yes => Wait::Block,
            Drain::No(wait) => wait,
        };
        let pin = self.pin()?;
        let filesystem = pin.filesystem();
        let writing = filesystem.begin_as(wait)?;
        let write_state = &*writing;
        let entry = pin.entry();
        let subvolume = filesystem.writable_subvolume_as(write_state, entry.id, wait)?;
        let mut state = match drain {
            Drain::Yes => entry.lock(),
            Drain::No(wait) => entry.lock_without_drain_as(wait)?,
        };
        let inode = filesystem.attributes_as(entry, wait)?;
        Filesystem::may_change_content(&inode)?;
        entry.may_change_content()?;
        if let Some(privileges) = privileges {
            self.may_write(&inode)?;
            filesystem.strip_privileges(write_state, &subvolume, entry, privileges, wait)?;
        }
        let is_synchronous = inode.flags.contains(InodeFlags::SYNC);
        if is_synchronous {
            // The caller syncs it.
            may_block(wait)?;
        }
        let data = filesystem.file_state(&subvolume.tree, entry, &mut state, wait)?;
        if wait == Wait::Block && has_too_much_replaced(data) {
            data.drain();
        }
        let result = filesystem.alter_file(
            write_state,
            &subvolume,
            entry,
            &mut state,
            self.times,
            change,
        )?;
        Ok(Altered { result, is_synchronous })
    }

    /// Syncs the file after a change if it is synchronous, and returns the result of the change.
    /// Not within what is run again where there is no space: the bytes of an append are in the file
    /// also if the sync finds none.
    pub(super) fn synced<R>(&self, altered: Altered<R>) -> Result<R> {
        if altered.is_synchronous {
            self.sync_all()?;
        }
        Ok(altered.result)
    }
}

#[cfg(test)]
mod tests {
    use super::Privileges;
    use crate::{Allocate, Error, FileId, Filesystem, MountOptions, NewInode, Result};
    use butternut_device::{Device, MemoryDevice};
    use butternut_format::inode::InodeFlags;
    use butternut_format::quota::QgroupId;
    use butternut_format::units::{Ino, TreeId};
    use butternut_mkfs::MkfsOptions;
    use butternut_pages::CacheMode;
    use butternut_sys::wait::Wait;
    use butternut_tree::{EnospcInjector, QgroupLimits};
    use std::sync::Arc;

    /// More holes than one step of a preallocation fills.
    const HOLES: u64 = 300;
    const BLOCK: u64 = 4096;
    const BYTES: [u8; 4096] = [1; 4096];

    fn volume(injector: Option<EnospcInjector>) -> Filesystem {
        let device = Arc::new(MemoryDevice::new("memory", 256 << 20));
        butternut_mkfs::make(&*device, &MkfsOptions::default()).unwrap();
        let options = MountOptions::default().read_only(false).commit_seconds(0);
        let options = options.enospc_injector(injector);
        Filesystem::open_devices(vec![device as Arc<dyn Device>], &options).unwrap()
    }

    #[test]
    fn a_preallocation_that_is_refused_midway_keeps_its_flag() {
        let injector = EnospcInjector::default();
        let fs = volume(Some(injector.clone()));
        let mut seen = 0;
        for nth in HOLES..HOLES + 8 {
            let name = nth.to_string();
            let id = fs.create(fs.root(), name.as_bytes(), &NewInode::new(0o644)).unwrap();
            let file = fs.open_file(id).unwrap();
            for hole in 0..HOLES {
                file.write_at((2 * hole + 1) * BLOCK, &BYTES).unwrap();
            }
            fs.sync().unwrap();
            injector.fail_every(nth);
            let range = 0..2 * HOLES * BLOCK;
            let done = file.allocate_once(range, Allocate::Extend, Privileges::Keep);
            injector.fail_none();
            let tree = fs.forest().tree(TreeId(id.subvolume)).unwrap().unwrap();
            let item = butternut_names::inode(&tree, Ino(id.ino)).unwrap().unwrap();
            let is_partial = done.is_err() && item.flags.contains(InodeFlags::PREALLOC);
            seen += usize::from(is_partial);
            let known = fs.attributes(file.pin().unwrap().entry()).unwrap();
            let has_flag = |flags: InodeFlags| flags.contains(InodeFlags::PREALLOC);
            assert_eq!(has_flag(known.flags), has_flag(item.flags), "reservation {nth}");
            assert_eq!((known.size, known.bytes_used), (item.size, item.bytes_used));
        }
        assert!(seen > 0, "no preallocation was refused after its first step");
    }

    #[test]
    fn a_locked_file_is_not_waited_for() {
        let device = Arc::new(MemoryDevice::new("memory", 256 << 20));
        butternut_mkfs::make(&*device, &MkfsOptions::default()).unwrap();
        let options = MountOptions::default().read_only(false);
        let device = device as Arc<dyn Device>;
        let fs = Filesystem::open_devices(vec![device], &options).unwrap();
        let id = fs.create(fs.root(), b"file", &NewInode::new(0o644)).unwrap();
        let file = fs.open_file(id).unwrap();
        file.write_at(0, &[7; 8192]).unwrap();
        let mut buf = [0; 10];
        let (stay, wait) = (CacheMode::Cached, Wait::NoWait);
        let done = |result: Result<usize>| match result {
            Err(Error::WouldBlock) => None,
            result => Some(result.unwrap()),
        };
        let mut read = || done(file.read(4090, &mut buf, stay, wait));
        let write = || {
            let written = file.write(Some(0), &[8; 10], Privileges::Keep, stay, wait);
            done(written.map(|(_, written)| written))
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

    /// Law 4: also where a quota refuses the write.
    #[test]
    fn a_write_that_must_not_block_writes_no_file_back_at_a_limit() {
        let fs = volume(None);
        fs.enable_quotas().unwrap();
        let sub = fs.create_subvolume(fs.root(), b"sub", &NewInode::new(0o755)).unwrap();
        let make = |name: &[u8]| {
            let id = fs.create(FileId::root_of(sub), name, &NewInode::new(0o644)).unwrap();
            let file = fs.open_file(id).unwrap();
            for block in 0..4 {
                file.write_at(block * BLOCK, &BYTES).unwrap();
            }
            file
        };
        let (file, other) = (make(b"file"), make(b"other"));
        fs.sync().unwrap();
        // Everything that the write needs is in memory.
        file.read_exact_at(0, &mut [0; 4 * 4096]).unwrap();
        file.write_at(0, &BYTES).unwrap();
        other.write_at(0, &BYTES).unwrap();
        let groups = fs.quotas().unwrap().unwrap().groups;
        let used = groups.iter().find(|group| group.id.0 == sub).unwrap().usage.referenced;
        let limits = QgroupLimits { referenced: Some(used), exclusive: None };
        fs.limit_qgroup(QgroupId(sub), limits).unwrap();
        let write_state = fs.write_state().unwrap();
        assert!(write_state.is_dirty(other.id()));
        let refused =
            file.write(Some(BLOCK), &BYTES, Privileges::Keep, CacheMode::Cached, Wait::NoWait);
        assert!(write_state.is_dirty(other.id()), "a NOWAIT write has written another file back");
        assert!(matches!(refused, Err(Error::WouldBlock)), "{refused:?}");
    }

    /// Law 3: a synchronous file has the bytes if only the sync failed. They are not appended
    /// again.
    #[test]
    fn an_append_whose_sync_finds_no_space_is_made_once() {
        use crate::AttributeFlags;
        use butternut_file::RequestOwner;
        use std::sync::Weak;
        use std::time::Duration;

        /// Space returns between the two attempts: `with_space` asks all owners for theirs.
        #[derive(Debug)]
        struct SpaceReturns(EnospcInjector);
        impl RequestOwner for SpaceReturns {
            fn complete_some(&self, _: Duration) {}
            fn release_space(&self) {
                self.0.fail_none();
            }
        }

        let injector = EnospcInjector::default();
        let fs = volume(Some(injector.clone()));
        let returns: Arc<dyn RequestOwner> = Arc::new(SpaceReturns(injector.clone()));
        let owner: Weak<dyn RequestOwner> = Arc::downgrade(&returns);
        fs.shared.source.add_request_owner(owner);
        for nth in 1..6 {
            let name = nth.to_string();
            let id = fs.create(fs.root(), name.as_bytes(), &NewInode::new(0o644)).unwrap();
            fs.set_attribute_flags(id, AttributeFlags::SYNC).unwrap();
            let file = fs.open_file(id).unwrap();
            file.append(b"first line", Privileges::Keep).unwrap();
            // 1: the reservation of the append itself. 2: the merge of its sync, and all after it.
            injector.fail_from(nth);
            let appended = file.append(b"other line", Privileges::Keep);
            injector.fail_none();
            let mut all = vec![0; 64];
            let read = file.read_at(0, &mut all).unwrap();
            assert!(read <= 20, "{nth}: {appended:?} {:?}", String::from_utf8_lossy(&all[..read]));
        }
    }

    /// Files are written back at a limit before the operation begins, as by the throttle: a
    /// snapshot, and all writes that wait for it, do not wait for them.
    #[test]
    fn the_room_that_is_made_at_a_limit_excludes_no_snapshot() {
        use std::{thread, time::Duration};
        let fs = volume(None);
        fs.enable_quotas().unwrap();
        let sub = fs.create_subvolume(fs.root(), b"sub", &NewInode::new(0o755)).unwrap();
        let make = |name: &[u8]| {
            let id = fs.create(FileId::root_of(sub), name, &NewInode::new(0o644)).unwrap();
            let file = fs.open_file(id).unwrap();
            file.write_at(0, &BYTES).unwrap();
            file
        };
        let (file, other) = (make(b"file"), make(b"other"));
        fs.sync().unwrap();
        other.write_at(0, &BYTES).unwrap();
        let groups = fs.quotas().unwrap().unwrap().groups;
        let used = groups.iter().find(|group| group.id.0 == sub).unwrap().usage.referenced;
        let limits = QgroupLimits { referenced: Some(used), exclusive: None };
        fs.limit_qgroup(QgroupId(sub), limits).unwrap();
        // The writeback of the other file waits, as for a slow device.
        let entry = Arc::clone(other.pin().unwrap().entry());
        let stops_writeback = entry.lock();
        let writing = thread::spawn(move || drop(file.write_at(BLOCK, &BYTES)));
        // Until it waits. A slow machine only proves less.
        thread::sleep(Duration::from_millis(200));
        assert!(!writing.is_finished(), "it waits for the other file");
        let excluder = fs.clone();
        let excluding = thread::spawn(move || {
            drop(excluder.write_state().unwrap().snapshots.exclude_writes());
        });
        let finishes = |_| {
            thread::sleep(Duration::from_millis(10));
            excluding.is_finished()
        };
        let is_excluded = (0..6000).any(finishes);
        drop(stops_writeback);
        writing.join().unwrap();
        excluding.join().unwrap();
        assert!(is_excluded, "a snapshot waits for the writeback of all files below the limit");
    }
}
