//! [`Content`]: the sparse bytes of a file, and the bytes that operations write.
//!
//! A digest does not distinguish holes from written zeroes. It holds, for each block of 4096 bytes
//! that is not all zero, a hash of each of its sectors.

use crate::random::mix;
use std::collections::BTreeMap;
use std::sync::Arc;

pub const BLOCK_BYTES: usize = 4096;

/// Bytes beyond the size are zero in every stored block.
#[derive(Clone, Debug, Default)]
pub struct Content {
    size: u64,
    blocks: BTreeMap<u64, Arc<[u8; BLOCK_BYTES]>>,
}

impl Content {
    pub fn size(&self) -> u64 {
        self.size
    }

    /// Returns the approximate size in memory, in bytes.
    pub fn stored_bytes(&self) -> u64 {
        self.blocks.len() as u64 * BLOCK_BYTES as u64
    }

    pub fn write(&mut self, offset: u64, memory: &[u8]) {
        let mut at = offset;
        let mut rest = memory;
        while !rest.is_empty() {
            let inside = usize::try_from(at % BLOCK_BYTES as u64).expect("below a block");
            let (part, after) = rest.split_at((BLOCK_BYTES - inside).min(rest.len()));
            let block = self.blocks.entry(at / BLOCK_BYTES as u64);
            let block = block.or_insert_with(|| Arc::new([0; BLOCK_BYTES]));
            Arc::make_mut(block)[inside..inside + part.len()].copy_from_slice(part);
            at += part.len() as u64;
            rest = after;
        }
        if !memory.is_empty() {
            self.size = self.size.max(at);
        }
    }

    /// Returns the bytes that a read returns: fewer than requested at the end of the file.
    pub fn read(&self, offset: u64, bytes: u64) -> Vec<u8> {
        let end = self.size.min(offset.saturating_add(bytes));
        let len = usize::try_from(end.saturating_sub(offset)).expect("fits memory");
        let mut memory = vec![0; len];
        let mut done = 0;
        while done < len {
            let at = offset + done as u64;
            let inside = usize::try_from(at % BLOCK_BYTES as u64).expect("below a block");
            let part = (BLOCK_BYTES - inside).min(len - done);
            if let Some(block) = self.blocks.get(&(at / BLOCK_BYTES as u64)) {
                memory[done..done + part].copy_from_slice(&block[inside..inside + part]);
            }
            done += part;
        }
        memory
    }

    pub fn zero(&mut self, offset: u64, bytes: u64) {
        let end = offset.saturating_add(bytes).min(self.size);
        if offset >= end {
            return;
        }
        let block_bytes = BLOCK_BYTES as u64;
        let (first, last) = (offset / block_bytes, (end - 1) / block_bytes);
        let numbers: Vec<u64> =
            self.blocks.range(first..=last).map(|(number, _)| *number).collect();
        for number in numbers {
            let start = offset.saturating_sub(number * block_bytes);
            let stop = (end - number * block_bytes).min(block_bytes);
            if start == 0 && stop == block_bytes {
                self.blocks.remove(&number);
            } else if let Some(block) = self.blocks.get_mut(&number) {
                let index = |at: u64| usize::try_from(at).expect("in a block");
                Arc::make_mut(block)[index(start)..index(stop)].fill(0);
            }
        }
    }

    pub fn resize(&mut self, size: u64) {
        if size < self.size {
            self.zero(size, self.size - size);
            self.blocks.split_off(&size.div_ceil(BLOCK_BYTES as u64));
        }
        self.size = size;
    }

    pub fn is_zero(&self, offset: u64, end: u64) -> bool {
        let end = end.min(self.size);
        if offset >= end {
            return true;
        }
        let block_bytes = BLOCK_BYTES as u64;
        self.blocks.range(offset / block_bytes..=(end - 1) / block_bytes).all(|(number, block)| {
            let start = offset.saturating_sub(number * block_bytes);
            let stop = (end - number * block_bytes).min(block_bytes);
            let index = |at: u64| usize::try_from(at).expect("in a block");
            block[index(start)..index(stop)].iter().all(|byte| *byte == 0)
        })
    }

    pub fn digest(&self) -> Digest {
        let mut digest = Digest::default();
        for (number, block) in &self.blocks {
            digest.add(*number, block.as_slice());
        }
        digest
    }
}

/// Hashes of the 512-byte sectors of a block; 0 for a sector of zeroes.
pub type Sectors = [u64; BLOCK_BYTES / SECTOR_BYTES];

/// The unit that a device writes atomically, in bytes.
pub const SECTOR_BYTES: usize = 512;

/// The hashes of the blocks that are not all zero, by ascending block number.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Digest(Vec<(u64, Sectors)>);

impl Digest {
    /// Adds the next block, which may be short at the end of the file.
    pub fn add(&mut self, number: u64, block: &[u8]) {
        if block.iter().all(|byte| *byte == 0) {
            return;
        }
        let mut whole = [0; BLOCK_BYTES];
        whole[..block.len()].copy_from_slice(block);
        let mut hashes = Sectors::default();
        for (sector, hash) in whole.chunks(SECTOR_BYTES).zip(&mut hashes) {
            if sector.iter().any(|byte| *byte != 0) {
                *hash = twox_hash::XxHash64::oneshot(number, sector);
            }
        }
        self.0.push((number, hashes));
    }

    /// Returns the hashes of a block.
    pub fn block(&self, number: u64) -> Sectors {
        let found = self.0.binary_search_by_key(&number, |(number, _)| *number);
        found.ok().and_then(|at| self.0.get(at)).map_or(Sectors::default(), |(_, hashes)| *hashes)
    }

    /// Returns whether a block is not all zero.
    pub fn has(&self, number: u64) -> bool {
        self.0.binary_search_by_key(&number, |(number, _)| *number).is_ok()
    }

    /// Returns the numbers of the blocks that are not all zero.
    pub fn numbers(&self) -> impl Iterator<Item = u64> {
        self.0.iter().map(|(number, _)| *number)
    }
}

/// Returns the hash of the bytes that a read returned.
pub fn read_digest(memory: &[u8]) -> u64 {
    twox_hash::XxHash64::oneshot(0, memory)
}

/// Returns the bytes that a write with this seed writes: zeroes for seed 0, otherwise noise of
/// which every fourth part is repetitive.
pub fn pattern(seed: u64, len: usize) -> Vec<u8> {
    if seed == 0 {
        return vec![0; len];
    }
    let mut memory = Vec::with_capacity(len + 8);
    let period = if seed.is_multiple_of(4) { 16 } else { u64::MAX };
    let mut word = 0u64;
    while memory.len() < len {
        memory.extend_from_slice(&mix(seed.wrapping_add(word % period) ^ 0xb1e55).to_le_bytes());
        word += 1;
    }
    memory.truncate(len);
    memory
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sparse_content_agrees_with_a_plain_vector() {
        let (mut sparse, mut plain) = (Content::default(), Vec::<u8>::new());
        let mut random = crate::random::Random::new(1);
        for _ in 0..3000 {
            let (at, len) = (random.index(40_000), random.index(9_000));
            match random.below(4) {
                0 => {
                    sparse.resize(at as u64);
                    plain.resize(at, 0);
                }
                1 => {
                    sparse.zero(at as u64, len as u64);
                    let end = plain.len().min(at + len);
                    if at < end {
                        plain[at..end].fill(0);
                    }
                }
                _ if len > 0 => {
                    let bytes = pattern(random.number(), len);
                    sparse.write(at as u64, &bytes);
                    plain.resize(plain.len().max(at + len), 0);
                    plain[at..at + len].copy_from_slice(&bytes);
                }
                _ => {}
            }
            assert_eq!(sparse.size(), plain.len() as u64);
            assert_eq!(sparse.read(0, u64::MAX), plain);
            let end = at + len;
            let all_zero = plain.get(at..end.min(plain.len())).unwrap_or_default();
            assert_eq!(sparse.is_zero(at as u64, end as u64), all_zero.iter().all(|b| *b == 0));
            let mut digest = Digest::default();
            plain.chunks(BLOCK_BYTES).zip(0..).for_each(|(block, n)| digest.add(n, block));
            assert_eq!(sparse.digest(), digest);
        }
    }
}
