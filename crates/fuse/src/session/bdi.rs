//! Limits of the kernel's page cache for the mount's backing device (BDI).
//!
//! By default the kernel reads 128 KiB ahead on a FUSE mount, and throttles a writer that has
//! dirtied a hundredth of the memory. A filesystem on a disk gets a multiple of both.
//!
//! The limits are files in sysfs, by the mount's device number, that only root may write. Where
//! they cannot be written the mount is slower and otherwise the same.

use std::fs;

/// Readahead of four requests of 1 MiB, and the dirty limits of a disk's filesystem.
const LIMITS: [(&str, &str); 3] =
    [("read_ahead_kb", "4096"), ("strict_limit", "0"), ("max_ratio", "100")];

/// Raises the limits of the mount with a device number (major, minor). A mount of a block device
/// has the number of that device, which has limits of its own.
pub(crate) fn raise_limits((major, minor): (u32, u32), is_of_block_device: bool) {
    let suffix = if is_of_block_device { "-fuseblk" } else { "" };
    for (name, value) in LIMITS {
        let path = format!("/sys/class/bdi/{major}:{minor}{suffix}/{name}");
        fs::write(path, value).unwrap_or_default();
    }
}
