//! How the volume's space is spent: by block group type and profile, and by device.

use crate::{Filesystem, Result};

/// Space by kind and by device.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// One per combination of type and profile, in the order of their first block group.
    pub groups: Vec<GroupUsage>,
    pub devices: Vec<DeviceInfo>,
    /// What the kernel would hold back for its own trees (`GlobalReserve`), in bytes.
    pub global_reserve_bytes: u64,
}

/// All block groups of one type and profile.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GroupUsage {
    /// `BTRFS_BLOCK_GROUP_*` bits: data 1, system 2, metadata 4, raid0 8, raid1 16, dup 32,
    /// raid10 64, raid5 128, raid6 256, raid1c3 512, raid1c4 1024; no profile bit is single.
    pub flags: u64,
    /// Logical bytes: what can be stored, copies and parity not counted.
    pub total_bytes: u64,
    pub used_bytes: u64,
    /// Bytes on devices behind `total_bytes`, copies and parity counted.
    pub raw_bytes: u64,
}

/// One device of the volume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceInfo {
    pub id: u64,
    pub uuid: [u8; 16],
    /// Where it was opened from; `None` when it is missing.
    pub path: Option<String>,
    pub missing: bool,
    /// The bytes that btrfs uses of it.
    pub total_bytes: u64,
    /// Bytes in chunks, from the device item.
    pub allocated_bytes: u64,
    /// Bytes in chunks by block group flags, from the device extents.
    pub allocated: Vec<(u64, u64)>,
    /// Reads of this device that failed, and reads whose bytes did not pass their check.
    pub read_errors: u64,
    pub corruptions: u64,
}

impl Filesystem {
    pub fn usage(&self) -> Result<Usage> {
        self.not_yet(self.root())
    }

    /// The volume's devices, missing ones too, by id.
    pub fn devices(&self) -> Result<Vec<DeviceInfo>> {
        self.not_yet(self.root())
    }
}
