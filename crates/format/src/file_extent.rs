//! File extent items: map a range of a file to its data.
//!
//! ```text
//! RawFileExtentHeader
//! 0            8           16            17           18               20            21
//! | generation | ram_bytes | compression | encryption | other_encoding | extent_type |
//!
//! RawFileExtentItem
//! 0        21            29               37       45          53
//! | header | disk_bytenr | disk_num_bytes | offset | num_bytes |
//! ```
//!
//! Laws of [`FileExtent::check`], which needs only the item and its file offset:
//!
//! 1. `extent_type` is inline (0), regular (1) or preallocated (2); `compression` is 0 to 3;
//!    `encryption` and `other_encoding` are 0.
//! 2. An inline extent is at file offset 0. If it is not compressed, it has exactly `ram_bytes`
//!    bytes.
//! 3. Other extents are 53 bytes long, and every address and length in them is sector aligned.
//! 4. The run ends below 2^64. It may be empty: old kernels left such items when punching a hole
//!    failed for lack of space.
//! 5. A run is inside the extent that it references, unless it is a hole: `offset` + `num_bytes` is
//!    at most `disk_num_bytes`, or `ram_bytes` if compressed. (`ram_bytes` is not used otherwise:
//!    kernels have written wrong values, and do not read it.)
//! 6. A compressed extent has at most 128 KiB, on disk and in memory, so that reading it uses
//!    bounded memory.
//!
//! [`FileExtent::append_to`] encodes an extent: the bytes pass the check, and equal those that the
//! kernel writes for the same extent.

use crate::refused::{Refused, require};
use crate::units::{Generation, Logical, SECTOR_BYTES, length};
use zerocopy::little_endian::{U16, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Maximum size of a compressed extent in bytes, on disk and in memory.
pub const COMPRESSED_BYTES_MAX: u64 = 128 * 1024;

const TYPE_INLINE: u8 = 0;
const TYPE_REGULAR: u8 = 1;
const TYPE_PREALLOCATED: u8 = 2;

/// The fields that every extent has (the front of `struct btrfs_file_extent_item`). The data of an
/// inline extent follows them.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct RawFileExtentHeader {
    pub generation: U64,
    pub ram_bytes: U64,
    pub compression: u8,
    pub encryption: u8,
    pub other_encoding: U16,
    /// The kernel's `type`.
    pub extent_type: u8,
}
const _: () = assert!(size_of::<RawFileExtentHeader>() == 21);

/// A regular or preallocated extent in its on-disk form (`struct btrfs_file_extent_item`).
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct RawFileExtentItem {
    pub header: RawFileExtentHeader,
    pub disk_bytenr: U64,
    pub disk_num_bytes: U64,
    pub offset: U64,
    pub num_bytes: U64,
}
const _: () = assert!(size_of::<RawFileExtentItem>() == 53);

/// The compression of an extent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Compression {
    #[default]
    None,
    Zlib,
    Lzo,
    Zstd,
}

/// A file extent that passed [`FileExtent::check`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileExtent<'a> {
    pub generation: Generation,
    /// Size in bytes of the whole decompressed extent. Valid only if compressed or inline.
    pub ram_bytes: u64,
    pub compression: Compression,
    pub body: ExtentBody<'a>,
}

/// Where the data of an extent is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExtentBody<'a> {
    /// The data itself, compressed according to `compression`.
    Inline(&'a [u8]),
    /// A written run, whose data is in `disk`.
    Regular { disk: DiskExtent, run: ExtentRun },
    /// A range without disk space; it reads as zeroes.
    Hole { num_bytes: u64 },
    /// An allocated run that was never written; it reads as zeroes.
    Preallocated { disk: DiskExtent, run: ExtentRun },
}

/// An extent in logical address space, which several file extents may share.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct DiskExtent {
    pub logical: Logical,
    pub bytes: u64,
}

/// The part of a disk extent that one file extent refers to, in decompressed bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExtentRun {
    pub offset: u64,
    pub num_bytes: u64,
}

impl Compression {
    pub fn from_byte(byte: u8) -> Option<Self> {
        Some(match byte {
            0 => Self::None,
            1 => Self::Zlib,
            2 => Self::Lzo,
            3 => Self::Zstd,
            _ => return None,
        })
    }

    /// Returns the value of `compression`.
    pub fn to_byte(self) -> u8 {
        match self {
            Self::None => 0,
            Self::Zlib => 1,
            Self::Lzo => 2,
            Self::Zstd => 3,
        }
    }
}

impl<'a> FileExtent<'a> {
    /// Makes an inline extent that is not compressed; `data` is the whole file.
    pub fn inline(generation: Generation, data: &'a [u8]) -> Self {
        let body = ExtentBody::Inline(data);
        Self { generation, ram_bytes: length(data.len()), compression: Compression::None, body }
    }

    /// Makes a run of a written extent that is not compressed.
    pub fn regular(generation: Generation, disk: DiskExtent, run: ExtentRun) -> Self {
        let body = ExtentBody::Regular { disk, run };
        Self { generation, ram_bytes: disk.bytes, compression: Compression::None, body }
    }

    /// Makes a run of a preallocated extent.
    pub fn preallocated(generation: Generation, disk: DiskExtent, run: ExtentRun) -> Self {
        let body = ExtentBody::Preallocated { disk, run };
        Self { generation, ram_bytes: disk.bytes, compression: Compression::None, body }
    }

    /// Makes a hole. Only volumes without the feature no-holes store holes as items.
    pub fn hole(generation: Generation, num_bytes: u64) -> Self {
        let body = ExtentBody::Hole { num_bytes };
        Self { generation, ram_bytes: num_bytes, compression: Compression::None, body }
    }

    /// Appends the bytes of the item.
    pub fn append_to(&self, bytes: &mut Vec<u8>) {
        let nowhere = DiskExtent { logical: Logical(0), bytes: 0 };
        let (extent_type, disk, run) = match self.body {
            ExtentBody::Inline(data) => {
                bytes.extend_from_slice(self.header(TYPE_INLINE).as_bytes());
                bytes.extend_from_slice(data);
                return;
            }
            ExtentBody::Regular { disk, run } => (TYPE_REGULAR, disk, run),
            ExtentBody::Preallocated { disk, run } => (TYPE_PREALLOCATED, disk, run),
            ExtentBody::Hole { num_bytes } => {
                (TYPE_REGULAR, nowhere, ExtentRun { offset: 0, num_bytes })
            }
        };
        let raw = RawFileExtentItem {
            header: self.header(extent_type),
            disk_bytenr: U64::new(disk.logical.0),
            disk_num_bytes: U64::new(disk.bytes),
            offset: U64::new(run.offset),
            num_bytes: U64::new(run.num_bytes),
        };
        bytes.extend_from_slice(raw.as_bytes());
    }

    pub fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        self.append_to(&mut bytes);
        bytes
    }

    fn header(&self, extent_type: u8) -> RawFileExtentHeader {
        RawFileExtentHeader {
            generation: U64::new(self.generation.0),
            ram_bytes: U64::new(self.ram_bytes),
            compression: self.compression.to_byte(),
            encryption: 0,
            other_encoding: U16::new(0),
            extent_type,
        }
    }

    /// Checks the bytes of an `EXTENT_DATA` item at `file_offset` of its file.
    pub fn check(bytes: &'a [u8], file_offset: u64) -> Result<Self, Refused> {
        aligned("key offset", file_offset)?;
        let (raw, data) = RawFileExtentHeader::ref_from_prefix(bytes).map_err(|_| {
            Refused::new(
                "item size",
                bytes.len(),
                format_args!("at least {}", size_of::<RawFileExtentHeader>()),
            )
        })?;
        require(
            raw.extent_type <= TYPE_PREALLOCATED,
            "type",
            raw.extent_type,
            format_args!("at most {TYPE_PREALLOCATED}"),
        )?;
        let compression = Compression::from_byte(raw.compression)
            .ok_or_else(|| Refused::new("compression", raw.compression, "at most 3"))?;
        require(raw.encryption == 0, "encryption", raw.encryption, 0)?;
        require(raw.other_encoding.get() == 0, "other_encoding", raw.other_encoding, 0)?;
        let ram_bytes = raw.ram_bytes.get();
        let body = if raw.extent_type == TYPE_INLINE {
            check_inline(data, file_offset, ram_bytes, compression)?
        } else {
            check_run(bytes, file_offset, compression)?
        };
        Ok(Self { generation: Generation(raw.generation.get()), ram_bytes, compression, body })
    }

    /// Returns the number of bytes of the file that this extent covers, for an inline extent
    /// rounded up to a sector.
    pub fn file_bytes(&self) -> u64 {
        match self.body {
            ExtentBody::Inline(_) => {
                self.ram_bytes.checked_next_multiple_of(SECTOR_BYTES).unwrap_or(u64::MAX)
            }
            ExtentBody::Hole { num_bytes } => num_bytes,
            ExtentBody::Regular { run, .. } | ExtentBody::Preallocated { run, .. } => run.num_bytes,
        }
    }

    /// Returns the extent in logical address space that this one references, if any.
    pub fn disk(&self) -> Option<DiskExtent> {
        match self.body {
            ExtentBody::Inline(_) | ExtentBody::Hole { .. } => None,
            ExtentBody::Regular { disk, .. } | ExtentBody::Preallocated { disk, .. } => Some(disk),
        }
    }
}

fn check_inline(
    data: &[u8],
    file_offset: u64,
    ram_bytes: u64,
    compression: Compression,
) -> Result<ExtentBody<'_>, Refused> {
    require(file_offset == 0, "key offset", file_offset, "0 of an inline extent")?;
    if compression == Compression::None {
        let bytes = u64::try_from(data.len()).unwrap_or(u64::MAX);
        require(ram_bytes == bytes, "ram_bytes", ram_bytes, format_args!("the item's {bytes}"))?;
    } else {
        bounded("ram_bytes", ram_bytes)?;
    }
    Ok(ExtentBody::Inline(data))
}

fn check_run(
    bytes: &[u8],
    file_offset: u64,
    compression: Compression,
) -> Result<ExtentBody<'_>, Refused> {
    let raw = RawFileExtentItem::ref_from_bytes(bytes)
        .map_err(|_| Refused::new("item size", bytes.len(), size_of::<RawFileExtentItem>()))?;
    let (ram_bytes, logical) = (raw.header.ram_bytes.get(), raw.disk_bytenr.get());
    let (disk_bytes, offset) = (raw.disk_num_bytes.get(), raw.offset.get());
    let num_bytes = raw.num_bytes.get();
    aligned("ram_bytes", ram_bytes)?;
    aligned("disk_bytenr", logical)?;
    aligned("disk_num_bytes", disk_bytes)?;
    aligned("offset", offset)?;
    aligned("num_bytes", num_bytes)?;
    let below = format_args!("at most {}", u64::MAX - file_offset);
    require(file_offset.checked_add(num_bytes).is_some(), "num_bytes", num_bytes, below)?;
    if logical == 0 && raw.header.extent_type == TYPE_REGULAR {
        return Ok(ExtentBody::Hole { num_bytes });
    }
    let bytes_max = if compression == Compression::None { disk_bytes } else { ram_bytes };
    let end = offset.checked_add(num_bytes).filter(|&end| end <= bytes_max);
    let within = format_args!("at most {}", bytes_max.saturating_sub(offset));
    require(end.is_some(), "num_bytes", num_bytes, within)?;
    require(
        logical.checked_add(disk_bytes).is_some(),
        "disk_num_bytes",
        disk_bytes,
        "no overflow",
    )?;
    if compression != Compression::None {
        bounded("ram_bytes", ram_bytes)?;
        bounded("disk_num_bytes", disk_bytes)?;
    }
    let disk = DiskExtent { logical: Logical(logical), bytes: disk_bytes };
    let run = ExtentRun { offset, num_bytes };
    Ok(if raw.header.extent_type == TYPE_REGULAR {
        ExtentBody::Regular { disk, run }
    } else {
        ExtentBody::Preallocated { disk, run }
    })
}

fn aligned(field: &'static str, value: u64) -> Result<(), Refused> {
    require(value.is_multiple_of(SECTOR_BYTES), field, value, "sector aligned")
}

fn bounded(field: &'static str, bytes: u64) -> Result<(), Refused> {
    let want = format_args!("at most {COMPRESSED_BYTES_MAX} where compressed");
    require(bytes <= COMPRESSED_BYTES_MAX, field, bytes, want)
}
