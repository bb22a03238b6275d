//! The tree of hashes (Merkle tree) of a file: where its levels are, and how it is built.
//!
//! ```text
//! offset 0   | root block | level n-2 ... | ... | level 0: hashes of the data blocks |
//! ```
//!
//! 1. Level 0 has the hashes of the data blocks, each further level those of the blocks of the
//!    level below. The root is the level with one block; it is stored first.
//! 2. The last block of a level is padded with zeros.
//! 3. A file of at most one block has no tree: its root hash is the hash of that block, or zeros if
//!    it is empty.
//! 4. A [`MerkleBuilder`] keeps one block of each level in memory, and passes each block on when it
//!    is full.

use super::hash::{BlockHasher, HASH_BYTES_MAX, Hash};
use super::{VerityDescriptor, VerityParameters};
use crate::refused::{Refused, require};
use crate::units::{index, length};

/// Maximum number of levels.
const LEVELS_MAX: usize = 8;

/// Where the levels of a tree are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MerkleShape {
    block_bytes: u64,
    hash_bytes: u64,
    /// Level 0 first.
    levels: Vec<Level>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Level {
    /// Offset in the tree, in bytes.
    start: u64,
    blocks: u64,
}

/// Where the hash of a block is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HashPlace {
    /// In the descriptor.
    Root,
    /// In block `block` of the level `level`, which is at byte `offset` of the tree; the hash is
    /// at byte `skip` of it.
    Tree { level: usize, block: u64, offset: u64, skip: usize },
}

/// Builds a tree from the blocks of data in their order.
#[derive(Debug)]
pub struct MerkleBuilder {
    parameters: VerityParameters,
    hasher: BlockHasher,
    shape: MerkleShape,
    data_bytes: u64,
    levels: Vec<Filling>,
    root: Hash,
}

/// The block of a level that is being filled.
#[derive(Debug, Default)]
struct Filling {
    block: Vec<u8>,
    offset: u64,
}

impl MerkleShape {
    pub(super) fn new(
        block_bytes: u32,
        hash_bytes: usize,
        data_bytes: u64,
    ) -> Result<Self, Refused> {
        let (block_bytes, hash_bytes) = (u64::from(block_bytes), length(hash_bytes));
        let hashes = block_bytes / hash_bytes.max(1);
        let mut levels = Vec::new();
        let mut blocks = data_bytes.div_ceil(block_bytes.max(1));
        while blocks > 1 {
            blocks = blocks.div_ceil(hashes.max(2));
            levels.push(Level { start: 0, blocks });
            require(levels.len() <= LEVELS_MAX, "levels", levels.len(), "at most 8")?;
        }
        let mut start = 0_u64;
        for level in levels.iter_mut().rev() {
            level.start = start;
            start = start.saturating_add(level.blocks.saturating_mul(block_bytes));
        }
        Ok(Self { block_bytes, hash_bytes, levels })
    }

    /// Returns the size of the tree in bytes.
    pub fn bytes(&self) -> u64 {
        self.levels.first().map_or(0, |level| {
            level.start.saturating_add(level.blocks.saturating_mul(self.block_bytes))
        })
    }

    /// Returns the number of levels.
    pub fn levels(&self) -> usize {
        self.levels.len()
    }

    /// Returns where the hash of block `number` is. `level` is that of the block above it: 0 for a
    /// block of data, n + 1 for a block of level n.
    pub fn place(&self, level: usize, number: u64) -> HashPlace {
        let hashes = (self.block_bytes / self.hash_bytes.max(1)).max(1);
        let Some(found) = self.levels.get(level) else { return HashPlace::Root };
        let block = number / hashes;
        let offset = found.start.saturating_add(block.saturating_mul(self.block_bytes));
        let skip = number % hashes * self.hash_bytes;
        let skip = usize::try_from(skip).unwrap_or(usize::MAX);
        HashPlace::Tree { level, block, offset, skip }
    }
}

impl MerkleBuilder {
    /// Returns a builder for a file of so many bytes.
    ///
    /// # Errors
    /// The tree would have more than eight levels.
    pub fn new(parameters: VerityParameters, data_bytes: u64) -> Result<Self, Refused> {
        let shape = parameters.shape(data_bytes)?;
        let new = |level: &Level| Filling { block: Vec::new(), offset: level.start };
        let levels = shape.levels.iter().map(new).collect();
        let (hasher, root) = (parameters.hasher(), [0; HASH_BYTES_MAX]);
        Ok(Self { parameters, hasher, shape, data_bytes, levels, root })
    }

    /// Adds blocks of data, whole ones except for the last of the file. Passes each finished block
    /// of the tree to `emit`, with its offset in the tree.
    pub fn add(&mut self, data: &[u8], emit: &mut dyn FnMut(u64, &[u8])) {
        let block_bytes = index(self.parameters.block_bytes());
        for block in data.chunks(block_bytes) {
            let hash = self.hasher.hash(block);
            self.push(0, &hash, emit);
        }
    }

    /// Passes on what is left of the tree, and returns the descriptor.
    pub fn finish(
        mut self,
        signature_bytes: u32,
        emit: &mut dyn FnMut(u64, &[u8]),
    ) -> VerityDescriptor {
        for level in 0..self.levels.len() {
            self.flush(level, emit);
        }
        VerityDescriptor {
            parameters: self.parameters,
            data_bytes: self.data_bytes,
            root_hash: self.root,
            signature_bytes,
        }
    }

    /// Adds a hash to a level. Above the highest one it is that of the root.
    fn push(&mut self, level: usize, hash: &Hash, emit: &mut dyn FnMut(u64, &[u8])) {
        let block_bytes = index(self.parameters.block_bytes());
        let Some(filling) = self.levels.get_mut(level) else {
            self.root = *hash;
            return;
        };
        let hash_bytes = self.parameters.hash().bytes();
        filling.block.extend_from_slice(hash.get(..hash_bytes).unwrap_or(hash));
        if filling.block.len() >= block_bytes {
            self.flush(level, emit);
        }
    }

    /// Pads the block of a level, and adds its hash to the level above.
    fn flush(&mut self, level: usize, emit: &mut dyn FnMut(u64, &[u8])) {
        let block_bytes = index(self.parameters.block_bytes());
        let Some(filling) = self.levels.get_mut(level) else { return };
        if filling.block.is_empty() {
            return;
        }
        filling.block.resize(block_bytes, 0);
        emit(filling.offset, &filling.block);
        let hash = self.hasher.hash(&filling.block);
        filling.block.clear();
        filling.offset = filling.offset.saturating_add(length(block_bytes));
        self.push(level.saturating_add(1), &hash, emit);
    }

    /// Returns where the levels are.
    pub fn shape(&self) -> &MerkleShape {
        &self.shape
    }
}
