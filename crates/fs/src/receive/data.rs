//! The commands that write data: compressed data, cloned ranges, fallocate(2).

use super::serving::check;
use crate::{Allocate, Error, ExtentKind, File, Result};
use butternut_file::compress::{Origin, decompress};
use butternut_format::file_extent::{COMPRESSED_BYTES_MAX, Compression};
use butternut_format::refused::{Bits, Refused, require};
use butternut_format::stream::{Command, StreamCompression};
use butternut_format::units::{SECTOR_BYTES, length};
use std::ops::Range;

/// Flags of fallocate(2).
const KEEP_SIZE: u32 = 1;
const PUNCH_HOLE: u32 = 2;
const ZERO_RANGE: u32 = 16;

/// Compressed data of a command, and which part of it is written.
#[derive(Clone, Copy, Debug)]
pub(super) struct Encoded<'a> {
    pub(super) data: &'a [u8],
    pub(super) compression: StreamCompression,
    /// Size in bytes of the decompressed data.
    pub(super) bytes: u64,
    /// Offset in the decompressed data, and number of bytes.
    pub(super) offset: u64,
    pub(super) file_bytes: u64,
}

impl<'a> Encoded<'a> {
    /// Returns the data of an `ENCODED_WRITE`.
    pub(super) fn of(command: &Command<'a>) -> Option<Self> {
        let Command::EncodedWrite {
            data,
            compression,
            unencoded_len: bytes,
            unencoded_offset: offset,
            unencoded_file_len: file_bytes,
            ..
        } = *command
        else {
            return None;
        };
        Some(Self { data, compression, bytes, offset, file_bytes })
    }

    /// Decompresses the data, and returns the part to write.
    pub(super) fn decode(&self) -> Result<Vec<u8>, Refused> {
        let max = COMPRESSED_BYTES_MAX;
        let want = || format!("at most {max}");
        require(self.bytes <= max, "UNENCODED_LEN", self.bytes, want())?;
        let data_bytes = length(self.data.len());
        require(data_bytes <= max, "DATA", data_bytes, want())?;
        let part = self.offset.checked_add(self.file_bytes).filter(|end| *end <= self.bytes);
        let outside = || {
            let have = format_args!("{} + {}", self.offset, self.file_bytes);
            Refused::new("UNENCODED_OFFSET + UNENCODED_FILE_LEN", have, self.bytes)
        };
        let end = part.ok_or_else(outside)?;
        let compression = match self.compression {
            StreamCompression::None => Compression::None,
            StreamCompression::Zlib => Compression::Zlib,
            StreamCompression::Zstd => Compression::Zstd,
            StreamCompression::Lzo4K => Compression::Lzo,
            StreamCompression::Lzo8K
            | StreamCompression::Lzo16K
            | StreamCompression::Lzo32K
            | StreamCompression::Lzo64K => {
                let have = format_args!("{:?}", self.compression);
                return Err(Refused::new("COMPRESSION", have, "a sector size of 4 KiB"));
            }
        };
        let size = |bytes: u64| usize::try_from(bytes).unwrap_or(usize::MAX);
        let mut decoded = vec![0; size(self.bytes)];
        decompress(compression, Origin::Disk, self.data, &mut decoded)?;
        decoded.truncate(size(end));
        decoded.drain(..size(self.offset));
        Ok(decoded)
    }
}

/// Makes a range of `file` equal to the range `from` of `source`, at `to`. Whole blocks are shared
/// where both files allow it, and the rest is copied, as long as `goes_on` returns true.
pub(super) fn clone_range(
    file: &File,
    to: u64,
    source: &File,
    from: Range<u64>,
    goes_on: &dyn Fn() -> bool,
) -> Result<()> {
    let bytes = from.end.saturating_sub(from.start);
    let mut done = 0;
    while done < bytes {
        let at = |start: u64| start.saturating_add(done);
        // A copy that is cut short has an error, or the source ends: the next one tells.
        let copied = file.copy_range_while(at(to), source, at(from.start)..from.end, goes_on)?;
        check(goes_on)?;
        if copied == 0 {
            let want = format_args!("{bytes}, the source ends").to_string();
            return Err(Error::Stream(Refused::new("CLONE_LEN", done, want)));
        }
        done += copied;
    }
    Ok(())
}

/// Returns the number of extents that a clone of a range to `to` makes, or of blocks that it
/// copies: at most `most`.
pub(super) fn count_cloned(to: u64, source: &File, from: &Range<u64>, most: u64) -> Result<u64> {
    if to % SECTOR_BYTES != from.start % SECTOR_BYTES {
        let end = from.end.min(source.len());
        return Ok(end.saturating_sub(from.start).div_ceil(SECTOR_BYTES).min(most));
    }
    count_extents(source, from.clone(), most)
}

/// Returns the number of extents in a range: at most `most`.
pub(super) fn count_extents(file: &File, range: Range<u64>, most: u64) -> Result<u64> {
    let (mut count, mut extents) = (0, file.extents(range));
    while count < most
        && let Some(extent) = extents.next().transpose()?
    {
        count += u64::from(extent.kind != ExtentKind::Hole);
    }
    Ok(count)
}

/// Calls fallocate(2) with the flags `mode`.
pub(super) fn fallocate(file: &File, mode: u32, offset: u64, len: u64) -> Result<()> {
    let how = match mode {
        0 => Allocate::Extend,
        KEEP_SIZE => Allocate::KeepSize,
        _ if mode == PUNCH_HOLE | KEEP_SIZE => Allocate::PunchHole,
        ZERO_RANGE => Allocate::Zero,
        _ if mode == ZERO_RANGE | KEEP_SIZE => Allocate::ZeroKeepSize,
        _ => {
            let want = "0, 1, 3, 16 or 17";
            return Err(Error::Stream(Refused::new("mode", Bits(mode.into()), want)));
        }
    };
    let end = offset.checked_add(len).ok_or_else(|| {
        Error::Stream(Refused::new("offset + length", "above 2^64", "at most 2^64"))
    })?;
    file.allocate(offset..end, how)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Filesystem, MountOptions, NewInode};
    use butternut_device::{Device, MemoryDevice};
    use butternut_mkfs::MkfsOptions;
    use std::sync::Arc;

    #[test]
    fn a_file_that_is_cloned_to_its_own_end_is_counted_up_to_the_limit() {
        let device = MemoryDevice::new("memory", 256 << 20);
        butternut_mkfs::make(&device, &MkfsOptions::default()).unwrap();
        let options = MountOptions::default().read_only(false).commit_seconds(0);
        let devices = vec![Arc::new(device) as Arc<dyn Device>];
        let fs = Filesystem::open_devices(devices, &options).unwrap();
        let id = fs.create(fs.root(), b"file", &NewInode::new(0o644)).unwrap();
        let file = fs.open_file(id).unwrap();
        file.write_at(0, &[7; 4096]).unwrap();
        for times in 0..8 {
            let (bytes, extents) = (4096 << times, 1 << times);
            let count = |to, most| count_cloned(to, &file, &(0..bytes), most).unwrap();
            assert_eq!(count(bytes, u64::MAX), extents);
            assert_eq!(count(bytes, 5), extents.min(5));
            assert_eq!(count(bytes + 1, u64::MAX), extents, "blocks that are copied");
            clone_range(&file, bytes, &file, 0..bytes, &|| true).unwrap();
        }
        file.truncate(1 << 40).unwrap();
        let all = 0..1 << 40;
        assert_eq!(count_cloned(1 << 40, &file, &all, u64::MAX).unwrap(), 256, "no holes");
    }
}
