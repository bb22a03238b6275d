//! [`Search`]: the files that were found, and the hashes of their blocks.
//!
//! 1. The blocks of all files are in one vector, in the order of the files; those of a file are in
//!    the order of their numbers.
//! 2. Files are added in any order. Their rank has the files that are no targets first (law 2 of
//!    the crate).
//! 3. A file that could not be read has no blocks: it is neither a source nor a target.

use std::io::{self, Write};
use std::ops::Range;

use crate::hashes::{BlockSize, Hashed, hash_file, hash_whole};
use crate::index::{self, Index, reserve};
use crate::place::{Facts, Identity, Place, Problem};
use crate::sharing::Report;

/// Bytes of memory for each block with data that a run remembers, at most: the block, its place in
/// the order of hashes, room to grow, and the same again for the block in an index.
pub const BLOCK_MEMORY_BYTES: u64 = 48;

/// The run would remember more than 2^32 blocks or files.
#[derive(Debug, thiserror::Error)]
#[error("there are too many blocks or files")]
pub struct TooMuch;

/// A block of a file, by the number of the file.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Block {
    pub(crate) hash: u64,
    pub(crate) file: u32,
    pub(crate) number: u32,
}

/// A file that was found.
#[derive(Debug)]
pub(crate) struct Found<N> {
    pub(crate) name: N,
    pub(crate) facts: Facts,
    /// Where its blocks are in the vector of all.
    pub(crate) start: u32,
    pub(crate) count: u32,
    /// Hash of all of it.
    pub(crate) whole: u64,
}

impl<N> Found<N> {
    pub(crate) fn blocks(&self) -> Range<usize> {
        let start = self.start as usize;
        start..start + self.count as usize
    }

    /// Files of different groups share no data: the filesystem, and whether there are checksums.
    pub(crate) fn group(&self) -> (u64, bool) {
        (self.facts.filesystem, self.facts.has_checksums)
    }
}

/// Files whose blocks are hashed, before any of them is deduplicated.
#[derive(Debug)]
pub struct Search<N> {
    pub(crate) size: BlockSize,
    pub(crate) files: Vec<Found<N>>,
    pub(crate) blocks: Vec<Block>,
    pub(crate) report: Report,
    earlier: Index,
}

impl<N> Search<N> {
    /// Returns a search for equal blocks of a size. Files that are in the index are not read.
    pub fn new(size: BlockSize, earlier: Index) -> Self {
        Self { size, files: Vec::new(), blocks: Vec::new(), report: Report::default(), earlier }
    }

    /// Adds an open file, and reads it if the index does not have it.
    ///
    /// # Errors
    /// [`Problem::Skip`], which is counted already, and [`Problem::Failed`] leave the file out;
    /// the search goes on. [`TooMuch`] ends it.
    pub fn add<P: Place<Name = N>>(
        &mut self,
        place: &P,
        file: &P::File,
        name: N,
        facts: Facts,
    ) -> Result<Result<(), Problem<P::Error>>, TooMuch> {
        let start = self.blocks.len();
        let number = u32::try_from(self.files.len()).map_err(|_| TooMuch)?;
        self.report.files += 1;
        let hashed = self.hash(place, file, number, &facts);
        if let Err(problem) = hashed {
            self.blocks.truncate(start);
            if let Problem::Skip(skip) = &problem {
                self.report.skip(*skip);
            }
            return Ok(Err(problem));
        }
        let count = u32::try_from(self.blocks.len() - start).map_err(|_| TooMuch)?;
        u32::try_from(self.blocks.len()).map_err(|_| TooMuch)?;
        let start = u32::try_from(start).map_err(|_| TooMuch)?;
        let mut found = Found { name, facts, start, count, whole: 0 };
        found.whole = hash_whole(facts.size, self.blocks_of(&found));
        reserve(&mut self.files);
        self.files.push(found);
        Ok(Ok(()))
    }

    fn hash<P: Place<Name = N>>(
        &mut self,
        place: &P,
        file: &P::File,
        number: u32,
        facts: &Facts,
    ) -> Result<(), Problem<P::Error>> {
        let blocks = &mut self.blocks;
        let mut add = |Hashed { number: block, hash }: Hashed| {
            reserve(blocks);
            blocks.push(Block { hash, file: number, number: block });
        };
        if let Some(known) = self.earlier.find(facts.identity) {
            known.iter().copied().for_each(add);
            return Ok(());
        }
        self.report.files_read += 1;
        self.report.read_bytes += hash_file(place, file, facts, self.size, &mut add)?;
        Ok(())
    }

    fn blocks_of(&self, file: &Found<N>) -> impl Iterator<Item = Hashed> + '_ {
        let blocks = self.blocks.get(file.blocks()).unwrap_or_default();
        blocks.iter().map(|block| Hashed { number: block.number, hash: block.hash })
    }

    /// Counts a file that is left alone.
    pub fn skip(&mut self, skip: crate::Skip) {
        self.report.files += 1;
        self.report.skip(skip);
    }

    /// Writes the index for the next run: the files that were added, if their identities will tell
    /// of later changes. The index of this run is dropped.
    ///
    /// # Errors
    /// Those of `to`.
    pub fn write_index(&self, to: &mut dyn Write) -> io::Result<()> {
        let files = self.files.iter().filter(|file| file.facts.is_settled);
        let entry = |file| -> (Identity, u64, _) {
            let file: &Found<N> = file;
            (file.facts.identity, u64::from(file.count), self.blocks_of(file))
        };
        index::write(to, self.size, files.map(entry))
    }

    /// Ends the search, and frees the memory of the index.
    pub(crate) fn end(&mut self) {
        self.earlier = Index::default();
    }
}
