//! Base64: incremental, for file data in JSON, and whole, for values of extended attributes.

use std::io::{self, Write};

const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

/// Writes `bytes` as base64. In a sequence of calls, the length of every part but the last must be
/// a multiple of 3.
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

/// Returns `bytes` as base64.
pub(crate) fn text(bytes: &[u8]) -> String {
    let mut out = Vec::with_capacity(bytes.len().div_ceil(3) * 4);
    // Writing into memory cannot fail.
    write(&mut out, bytes).unwrap_or_default();
    String::from_utf8(out).unwrap_or_default()
}

/// Decodes base64. Returns `None` if it is malformed.
pub(crate) fn read(text: &[u8]) -> Option<Vec<u8>> {
    let mut bytes = Vec::with_capacity(text.len() / 4 * 3);
    let padding = text.iter().rev().take_while(|byte| **byte == b'=').count();
    if !text.len().is_multiple_of(4) || padding > 2 {
        return None;
    }
    let digits = &text[..text.len() - padding];
    for group in digits.chunks(4) {
        let mut word = 0_u32;
        for at in 0..4 {
            let digit = match group.get(at) {
                Some(byte) => DIGITS.iter().position(|digit| digit == byte)?,
                None => 0,
            };
            word = word << 6 | u32::try_from(digit).ok()?;
        }
        let byte = |at: usize| u8::try_from(word >> (16 - 8 * at) & 255).ok();
        for at in 0..group.len() - 1 {
            bytes.push(byte(at)?);
        }
    }
    Some(bytes)
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
            assert_eq!(super::read(want.as_bytes()).as_deref(), Some(bytes.as_bytes()));
        }
        for malformed in ["Z", "Zg", "Zg=", "Z===", "Zm9v====", "Zm9*"] {
            assert_eq!(super::read(malformed.as_bytes()), None, "{malformed}");
        }
    }
}
