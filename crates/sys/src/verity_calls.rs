//! The calls of fs-verity on an open file.
//!
//! ```text
//! struct fsverity_enable_arg, 128 bytes
//! 0         4      8            12          16         24         28   32        40
//! | version | hash | block size | salt size | salt ptr | sig size | .. | sig ptr | .. |
//!
//! struct fsverity_digest
//! 0      2      4
//! | hash | size | digest |
//!
//! struct fsverity_read_metadata_arg, 40 bytes
//! 0      8        16       24        32
//! | kind | offset | length | pointer | .. |
//! ```
//!
//! `FS_IOC_READ_VERITY_METADATA` is no call of the kernel's btrfs. The mounts of this project serve
//! it under a number that states a larger size, [`READ_SIZED`], with the data behind the argument.

#![expect(clippy::host_endian_bytes, reason = "numbers in arguments of calls are in host order")]

use std::io;
use std::os::fd::BorrowedFd;

use crate::subvolume_calls::Arguments;

/// `FS_IOC_ENABLE_VERITY`.
pub const ENABLE: u32 = 0x4080_6685;
/// `FS_IOC_MEASURE_VERITY`; its number states the size without the digest.
pub const MEASURE: u32 = 0xc004_6686;
/// `_IOWR('f', 135, 8192)`: the argument of `FS_IOC_READ_VERITY_METADATA`, and the data.
pub const READ_SIZED: u32 = 0xe000_6687;
/// The size that [`READ_SIZED`] states.
pub const READ_SIZED_BYTES: usize = 8192;

const ENABLE_BYTES: usize = 128;
const READ_BYTES: usize = 40;
/// The longest digest, in bytes, and the sizes in front of it.
const DIGEST_BYTES_MAX: usize = 64;
const DIGEST_AT: usize = 4;
const MEASURE_BYTES: usize = DIGEST_AT + DIGEST_BYTES_MAX;

/// How a file is sealed.
#[derive(Clone, Copy, Debug)]
pub struct Enable<'a> {
    /// The number of the hash function: 1 is SHA-256, 2 is SHA-512.
    pub hash: u32,
    pub block_bytes: u32,
    pub salt: &'a [u8],
    pub signature: &'a [u8],
}

/// Seals a file that is open for reading only.
///
/// # Errors
/// Those of `FS_IOC_ENABLE_VERITY`; `ENOTTY` or `EOPNOTSUPP` where the filesystem has no fs-verity.
pub fn enable(fd: BorrowedFd<'_>, enable: &Enable<'_>) -> io::Result<()> {
    let size = |bytes: &[u8]| u32::try_from(bytes.len()).unwrap_or(u32::MAX).to_ne_bytes();
    let at = |bytes: &[u8]| (bytes.as_ptr().expose_provenance() as u64).to_ne_bytes();
    let Enable { hash, block_bytes, salt, signature } = *enable;
    let mut arguments = Arguments::<ENABLE_BYTES>::new()
        .put(0, &1_u32.to_ne_bytes())?
        .put(4, &hash.to_ne_bytes())?
        .put(8, &block_bytes.to_ne_bytes())?
        .put(12, &size(salt))?
        .put(16, &at(salt))?
        .put(24, &size(signature))?
        .put(32, &at(signature))?;
    // The memory that the pointers name lives through the call, which only reads it.
    arguments.call(fd, ENABLE.into())
}

/// Returns the number of the hash function, and the digest of a sealed file.
///
/// # Errors
/// `ENODATA` for a file that is not sealed; `ENOTTY` or `EOPNOTSUPP` where there is no fs-verity.
pub fn measure(fd: BorrowedFd<'_>) -> io::Result<(u16, Vec<u8>)> {
    let room = u16::try_from(DIGEST_BYTES_MAX).unwrap_or(0);
    let mut arguments = Arguments::<MEASURE_BYTES>::new().put(2, &room.to_ne_bytes())?;
    // SAFETY: the call writes the digest of at most `room` bytes behind the four of its number.
    unsafe { arguments.call_as(fd, MEASURE.into()) }?;
    let [hash_low, hash_high, size_low, size_high, digest @ ..] = arguments.0;
    let size = usize::from(u16::from_ne_bytes([size_low, size_high])).min(DIGEST_BYTES_MAX);
    Ok((u16::from_ne_bytes([hash_low, hash_high]), digest[..size].to_vec()))
}

/// Reads what a mount of this project has stored for a sealed file from `offset` on: 1 is the tree
/// of hashes, 2 the descriptor, 3 the signature. Returns nothing at its end.
///
/// # Errors
/// `ENODATA`; `ENOTTY` on every other filesystem.
pub fn read(fd: BorrowedFd<'_>, kind: u64, offset: u64) -> io::Result<Vec<u8>> {
    let room = u64::try_from(READ_SIZED_BYTES - READ_BYTES).unwrap_or(0);
    let words = [kind, offset, room].map(u64::to_ne_bytes).concat();
    let mut arguments = Arguments::<READ_SIZED_BYTES>::new().put(0, &words)?;
    arguments.call(fd, READ_SIZED.into())?;
    let (words, _) = arguments.0[..READ_BYTES].as_chunks::<8>();
    let filled = words.get(2).map_or(0, |word| u64::from_ne_bytes(*word));
    let filled = usize::try_from(filled).unwrap_or(0).min(READ_SIZED_BYTES - READ_BYTES);
    Ok(arguments.0[READ_BYTES..READ_BYTES + filled].to_vec())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_numbers_state_their_sizes() {
        let stated = |number: u32| usize::try_from(number >> 16 & 0x3fff).unwrap_or(0);
        assert_eq!(stated(ENABLE), ENABLE_BYTES);
        assert_eq!(stated(MEASURE), DIGEST_AT);
        assert_eq!(stated(READ_SIZED), READ_SIZED_BYTES);
    }
}
