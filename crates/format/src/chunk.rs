//! Chunk items: map a range of logical addresses to stripes on devices.
//!
//! ```text
//! RawChunk
//! 0        8       16           24     32         36         40            44
//! | length | owner | stripe_len | type | io_align | io_width | sector_size | num_stripes |
//! 46            48
//! | sub_stripes | stripes ... |
//!
//! RawStripe
//! 0       8        16         32
//! | devid | offset | dev_uuid |
//! ```
//!
//! 1. The key is (256, `CHUNK_ITEM`, logical address); the size of the item matches its number of
//!    stripes.
//! 2. Address and length are sector aligned, the length is not 0, and the end is inside the address
//!    space. The length is below 2^32 - 1 units of 64 KiB.
//! 3. `stripe_len` is 64 KiB, `sector_size` that of the volume.
//! 4. The type is data, system or metadata, or data and metadata with the feature mixed-groups. It
//!    has at most one profile.
//! 5. The number of stripes is valid for the profile; `sub_stripes` is 2 for raid10.
//! 6. Every stripe starts sector aligned, and ends inside the address space of its device.

use crate::feature::MIXED_GROUPS;
use crate::key::{ItemType, Key};
use crate::refused::{Bits, Refused, require};
use crate::units::{DevId, Logical, Physical, SECTOR_BYTES, TreeId, length};
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// The unit of striped profiles in bytes: the only `stripe_len` ever written.
pub const STRIPE_BYTES: u64 = 65536;

/// `io_align` and `io_width` of chunks that a mounted volume allocates.
pub const CHUNK_IO_BYTES: u32 = 65536;

/// The object id of every chunk item (`BTRFS_FIRST_CHUNK_TREE_OBJECTID`).
pub const FIRST_CHUNK_TREE: u64 = 256;

/// The front of a chunk item in its on-disk form (`struct btrfs_chunk` without its stripes).
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct RawChunk {
    pub length: U64,
    pub owner: U64,
    pub stripe_len: U64,
    pub r#type: U64,
    pub io_align: U32,
    pub io_width: U32,
    pub sector_size: U32,
    pub num_stripes: U16,
    pub sub_stripes: U16,
}
const _: () = assert!(size_of::<RawChunk>() == 48);

/// A stripe of a chunk in its on-disk form (`struct btrfs_stripe`).
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct RawStripe {
    pub devid: U64,
    pub offset: U64,
    pub dev_uuid: [u8; 16],
}
const _: () = assert!(size_of::<RawStripe>() == 32);

/// The type of a chunk or block group: its content and its profile.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct BlockGroupFlags(pub u64);

impl BlockGroupFlags {
    pub const DATA: Self = Self(1 << 0);
    pub const SYSTEM: Self = Self(1 << 1);
    pub const METADATA: Self = Self(1 << 2);
    pub const RAID0: Self = Self(1 << 3);
    pub const RAID1: Self = Self(1 << 4);
    pub const DUP: Self = Self(1 << 5);
    pub const RAID10: Self = Self(1 << 6);
    pub const RAID5: Self = Self(1 << 7);
    pub const RAID6: Self = Self(1 << 8);
    pub const RAID1C3: Self = Self(1 << 9);
    pub const RAID1C4: Self = Self(1 << 10);

    /// The bits of all kinds of content.
    pub const TYPES: Self = Self(0x7);
    /// The bits of all profiles.
    pub const PROFILES: Self = Self(0x7f8);

    pub const fn contains(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }

    pub const fn intersects(self, other: Self) -> bool {
        self.0 & other.0 != 0
    }

    /// Returns only the bits of the content.
    #[must_use]
    pub const fn types(self) -> Self {
        Self(self.0 & Self::TYPES.0)
    }

    /// Returns the profile, or `None` if several profile bits are set.
    pub const fn profile(self) -> Option<Profile> {
        match Self(self.0 & Self::PROFILES.0) {
            Self(0) => Some(Profile::Single),
            Self::RAID0 => Some(Profile::Raid0),
            Self::RAID1 => Some(Profile::Raid1),
            Self::DUP => Some(Profile::Dup),
            Self::RAID10 => Some(Profile::Raid10),
            Self::RAID5 => Some(Profile::Raid5),
            Self::RAID6 => Some(Profile::Raid6),
            Self::RAID1C3 => Some(Profile::Raid1c3),
            Self::RAID1C4 => Some(Profile::Raid1c4),
            Self(_) => None,
        }
    }

    /// Checks the laws that chunks and block groups share, and returns the profile.
    pub fn check(self, incompat: u64) -> Result<Profile, Refused> {
        let (flags, known) = (self.0, Self::TYPES.0 | Self::PROFILES.0);
        require(flags & !known == 0, "type", Bits(flags), format_args!("no bits but {known:#x}"))?;
        let profile = self
            .profile()
            .ok_or_else(|| Refused::new("type", Bits(flags), "one profile at most"))?;
        let types = self.types();
        let mixed = Self(Self::DATA.0 | Self::METADATA.0);
        let allowed = [Self::DATA, Self::SYSTEM, Self::METADATA].contains(&types)
            || (types == mixed && incompat & MIXED_GROUPS.mask() != 0);
        require(allowed, "type", Bits(flags), "data, system or metadata, mixed where allowed")?;
        Ok(profile)
    }
}

/// How the stripes of a chunk relate: striping, mirroring or parity.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Profile {
    Single,
    Dup,
    Raid0,
    Raid1,
    Raid1c3,
    Raid1c4,
    Raid10,
    Raid5,
    Raid6,
}

impl Profile {
    /// Returns the name that mkfs uses.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Single => "single",
            Self::Dup => "dup",
            Self::Raid0 => "raid0",
            Self::Raid1 => "raid1",
            Self::Raid1c3 => "raid1c3",
            Self::Raid1c4 => "raid1c4",
            Self::Raid10 => "raid10",
            Self::Raid5 => "raid5",
            Self::Raid6 => "raid6",
        }
    }

    /// Returns over how many of its `stripes` stripes the data of a chunk is spread, at least one.
    fn data_stripes(self, stripes: usize) -> u64 {
        let data = match self {
            Self::Single | Self::Dup | Self::Raid1 | Self::Raid1c3 | Self::Raid1c4 => 1,
            Self::Raid0 => stripes,
            Self::Raid10 => stripes / 2,
            Self::Raid5 => stripes.saturating_sub(1),
            Self::Raid6 => stripes.saturating_sub(2),
        };
        length(data.max(1))
    }

    /// Returns the minimum and maximum number of stripes.
    const fn stripes(self) -> (u16, u16) {
        match self {
            Self::Single => (1, 1),
            Self::Dup | Self::Raid1 => (2, 2),
            Self::Raid1c3 => (3, 3),
            Self::Raid1c4 => (4, 4),
            Self::Raid0 => (1, u16::MAX),
            Self::Raid10 | Self::Raid5 => (2, u16::MAX),
            Self::Raid6 => (3, u16::MAX),
        }
    }
}

/// One stripe of a chunk: its device, and its offset on the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stripe {
    pub devid: DevId,
    pub offset: Physical,
    pub dev_uuid: [u8; 16],
}

/// A range of logical addresses, and its stripes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Chunk {
    pub logical: Logical,
    /// Length in logical bytes.
    pub bytes: u64,
    pub flags: BlockGroupFlags,
    pub profile: Profile,
    pub sub_stripes: u16,
    pub stripes: Vec<Stripe>,
}

impl Chunk {
    /// Checks an item of the chunk tree.
    pub fn check(key: Key, data: &[u8], incompat: u64) -> Result<Self, Refused> {
        let (chunk, rest) = Self::check_prefix(key, data, incompat)?;
        let want = data.len().saturating_sub(rest.len());
        require(rest.is_empty(), "item size", data.len(), want)?;
        Ok(chunk)
    }

    /// Checks the chunk at the front of `data`, as in the chunk array of a superblock. Returns it
    /// with the rest of the data.
    pub fn check_prefix(key: Key, data: &[u8], incompat: u64) -> Result<(Self, &[u8]), Refused> {
        let short = || Refused::new("item size", data.len(), "a chunk and its stripes");
        require(key.objectid == FIRST_CHUNK_TREE, "key objectid", key.objectid, FIRST_CHUNK_TREE)?;
        require(key.item_type == ItemType::CHUNK_ITEM, "key type", key.item_type.0, 228)?;
        let (raw, rest) = RawChunk::ref_from_prefix(data).map_err(|_| short())?;
        let count = usize::from(raw.num_stripes.get());
        let (stripes, rest) =
            <[RawStripe]>::ref_from_prefix_with_elems(rest, count).map_err(|_| short())?;
        let (logical, bytes) = (key.offset, raw.length.get());
        extent_laws(logical, bytes)?;
        require(raw.stripe_len.get() == STRIPE_BYTES, "stripe_len", raw.stripe_len, STRIPE_BYTES)?;
        let sector_size = raw.sector_size.get();
        require(u64::from(sector_size) == SECTOR_BYTES, "sector_size", sector_size, SECTOR_BYTES)?;
        let flags = BlockGroupFlags(raw.r#type.get());
        let profile = flags.check(incompat)?;
        stripe_count_laws(raw, profile)?;
        let stripe_bytes = bytes.div_ceil(profile.data_stripes(count));
        let stripes = stripes.iter().map(|stripe| Stripe::check(stripe, stripe_bytes));
        let stripes = stripes.collect::<Result<_, _>>()?;
        let sub_stripes = raw.sub_stripes.get();
        Ok((Self { logical: Logical(logical), bytes, flags, profile, sub_stripes, stripes }, rest))
    }

    /// Returns the address behind the chunk. The check ensures that it does not overflow.
    pub fn end(&self) -> Logical {
        Logical(self.logical.0.saturating_add(self.bytes))
    }

    pub fn key(&self) -> Key {
        Key::new(FIRST_CHUNK_TREE, ItemType::CHUNK_ITEM, self.logical.0)
    }

    /// Returns the bytes of the item, with these `io_align` and `io_width`.
    pub fn to_bytes(&self, io_bytes: u32) -> Vec<u8> {
        let front = RawChunk {
            length: U64::new(self.bytes),
            owner: U64::new(TreeId::EXTENT.0),
            stripe_len: U64::new(STRIPE_BYTES),
            r#type: U64::new(self.flags.0),
            io_align: U32::new(io_bytes),
            io_width: U32::new(io_bytes),
            sector_size: U32::new(4096),
            num_stripes: U16::new(u16::try_from(self.stripes.len()).unwrap_or(u16::MAX)),
            sub_stripes: U16::new(self.sub_stripes),
        };
        let mut bytes = front.as_bytes().to_vec();
        for stripe in &self.stripes {
            bytes.extend_from_slice(RawStripe::of(stripe).as_bytes());
        }
        bytes
    }
}

impl RawStripe {
    fn of(stripe: &Stripe) -> Self {
        Self {
            devid: U64::new(stripe.devid.0),
            offset: U64::new(stripe.offset.0),
            dev_uuid: stripe.dev_uuid,
        }
    }
}

impl Stripe {
    fn check(raw: &RawStripe, bytes: u64) -> Result<Self, Refused> {
        let offset = raw.offset.get();
        require(offset.is_multiple_of(SECTOR_BYTES), "stripe offset", offset, "sector aligned")?;
        let is_inside = offset.checked_add(bytes).is_some();
        require(is_inside, "stripe offset", offset, "an end inside the address space")?;
        Ok(Self { devid: DevId(raw.devid.get()), offset: Physical(offset), dev_uuid: raw.dev_uuid })
    }
}

fn extent_laws(logical: u64, bytes: u64) -> Result<(), Refused> {
    require(logical.is_multiple_of(SECTOR_BYTES), "logical", logical, "sector aligned")?;
    require(bytes != 0, "length", bytes, "not 0")?;
    require(bytes.is_multiple_of(SECTOR_BYTES), "length", bytes, "sector aligned")?;
    let fits = logical.checked_add(bytes).is_some();
    require(fits, "length", bytes, "an end inside the address space")?;
    let most = u64::from(u32::MAX).saturating_mul(STRIPE_BYTES);
    require(bytes < most, "length", bytes, format_args!("below {most}"))
}

fn stripe_count_laws(raw: &RawChunk, profile: Profile) -> Result<(), Refused> {
    let (count, sub_stripes) = (raw.num_stripes.get(), raw.sub_stripes.get());
    let (least, most) = profile.stripes();
    let name = profile.name();
    require(
        (least..=most).contains(&count),
        "num_stripes",
        count,
        format_args!("{least} to {most} for {name}"),
    )?;
    if profile == Profile::Raid10 {
        require(sub_stripes == 2, "sub_stripes", sub_stripes, "2 for raid10")?;
        require(count.is_multiple_of(2), "num_stripes", count, "even for raid10")?;
    }
    Ok(())
}
