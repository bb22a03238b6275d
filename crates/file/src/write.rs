//! Writes of any alignment.
//!
//! Laws:
//!
//! 1. If there is no flusher, the whole blocks of a large write are written to disk from the
//!    caller's memory, before the write returns. So are those of [`FileState::write_direct`] in any
//!    case. Everything else becomes dirty blocks; the first and the last are completed from what
//!    the file has.
//! 2. A write that cannot be done whole is done from its start on, as far as possible. If nothing
//!    of it can be done, it fails and changes nothing.
//! 3. Before the end of a file moves on, the bytes after it in its last block become zeroes.
//! 4. The old contents of a block are read, or taken from memory, when no direct write of it is in
//!    flight (law 4 of [`crate::in_flight`]).

pub(crate) mod dirty;
pub(crate) mod edge;
pub(crate) mod inline;
pub(crate) mod nowait;
pub(crate) mod target;

use crate::error::FileError;
use crate::state::FileState;
use crate::state::backing::Backing;
use crate::target::Target;
use crate::units::BLOCK;
use crate::units::FILE_BYTES_MAX;
use crate::units::in_memory;
use crate::units::pages_of;
use crate::wait::may_block;
use crate::writeback::allocate::Unallocated;
use crate::writeback::{BATCH_BYTES_MAX, Data, RunOrigin, WritebackRun, prepare, write_runs};
use butternut_format::units::{SECTOR_BYTES, length};
use butternut_pages::CacheMode;
use butternut_sys::frames::Frame;
use butternut_sys::wait::Wait;
use std::ops::Range;

/// Whole blocks of at least this many bytes are written without a copy (law 1).
const DIRECT_BYTES_MIN: usize = 256 << 10;
/// A large write is expected to become extents of at least this many blocks.
const BLOCKS_PER_EXTENT: u64 = 16;
/// Bytes that are buffered in one step. When space runs out, the step is retried with one block.
const BUFFER_BYTES_MAX: usize = 256 << 10;

impl FileState {
    /// Writes all of `bytes`, or as much as there is space for, and returns how many bytes that is.
    /// The file grows as needed.
    ///
    /// # Errors
    /// Nothing could be written.
    pub fn write_at(&mut self, offset: u64, bytes: &[u8]) -> Result<usize, FileError> {
        self.write(offset, bytes, CacheMode::Cached, Wait::Block)
    }

    /// Writes as [`Self::write_at`] does. If `stay` is [`CacheMode::Uncached`], its pages leave the
    /// cache when they are written back. With [`Wait::NoWait`] it writes all of `bytes`, or nothing
    /// ([`nowait`]).
    ///
    /// # Errors
    /// Nothing could be written; [`FileError::WouldBlock`].
    pub fn write(
        &mut self,
        offset: u64,
        bytes: &[u8],
        stay: CacheMode,
        wait: Wait,
    ) -> Result<usize, FileError> {
        // Without a flusher the writer writes its data back itself, so it saves the copy.
        let direct_bytes_min =
            if self.source.has_flusher() { usize::MAX } else { DIRECT_BYTES_MIN };
        self.stay = stay;
        let written = self.write_split(offset, bytes, direct_bytes_min, wait);
        self.stay = CacheMode::Cached;
        written
    }

    /// Writes; whole blocks of at least `direct_bytes_min` bytes are written to disk before it
    /// returns.
    fn write_split(
        &mut self,
        offset: u64,
        bytes: &[u8],
        direct_bytes_min: usize,
        wait: Wait,
    ) -> Result<usize, FileError> {
        let written = self.write_parts(offset, bytes, direct_bytes_min, wait);
        self.end_operation(written)
    }

    fn write_parts(
        &mut self,
        offset: u64,
        bytes: &[u8],
        direct_bytes_min: usize,
        wait: Wait,
    ) -> Result<usize, FileError> {
        self.check_writable()?;
        self.check_end(offset, length(bytes.len()))?;
        if bytes.is_empty() {
            return Ok(0);
        }
        self.check_limits(bytes.len(), wait)?;
        if offset > self.size() {
            self.zero_after_end(wait)?;
        }
        let mut done = 0;
        while let Some(rest) = bytes.get(done..).filter(|rest| !rest.is_empty()) {
            match self.write_some(offset + length(done), rest, direct_bytes_min, wait) {
                Ok(written) => done += written,
                Err(_) if done > 0 => break,
                Err(error) => return Err(error),
            }
            let end = offset + length(done);
            if end > self.size() {
                self.shared.set_size(end);
            }
        }
        self.enforce_limits();
        Ok(done)
    }

    /// Writes as [`Self::write_at`] does, but everything is on disk when it returns: whole blocks,
    /// however few, are written from the caller's memory, and the rest is written back.
    ///
    /// Where the rest could not be written back, the write is as short as the whole blocks in front
    /// of it, and the file ends with them.
    ///
    /// # Errors
    /// Nothing could be written, or the rest could not be written back and has no whole blocks in
    /// front of it.
    pub fn write_direct(&mut self, offset: u64, bytes: &[u8]) -> Result<usize, FileError> {
        let (size, before) = (self.size(), self.view.error_position());
        let written = self.write_split(offset, bytes, BLOCK, Wait::Block);
        let flushed = if self.dirty_bytes() > 0 { self.write_back() } else { Ok(()) };
        // A merge for want of space may have written the rest back before, and lost it.
        let flushed = flushed.and_then(|()| self.view.error_after(&before).map_or(Ok(()), Err));
        let (Ok(written), Err(error)) = (&written, flushed) else { return written };
        let is_aligned = offset.is_multiple_of(SECTOR_BYTES);
        let whole = if is_aligned { written / BLOCK * BLOCK } else { 0 };
        let end = if whole > 0 { size.max(offset + length(whole)) } else { size };
        // What a merge has put into the tree meanwhile stays.
        let end = end.max(self.size_in_tree);
        if end < self.size() {
            self.shared.set_size(end);
            // Data that was written after it must not appear when the end moves (laws 2 and 3).
            self.drop_overlay(end.next_multiple_of(SECTOR_BYTES)..u64::MAX);
            self.forget_after_end();
        }
        if whole > 0 { Ok(whole) } else { Err(error) }
    }

    /// Fails unless the volume is open for writing.
    pub(crate) fn check_writable(&self) -> Result<(), FileError> {
        if self.source.forest().is_writable() {
            return Ok(());
        }
        Err(FileError::ReadOnly { tree: self.tree_id(), ino: self.ino() })
    }

    /// Returns the end of a range, if a file may reach that far.
    pub(crate) fn check_end(&self, offset: u64, bytes: u64) -> Result<u64, FileError> {
        let end = offset.checked_add(bytes).filter(|end| *end <= FILE_BYTES_MAX);
        end.ok_or(FileError::TooLarge { tree: self.tree_id(), ino: self.ino() })
    }

    fn write_some(
        &mut self,
        at: u64,
        bytes: &[u8],
        direct_bytes_min: usize,
        wait: Wait,
    ) -> Result<usize, FileError> {
        if wait == Wait::NoWait {
            // One step, so that it is done as a whole (law 2 of `nowait`).
            return self.write_buffered(at, bytes, wait).map(|()| bytes.len());
        }
        let to_block = in_memory(at.next_multiple_of(SECTOR_BYTES) - at);
        let whole = bytes.len().saturating_sub(to_block) / BLOCK * BLOCK;
        let is_large = whole >= direct_bytes_min;
        if is_large && to_block == 0 {
            let batch = whole.min(in_memory(BATCH_BYTES_MAX));
            let part = bytes.get(..batch).unwrap_or_default();
            return self.write_through(at, part);
        }
        let most = if is_large { to_block } else { BUFFER_BYTES_MAX };
        let part = bytes.get(..most.min(bytes.len())).unwrap_or_default();
        match self.write_buffered(at, part, wait) {
            Ok(()) => Ok(part.len()),
            // There may be space for the first block at least.
            Err(error) if part.len() > BLOCK => {
                let left = BLOCK - in_memory(at % SECTOR_BYTES);
                let first = part.get(..left).unwrap_or_default();
                self.write_buffered(at, first, wait).map(|()| left).map_err(|_| error)
            }
            Err(error) => Err(error),
        }
    }

    /// Writes whole blocks to disk from the caller's memory, as many as there is space for.
    fn write_through(&mut self, start: u64, bytes: &[u8]) -> Result<usize, FileError> {
        let range = start..start + length(bytes.len());
        let blocks = length(bytes.len()) / SECTOR_BYTES;
        self.drain();
        let extents = blocks.div_ceil(BLOCKS_PER_EXTENT);
        self.reserve_metadata(extents, blocks, range.end, Wait::Block)?;
        self.leave_inline(self.size().max(range.end), &range, Wait::Block)?;
        let mut runs = Vec::new();
        for (part, target) in self.write_targets(&range, Wait::Block)? {
            let slice = in_memory(part.start - start)..in_memory(part.end - start);
            let data = Data::Slice(bytes.get(slice).unwrap_or_default());
            runs.push(WritebackRun::new(self, 0, part.start, (RunOrigin::Caller, data), target));
        }
        self.shared.wait_for_readahead();
        let (source, pages) = (self.source.clone(), pages_of(&range));
        let before = self.bytes_reserved_in(&pages);
        let (mut runs, unallocated) = prepare(&source, &mut [self], runs);
        let unreserved = self.drop_unreserved(&mut runs, (extents, blocks), range.end);
        let result = write_runs(&source, runs);
        // Dirty blocks of the range are older than the written data, and have been dropped.
        self.bytes_reserved -= before - self.bytes_reserved_in(&pages);
        let short = unallocated.into_iter().next();
        if result.is_err() && range.end > self.size() {
            // The end does not move, so data that was written after it must not appear when it
            // does (law 2).
            self.drop_overlay(self.size().next_multiple_of(SECTOR_BYTES)..u64::MAX);
        }
        result?;
        if let Some(end) = unreserved {
            return Ok(in_memory(end - start));
        }
        match short {
            Some(Unallocated { range, error, .. }) if range.start == start => Err(error),
            Some(Unallocated { range, .. }) => Ok(in_memory(range.start - start)),
            None => Ok(bytes.len()),
        }
    }

    /// Drops the runs past the first `extents`, which have a metadata reservation, if there is none
    /// for the others. Returns where the rest of the write begins, if some were dropped; the caller
    /// writes it next, with a reservation of its own.
    fn drop_unreserved(
        &self,
        runs: &mut Vec<WritebackRun<'_>>,
        (extents, blocks): (u64, u64),
        size: u64,
    ) -> Option<u64> {
        let wanted = length(runs.len());
        if wanted <= extents || self.reserve_metadata_for_runs(wanted, blocks, size) {
            return None;
        }
        let dropped = runs.split_off(in_memory(extents));
        self.release(dropped.iter().filter_map(WritebackRun::new_space));
        dropped.first().map(|run| run.start)
    }

    /// Writes into dirty blocks. On failure nothing has changed.
    fn write_buffered(&mut self, at: u64, bytes: &[u8], wait: Wait) -> Result<(), FileError> {
        self.write_buffered_around(at, bytes, wait, || {})
    }

    /// Calls `between` when everything is reserved, and before the first byte is copied.
    fn write_buffered_around(
        &mut self,
        at: u64,
        bytes: &[u8],
        wait: Wait,
        between: impl FnOnce(),
    ) -> Result<(), FileError> {
        let before = (wait == Wait::NoWait).then(|| self.before_write());
        let written = self.write_blocks(at, bytes, wait, between);
        if let (Some(before), Err(FileError::WouldBlock)) = (before, &written) {
            self.undo_refused_write(before);
        } else if written.is_err() {
            // Blocks that did not become dirty need no space.
            self.bytes_reserved = self.bytes_reserved_in(&(0..u64::MAX));
            self.release_unused_data();
        }
        written
    }

    fn write_blocks(
        &mut self,
        at: u64,
        bytes: &[u8],
        wait: Wait,
        between: impl FnOnce(),
    ) -> Result<(), FileError> {
        let end = at + length(bytes.len());
        let blocks = at - at % SECTOR_BYTES..end.next_multiple_of(SECTOR_BYTES);
        let count = (blocks.end - blocks.start) / SECTOR_BYTES;
        self.wait_for_direct_writes(&blocks, wait)?;
        self.reserve_metadata(count, count, self.size().max(end), wait)?;
        self.leave_inline(self.size().max(end), &blocks, wait)?;
        let mut frames = self.frames(in_memory(count) + 1, wait)?;
        let last = blocks.end - SECTOR_BYTES;
        let mut tail = None;
        // A page that is in use is not evicted: the last block is changed after all others, and
        // must not have to be read then. Nor must the first, if no block may be read.
        let (mut _tail_user, mut _head_user) = (None, None);
        if last > blocks.start {
            tail = self.base(last, at..end, wait)?;
            _tail_user = self.shared.pages().page(last / SECTOR_BYTES).filter(|_| tail.is_none());
        }
        if wait == Wait::NoWait {
            _head_user = self.shared.pages().page(blocks.start / SECTOR_BYTES);
        }
        let mut head = self.base(blocks.start, at..end, wait)?;
        let backings = self.choose_backing(&blocks, end, wait)?;
        between();
        let (mut from, mut rest) = (at, bytes);
        for backing in backings {
            let start = from - from % SECTOR_BYTES;
            let (now, later) =
                rest.split_at(rest.len().min(in_memory(start + SECTOR_BYTES - from)));
            let base = if start == blocks.start { head.take() } else { None };
            let base = if start == last { base.or_else(|| tail.take()) } else { base };
            self.write_block(from, now, backing, base, (&mut frames, wait))?;
            from = start + SECTOR_BYTES;
            rest = later;
        }
        Ok(())
    }

    /// The contents of the block at `start`, if `written` does not replace all of it and its page
    /// is not cached.
    fn base(
        &mut self,
        start: u64,
        written: Range<u64>,
        wait: Wait,
    ) -> Result<Option<Frame>, FileError> {
        let is_replaced = written.start <= start && written.end >= start + SECTOR_BYTES;
        let pages = pages_of(&(start..start + SECTOR_BYTES));
        if is_replaced || self.shared.pages().missing(pages).is_none() {
            return Ok(None);
        }
        self.read_block(start, wait).map(Some)
    }

    /// Chooses where each block of a range will be written when it is dirty, and reserves space for
    /// those that are not dirty yet.
    pub(crate) fn choose_backing(
        &mut self,
        blocks: &Range<u64>,
        end: u64,
        wait: Wait,
    ) -> Result<Vec<Backing>, FileError> {
        let may_be_inline = self.may_be_inline(self.size().max(end), blocks, wait)?;
        // Looked up before the targets: a writeback that completes in between counts as one that
        // has not.
        let each = (blocks.start..blocks.end).step_by(BLOCK);
        let moving = each.filter(|_| self.may_write_in_place()).map(|start| self.is_moving(start));
        let mut moving = moving.collect::<Vec<bool>>().into_iter();
        let mut backings: Vec<Backing> = Vec::new();
        let mut to_reserve = 0;
        let targets = if may_be_inline { Vec::new() } else { self.write_targets(blocks, wait)? };
        let mut targets = targets.iter().peekable();
        let mut start = blocks.start;
        while start < blocks.end {
            while targets.next_if(|(range, _)| range.end <= start).is_some() {}
            let is_moving = moving.next().unwrap_or(false);
            let backing = match targets.peek() {
                _ if may_be_inline => Backing::Inline,
                Some((_, target)) if *target != Target::New && !is_moving => Backing::InPlace,
                _ => Backing::Reserved,
            };
            let old_backing = self.dirty_backing(start);
            to_reserve += usize::from(old_backing.is_none() && backing == Backing::Reserved);
            backings.push(old_backing.unwrap_or(backing));
            start += SECTOR_BYTES;
        }
        self.reserve(to_reserve, wait)?;
        Ok(backings)
    }

    /// Whether the block is under writeback to where it is not written again in place, so that its
    /// write target changes when that completes: to new space, or to preallocated space that is
    /// written in place only once (law 1 of [`crate::write::target`]).
    fn is_moving(&self, start: u64) -> bool {
        let backing = self.newer_block(start).map(|(_, backing)| backing);
        backing.is_some_and(|backing| backing == Backing::Reserved || !self.can_overwrite())
    }

    /// Reads the block at `start`, with zeroes past the end of the file.
    pub(crate) fn read_block(&mut self, start: u64, wait: Wait) -> Result<Frame, FileError> {
        let mut frame = self.frames(1, wait)?.pop().expect("one was found");
        self.read_block_to(start, &mut frame, wait)?;
        Ok(frame)
    }

    /// Reads a block like [`Self::read_block`], to a frame with no other user.
    pub(crate) fn read_block_to(
        &self,
        start: u64,
        frame: &mut Frame,
        wait: Wait,
    ) -> Result<(), FileError> {
        let bytes = frame.bytes_mut().expect("a new frame has one user");
        let mut done = 0;
        let size = self.size();
        let bytes_read_max = in_memory(size.saturating_sub(start).min(SECTOR_BYTES));
        while done < bytes_read_max {
            may_block(wait)?;
            let place = bytes.get_mut(done..bytes_read_max).unwrap_or_default();
            let read = self.source.read_at(&self.view, start + length(done), place)?;
            if read == 0 {
                break;
            }
            done += read;
        }
        bytes.get_mut(done..).unwrap_or_default().fill(0);
        Ok(())
    }

    /// Makes the bytes past the end of the file, in its last block, zeroes (law 3).
    pub(crate) fn zero_after_end(&mut self, wait: Wait) -> Result<(), FileError> {
        let size = self.size();
        let start = size - size % SECTOR_BYTES;
        let blocks = start..start + SECTOR_BYTES;
        if start == size {
            return Ok(());
        }
        // The trees say whether the block has data.
        may_block(wait)?;
        self.wait_for_direct_writes(&blocks, wait)?;
        if !self.has_data_at(start)? {
            return Ok(());
        }
        self.rewrite_last_block(&blocks, wait)
    }

    /// Makes a block dirty, with its bytes and with zeroes past the end of the file.
    fn rewrite_last_block(&mut self, block: &Range<u64>, wait: Wait) -> Result<(), FileError> {
        let size = self.size();
        self.reserve_metadata(1, 1, size, wait)?;
        let frame = self.read_block(block.start, wait)?;
        let backed = self.choose_backing(block, size, wait)?;
        if let Some(backing) = backed.first() {
            self.put_block(block.start, frame, *backing);
        }
        Ok(())
    }

    /// Takes the bytes past the end, which has moved back, out of the page of the last block. On
    /// disk they do no harm: a block is read up to the end.
    fn forget_after_end(&mut self) {
        let start = self.size() - self.size() % SECTOR_BYTES;
        let block = start..start + SECTOR_BYTES;
        if !self.is_newer(start) {
            self.invalidate_pages(&block);
        } else if self.size() > start {
            // The block has what it needs, except perhaps memory.
            self.rewrite_last_block(&block, Wait::Block).ok();
        }
    }

    /// Whether the block at `start` has data on disk or in the tree, and is not dirty.
    pub(crate) fn has_data_at(&self, start: u64) -> Result<bool, FileError> {
        use crate::extent_map::{MappingKind, Mappings};
        let mapping =
            Mappings::of_short_range(&self.view, start..start + SECTOR_BYTES).next().transpose()?;
        Ok(mapping.is_some_and(|mapping| match mapping.kind {
            MappingKind::Inline { .. } | MappingKind::Regular { .. } => true,
            MappingKind::Hole | MappingKind::Preallocated { .. } | MappingKind::Buffered => false,
        }))
    }

    /// Writes back or merges when the file exceeds its limits. The next `fsync` reports what fails
    /// here.
    fn enforce_limits(&mut self) {
        if self.source.should_write_back(self.dirty_bytes()) {
            // Writeback records its errors itself.
            self.write_back().ok();
        }
        if self.has_many_extents() {
            self.drain();
            // Data that is lost is recorded. Everything else is merged by the next sync, which
            // meets the same error.
            self.merge(&mut |_| {}).ok();
        }
    }
}
