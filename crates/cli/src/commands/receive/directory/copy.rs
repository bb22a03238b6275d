//! Clones in a plain directory: data is copied, or shared where the filesystem can do that.
//!
//! 1. Holes stay holes, so that a short stream does not fill the filesystem with zeros.
//! 2. What clone ioctls refuse is refused: a range that exceeds the source, and two ranges of one
//!    file that overlap.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::{FileExt, MetadataExt};

use butternut::format::refused::{Refused, require};
use rustix::fs::{FallocateFlags, SeekFrom, copy_file_range, fallocate, seek};
use rustix::io::Errno;

use super::Refusal;

/// Bytes that are copied at a time.
const COPY_BYTES: usize = 128 << 10;

/// Makes `len` bytes of `file` at `to` equal to those of `source` at `from`.
pub(super) fn clone_range(
    (source, from): (&File, u64),
    (file, to): (&File, u64),
    len: u64,
) -> Result<(), Refusal> {
    let too_far = || Refused::new("CLONE_LEN", len, "a range below 2^64");
    let ends = from.checked_add(len).zip(to.checked_add(len));
    let (from_end, to_end) = ends.ok_or_else(too_far)?;
    let (of_source, of_file) = (source.metadata()?, file.metadata()?);
    let size = of_source.len();
    let want = || format!("at most {size}, the size of the source");
    require(from_end <= size, "CLONE_OFFSET + CLONE_LEN", from_end, want())?;
    let is_same = (of_source.dev(), of_source.ino()) == (of_file.dev(), of_file.ino());
    let overlaps = is_same && from < to_end && to < from_end;
    require(!overlaps, "CLONE_OFFSET", from, "no range that overlaps the one that is written")?;
    let mut done = from;
    for_each_data(source, from..from_end, &mut |data| {
        zero(file, to + (done - from)..to + (data.start - from))?;
        done = data.end;
        copy((source, data.start), (file, to + (data.start - from)), data.end - data.start)
    })?;
    zero(file, to + (done - from)..to_end)?;
    if file.metadata()?.len() < to_end {
        file.set_len(to_end)?;
    }
    Ok(())
}

/// Calls `each` with every part of a range that is no hole. Where the filesystem does not know its
/// holes, that is the whole range.
fn for_each_data(
    file: &File,
    range: Range<u64>,
    each: &mut impl FnMut(Range<u64>) -> io::Result<()>,
) -> io::Result<()> {
    let mut at = range.start;
    while at < range.end {
        let start = match seek(file, SeekFrom::Data(at)) {
            Ok(start) => start.max(at),
            Err(Errno::NXIO) => return Ok(()),
            Err(_) => at,
        };
        if start >= range.end {
            return Ok(());
        }
        let end = seek(file, SeekFrom::Hole(start)).unwrap_or(range.end);
        let end = if end > start { end.min(range.end) } else { range.end };
        each(start..end)?;
        at = end;
    }
    Ok(())
}

/// Makes a range of a file read as zeros, and does not extend the file.
fn zero(file: &File, range: Range<u64>) -> io::Result<()> {
    let range = range.start..range.end.min(file.metadata()?.len());
    if range.is_empty() {
        return Ok(());
    }
    let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    match fallocate(file, punch, range.start, range.end - range.start) {
        Err(Errno::OPNOTSUPP) => for_each_data(file, range, &mut |data| {
            let zeros = [0; 4096];
            let mut at = data.start;
            while at < data.end {
                let bytes = (data.end - at).min(4096);
                file.write_all_at(&zeros[..usize::try_from(bytes).unwrap_or(0)], at)?;
                at += bytes;
            }
            Ok(())
        }),
        punched => Ok(punched?),
    }
}

/// Copies `len` bytes.
fn copy((source, from): (&File, u64), (file, to): (&File, u64), len: u64) -> io::Result<()> {
    let mut done = 0;
    // The kernel shares the data, or copies it without a detour; not on every filesystem.
    while done < len {
        let want = usize::try_from(len - done).unwrap_or(usize::MAX);
        let (mut at, mut to) = (from + done, to + done);
        match copy_file_range(source, Some(&mut at), file, Some(&mut to), want) {
            Ok(0) | Err(_) => break,
            Ok(copied) => done += u64::try_from(copied).unwrap_or(u64::MAX),
        }
    }
    let mut buf = vec![0; if done < len { COPY_BYTES } else { 0 }];
    while done < len {
        let want = usize::try_from(len - done).map_or(buf.len(), |left| left.min(buf.len()));
        let part = &mut buf[..want];
        source.read_exact_at(part, from + done)?;
        file.write_all_at(part, to + done)?;
        done += u64::try_from(want).unwrap_or(u64::MAX);
    }
    Ok(())
}
