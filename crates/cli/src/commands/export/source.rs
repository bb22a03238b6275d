//! Reads the data of files that are exported.
//!
//! 1. Holes and preallocated extents are left out. Those of a file that fs-verity has sealed are
//!    verified.
//! 2. A range that cannot be read is left out too, in whole blocks, and is reported once per file;
//!    the rest of the file is read. An extent that is longer than the volume is not read: trying
//!    each of its blocks would take for ever.

use std::io;
use std::ops::Range;

use butternut::{AttributeFlags, Error, ExtentKind, File};

use super::super::walk::WalkPath;
use super::shared::Export;

/// Bytes per read.
pub(super) const READ_BYTES: usize = 4 << 20;
/// The smallest unit that is verified, and so of data loss: a block with a checksum, and in a file
/// that is sealed, a block of fs-verity.
const BLOCK_BYTES: u64 = 4096;
const VERITY_BLOCK_BYTES: u64 = 1024;

/// Takes the data of a file, at ascending offsets.
pub(super) trait Sink {
    fn data(&mut self, at: u64, bytes: &[u8]) -> io::Result<()>;

    /// Takes the place of `bytes` bytes that could not be read.
    fn unreadable(&mut self, bytes: u64) -> io::Result<()>;
}

/// A file that is read.
#[derive(Clone, Copy)]
pub(super) struct Source<'a> {
    pub(super) export: &'a Export,
    pub(super) file: &'a File,
    pub(super) path: &'a WalkPath,
}

impl Source<'_> {
    /// Calls `each` with the ranges that have data, ascending, with adjacent extents merged.
    pub(super) fn data_ranges(
        self,
        range: Range<u64>,
        mut each: impl FnMut(Range<u64>) -> io::Result<()>,
    ) -> io::Result<()> {
        let report = &self.export.report;
        let mut data = range.start..range.start;
        for extent in self.file.extents(range.clone()) {
            let extent = match extent {
                Ok(extent) => extent,
                Err(error) => {
                    report.unreadable(self.path, &error);
                    break;
                }
            };
            let end = extent.offset.saturating_add(extent.bytes).min(range.end);
            let is_too_long = matches!(extent.kind, ExtentKind::Regular { .. })
                && extent.bytes > self.export.extent_bytes_max;
            if is_too_long {
                let what = "the extent is longer than the volume";
                let error = Error::InvalidArgument { what };
                report.damaged(self.path, extent.offset, extent.bytes, &error);
            }
            if is_too_long || matches!(extent.kind, ExtentKind::Hole | ExtentKind::Prealloc { .. })
            {
                each_if_any(&data, &mut each)?;
                data = end..end;
                if !is_too_long {
                    self.verify_hole(extent.offset.max(range.start)..end);
                }
                continue;
            }
            if data.is_empty() {
                data.start = extent.offset.max(range.start);
            }
            data.end = end;
        }
        each_if_any(&data, &mut each)
    }

    fn verify_hole(self, hole: Range<u64>) {
        if let Err(error) = self.file.verify_holes(hole.clone()) {
            let bytes = hole.end.saturating_sub(hole.start);
            self.export.report.damaged(self.path, hole.start, bytes, &error);
        }
    }

    /// Reads a range up to the end of the file into `sink`.
    pub(super) fn read(
        self,
        range: Range<u64>,
        buffer: &mut [u8],
        sink: &mut impl Sink,
    ) -> io::Result<()> {
        let mut at = range.start;
        while at < range.end {
            let left = usize::try_from(range.end - at).unwrap_or(READ_BYTES).min(buffer.len());
            match self.file.read_at(at, &mut buffer[..left]) {
                Ok(0) => return Ok(()),
                Ok(read) => {
                    sink.data(at, &buffer[..read])?;
                    at += read as u64;
                }
                Err(_) => {
                    let end = at + left as u64;
                    self.read_blocks(at..end, buffer, sink)?;
                    at = end;
                }
            }
        }
        Ok(())
    }

    /// Reads block by block, and leaves out those that cannot be read. A read ends before the first
    /// of them.
    fn read_blocks(
        self,
        range: Range<u64>,
        buffer: &mut [u8],
        sink: &mut impl Sink,
    ) -> io::Result<()> {
        let flags = self.export.filesystem.attribute_flags(self.file.id());
        let is_sealed = flags.is_ok_and(|flags| flags.contains(AttributeFlags::VERITY));
        let block_bytes = if is_sealed { VERITY_BLOCK_BYTES } else { BLOCK_BYTES };
        let mut at = range.start;
        while at < range.end {
            let end = range.end.min((at / block_bytes + 1) * block_bytes);
            let left = usize::try_from(end - at).unwrap_or(buffer.len()).min(buffer.len());
            match self.file.read_at(at, &mut buffer[..left]) {
                Ok(read) => sink.data(at, &buffer[..read])?,
                Err(error) => {
                    self.export.report.damaged(self.path, at, end - at, &error);
                    sink.unreadable(end - at)?;
                }
            }
            at = end;
        }
        Ok(())
    }
}

fn each_if_any(
    data: &Range<u64>,
    each: &mut impl FnMut(Range<u64>) -> io::Result<()>,
) -> io::Result<()> {
    if data.is_empty() { Ok(()) } else { each(data.clone()) }
}
