//! Clones and deduplication: ranges of files that share their extents (`FICLONERANGE`,
//! `FIDEDUPERANGE`).
//!
//! Laws:
//!
//! 1. Both inodes are locked exclusively, in the order of their ids, from the check of the request
//!    until the extents are shared. What is in flight on either file is completed first, so the
//!    clone has the bytes of one moment.
//! 2. Before the extents are shared, the source is written back and merged: its tree then has
//!    every byte, with its checksum. Data of the source that is lost during the call, also by the
//!    writeback of another thread, is an error of the call.
//! 3. A request that is refused has changed nothing. One that fails midway has cloned the range up
//!    to some block (law 2 of `butternut_file`'s `clone`), and has set the times of the target. One
//!    that found no space is made once more from its beginning, for the same range: a file that is
//!    cloned to its own end may have grown meanwhile.
//! 4. The target changes as by a write: its times are set, and its privileges stripped. A
//!    deduplication changes no byte, so it changes neither.

use crate::background::merger::MergeScope;
use crate::inode::table::{InodeEntry, InodeState, LockedInodes};
use crate::write_state::{WritableSubvolume, WriteState};
use crate::{Error, File, Filesystem, Privileges, Result};
use butternut_file::{CloneRange, ErrorCursor, FileState, FileView};
use butternut_format::inode::{Inode, InodeFlags};
use butternut_format::units::{SECTOR_BYTES, length};
use butternut_pages::WritebackReason;
use butternut_sys::wait::Wait;
use butternut_tree::{Tree, TreeError};
use std::cell::Cell;
use std::sync::Arc;

/// The most bytes that one deduplication compares and shares.
const DEDUPE_BYTES_MAX: u64 = 16 << 20;

/// Bytes that a deduplication compares in one step.
const COMPARE_BYTES: u64 = 1 << 20;

const UNALIGNED: Error =
    Error::InvalidArgument { what: "a clone begins and ends at block borders" };

/// The result of [`File::dedupe_range`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dedupe {
    /// The ranges hold the same bytes, and share their extents now: this many bytes.
    Shared(u64),
    /// The ranges hold different bytes. Nothing has changed.
    Differs,
}

/// Sizes that decide what can be cloned, in bytes.
#[derive(Clone, Copy, Debug)]
struct Sizes {
    source: u64,
    target: u64,
}

/// A request to clone or deduplicate, as its caller describes it.
#[derive(Clone, Copy, Debug)]
struct Request {
    range: CloneRange,
    is_same_file: bool,
}

impl Request {
    /// Returns what is to be cloned; `None` if nothing is.
    fn clone_of(self, sizes: Sizes) -> Result<Option<CloneRange>> {
        let CloneRange { from, to, bytes } = self.range;
        let bytes = match bytes {
            0 if from > sizes.source => return Err(Self::past_end()),
            0 => sizes.source - from,
            bytes => bytes,
        };
        if bytes == 0 {
            return Ok(None);
        }
        let end = self.check_bounds(bytes, sizes.source)?;
        let is_whole =
            bytes.is_multiple_of(SECTOR_BYTES) || end == sizes.source && to + bytes >= sizes.target;
        if !is_whole {
            return Err(UNALIGNED);
        }
        self.check_apart(bytes)?;
        Ok(Some(CloneRange { from, to, bytes }))
    }

    /// As [`Self::clone_of`], for a second attempt to clone `first`, after the first one found no
    /// space. What has changed meanwhile may forbid it: then there was no space.
    fn clone_again(self, first: CloneRange, sizes: Sizes) -> Result<Option<CloneRange>> {
        let again = Self { range: first, ..self };
        again.clone_of(sizes).map_err(|_| Error::Tree(TreeError::NoSpace { bytes: first.bytes }))
    }

    /// Returns what is to be compared and shared; `None` if nothing is.
    fn dedupe_of(self, sizes: Sizes) -> Result<Option<CloneRange>> {
        let CloneRange { from, to, bytes } = self.range;
        if bytes == 0 {
            return Ok(None);
        }
        let end = self.check_bounds(bytes, sizes.source)?;
        if to + bytes > sizes.target {
            return Err(Self::past_end());
        }
        let is_to_ends = end == sizes.source && to + bytes == sizes.target;
        let whole = |bytes: u64| bytes - bytes % SECTOR_BYTES;
        let bytes = if bytes > DEDUPE_BYTES_MAX {
            DEDUPE_BYTES_MAX
        } else if is_to_ends {
            bytes
        } else {
            whole(bytes)
        };
        self.check_apart(bytes)?;
        Ok((bytes > 0).then_some(CloneRange { from, to, bytes }))
    }

    /// Checks that the offsets are aligned and the range is inside the source. Returns its end.
    fn check_bounds(&self, bytes: u64, source_size: u64) -> Result<u64> {
        let CloneRange { from, to, .. } = self.range;
        if !from.is_multiple_of(SECTOR_BYTES) || !to.is_multiple_of(SECTOR_BYTES) {
            return Err(UNALIGNED);
        }
        let no_end = || Error::InvalidArgument { what: "the range has no end" };
        to.checked_add(bytes).and_then(|end| end.checked_add(SECTOR_BYTES)).ok_or_else(no_end)?;
        let end = from.checked_add(bytes).ok_or_else(no_end)?;
        if end > source_size { Err(Self::past_end()) } else { Ok(end) }
    }

    /// Checks that the blocks of the ranges do not overlap in one file.
    fn check_apart(&self, bytes: u64) -> Result<()> {
        let CloneRange { from, to, .. } = self.range;
        let blocks = bytes.next_multiple_of(SECTOR_BYTES);
        if self.is_same_file && from < to + blocks && to < from + blocks {
            return Err(Error::InvalidArgument { what: "the ranges overlap" });
        }
        Ok(())
    }

    fn past_end() -> Error {
        Error::InvalidArgument { what: "the range ends after the file" }
    }
}

/// Two files whose inodes are locked, and whose ranges are to share extents.
struct Pair<'a> {
    filesystem: &'a Filesystem,
    write_state: &'a WriteState,
    subvolume: &'a WritableSubvolume,
    source_tree: &'a Tree,
    source: &'a Arc<InodeEntry>,
    target: &'a Arc<InodeEntry>,
}

impl File {
    /// Makes `bytes` bytes at `to` share the extents of `other` at `from` (a reflink,
    /// `FICLONERANGE`): no data is copied, and a later write to either file leaves the other as it
    /// is. 0 bytes stand for everything up to the end of `other`. The files may be in different
    /// subvolumes. `other` may be this file, and may be in a read-only subvolume.
    ///
    /// The offsets are multiples of 4096. So is the length, unless the range ends at the end of
    /// `other`, and at or after the end of this file. A range of many extents is cloned in several
    /// transactions, so a crash may leave the beginning of it.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for other alignments, for a range that ends after `other`, for
    /// overlapping ranges of one file, and if only one of the files has checksums;
    /// [`Error::CrossesFilesystems`]; otherwise as [`File::write_at`]. This file is append-only:
    /// [`Error::NotPermitted`].
    pub fn clone_range(&self, to: u64, other: &Self, from: u64, bytes: u64) -> Result<()> {
        self.clone_range_as(to, other, (from, bytes), Privileges::Keep)
    }

    /// As [`File::clone_range`], of the `bytes` bytes at `from`, and strips the privileges of this
    /// file that the caller may not keep.
    pub fn clone_range_as(
        &self,
        to: u64,
        other: &Self,
        (from, bytes): (u64, u64),
        privileges: Privileges,
    ) -> Result<()> {
        let range = CloneRange { from, to, bytes };
        self.clone_counted(range, other, privileges, &Cell::new(0))?;
        self.sync_if_synchronous()
    }

    /// As [`File::clone_range_as`], and returns before the clone is durable. Raises `done` to the
    /// number of bytes that are cloned, also if the clone fails.
    pub(super) fn clone_counted(
        &self,
        range: CloneRange,
        other: &Self,
        privileges: Privileges,
        done: &Cell<u64>,
    ) -> Result<()> {
        let _watch = self.watch_panics();
        let request = Request { range, is_same_file: self.id() == other.id() };
        let first: Cell<Option<CloneRange>> = Cell::new(None);
        let errors_before = other.view().error_position();
        self.with_space(|| {
            self.with_pair((other, &errors_before), |pair, locked| {
                pair.check_checksums()?;
                let inode = pair.filesystem.attributes(pair.target)?;
                self.may_clone_to(&inode, range.to)?;
                let view = pair.source_view(locked)?;
                let sizes = pair.sizes(&view, locked)?;
                let resolved = match first.get() {
                    None => request.clone_of(sizes)?,
                    Some(first) => request.clone_again(first, sizes)?,
                };
                let Some(range) = resolved else { return Ok(()) };
                first.set(Some(range));
                pair.strip_privileges(privileges)?;
                pair.merge_source(locked)?;
                let state = locked.of(pair.target);
                // An error after a part is shared is returned when the times of the file are set.
                pair.filesystem.alter_file(
                    pair.write_state,
                    pair.subvolume,
                    pair.target,
                    state,
                    self.times,
                    |file, _, stamp| match file.clone_range(&view, range, stamp, done) {
                        Err(error) if done.get() > 0 => Ok(Err(Error::from(error))),
                        cloned => Ok(Ok(cloned?)),
                    },
                )?
            })
        })
    }

    /// Compares `bytes` bytes at `to` with those of `other` at `from`, and if they are equal, makes
    /// them share the extents of `other` (`FIDEDUPERANGE`). At most 16 MiB are compared; call it
    /// again for the rest. The times of the file stay.
    ///
    /// # Errors
    /// As [`File::clone_range`]; [`Error::InvalidArgument`] also for a range that ends after this
    /// file. A length that is not a multiple of 4096 is rounded down, unless both ranges end at the
    /// ends of their files.
    pub fn dedupe_range(&self, to: u64, other: &Self, from: u64, bytes: u64) -> Result<Dedupe> {
        let _watch = self.watch_panics();
        let is_same_file = self.id() == other.id();
        let request = Request { range: CloneRange { from, to, bytes }, is_same_file };
        let errors_before = other.view().error_position();
        self.with_space(|| {
            self.with_pair((other, &errors_before), |pair, locked| {
                if bytes == 0 {
                    return Ok(Dedupe::Shared(0));
                }
                pair.check_checksums()?;
                let inode = pair.filesystem.attributes(pair.target)?;
                self.may_clone_to(&inode, to)?;
                let view = pair.source_view(locked)?;
                let sizes = pair.sizes(&view, locked)?;
                let Some(range) = request.dedupe_of(sizes)? else { return Ok(Dedupe::Shared(0)) };
                if !self.has_same_bytes(&view, &range)? {
                    return Ok(Dedupe::Differs);
                }
                pair.merge_source(locked)?;
                let state = locked.of(pair.target);
                pair.filesystem.alter_file_to(
                    pair.write_state,
                    pair.subvolume,
                    pair.target,
                    state,
                    inode,
                    |file, _, stamp| Ok(file.clone_range(&view, range, stamp, &Cell::new(0))?),
                )?;
                Ok(Dedupe::Shared(range.bytes))
            })
        })
    }

    /// Locks this file, the target, and `source`, and calls `run` for them (law 1). Fails if data
    /// of the source was lost since `errors_before`, also in an earlier attempt (law 2).
    fn with_pair<R>(
        &self,
        (source, errors_before): (&Self, &ErrorCursor),
        run: impl FnOnce(&Pair<'_>, &mut LockedInodes<'_>) -> Result<R>,
    ) -> Result<R> {
        let pin = self.pin()?;
        let filesystem = pin.filesystem();
        let view = source.view();
        let source = source.pin.as_deref();
        let is_here = |other: &Filesystem| Arc::ptr_eq(&other.shared, &filesystem.shared);
        let source = source.filter(|source| is_here(source.filesystem()));
        let source = source.ok_or(Error::CrossesFilesystems)?.entry();
        let target = pin.entry();
        let mut flushed = Ok(());
        if filesystem.shared.source.has_flusher() {
            // Most of the data is written back while other operations may still use the files.
            let reason = WritebackReason::Sync;
            flushed = filesystem.flush_files(std::slice::from_ref(source), reason);
        }
        let writing = filesystem.begin()?;
        let subvolume = filesystem.writable_subvolume(&writing, target.id)?;
        let source_tree = filesystem.tree_of(source.id)?;
        flushed?;
        let mut locked = LockedInodes::lock(&[source, target]);
        let pair = Pair {
            filesystem,
            write_state: &writing,
            subvolume: &subvolume,
            source_tree: &source_tree,
            source,
            target,
        };
        // What another thread was writing back has been completed by now, or is lost (law 2).
        view.error_after(errors_before).map_or(Ok(()), |error| Err(Error::from(error)))?;
        run(&pair, &mut locked)
    }

    /// Checks that the flags of the target allow a clone.
    fn may_clone_to(&self, inode: &Inode, to: u64) -> Result<()> {
        self.may_write(inode)?;
        Filesystem::may_write(inode)?;
        if inode.flags.contains(InodeFlags::APPEND) {
            return Err(Error::NotPermitted { what: "the file is append-only" });
        }
        self.may_begin_at(Some(to))
    }

    /// Returns whether a range of the source and its place in this file hold the same bytes. The
    /// caller has both inodes locked.
    fn has_same_bytes(&self, source: &FileView, range: &CloneRange) -> Result<bool> {
        let step = |done: u64| usize::try_from((range.bytes - done).min(COMPARE_BYTES)).ok();
        let (mut have, mut want) = (Vec::new(), Vec::new());
        let mut done = 0;
        while done < range.bytes {
            let bytes = step(done).unwrap_or_default();
            have.resize(bytes, 0);
            want.resize(bytes, 0);
            self.read_whole(self.view(), range.to + done, &mut have)?;
            self.read_whole(source, range.from + done, &mut want)?;
            if have != want {
                return Ok(false);
            }
            done += length(bytes);
        }
        Ok(true)
    }

    fn read_whole(&self, view: &FileView, from: u64, buf: &mut [u8]) -> Result<()> {
        let mut done = 0;
        while done < buf.len() {
            match self.source().read_at(view, from + length(done), &mut buf[done..])? {
                0 => return Err(Error::EndOfFile),
                read => done += read,
            }
        }
        Ok(())
    }

    /// Makes the file durable if it has the flag for synchronous writes.
    pub(super) fn sync_if_synchronous(&self) -> Result<()> {
        let pin = self.pin()?;
        let inode = pin.filesystem().attributes(pin.entry())?;
        if inode.flags.contains(InodeFlags::SYNC) { self.sync_all() } else { Ok(()) }
    }
}

impl Pair<'_> {
    /// Checks that both files have checksums, or neither has.
    fn check_checksums(&self) -> Result<()> {
        let is_without = |entry| -> Result<bool> {
            Ok(self.filesystem.attributes(entry)?.flags.contains(InodeFlags::NODATASUM))
        };
        if is_without(self.source)? == is_without(self.target)? {
            return Ok(());
        }
        Err(Error::InvalidArgument { what: "only one of the files has checksums" })
    }

    fn strip_privileges(&self, privileges: Privileges) -> Result<()> {
        let (write_state, subvolume, target) = (self.write_state, self.subvolume, self.target);
        let wait = Wait::Block;
        self.filesystem.strip_privileges(write_state, subvolume, target, privileges, wait)
    }

    /// Returns the view of the source.
    fn source_view(&self, locked: &mut LockedInodes<'_>) -> Result<FileView> {
        let (tree, state) = (self.source_tree, locked.of(self.source));
        let file = self.filesystem.file_state(tree, self.source, state, Wait::Block)?;
        Ok(file.view().clone())
    }

    fn sizes(&self, source: &FileView, locked: &mut LockedInodes<'_>) -> Result<Sizes> {
        let (tree, state) = (&self.subvolume.tree, locked.of(self.target));
        let target = self.filesystem.file_state(tree, self.target, state, Wait::Block)?.size();
        Ok(Sizes { source: source.size(), target })
    }

    /// Writes the source back and merges it (law 2). The target is merged by the clone.
    fn merge_source(&self, locked: &mut LockedInodes<'_>) -> Result<()> {
        let state = locked.of(self.source);
        // Nothing is written to a read-only subvolume: the trees have everything of its files.
        let is_clean = |file: &FileState| file.is_clean() && file.dirty_bytes() == 0;
        if state.file.as_deref().is_none_or(is_clean) || self.source.id == self.target.id {
            return Ok(());
        }
        let source: (&InodeEntry, &mut InodeState) = (self.source, state);
        self.filesystem.merge_locked(self.write_state, std::iter::once(source), MergeScope::Whole)
    }
}

#[cfg(test)]
mod tests {
    use crate::{Filesystem, MountOptions, NewInode, Privileges};
    use butternut_device::{Device, Fault, FaultyDevice, MemoryDevice, Rule};
    use butternut_format::chunk::BlockGroupFlags;
    use butternut_mkfs::MkfsOptions;
    use butternut_pages::WritebackReason;
    use butternut_tree::EnospcInjector;
    use std::sync::Arc;
    use std::thread;

    /// The other thread may be a flusher, the committer, or a writer over the dirty limits.
    #[test]
    fn data_of_the_source_that_another_thread_loses_during_the_call_is_an_error_of_the_call() {
        const BYTES: usize = 25 * 4096;
        for is_copy in [false, true] {
            let memory = Arc::new(MemoryDevice::new("memory", 256 << 20));
            butternut_mkfs::make(&*memory, &MkfsOptions::default()).unwrap();
            let device = Arc::new(FaultyDevice::new(memory as Arc<dyn Device>, 1));
            let options = MountOptions::default().read_only(false).commit_seconds(0);
            let devices = vec![Arc::clone(&device) as Arc<dyn Device>];
            let fs = Filesystem::open_devices(devices, &options).unwrap();
            let make = |name: &[u8]| {
                fs.open_file(fs.create(fs.root(), name, &NewInode::new(0o644)).unwrap()).unwrap()
            };
            let (source, target) = (make(b"source"), make(b"target"));
            source.write_at(0, &vec![1; BYTES]).unwrap();
            fs.sync().unwrap();
            source.write_at(0, &vec![2; BYTES]).unwrap();

            let chunks = fs.inspect().chunks();
            let is_data = |flags: BlockGroupFlags| flags.contains(BlockGroupFlags::DATA);
            let data = chunks.iter().find(|chunk| is_data(chunk.flags)).unwrap();
            let at = data.stripes[0].1..data.stripes[0].1 + data.bytes;
            device.add(Rule::at(at.clone(), Fault::WriteError));
            let held = device.add(Rule::at(at, Fault::HeldWrite));
            let entry = fs.write_state().unwrap().table.entry(source.id());
            let (flusher, of_flusher) = (fs.clone(), Arc::clone(&entry));
            let flushing =
                thread::spawn(move || flusher.flush_files(&[of_flusher], WritebackReason::Sync));
            device.wait_for_held_writes(1);
            let (from, to) = (source.clone(), target.clone());
            let cloning = thread::spawn(move || {
                if is_copy {
                    to.copy_range(0, &from, 0, u64::MAX).map(drop)
                } else {
                    to.clone_range(0, &from, 0, 0)
                }
            });
            // The call has the inode locked, and waits for the batch of the other thread.
            while entry.try_lock_shared().is_some() && !cloning.is_finished() {
                thread::yield_now();
            }
            assert!(device.remove(held));
            assert!(flushing.join().unwrap().is_err());
            let error = cloning.join().unwrap().unwrap_err();
            assert_eq!(error.errno(), 5, "{error:?}");
            assert_eq!(target.len(), 0);
            device.clear();

            // An earlier loss does not refuse later calls, and the source reports it once.
            target.clone_range(0, &source, 0, 0).unwrap();
            assert_eq!(source.sync_all().unwrap_err().errno(), 5);
            source.sync_all().unwrap();
            target.sync_all().unwrap();
            drop((source, target, entry));
            drop(fs.sync());
            fs.close().unwrap();
        }
    }

    /// The first attempt finds no space before it writes the source back. What is written back
    /// before the second one is lost.
    #[test]
    fn data_of_the_source_that_is_lost_between_two_attempts_is_an_error_of_the_call() {
        for nth in 8..64 {
            let memory = Arc::new(MemoryDevice::new("memory", 256 << 20));
            butternut_mkfs::make(&*memory, &MkfsOptions::default()).unwrap();
            let device = Arc::new(FaultyDevice::new(memory as Arc<dyn Device>, 1));
            let injector = EnospcInjector::default();
            // Without a committer there is no flusher.
            let options = MountOptions::default().read_only(false).commit_seconds(0);
            let options = options.enospc_injector(Some(injector.clone()));
            let devices = vec![Arc::clone(&device) as Arc<dyn Device>];
            let fs = Filesystem::open_devices(devices, &options).unwrap();
            let make = |name: &[u8], mode: u32| {
                fs.open_file(fs.create(fs.root(), name, &NewInode::new(mode)).unwrap()).unwrap()
            };
            let (source, target) = (make(b"source", 0o644), make(b"target", 0o4755));
            source.write_at(0, &vec![1; 25 * 4096]).unwrap();
            fs.sync().unwrap();
            source.write_at(0, &vec![2; 25 * 4096]).unwrap();
            let chunks = fs.inspect().chunks();
            let is_data = |flags: BlockGroupFlags| flags.contains(BlockGroupFlags::DATA);
            let data = chunks.iter().find(|chunk| is_data(chunk.flags)).unwrap();
            let at = data.stripes[0].1..data.stripes[0].1 + data.bytes;
            device.add(Rule::at(at, Fault::WriteError));
            injector.fail_every(nth);
            for number in 0..20 {
                // Reservations, until the next one to fail is that of the stripped privileges.
                drop(fs.create(fs.root(), format!("{number}").as_bytes(), &NewInode::new(0o644)));
            }
            let cloned = target.clone_range_as(0, &source, (0, 0), Privileges::Strip);
            injector.fail_none();
            device.clear();
            // The new bytes cannot be written, so no clone can have them.
            assert!(cloned.is_err(), "reservation {nth}: a clone of bytes that were overwritten");
            drop(fs.sync());
        }
    }
}
