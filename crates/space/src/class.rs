//! What bytes are wanted for, and by whom.

use butternut_format::chunk::BlockGroupFlags;
use butternut_format::units::SECTOR_BYTES;

/// What bytes are for. On a volume of mixed groups data and metadata are one pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Class {
    Data,
    Metadata,
    System,
}

/// Who writes: writes of one cluster lie together. Any number will do, as long as those who write
/// side by side have different ones. A thread, or a file that is large, is a good cluster; each of
/// many small files is not, for they would lie apart.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Cluster(pub u64);

/// A range to be allocated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Want {
    /// Less than this is no use.
    pub bytes_min: u64,
    /// More than this is not taken.
    pub bytes_max: u64,
    /// A power of two, a sector at least: address and length are multiples of it.
    pub align: u64,
    pub cluster: Cluster,
}

impl Class {
    /// All of them, in the order of their pools.
    pub const ALL: [Self; 3] = [Self::Data, Self::Metadata, Self::System];

    /// The class that groups of these flags serve, where groups are not mixed.
    pub fn of(flags: BlockGroupFlags) -> Self {
        if flags.contains(BlockGroupFlags::SYSTEM) {
            Self::System
        } else if flags.contains(BlockGroupFlags::DATA) {
            Self::Data
        } else {
            Self::Metadata
        }
    }

    /// The flag that the class's own groups have.
    pub fn flag(self) -> BlockGroupFlags {
        match self {
            Self::Data => BlockGroupFlags::DATA,
            Self::Metadata => BlockGroupFlags::METADATA,
            Self::System => BlockGroupFlags::SYSTEM,
        }
    }
}

impl Want {
    /// Between `bytes_min` and `bytes_max` of data.
    pub fn data(bytes_min: u64, bytes_max: u64, cluster: Cluster) -> Self {
        Self { bytes_min, bytes_max, align: SECTOR_BYTES, cluster }
    }

    /// One tree block.
    pub fn node(node_bytes: u32, cluster: Cluster) -> Self {
        let bytes = u64::from(node_bytes);
        Self { bytes_min: bytes, bytes_max: bytes, align: bytes, cluster }
    }
}
