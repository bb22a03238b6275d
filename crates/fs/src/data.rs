//! Changes of a file's bytes, through an open [`File`].
//!
//! Laws:
//!
//! 1. Who changes a file has its inode lock alone; who reads it shares it. So a read sees all of a
//!    write, or nothing.
//! 2. The size and the times that `stat` shows are those of the last write that returned. Its item
//!    in the tree follows with its data.
//! 3. A write that fails has changed nothing; one that finds space for a part says how much.

use crate::held::Held;
use crate::inode_table::{Body, InodeEntry};
use crate::latency::Operation;
use crate::writer::{WritableSubvolume, Writer};
use crate::{Error, File, Filesystem, Result};
use butternut_file::{FileEnd, FileState, Stamp};
use butternut_format::file_extent::Compression;
use butternut_format::inode::{Inode, InodeFlags};
use butternut_format::units::{Ino, length};
use butternut_names::{self as names, COMPRESSION, CompressionProperty};
use butternut_pages::{Reason, Stay, UncachedFlush};
use butternut_tree::Tree;
use std::ops::Range;
use std::sync::Arc;

/// What a cache in front of this library sends in one piece goes straight down from here on.
const LONG_BYTES_MIN: usize = 512 << 10;

/// Bytes that a copy moves at once.
const COPY_BYTES: usize = 1 << 20;

/// Whether a change is made by someone with the right to keep the file's privileges
/// (`CAP_FSETID`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Privileges {
    #[default]
    Keep,
    /// Capabilities go first, as the kernel has it for everyone; the bits of the mode stay.
    StripCapabilities,
    /// Set-user-id, set-group-id where the group may execute, and capabilities go first.
    Strip,
    /// Made by someone outside of the file's group: set-group-id goes whatever the group may do.
    StripForeign,
}

/// What `fallocate` does to a range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Allocate {
    /// Sets space aside; the file ends no earlier than the range.
    Extend,
    /// Sets space aside, past the end of the file too.
    KeepSize,
    /// Gives space back; the range reads as zeroes.
    PunchHole,
    /// Makes the range zeroes, with space set aside; the file ends no earlier.
    Zero,
    /// Makes the range zeroes, with space set aside, past the end of the file too.
    ZeroKeepSize,
}

/// Whether what is in flight on the file's data is waited for before a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Traffic {
    Stops,
    /// Only pages change, and whatever needs more waits itself.
    GoesOn,
}

/// What becomes of a file's times when its bytes change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Times {
    Now,
    Stay,
}

impl File {
    /// The same handle, for a cache in front of this library that keeps the times of the file: what
    /// is changed through it leaves them as they are, until the cache sets them.
    #[must_use]
    pub fn leaving_times(mut self) -> Self {
        self.times = Times::Stay;
        self
    }

    /// Writes `bytes` at `offset`, any alignment, and says how many were written: fewer than all
    /// only where space ran out. The data is in memory or on the devices; it survives a crash after
    /// [`File::sync_all`], [`Filesystem::sync`] or the next commit; at once where the file has the
    /// flag for that (`chattr +S`).
    ///
    /// # Errors
    /// [`Error::ReadOnly`], no space, a file that would be too large; [`Error::NotPermitted`] for
    /// what is immutable, or append-only (only its end may be written).
    pub fn write_at(&self, offset: u64, bytes: &[u8]) -> Result<usize> {
        self.write_as(offset, bytes, Privileges::Keep)
    }

    /// As [`File::write_at`], by someone who may not keep the file's privileges.
    pub fn write_as(&self, offset: u64, bytes: &[u8], privileges: Privileges) -> Result<usize> {
        self.write(Some(offset), bytes, privileges).map(|(_, written)| written)
    }

    /// As [`File::write_at`], for a cache in front of this library that sends late what was allowed
    /// when it was written: the flags of the inode are not asked again. What is long goes straight
    /// down, as that cache has it in memory already; shorter pieces wait, to be one extent with
    /// what follows.
    pub fn write_back(&self, offset: u64, bytes: &[u8]) -> Result<usize> {
        let _timed = self.timed(Operation::CachedWrite);
        let is_long = bytes.len() >= LONG_BYTES_MIN;
        let change = |file: &mut FileState, _: &Inode, _: Stamp<'_>| {
            Ok(if is_long {
                file.write_direct(offset, &bytes[..bytes.len() / 4096 * 4096])?
            } else {
                file.write_at(offset, bytes)?
            })
        };
        let traffic = if is_long { Traffic::Stops } else { Traffic::GoesOn };
        let written = self.with_space(|| self.alter_as(None, traffic, change))?;
        self.pace(written, Stay::Cached)?;
        Ok(written)
    }

    /// As [`File::write_as`], for a cache in front of this library that keeps the bytes itself:
    /// memory keeps nothing of them once they are written back. They wait here to be one extent
    /// with what follows.
    pub fn write_behind(&self, offset: u64, bytes: &[u8], privileges: Privileges) -> Result<usize> {
        let stay = (Stay::Uncached, Stay::Cached);
        self.write_in(Some(offset), bytes, privileges, stay).map(|(_, written)| written)
    }

    /// As [`File::write_as`], for bytes that are not asked for again: memory keeps nothing of them
    /// once they are down, and a flusher brings them down soon.
    pub fn write_uncached(
        &self,
        offset: u64,
        bytes: &[u8],
        privileges: Privileges,
    ) -> Result<usize> {
        let stay = (Stay::Uncached, Stay::Uncached);
        let (_, written) = self.write_in(Some(offset), bytes, privileges, stay)?;
        let held = self.held()?;
        let filesystem = held.filesystem();
        let source = &filesystem.shared.source;
        let switch = filesystem.switches().uncached_flush;
        if source.has_flusher() && switch != UncachedFlush::Inline {
            source.pages().kick_uncached(self.view().key(), written.div_ceil(4096), switch);
        } else {
            filesystem.flush_files(std::slice::from_ref(held.entry()), Reason::Uncached);
        }
        Ok(written)
    }

    /// As [`File::write_as`]; whole blocks go straight to the devices, whatever their number.
    /// Those inside the file are written while others read and write it.
    pub fn write_direct(&self, offset: u64, bytes: &[u8], privileges: Privileges) -> Result<usize> {
        if bytes.is_empty() {
            return self.write_nothing(Some(offset)).map(|()| 0);
        }
        self.may_begin_at(Some(offset))?;
        let timed = self.timed(Operation::DirectWrite);
        if let Some(written) = self.write_shared(offset, bytes, privileges)? {
            return Ok(written);
        }
        timed.forget();
        self.write_direct_alone(offset, bytes, privileges)
    }

    /// The same, with the file alone.
    pub(crate) fn write_direct_alone(
        &self,
        offset: u64,
        bytes: &[u8],
        privileges: Privileges,
    ) -> Result<usize> {
        let _timed = self.timed(Operation::DirectWrite);
        self.lane_counters().dio_write_exclusive.add();
        let mut done = 0;
        while let Some(rest) = bytes.get(done..).filter(|rest| !rest.is_empty()) {
            let at = offset.saturating_add(length(done));
            let written = self.with_space(|| {
                self.alter(privileges, |file, inode, _| {
                    self.may_write_at(inode, file.size(), Some(at))?;
                    Ok(file.write_direct(at, rest)?)
                })
            });
            match written {
                Ok(0) => break,
                Ok(written) => done += written,
                Err(error) if done == 0 => return Err(error),
                Err(_) => break,
            }
        }
        Ok(done)
    }

    /// Does what needs space; once more, when all that files have in memory is in the trees, where
    /// there was none: what direct writes replaced is free only then.
    fn with_space<R>(&self, run: impl Fn() -> Result<R>) -> Result<R> {
        let result = run();
        if !result.as_ref().is_err_and(Error::is_no_space) {
            return result;
        }
        let held = self.held()?;
        let filesystem = held.filesystem();
        let writer = filesystem.writer()?;
        filesystem.shared.source.give_back_space();
        if writer.dirty_count() > 0 && filesystem.forest().commits_for_space() {
            // What is lost by it is told to whoever syncs.
            drop(filesystem.write_back(writer));
            filesystem.commit()?;
        }
        run()
    }

    /// Writes `bytes` at the end of the file, as it is then; says where that was, and how many.
    pub fn append(&self, bytes: &[u8], privileges: Privileges) -> Result<(u64, usize)> {
        self.write(None, bytes, privileges)
    }

    fn write(
        &self,
        offset: Option<u64>,
        bytes: &[u8],
        privileges: Privileges,
    ) -> Result<(u64, usize)> {
        self.write_in(offset, bytes, privileges, (Stay::Cached, Stay::Cached))
    }

    /// Writes through the page cache: `stay` is what becomes of the pages once they are clean,
    /// `paced` whose limits the caller waits for.
    fn write_in(
        &self,
        offset: Option<u64>,
        bytes: &[u8],
        privileges: Privileges,
        (stay, paced): (Stay, Stay),
    ) -> Result<(u64, usize)> {
        if bytes.is_empty() {
            self.write_nothing(offset)?;
            return Ok((offset.unwrap_or_else(|| self.size()), 0));
        }
        self.may_begin_at(offset)?;
        let _timed = self.timed(Operation::CachedWrite);
        let change = |file: &mut FileState, inode: &Inode, _: Stamp<'_>| {
            let end = file.size();
            self.may_write_at(inode, end, offset)?;
            let offset = offset.unwrap_or(end);
            let written = match stay {
                Stay::Cached => file.write_at(offset, bytes)?,
                Stay::Uncached => file.write_uncached(offset, bytes)?,
            };
            Ok((offset, written))
        };
        let altered = || self.alter_as(Some(privileges), Traffic::GoesOn, change);
        let (at, written) = self.with_space(altered)?;
        self.pace(written, paced)?;
        Ok((at, written))
    }

    /// A write of no bytes is refused like any other, and changes nothing.
    fn write_nothing(&self, offset: Option<u64>) -> Result<()> {
        let held = self.held()?;
        let inode = held.filesystem().facts(held.entry())?;
        self.may_write(&inode)?;
        self.may_write_at(&inode, self.size(), offset)
    }

    /// Whoever writes faster than the devices do waits for them, with nothing locked.
    fn pace(&self, bytes: usize, stay: Stay) -> Result<()> {
        let filesystem = self.held()?.filesystem();
        if filesystem.shared.source.has_flusher() {
            filesystem.pace(bytes, stay);
        }
        Ok(())
    }

    /// Sets the size: what is behind it is gone, what is new reads as zeroes. The time of
    /// modification is now also where the size is what it was, as with ftruncate(2).
    pub fn truncate(&self, size: u64) -> Result<()> {
        let mtime = Some(crate::SetTime::Now);
        let set = crate::SetAttributes { mtime, ..crate::SetAttributes::size(size) };
        let held = self.held()?;
        held.filesystem().set_attributes(held.id(), &set).map(drop)
    }

    /// Sets space aside for a range, gives it back, or makes it zeroes.
    ///
    /// # Errors
    /// As [`File::write_at`]; [`Error::InvalidArgument`] for an empty range.
    pub fn allocate(&self, range: Range<u64>, how: Allocate) -> Result<()> {
        self.allocate_as(range, how, Privileges::Keep)
    }

    /// As [`File::allocate`], by someone who may not keep the file's privileges.
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
        let held = self.held()?;
        let inode = held.filesystem().facts(held.entry())?;
        Filesystem::may_write(&inode)?;
        let sets_aside = matches!(how, Allocate::Extend | Allocate::KeepSize);
        if inode.flags.contains(InodeFlags::APPEND) && !sets_aside {
            return Err(Error::NotPermitted { what: "the file is append-only" });
        }
        self.alter(privileges, |file, _, stamp| {
            match how {
                Allocate::Extend => file.allocate(range, FileEnd::Moves, stamp),
                Allocate::KeepSize => file.allocate(range, FileEnd::Stays, stamp),
                Allocate::PunchHole => file.punch_hole(range, stamp),
                Allocate::Zero => file.zero_range(range, FileEnd::Moves, stamp),
                Allocate::ZeroKeepSize => file.zero_range(range, FileEnd::Stays, stamp),
            }
            .map_err(Error::from)
        })
    }

    /// Copies up to `bytes` bytes at `from` of another file (or of this one) to `to`, and says how
    /// many: fewer where the other file ends.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] where both ranges are of one file and overlap.
    pub fn copy_range(&self, to: u64, other: &Self, from: u64, bytes: u64) -> Result<u64> {
        self.copy_range_as(to, other, from..from.saturating_add(bytes), Privileges::Keep)
    }

    /// As [`File::copy_range`], by someone who may not keep the privileges of this file.
    pub fn copy_range_as(
        &self,
        to: u64,
        other: &Self,
        range: Range<u64>,
        privileges: Privileges,
    ) -> Result<u64> {
        let (from, bytes) = (range.start, range.end.saturating_sub(range.start));
        let too_far = || Error::InvalidArgument { what: "the range has no end" };
        let held = self.held()?;
        Filesystem::may_write(&held.filesystem().facts(held.entry())?)?;
        // The other file ends where it ended at the start, also if it is this one and grows.
        let bytes = bytes.min(other.size().saturating_sub(from));
        let from_end = from.checked_add(bytes).ok_or_else(too_far)?;
        let to_end = to.checked_add(bytes).ok_or_else(too_far)?;
        if self.id() == other.id() && from < to_end && to < from_end {
            return Err(Error::InvalidArgument { what: "the ranges overlap" });
        }
        let mut buf = vec![0; COPY_BYTES.min(usize::try_from(bytes).unwrap_or(COPY_BYTES))];
        let mut done = 0;
        while done < bytes {
            let want = buf.len().min(usize::try_from(bytes - done).unwrap_or(buf.len()));
            let copied = other.read_at(from + done, &mut buf[..want]).and_then(|read| {
                let written = self.write_as(to + done, &buf[..read], privileges)?;
                Ok((read, written))
            });
            match copied {
                Ok((read, written)) => {
                    done += length(written);
                    if read == 0 || written < read {
                        break;
                    }
                }
                Err(_) if done > 0 => break,
                Err(error) => return Err(error),
            }
        }
        Ok(done)
    }

    /// Brings the file's data and attributes down on the devices.
    ///
    /// # Errors
    /// What could not be written, also of earlier writes, and through other handles: each loss is
    /// returned once through every handle that was open when it happened. Clones of a handle count
    /// as one, as duplicates of a file descriptor do. A handle that is opened later is told of a
    /// loss that no other was told of.
    pub fn sync_all(&self) -> Result<()> {
        let Some(held) = self.held.as_ref() else { return Ok(()) };
        let _timed = self.timed(Operation::Sync);
        let filesystem = held.filesystem();
        let writer = filesystem.writer()?;
        let merged = filesystem.write_back_one(writer, held.entry());
        let committed = filesystem.commit();
        merged.and(self.check_errors()).and(committed)
    }

    /// Brings the file's data down on the devices, and what is needed to read it.
    pub fn sync_data(&self) -> Result<()> {
        self.sync_all()
    }

    pub(crate) fn held(&self) -> Result<&Held> {
        self.held.as_deref().ok_or(Error::ReadOnly { what: "the filesystem" })
    }

    /// Runs a change of the file's bytes under its lock, and stamps the inode (law 2).
    fn alter<R>(
        &self,
        privileges: Privileges,
        change: impl FnOnce(&mut FileState, &Inode, Stamp<'_>) -> Result<R>,
    ) -> Result<R> {
        self.alter_as(Some(privileges), Traffic::Stops, change)
    }

    fn alter_as<R>(
        &self,
        asked: Option<Privileges>,
        traffic: Traffic,
        change: impl FnOnce(&mut FileState, &Inode, Stamp<'_>) -> Result<R>,
    ) -> Result<R> {
        let held = self.held()?;
        let filesystem = held.filesystem();
        let writer = filesystem.begin()?;
        let entry = held.entry();
        let subvolume = filesystem.writable_subvolume(writer, entry.id)?;
        let mut body = match traffic {
            Traffic::Stops => entry.body_mut(),
            Traffic::GoesOn => entry.body_in_traffic(),
        };
        let inode = filesystem.facts(entry)?;
        Filesystem::may_change_content(&inode)?;
        if let Some(privileges) = asked {
            self.may_write(&inode)?;
            filesystem.strip_privileges(writer, &subvolume, entry, privileges)?;
        }
        let altered =
            filesystem.alter_file(writer, &subvolume, entry, &mut body, self.times, change)?;
        drop(body);
        if inode.flags.contains(InodeFlags::SYNC) {
            self.sync_all()?;
        }
        Ok(altered)
    }
}

impl Filesystem {
    /// Sets the size of a file, and with it whatever else of its inode `facts` has: all of it, or
    /// nothing but blocks that were cut off behind the new end.
    pub(crate) fn set_size(
        &self,
        writer: &Writer,
        subvolume: &WritableSubvolume,
        entry: &Arc<InodeEntry>,
        body: &mut Body,
        (size, facts): (u64, Inode),
    ) -> Result<()> {
        self.alter_file_to(writer, subvolume, entry, body, facts, |file, _, stamp| {
            Ok(file.truncate(size, stamp)?)
        })
    }

    /// The state of a file's data. The caller has its body.
    pub(crate) fn file_state<'a>(
        &self,
        subvolume: &Tree,
        entry: &InodeEntry,
        body: &'a mut Body,
    ) -> Result<&'a mut FileState> {
        if body.file.is_none() {
            let (source, inode) = (&self.shared.source, self.facts(entry)?);
            let ino = Ino(entry.id.ino);
            let mut file = FileState::new(source, subvolume, ino, &inode);
            file.set_property(compression_of(subvolume, ino, &inode)?);
            body.file = Some(Box::new(file));
        }
        Ok(body.file.as_deref_mut().expect("it was just made"))
    }

    pub(crate) fn alter_file<R>(
        &self,
        writer: &Writer,
        subvolume: &WritableSubvolume,
        entry: &Arc<InodeEntry>,
        body: &mut Body,
        times: Times,
        change: impl FnOnce(&mut FileState, &Inode, Stamp<'_>) -> Result<R>,
    ) -> Result<R> {
        let was = self.facts(entry)?;
        let (mtime, ctime) = match times {
            Times::Now => {
                let now = writer.clock.now();
                (now, now)
            }
            Times::Stay => (was.mtime, was.ctime),
        };
        let sequence = was.sequence.wrapping_add(1);
        let facts = Inode { mtime, ctime, sequence, ..was };
        self.alter_file_to(writer, subvolume, entry, body, facts, change)
    }

    /// Changes a file's data; if that succeeds, its inode has these facts, but for the size.
    fn alter_file_to<R>(
        &self,
        writer: &Writer,
        subvolume: &WritableSubvolume,
        entry: &Arc<InodeEntry>,
        body: &mut Body,
        mut facts: Inode,
        change: impl FnOnce(&mut FileState, &Inode, Stamp<'_>) -> Result<R>,
    ) -> Result<R> {
        let was = self.facts(entry)?;
        let file = self.file_state(&subvolume.tree, entry, body)?;
        let mut stamped = None;
        let result = change(file, &was, &mut |item| stamped = Some(stamp(item, &facts)));
        if result.is_err() {
            facts = was;
        }
        if let Some(Inode { flags, transid, .. }) = stamped {
            facts = Inode { flags, transid, ..facts };
        }
        (facts.size, facts.bytes_used) = (file.size(), file.bytes_used());
        if file.has_given_up_packing() {
            facts.flags = facts.flags.with(InodeFlags::NOCOMPRESS);
        }
        if facts.bytes_used < was.bytes_used {
            writer.signal.freed(was.bytes_used - facts.bytes_used);
        }
        let is_clean = file.is_clean();
        let is_due = body.is_stamp_due.get_mut();
        // Where it failed behind a stamp, the tree has what the inode was to become.
        *is_due |= result.is_ok() != stamped.is_some();
        let is_due = *is_due;
        entry.set(facts);
        if is_due || !is_clean {
            writer.mark_dirty(entry);
        }
        writer.signal.changed();
        result
    }
}

/// The algorithm that a file's property names, if it has one.
pub(crate) fn compression_of(tree: &Tree, ino: Ino, inode: &Inode) -> Result<Option<Compression>> {
    if !inode.flags.contains(InodeFlags::COMPRESS) {
        return Ok(None);
    }
    let value = names::xattr(tree, ino, COMPRESSION)?;
    Ok(match value.as_deref().and_then(CompressionProperty::parse) {
        Some(CompressionProperty::With(compression)) => Some(compression),
        Some(CompressionProperty::Unset | CompressionProperty::Never) | None => None,
    })
}

/// Stamps an inode's item with everything that does not belong to its extents; what it is then.
pub(crate) fn stamp(item: &mut Inode, facts: &Inode) -> Inode {
    // What the data itself brought about.
    let mut kept = InodeFlags::default();
    for flag in [InodeFlags::PREALLOC, InodeFlags::NOCOMPRESS] {
        kept = if item.flags.contains(flag) { kept.with(flag) } else { kept };
    }
    let Inode { size, bytes_used, transid, .. } = *item;
    *item = Inode { size, bytes_used, transid, flags: facts.flags.with(kept), ..*facts };
    *item
}
