//! Classes of space, clusters, and requests for a range.

use butternut_format::chunk::BlockGroupFlags;
use butternut_format::units::SECTOR_BYTES;

/// What a block group holds. On a volume of mixed groups, data and metadata share one pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Class {
    Data,
    Metadata,
    System,
}

/// A writer, for the allocator: allocations of one cluster lie together. Any number will do, as
/// long as writers that run side by side use different ones. A thread or a large file is a good
/// cluster. Each of many small files is not: their data would lie far apart.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Cluster(pub u64);

/// A request for one range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AllocationRequest {
    /// The shortest range that is of use, in bytes.
    pub bytes_min: u64,
    /// The longest range that is allocated, in bytes.
    pub bytes_max: u64,
    /// Address and length of the range are multiples of this many bytes: a power of two, at least
    /// one sector.
    pub align: u64,
    pub cluster: Cluster,
}

impl Class {
    /// All classes, in the order of their pools.
    pub const ALL: [Self; 3] = [Self::Data, Self::Metadata, Self::System];

    /// Returns the class of groups with these flags, on a volume without mixed groups.
    pub fn of(flags: BlockGroupFlags) -> Self {
        if flags.contains(BlockGroupFlags::SYSTEM) {
            Self::System
        } else if flags.contains(BlockGroupFlags::DATA) {
            Self::Data
        } else {
            Self::Metadata
        }
    }

    /// Returns the block group flag of this class.
    pub fn flag(self) -> BlockGroupFlags {
        match self {
            Self::Data => BlockGroupFlags::DATA,
            Self::Metadata => BlockGroupFlags::METADATA,
            Self::System => BlockGroupFlags::SYSTEM,
        }
    }
}

impl AllocationRequest {
    /// Requests between `bytes_min` and `bytes_max` bytes for data.
    pub fn data(bytes_min: u64, bytes_max: u64, cluster: Cluster) -> Self {
        Self { bytes_min, bytes_max, align: SECTOR_BYTES, cluster }
    }

    /// Requests space for one tree block.
    pub fn node(node_bytes: u32, cluster: Cluster) -> Self {
        let bytes = u64::from(node_bytes);
        Self { bytes_min: bytes, bytes_max: bytes, align: bytes, cluster }
    }
}
