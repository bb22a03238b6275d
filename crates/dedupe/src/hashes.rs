//! The hashes of the blocks of one file.
//!
//! 1. A block is a range of the file whose offset is a multiple of the block size. The last block
//!    ends with the file. Blocks without data and blocks of zeros have no hash.
//! 2. A file is read from its first extent with data to its last; what lies between in the same
//!    block is read, too, so that the hash is of what a reader sees.
//! 3. A read that ends before the size that the file had says that it was changed.

use std::ops::Range;

use crate::place::{Facts, Place, Problem, SECTOR_BYTES, Skip};

/// Smallest and largest block size, in bytes.
pub const BLOCK_BYTES_MIN: u64 = SECTOR_BYTES;
pub const BLOCK_BYTES_MAX: u64 = 16 << 20;

/// Bytes that are read at once, if the block size is not larger.
const READ_BYTES: u64 = 4 << 20;

/// The size of the blocks that are compared by hash: a power of two from [`BLOCK_BYTES_MIN`] to
/// [`BLOCK_BYTES_MAX`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockSize(u64);

impl BlockSize {
    /// Returns the block size of so many bytes, or `None` if it is out of range.
    pub fn new(bytes: u64) -> Option<Self> {
        let is_valid =
            bytes.is_power_of_two() && (BLOCK_BYTES_MIN..=BLOCK_BYTES_MAX).contains(&bytes);
        is_valid.then_some(Self(bytes))
    }

    /// Returns the size in bytes.
    pub fn bytes(self) -> u64 {
        self.0
    }
}

/// A block with data: its number in its file, and its hash.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Hashed {
    pub(crate) number: u32,
    pub(crate) hash: u64,
}

/// Calls `add` with the blocks of a file, in order. Returns the number of bytes read.
///
/// # Errors
/// Those of reading it. [`Skip::Changed`] by law 3; [`Skip::TooLarge`] for data behind the last
/// block that has a number.
pub(crate) fn hash_file<P: Place>(
    place: &P,
    file: &P::File,
    facts: &Facts,
    size: BlockSize,
    add: &mut dyn FnMut(Hashed),
) -> Result<u64, Problem<P::Error>> {
    let (mut from, mut read) = (0, 0);
    let mut buffer = Vec::new();
    while from < facts.size {
        let extents = place.extents(file, from)?;
        let Some(last) = extents.last() else { break };
        // Proof of progress: what ends after `from` moves it.
        let reached = last.end();
        if reached <= from {
            return Err(Problem::Skip(Skip::Changed));
        }
        for extent in extents {
            let within = extent.offset.max(from)..extent.end().min(facts.size);
            if within.start >= within.end {
                continue;
            }
            let blocks = whole_blocks(within, size, facts.size);
            read += hash_range(place, file, blocks.clone(), size, &mut buffer, add)?;
            from = blocks.end;
        }
        from = from.max(reached);
    }
    Ok(read)
}

/// Extends a range to the borders of its blocks, inside the file.
fn whole_blocks(range: Range<u64>, size: BlockSize, file_bytes: u64) -> Range<u64> {
    let start = range.start - range.start % size.0;
    let end = range.end.checked_next_multiple_of(size.0).unwrap_or(file_bytes);
    start..end.min(file_bytes)
}

/// Hashes the blocks of a range that begins at a block. Returns its length.
fn hash_range<P: Place>(
    place: &P,
    file: &P::File,
    range: Range<u64>,
    size: BlockSize,
    buffer: &mut Vec<u8>,
    add: &mut dyn FnMut(Hashed),
) -> Result<u64, Problem<P::Error>> {
    let step = size.0.max(READ_BYTES);
    let block_bytes = usize::try_from(size.0).unwrap_or(usize::MAX);
    let mut at = range.start;
    while at < range.end {
        let bytes = usize::try_from(step.min(range.end - at)).unwrap_or(usize::MAX);
        buffer.resize(bytes, 0);
        read_whole(place, file, at, buffer)?;
        for (block, nth) in buffer.chunks(block_bytes).zip(0_u64..) {
            let number = u32::try_from(at / size.0 + nth);
            let number = number.map_err(|_| Problem::Skip(Skip::TooLarge))?;
            if let Some(hash) = hash_block(block) {
                add(Hashed { number, hash });
            }
        }
        at += bytes as u64;
    }
    Ok(range.end - range.start)
}

fn read_whole<P: Place>(
    place: &P,
    file: &P::File,
    offset: u64,
    buf: &mut [u8],
) -> Result<(), Problem<P::Error>> {
    let mut done = 0;
    while done < buf.len() {
        match place.read(file, offset + done as u64, &mut buf[done..])? {
            0 => return Err(Problem::Skip(Skip::Changed)),
            read => done += read,
        }
    }
    Ok(())
}

/// Returns the hash of a block, or `None` if all its bytes are zero.
fn hash_block(block: &[u8]) -> Option<u64> {
    let is_zero = block.iter().all(|byte| *byte == 0);
    let hash = blake3::hash(block);
    let (first, _) = hash.as_bytes().split_first_chunk()?;
    (!is_zero).then_some(u64::from_le_bytes(*first))
}

/// Returns a hash of a whole file, by its size and blocks.
pub(crate) fn hash_whole(bytes: u64, blocks: impl Iterator<Item = Hashed>) -> u64 {
    let mut hasher = blake3::Hasher::new();
    hasher.update(&bytes.to_le_bytes());
    for block in blocks {
        hasher.update(&block.number.to_le_bytes());
        hasher.update(&block.hash.to_le_bytes());
    }
    let hash = hasher.finalize();
    hash.as_bytes().first_chunk().map_or(0, |first| u64::from_le_bytes(*first))
}

#[cfg(test)]
mod unit {
    use super::*;

    #[test]
    fn block_sizes_are_powers_of_two_of_sectors() {
        for (bytes, want) in [
            (4096, true),
            (128 << 10, true),
            (16 << 20, true),
            (0, false),
            (2048, false),
            (12288, false),
            (32 << 20, false),
        ] {
            assert_eq!(BlockSize::new(bytes).is_some(), want, "{bytes}");
        }
    }

    #[test]
    fn the_end_of_the_largest_file_is_a_border() {
        let size = BlockSize(1 << 20);
        let last = i64::MAX.unsigned_abs();
        assert_eq!(whole_blocks(last - 1..last, size, last), (last >> 20 << 20)..last);
        assert_eq!(whole_blocks(5..6, size, 7), 0..7);
        assert_eq!(hash_block(&[0; 4096]), None);
    }
}
