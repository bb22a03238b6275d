//! Hashes of fs-verity: of whole blocks, with a salt.
//!
//! 1. A salt is padded with zeros to whole blocks of the hash function, and hashed before each
//!    block. A tree without a salt hashes the block alone.
//! 2. A block that is shorter than the block size is hashed with zeros behind it.

use crate::refused::Refused;
use sha2::{Digest as _, Sha256, Sha512};

/// Maximum size of a hash, in bytes.
pub const HASH_BYTES_MAX: usize = 64;

/// A hash, zero padded.
pub type Hash = [u8; HASH_BYTES_MAX];

/// Zeros for the padding of a block.
const ZEROS: [u8; 4096] = [0; 4096];

/// The hash function of a tree (`hash_algorithm`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum VerityHash {
    #[default]
    Sha256,
    Sha512,
}

/// Hashes blocks of one size with one salt.
#[derive(Clone, Debug)]
pub struct BlockHasher {
    salted: State,
    block_bytes: usize,
}

#[derive(Clone, Debug)]
enum State {
    Sha256(Sha256),
    Sha512(Sha512),
}

impl VerityHash {
    pub const ALL: [Self; 2] = [Self::Sha256, Self::Sha512];

    /// Returns the function of a `hash_algorithm`.
    ///
    /// # Errors
    /// The value is unknown.
    pub fn check(number: u8) -> Result<Self, Refused> {
        match number {
            1 => Ok(Self::Sha256),
            2 => Ok(Self::Sha512),
            _ => Err(Refused::new("hash_algorithm", number, "1 (sha256) or 2 (sha512)")),
        }
    }

    /// Returns the value of `hash_algorithm`.
    pub const fn number(self) -> u8 {
        match self {
            Self::Sha256 => 1,
            Self::Sha512 => 2,
        }
    }

    /// Returns the size of a hash in bytes.
    pub const fn bytes(self) -> usize {
        match self {
            Self::Sha256 => 32,
            Self::Sha512 => 64,
        }
    }

    /// Returns the name, as `fsverity` prints it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Sha256 => "sha256",
            Self::Sha512 => "sha512",
        }
    }

    /// Returns the function of a name.
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|hash| hash.name() == name)
    }

    /// Returns the hash of bytes, without a salt.
    pub fn of(self, bytes: &[u8]) -> Hash {
        let mut state = State::new(self);
        state.update(bytes);
        state.finish()
    }

    /// Size of a block of the function itself, to which a salt is padded.
    const fn salt_block_bytes(self) -> usize {
        match self {
            Self::Sha256 => 64,
            Self::Sha512 => 128,
        }
    }
}

impl BlockHasher {
    pub(super) fn new(hash: VerityHash, block_bytes: usize, salt: &[u8]) -> Self {
        let mut salted = State::new(hash);
        if !salt.is_empty() {
            let padded = salt.len().next_multiple_of(hash.salt_block_bytes());
            salted.update(salt);
            salted.update_zeros(padded.saturating_sub(salt.len()));
        }
        Self { salted, block_bytes }
    }

    /// Returns the hash of a block, with zeros behind its bytes if they are fewer.
    pub fn hash(&self, block: &[u8]) -> Hash {
        let mut state = self.salted.clone();
        state.update(block);
        state.update_zeros(self.block_bytes.saturating_sub(block.len()));
        state.finish()
    }
}

impl State {
    fn new(hash: VerityHash) -> Self {
        match hash {
            VerityHash::Sha256 => Self::Sha256(Sha256::new()),
            VerityHash::Sha512 => Self::Sha512(Sha512::new()),
        }
    }

    fn update(&mut self, bytes: &[u8]) {
        match self {
            Self::Sha256(state) => state.update(bytes),
            Self::Sha512(state) => state.update(bytes),
        }
    }

    fn update_zeros(&mut self, mut bytes: usize) {
        while bytes > 0 {
            let now = bytes.min(ZEROS.len());
            self.update(ZEROS.get(..now).unwrap_or(&ZEROS));
            bytes -= now;
        }
    }

    fn finish(self) -> Hash {
        let mut hash = [0; HASH_BYTES_MAX];
        let mut fill = |found: &[u8]| {
            hash.iter_mut().zip(found).for_each(|(to, from)| *to = *from);
        };
        match self {
            Self::Sha256(state) => fill(&state.finalize()),
            Self::Sha512(state) => fill(&state.finalize()),
        }
        hash
    }
}
