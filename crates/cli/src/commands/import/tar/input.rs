//! The bytes of an archive: from a file or stdin, decompressed if they are compressed with gzip or
//! zstd. Zeros behind the data of gzip, as tapes have them, are ignored, as gzip does. The other
//! compressions are recognized, and refused with the command that decompresses them.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Cursor, ErrorKind, IsTerminal, Read};
use std::path::Path;

use flate2::bufread::GzDecoder;

use crate::failure::Failure;
use crate::output::text;

/// The first bytes of compressed data, and the program that decompresses it.
const REFUSED: [(&[u8], &str, &str); 5] = [
    (b"\xfd7zXZ\0", "xz", "xz -dc"),
    (b"BZh", "bzip2", "bzip2 -dc"),
    (b"LZIP", "lzip", "lzip -dc"),
    (b"\x04\x22\x4d\x18", "lz4", "lz4 -dc"),
    (b"\x1f\x9d", "compress", "zcat"),
];
const GZIP: &[u8] = b"\x1f\x8b";
const ZSTD: &[u8] = b"\x28\xb5\x2f\xfd";
/// The first bytes of a frame that decoders of zstd skip, behind a byte from 0x50 to 0x5f.
const SKIPPED: &[u8] = b"\x2a\x4d\x18";
const MAGIC_BYTES: usize = 6;
const BUFFER_BYTES: usize = 256 << 10;

/// Opens an archive. Also returns its name for messages.
pub(super) fn open(archive: &Path) -> Result<(Box<dyn Read>, String), Failure> {
    if archive.as_os_str() == "-" {
        if io::stdin().is_terminal() {
            return Err(Failure::new("stdin", "an archive is not read from a terminal")
                .hint("redirect it from a file or a pipe, or name the archive"));
        }
        let shown = "stdin".to_owned();
        return Ok((decompressed(io::stdin(), &shown)?, shown));
    }
    let shown = text::escaped(archive.as_os_str().as_encoded_bytes());
    let failed = |error: io::Error| Failure::io(shown.clone(), &error);
    let file = File::open(archive).map_err(failed)?;
    if file.metadata().map_err(failed)?.is_dir() {
        return Err(Failure::new(shown, "is a directory, not an archive")
            .hint("leave out --tar to copy a directory"));
    }
    Ok((decompressed(file, &shown)?, shown))
}

fn decompressed(mut from: impl Read + 'static, shown: &str) -> Result<Box<dyn Read>, Failure> {
    let failed = |error: io::Error| Failure::io(shown, &error);
    let mut magic = Vec::new();
    from.by_ref().take(MAGIC_BYTES as u64).read_to_end(&mut magic).map_err(failed)?;
    let refused = REFUSED.iter().find(|(first, ..)| magic.starts_with(first));
    if let Some((_, name, program)) = refused {
        return Err(Failure::new(shown, format!("is compressed with {name}")).hint(format!(
            "decompress it: `{program} ARCHIVE | butternut import --tar VOLUME - PATH`"
        )));
    }
    let is_gzip = magic.starts_with(GZIP);
    let is_skipped = magic.first().is_some_and(|byte| byte & 0xf0 == 0x50)
        && magic.get(1..).is_some_and(|rest| rest.starts_with(SKIPPED));
    let is_zstd = magic.starts_with(ZSTD) || is_skipped;
    let whole = BufReader::with_capacity(BUFFER_BYTES, Cursor::new(magic).chain(from));
    if is_gzip {
        let members = GzipMembers(Some(GzDecoder::new(whole)));
        return Ok(Box::new(BufReader::with_capacity(BUFFER_BYTES, members)));
    }
    if is_zstd {
        // Its window is limited to 128 MiB.
        let decoder = zstd::Decoder::with_buffer(whole).map_err(failed)?;
        return Ok(Box::new(BufReader::with_capacity(BUFFER_BYTES, decoder)));
    }
    Ok(Box::new(whole))
}

/// Decompresses the members of data of gzip, which follow one another. `None` at the end.
struct GzipMembers<R>(Option<GzDecoder<R>>);

impl<R: BufRead> Read for GzipMembers<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        while let Some(member) = &mut self.0 {
            let read = member.read(buffer)?;
            if read > 0 || buffer.is_empty() {
                return Ok(read);
            }
            if skip_zeros(member.get_mut())? {
                self.0 = None;
            } else {
                self.0 = self.0.take().map(|member| GzDecoder::new(member.into_inner()));
            }
        }
        Ok(0)
    }
}

/// Skips zeros. Returns whether nothing follows them.
fn skip_zeros(from: &mut impl BufRead) -> io::Result<bool> {
    loop {
        let bytes = match from.fill_buf() {
            Err(error) if error.kind() == ErrorKind::Interrupted => continue,
            filled => filled?,
        };
        let zeros = bytes.iter().take_while(|byte| **byte == 0).count();
        let (is_end, is_more) = (bytes.is_empty(), zeros < bytes.len());
        from.consume(zeros);
        if is_end || is_more {
            return Ok(is_end);
        }
    }
}
