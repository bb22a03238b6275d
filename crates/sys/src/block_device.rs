//! What the kernel says of a block device, in `/sys`. Nothing here opens the device.

use crate::storage::{self, Storage};
use crate::text;
use std::path::{Path, PathBuf};

/// A block device, by its device number (major, minor).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockDevice(pub (u32, u32));

impl BlockDevice {
    /// Returns the block device that a path leads to now, or `None` if it leads to none.
    pub fn at(path: &Path) -> Option<Self> {
        match storage::storage_at(path)? {
            Storage::Device(numbers) => Some(Self(numbers)),
            Storage::File { .. } => None,
        }
    }

    /// Returns the name that the kernel has given the device, as a path in `/dev`. It may not
    /// exist.
    pub fn kernel_path(self) -> Option<PathBuf> {
        let events = text::of_file(self.folder().join("uevent")).ok()?;
        let name = events.lines().find_map(|line| line.strip_prefix("DEVNAME="))?;
        Some(Path::new("/dev").join(name))
    }

    /// Returns whether the kernel refuses writes to the device.
    pub fn is_read_only(self) -> bool {
        text::of_file(self.folder().join("ro")).is_ok_and(|ro| ro.trim() == "1")
    }

    /// Returns the size of the smallest unit that the device can address, in bytes.
    pub fn logical_block_bytes(self) -> Option<u32> {
        let folder = self.folder();
        // A partition has the blocks of its disk.
        let of = |queue: &str| text::of_file(folder.join(queue).join("logical_block_size")).ok();
        of("queue").or_else(|| of("../queue"))?.trim().parse().ok()
    }

    fn folder(self) -> PathBuf {
        let (major, minor) = self.0;
        PathBuf::from(format!("/sys/dev/block/{major}:{minor}"))
    }
}
