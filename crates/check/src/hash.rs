//! Hashes for comparing two sets without storing either.
//!
//! Each element is hashed to 64 bits. One side adds the hashes, the other subtracts them. The
//! result is zero if the sets are equal, in any order and from any thread. If they differ it is
//! zero with a probability of 2^-64. The hash (multiply and fold) does not resist names that were
//! crafted to collide.

const FIRST: u64 = 0x9E37_79B9_7F4A_7C15;
const SECOND: u64 = 0xD6E8_FEB8_6659_FD93;
const THIRD: u64 = 0xA076_1D64_78BD_642F;

/// Returns the hash of two words.
#[expect(clippy::cast_possible_truncation, reason = "both halves of the product are used")]
pub(crate) fn mix(a: u64, b: u64) -> u64 {
    let product = u128::from(a ^ FIRST).wrapping_mul(u128::from(b ^ SECOND));
    product as u64 ^ (product >> 64) as u64
}

/// Returns the hash of several words, which depends on their order.
pub(crate) fn words<const N: usize>(words: [u64; N]) -> u64 {
    words.iter().fold(THIRD, |sum, word| mix(sum, *word).wrapping_add(*word))
}

/// Returns the hash of a name.
pub(crate) fn name(bytes: &[u8]) -> u64 {
    let (whole, rest) = bytes.as_chunks::<8>();
    let mut sum = u64::try_from(bytes.len()).unwrap_or_default() ^ THIRD;
    for word in whole {
        sum = mix(sum, u64::from_le_bytes(*word));
    }
    let mut last = [0; 8];
    for (to, from) in last.iter_mut().zip(rest) {
        *to = *from;
    }
    mix(sum, u64::from_le_bytes(last))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn similar_names_and_words_have_different_hashes() {
        let mut seen = HashSet::new();
        for length in 0..40 {
            for at in 0..length.max(1) {
                let mut bytes = vec![b'a'; length];
                if let Some(byte) = bytes.get_mut(at) {
                    *byte = b'b';
                }
                assert!(seen.insert(name(&bytes)), "{length} {at}");
            }
        }
        for a in 0..100 {
            for b in 0..100 {
                assert!(seen.insert(words([a, b])), "{a} {b}");
            }
        }
    }
}
