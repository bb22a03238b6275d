//! Decompression: the bytes of one extent into the bytes of a file.
//!
//! Laws, for each of the three algorithms (and for none, a copy):
//!
//! 1. The output is exactly the slice given; nothing is allocated that the input sizes.
//! 2. It holds the first bytes of what the extent says, then zeroes where the extent ends early:
//!    the last extent of a file may hold a partial sector.
//! 3. Damaged or truncated input is refused by the field that betrays it; the output is then
//!    undefined.
//! 4. Decoders live with their thread and are used again: no allocation for each extent.
//!
//! Left to others: which extent, its checksums (`read`), where its bytes go (`plan`).

mod lzo;
mod zlib;
mod zstd;

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

thread_local! {
    static DECODERS: RefCell<Decoders> = RefCell::default();
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

fn copy(input: &[u8], out: &mut [u8]) {
    let bytes = input.len().min(out.len());
    let (head, tail) = out.split_at_mut(bytes);
    head.copy_from_slice(input.get(..bytes).unwrap_or_default());
    tail.fill(0);
}

#[cfg(test)]
mod tests;
