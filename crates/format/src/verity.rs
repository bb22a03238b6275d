//! fs-verity items of a file: the descriptor, and the tree of hashes (Merkle tree) over its data.
//!
//! ```text
//! RawVerityDescriptorItem
//! 0      8          24           25
//! | size | reserved | encryption |
//!
//! RawVerityDescriptor
//! 0         1                2               3           4          8
//! | version | hash_algorithm | log_blocksize | salt_size | sig_size | data_size |
//! 16          80     112        256
//! | root_hash | salt | reserved |
//! ```
//!
//! The key (ino, `VERITY_DESC_ITEM`, 0) has the first structure. From offset 1 on, items of that
//! type hold the descriptor of the kernel's fs-verity layer and the signature behind it, `size`
//! bytes in all. Items of type `VERITY_MERKLE_ITEM` hold the tree of hashes; their key offset is
//! the byte offset in it.
//!
//! 1. An item has at most [`ITEM_BYTES_MAX`] bytes of a descriptor or of a tree.
//! 2. The digest of a file is the hash of its descriptor with a `sig_size` of 0, without salt.
//! 3. A [`VerityDescriptor`] has passed its check: its algorithm is known, its blocks have 1 KiB to
//!    4 KiB, and its reserved bytes are zero. As in the kernel, bytes behind the salt and the root
//!    hash have no meaning but for the digest, and are kept.
//!
//! | module | contents |
//! |---|---|
//! | `hash` | hashes of blocks, with a salt |
//! | `merkle` | where the levels of a tree are, and how it is built |

pub mod hash;
pub mod merkle;

use crate::refused::{Refused, require, whole};
use crate::units::{index, length};
use hash::{BlockHasher, HASH_BYTES_MAX, Hash, VerityHash};
use merkle::MerkleShape;
use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Maximum size of the data of an item, in bytes (law 1).
pub const ITEM_BYTES_MAX: usize = 2048;
/// Maximum size of a descriptor with its signature, in bytes.
pub const DESCRIPTOR_BYTES_MAX: usize = 16384;
/// Maximum size of a signature, in bytes.
pub const SIGNATURE_BYTES_MAX: usize = DESCRIPTOR_BYTES_MAX - size_of::<RawVerityDescriptor>();
/// Maximum size of a salt, in bytes.
pub const SALT_BYTES_MAX: usize = 32;
/// The smallest and the largest block of a tree, in bytes.
pub const BLOCK_BYTES_MIN: u32 = 1024;
pub const BLOCK_BYTES_MAX: u32 = 4096;

/// The item at key offset 0 (`struct btrfs_verity_descriptor_item`).
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct RawVerityDescriptorItem {
    /// Size in bytes of the descriptor that starts at key offset 1.
    pub size: U64,
    pub reserved: [U64; 2],
    pub encryption: u8,
}
const _: () = assert!(size_of::<RawVerityDescriptorItem>() == 25);

/// The descriptor (`struct fsverity_descriptor`).
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct RawVerityDescriptor {
    pub version: u8,
    pub hash_algorithm: u8,
    pub log_blocksize: u8,
    pub salt_size: u8,
    pub sig_size: U32,
    pub data_size: U64,
    pub root_hash: [u8; HASH_BYTES_MAX],
    pub salt: [u8; SALT_BYTES_MAX],
    pub reserved: [u8; 144],
}
const _: () = assert!(size_of::<RawVerityDescriptor>() == 256);

/// How the tree of a file is made: what its descriptor does not take from the data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VerityParameters {
    hash: VerityHash,
    block_log: u8,
    salt: [u8; SALT_BYTES_MAX],
    salt_bytes: u8,
}

/// A descriptor that was checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VerityDescriptor {
    pub parameters: VerityParameters,
    /// Size of the file in bytes.
    pub data_bytes: u64,
    /// The field with the hash of the root of the tree; zeros of an empty file.
    pub root_hash: [u8; HASH_BYTES_MAX],
    /// Size of the signature, in bytes.
    pub signature_bytes: u32,
}

impl RawVerityDescriptorItem {
    /// Returns the item of a descriptor with its signature.
    pub fn new(bytes: usize) -> Self {
        Self { size: U64::new(length(bytes)), reserved: [U64::ZERO; 2], encryption: 0 }
    }

    /// Checks the item, and returns the size of the descriptor in bytes.
    ///
    /// # Errors
    /// A field that is invalid.
    pub fn check(item: &[u8]) -> Result<usize, Refused> {
        let raw: &Self = whole(item)?;
        let bytes = raw.size.get();
        let is_zero = raw.reserved.iter().all(|word| word.get() == 0);
        require(is_zero, "reserved", "another value", "zeros")?;
        require(raw.encryption == 0, "encryption", raw.encryption, "0")?;
        let limits = size_of::<RawVerityDescriptor>()..=DESCRIPTOR_BYTES_MAX;
        let found = usize::try_from(bytes).ok().filter(|bytes| limits.contains(bytes));
        found.ok_or_else(|| Refused::new("size", bytes, "256 to 16384"))
    }
}

impl VerityParameters {
    /// Returns the parameters of a tree.
    ///
    /// # Errors
    /// A block size that is no power of two from 1024 to 4096 bytes, or a salt of more than 32
    /// bytes.
    pub fn new(hash: VerityHash, block_bytes: u32, salt: &[u8]) -> Result<Self, Refused> {
        let is_valid = block_bytes.is_power_of_two()
            && (BLOCK_BYTES_MIN..=BLOCK_BYTES_MAX).contains(&block_bytes);
        require(is_valid, "block size", block_bytes, "1024, 2048 or 4096")?;
        let block_log = u8::try_from(block_bytes.trailing_zeros()).unwrap_or(u8::MAX);
        let mut padded = [0; SALT_BYTES_MAX];
        let place = padded.get_mut(..salt.len());
        let place = place.ok_or_else(|| Refused::new("salt_size", salt.len(), "at most 32"))?;
        place.copy_from_slice(salt);
        let salt_bytes = u8::try_from(salt.len()).unwrap_or(u8::MAX);
        Ok(Self { hash, block_log, salt: padded, salt_bytes })
    }

    /// Returns the algorithm.
    pub fn hash(&self) -> VerityHash {
        self.hash
    }

    /// Returns the size of a block of data, and of the tree, in bytes.
    pub fn block_bytes(&self) -> u32 {
        1_u32.checked_shl(self.block_log.into()).unwrap_or(BLOCK_BYTES_MAX)
    }

    /// Returns the salt.
    pub fn salt(&self) -> &[u8] {
        self.salt.get(..usize::from(self.salt_bytes)).unwrap_or(&self.salt)
    }

    /// Returns what hashes the blocks.
    pub fn hasher(&self) -> BlockHasher {
        BlockHasher::new(self.hash, index(self.block_bytes()), self.salt())
    }

    /// Returns where the levels of the tree of so many bytes are.
    ///
    /// # Errors
    /// The tree would have more than eight levels.
    pub fn shape(&self, data_bytes: u64) -> Result<MerkleShape, Refused> {
        MerkleShape::new(self.block_bytes(), self.hash.bytes(), data_bytes)
    }
}

impl VerityDescriptor {
    /// Checks a descriptor and the size of the signature behind it.
    ///
    /// # Errors
    /// A field that is invalid.
    pub fn check(bytes: &[u8]) -> Result<Self, Refused> {
        let (raw, signature) = RawVerityDescriptor::ref_from_prefix(bytes)
            .map_err(|_| Refused::new("bytes", bytes.len(), "at least 256"))?;
        require(raw.version == 1, "version", raw.version, "1")?;
        let hash = VerityHash::check(raw.hash_algorithm)?;
        let log = raw.log_blocksize;
        let limits = BLOCK_BYTES_MIN.trailing_zeros()..=BLOCK_BYTES_MAX.trailing_zeros();
        require(limits.contains(&log.into()), "log_blocksize", log, "10 to 12")?;
        let salt_bytes = usize::from(raw.salt_size);
        let salt = raw.salt.get(..salt_bytes);
        let salt = salt.ok_or_else(|| Refused::new("salt_size", salt_bytes, "at most 32"))?;
        let is_zero = raw.reserved.iter().all(|byte| *byte == 0);
        require(is_zero, "reserved", "another value", "zeros")?;
        let signature_bytes = raw.sig_size.get();
        let have = length(signature.len());
        require(u64::from(signature_bytes) == have, "sig_size", signature_bytes, have)?;
        let block_bytes = 1_u32.checked_shl(log.into()).unwrap_or(0);
        let parameters = VerityParameters::new(hash, block_bytes, salt)?;
        let parameters = VerityParameters { salt: raw.salt, ..parameters };
        let (data_bytes, root_hash) = (raw.data_size.get(), raw.root_hash);
        Ok(Self { parameters, data_bytes, root_hash, signature_bytes })
    }

    /// Returns the bytes of the descriptor, without the signature.
    pub fn to_bytes(&self) -> [u8; size_of::<RawVerityDescriptor>()] {
        let parameters = &self.parameters;
        let raw = RawVerityDescriptor {
            version: 1,
            hash_algorithm: parameters.hash.number(),
            log_blocksize: parameters.block_log,
            salt_size: parameters.salt_bytes,
            sig_size: U32::new(self.signature_bytes),
            data_size: U64::new(self.data_bytes),
            root_hash: self.root_hash,
            salt: parameters.salt,
            reserved: [0; 144],
        };
        let mut bytes = [0; size_of::<RawVerityDescriptor>()];
        bytes.copy_from_slice(raw.as_bytes());
        bytes
    }

    /// Returns the root hash, with zeros behind it.
    pub fn root(&self) -> Hash {
        let mut root = self.root_hash;
        root.iter_mut().skip(self.parameters.hash.bytes()).for_each(|byte| *byte = 0);
        root
    }

    /// Returns the digest of the file (law 2).
    pub fn digest(&self) -> Vec<u8> {
        let unsigned = Self { signature_bytes: 0, ..*self };
        let hash = self.parameters.hash;
        hash.of(&unsigned.to_bytes()).get(..hash.bytes()).unwrap_or_default().to_vec()
    }
}
