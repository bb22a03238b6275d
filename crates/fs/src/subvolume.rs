//! Subvolumes and snapshots: what there is, where it hangs.

use crate::{Filesystem, Result, Time};

/// One subvolume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SubvolumeInfo {
    pub id: u64,
    /// The subvolume whose directory holds it; `None` for the top level and for deleted ones.
    pub parent: Option<u64>,
    /// The directory's inode number in `parent`, and the name there.
    pub dir: u64,
    pub name: Vec<u8>,
    /// From the top-level subvolume, without a leading `/`; `None` when deleted but not yet
    /// cleaned. The top level's own is "".
    pub path: Option<Vec<u8>>,
    pub uuid: [u8; 16],
    /// The subvolume that this is a snapshot of; zero where there is none.
    pub parent_uuid: [u8; 16],
    pub received_uuid: [u8; 16],
    pub generation: u64,
    /// The generation that made it.
    pub created_generation: u64,
    pub changed_generation: u64,
    pub sent_generation: u64,
    pub received_generation: u64,
    pub created: Time,
    pub changed: Time,
    pub sent: Time,
    pub received: Time,
    /// `BTRFS_ROOT_SUBVOL_*` bits as stored.
    pub flags: u64,
    pub read_only: bool,
    /// Deleted, waiting to be cleaned.
    pub deleted: bool,
}

impl Filesystem {
    /// All subvolumes but the top level, by id; deleted ones that are still on disk too.
    pub fn subvolumes(&self) -> Result<Vec<SubvolumeInfo>> {
        self.not_yet(self.root())
    }

    /// One subvolume; 5 is the top level.
    pub fn subvolume(&self, id: u64) -> Result<SubvolumeInfo> {
        let _ = id;
        self.not_yet(self.root())
    }

    /// The subvolume that a mount without options shows.
    pub fn default_subvolume(&self) -> Result<u64> {
        self.not_yet(self.root())
    }
}
