//! Heuristic: whether data looks compressible, judged by a sample of it.
//!
//! Laws:
//!
//! 1. The sample is a sixteenth of the data, spread over all of it.
//! 2. Data looks compressible where the sample repeats itself, has few distinct bytes, is dominated
//!    by few of them, or has entropy clearly below that of noise. These are the kernel's criteria,
//!    with the limits that its documentation and sources name.
//! 3. A wrong answer costs time or space, nothing else.

/// Bytes of one part of the sample, and the distance between the parts.
const PART_BYTES: usize = 16;
const PART_DISTANCE: usize = 256;
/// Data with fewer distinct bytes than this is compressible.
const DISTINCT_FEW: usize = 64;
/// Number of distinct bytes that make up nine tenths of the sample: up to the first limit data is
/// compressible, from the second on it is not.
const CORE_FEW: usize = 64;
const CORE_MANY: usize = 200;
/// Entropy from which on data is not compressible, in percent of eight bits a byte.
const ENTROPY_MANY_PERCENT: f64 = 80.0;

/// Whether `data` looks compressible.
pub(super) fn looks_compressible(data: &[u8]) -> bool {
    let mut counts = [0_u32; 256];
    let mut total = 0;
    for part in data.chunks(PART_DISTANCE) {
        let part = part.get(..PART_BYTES).unwrap_or(part);
        for byte in part {
            counts[usize::from(*byte)] += 1;
        }
        total += part.len();
    }
    if repeats(data) {
        return true;
    }
    if counts.iter().filter(|count| **count > 0).count() < DISTINCT_FEW {
        return true;
    }
    let core = core(counts, total);
    core <= CORE_FEW || core < CORE_MANY && entropy_percent(&counts, total) < ENTROPY_MANY_PERCENT
}

/// Whether the second half of the sample equals the first.
fn repeats(data: &[u8]) -> bool {
    let parts = data.len() / PART_DISTANCE;
    let half = parts / 2;
    let part =
        |number: usize| data.get(number * PART_DISTANCE..number * PART_DISTANCE + PART_BYTES);
    half > 0 && (0..half).all(|number| part(number) == part(number + half))
}

/// How many distinct bytes, the most frequent first, make up nine tenths of the sample.
fn core(mut counts: [u32; 256], total: usize) -> usize {
    counts.sort_unstable_by(|a, b| b.cmp(a));
    let mut left = total * 9 / 10;
    counts
        .iter()
        .take_while(|count| {
            let goes_on = left > 0;
            left = left.saturating_sub(**count as usize);
            goes_on
        })
        .count()
}

/// Shannon entropy of the sample, in percent of eight bits a byte.
#[expect(clippy::cast_precision_loss, reason = "a sample has a few thousand bytes")]
fn entropy_percent(counts: &[u32; 256], total: usize) -> f64 {
    let total = total as f64;
    let bits: f64 = counts
        .iter()
        .filter(|count| **count > 0)
        .map(|count| {
            let share = f64::from(*count) / total;
            -share * share.log2()
        })
        .sum();
    bits / 8.0 * 100.0
}

#[cfg(test)]
mod tests {
    use super::*;

    fn noise(bytes: usize) -> Vec<u8> {
        let mut state = 0x9e37_79b9_7f4a_7c15_u64;
        let mut next = || {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state.to_le_bytes()[4]
        };
        (0..bytes).map(|_| next()).collect()
    }

    #[test]
    fn noise_is_not_compressible_and_text_is() {
        assert!(!looks_compressible(&noise(128 << 10)));
        assert!(!looks_compressible(&noise(16 << 10)));
        let text = b"Four score and seven years ago our fathers brought forth".repeat(400);
        assert!(looks_compressible(&text));
        assert!(looks_compressible(&vec![0; 128 << 10]));
    }

    #[test]
    fn repeated_noise_is_compressible() {
        let half = noise(64 << 10);
        assert!(looks_compressible(&[half.clone(), half].concat()));
    }

    #[test]
    fn wide_integers_are_compressible() {
        let numbers = (0..16_384_u64).flat_map(|n| (n * 977).to_le_bytes());
        assert!(looks_compressible(&numbers.collect::<Vec<u8>>()));
    }

    #[test]
    fn noise_of_six_bits_is_compressible_and_of_seven_and_a_half_is_not() {
        let six: Vec<u8> = noise(64 << 10).iter().map(|byte| byte & 0x3f).collect();
        assert!(looks_compressible(&six));
        let most: Vec<u8> = noise(64 << 10).iter().map(|byte| byte % 210).collect();
        assert!(!looks_compressible(&most));
    }
}
