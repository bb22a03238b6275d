//! LZO1X encoder: one sector as literals and copies of earlier bytes.
//!
//! ```text
//! stream   first literals | (copy, literals)* | 11 00 00
//! copy     LLLDDDss DDDDDDDD              3 to 8 bytes, at most 2 KiB back
//!          001LLLLL (00* LL) DDDDDDss DDDDDDDD     any length, at most 16 KiB back
//! literals up to three: their number is in `ss` of the copy before them
//!          0000LLLL (00* LL)              more
//! ```
//!
//! Laws:
//!
//! 1. The output is a stream that every LZO1X decoder accepts; it ends with the end mark.
//! 2. A position is looked up by the four bytes there, and only one candidate is tried: speed
//!    matters more than size. Where no match was found for long, fewer positions are looked up.

/// A sector has so few bytes that every distance fits the second kind of copy.
const INPUT_BYTES_MAX: usize = 4096;
const TABLE_LOG: u32 = 12;
/// The shortest copy that is searched for.
const MATCH_BYTES_MIN: usize = 4;
/// Longest length and distance of the first kind of copy.
const NEAR_BYTES_MAX: usize = 8;
const NEAR_DISTANCE_MAX: usize = 2048;
/// Longest length of the second kind of copy that fits its first byte.
const FAR_BYTES_MAX: usize = 33;
const FAR_MARK: usize = 0x20;
/// The step grows by one for each 2^5 bytes without a match.
const STEP_LOG: usize = 5;
const END_MARK: [u8; 3] = [0x11, 0, 0];

/// Last position of four bytes, by their hash; 0 where there is none, or it is the start.
pub(super) struct Matcher(Box<[u16; 1 << TABLE_LOG]>);

impl Matcher {
    pub(super) fn new() -> Self {
        Self(Box::new([0; 1 << TABLE_LOG]))
    }

    /// Appends the stream of `input`, which is not empty and at most a sector, to `out`.
    pub(super) fn append(&mut self, input: &[u8], out: &mut Vec<u8>) {
        debug_assert!(!input.is_empty() && input.len() <= INPUT_BYTES_MAX, "a sector at most");
        self.0.fill(0);
        let start = out.len();
        let mut literals = 0;
        let mut at = 1;
        while let Some(here) = four(input, at) {
            let slot = slot(here);
            let seen = usize::from(self.0[slot]);
            self.0[slot] = u16::try_from(at).unwrap_or(0);
            if four(input, seen) != Some(here) {
                at += 1 + ((at - literals) >> STEP_LOG);
                continue;
            }
            let bytes = MATCH_BYTES_MIN
                + common(&input[seen + MATCH_BYTES_MIN..], &input[at + MATCH_BYTES_MIN..]);
            put_literals(&input[literals..at], start, out);
            put_copy(bytes, at - seen, out);
            at += bytes;
            literals = at;
        }
        put_literals(&input[literals..], start, out);
        out.extend_from_slice(&END_MARK);
    }
}

/// The four bytes at a position, if there are as many.
fn four(input: &[u8], at: usize) -> Option<u32> {
    input.get(at..at + MATCH_BYTES_MIN)?.first_chunk().map(|bytes| u32::from_le_bytes(*bytes))
}

fn slot(four: u32) -> usize {
    /// Spreads the bytes over the high bits (2^32 divided by the golden ratio).
    const SPREAD: u32 = 0x9e37_79b1;
    (four.wrapping_mul(SPREAD) >> (u32::BITS - TABLE_LOG)) as usize
}

/// Length of the common prefix.
fn common(seen: &[u8], here: &[u8]) -> usize {
    const STEP: usize = 8;
    let mut bytes = 0;
    while let (Some(a), Some(b)) = (
        seen.get(bytes..).and_then(|rest| rest.first_chunk::<STEP>()),
        here.get(bytes..).and_then(|rest| rest.first_chunk::<STEP>()),
    ) {
        let differs = u64::from_le_bytes(*a) ^ u64::from_le_bytes(*b);
        if differs != 0 {
            return bytes + differs.trailing_zeros() as usize / 8;
        }
        bytes += STEP;
    }
    let rest = seen.iter().zip(here).skip(bytes);
    bytes + rest.take_while(|(a, b)| a == b).count()
}

/// Appends literals, after a copy or at the `start` of the stream.
fn put_literals(bytes: &[u8], start: usize, out: &mut Vec<u8>) {
    /// Added to the number of the first literals of a stream, where it is small enough.
    const FIRST: usize = 17;
    const FIRST_MAX: usize = 238;
    /// Up to `FEW_MAX` literals are counted in the copy before them, up to `SHORT_MAX` in one byte.
    const FEW_MAX: usize = 3;
    const SHORT_MAX: usize = 18;
    let count = bytes.len();
    if count == 0 {
        return;
    }
    if out.len() == start && count <= FIRST_MAX {
        out.push(low(FIRST + count));
    } else if count <= FEW_MAX {
        // The second last byte of either kind of copy has two bits for the number.
        let count_at = out.len() - 2;
        out[count_at] |= low(count);
    } else if count <= SHORT_MAX {
        out.push(low(count - FEW_MAX));
    } else {
        out.push(0);
        put_rest(count - SHORT_MAX, out);
    }
    out.extend_from_slice(bytes);
}

fn put_copy(bytes: usize, distance: usize, out: &mut Vec<u8>) {
    let back = distance - 1;
    if bytes <= NEAR_BYTES_MAX && distance <= NEAR_DISTANCE_MAX {
        out.push(low((bytes - 1) << 5 | (back & 7) << 2));
        out.push(low(back >> 3));
        return;
    }
    if bytes <= FAR_BYTES_MAX {
        out.push(low(FAR_MARK | (bytes - 2)));
    } else {
        out.push(low(FAR_MARK));
        put_rest(bytes - FAR_BYTES_MAX, out);
    }
    out.push(low((back & 0x3f) << 2));
    out.push(low(back >> 6));
}

/// The rest of a length: a zero for each 255, then the remainder, which is not zero.
fn put_rest(mut rest: usize, out: &mut Vec<u8>) {
    while rest > 255 {
        out.push(0);
        rest -= 255;
    }
    out.push(low(rest));
}

/// The low byte of a number.
fn low(number: usize) -> u8 {
    number.to_le_bytes()[0]
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn encoded(input: &[u8]) -> Vec<u8> {
        let mut out = Vec::new();
        Matcher::new().append(input, &mut out);
        out
    }

    fn decoded(stream: &[u8], bytes: usize) -> Vec<u8> {
        let mut out = vec![0xAA; bytes];
        let made = lzokay::decompress::decompress(stream, &mut out).unwrap();
        out.truncate(made);
        out
    }

    #[test]
    fn runs_of_every_length_round_trip() {
        // Noise of each length, then a copy of each length, near and far.
        let noise: Vec<u8> =
            (0..4096_u32).map(|n| n.wrapping_mul(2_654_435_761).to_le_bytes()[3]).collect();
        for literals in (1..40).chain([237, 238, 239, 240, 273, 274, 527, 528, 529, 2100]) {
            for copied in [3, 4, 5, 8, 9, 33, 34, 35, 287, 288, 289, 290, 600] {
                for rest in [0, 1, 3, 4, 18, 19, 20] {
                    let mut input = noise[..literals].to_vec();
                    let from = &noise[..copied.min(literals)];
                    input.extend(from.iter().cycle().take(copied));
                    input.extend(&noise[noise.len() - rest..]);
                    input.truncate(INPUT_BYTES_MAX);
                    assert_eq!(
                        decoded(&encoded(&input), input.len()),
                        input,
                        "{literals} {copied}"
                    );
                }
            }
        }
    }

    #[test]
    fn repetitive_data_is_small() {
        assert!(encoded(&[0; 4096]).len() < 40);
        let text = b"the quick brown fox jumps over the lazy dog. ".repeat(90);
        assert!(encoded(&text[..4000]).len() < 120);
    }

    proptest! {
        #[test]
        fn everything_round_trips(
            pieces in prop::collection::vec((0..8_u8, 1..300_usize), 1..40),
            salt in any::<u32>(),
        ) {
            let mut input = Vec::new();
            for (kind, bytes) in pieces {
                for n in 0..bytes {
                    let noise = (salt ^ u32::try_from(input.len()).unwrap())
                        .wrapping_mul(2_246_822_519).to_le_bytes()[2];
                    let few = if n % 5 == 0 { noise } else { noise & 3 };
                    input.push(if kind < 4 { kind } else { few });
                }
            }
            input.truncate(INPUT_BYTES_MAX);
            prop_assert_eq!(decoded(&encoded(&input), input.len()), input);
        }
    }
}
