//! [`Index`]: the hashes of an earlier run, as they are kept in a file.
//!
//! ```text
//! 0       16        24           32
//! | magic | version | block size | entries ... | end | checksum |
//!
//! one entry                                    end: an entry with the count u64::MAX, no identity
//! | count u64 | identity 16 | count times: number u32, hash u64 |
//! ```
//!
//! Numbers are little-endian. The checksum is the BLAKE3 hash of everything before it, 32 bytes.
//!
//! 1. An index that is damaged, cut off, or of another kind is refused as a whole: no hash of it is
//!    used.
//! 2. An entry is found by the identity of its file, so that of a file that has changed since is
//!    never found.
//! 3. Memory follows what has been read: a count in a damaged file allocates nothing.

use std::collections::HashMap;
use std::io::{self, Read, Write};
use std::ops::Range;

use crate::hashes::{BlockSize, Hashed};
use crate::place::Identity;

const MAGIC: &[u8; 16] = b"butternut-dedupe";
const VERSION: u64 = 1;
const CHECKSUM_BYTES: usize = 32;
/// In the place of the count of an entry: there are no more.
const END: u64 = u64::MAX;

/// Why an index was not read.
#[derive(Debug, thiserror::Error)]
pub enum IndexError {
    #[error("not an index of butternut dedupe")]
    Foreign,
    #[error("version: have {have}, want {VERSION}")]
    Version { have: u64 },
    #[error("block size: have {have} bytes, want {want}")]
    BlockSize { have: u64, want: u64 },
    #[error("the index is damaged: {what}")]
    Damaged { what: &'static str },
    #[error(transparent)]
    Io(#[from] io::Error),
}

/// The hashes of the blocks of files, by the identities of the files.
#[derive(Debug, Default)]
pub struct Index {
    entries: HashMap<Identity, Range<usize>>,
    blocks: Vec<Hashed>,
}

impl Index {
    /// Reads an index of blocks of a size.
    ///
    /// # Errors
    /// [`IndexError`], by law 1.
    pub fn read(from: impl Read, size: BlockSize) -> Result<Self, IndexError> {
        let mut input = Input { from, hasher: blake3::Hasher::new() };
        let magic = input.array().map_err(|error| {
            // A file that ends before is of another kind.
            if matches!(error, IndexError::Damaged { .. }) { IndexError::Foreign } else { error }
        })?;
        if magic != *MAGIC {
            return Err(IndexError::Foreign);
        }
        match u64::from_le_bytes(input.array()?) {
            VERSION => {}
            have => return Err(IndexError::Version { have }),
        }
        let have = u64::from_le_bytes(input.array()?);
        let index = Self::read_entries(&mut input)?;
        input.check_end()?;
        // The message names the size only of an index that is whole.
        if have != size.bytes() {
            return Err(IndexError::BlockSize { have, want: size.bytes() });
        }
        Ok(index)
    }

    fn read_entries<R: Read>(input: &mut Input<R>) -> Result<Self, IndexError> {
        let mut index = Self::default();
        loop {
            let count = u64::from_le_bytes(input.array()?);
            if count == END {
                return Ok(index);
            }
            let identity = Identity(input.array()?);
            let start = index.blocks.len();
            let mut before = None;
            for _ in 0..count {
                let number = u32::from_le_bytes(input.array()?);
                let hash = u64::from_le_bytes(input.array()?);
                if before.is_some_and(|before| number <= before) {
                    return Err(IndexError::Damaged { what: "the blocks of a file have no order" });
                }
                before = Some(number);
                reserve(&mut index.blocks);
                index.blocks.push(Hashed { number, hash });
            }
            index.entries.insert(identity, start..index.blocks.len());
        }
    }

    /// Returns the blocks of a file.
    pub(crate) fn find(&self, identity: Identity) -> Option<&[Hashed]> {
        self.blocks.get(self.entries.get(&identity)?.clone())
    }
}

/// Writes an index.
///
/// # Errors
/// Those of `to`.
pub(crate) fn write<'a, B>(
    to: &mut dyn Write,
    size: BlockSize,
    files: impl Iterator<Item = (Identity, u64, B)>,
) -> io::Result<()>
where
    B: Iterator<Item = Hashed> + 'a,
{
    let mut output = Output { to, hasher: blake3::Hasher::new() };
    output.put(MAGIC)?;
    output.put(&VERSION.to_le_bytes())?;
    output.put(&size.bytes().to_le_bytes())?;
    for (identity, count, blocks) in files {
        output.put(&count.to_le_bytes())?;
        output.put(&identity.0)?;
        for block in blocks {
            output.put(&block.number.to_le_bytes())?;
            output.put(&block.hash.to_le_bytes())?;
        }
    }
    output.put(&END.to_le_bytes())?;
    let checksum = output.hasher.finalize();
    output.to.write_all(checksum.as_bytes())
}

/// Makes room for one more element. Grows by an eighth, where a vector would double.
pub(crate) fn reserve<T>(vector: &mut Vec<T>) {
    if vector.len() == vector.capacity() {
        vector.reserve_exact(vector.len() / 8 + 64);
    }
}

struct Input<R> {
    from: R,
    hasher: blake3::Hasher,
}

impl<R: Read> Input<R> {
    fn array<const N: usize>(&mut self) -> Result<[u8; N], IndexError> {
        let mut bytes = [0; N];
        self.fill(&mut bytes)?;
        self.hasher.update(&bytes);
        Ok(bytes)
    }

    fn fill(&mut self, bytes: &mut [u8]) -> Result<(), IndexError> {
        self.from.read_exact(bytes).map_err(|error| {
            if error.kind() == io::ErrorKind::UnexpectedEof {
                return IndexError::Damaged { what: "it is cut off" };
            }
            IndexError::Io(error)
        })
    }

    /// Checks the checksum, and that nothing follows.
    fn check_end(mut self) -> Result<(), IndexError> {
        let want = self.hasher.finalize();
        let mut have = [0; CHECKSUM_BYTES];
        self.fill(&mut have)?;
        if want.as_bytes() != &have {
            return Err(IndexError::Damaged { what: "its checksum is wrong" });
        }
        match self.from.read(&mut [0])? {
            0 => Ok(()),
            _ => Err(IndexError::Damaged { what: "it goes on behind its end" }),
        }
    }
}

struct Output<'a> {
    to: &'a mut dyn Write,
    hasher: blake3::Hasher,
}

impl Output<'_> {
    fn put(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.hasher.update(bytes);
        self.to.write_all(bytes)
    }
}

#[cfg(test)]
mod unit {
    use super::*;

    const SIZE: u64 = 4096;

    fn size() -> BlockSize {
        BlockSize::new(SIZE).expect("a valid size")
    }

    fn written() -> Vec<u8> {
        let mut bytes = Vec::new();
        let blocks = [Hashed { number: 0, hash: 7 }, Hashed { number: 3, hash: 9 }];
        let files = [(Identity([1; 16]), 2, blocks.into_iter().take(2)), {
            (Identity([2; 16]), 0, blocks.into_iter().take(0))
        }];
        write(&mut bytes, size(), files.into_iter()).expect("memory takes it");
        bytes
    }

    #[test]
    fn what_is_written_is_read() {
        let index = Index::read(&written()[..], size()).expect("an index");
        let found = index.find(Identity([1; 16])).expect("an entry");
        assert_eq!(found.last(), Some(&Hashed { number: 3, hash: 9 }));
        assert_eq!(index.find(Identity([2; 16])), Some(&[][..]));
        assert_eq!(index.find(Identity([3; 16])), None);
    }

    #[test]
    fn every_damage_is_refused() {
        let whole = written();
        for cut in 0..whole.len() {
            Index::read(&whole[..cut], size()).expect_err("it is cut off");
        }
        for at in 0..whole.len() {
            for bit in 0..8 {
                let mut damaged = whole.clone();
                damaged[at] ^= 1 << bit;
                Index::read(&damaged[..], size()).expect_err("a bit is wrong");
            }
        }
        let longer = [&whole[..], b"x"].concat();
        let error = Index::read(&longer[..], size()).expect_err("it is too long");
        assert!(matches!(error, IndexError::Damaged { .. }));
        let error = Index::read(&b"a file of something else"[..], size()).expect_err("foreign");
        assert!(matches!(error, IndexError::Foreign));
        let other = BlockSize::new(2 * SIZE).expect("a valid size");
        let error = Index::read(&whole[..], other).expect_err("another size");
        assert!(matches!(error, IndexError::BlockSize { .. }));
    }
}
