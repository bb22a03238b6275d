//! Seeded bytes: the same content on every machine, of every compressibility.

/// A small generator (splitmix64), sufficient for file content.
#[derive(Debug, Clone)]
pub struct Seeded(u64);

/// How well the content compresses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Texture {
    /// Does not compress.
    Noise,
    /// Compresses well.
    Text,
    /// Alternates between stretches of 10,000 bytes that compress and that do not.
    Mixed,
    /// One repeated byte: compresses to almost nothing.
    Flat,
}

const WORDS: [&str; 16] = [
    "extent",
    "chunk",
    "leaf",
    "the",
    "of",
    "a",
    "reference",
    "names",
    "block",
    "group",
    "and",
    "copies",
    "on",
    "write",
    "tree\n",
    "42",
];

impl Seeded {
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub fn word(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// Returns a number below `limit`, which must not be zero.
    pub fn below(&mut self, limit: usize) -> usize {
        let limit = u64::try_from(limit).unwrap_or(u64::MAX).max(1);
        usize::try_from(self.word() % limit).unwrap_or(0)
    }

    pub fn shuffle<T>(&mut self, items: &mut [T]) {
        for last in (1..items.len()).rev() {
            items.swap(last, self.below(last + 1));
        }
    }

    pub fn fill(&mut self, texture: Texture, len: usize) -> Vec<u8> {
        let mut out = Vec::with_capacity(len + 16);
        match texture {
            Texture::Noise => self.noise(&mut out, len),
            Texture::Text => self.text(&mut out, len),
            Texture::Flat => {
                let byte = self.word().to_le_bytes()[0];
                out.resize(len, byte);
            }
            Texture::Mixed => {
                while out.len() < len {
                    let until = out.len() + 10_000;
                    if self.word().is_multiple_of(2) {
                        self.noise(&mut out, until);
                    } else {
                        self.text(&mut out, until);
                    }
                }
            }
        }
        out.truncate(len);
        out
    }

    fn noise(&mut self, out: &mut Vec<u8>, until: usize) {
        while out.len() < until {
            let word = self.word();
            out.extend_from_slice(&word.to_le_bytes());
        }
    }

    fn text(&mut self, out: &mut Vec<u8>, until: usize) {
        while out.len() < until {
            out.extend_from_slice(WORDS[self.below(WORDS.len())].as_bytes());
            out.push(b' ');
        }
    }
}

/// Returns `len` bytes from `seed`.
pub fn bytes(seed: u64, texture: Texture, len: usize) -> Vec<u8> {
    Seeded::new(seed).fill(texture, len)
}

/// Returns sectors that contain their file and position, so that rot tests find them by content.
pub fn stamped(file: u64, sectors: u64) -> Vec<u8> {
    (0..sectors).flat_map(|sector| stamped_sector(file, sector)).collect()
}

pub const STAMP: &[u8; 16] = b"butternut sector";

/// Returns one sector: the stamp, the file, the sector's position, and noise from both.
pub fn stamped_sector(file: u64, sector: u64) -> Vec<u8> {
    let mut bytes = STAMP.to_vec();
    bytes.extend_from_slice(format!("{file:08x}{sector:08x}").as_bytes());
    Seeded::new(file << 32 | sector).noise(&mut bytes, 4096);
    bytes.truncate(4096);
    bytes
}
