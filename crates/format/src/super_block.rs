//! The superblock: the root of the volume, at up to three fixed offsets of every device.
//!
//! ```text
//! RawSuperBlock
//! 0      32     48       56      64      72           80     88           96
//! | csum | fsid | bytenr | flags | magic | generation | root | chunk_root | log_root |
//! 104                       112           120          128                 136
//! | unused_log_root_transid | total_bytes | bytes_used | root_dir_objectid | num_devices |
//! 144          148        152               156          160
//! | sectorsize | nodesize | unused_leafsize | stripesize | sys_chunk_array_size |
//! 164                     172            180               188              196
//! | chunk_root_generation | compat_flags | compat_ro_flags | incompat_flags | csum_type |
//! 198          199                200              201        299     555
//! | root_level | chunk_root_level | log_root_level | dev_item | label | cache_generation |
//! 563                    571             587               595
//! | uuid_tree_generation | metadata_uuid | nr_global_roots | remap_root |
//! 603                     611                612        811               2859
//! | remap_root_generation | remap_root_level | reserved | sys_chunk_array | super_roots |
//! 3531      4096
//! | padding |
//!
//! RawRootBackup
//! 0           8               16           24               32            40
//! | tree_root | tree_root_gen | chunk_root | chunk_root_gen | extent_root | extent_root_gen |
//! 48        56            64         72             80          88
//! | fs_root | fs_root_gen | dev_root | dev_root_gen | csum_root | csum_root_gen |
//! 96            104          112           120         152
//! | total_bytes | bytes_used | num_devices | unused_64 | tree_root_level |
//! 153                154                 155             156              157
//! | chunk_root_level | extent_root_level | fs_root_level | dev_root_level | csum_root_level |
//! 158        168
//! | unused_8 |
//! ```
//!
//! 1. Magic and checksum are valid, and `bytenr` is the offset that the copy was read from.
//! 2. Sectors are 4096 bytes; the node size is a power of two from 4 KiB to 64 KiB, and the leaf
//!    size is the same.
//! 3. Roots are sector aligned, at most at level 7, and not address 0 (that of the log may be 0).
//! 4. The volume is not in the middle of a change of ids, checksums or trees, and is not a metadata
//!    dump: btrfs-progs must finish or restore those.
//! 5. The device item has the volume's metadata id.
//! 6. The array of system chunks has at most 2048 bytes and at least one chunk. The chunks follow
//!    each other without gaps; each keeps the laws of chunks and has the type system.
//! 7. Every `incompat` feature is supported ([`crate::feature`]), and the features that it requires
//!    are set: a block group tree requires no-holes and a valid free space tree.
//! 8. `bytes_used` is at least six nodes, `total_bytes` is not 0, `stripesize` is a power of two,
//!    and the number of devices is from 1 to 2^31. The chunk root is not newer than the superblock.

use crate::checksum::ChecksumKind;
use crate::chunk::{BlockGroupFlags, Chunk};
use crate::device_item::{DeviceItem, RawDeviceItem};
use crate::feature::{self, Feature};
use crate::key::{Key, RawKey};
use crate::node::{CSUM_BYTES, Expected};
use crate::refused::{Bits, Hex, Refused, require};
use crate::units::{
    Generation, LEVELS_MAX, Logical, NODE_BYTES_MAX, NODE_BYTES_MIN, SECTOR_BYTES, TreeId, index,
};
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Size of a superblock in bytes.
pub const SUPER_BLOCK_BYTES: usize = 4096;

/// Offsets of copies 0, 1 and 2 on a device, in bytes.
pub const COPY_OFFSETS: [u64; 3] = [64 << 10, 64 << 20, 256 << 30];

/// `_BHRfS_M`, as a little-endian word.
pub const MAGIC: u64 = 0x4D5F_5366_5248_425F;

/// Size in bytes of the array of system chunks.
pub const SYS_CHUNK_ARRAY_BYTES: usize = 2048;

/// Size in bytes of the label, including its zero byte.
pub const LABEL_BYTES: usize = 256;

/// Maximum number of devices of a volume.
pub const DEVICES_MAX: u64 = 1 << 31;

/// Bits of `flags`.
pub const FLAG_WRITTEN: u64 = 1 << 0;
pub const FLAG_RELOC: u64 = 1 << 1;
pub const FLAG_ERROR: u64 = 1 << 2;
pub const FLAG_SEEDING: u64 = 1 << 32;
pub const FLAG_METADUMP: u64 = 1 << 33;
pub const FLAG_METADUMP_V2: u64 = 1 << 34;
pub const FLAG_CHANGING_FSID: u64 = 1 << 35;
pub const FLAG_CHANGING_FSID_V2: u64 = 1 << 36;
pub const FLAG_CHANGING_BG_TREE: u64 = 1 << 38;
pub const FLAG_CHANGING_DATA_CSUM: u64 = 1 << 39;
pub const FLAG_CHANGING_META_CSUM: u64 = 1 << 40;

/// Flags with which a volume cannot be opened, and what to do about them.
const REFUSED_FLAGS: [(u64, &str); 7] = [
    (FLAG_METADUMP, "no METADUMP (bit 33): restore the image first"),
    (FLAG_METADUMP_V2, "no METADUMP_V2 (bit 34): restore the image first"),
    (FLAG_CHANGING_FSID, "no CHANGING_FSID (bit 35): finish it with btrfstune"),
    (FLAG_CHANGING_FSID_V2, "no CHANGING_FSID_V2 (bit 36): finish it with btrfstune"),
    (FLAG_CHANGING_BG_TREE, "no CHANGING_BG_TREE (bit 38): finish it with btrfstune"),
    (FLAG_CHANGING_DATA_CSUM, "no CHANGING_DATA_CSUM (bit 39): finish it with btrfstune"),
    (FLAG_CHANGING_META_CSUM, "no CHANGING_META_CSUM (bit 40): finish it with btrfstune"),
];

/// A backup of the roots; each commit writes one of the four in turn (`struct btrfs_root_backup`).
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct RawRootBackup {
    pub tree_root: U64,
    pub tree_root_gen: U64,
    pub chunk_root: U64,
    pub chunk_root_gen: U64,
    pub extent_root: U64,
    pub extent_root_gen: U64,
    pub fs_root: U64,
    pub fs_root_gen: U64,
    pub dev_root: U64,
    pub dev_root_gen: U64,
    pub csum_root: U64,
    pub csum_root_gen: U64,
    pub total_bytes: U64,
    pub bytes_used: U64,
    pub num_devices: U64,
    pub unused_64: [U64; 4],
    pub tree_root_level: u8,
    pub chunk_root_level: u8,
    pub extent_root_level: u8,
    pub fs_root_level: u8,
    pub dev_root_level: u8,
    pub csum_root_level: u8,
    pub unused_8: [u8; 10],
}
const _: () = assert!(size_of::<RawRootBackup>() == 168);

/// A superblock in its on-disk form (`struct btrfs_super_block`).
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct RawSuperBlock {
    pub csum: [u8; 32],
    pub fsid: [u8; 16],
    pub bytenr: U64,
    pub flags: U64,
    pub magic: U64,
    pub generation: U64,
    pub root: U64,
    pub chunk_root: U64,
    pub log_root: U64,
    pub unused_log_root_transid: U64,
    pub total_bytes: U64,
    pub bytes_used: U64,
    pub root_dir_objectid: U64,
    pub num_devices: U64,
    pub sectorsize: U32,
    pub nodesize: U32,
    pub unused_leafsize: U32,
    pub stripesize: U32,
    pub sys_chunk_array_size: U32,
    pub chunk_root_generation: U64,
    pub compat_flags: U64,
    pub compat_ro_flags: U64,
    pub incompat_flags: U64,
    pub csum_type: U16,
    pub root_level: u8,
    pub chunk_root_level: u8,
    pub log_root_level: u8,
    pub dev_item: RawDeviceItem,
    pub label: [u8; LABEL_BYTES],
    pub cache_generation: U64,
    pub uuid_tree_generation: U64,
    pub metadata_uuid: [u8; 16],
    pub nr_global_roots: U64,
    /// With extent-tree-v2 this and the next two fields are the root of the block group tree.
    pub remap_root: U64,
    pub remap_root_generation: U64,
    pub remap_root_level: u8,
    pub reserved: [u8; 199],
    pub sys_chunk_array: [u8; SYS_CHUNK_ARRAY_BYTES],
    pub super_roots: [RawRootBackup; 4],
    pub padding: [u8; 565],
}
const _: () = assert!(size_of::<RawSuperBlock>() == SUPER_BLOCK_BYTES);

impl RawSuperBlock {
    pub fn has(&self, feature: Feature) -> bool {
        self.incompat_flags.get() & feature.mask() != 0
    }

    /// Returns the id in tree block headers: `fsid`, unless that was changed after mkfs.
    pub fn header_fsid(&self) -> [u8; 16] {
        if self.has(feature::METADATA_UUID) { self.metadata_uuid } else { self.fsid }
    }
}

/// Returns the offset of copy `copy` on a device, or `None` if there is no such copy.
pub fn copy_offset(copy: usize) -> Option<u64> {
    COPY_OFFSETS.get(copy).copied()
}

/// A superblock that passed [`SuperBlock::check`].
#[derive(Clone)]
pub struct SuperBlock {
    raw: Box<RawSuperBlock>,
    csum: ChecksumKind,
    device: DeviceItem,
}

impl SuperBlock {
    /// Checks the bytes at the offset of copy `copy` (0 to 2).
    ///
    /// # Errors
    /// The first law that the superblock violates.
    pub fn check(bytes: &[u8], copy: usize) -> Result<Self, Refused> {
        Self::check_laws(bytes, copy)
            .map_err(|refused| refused.at(format_args!("superblock copy {copy}")))
    }

    fn check_laws(bytes: &[u8], copy: usize) -> Result<Self, Refused> {
        let raw = RawSuperBlock::read_from_bytes(bytes)
            .map_err(|_| Refused::new("bytes", bytes.len(), SUPER_BLOCK_BYTES))?;
        require(raw.magic.get() == MAGIC, "magic", Bits(raw.magic.get()), Bits(MAGIC))?;
        let csum = ChecksumKind::check(raw.csum_type.get())?;
        checksum(bytes, &raw, csum)?;
        let (have, want) = (raw.bytenr.get(), copy_offset(copy));
        require(Some(have) == want, "bytenr", have, want.unwrap_or_default())?;
        flag_laws(raw.flags.get())?;
        feature::readable(raw.incompat_flags.get())?;
        dependency_laws(&raw)?;
        size_laws(&raw)?;
        root_laws(&raw)?;
        let device = device_laws(&raw)?;
        let checked = Self { raw: Box::new(raw), csum, device };
        system_chunk_laws(&checked)?;
        Ok(checked)
    }

    pub fn raw(&self) -> &RawSuperBlock {
        &self.raw
    }

    pub fn csum(&self) -> ChecksumKind {
        self.csum
    }

    /// Returns the device that this copy was read from.
    pub fn device(&self) -> &DeviceItem {
        &self.device
    }

    pub fn fsid(&self) -> [u8; 16] {
        self.raw.fsid
    }

    /// Returns the id in tree block headers and device items.
    pub fn metadata_uuid(&self) -> [u8; 16] {
        self.raw.header_fsid()
    }

    pub fn generation(&self) -> Generation {
        Generation(self.raw.generation.get())
    }

    pub fn node_bytes(&self) -> u32 {
        self.raw.nodesize.get()
    }

    pub fn has(&self, incompat: Feature) -> bool {
        self.raw.has(incompat)
    }

    pub fn has_compat_ro(&self, feature: Feature) -> bool {
        self.raw.compat_ro_flags.get() & feature.mask() != 0
    }

    pub fn is_seeding(&self) -> bool {
        self.raw.flags.get() & FLAG_SEEDING != 0
    }

    /// Checks that the volume has no feature that forbids writing.
    ///
    /// # Errors
    /// The unsupported features, by name.
    pub fn writable(&self) -> Result<(), Refused> {
        feature::writable(self.raw.compat_ro_flags.get())
    }

    /// Returns the label without its padding.
    pub fn label(&self) -> &[u8] {
        self.raw.label.split(|byte| *byte == 0).next().unwrap_or_default()
    }

    /// Returns the root of the root tree.
    pub fn root(&self) -> Expected {
        self.expect(self.raw.root, self.generation(), self.raw.root_level, TreeId::ROOT)
    }

    /// Returns the root of the chunk tree.
    pub fn chunk_root(&self) -> Expected {
        let generation = Generation(self.raw.chunk_root_generation.get());
        self.expect(self.raw.chunk_root, generation, self.raw.chunk_root_level, TreeId::CHUNK)
    }

    /// Returns the root of the log root tree, if an fsync has written one since the last commit.
    pub fn log_root(&self) -> Option<Expected> {
        if self.raw.log_root.get() == 0 {
            return None;
        }
        let generation = Generation(self.raw.generation.get().saturating_add(1));
        let level = self.raw.log_root_level;
        Some(self.expect(self.raw.log_root, generation, level, TreeId::TREE_LOG))
    }

    /// Returns the chunks that hold the chunk tree.
    pub fn system_chunks(&self) -> SystemChunks<'_> {
        SystemChunks::of(&self.raw)
    }

    #[expect(clippy::unused_self, reason = "called like the methods of the three roots above")]
    fn expect(&self, root: U64, generation: Generation, level: u8, tree: TreeId) -> Expected {
        Expected {
            logical: Logical(root.get()),
            generation,
            level,
            tree,
            first_key: None,
            end_key: None,
        }
    }
}

impl std::fmt::Debug for SuperBlock {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SuperBlock")
            .field("fsid", &format_args!("{}", Hex(&self.raw.fsid)))
            .field("generation", &self.generation())
            .field("device", &self.device.devid)
            .finish_non_exhaustive()
    }
}

/// The chunks of a superblock's array. Ends after the first invalid one.
#[derive(Clone, Debug)]
pub struct SystemChunks<'a> {
    rest: &'a [u8],
    incompat: u64,
}

impl<'a> SystemChunks<'a> {
    pub fn of(raw: &'a RawSuperBlock) -> Self {
        let size = index(raw.sys_chunk_array_size.get()).min(SYS_CHUNK_ARRAY_BYTES);
        let rest = raw.sys_chunk_array.get(..size).unwrap_or_default();
        Self { rest, incompat: raw.incompat_flags.get() }
    }

    /// Returns the number of bytes of the array behind the chunks returned so far.
    pub fn bytes_left(&self) -> usize {
        self.rest.len()
    }

    fn chunk(&mut self) -> Result<Chunk, Refused> {
        let rest = std::mem::take(&mut self.rest);
        let (key, chunk) = RawKey::ref_from_prefix(rest)
            .map_err(|_| Refused::new("sys_chunk_array_size", rest.len(), "at least a key"))?;
        let key = Key::from(key);
        let (chunk, rest) = Chunk::check_prefix(key, chunk, self.incompat)
            .map_err(|refused| refused.at(format_args!("system chunk {}", key.offset)))?;
        self.rest = rest;
        Ok(chunk)
    }
}

impl Iterator for SystemChunks<'_> {
    type Item = Result<Chunk, Refused>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.rest.is_empty() { None } else { Some(self.chunk()) }
    }
}

fn checksum(bytes: &[u8], raw: &RawSuperBlock, csum: ChecksumKind) -> Result<(), Refused> {
    let computed = csum.compute(bytes.get(CSUM_BYTES..).unwrap_or_default());
    let have = raw.csum.get(..csum.bytes()).unwrap_or_default();
    let want = computed.get(..csum.bytes()).unwrap_or_default();
    require(have == want, "csum", Hex(have), Hex(want))
}

fn flag_laws(flags: u64) -> Result<(), Refused> {
    let refused = REFUSED_FLAGS.iter().find(|(flag, _)| flags & flag != 0);
    refused.map_or(Ok(()), |(_, want)| Err(Refused::new("flags", Bits(flags), want)))
}

fn dependency_laws(raw: &RawSuperBlock) -> Result<(), Refused> {
    let compat_ro = raw.compat_ro_flags.get();
    if compat_ro & feature::BLOCK_GROUP_TREE.mask() == 0 {
        return Ok(());
    }
    require(
        raw.has(feature::NO_HOLES),
        "incompat_flags",
        Bits(raw.incompat_flags.get()),
        "no-holes (bit 9) with block-group-tree",
    )?;
    let valid = feature::FREE_SPACE_TREE.mask() | feature::FREE_SPACE_TREE_VALID.mask();
    require(
        compat_ro & valid == valid,
        "compat_ro_flags",
        Bits(compat_ro),
        "a valid free-space-tree (bits 0 and 1) with block-group-tree",
    )
}

fn size_laws(raw: &RawSuperBlock) -> Result<(), Refused> {
    let sectorsize = raw.sectorsize.get();
    require(u64::from(sectorsize) == SECTOR_BYTES, "sectorsize", sectorsize, SECTOR_BYTES)?;
    let nodesize = raw.nodesize.get();
    require(
        nodesize.is_power_of_two() && (NODE_BYTES_MIN..=NODE_BYTES_MAX).contains(&nodesize),
        "nodesize",
        nodesize,
        "a power of two from 4096 to 65536",
    )?;
    require(raw.unused_leafsize == raw.nodesize, "leafsize", raw.unused_leafsize, nodesize)?;
    let stripesize = raw.stripesize.get();
    require(stripesize.is_power_of_two(), "stripesize", stripesize, "a power of two")?;
    let least = u64::from(nodesize).saturating_mul(6);
    let (used, total) = (raw.bytes_used.get(), raw.total_bytes.get());
    require(used >= least, "bytes_used", used, format_args!("at least {least}"))?;
    require(total != 0, "total_bytes", total, "not 0")?;
    let devices = raw.num_devices.get();
    require((1..=DEVICES_MAX).contains(&devices), "num_devices", devices, "1 to 2^31")
}

fn root_laws(raw: &RawSuperBlock) -> Result<(), Refused> {
    let roots = [
        ("root", raw.root.get(), "root_level", raw.root_level),
        ("chunk_root", raw.chunk_root.get(), "chunk_root_level", raw.chunk_root_level),
        ("log_root", raw.log_root.get(), "log_root_level", raw.log_root_level),
    ];
    for (field, root, level_field, level) in roots {
        require(root.is_multiple_of(SECTOR_BYTES), field, root, "sector aligned")?;
        require(root != 0 || field == "log_root", field, root, "not 0")?;
        require(usize::from(level) < LEVELS_MAX, level_field, level, "below 8")?;
    }
    let (generation, chunk) = (raw.generation.get(), raw.chunk_root_generation.get());
    require(
        chunk <= generation,
        "chunk_root_generation",
        chunk,
        format_args!("at most {generation}"),
    )
}

fn device_laws(raw: &RawSuperBlock) -> Result<DeviceItem, Refused> {
    let device = DeviceItem::check_raw(&raw.dev_item).map_err(|refused| refused.at("dev_item"))?;
    let want = raw.header_fsid();
    require(device.fsid == want, "dev_item: fsid", Hex(&device.fsid), Hex(&want))?;
    Ok(device)
}

fn system_chunk_laws(checked: &SuperBlock) -> Result<(), Refused> {
    let size = checked.raw.sys_chunk_array_size.get();
    let fits = size != 0 && index(size) <= SYS_CHUNK_ARRAY_BYTES;
    require(fits, "sys_chunk_array_size", size, "1 to 2048")?;
    for chunk in checked.system_chunks() {
        let chunk = chunk?;
        require(
            chunk.flags.contains(BlockGroupFlags::SYSTEM),
            "system chunk: type",
            Bits(chunk.flags.0),
            "system (bit 1)",
        )?;
    }
    Ok(())
}
