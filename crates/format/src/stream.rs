//! Send streams: the commands that `btrfs send` writes and `btrfs receive` applies.
//!
//! ```text
//! RawStreamHeader
//! 0       13        17
//! | magic | version |
//!
//! RawCommandHeader
//! 0     4     6     10
//! | len | cmd | crc |
//!
//! RawAttributeHeader
//! 0      2     4
//! | kind | len |
//! ```
//!
//! A stream is a [`RawStreamHeader`] and then commands, of which the last is `END`. Several streams
//! may follow one another in one file. A command is a [`RawCommandHeader`] and `len` bytes of
//! attributes; an attribute is a [`RawAttributeHeader`] and `len` bytes.
//!
//! 1. `crc` is the raw CRC-32C register over the whole command with the field `crc` zero. It starts
//!    from 0 and is not inverted, unlike every other checksum of btrfs.
//! 2. From version 2 on, the attribute `DATA` has no `len`: it is the last one, and all remaining
//!    bytes of the command are its value.
//! 3. A command of version 1 has at most 64 KiB. Later versions have no limit in the format; a
//!    command larger than [`COMMAND_BYTES_MAX`] is refused, so that a reader needs bounded memory.
//! 4. Version 2 adds `FALLOCATE`, `FILEATTR` and `ENCODED_WRITE`, and the attribute `OTIME` of
//!    `UTIMES`. Version 3 adds `ENABLE_VERITY`.
//! 5. [`Command::encode`] writes the attributes in the order of the kernel: a command of the kernel
//!    that is decoded and encoded has the same bytes. The one exception is `ENCODED_WRITE`, where
//!    the kernel omits an encryption of 0 for inline extents.
//!
//! Paths are checked where they are used, with [`components`] or [`check_path`]: a path of a stream
//! is relative to the root of its subvolume.

mod attribute;
mod command;
mod path;

pub use command::{Command, StreamCompression};
pub use path::{check_path, components};

use crate::checksum::crc32c_register;
use crate::refused::{Hex, Refused, front, require};
use crate::units::{index, length};
use zerocopy::little_endian::{U16, U32};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Size of the header of a stream in bytes.
pub const STREAM_HEADER_BYTES: usize = 17;
/// Size of the header of a command in bytes.
pub const COMMAND_HEADER_BYTES: usize = 10;
/// Maximum size of a command of version 1 with its header, in bytes.
pub const COMMAND_BYTES_MAX_VERSION_1: usize = 64 * 1024;
/// Maximum size of a command of the other versions with its header, in bytes. The kernel's largest
/// ones have about 144 KiB.
pub const COMMAND_BYTES_MAX: usize = 16 * 1024 * 1024;

/// The first bytes of a stream.
pub const STREAM_MAGIC: [u8; 13] = *b"btrfs-stream\0";

/// The header of a stream (`struct btrfs_stream_header`).
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct RawStreamHeader {
    pub magic: [u8; 13],
    pub version: U32,
}
const _: () = assert!(size_of::<RawStreamHeader>() == STREAM_HEADER_BYTES);

/// The header of a command (`struct btrfs_cmd_header`).
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct RawCommandHeader {
    /// Size of the attributes in bytes.
    pub len: U32,
    pub cmd: U16,
    pub crc: U32,
}
const _: () = assert!(size_of::<RawCommandHeader>() == COMMAND_HEADER_BYTES);

/// The header of an attribute (`struct btrfs_tlv_header`).
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct RawAttributeHeader {
    /// The kernel's `tlv_type`.
    pub kind: U16,
    pub len: U16,
}
const _: () = assert!(size_of::<RawAttributeHeader>() == 4);

/// The version of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum StreamVersion {
    One,
    Two,
    Three,
}

impl StreamVersion {
    /// Returns the version as a number.
    pub fn number(self) -> u32 {
        match self {
            Self::One => 1,
            Self::Two => 2,
            Self::Three => 3,
        }
    }

    /// Checks the header of a stream and returns the stream's version.
    ///
    /// # Errors
    /// The bytes are not the header of a stream, or the version is unknown.
    pub fn decode(header: &[u8; STREAM_HEADER_BYTES]) -> Result<Self, Refused> {
        let (raw, _) = front::<RawStreamHeader>(header)?;
        require(
            raw.magic == STREAM_MAGIC,
            "magic",
            Hex(&raw.magic),
            format_args!("{} (btrfs-stream)", Hex(&STREAM_MAGIC)),
        )?;
        match raw.version.get() {
            1 => Ok(Self::One),
            2 => Ok(Self::Two),
            3 => Ok(Self::Three),
            version => Err(Refused::new("version", version, "1 to 3")),
        }
    }

    /// Returns the header of a stream of this version.
    pub fn encode(self) -> [u8; STREAM_HEADER_BYTES] {
        zerocopy::transmute!(RawStreamHeader {
            magic: STREAM_MAGIC,
            version: U32::new(self.number())
        })
    }

    /// Returns the maximum size of a command with its header, in bytes.
    fn command_bytes_max(self) -> usize {
        if self == Self::One { COMMAND_BYTES_MAX_VERSION_1 } else { COMMAND_BYTES_MAX }
    }

    /// Returns whether the attribute `DATA` has no length (law 2).
    fn data_is_last(self) -> bool {
        self != Self::One
    }
}

/// Returns the size in bytes of the command with this header, the header included.
///
/// # Errors
/// The command is larger than one of this version may be.
pub fn command_bytes(
    version: StreamVersion,
    header: &[u8; COMMAND_HEADER_BYTES],
) -> Result<usize, Refused> {
    let (raw, _) = front::<RawCommandHeader>(header)?;
    let max = version.command_bytes_max().saturating_sub(COMMAND_HEADER_BYTES);
    let len = index(raw.len.get());
    require(len <= max, "len", len, format_args!("at most {max}"))?;
    Ok(len.saturating_add(COMMAND_HEADER_BYTES))
}

/// Checks the length and the checksum of a command. Returns its number and its attributes.
fn open(version: StreamVersion, bytes: &[u8]) -> Result<(u16, &[u8]), Refused> {
    let (header, rest) = bytes
        .split_first_chunk::<COMMAND_HEADER_BYTES>()
        .ok_or_else(|| Refused::new("bytes", bytes.len(), "a header of 10 bytes"))?;
    let want = command_bytes(version, header)?;
    require(bytes.len() == want, "bytes", bytes.len(), want)?;
    let (raw, _) = front::<RawCommandHeader>(header)?;
    let (have, want) = (raw.crc.get(), checksum(raw, rest));
    require(have == want, "crc", format_args!("{have:#x}"), format_args!("{want:#x}"))?;
    Ok((raw.cmd.get(), rest))
}

/// Fills in the header of the command that starts at `start` of `out` and has all its attributes.
fn seal(version: StreamVersion, cmd: u16, out: &mut [u8], start: usize) -> Result<(), Refused> {
    let frame = out.get_mut(start..).unwrap_or_default();
    let bytes = frame.len();
    let max = version.command_bytes_max();
    let (header, rest) = frame
        .split_first_chunk_mut::<COMMAND_HEADER_BYTES>()
        .filter(|_| bytes <= max)
        .ok_or_else(|| Refused::new("bytes", bytes, format_args!("10 to {max}")))?;
    let len = u32::try_from(length(rest.len())).unwrap_or(u32::MAX);
    let mut raw = RawCommandHeader { len: U32::new(len), cmd: U16::new(cmd), crc: U32::new(0) };
    raw.crc = U32::new(checksum(&raw, rest));
    *header = zerocopy::transmute!(raw);
    Ok(())
}

fn checksum(header: &RawCommandHeader, rest: &[u8]) -> u32 {
    let header = RawCommandHeader { crc: U32::new(0), ..*header };
    crc32c_register(0, &[header.as_bytes(), rest])
}
