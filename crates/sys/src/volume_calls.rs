//! The ioctls for a volume as a whole, on an open file of a mounted volume of the kernel's btrfs. A
//! mount of this project serves those of the label, too.
//!
//! Numbers and layouts are those of `linux/fs.h` and `linux/btrfs.h`.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};

use rustix::fs::fstatfs;

use crate::subvolume_calls::Arguments;

const GET_LABEL: libc::c_ulong = 0x8100_9431;
const SET_LABEL: libc::c_ulong = 0x4100_9432;
const RESIZE: libc::c_ulong = 0x5000_9403;

/// `BTRFS_SUPER_MAGIC` of `linux/magic.h`.
const BTRFS_SUPER_MAGIC: u64 = 0x9123_683e;
/// Size of a label in the calls, in bytes, with its final zero byte.
const LABEL_BYTES: usize = 256;
/// Size of the arguments of a resize in bytes, and where they have the new size as text.
const RESIZE_BYTES: usize = 4096;
const SIZE_AT: usize = 8;

/// Returns whether the kernel's btrfs has an open file.
pub fn is_kernel_btrfs(fd: impl AsFd) -> bool {
    fstatfs(fd).is_ok_and(|of| u64::try_from(of.f_type) == Ok(BTRFS_SUPER_MAGIC))
}

/// Returns the label of the volume that contains an open file.
///
/// # Errors
/// `ENOTTY` where the filesystem has no such call.
pub fn label(fd: BorrowedFd<'_>) -> io::Result<Vec<u8>> {
    let mut label = Arguments([0; LABEL_BYTES]);
    label.call(fd, GET_LABEL)?;
    Ok(label.0.iter().copied().take_while(|byte| *byte != 0).collect())
}

/// Sets the label of the volume that contains an open file.
///
/// # Errors
/// `EPERM` without `CAP_SYS_ADMIN`; `EROFS` through a read-only mount; `ENAMETOOLONG` for more than
/// 255 bytes; `ENOTTY` where the filesystem has no such call.
pub fn set_label(fd: BorrowedFd<'_>, label: &[u8]) -> io::Result<()> {
    Arguments::<LABEL_BYTES>::new().put(0, label)?.call(fd, SET_LABEL)
}

/// Resizes the volume that contains an open file, on one of its devices. `size` is a number of
/// bytes, also with a sign, or `max`, with `DEVID:` before it.
///
/// # Errors
/// `EPERM` without `CAP_SYS_ADMIN`; `EROFS`; `ENOSPC`, `EINVAL` or `EFBIG` for a size that the
/// volume or the device cannot have; `ENOTTY` where the filesystem has no such call.
pub fn resize(fd: BorrowedFd<'_>, size: &str) -> io::Result<()> {
    Arguments::<RESIZE_BYTES>::new().put(SIZE_AT, size.as_bytes())?.call(fd, RESIZE)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_labels_and_other_filesystems_are_refused() {
        let dir = std::fs::File::open("/proc").expect("/proc is mounted");
        let refused = set_label(dir.as_fd(), &[b'a'; LABEL_BYTES]).map_err(|e| e.raw_os_error());
        assert_eq!(refused, Err(Some(libc::ENAMETOOLONG)));
        let refused = label(dir.as_fd()).map_err(|e| e.raw_os_error());
        assert_eq!(refused, Err(Some(libc::ENOTTY)));
        assert!(!is_kernel_btrfs(&dir));
    }
}
