//! Copies of a range of one file to another (`copy_file_range`): the whole blocks are shared where
//! both files allow it, and the rest is read and written.
//!
//! ```text
//! source   |  .--|=====|=====|--. |       .. copied     == shared
//! target         |--|=====|=====|--|      where the offsets in a block are equal
//! ```
//!
//! Laws:
//!
//! 1. The result is that of a copy, whatever was shared.
//! 2. A copy whose blocks cannot be shared is made by reads and writes: where the offsets differ in
//!    their blocks, between filesystems, where only one file has checksums, from an open file of a
//!    deleted subvolume, and to an append-only file. Its holes are holes of the copy.
//! 3. A copy that fails after a part of it was shared or copied returns the length of that part,
//!    like a short write. An error of a synchronous file's sync is returned in any case.

use crate::file::write::Altered;
use crate::{Error, File, Filesystem, Privileges, Result};
use butternut_file::{self as data, CloneRange};
use butternut_format::units::{SECTOR_BYTES, length};
use std::cell::Cell;
use std::ops::Range;
use std::sync::Arc;

/// Bytes that a copy reads and writes in one step.
const COPY_BYTES: usize = 1 << 20;

impl File {
    /// Copies up to `bytes` bytes at `from` of `other`, which may be this file, to `to`, and
    /// returns the number of bytes copied: fewer if `other` ends earlier. Whole blocks are shared
    /// as by [`File::clone_range`] where that is possible.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if both ranges are of one file and overlap.
    pub fn copy_range(&self, to: u64, other: &Self, from: u64, bytes: u64) -> Result<u64> {
        self.copy_range_as(to, other, from..from.saturating_add(bytes), Privileges::Keep)
    }

    /// As [`File::copy_range`], and strips the privileges of this file that the caller may not
    /// keep.
    pub fn copy_range_as(
        &self,
        to: u64,
        other: &Self,
        range: Range<u64>,
        privileges: Privileges,
    ) -> Result<u64> {
        self.copy_parts(to, other, range, (privileges, &|| true))
    }

    /// As [`File::copy_range`]. Returns early once `goes_on` has returned false, which is called
    /// before each part that is copied and not shared.
    pub(crate) fn copy_range_while(
        &self,
        to: u64,
        other: &Self,
        range: Range<u64>,
        goes_on: &dyn Fn() -> bool,
    ) -> Result<u64> {
        self.copy_parts(to, other, range, (Privileges::Keep, goes_on))
    }

    fn copy_parts(
        &self,
        to: u64,
        other: &Self,
        range: Range<u64>,
        (privileges, goes_on): (Privileges, &dyn Fn() -> bool),
    ) -> Result<u64> {
        let how = (privileges, goes_on);
        let (from, bytes) = (range.start, range.end.saturating_sub(range.start));
        let too_far = || Error::InvalidArgument { what: "the range has no end" };
        let pin = self.pin()?;
        Filesystem::may_write(&pin.filesystem().attributes(pin.entry())?)?;
        // The size of the other file is read once: it may be this file, which grows.
        let size = other.len();
        let bytes = bytes.min(size.saturating_sub(from));
        let from_end = from.checked_add(bytes).ok_or_else(too_far)?;
        let to_end = to.checked_add(bytes).ok_or_else(too_far)?;
        if self.is_same_file(other) && from < to_end && to < from_end {
            return Err(Error::InvalidArgument { what: "the ranges overlap" });
        }
        let reaches_end = from_end == size && to_end >= self.len();
        let (head, shared) = shareable(from, to, bytes, reaches_end);
        let mut done = self.copy_bytes(to, other, from..from + head, how)?;
        if shared > 0 && done == head {
            let range = CloneRange { from: from + head, to: to + head, bytes: shared };
            let cloned_bytes = Cell::new(0);
            let cloned = self.clone_counted(range, other, privileges, &cloned_bytes);
            done += cloned_bytes.get();
            if cloned_bytes.get() > 0 {
                self.sync_if_synchronous()?;
            }
            match cloned {
                Ok(()) => {}
                Err(error) if cloned_bytes.get() == 0 && is_not_shareable(&error) => {}
                Err(error) if done == 0 => return Err(error),
                Err(_) => return Ok(done),
            }
        }
        match self.copy_bytes(to + done, other, from + done..from_end, how) {
            Ok(copied) => Ok(done + copied),
            Err(error) if done == 0 => Err(error),
            Err(_) => Ok(done),
        }
    }

    /// Files of different volumes may have the same id.
    fn is_same_file(&self, other: &Self) -> bool {
        let is_same_volume = match (&self.pin, &other.pin) {
            (Some(pin), Some(other)) => {
                Arc::ptr_eq(&pin.filesystem().shared, &other.filesystem().shared)
            }
            // `other` is of a volume that is open for reading: this one is not.
            _ => false,
        };
        is_same_volume && self.id() == other.id()
    }

    /// Copies a range by reads and writes, and its holes as holes, as long as `goes_on` returns
    /// true. Returns the number of bytes copied.
    fn copy_bytes(
        &self,
        to: u64,
        other: &Self,
        range: Range<u64>,
        (privileges, goes_on): (Privileges, &dyn Fn() -> bool),
    ) -> Result<u64> {
        let mut buf = Vec::new();
        let mut at = range.start;
        while at < range.end && goes_on() {
            let target = to + (at - range.start);
            match self.copy_piece(target, other, at..range.end, &mut buf, privileges) {
                Ok(0) => break,
                Ok(copied) => at += copied,
                Err(error) if at == range.start => return Err(error),
                Err(_) => break,
            }
        }
        Ok(at - range.start)
    }

    /// Copies a hole, or at most [`COPY_BYTES`] of data, from the beginning of a range. Returns the
    /// number of bytes copied: none if `other` ends there.
    fn copy_piece(
        &self,
        to: u64,
        other: &Self,
        range: Range<u64>,
        buf: &mut Vec<u8>,
        privileges: Privileges,
    ) -> Result<u64> {
        let (data, end) = other.data_within(&range)?;
        if range.start >= end {
            return Ok(0);
        }
        if data > range.start {
            other.verify_holes(range.start..data)?;
            return self.copy_hole(to..to + (data - range.start), privileges);
        }
        // Another thread may have punched the block since: it is copied as data, all the same.
        let border = (range.start / SECTOR_BYTES + 1) * SECTOR_BYTES;
        let end = end.min(range.start.saturating_add(length(COPY_BYTES)));
        let hole = other.hole_within(range.start..end)?;
        let end = hole.map_or(end, |hole| hole.max(border).min(end));
        buf.resize(usize::try_from(end.saturating_sub(range.start)).unwrap_or(COPY_BYTES), 0);
        let read = other.read_at(range.start, buf)?;
        let written = self.write_as(to, buf.get(..read).unwrap_or_default(), privileges)?;
        Ok(length(written))
    }

    /// Returns where the first data of a range begins, and where the range ends in this file. Data
    /// begins at the end if there is none.
    fn data_within(&self, range: &Range<u64>) -> Result<(u64, u64)> {
        // One lock for both: what a truncation removes between them is no hole of the file.
        let _state = self.shared_lock();
        let end = self.view().size().min(range.end);
        if range.start >= end {
            return Ok((end, end));
        }
        let data = data::seek_data_within(self.view(), range.start..end)?;
        Ok((data.unwrap_or(end), end))
    }

    /// Returns the first hole in a range.
    fn hole_within(&self, range: Range<u64>) -> Result<Option<u64>> {
        let _state = self.shared_lock();
        Ok(data::seek_hole_within(self.view(), range)?)
    }

    /// Makes a range of this file a hole, up to the end of the file, or from there on: the file
    /// then ends at the end of the range. Returns the number of bytes. A change that fails leaves
    /// each byte as it was, or zero.
    fn copy_hole(&self, range: Range<u64>, privileges: Privileges) -> Result<u64> {
        self.synced(self.with_space(|| self.copy_hole_once(&range, privileges))?)
    }

    fn copy_hole_once(&self, range: &Range<u64>, privileges: Privileges) -> Result<Altered<u64>> {
        let _watch = self.watch_panics();
        self.alter(privileges, |file, inode, stamp| {
            self.may_write(inode)?;
            let size = file.size();
            self.may_write_at(inode, size, Some(range.start))?;
            if range.start < size {
                let end = range.end.min(size);
                file.punch_hole(range.start..end, stamp)?;
                return Ok(end - range.start);
            }
            file.truncate(range.end, stamp)?;
            Ok(range.end - range.start)
        })
    }
}

/// Returns how many bytes precede the first block that can be shared, and how many bytes can be
/// shared: at least one block. A range that reaches the ends of both files may end inside a block.
fn shareable(from: u64, to: u64, bytes: u64, reaches_end: bool) -> (u64, u64) {
    let (skip, skip_to) = (from % SECTOR_BYTES, to % SECTOR_BYTES);
    let head = (SECTOR_BYTES - skip) % SECTOR_BYTES;
    let rest = bytes.saturating_sub(head);
    if skip != skip_to || rest < SECTOR_BYTES {
        return (0, 0);
    }
    (head, if reaches_end { rest } else { rest - rest % SECTOR_BYTES })
}

/// Returns whether a clone was refused where a copy need not be (law 2).
fn is_not_shareable(error: &Error) -> bool {
    matches!(
        error,
        Error::InvalidArgument { .. }
            | Error::CrossesFilesystems
            | Error::NotPermitted { .. }
            | Error::Stale { .. }
    )
}

#[cfg(test)]
mod tests {
    use super::shareable;
    use crate::{Filesystem, MountOptions, NewInode};
    use butternut_device::{Device, MemoryDevice};
    use butternut_mkfs::MkfsOptions;
    use std::sync::Arc;
    use std::thread;
    use std::time::Duration;

    #[test]
    fn only_whole_blocks_at_equal_places_are_shared() {
        assert_eq!(shareable(0, 4096, 8192, false), (0, 8192));
        assert_eq!(shareable(100, 4196, 12_000, false), (3996, 4096));
        assert_eq!(shareable(100, 4196, 12_000, true), (3996, 8004));
        assert_eq!(shareable(0, 4096, 5000, true), (0, 5000));
        assert_eq!(shareable(0, 1, 8192, true), (0, 0));
        assert_eq!(shareable(100, 100, 3996, true), (0, 0));
        assert_eq!(shareable(100, 100, 10, false), (0, 0));
        assert_eq!(shareable(0, 0, 10, false), (0, 0));
        assert_eq!(shareable(0, 0, 4095, true), (0, 0), "it may be inline");
    }

    /// The copy has read the length of the source, and waits for its inode lock to search for data.
    #[test]
    fn a_copy_of_a_file_that_is_truncated_meanwhile_has_no_bytes_that_the_file_never_had() {
        const BYTES: usize = 8 * 4096;
        let device = Arc::new(MemoryDevice::new("memory", 256 << 20));
        butternut_mkfs::make(&*device, &MkfsOptions::default()).unwrap();
        let options = MountOptions::default().read_only(false).commit_seconds(0);
        let fs = Filesystem::open_devices(vec![device as Arc<dyn Device>], &options).unwrap();
        let make = |name: &[u8], byte: u8| {
            let id = fs.create(fs.root(), name, &NewInode::new(0o644)).unwrap();
            let file = fs.open_file(id).unwrap();
            file.write_at(0, &vec![byte; BYTES + 1]).unwrap();
            file
        };
        let (source, target) = (make(b"source", 1), make(b"target", 2));
        fs.sync().unwrap();
        let write_state = fs.write_state().unwrap();
        let entry = write_state.table.entry(source.id());
        let subvolume = fs.writable_subvolume(write_state, source.id()).unwrap();
        let mut state = entry.lock();
        let (from, to) = (source.clone(), target.clone());
        // Other offsets in their blocks: nothing is shared, the bytes are read and written.
        let copying = thread::spawn(move || to.copy_range(1, &from, 0, BYTES as u64));
        // Long enough for the other thread to wait for the lock. A slow machine only proves less.
        thread::sleep(Duration::from_millis(100));
        assert!(!copying.is_finished());
        let attributes = fs.attributes(&entry).unwrap();
        fs.set_size(write_state, &subvolume, &entry, &mut state, (0, attributes)).unwrap();
        drop(state);
        let copied = usize::try_from(copying.join().unwrap().unwrap()).unwrap();
        let mut have = vec![0xee; BYTES];
        target.read_exact_at(1, &mut have).unwrap();
        assert!(have[..copied].iter().all(|byte| *byte == 1), "{copied} bytes: {:?}", &have[..4]);
        assert!(have[copied..].iter().all(|byte| *byte == 2));
    }
}
