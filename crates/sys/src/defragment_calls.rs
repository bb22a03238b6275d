//! The calls that defragment an open file: `BTRFS_IOC_DEFRAG_RANGE`.
//!
//! ```text
//! struct btrfs_ioctl_defrag_range_args, 48 bytes
//! 0       8     16      24          28                29      32
//! | start | len | flags | threshold | algorithm u8 | level i8 | .. | unused u32 x 4 |
//!
//! behind it in SIZED_DEFRAGMENT, 40 bytes, written by the mount
//! 48          56               64              72            80
//! | rewritten | extents before | extents after | shared left | unshared |
//! ```
//!
//! The kernel's call returns nothing, and always breaks the sharing of extents. The mounts of this
//! project also serve the call under a number that states a larger size, [`SIZED_DEFRAGMENT`]. It
//! returns what was done, and the first unused number says what happens to shared extents.

#![expect(clippy::host_endian_bytes, reason = "numbers in arguments of calls are in host order")]

use std::io;
use std::os::fd::BorrowedFd;

use crate::subvolume_calls::Arguments;

/// `BTRFS_IOC_DEFRAG`: the whole file, with the kernel's defaults.
pub const DEFRAGMENT_FILE: u32 = 0x5000_9402;
/// `BTRFS_IOC_DEFRAG_RANGE`.
pub const DEFRAGMENT_RANGE: u32 = 0x4030_9410;
/// `_IOWR(0x94, 16, 88)`: the range, and what was done.
pub const SIZED_DEFRAGMENT: u32 = 0xc058_9410;

/// Flags: data is compressed; it is written back when the call returns; the level is given.
pub const COMPRESS: u64 = 1;
pub const START_IO: u64 = 2;
pub const COMPRESS_LEVEL: u64 = 4;

/// The first unused number of [`SIZED_DEFRAGMENT`]: shared extents are written again.
pub const BREAK_SHARING: u32 = 1;

const RANGE_BYTES: usize = 48;
const SIZED_BYTES: usize = 88;
const UNUSED_AT: usize = 32;

/// A range of a file that is to be defragmented.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Range {
    /// Offset in the file, in bytes.
    pub start: u64,
    /// Length in bytes; the largest number is the whole file.
    pub bytes: u64,
    /// Length of extents that are left alone, in bytes; 0 is the default.
    pub threshold: u32,
    /// The number of an algorithm (1 zlib, 2 lzo, 3 zstd) and its level, if data is compressed.
    pub compress: Option<(u8, i8)>,
    /// Extents that are shared are written again.
    pub breaks_sharing: bool,
}

/// What a mount of this project has done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Done {
    pub rewritten_bytes: u64,
    pub extents_before: u64,
    pub extents_after: u64,
    pub shared_bytes_left: u64,
    pub unshared_bytes: u64,
}

impl Range {
    /// Returns the arguments of a call. `has_level`: the filesystem knows levels.
    fn arguments<const N: usize>(&self, has_level: bool) -> io::Result<Arguments<N>> {
        let (algorithm, level) = self.compress.unwrap_or_default();
        let flag = if self.compress.is_none() {
            0
        } else if has_level {
            COMPRESS | COMPRESS_LEVEL
        } else {
            COMPRESS
        };
        let words = [self.start, self.bytes, flag | START_IO].map(u64::to_ne_bytes).concat();
        let level = if has_level { level } else { 0 };
        Arguments::<N>::new()
            .put(0, &words)?
            .put(24, &self.threshold.to_ne_bytes())?
            .put(28, &[algorithm, level.to_ne_bytes()[0], 0, 0])
    }
}

/// Defragments a range of a file on a mount of this project.
///
/// # Errors
/// `ENOTTY` or `EOPNOTSUPP` on every other filesystem; `EPERM` without the permission to write;
/// `EROFS`; `ENOSPC`, `EDQUOT` and `EIO` after a part may have been defragmented.
pub fn defragment(fd: BorrowedFd<'_>, range: &Range) -> io::Result<Done> {
    let sharing = if range.breaks_sharing { BREAK_SHARING } else { 0 };
    let mut arguments =
        range.arguments::<SIZED_BYTES>(true)?.put(UNUSED_AT, &sharing.to_ne_bytes())?;
    arguments.call(fd, SIZED_DEFRAGMENT.into())?;
    let (words, _) = arguments.0[RANGE_BYTES..].as_chunks::<8>();
    let word = |at: usize| words.get(at).map_or(0, |word| u64::from_ne_bytes(*word));
    Ok(Done {
        rewritten_bytes: word(0),
        extents_before: word(1),
        extents_after: word(2),
        shared_bytes_left: word(3),
        unshared_bytes: word(4),
    })
}

/// Defragments a range of a file on the kernel's btrfs, which breaks the sharing of extents. A
/// level other than the default needs Linux 6.15.
///
/// # Errors
/// As [`defragment`].
pub fn defragment_in_kernel(fd: BorrowedFd<'_>, range: &Range) -> io::Result<()> {
    let has_level = range.compress.is_some_and(|(_, level)| level != 0);
    range.arguments::<RANGE_BYTES>(has_level)?.call(fd, DEFRAGMENT_RANGE.into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::extent_calls::is_unsupported;
    use std::os::fd::AsFd;

    #[test]
    fn a_filesystem_without_the_calls_is_told_by_its_error() {
        let file = std::fs::File::open("/proc/self/status").expect("/proc is mounted");
        let range = Range { bytes: u64::MAX, compress: Some((3, 0)), ..Range::default() };
        let error = defragment(file.as_fd(), &range).expect_err("no extents in /proc");
        assert!(is_unsupported(&error), "{error}");
        let error = defragment_in_kernel(file.as_fd(), &range).expect_err("no extents in /proc");
        assert!(is_unsupported(&error), "{error}");
    }

    #[test]
    fn the_numbers_state_their_sizes() {
        assert_eq!((DEFRAGMENT_RANGE >> 16 & 0x3fff) as usize, RANGE_BYTES);
        assert_eq!((SIZED_DEFRAGMENT >> 16 & 0x3fff) as usize, SIZED_BYTES);
    }
}
