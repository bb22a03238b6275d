//! Checksums of tree blocks and data, and the hashes in the keys of names and references.
//!
//! A volume uses one algorithm for everything, given by `csum_type` in its superblock. A stored
//! checksum is little-endian and fills the first [`ChecksumKind::bytes`] of its field. The rest of
//! the 32-byte field is zero in a superblock and in a tree block.
//!
//! 1. Every [`Checksum`] is 32 bytes, zero padded, so that it can be stored in such a field.
//! 2. Only the first [`ChecksumKind::bytes`] are compared.
//! 3. The hashes are the raw CRC register: their initial value differs from that of a checksum, and
//!    the result is not inverted.

use crate::refused::Refused;
use crc_fast::CrcAlgorithm;
use sha2::Digest as _;

/// The object id of every checksum item (`BTRFS_EXTENT_CSUM_OBJECTID`, -10).
pub const EXTENT_CSUM_OBJECTID: u64 = u64::MAX - 9;

/// Size in bytes of the checksum field of a superblock and of a tree block's header.
pub const CHECKSUM_BYTES: usize = 32;

/// A checksum, zero padded.
pub type Checksum = [u8; CHECKSUM_BYTES];

/// The checksum algorithm of a volume (`csum_type` in the superblock).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ChecksumKind {
    Crc32c,
    Xxhash64,
    Sha256,
    Blake2b,
}

impl ChecksumKind {
    pub const ALL: [Self; 4] = [Self::Crc32c, Self::Xxhash64, Self::Sha256, Self::Blake2b];

    /// Returns the algorithm of a `csum_type`.
    ///
    /// # Errors
    /// The value is unknown.
    pub fn check(csum_type: u16) -> Result<Self, Refused> {
        match csum_type {
            0 => Ok(Self::Crc32c),
            1 => Ok(Self::Xxhash64),
            2 => Ok(Self::Sha256),
            3 => Ok(Self::Blake2b),
            _ => Err(Refused::new("csum_type", csum_type, "0 to 3")),
        }
    }

    /// Returns the value of `csum_type`.
    pub const fn csum_type(self) -> u16 {
        match self {
            Self::Crc32c => 0,
            Self::Xxhash64 => 1,
            Self::Sha256 => 2,
            Self::Blake2b => 3,
        }
    }

    /// Returns the size in bytes of a checksum, as stored for each sector in the checksum tree.
    pub const fn bytes(self) -> usize {
        match self {
            Self::Crc32c => 4,
            Self::Xxhash64 => 8,
            Self::Sha256 | Self::Blake2b => 32,
        }
    }

    /// Returns the name that mkfs and sysfs use.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Crc32c => "crc32c",
            Self::Xxhash64 => "xxhash64",
            Self::Sha256 => "sha256",
            Self::Blake2b => "blake2b",
        }
    }

    /// Computes the checksum of `bytes`.
    pub fn compute(self, bytes: &[u8]) -> Checksum {
        let mut checksum = [0; CHECKSUM_BYTES];
        match self {
            Self::Crc32c => fill(&mut checksum, &crc_fast::crc32_iscsi(bytes).to_le_bytes()),
            Self::Xxhash64 => {
                fill(&mut checksum, &twox_hash::XxHash64::oneshot(0, bytes).to_le_bytes());
            }
            Self::Sha256 => fill(&mut checksum, &sha2::Sha256::digest(bytes)),
            Self::Blake2b => {
                let hash = blake2b_simd::Params::new().hash_length(CHECKSUM_BYTES).hash(bytes);
                fill(&mut checksum, hash.as_bytes());
            }
        }
        checksum
    }

    /// Returns whether `stored` begins with the checksum of `bytes`. A shorter `stored` never
    /// matches.
    pub fn matches(self, bytes: &[u8], stored: &[u8]) -> bool {
        let checksum = self.compute(bytes);
        matches!((checksum.get(..self.bytes()), stored.get(..self.bytes())),
            (Some(have), Some(want)) if have == want)
    }
}

/// Returns the hash of a name, which is the offset of its `DIR_ITEM` or `XATTR_ITEM` key.
pub fn name_hash(name: &[u8]) -> u64 {
    u64::from(crc32c_register(!1, &[name]))
}

/// Returns the hash of an extended reference, which is the offset of its `INODE_EXTREF` key.
pub fn extref_hash(parent: u64, name: &[u8]) -> u64 {
    u64::from(crc32c_register(low_half(parent), &[name]))
}

/// Returns the hash of a data reference, which is the offset of its `EXTENT_DATA_REF` key.
pub fn data_ref_hash(root: u64, ino: u64, file_offset: u64) -> u64 {
    let high = crc32c_register(u32::MAX, &[&root.to_le_bytes()]);
    let low = crc32c_register(u32::MAX, &[&ino.to_le_bytes(), &file_offset.to_le_bytes()]);
    (u64::from(high) << 31) ^ u64::from(low)
}

/// Returns the CRC register after `parts`, started from `seed` and not inverted.
pub fn crc32c_register(seed: u32, parts: &[&[u8]]) -> u32 {
    let mut crc = crc_fast::Digest::new_with_init_state(CrcAlgorithm::Crc32Iscsi, u64::from(seed));
    for part in parts {
        crc.update(part);
    }
    low_half(crc.get_state())
}

fn low_half(value: u64) -> u32 {
    let [a, b, c, d, ..] = value.to_le_bytes();
    u32::from_le_bytes([a, b, c, d])
}

fn fill(checksum: &mut Checksum, hash: &[u8]) {
    for (to, from) in checksum.iter_mut().zip(hash) {
        *to = *from;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Computes the register bit by bit.
    fn bitwise(seed: u32, bytes: &[u8]) -> u32 {
        bytes.iter().fold(seed, |crc, byte| {
            (0..8).fold(crc ^ u32::from(*byte), |crc, _| {
                if crc & 1 == 1 { (crc >> 1) ^ 0x82F6_3B78 } else { crc >> 1 }
            })
        })
    }

    #[test]
    fn checksums_match_the_published_test_vectors() {
        let hex = |kind: ChecksumKind| -> String {
            let checksum = kind.compute(b"123456789");
            crate::refused::Hex(&checksum[..kind.bytes()]).to_string()
        };
        assert_eq!(hex(ChecksumKind::Crc32c), "839206e3");
        assert_eq!(hex(ChecksumKind::Xxhash64), "83aee640db41b88c");
        let sha = "15e2b0d3c33891ebb0f1ef609ec419420c20e320ce94c65fbc8c3312448eb225";
        assert_eq!(hex(ChecksumKind::Sha256), sha);
        let blake = "16e0bf1f85594a11e75030981c0b670370b3ad83a43f49ae58a2fd6f6513cde9";
        assert_eq!(hex(ChecksumKind::Blake2b), blake);
    }

    #[test]
    fn register_matches_the_bitwise_form_at_every_length() {
        let bytes: Vec<u8> = (0..=u8::MAX).chain(0..99).map(|i| i.wrapping_mul(7)).collect();
        for len in 0..bytes.len() {
            for seed in [0, !1, u32::MAX, 257] {
                assert_eq!(crc32c_register(seed, &[&bytes[..len]]), bitwise(seed, &bytes[..len]));
            }
        }
    }

    #[test]
    fn padding_after_the_checksum_is_ignored() {
        for kind in ChecksumKind::ALL {
            let mut stored = kind.compute(b"sector");
            assert!(kind.matches(b"sector", &stored));
            assert!(!kind.matches(b"sectoR", &stored));
            assert!(!kind.matches(b"sector", &stored[..kind.bytes() - 1]));
            if let Some(padding) = stored.get_mut(kind.bytes()) {
                *padding = 9;
                assert!(kind.matches(b"sector", &stored));
            }
        }
    }

    #[test]
    fn name_hash_matches_the_kernels_hash_of_default() {
        // mkfs writes a directory entry named "default" into the root tree with this key offset.
        assert_eq!(name_hash(b"default"), 2_378_154_706);
    }
}
