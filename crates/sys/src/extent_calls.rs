//! The calls about the extents of an open file: `FS_IOC_FIEMAP`, `FIDEDUPERANGE` and
//! `FICLONERANGE`.
//!
//! ```text
//! struct fiemap                                          struct fiemap_extent, 56 bytes each
//! 0       8        16      20       24      28     32  0         8          16       24     40
//! | start | length | flags | mapped | count | res. | | logical | physical | length | res. | flags
//!
//! struct file_dedupe_range            struct file_dedupe_range_info, 32 bytes, one here
//! 0        8        16      18     24     32       40      48      52
//! | offset | length | count | res. | ... | dest fd i64 | offset | deduped | status i32 | res.
//!
//! struct file_clone_range
//! 0            8        16       24       32
//! | src fd i64 | offset | length | offset |
//! ```
//!
//! The VFS answers these calls itself, and passes them to no FUSE server. The mounts of this
//! project serve the first two structures under numbers that state their whole size, which the VFS
//! does not know: [`SIZED_FIEMAP`] and [`SIZED_DEDUPE`]. They are tried where the filesystem has no
//! support for the calls themselves. On these mounts `copy_file_range` clones.

#![expect(clippy::host_endian_bytes, reason = "numbers in arguments of calls are in host order")]

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

use crate::subvolume_calls::Arguments;

const FIEMAP: libc::c_ulong = 0xc020_660b;
const DEDUPE: libc::c_ulong = 0xc018_9436;
const CLONE_RANGE: libc::c_ulong = 0x4020_940d;

/// Number of extents of one call.
pub const EXTENTS_MAX: usize = 72;
const FIEMAP_BYTES: usize = 32;
const EXTENT_BYTES: usize = 56;
const FIEMAP_WITH_EXTENTS: usize = FIEMAP_BYTES + EXTENTS_MAX * EXTENT_BYTES;
const DEDUPE_BYTES: usize = 24;
const TARGET_BYTES: usize = 32;
const DEDUPE_WITH_TARGET: usize = DEDUPE_BYTES + TARGET_BYTES;
const CLONE_BYTES: usize = 32;

/// `_IOWR('f', 11, 4064)`: a fiemap with room for [`EXTENTS_MAX`] extents.
pub const SIZED_FIEMAP: u32 = 0xcfe0_660b;
/// `_IOWR(0x94, 54, 56)`: a deduplication with one target.
pub const SIZED_DEDUPE: u32 = 0xc038_9436;

/// Of a fiemap: writes the data of the file back first.
const SYNC: u32 = 1;
/// Of a sized fiemap: finds out which extents are shared, which costs a search for each.
pub const SHARING: u32 = 1 << 31;
/// Flags of extents.
pub const EXTENT_LAST: u32 = 0x1;
pub const EXTENT_UNKNOWN: u32 = 0x2;
pub const EXTENT_DELALLOC: u32 = 0x4;
pub const EXTENT_ENCODED: u32 = 0x8;
pub const EXTENT_INLINE: u32 = 0x200;
pub const EXTENT_UNWRITTEN: u32 = 0x800;
pub const EXTENT_SHARED: u32 = 0x2000;

/// The status of a target whose bytes are different.
pub const RANGE_DIFFERS: i32 = 1;

/// An extent of a file, as the filesystem describes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileExtent {
    /// Offset in the file, in bytes.
    pub offset: u64,
    /// Address in the filesystem, in bytes.
    pub physical: u64,
    /// Length, in bytes.
    pub bytes: u64,
    /// The flags `EXTENT_...`.
    pub flags: u32,
    /// Of a compressed extent, from a mount of this project: where the range begins in its
    /// uncompressed bytes.
    pub skip: u64,
}

/// The answer to a request to share data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Deduped {
    /// So many bytes are shared.
    Bytes(u64),
    /// The ranges hold different bytes.
    Differs,
}

/// Returns the first extents of a file that end after `from`, at most [`EXTENTS_MAX`].
///
/// # Errors
/// `EOPNOTSUPP` or `ENOTTY` where the filesystem has no such call; those of writing the file back.
pub fn extents(fd: BorrowedFd<'_>, from: u64) -> io::Result<Vec<FileExtent>> {
    fiemap(fd, from, 0)
}

/// As [`extents`], with the flag [`EXTENT_SHARED`] also on a mount of this project. The kernel's
/// btrfs sets it always.
///
/// # Errors
/// As [`extents`].
pub fn extents_with_sharing(fd: BorrowedFd<'_>, from: u64) -> io::Result<Vec<FileExtent>> {
    fiemap(fd, from, SHARING)
}

/// `sized_flags` are those of the sized call.
fn fiemap(fd: BorrowedFd<'_>, from: u64, sized_flags: u32) -> io::Result<Vec<FileExtent>> {
    let count = u32::try_from(EXTENTS_MAX).unwrap_or(0);
    // The kernel refuses a range that ends after the largest offset.
    let length = i64::MAX.unsigned_abs().saturating_sub(from);
    let words = [from.to_ne_bytes(), length.to_ne_bytes()].concat();
    let with_flags = |flags: u32| {
        let halves = [flags, 0, count, 0].map(u32::to_ne_bytes).concat();
        Arguments::<FIEMAP_WITH_EXTENTS>::new().put(0, &words)?.put(16, &halves)
    };
    let mut arguments = with_flags(SYNC)?;
    // SAFETY: the kernel writes as many extents behind the structure as its count states.
    if let Err(error) = unsafe { arguments.call_as(fd, FIEMAP) } {
        if !is_unsupported(&error) {
            return Err(error);
        }
        arguments = with_flags(SYNC | sized_flags)?;
        arguments.call(fd, SIZED_FIEMAP.into())?;
    }
    let mapped = usize::try_from(u32_at(&arguments.0, 20)).unwrap_or(0).min(EXTENTS_MAX);
    let (extents, _) = arguments.0[FIEMAP_BYTES..].as_chunks::<EXTENT_BYTES>();
    let extent = |bytes: &[u8; EXTENT_BYTES]| FileExtent {
        offset: u64_at(bytes, 0),
        physical: u64_at(bytes, 8),
        bytes: u64_at(bytes, 16),
        flags: u32_at(bytes, 40),
        skip: u64_at(bytes, 24),
    };
    Ok(extents[..mapped].iter().map(extent).collect())
}

/// Compares `bytes` bytes of two files, and if they are equal, makes the target share the extents
/// of the source. The filesystem may stop early.
///
/// # Errors
/// `EPERM` if the caller may neither write to the target nor owns it; `EOPNOTSUPP` or `ENOTTY`
/// where the filesystem has no such call; `EXDEV` for two filesystems; `EINVAL` for a range that is
/// not aligned or ends after a file, and for data with and without checksums.
pub fn dedupe(
    source: (BorrowedFd<'_>, u64),
    target: (BorrowedFd<'_>, u64),
    bytes: u64,
) -> io::Result<Deduped> {
    let words = [source.1.to_ne_bytes(), bytes.to_ne_bytes()].concat();
    let to = i64::from(target.0.as_raw_fd());
    let place = [to.to_ne_bytes(), target.1.to_ne_bytes()].concat();
    let mut arguments = Arguments::<DEDUPE_WITH_TARGET>::new()
        .put(0, &words)?
        .put(16, &1_u16.to_ne_bytes())?
        .put(DEDUPE_BYTES, &place)?;
    // SAFETY: the kernel writes one answer behind the structure, as its count states.
    unsafe { arguments.call_as(source.0, DEDUPE) }.or_else(|error| {
        let sized = SIZED_DEDUPE.into();
        if is_unsupported(&error) { arguments.call(source.0, sized) } else { Err(error) }
    })?;
    let deduped = u64_at(&arguments.0, DEDUPE_BYTES + 16);
    match i32::from_ne_bytes(u32_at(&arguments.0, DEDUPE_BYTES + 24).to_ne_bytes()) {
        0 => Ok(Deduped::Bytes(deduped)),
        RANGE_DIFFERS => Ok(Deduped::Differs),
        status => Err(io::Error::from_raw_os_error(status.saturating_neg())),
    }
}

/// Makes `bytes` bytes of the target share the extents of the source; 0 bytes stand for all up to
/// the end of the source.
///
/// # Errors `EOPNOTSUPP` where the filesystem has no such call, and on a FUSE mount; `EXDEV` for
/// two filesystems; `EINVAL` for a range that is not aligned or ends after the source, for ranges
/// of one file that overlap, and for data with and without checksums.
pub fn clone_range(
    source: (BorrowedFd<'_>, u64),
    target: (BorrowedFd<'_>, u64),
    bytes: u64,
) -> io::Result<()> {
    let from = i64::from(source.0.as_raw_fd()).to_ne_bytes();
    let words = [from, source.1.to_ne_bytes(), bytes.to_ne_bytes(), target.1.to_ne_bytes()];
    let mut arguments = Arguments::<CLONE_BYTES>::new();
    arguments.0.as_chunks_mut().0.copy_from_slice(&words);
    arguments.call(target.0, CLONE_RANGE)
}

/// Returns whether an error says that the filesystem has no such call.
pub fn is_unsupported(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EOPNOTSUPP | libc::ENOTTY | libc::ENOSYS))
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    let word = bytes.get(at..).and_then(|bytes| bytes.first_chunk());
    word.map_or(0, |word| u32::from_ne_bytes(*word))
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    let word = bytes.get(at..).and_then(|bytes| bytes.first_chunk());
    word.map_or(0, |word| u64::from_ne_bytes(*word))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsFd;

    #[test]
    fn a_filesystem_without_the_calls_is_told_by_its_error() {
        let file = std::fs::File::open("/proc/self/status").expect("/proc is mounted");
        let file = file.as_fd();
        let error = extents(file, 0).expect_err("no extents in /proc");
        assert!(is_unsupported(&error), "{error}");
        let error = dedupe((file, 0), (file, 4096), 4096).expect_err("no extents in /proc");
        assert!(is_unsupported(&error) || error.raw_os_error() == Some(libc::EINVAL), "{error}");
    }

    #[test]
    fn the_numbers_state_their_sizes() {
        assert_eq!((SIZED_FIEMAP >> 16 & 0x3fff) as usize, FIEMAP_WITH_EXTENTS);
        assert_eq!((SIZED_DEDUPE >> 16 & 0x3fff) as usize, DEDUPE_WITH_TARGET);
    }
}
