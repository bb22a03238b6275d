//! Compression: the bytes of one extent into the bytes of a file, and back.
//!
//! Laws of unpacking, for each of the three algorithms (and for none, a copy):
//!
//! 1. The output is exactly the slice given; nothing is allocated that the input sizes.
//! 2. It holds the first bytes of what the extent says, then zeroes where the extent ends early:
//!    the last extent of a file may hold a partial sector.
//! 3. Damaged or truncated input is refused by the field that betrays it; the output is then
//!    undefined.
//!
//! Laws of packing:
//!
//! 4. What is packed is what the kernel reads: it unpacks to exactly the input, which is at most
//!    128 KiB.
//! 5. It has at most the bytes asked for, or is not there at all.
//!
//! For both: encoders and decoders live with their thread and are used again, so that no extent
//! makes one.
//!
//! Left to others: which extent, its checksums (`read`), where its bytes go (`plan`); what is worth
//! packing at all and what becomes of it (`pack`).

mod level;
mod lzo;
mod lzo_match;
mod sample;
mod zlib;
mod zstd;

pub use level::{BadPacker, Packer};

use butternut_format::file_extent::Compression;
use butternut_format::refused::Refused;
use std::cell::RefCell;

/// Where the packed bytes come from. It matters to LZO, whose frames differ.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// Whole sectors of a data extent, padding included.
    Disk,
    /// The tail of an inline extent item: exactly the packed bytes.
    Inline,
}

/// The decoders of one thread, made when first needed.
#[derive(Default)]
struct Decoders {
    zlib: Option<zlib::Inflater>,
    lzo: Option<lzo::Segments>,
    zstd: Option<zstd::Frames>,
}

/// The encoders of one thread, for the level that was asked for last.
#[derive(Default)]
struct Encoders {
    zlib: Option<zlib::Deflater>,
    lzo: Option<lzo_match::Matcher>,
    zstd: Option<zstd::Packer>,
}

thread_local! {
    static DECODERS: RefCell<Decoders> = RefCell::default();
    static ENCODERS: RefCell<Encoders> = RefCell::default();
}

/// Fills `out` with the first bytes that `input` holds; see the laws above.
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

/// Packs `input` into at most `bytes_max` bytes, the whole of `out`. Says whether it fits; where it
/// does not, `out` is undefined.
pub fn compress(packer: Packer, input: &[u8], bytes_max: usize, out: &mut Vec<u8>) -> bool {
    ENCODERS.with_borrow_mut(|encoders| encoders.pack(packer, input, bytes_max, out).is_some())
}

impl Encoders {
    fn pack(
        &mut self,
        packer: Packer,
        input: &[u8],
        bytes_max: usize,
        out: &mut Vec<u8>,
    ) -> Option<()> {
        out.clear();
        let bytes = match packer.compression() {
            Compression::None => return None,
            Compression::Zlib => {
                let level = packer.level().unsigned_abs();
                let zlib = self.zlib.take().filter(|zlib| zlib.level() == level);
                let mut zlib = zlib.unwrap_or_else(|| zlib::Deflater::new(level));
                out.resize(bytes_max, 0);
                let bytes = zlib.pack(input, out)?;
                // One that did not come to its end does not begin anew: at level 1 its reset
                // forgets that a block is open.
                self.zlib = Some(zlib);
                bytes
            }
            Compression::Lzo => {
                let matcher = self.lzo.get_or_insert_with(lzo_match::Matcher::new);
                out.reserve(bytes_max);
                let is_whole = lzo::pack(matcher, input, bytes_max, out);
                is_whole.then_some(out.len())?
            }
            Compression::Zstd => {
                let zstd = self.zstd.take().filter(|zstd| zstd.level() == packer.level());
                let zstd = match zstd {
                    Some(zstd) => zstd,
                    None => zstd::Packer::new(packer.level())?,
                };
                out.resize(bytes_max, 0);
                self.zstd.insert(zstd).pack(input, out)?
            }
        };
        out.truncate(bytes);
        Some(())
    }
}

/// Whether a sample of `input` says that packing it may pay.
pub(crate) fn is_promising(input: &[u8]) -> bool {
    sample::is_promising(input)
}

fn copy(input: &[u8], out: &mut [u8]) {
    let bytes = input.len().min(out.len());
    let (head, tail) = out.split_at_mut(bytes);
    head.copy_from_slice(input.get(..bytes).unwrap_or_default());
    tail.fill(0);
}

#[cfg(test)]
mod tests;
