//! Inode items: the attributes that `stat` returns, and the flags of a file.
//!
//! ```text
//! RawTimespec
//! 0     8      12
//! | sec | nsec |
//!
//! RawInodeItem
//! 0            8         16     24       32            40      44    48    52     56
//! | generation | transid | size | nbytes | block_group | nlink | uid | gid | mode |
//! 56     64      72         80         112     124     136     148     160
//! | rdev | flags | sequence | reserved | atime | ctime | mtime | otime |
//! ```
//!
//! Laws of [`Inode::check`], which needs only the item:
//!
//! 1. The item is 160 bytes long.
//! 2. `mode` has one of the seven file types, and no bits except type and permissions.
//! 3. A directory has at most one link: it has one name, and subdirectories are not counted.
//! 4. The lower 32 bits of `flags` are known bits. Unknown upper bits are read-only compatible: as
//!    in the kernel, they are refused only where the volume is open for writing
//!    ([`crate::check::writable_leaf`]).
//!
//! [`Inode::to_bytes`] encodes an inode.
//!
//! [`crate::check`] checks what depends on the leaf (generations, key).

use crate::refused::{Refused, require};
use crate::units::Generation;
use std::fmt;
use zerocopy::little_endian::{I64, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Size of an inode item in bytes.
pub const INODE_ITEM_BYTES: usize = 160;

/// The bits of `mode` that hold the file type.
const MODE_TYPE_MASK: u32 = 0o170_000;
/// All bits that `mode` may have.
const MODE_MASK: u32 = MODE_TYPE_MASK | 0o7777;
/// Number of bits of the minor number in `rdev`.
const MINOR_BITS: u32 = 20;

/// A point in time in its on-disk form (`struct btrfs_timespec`).
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct RawTimespec {
    pub sec: I64,
    pub nsec: U32,
}
const _: () = assert!(size_of::<RawTimespec>() == 12);

/// An inode in its on-disk form (`struct btrfs_inode_item`).
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct RawInodeItem {
    pub generation: U64,
    pub transid: U64,
    pub size: U64,
    pub nbytes: U64,
    pub block_group: U64,
    pub nlink: U32,
    pub uid: U32,
    pub gid: U32,
    pub mode: U32,
    pub rdev: U64,
    pub flags: U64,
    pub sequence: U64,
    pub reserved: [U64; 4],
    pub atime: RawTimespec,
    pub ctime: RawTimespec,
    pub mtime: RawTimespec,
    pub otime: RawTimespec,
}
const _: () = assert!(size_of::<RawInodeItem>() == INODE_ITEM_BYTES);

/// A point in time. Seconds count from 1970 and may be negative; `nanos` is as stored on disk.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Time {
    pub secs: i64,
    pub nanos: u32,
}

/// The type of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum FileKind {
    File,
    Directory,
    CharDevice,
    BlockDevice,
    Fifo,
    Socket,
    Symlink,
}

/// A device number in the kernel's 32-bit encoding: 12 bits of major above 20 bits of minor.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct DeviceNumber(pub u64);

/// The flags of an inode. In the upper 32 bits, the kernel keeps read-only compatible flags.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct InodeFlags(pub u64);

/// An inode that passed [`Inode::check`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Inode {
    /// The transaction that created the inode; part of NFS file handles.
    pub generation: Generation,
    /// The last transaction that changed the inode.
    pub transid: Generation,
    pub size: u64,
    /// Allocated bytes of the file's extents, counted before compression.
    pub bytes_used: u64,
    pub block_group: u64,
    pub nlink: u32,
    pub uid: u32,
    pub gid: u32,
    /// Type and permission bits, as in `st_mode`.
    pub mode: u32,
    pub kind: FileKind,
    pub rdev: DeviceNumber,
    pub flags: InodeFlags,
    /// The change counter for NFS.
    pub sequence: u64,
    pub atime: Time,
    pub ctime: Time,
    pub mtime: Time,
    /// Creation time; zero in inodes that old kernels wrote.
    pub otime: Time,
}

impl Inode {
    /// Checks the bytes of an inode item.
    pub fn check(bytes: &[u8]) -> Result<Self, Refused> {
        let raw = RawInodeItem::ref_from_bytes(bytes)
            .map_err(|_| Refused::new("item size", bytes.len(), size_of::<RawInodeItem>()))?;
        let (mode, flags) = (raw.mode.get(), InodeFlags(raw.flags.get()));
        require(
            mode & !MODE_MASK == 0,
            "mode",
            format_args!("{mode:#o}"),
            format_args!("no bits beyond {MODE_MASK:#o}"),
        )?;
        let kind = FileKind::from_mode(mode)
            .ok_or_else(|| Refused::new("mode", format_args!("{mode:#o}"), "a file type"))?;
        let nlink = raw.nlink.get();
        require(kind != FileKind::Directory || nlink <= 1, "nlink", nlink, "at most 1")?;
        flags.check_known(InodeFlags::INCOMPATIBLE)?;
        Ok(Self {
            generation: Generation(raw.generation.get()),
            transid: Generation(raw.transid.get()),
            size: raw.size.get(),
            bytes_used: raw.nbytes.get(),
            block_group: raw.block_group.get(),
            nlink,
            uid: raw.uid.get(),
            gid: raw.gid.get(),
            mode,
            kind,
            rdev: DeviceNumber(raw.rdev.get()),
            flags,
            sequence: raw.sequence.get(),
            atime: Time::from(&raw.atime),
            ctime: Time::from(&raw.ctime),
            mtime: Time::from(&raw.mtime),
            otime: Time::from(&raw.otime),
        })
    }

    /// Returns the bytes of the item.
    pub fn to_bytes(&self) -> [u8; INODE_ITEM_BYTES] {
        zerocopy::transmute!(RawInodeItem {
            generation: U64::new(self.generation.0),
            transid: U64::new(self.transid.0),
            size: U64::new(self.size),
            nbytes: U64::new(self.bytes_used),
            block_group: U64::new(self.block_group),
            nlink: U32::new(self.nlink),
            uid: U32::new(self.uid),
            gid: U32::new(self.gid),
            mode: U32::new(self.mode),
            rdev: U64::new(self.rdev.0),
            flags: U64::new(self.flags.0),
            sequence: U64::new(self.sequence),
            reserved: [U64::new(0); 4],
            atime: self.atime.into(),
            ctime: self.ctime.into(),
            mtime: self.mtime.into(),
            otime: self.otime.into(),
        })
    }
}

impl From<Time> for RawTimespec {
    fn from(time: Time) -> Self {
        Self { sec: I64::new(time.secs), nsec: U32::new(time.nanos) }
    }
}

impl From<&RawTimespec> for Time {
    fn from(raw: &RawTimespec) -> Self {
        Self { secs: raw.sec.get(), nanos: raw.nsec.get() }
    }
}

impl FileKind {
    /// Returns the kind of the type bits of a mode, or `None` if they are invalid.
    pub fn from_mode(mode: u32) -> Option<Self> {
        match mode & MODE_TYPE_MASK {
            0o010_000 => Some(Self::Fifo),
            0o020_000 => Some(Self::CharDevice),
            0o040_000 => Some(Self::Directory),
            0o060_000 => Some(Self::BlockDevice),
            0o100_000 => Some(Self::File),
            0o120_000 => Some(Self::Symlink),
            0o140_000 => Some(Self::Socket),
            _ => None,
        }
    }

    /// Returns the type bits of a mode of this kind.
    pub fn mode_bits(self) -> u32 {
        match self {
            Self::Fifo => 0o010_000,
            Self::CharDevice => 0o020_000,
            Self::Directory => 0o040_000,
            Self::BlockDevice => 0o060_000,
            Self::File => 0o100_000,
            Self::Symlink => 0o120_000,
            Self::Socket => 0o140_000,
        }
    }
}

impl DeviceNumber {
    pub fn new(major: u32, minor: u32) -> Self {
        Self(u64::from(major) << MINOR_BITS | u64::from(minor & ((1 << MINOR_BITS) - 1)))
    }

    /// Returns the major number as the kernel does, ignoring the upper half of `rdev`.
    pub fn major(self) -> u32 {
        self.low() >> MINOR_BITS
    }

    pub fn minor(self) -> u32 {
        self.low() & ((1 << MINOR_BITS) - 1)
    }

    fn low(self) -> u32 {
        u32::try_from(self.0 & u64::from(u32::MAX)).unwrap_or_default()
    }
}

impl InodeFlags {
    pub const NODATASUM: Self = Self(1 << 0);
    pub const NODATACOW: Self = Self(1 << 1);
    pub const READONLY: Self = Self(1 << 2);
    pub const NOCOMPRESS: Self = Self(1 << 3);
    pub const PREALLOC: Self = Self(1 << 4);
    pub const SYNC: Self = Self(1 << 5);
    pub const IMMUTABLE: Self = Self(1 << 6);
    pub const APPEND: Self = Self(1 << 7);
    pub const NODUMP: Self = Self(1 << 8);
    pub const NOATIME: Self = Self(1 << 9);
    pub const DIRSYNC: Self = Self(1 << 10);
    pub const COMPRESS: Self = Self(1 << 11);
    /// Set in the inode of a root item whose `flags` and `byte_limit` are initialised.
    pub const ROOT_ITEM_INIT: Self = Self(1 << 31);
    /// fs-verity is enabled: the file can never be written again.
    pub const VERITY: Self = Self(1 << 32);
    /// The bits that a reader must know. The others are read-only compatible.
    const INCOMPATIBLE: Self = Self(0xffff_ffff);
    /// All known bits.
    pub const KNOWN: Self = Self(0xfff | Self::ROOT_ITEM_INIT.0 | Self::VERITY.0);

    pub fn contains(self, flags: Self) -> bool {
        self.0 & flags.0 == flags.0
    }

    #[must_use]
    pub fn with(self, flags: Self) -> Self {
        Self(self.0 | flags.0)
    }

    #[must_use]
    pub fn without(self, flags: Self) -> Self {
        Self(self.0 & !flags.0)
    }

    /// Checks that the flags have no unknown bits among `bits`.
    fn check_known(self, bits: Self) -> Result<(), Refused> {
        require(
            self.0 & bits.0 & !Self::KNOWN.0 == 0,
            "flags",
            format_args!("{:#x}", self.0),
            format_args!("no bits beyond {:#x}", bits.0 & Self::KNOWN.0),
        )
    }

    /// Checks that no flag forbids writing: each upper bit is known.
    ///
    /// # Errors
    /// An upper bit is unknown.
    pub fn check_writable(self) -> Result<(), Refused> {
        self.check_known(Self(!Self::INCOMPATIBLE.0))
    }
}

impl fmt::Display for DeviceNumber {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.major(), self.minor())
    }
}
