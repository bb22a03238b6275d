//! Writes of any alignment.
//!
//! Laws:
//!
//! 1. Whole blocks of a large write go straight down from the caller's memory. Everything else
//!    waits in dirty blocks, the first and last completed from what the file has.
//! 2. A write that cannot be done whole is done from its start on, as far as it can be; one of
//!    which nothing can be done fails, and changes nothing.
//! 3. Behind the end of a file its last block reads as zeroes before the end moves on.
//! 4. What a block holds is read, or taken from memory, when no direct write of it is in flight
//!    (law 4 of [`crate::traffic`]).

use crate::assign::Unplaced;
use crate::dirty::{Backing, pages_of};
use crate::down::{BATCH_BYTES_MAX, Data, Descent, Down, Owner, bring_down};
use crate::error::FileError;
use crate::overlay::BLOCK;
use crate::place::Target;
use crate::source::in_memory;
use crate::state::FileState;
use crate::view::FILE_BYTES_MAX;
use butternut_format::units::{Logical, SECTOR_BYTES, length};
use butternut_pages::Stay;
use butternut_sys::frames::Frame;
use std::ops::Range;

/// Whole blocks of this many bytes are not worth a copy (law 1).
const DIRECT_BYTES_MIN: usize = 256 << 10;
/// What a large write is expected to be cut into, at worst.
const BLOCKS_PER_EXTENT: u64 = 16;
/// Extents of one file that are on disk and in no tree.
pub(crate) const FILE_PATCHES_MAX: usize = 1 << 16;
/// What is buffered at once: what is lost to a smaller try when space runs out.
pub(crate) const BUFFER_BYTES_MAX: usize = 256 << 10;

impl FileState {
    /// Writes all of `bytes`, or as much as there is space for; the file grows as needed.
    pub fn write_at(&mut self, offset: u64, bytes: &[u8]) -> Result<usize, FileError> {
        // Where nobody flushes, the writer had better not copy what he brings down himself.
        let has_flusher = self.source.has_flusher();
        self.write_split(offset, bytes, if has_flusher { usize::MAX } else { DIRECT_BYTES_MIN })
    }

    /// The same; memory keeps nothing of it that was not there before.
    pub fn write_uncached(&mut self, offset: u64, bytes: &[u8]) -> Result<usize, FileError> {
        self.stay = Stay::Uncached;
        let written = self.write_at(offset, bytes);
        self.stay = Stay::Cached;
        written
    }

    /// Whole blocks of at least so many bytes go straight down.
    fn write_split(
        &mut self,
        offset: u64,
        bytes: &[u8],
        direct_bytes_min: usize,
    ) -> Result<usize, FileError> {
        self.check_writable()?;
        self.check_end(offset, length(bytes.len()))?;
        if bytes.is_empty() {
            return Ok(0);
        }
        if offset > self.size() {
            self.close_end()?;
        }
        let mut done = 0;
        while let Some(rest) = bytes.get(done..).filter(|rest| !rest.is_empty()) {
            match self.write_some(offset + length(done), rest, direct_bytes_min) {
                Ok(written) => done += written,
                Err(_) if done > 0 => break,
                Err(error) => return Err(error),
            }
            let end = offset + length(done);
            if end > self.size() {
                self.live.set_size(end);
            }
        }
        self.keep_bounds();
        Ok(done)
    }

    /// The same; whole blocks go straight down, however few they are.
    pub fn write_direct(&mut self, offset: u64, bytes: &[u8]) -> Result<usize, FileError> {
        let written = self.write_split(offset, bytes, BLOCK);
        let flushed = if self.dirty_bytes() > 0 { self.flush() } else { Ok(()) };
        written.and_then(|written| flushed.map(|()| written))
    }

    /// The volume is open for writing.
    pub(crate) fn check_writable(&self) -> Result<(), FileError> {
        if self.source.forest().is_writable() {
            return Ok(());
        }
        Err(FileError::ReadOnly { tree: self.tree_id(), ino: self.ino() })
    }

    /// A range ends where a file may.
    pub(crate) fn check_end(&self, offset: u64, bytes: u64) -> Result<u64, FileError> {
        let end = offset.checked_add(bytes).filter(|end| *end <= FILE_BYTES_MAX);
        end.ok_or(FileError::TooLarge { tree: self.tree_id(), ino: self.ino() })
    }

    fn write_some(
        &mut self,
        at: u64,
        bytes: &[u8],
        direct_bytes_min: usize,
    ) -> Result<usize, FileError> {
        let to_block = in_memory(at.next_multiple_of(SECTOR_BYTES) - at);
        let whole = bytes.len().saturating_sub(to_block) / BLOCK * BLOCK;
        let is_large = whole >= direct_bytes_min;
        if is_large && to_block == 0 {
            let batch = whole.min(in_memory(BATCH_BYTES_MAX));
            let part = bytes.get(..batch).unwrap_or_default();
            return self.write_down(at, part);
        }
        let most = if is_large { to_block } else { BUFFER_BYTES_MAX };
        let part = bytes.get(..most.min(bytes.len())).unwrap_or_default();
        match self.write_buffered(at, part) {
            Ok(()) => Ok(part.len()),
            // Perhaps there is space for the first block at least.
            Err(error) if part.len() > BLOCK => {
                let left = BLOCK - in_memory(at % SECTOR_BYTES);
                let first = part.get(..left).unwrap_or_default();
                self.write_buffered(at, first).map(|()| left).map_err(|_| error)
            }
            Err(error) => Err(error),
        }
    }

    /// Writes whole blocks to disk at once, as many as there is space for.
    fn write_down(&mut self, start: u64, bytes: &[u8]) -> Result<usize, FileError> {
        let range = start..start + length(bytes.len());
        let blocks = length(bytes.len()) / SECTOR_BYTES;
        self.quiet();
        self.promise(blocks / BLOCKS_PER_EXTENT, blocks, range.end)?;
        self.outgrow(self.size().max(range.end), &range)?;
        let mut runs = Vec::new();
        for (part, target) in self.targets(&range)? {
            let slice = in_memory(part.start - start)..in_memory(part.end - start);
            let data = Data::Slice(bytes.get(slice).unwrap_or_default());
            runs.push(Descent::new(self, 0, part.start, (Owner::Caller, data), target));
        }
        self.live.quiesce();
        let (source, pages) = (self.source.clone(), pages_of(&range));
        let before = self.bytes_reserved_in(&pages);
        let Down { result, unplaced } = bring_down(&source, &mut [self], runs);
        // What was dirty there, and is older than what landed, is gone.
        self.bytes_reserved -= before - self.bytes_reserved_in(&pages);
        let short = unplaced.into_iter().next();
        if result.is_err() && range.end > self.size() {
            // The end does not move: what landed behind it would be seen when it does (law 2).
            self.drop_overlay(self.size().next_multiple_of(SECTOR_BYTES)..u64::MAX);
        }
        result?;
        match short {
            Some(Unplaced { range, error, .. }) if range.start == start => Err(error),
            Some(Unplaced { range, .. }) => Ok(in_memory(range.start - start)),
            None => Ok(bytes.len()),
        }
    }

    /// Writes into dirty blocks; what fails has changed nothing.
    pub(crate) fn write_buffered(&mut self, at: u64, bytes: &[u8]) -> Result<(), FileError> {
        let written = self.write_blocks(at, bytes);
        if written.is_err() {
            // Blocks that did not become dirty count on no space.
            self.bytes_reserved = self.bytes_reserved_in(&(0..u64::MAX));
            self.give_back_room();
        }
        written
    }

    fn write_blocks(&mut self, at: u64, bytes: &[u8]) -> Result<(), FileError> {
        let end = at + length(bytes.len());
        let blocks = at - at % SECTOR_BYTES..end.next_multiple_of(SECTOR_BYTES);
        let count = (blocks.end - blocks.start) / SECTOR_BYTES;
        self.wait_for_direct_writes(&blocks);
        self.promise(count, count, self.size().max(end))?;
        self.outgrow(self.size().max(end), &blocks)?;
        let mut frames = self.frames(in_memory(count) + 1)?;
        let last = blocks.end - SECTOR_BYTES;
        let mut tail = None;
        // The page of the last block stays in memory while it has a user: it is changed when the
        // others have been, and must not have to be read then.
        let mut _user = None;
        if last > blocks.start {
            tail = self.base(last, at..end)?;
            _user = self.live.pages().page(last / SECTOR_BYTES).filter(|_| tail.is_none());
        }
        let mut head = self.base(blocks.start, at..end)?;
        let backings = self.back(&blocks, end)?;
        let (mut from, mut rest) = (at, bytes);
        for backing in backings {
            let start = from - from % SECTOR_BYTES;
            let (now, later) =
                rest.split_at(rest.len().min(in_memory(start + SECTOR_BYTES - from)));
            let base = if start == blocks.start { head.take() } else { None };
            let base = if start == last { base.or_else(|| tail.take()) } else { base };
            self.write_block(from, now, backing, base, &mut frames)?;
            from = start + SECTOR_BYTES;
            rest = later;
        }
        Ok(())
    }

    /// What the block at `start` holds before `written` is written, if that does not replace all
    /// of it and it is not in memory already.
    fn base(&mut self, start: u64, written: Range<u64>) -> Result<Option<Frame>, FileError> {
        let is_replaced = written.start <= start && written.end >= start + SECTOR_BYTES;
        let pages = pages_of(&(start..start + SECTOR_BYTES));
        if is_replaced || self.live.pages().missing(pages).is_none() {
            return Ok(None);
        }
        self.read_block(start).map(Some)
    }

    /// How each block of a range finds its space when it is dirty; for those that are not, that is
    /// held from now on.
    pub(crate) fn back(
        &mut self,
        blocks: &Range<u64>,
        end: u64,
    ) -> Result<Vec<Backing>, FileError> {
        let is_small = self.is_small(self.size().max(end), blocks)?;
        let mut backings: Vec<Backing> = Vec::new();
        let mut to_reserve = 0;
        let targets = if is_small { Vec::new() } else { self.targets(blocks)? };
        let mut targets = targets.iter().peekable();
        let mut start = blocks.start;
        while start < blocks.end {
            while targets.next_if(|(range, _)| range.end <= start).is_some() {}
            let backing = match targets.peek() {
                _ if is_small => Backing::Inline,
                Some((_, target)) if self.stays_in_place(start, *target) => Backing::InPlace,
                _ => Backing::Reserved,
            };
            let known = self.dirty_backing(start);
            to_reserve += usize::from(known.is_none() && backing == Backing::Reserved);
            backings.push(known.unwrap_or(backing));
            start += SECTOR_BYTES;
        }
        self.reserve(to_reserve)?;
        Ok(backings)
    }

    /// Whether a block that becomes dirty now is written where it is. One under writeback to space
    /// that is set aside is not written there again with checksums (law 1 of [`crate::place`]).
    fn stays_in_place(&self, start: u64, target: Target) -> bool {
        match target {
            Target::New => false,
            Target::Over(_) => true,
            Target::SetAside { .. } => !self.view.has_sums() || !self.is_newer(start),
        }
    }

    /// The block at `start` as the file reads, with zeroes behind the end.
    pub(crate) fn read_block(&mut self, start: u64) -> Result<Frame, FileError> {
        let mut frame = self.frames(1)?.pop().expect("one was found");
        self.read_block_to(start, &mut frame)?;
        Ok(frame)
    }

    /// As [`Self::read_block`], to a frame that nobody else uses.
    pub(crate) fn read_block_to(&self, start: u64, frame: &mut Frame) -> Result<(), FileError> {
        let bytes = frame.bytes_mut().expect("a new frame has one user");
        let mut done = 0;
        let size = self.size();
        let want = in_memory(size.saturating_sub(start).min(SECTOR_BYTES));
        while done < want {
            let place = bytes.get_mut(done..want).unwrap_or_default();
            let read = self.source.read_at(&self.view, start + length(done), place)?;
            if read == 0 {
                break;
            }
            done += read;
        }
        bytes.get_mut(done..).unwrap_or_default().fill(0);
        Ok(())
    }

    /// Law 3: makes what is on disk behind the end of the file, in its last block, zeroes.
    pub(crate) fn close_end(&mut self) -> Result<(), FileError> {
        let size = self.size();
        let start = size - size % SECTOR_BYTES;
        let blocks = start..start + SECTOR_BYTES;
        if start == size {
            return Ok(());
        }
        self.wait_for_direct_writes(&blocks);
        if !self.has_data_at(start)? {
            return Ok(());
        }
        let frame = self.read_block(start)?;
        let backed = self.back(&blocks, size)?;
        if let Some(backing) = backed.first() {
            self.put_block(start, frame, *backing);
        }
        Ok(())
    }

    /// Whether the block at `start` is on disk, or in the tree, and not dirty.
    pub(crate) fn has_data_at(&self, start: u64) -> Result<bool, FileError> {
        use crate::map::{MappingKind, Mappings};
        let mapping = Mappings::near(&self.view, start..start + SECTOR_BYTES).next().transpose()?;
        Ok(mapping.is_some_and(|mapping| match mapping.kind {
            MappingKind::Inline { .. } | MappingKind::Regular { .. } => true,
            MappingKind::Hole | MappingKind::Preallocated { .. } | MappingKind::Buffered => false,
        }))
    }

    /// Keeps what is in memory within its limits. What fails here is for the next `fsync`.
    fn keep_bounds(&mut self) {
        if self.source.wants_flush(self.dirty_bytes()) {
            // Kept by the flush itself.
            self.flush().ok();
        }
        if self.live.overlay().patch_count() >= FILE_PATCHES_MAX {
            self.quiet();
            // What was lost by it is noted; everything else is merged by the next sync, which is
            // told what stands in its way.
            self.merge(&mut |_| {}).ok();
        }
    }
}

impl Target {
    /// Where on disk, if that is known.
    pub(crate) fn place(self) -> Option<Logical> {
        match self {
            Self::New => None,
            Self::SetAside { extent, skip } => Some(Logical(extent.logical.0.saturating_add(skip))),
            Self::Over(logical) => Some(logical),
        }
    }
}
