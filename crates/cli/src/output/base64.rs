//! Base64 in pieces, for file bytes in JSON.

use std::io::{self, Write};

const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

/// Writes `bytes` as base64. Every piece but the last must be a multiple of 3 long.
pub(crate) fn write(out: &mut dyn Write, bytes: &[u8]) -> io::Result<()> {
    for group in bytes.chunks(3) {
        let word = group.iter().fold(0_u32, |word, byte| word << 8 | u32::from(*byte))
            << (8 * (3 - group.len()));
        let digit = |at: usize| DIGITS[(word >> (18 - 6 * at) & 63) as usize];
        let mut text = [digit(0), digit(1), digit(2), digit(3)];
        text[group.len() + 1..].fill(b'=');
        out.write_all(&text)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_vectors_of_rfc_4648() {
        for (bytes, want) in
            [("", ""), ("f", "Zg=="), ("fo", "Zm8="), ("foo", "Zm9v"), ("foob", "Zm9vYg==")]
        {
            let mut out = Vec::new();
            super::write(&mut out, bytes.as_bytes()).unwrap();
            assert_eq!(String::from_utf8(out).unwrap(), want);
        }
    }
}
