//! Block group items: how many bytes of a chunk's logical range are in use.
//!
//! ```text
//! RawBlockGroup
//! 0      8                16      24
//! | used | chunk_objectid | flags |
//! ```
//!
//! They are in the extent tree, or in the block group tree (feature block-group-tree).
//!
//! 1. The key is (logical address, `BLOCK_GROUP_ITEM`, length); both are sector aligned, the length
//!    is not 0, and the end is inside the address space.
//! 2. `used` is at most the length.
//! 3. `chunk_objectid` is 256, and `flags` keep the laws of a chunk's type.

use crate::chunk::{BlockGroupFlags, FIRST_CHUNK_TREE, Profile};
use crate::key::Key;
use crate::refused::{Refused, require, whole};
use crate::units::{Logical, SECTOR_BYTES};
use zerocopy::little_endian::U64;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// A block group item in its on-disk form (`struct btrfs_block_group_item`).
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct RawBlockGroup {
    pub used: U64,
    pub chunk_objectid: U64,
    pub flags: U64,
}
const _: () = assert!(size_of::<RawBlockGroup>() == 24);

impl RawBlockGroup {
    pub fn of(bytes_used: u64, flags: BlockGroupFlags) -> Self {
        Self {
            used: U64::new(bytes_used),
            chunk_objectid: U64::new(FIRST_CHUNK_TREE),
            flags: U64::new(flags.0),
        }
    }
}

/// The logical range of a chunk, and how many of its bytes are in use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockGroup {
    pub logical: Logical,
    pub bytes: u64,
    pub bytes_used: u64,
    pub flags: BlockGroupFlags,
    pub profile: Profile,
}

impl BlockGroup {
    pub fn check(key: Key, data: &[u8], incompat: u64) -> Result<Self, Refused> {
        let raw = whole::<RawBlockGroup>(data)?;
        let (logical, bytes, bytes_used) = (key.objectid, key.offset, raw.used.get());
        require(logical.is_multiple_of(SECTOR_BYTES), "key objectid", logical, "sector aligned")?;
        let whole = bytes != 0 && bytes.is_multiple_of(SECTOR_BYTES);
        require(whole, "key offset", bytes, "sector aligned and not 0")?;
        let fits = logical.checked_add(bytes).is_some();
        require(fits, "key offset", bytes, "an end inside the address space")?;
        require(bytes_used <= bytes, "used", bytes_used, format_args!("at most {bytes}"))?;
        let objectid = raw.chunk_objectid.get();
        require(objectid == FIRST_CHUNK_TREE, "chunk_objectid", objectid, FIRST_CHUNK_TREE)?;
        let flags = BlockGroupFlags(raw.flags.get());
        let profile = flags.check(incompat)?;
        Ok(Self { logical: Logical(logical), bytes, bytes_used, flags, profile })
    }
}
