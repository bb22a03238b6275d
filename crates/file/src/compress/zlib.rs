//! zlib extents: one deflate stream per extent after a two-byte zlib header.
//!
//! ```text
//! 0     2                                n          disk_bytes
//! | hdr | deflate blocks ... end | adler | padding |
//! ```
//!
//! 1. Output is at most `out.len()` bytes; a longer stream is not read further.
//! 2. A stream that ends early is followed by zeroes: the last extent of a file holds a partial
//!    sector.
//! 3. A stream that runs out of input before either is rejected.
//! 4. The Adler-32 checksum is not verified, as in the kernel: the checksum tree covers these
//!    bytes.

use butternut_format::refused::{Refused, require};
use flate2::{Compress, Compression, Decompress, FlushCompress, FlushDecompress, Status};

/// The compression method, in the low four bits of every zlib header.
const METHOD_DEFLATE: u8 = 8;
/// Largest window of a deflate stream, as the header's high four bits encode it.
const WINDOW_LOG_MAX: u8 = 7;
/// The header's flag of a preset dictionary, which no extent has.
const PRESET_DICTIONARY: u8 = 0x20;

/// A reusable inflater.
pub(super) struct Inflater(Decompress);

impl Inflater {
    pub(super) fn new() -> Self {
        Self(Decompress::new(false))
    }

    /// Fills `out` from the start of the stream in `input`; see the laws above.
    pub(super) fn fill(&mut self, input: &[u8], out: &mut [u8]) -> Result<(), Refused> {
        let deflate = body(input)?;
        self.0.reset(false);
        let mut consumed = 0;
        let mut produced = 0;
        while produced < out.len() {
            let rest_in = deflate.get(consumed..).unwrap_or_default();
            let rest_out = out.get_mut(produced..).unwrap_or_default();
            let (in_before, out_before) = (self.0.total_in(), self.0.total_out());
            let status = self
                .0
                .decompress(rest_in, rest_out, FlushDecompress::None)
                .map_err(|_| Refused::new("deflate block", "a damaged stream", "valid codes"))?;
            let consumed_now = count(self.0.total_in(), in_before);
            let produced_now = count(self.0.total_out(), out_before);
            consumed += consumed_now;
            produced += produced_now;
            if matches!(status, Status::StreamEnd) {
                break;
            }
            require(
                consumed_now + produced_now > 0,
                "deflate stream",
                "an early end of input",
                "an end mark",
            )?;
        }
        out.get_mut(produced..).unwrap_or_default().fill(0);
        Ok(())
    }
}

/// A reusable deflater.
pub(super) struct Deflater {
    stream: Compress,
    level: u32,
}

impl Deflater {
    pub(super) fn new(level: u32) -> Self {
        Self { stream: Compress::new(Compression::new(level), true), level }
    }

    pub(super) fn level(&self) -> u32 {
        self.level
    }

    /// Compresses all of `input` into the front of `out`, and returns the number of bytes; `None`
    /// where it does not fit.
    pub(super) fn encode(&mut self, input: &[u8], out: &mut [u8]) -> Option<usize> {
        self.stream.reset();
        let status = self.stream.compress(input, out, FlushCompress::Finish).ok()?;
        matches!(status, Status::StreamEnd).then(|| count(self.stream.total_out(), 0))
    }
}

/// The deflate blocks after a header that the kernel would accept.
fn body(input: &[u8]) -> Result<&[u8], Refused> {
    let Some((&[method, flags], deflate)) = input.split_first_chunk::<2>() else {
        return Err(Refused::new("zlib header", format!("{} bytes", input.len()), "2 bytes"));
    };
    require(method & 0xf == METHOD_DEFLATE, "zlib method", method & 0xf, METHOD_DEFLATE)?;
    require(method >> 4 <= WINDOW_LOG_MAX, "zlib window", method >> 4, "at most 7")?;
    require(flags & PRESET_DICTIONARY == 0, "zlib flags", flags, "no preset dictionary")?;
    let check = u16::from(method) * 256 + u16::from(flags);
    require(check.is_multiple_of(31), "zlib header", check, "a multiple of 31")?;
    Ok(deflate)
}

/// The growth of a running total, which counts bytes of slices, so it fits.
fn count(after: u64, before: u64) -> usize {
    usize::try_from(after.saturating_sub(before)).unwrap_or(0)
}
