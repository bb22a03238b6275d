//! Whether data looks as if packing it would pay, judged by a sample of it.
//!
//! Laws:
//!
//! 1. The sample is a sixteenth of the data, spread over all of it.
//! 2. Data pays where the sample repeats itself, has few different bytes, has most of its weight on
//!    few of them, or has entropy clearly below that of noise. This is what the kernel looks at,
//!    with the limits that its documentation and sources name.
//! 3. A wrong answer costs time or space, nothing else.

/// Bytes taken at once, and how far apart.
const TAKEN: usize = 16;
const APART: usize = 256;
/// Fewer different bytes than this always pay.
const DISTINCT_FEW: usize = 64;
/// Bytes that together are nine tenths of the sample: so few pay, so many do not.
const CORE_FEW: usize = 64;
const CORE_MANY: usize = 200;
/// Entropy from here on does not pay, in percent of eight bits a byte.
const ENTROPY_MANY_PERCENT: f64 = 80.0;

/// Whether `data` is worth an attempt.
pub(super) fn is_promising(data: &[u8]) -> bool {
    let mut counts = [0_u32; 256];
    let mut total = 0;
    for taken in data.chunks(APART) {
        let taken = taken.get(..TAKEN).unwrap_or(taken);
        for byte in taken {
            counts[usize::from(*byte)] += 1;
        }
        total += taken.len();
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

/// Whether the second half of the sample is the first once more.
fn repeats(data: &[u8]) -> bool {
    let pieces = data.len() / APART;
    let half = pieces / 2;
    let piece = |number: usize| data.get(number * APART..number * APART + TAKEN);
    half > 0 && (0..half).all(|number| piece(number) == piece(number + half))
}

/// How many different bytes, the most frequent first, make nine tenths of the sample.
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

/// Shannon's entropy of the sample.
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
    fn noise_does_not_pay_and_text_does() {
        assert!(!is_promising(&noise(128 << 10)));
        assert!(!is_promising(&noise(16 << 10)));
        let text = b"Four score and seven years ago our fathers brought forth".repeat(400);
        assert!(is_promising(&text));
        assert!(is_promising(&vec![0; 128 << 10]));
    }

    #[test]
    fn noise_that_repeats_pays() {
        let half = noise(64 << 10);
        assert!(is_promising(&[half.clone(), half].concat()));
    }

    #[test]
    fn numbers_in_their_wide_form_pay() {
        let numbers = (0..16_384_u64).flat_map(|n| (n * 977).to_le_bytes());
        assert!(is_promising(&numbers.collect::<Vec<u8>>()));
    }

    #[test]
    fn noise_of_six_bits_pays_little_and_of_seven_and_a_half_not() {
        let six: Vec<u8> = noise(64 << 10).iter().map(|byte| byte & 0x3f).collect();
        assert!(is_promising(&six));
        let most: Vec<u8> = noise(64 << 10).iter().map(|byte| byte % 210).collect();
        assert!(!is_promising(&most));
    }
}
