//! LZO extents: segments of at most one sector of data each, preceded by their lengths.
//!
//! ```text
//! 0       4       8             8+s0    12+s0
//! | total | s0    | segment 0   | s1    | segment 1 ...       all lengths little-endian u32
//! ```
//!
//! 1. `total` counts itself, every header, every segment and the padding of law 2.
//! 2. A segment header never crosses a sector boundary: fewer than four bytes before one are
//!    padding. Segments may cross sector boundaries.
//! 3. A segment decompresses to at most one sector; the segments' outputs follow one another.
//! 4. Output that ends early is followed by zeroes. Output is never more than `out.len()` bytes.
//! 5. An inline extent has exactly one segment, and `total` is its whole length.
//!
//! The encoder writes the padding of law 2 after the last segment too, and counts it, as the
//! kernel does.

use super::lzo_match::Matcher;
use butternut_format::refused::{Refused, require};

const SECTOR: usize = 4096;
const LENGTH_BYTES: usize = 4;
/// The longest segment of an incompressible sector: a header byte per sixteen bytes, and slack.
const SEGMENT_BYTES_MAX: usize = SECTOR + SECTOR / 16 + 64 + 3;

/// Buffer for the last segment, of which only the head is needed.
pub(super) struct Segments(Box<[u8; SECTOR]>);

impl Segments {
    pub(super) fn new() -> Self {
        Self(Box::new([0; SECTOR]))
    }

    /// Fills `out` from the start of a regular extent.
    pub(super) fn fill(&mut self, input: &[u8], out: &mut [u8]) -> Result<(), Refused> {
        let total = length_at(input, 0)?;
        require(total <= input.len(), "lzo total", total, at_most(input.len()))?;
        require(
            total.next_multiple_of(SECTOR) >= input.len(),
            "lzo total",
            total,
            format_args!("the last of {} bytes' sectors", input.len()),
        )?;
        let mut at = LENGTH_BYTES;
        let mut produced = 0;
        while at < total && produced < out.len() {
            at = skip_gap(at);
            if at >= total {
                break;
            }
            let segment = segment_at(input, at)?;
            at += LENGTH_BYTES + segment.len();
            produced += self.segment(segment, out.get_mut(produced..).unwrap_or_default(), at)?;
        }
        out.get_mut(produced..).unwrap_or_default().fill(0);
        Ok(())
    }

    /// Fills `out` from an inline extent (law 5).
    pub(super) fn fill_inline(&mut self, input: &[u8], out: &mut [u8]) -> Result<(), Refused> {
        let total = length_at(input, 0)?;
        require(total == input.len(), "lzo total", total, input.len())?;
        let segment = segment_at(input, LENGTH_BYTES)?;
        let want = input.len() - 2 * LENGTH_BYTES;
        require(segment.len() == want, "lzo segment length", segment.len(), want)?;
        let produced = self.segment(segment, out, input.len())?;
        out.get_mut(produced..).unwrap_or_default().fill(0);
        Ok(())
    }

    /// Decodes one segment that ends at `end` into the front of `out`.
    fn segment(&mut self, segment: &[u8], out: &mut [u8], end: usize) -> Result<usize, Refused> {
        let refused = |error: lzokay::Error| {
            Refused::new("lzo segment", format_args!("{error:?}"), "a whole valid stream")
                .at(format_args!("segment ending at byte {end}"))
        };
        if let Some(sector) = out.get_mut(..SECTOR) {
            return lzokay::decompress::decompress(segment, sector).map_err(refused);
        }
        let produced = lzokay::decompress::decompress(segment, &mut *self.0).map_err(refused)?;
        let wanted = produced.min(out.len());
        if let (Some(out), Some(head)) = (out.get_mut(..wanted), self.0.get(..wanted)) {
            out.copy_from_slice(head);
        }
        Ok(wanted)
    }
}

/// Appends all of `input` as an extent (laws 1 to 3), unless that takes more than `bytes_max`
/// bytes. Returns whether it did.
pub(super) fn encode(
    matcher: &mut Matcher,
    input: &[u8],
    bytes_max: usize,
    out: &mut Vec<u8>,
) -> bool {
    out.extend_from_slice(&[0; LENGTH_BYTES]);
    for sector in input.chunks(SECTOR) {
        let header = out.len();
        out.extend_from_slice(&[0; LENGTH_BYTES]);
        matcher.append(sector, out);
        let segment = out.len() - header - LENGTH_BYTES;
        put_length(out, header, segment);
        if input.len() > SECTOR {
            out.resize(skip_gap(out.len()), 0);
        }
        if out.len() > bytes_max {
            return false;
        }
    }
    let total = out.len();
    put_length(out, 0, total);
    true
}

/// Writes the length at `at`, which must be inside `out`.
fn put_length(out: &mut [u8], at: usize, bytes: usize) {
    let bytes = u32::try_from(bytes).unwrap_or(u32::MAX);
    out[at..at + LENGTH_BYTES].copy_from_slice(&bytes.to_le_bytes());
}

/// Where the next segment header starts (law 2).
fn skip_gap(at: usize) -> usize {
    let left = SECTOR - at % SECTOR;
    if left < LENGTH_BYTES { at + left } else { at }
}

/// The segment whose header is at `at`.
fn segment_at(input: &[u8], at: usize) -> Result<&[u8], Refused> {
    let bytes = length_at(input, at)?;
    let place = |refused: Refused| refused.at(format_args!("segment at byte {at}"));
    require(bytes <= SEGMENT_BYTES_MAX, "lzo segment length", bytes, at_most(SEGMENT_BYTES_MAX))
        .map_err(place)?;
    let start = at + LENGTH_BYTES;
    input.get(start..start + bytes).ok_or_else(|| {
        let left = input.len().saturating_sub(start);
        place(Refused::new("lzo segment length", bytes, at_most(left)))
    })
}

/// The little-endian length at `at`.
fn length_at(input: &[u8], at: usize) -> Result<usize, Refused> {
    input
        .get(at..)
        .and_then(|rest| rest.first_chunk::<LENGTH_BYTES>())
        .and_then(|bytes| usize::try_from(u32::from_le_bytes(*bytes)).ok())
        .ok_or_else(|| Refused::new("lzo length", format_args!("none at byte {at}"), "four bytes"))
}

fn at_most(bytes: usize) -> String {
    format!("at most {bytes}")
}
