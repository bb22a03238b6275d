//! Compression and decompression of the data of one extent.
//!
//! Laws of decompression, for each of the three algorithms (and for none, a copy):
//!
//! 1. The output is exactly the slice given; no allocation depends on a length in the input.
//! 2. It holds the first bytes of the decompressed data, then zeroes where the data ends early: the
//!    last extent of a file may hold a partial sector.
//! 3. Damaged or truncated input is rejected with the field that is invalid; the output is then
//!    undefined.
//!
//! Laws of compression:
//!
//! 4. The kernel can read the output: it decompresses to exactly the input, which is at most 128
//!    KiB.
//! 5. The output has at most the given number of bytes, or there is none.
//!
//! Encoders and decoders are kept by each thread and reused, so that no extent creates one.
//!
//! Left to others: which extent, and its checksums (`read`); where its bytes go (`plan`); whether a
//! file is compressed at all (`writeback::compress`).

mod level;
mod lzo;
mod lzo_match;
mod sample;
mod zlib;
mod zstd;

pub use level::{BadCompressor, Compressor};

use butternut_format::file_extent::Compression;
use butternut_format::refused::Refused;
use std::cell::RefCell;

/// How a volume compresses data that is written (mount options `compress` and `compress-force`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Compress {
    /// The algorithm of files without a property, and its level.
    pub compressor: Compressor,
    /// Compresses every file, whatever its flags and samples of its data say.
    pub is_forced: bool,
}

/// Where the compressed bytes come from. LZO frames the two differently.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// Whole sectors of a data extent, padding included.
    Disk,
    /// The tail of an inline extent item: exactly the compressed bytes.
    Inline,
}

/// The decoders of one thread, created when first needed.
#[derive(Default)]
struct Decoders {
    zlib: Option<zlib::Inflater>,
    lzo: Option<lzo::Segments>,
    zstd: Option<zstd::Frames>,
}

/// The encoders of one thread, for the last level used.
#[derive(Default)]
struct Encoders {
    zlib: Option<zlib::Deflater>,
    lzo: Option<lzo_match::Matcher>,
    zstd: Option<zstd::Compressor>,
}

thread_local! {
    static DECODERS: RefCell<Decoders> = RefCell::default();
    static ENCODERS: RefCell<Encoders> = RefCell::default();
}

/// Fills `out` with the first bytes of the decompressed `input`; see the laws above.
///
/// # Errors
/// The input is damaged or truncated.
pub fn decompress(
    compression: Compression,
    origin: Origin,
    input: &[u8],
    out: &mut [u8],
) -> Result<(), Refused> {
    DECODERS.with_borrow_mut(|decoders| match compression {
        Compression::None => {
            copy(input, out);
            Ok(())
        }
        Compression::Zlib => decoders.zlib.get_or_insert_with(zlib::Inflater::new).fill(input, out),
        Compression::Lzo => {
            let lzo = decoders.lzo.get_or_insert_with(lzo::Segments::new);
            match origin {
                Origin::Disk => lzo.fill(input, out),
                Origin::Inline => lzo.fill_inline(input, out),
            }
        }
        Compression::Zstd => match &mut decoders.zstd {
            Some(zstd) => zstd.fill(input, out),
            none => none.insert(zstd::Frames::new()?).fill(input, out),
        },
    })
}

/// Compresses `input` into at most `bytes_max` bytes, which replace the contents of `out`. Returns
/// whether it fits; otherwise `out` is undefined.
pub fn compress(compressor: Compressor, input: &[u8], bytes_max: usize, out: &mut Vec<u8>) -> bool {
    ENCODERS
        .with_borrow_mut(|encoders| encoders.encode(compressor, input, bytes_max, out).is_some())
}

impl Encoders {
    fn encode(
        &mut self,
        compressor: Compressor,
        input: &[u8],
        bytes_max: usize,
        out: &mut Vec<u8>,
    ) -> Option<()> {
        out.clear();
        let bytes = match compressor.compression() {
            Compression::None => return None,
            Compression::Zlib => {
                let level = compressor.level().unsigned_abs();
                let zlib = self.zlib.take().filter(|zlib| zlib.level() == level);
                let mut zlib = zlib.unwrap_or_else(|| zlib::Deflater::new(level));
                out.resize(bytes_max, 0);
                let bytes = zlib.encode(input, out)?;
                // An encoder that did not finish is not reused: at level 1 its reset keeps a block
                // open.
                self.zlib = Some(zlib);
                bytes
            }
            Compression::Lzo => {
                let matcher = self.lzo.get_or_insert_with(lzo_match::Matcher::new);
                out.reserve(bytes_max);
                let is_whole = lzo::encode(matcher, input, bytes_max, out);
                is_whole.then_some(out.len())?
            }
            Compression::Zstd => {
                let zstd = self.zstd.take().filter(|zstd| zstd.level() == compressor.level());
                let zstd = match zstd {
                    Some(zstd) => zstd,
                    None => zstd::Compressor::new(compressor.level())?,
                };
                out.resize(bytes_max, 0);
                self.zstd.insert(zstd).encode(input, out)?
            }
        };
        // The caller has space for no more than that (law 5).
        assert!(bytes <= bytes_max, "{bytes} bytes were compressed, at most {bytes_max} wanted");
        out.truncate(bytes);
        Some(())
    }
}

/// Whether a sample of `input` looks compressible.
pub(crate) fn looks_compressible(input: &[u8]) -> bool {
    sample::looks_compressible(input)
}

fn copy(input: &[u8], out: &mut [u8]) {
    let bytes = input.len().min(out.len());
    let (head, tail) = out.split_at_mut(bytes);
    head.copy_from_slice(input.get(..bytes).unwrap_or_default());
    tail.fill(0);
}

#[cfg(test)]
mod tests;
