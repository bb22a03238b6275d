//! The kernel's page cache of a mount: by default it reads 128 KiB ahead, and holds back whoever
//! has written a hundredth of the memory. Both are a fraction of what a disk's filesystem gets.
//!
//! The limits stand in sysfs, by the mount's device number, and only root may change them. Where
//! they cannot be changed the mount is slower, and nothing else.

use std::fs;

/// Two reads in flight ahead of the reader, and the limits of a disk.
const LIMITS: [(&str, &str); 3] =
    [("read_ahead_kb", "4096"), ("strict_limit", "0"), ("max_ratio", "100")];

/// Raises the limits of the mount with a device number.
pub(crate) fn raise_limits((major, minor): (u32, u32)) {
    for (name, value) in LIMITS {
        fs::write(format!("/sys/class/bdi/{major}:{minor}/{name}"), value).unwrap_or_default();
    }
}
