//! Sums over sets: whether two sides of the volume say the same, without keeping either.
//!
//! A fact is hashed to 64 bits; one side adds, the other subtracts. What remains is zero where both
//! said the same, in any order and from any thread, and by chance once in 2^64 where they did not.
//! The hash multiplies and folds; it need not resist anybody who crafts names to fool it.

const FIRST: u64 = 0x9E37_79B9_7F4A_7C15;
const SECOND: u64 = 0xD6E8_FEB8_6659_FD93;
const THIRD: u64 = 0xA076_1D64_78BD_642F;

/// Two words as one.
#[expect(clippy::cast_possible_truncation, reason = "both halves of the product are used")]
pub(crate) fn mix(a: u64, b: u64) -> u64 {
    let product = u128::from(a ^ FIRST).wrapping_mul(u128::from(b ^ SECOND));
    product as u64 ^ (product >> 64) as u64
}

/// Some words as one; their order counts.
pub(crate) fn words<const N: usize>(words: [u64; N]) -> u64 {
    words.iter().fold(THIRD, |sum, word| mix(sum, *word).wrapping_add(*word))
}

/// A name as a word.
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
    fn names_and_words_that_differ_a_little_have_other_hashes() {
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
