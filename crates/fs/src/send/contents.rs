//! [`Contents`]: the data of files: what differs from the parent, and the commands that write it.
//!
//! Ranges are compared by the extents that hold them: a range that refers to the same place on disk
//! in both subvolumes is the same. All extents of a file that differs are compared; data is read
//! only where it differs.
//!
//! ```text
//! 1. truncate, if the parent's file is longer, or has data where the new one ends in a hole
//! 2. for each range that differs:  data -> write;  hole -> zeros, or from version 2 on a hole
//! 3. truncate, if the file is still shorter
//! ```
//!
//! Laws:
//!
//! 1. Preallocated ranges are holes, as in the kernel's send.
//! 2. The block in which the parent's file ends is sent if the file grows: what that block has
//!    after the end does not count in the parent, and counts in the new subvolume.
//! 3. Data that the receiver already has is cloned ([`Clones`]). Of the rest, compressed extents
//!    are sent as they are stored, if the caller wants that.
//! 4. Memory: one command's data.

use crate::file::{Compression, Extent, ExtentKind, Extents};
use crate::send::clones::{Clones, ExtentPart};
use crate::send::output::Output;
use crate::send::paths::Paths;
use crate::{Error, File, FileId, Filesystem, Result};
use butternut_format::stream::{Command, StreamCompression, StreamVersion};
use butternut_format::units::{Logical, SECTOR_BYTES};
use std::ops::Range;

/// Bytes of data of one command. In version 1 a command has at most 64 KiB.
const WRITE_BYTES_VERSION_1: u64 = 48 * 1024;
const WRITE_BYTES: u64 = 128 * 1024;

/// `FALLOC_FL_KEEP_SIZE | FALLOC_FL_PUNCH_HOLE`.
const PUNCH_HOLE: u32 = 0x1 | 0x2;

/// The data of the files of a subvolume.
pub(crate) struct Contents<'a> {
    filesystem: &'a Filesystem,
    new: u64,
    old: Option<u64>,
    how: How,
    clones: Clones<'a>,
    buffer: Vec<u8>,
}

/// How data is sent.
#[derive(Clone, Copy, Debug)]
pub(crate) struct How {
    pub(crate) no_data: bool,
    /// Compressed extents are sent as they are stored.
    pub(crate) compressed_data: bool,
}

/// One file, and what the receiver has of it.
struct Receiver<'a, 'b, 'c> {
    out: &'a mut Output<'b>,
    paths: &'a mut Paths,
    clones: &'a mut Clones<'c>,
    ino: u64,
    path: &'a [u8],
    file: File,
    old: Option<File>,
    how: How,
    buffer: &'a mut [u8],
    /// The size that the file has at the receiver.
    reach: u64,
    /// Data that is to be written with the data that follows.
    pending: Range<u64>,
    has_written: bool,
}

/// The parent's extents, looked up in file order.
struct OldExtents {
    extents: Extents,
    now: Option<Extent>,
}

impl<'a> Contents<'a> {
    pub(crate) fn new(
        filesystem: &'a Filesystem,
        (old, new): (Option<u64>, u64),
        version: StreamVersion,
        how: How,
        clones: Clones<'a>,
    ) -> Self {
        let bytes = if version == StreamVersion::One { WRITE_BYTES_VERSION_1 } else { WRITE_BYTES };
        let bytes = usize::try_from(bytes).unwrap_or(0);
        Self { filesystem, new, old, how, clones, buffer: vec![0; bytes] }
    }

    /// Sends the data and the size of a file; the receiver has that of the parent if it is kept.
    /// Returns whether the file was changed.
    pub(crate) fn send(
        &mut self,
        out: &mut Output<'_>,
        paths: &mut Paths,
        (ino, path): (u64, &[u8]),
        is_kept: bool,
    ) -> Result<bool> {
        let open = |subvolume| self.filesystem.open_file(FileId::new(subvolume, ino));
        let file = open(self.new)?;
        let old = self.old.filter(|_| is_kept).map(open).transpose()?;
        let reach = old.as_ref().map_or(0, File::len);
        let mut receiver = Receiver {
            out,
            paths,
            clones: &mut self.clones,
            ino,
            path,
            file,
            old,
            how: self.how,
            buffer: &mut self.buffer,
            reach,
            pending: 0..0,
            has_written: false,
        };
        receiver.cut()?;
        receiver.send_ranges()?;
        receiver.write_pending()?;
        receiver.extend()?;
        Ok(receiver.has_written)
    }
}

impl Receiver<'_, '_, '_> {
    /// Step 1.
    fn cut(&mut self) -> Result<()> {
        let Some(old) = &self.old else { return Ok(()) };
        let size = self.file.len();
        let mut end = 0;
        for extent in self.file.extents(0..size) {
            self.out.require_wanted()?;
            let extent = extent?;
            if holds_data(&extent) {
                end = end_of(&extent).min(size);
            }
        }
        if end >= self.reach {
            return Ok(());
        }
        let is_cut = size < self.reach || old.seek_data(end)?.is_some();
        if is_cut {
            self.truncate(end)?;
        }
        Ok(())
    }

    /// Step 2.
    fn send_ranges(&mut self) -> Result<()> {
        let size = self.file.len();
        self.file.verify_holes(0..size)?;
        // Law 2.
        let same_until =
            if self.reach < size { self.reach - self.reach % SECTOR_BYTES } else { self.reach };
        let mut before = self.old.as_ref().map(|old| OldExtents::of(old, self.reach));
        let reach = self.reach;
        for extent in self.file.extents(0..size) {
            self.out.require_wanted()?;
            let extent = extent?;
            let end = end_of(&extent).min(size);
            let mut at = extent.offset;
            while at < end {
                let old = match &mut before {
                    Some(before) if at < reach => before.at(at)?,
                    _ => None,
                };
                let part_end = match &old {
                    Some(old) => end_of(old).min(if at < same_until { same_until } else { reach }),
                    None => end,
                };
                let part = at..part_end.min(end);
                at = part.end.max(at.saturating_add(1));
                let is_hole = !holds_data(&extent);
                let is_same = match &old {
                    Some(old) => self.is_same(&extent, old, part.start)?,
                    None => is_hole,
                };
                if is_same && (is_hole || part.start < same_until || old.is_none()) {
                    continue;
                }
                if is_hole {
                    self.write_pending()?;
                    self.zero(part)?;
                } else {
                    self.send_data(&extent, part)?;
                }
            }
        }
        Ok(())
    }

    /// Returns whether two extents have the same data at `at`.
    fn is_same(&self, new: &Extent, old: &Extent, at: u64) -> Result<bool> {
        Ok(match (new.kind, old.kind) {
            (
                ExtentKind::Hole | ExtentKind::Prealloc { .. },
                ExtentKind::Hole | ExtentKind::Prealloc { .. },
            ) => true,
            (
                ExtentKind::Regular { logical, extent_offset, compression, .. },
                ExtentKind::Regular {
                    logical: old_logical,
                    extent_offset: old_extent_offset,
                    compression: old_compression,
                    ..
                },
            ) => {
                let into = |start: u64, offset: u64| start.wrapping_add(at.wrapping_sub(offset));
                (logical, compression) == (old_logical, old_compression)
                    && into(extent_offset, new.offset) == into(old_extent_offset, old.offset)
            }
            (ExtentKind::Inline { .. }, ExtentKind::Inline { .. }) => {
                let old = self.old.as_ref().map(first_block).transpose()?;
                old == Some(first_block(&self.file)?)
            }
            _ => false,
        })
    }

    /// Sends a part of an extent with data.
    fn send_data(&mut self, extent: &Extent, mut part: Range<u64>) -> Result<()> {
        while let Some(cloned) = self.clone_front(extent, &part)? {
            part.start = cloned;
        }
        if part.is_empty() || self.write_compressed(extent, &part)? {
            return Ok(());
        }
        if self.pending.end == part.start && !self.pending.is_empty() {
            self.pending.end = part.end;
            return Ok(());
        }
        self.write_pending()?;
        self.pending = part;
        Ok(())
    }

    /// Clones the beginning of a part that the receiver has in another file. Returns where the rest
    /// starts; `None` if nothing was cloned.
    fn clone_front(&mut self, extent: &Extent, part: &Range<u64>) -> Result<Option<u64>> {
        let ExtentKind::Regular { logical, extent_offset, .. } = extent.kind else {
            return Ok(None);
        };
        let bytes = part.end.saturating_sub(part.start);
        if self.how.no_data || bytes == 0 || !part.start.is_multiple_of(SECTOR_BYTES) {
            return Ok(None);
        }
        let ends_file = part.end == self.file.len() && self.reach <= part.end;
        let start = extent_offset.saturating_add(part.start.saturating_sub(extent.offset));
        let wanted = ExtentPart { logical: Logical(logical), start, bytes, ends_file };
        let Some(found) = self.clones.find(self.paths, self.ino, wanted) else { return Ok(None) };
        self.write_pending()?;
        self.out.put(&Command::Clone {
            path: self.path,
            offset: part.start,
            len: found.bytes,
            clone_uuid: found.uuid,
            clone_ctransid: found.ctransid,
            clone_path: &found.path,
            clone_offset: found.offset,
        })?;
        let end = part.start.saturating_add(found.bytes);
        self.reach = self.reach.max(end);
        self.has_written = true;
        Ok(Some(end))
    }

    /// Sends a part of a compressed extent as it is stored, if the caller wants that. Returns
    /// whether it was sent.
    fn write_compressed(&mut self, extent: &Extent, part: &Range<u64>) -> Result<bool> {
        let ExtentKind::Regular { logical, disk_bytes, ram_bytes, extent_offset, compression } =
            extent.kind
        else {
            return Ok(false);
        };
        let compression = match compression {
            Compression::None => return Ok(false),
            Compression::Zlib => StreamCompression::Zlib,
            Compression::Lzo => StreamCompression::Lzo4K,
            Compression::Zstd => StreamCompression::Zstd,
        };
        // The hashes of fs-verity are those of the data as it reads.
        if !self.how.compressed_data
            || self.file.view().is_sealed()
            || self.how.no_data
            || !part.start.is_multiple_of(SECTOR_BYTES)
            || !part.end.is_multiple_of(SECTOR_BYTES) && part.end < self.reach.max(self.file.len())
        {
            return Ok(false);
        }
        self.write_pending()?;
        let data = self.file.read_stored(part.start, logical, disk_bytes)?;
        self.out.put(&Command::EncodedWrite {
            path: self.path,
            offset: part.start,
            unencoded_file_len: part.end.saturating_sub(part.start),
            unencoded_len: ram_bytes,
            unencoded_offset: extent_offset
                .saturating_add(part.start.saturating_sub(extent.offset)),
            compression,
            encryption: 0,
            data: &data,
        })?;
        self.reach = self.reach.max(part.end);
        self.has_written = true;
        Ok(true)
    }

    fn write_pending(&mut self) -> Result<()> {
        let range = std::mem::replace(&mut self.pending, 0..0);
        if range.is_empty() {
            return Ok(());
        }
        self.reach = self.reach.max(range.end);
        if self.how.no_data {
            return self.update_extent(&range);
        }
        for part in parts(range, self.buffer.len()) {
            let bytes = usize::try_from(part.end - part.start).unwrap_or(0);
            let Some(data) = self.buffer.get_mut(..bytes) else { continue };
            read_exact(&self.file, part.start, data)?;
            self.out.put(&Command::Write { path: self.path, offset: part.start, data })?;
        }
        self.has_written = true;
        Ok(())
    }

    /// Makes a range of the receiver's file read as zeros.
    fn zero(&mut self, range: Range<u64>) -> Result<()> {
        let range = range.start..range.end.min(self.reach);
        if range.is_empty() {
            return Ok(());
        }
        if self.how.no_data {
            return self.update_extent(&range);
        }
        self.has_written = true;
        let path = self.path;
        if self.out.version() != StreamVersion::One {
            let (offset, len) = (range.start, range.end - range.start);
            return self.out.put(&Command::Fallocate { path, mode: PUNCH_HOLE, offset, len });
        }
        self.buffer.fill(0);
        for part in parts(range, self.buffer.len()) {
            let bytes = usize::try_from(part.end - part.start).unwrap_or(0);
            let data = self.buffer.get(..bytes).unwrap_or_default();
            self.out.put(&Command::Write { path, offset: part.start, data })?;
        }
        Ok(())
    }

    fn update_extent(&mut self, range: &Range<u64>) -> Result<()> {
        let (path, offset, len) = (self.path, range.start, range.end - range.start);
        self.out.put(&Command::UpdateExtent { path, offset, len })
    }

    fn truncate(&mut self, size: u64) -> Result<()> {
        self.reach = size;
        self.has_written = true;
        self.out.put(&Command::Truncate { path: self.path, size })
    }

    /// Step 3.
    fn extend(&mut self) -> Result<()> {
        let size = self.file.len();
        if self.reach == size && !self.how.no_data { Ok(()) } else { self.truncate(size) }
    }
}

impl OldExtents {
    fn of(file: &File, end: u64) -> Self {
        Self { extents: file.extents(0..end), now: None }
    }

    /// Returns the extent at an offset, which is not below that of the last call.
    fn at(&mut self, offset: u64) -> Result<Option<Extent>> {
        while self.now.is_none_or(|now| end_of(&now) <= offset) {
            match self.extents.next() {
                Some(extent) => self.now = Some(extent?),
                None => return Ok(None),
            }
        }
        Ok(self.now)
    }
}

fn holds_data(extent: &Extent) -> bool {
    !matches!(extent.kind, ExtentKind::Hole | ExtentKind::Prealloc { .. })
}

fn end_of(extent: &Extent) -> u64 {
    extent.offset.saturating_add(extent.bytes)
}

/// Returns the data of a file in its first block.
fn first_block(file: &File) -> Result<Vec<u8>> {
    let mut bytes = vec![0; usize::try_from(file.len().min(SECTOR_BYTES)).unwrap_or(0)];
    read_exact(file, 0, &mut bytes)?;
    Ok(bytes)
}

/// Cuts a range into parts of at most `bytes_max` bytes.
fn parts(range: Range<u64>, bytes_max: usize) -> impl Iterator<Item = Range<u64>> {
    let step = bytes_max.max(1);
    range
        .clone()
        .step_by(step)
        .map(move |start| start..start.saturating_add(step as u64).min(range.end))
}

/// Fills a buffer with bytes of a file, and leaves no pages in the cache.
fn read_exact(file: &File, offset: u64, buf: &mut [u8]) -> Result<()> {
    let mut done = 0;
    while let Some(rest) = buf.get_mut(done..).filter(|rest| !rest.is_empty()) {
        match file.read_uncached(offset.saturating_add(done as u64), rest)? {
            0 => return Err(Error::EndOfFile),
            read => done += read,
        }
    }
    Ok(())
}
