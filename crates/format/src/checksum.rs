//! Checksums of blocks and data, and the hashes that names and references are filed under.
//!
//! A volume uses one algorithm for everything, named by `csum_type` in its superblock. A stored
//! digest is little-endian and fills the first [`ChecksumKind::bytes`] of its field; the rest of
//! the 32-byte field is zero in a superblock and in a tree block.
//!
//! 1. Every digest here is 32 bytes, zero padded, so that it can be written into such a field.
//! 2. Only the first [`ChecksumKind::bytes`] are compared.
//! 3. The hashes are the CRC's bare register: another start value than a checksum's, and no
//!    inversion at the end.

use crate::refused::Refused;
use crc_fast::CrcAlgorithm;
use sha2::Digest as _;

/// The object id of every checksum item (`BTRFS_EXTENT_CSUM_OBJECTID`, -10).
pub const EXTENT_CSUM_OBJECTID: u64 = u64::MAX - 9;

/// Bytes that a digest's field has in a superblock and in a tree block's header.
pub const DIGEST_BYTES: usize = 32;

/// A digest, zero padded.
pub type Digest = [u8; DIGEST_BYTES];

/// The algorithm of a volume (`csum_type` in the superblock).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ChecksumKind {
    Crc32c,
    Xxhash64,
    Sha256,
    Blake2b,
}

impl ChecksumKind {
    pub const ALL: [Self; 4] = [Self::Crc32c, Self::Xxhash64, Self::Sha256, Self::Blake2b];

    pub fn check(csum_type: u16) -> Result<Self, Refused> {
        match csum_type {
            0 => Ok(Self::Crc32c),
            1 => Ok(Self::Xxhash64),
            2 => Ok(Self::Sha256),
            3 => Ok(Self::Blake2b),
            _ => Err(Refused::new("csum_type", csum_type, "0 to 3")),
        }
    }

    /// The value of `csum_type`.
    pub const fn csum_type(self) -> u16 {
        match self {
            Self::Crc32c => 0,
            Self::Xxhash64 => 1,
            Self::Sha256 => 2,
            Self::Blake2b => 3,
        }
    }

    /// Bytes of a digest, as stored for each sector in the checksum tree.
    pub const fn bytes(self) -> usize {
        match self {
            Self::Crc32c => 4,
            Self::Xxhash64 => 8,
            Self::Sha256 | Self::Blake2b => 32,
        }
    }

    /// The name that mkfs and sysfs use.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Crc32c => "crc32c",
            Self::Xxhash64 => "xxhash64",
            Self::Sha256 => "sha256",
            Self::Blake2b => "blake2b",
        }
    }

    pub fn digest(self, bytes: &[u8]) -> Digest {
        let mut digest = [0; DIGEST_BYTES];
        match self {
            Self::Crc32c => fill(&mut digest, &crc_fast::crc32_iscsi(bytes).to_le_bytes()),
            Self::Xxhash64 => {
                fill(&mut digest, &twox_hash::XxHash64::oneshot(0, bytes).to_le_bytes());
            }
            Self::Sha256 => fill(&mut digest, &sha2::Sha256::digest(bytes)),
            Self::Blake2b => {
                let hash = blake2b_simd::Params::new().hash_length(DIGEST_BYTES).hash(bytes);
                fill(&mut digest, hash.as_bytes());
            }
        }
        digest
    }

    /// Whether `stored` begins with the digest of `bytes`. A `stored` too short matches nothing.
    pub fn matches(self, bytes: &[u8], stored: &[u8]) -> bool {
        let digest = self.digest(bytes);
        matches!((digest.get(..self.bytes()), stored.get(..self.bytes())),
            (Some(have), Some(want)) if have == want)
    }
}

/// The hash that a directory entry or an xattr of this name is filed under (the offset of its
/// `DIR_ITEM` or `XATTR_ITEM` key).
pub fn name_hash(name: &[u8]) -> u64 {
    u64::from(crc32c_register(!1, &[name]))
}

/// The hash that an extended reference is filed under (the offset of its `INODE_EXTREF` key).
pub fn extref_hash(parent: u64, name: &[u8]) -> u64 {
    u64::from(crc32c_register(low_half(parent), &[name]))
}

/// The hash that a data reference is filed under (the offset of its `EXTENT_DATA_REF` key).
pub fn data_ref_hash(root: u64, ino: u64, file_offset: u64) -> u64 {
    let high = crc32c_register(u32::MAX, &[&root.to_le_bytes()]);
    let low = crc32c_register(u32::MAX, &[&ino.to_le_bytes(), &file_offset.to_le_bytes()]);
    (u64::from(high) << 31) ^ u64::from(low)
}

/// The CRC's register after `parts`, started from `seed` and not inverted.
fn crc32c_register(seed: u32, parts: &[&[u8]]) -> u32 {
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

fn fill(digest: &mut Digest, hash: &[u8]) {
    for (to, from) in digest.iter_mut().zip(hash) {
        *to = *from;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The plain form of the register: one bit at a time.
    fn bitwise(seed: u32, bytes: &[u8]) -> u32 {
        bytes.iter().fold(seed, |crc, byte| {
            (0..8).fold(crc ^ u32::from(*byte), |crc, _| {
                if crc & 1 == 1 { (crc >> 1) ^ 0x82F6_3B78 } else { crc >> 1 }
            })
        })
    }

    #[test]
    fn digests_are_those_of_the_published_test_vectors() {
        let hex = |kind: ChecksumKind| -> String {
            let digest = kind.digest(b"123456789");
            crate::refused::Hex(&digest[..kind.bytes()]).to_string()
        };
        assert_eq!(hex(ChecksumKind::Crc32c), "839206e3");
        assert_eq!(hex(ChecksumKind::Xxhash64), "83aee640db41b88c");
        let sha = "15e2b0d3c33891ebb0f1ef609ec419420c20e320ce94c65fbc8c3312448eb225";
        assert_eq!(hex(ChecksumKind::Sha256), sha);
        let blake = "16e0bf1f85594a11e75030981c0b670370b3ad83a43f49ae58a2fd6f6513cde9";
        assert_eq!(hex(ChecksumKind::Blake2b), blake);
    }

    #[test]
    fn register_agrees_with_the_bitwise_form_at_every_length() {
        let bytes: Vec<u8> = (0..=u8::MAX).chain(0..99).map(|i| i.wrapping_mul(7)).collect();
        for len in 0..bytes.len() {
            for seed in [0, !1, u32::MAX, 257] {
                assert_eq!(crc32c_register(seed, &[&bytes[..len]]), bitwise(seed, &bytes[..len]));
            }
        }
    }

    #[test]
    fn padding_after_the_digest_does_not_count() {
        for kind in ChecksumKind::ALL {
            let mut stored = kind.digest(b"sector");
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
    fn name_hash_is_what_the_kernel_files_default_under() {
        // Every mkfs writes a directory entry named "default" into the root tree, at this offset.
        assert_eq!(name_hash(b"default"), 2_378_154_706);
    }
}
